//! An allocator that gives large blocks to the kernel lazily.

use std::{
    alloc::{GlobalAlloc, Layout},
    ptr,
};

use crate::{
    lazy::{self, Cache},
    range::PageRange,
    sys::{self, mmap::Region},
};

/// Blocks of at least this many bytes are runs of pages of their own. The
/// smallest that glibc maps by itself, until it learns otherwise.
pub const LARGE_BYTES: usize = 128 << 10;

/// A global allocator that sends large blocks through a [`Cache`] and leaves
/// the others to `A`.
///
/// A block of [`LARGE_BYTES`] or more is a run of pages, rounded up by at most a
/// quarter. Freed, it is the kernel's to take after some milliseconds, and cheap
/// to have again until the kernel does. A block that grows or shrinks is moved
/// by page tables (`mremap`), not copied.
///
/// ```
/// use std::alloc::System;
///
/// #[global_allocator]
/// static ALLOC: mmzap::Alloc<System> = mmzap::Alloc::new(System);
///
/// fn main() {
///     drop(vec![1_u8; 1 << 20]);
///     let again = vec![2_u8; 1 << 20];
///     assert!(ALLOC.cache().stats().reused_hot > 0);
/// #   drop(again);
/// }
/// ```
#[derive(Debug, Default)]
pub struct Alloc<A> {
    small: A,
    cache: Cache,
}

impl<A> Alloc<A> {
    /// With a cache of its own, as [`Cache::new`] makes it.
    pub const fn new(small: A) -> Self {
        Self {
            small,
            cache: Cache::new(),
        }
    }

    /// The cache of large blocks: its settings, its figures, its
    /// [`Keeper`](lazy::Keeper).
    pub const fn cache(&self) -> &Cache {
        &self.cache
    }

    /// A block of whole pages, if it is a large one.
    fn map(&self, len: usize, zeroed: bool) -> *mut u8 {
        match self.cache.take(len) {
            Some(run) if zeroed && !run.zeroed => {
                // SAFETY: the run is the caller's alone, and writable.
                // Writing is cheaper than faulting the pages in anew.
                unsafe { ptr::write_bytes(run.addr, 0, run.len) };
                run.addr
            }
            Some(run) => run.addr,
            None => self.cache.map(len).map_or(ptr::null_mut(), |run| run.addr),
        }
    }
}

impl<A: GlobalAlloc> Alloc<A> {
    /// Reallocates by copying.
    ///
    /// # Safety
    /// That of `realloc`.
    unsafe fn moved(&self, block: *mut u8, layout: Layout, new: Layout) -> *mut u8 {
        // SAFETY: both layouts are the caller's own; the blocks do not overlap,
        // and both have the bytes that are copied.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                let bytes = layout.size().min(new.size());
                ptr::copy_nonoverlapping(block, moved, bytes);
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

/// What a large block of this layout takes; `None` for the others.
fn run_len(layout: Layout) -> Option<usize> {
    let page = sys::page_bytes();
    if layout.size() < LARGE_BYTES || layout.align() > page {
        return None;
    }
    lazy::rounded_len(layout.size(), page)
}

// SAFETY: a block is either the inner allocator's, by its layout alone, which
// does not change while it lives, or a run of pages of its own.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Alloc<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match run_len(layout) {
            Some(len) => self.map(len, false),
            // SAFETY: passed on as it came.
            None => unsafe { self.small.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match run_len(layout) {
            Some(len) => self.map(len, true),
            // SAFETY: passed on as it came.
            None => unsafe { self.small.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(len) = run_len(layout) else {
            // SAFETY: passed on as it came.
            return unsafe { self.small.dealloc(block, layout) };
        };
        // SAFETY: the block is a run of this length, and nobody uses it any more.
        if !unsafe { self.cache.put(block, len) }
            && let Some(run) = PageRange::new(block.addr(), len, sys::page_bytes())
        {
            // SAFETY: as above; the cache has not taken it.
            drop(unsafe { Region::adopt(run) });
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller vouches for the size with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (run_len(layout), run_len(new)) {
            // SAFETY: passed on as it came.
            (None, None) => unsafe { self.small.realloc(block, layout, new_size) },
            (Some(old_len), Some(new_len)) if old_len == new_len => block,
            (Some(old_len), Some(new_len)) => {
                if let Some(run) = PageRange::new(block.addr(), old_len, sys::page_bytes()) {
                    // SAFETY: the block is a run of this length.
                    match unsafe { Region::adopt(run) }.resize(new_len) {
                        Ok(region) => return region.leak().start() as *mut u8,
                        // It can be of several mappings, which cannot move.
                        Err((region, _)) => region.leak(),
                    };
                }
                // SAFETY: as for `moved`.
                unsafe { self.moved(block, layout, new) }
            }
            // SAFETY: as for `moved`.
            _ => unsafe { self.moved(block, layout, new) },
        }
    }
}
