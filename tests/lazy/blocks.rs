//! Blocks of an allocator that know what they hold.

use std::alloc::{GlobalAlloc as _, Layout, System};

use mmzap::{Alloc, LARGE_BYTES};

use crate::support::memory::*;

/// Blocks of an allocator, each with a pattern of its own in every word.
pub struct Blocks<'a> {
    pub alloc: &'a Alloc<System>,
    pub held: Vec<(usize, Layout, usize)>,
    pub dice: u64,
}

impl Blocks<'_> {
    pub fn below(&mut self, count: usize) -> usize {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 16) as usize % count
    }

    pub fn words(addr: usize, len: usize) -> impl Iterator<Item = *mut usize> {
        // Every word is too slow; two of a page show as much.
        (0..len - 8)
            .step_by(PAGE / 2)
            .map(move |at| (addr + at) as *mut usize)
    }

    pub fn write(addr: usize, len: usize, pattern: usize) {
        for word in Self::words(addr, len) {
            // SAFETY: inside a block that is ours.
            unsafe { word.write_volatile(pattern ^ word.addr()) };
        }
    }

    /// The pattern of a block that may have been moved from `written_at`.
    pub fn check(addr: usize, written_at: usize, len: usize, pattern: usize) {
        for word in Self::words(addr, len) {
            let there = word.addr() - addr + written_at;
            // SAFETY: as above.
            let found = unsafe { word.read_volatile() };
            assert_eq!(found, pattern ^ there, "at {word:p} of {len} bytes");
        }
    }

    pub fn step(&mut self) {
        let size = match self.below(4) {
            0 => 16 + self.below(LARGE_BYTES),
            1 => LARGE_BYTES,
            _ => LARGE_BYTES + self.below(2 * MIB),
        };
        let layout = Layout::from_size_align(size, 16).unwrap();
        let pattern = self.below(usize::MAX >> 1);
        match self.below(8) {
            0..=2 if self.held.len() < 24 => {
                let zeroed = self.below(2) == 0;
                // SAFETY: the layout has a size.
                let addr = unsafe {
                    if zeroed {
                        self.alloc.alloc_zeroed(layout)
                    } else {
                        self.alloc.alloc(layout)
                    }
                };
                assert!(!addr.is_null());
                if zeroed {
                    // SAFETY: the block is ours, and zeros are bytes.
                    let bytes = unsafe { std::slice::from_raw_parts(addr, size) };
                    assert!(bytes.iter().all(|byte| *byte == 0), "{size} bytes");
                }
                Self::write(addr.addr(), size, pattern);
                self.held.push((addr.addr(), layout, pattern));
            }
            3 if !self.held.is_empty() => {
                let index = self.below(self.held.len());
                let (addr, old, old_pattern) = self.held[index];
                // SAFETY: a block of this layout, not used at its old place after.
                let new = unsafe { self.alloc.realloc(addr as *mut u8, old, size) }.addr();
                assert_ne!(new, 0);
                Self::check(new, addr, old.size().min(size), old_pattern);
                Self::write(new, size, pattern);
                self.held[index] = (new, layout, pattern);
            }
            _ if !self.held.is_empty() => {
                let index = self.below(self.held.len());
                let (addr, layout, pattern) = self.held.swap_remove(index);
                Self::check(addr, addr, layout.size(), pattern);
                // SAFETY: a block of this layout, not used any more.
                unsafe { self.alloc.dealloc(addr as *mut u8, layout) };
            }
            _ => {}
        }
    }
}
