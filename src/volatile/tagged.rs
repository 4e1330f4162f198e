//! How a page tells whether the kernel has taken it.
//!
//! While a page is volatile, one word of it is a tag, and the word that belongs
//! there is kept aside. To make the page solid the tag is exchanged for that word
//! by one atomic instruction. That writes to the page, and a page that is written
//! is not taken: the kernel first removes the page from the page table, and looks
//! only then whether it was written; a write in between finds no page and gets a
//! new one, of zeros. So the word that comes out is the tag, and the page is all
//! there and stays, or it is zero, and the page is new.

use std::sync::atomic::{AtomicU64, Ordering};

use super::pins::Pages;
use crate::{range::PageRange, sys};

/// Not zero, which is what a new page holds. What a page holds itself does not
/// matter: its own word is never there while the tag is.
const TAG: u64 = 0x706d_657a_6d61_707a;

/// The tag of each page is in another line of the cache than that of the page
/// before: words at one offset of many pages would share a few places of it, and
/// each would be fetched from memory again.
const LINE: usize = 64;

/// The pages of a region, and the words kept aside.
pub(super) struct Tagged {
    range: PageRange,
    aside: Box<[AtomicU64]>,
}

impl Tagged {
    /// `None` without memory for the words.
    pub(super) fn new(range: PageRange) -> Option<Self> {
        let pages = range.len() / sys::page_bytes();
        let mut aside = Vec::new();
        aside.try_reserve_exact(pages).ok()?;
        aside.resize_with(pages, || AtomicU64::new(0));
        Some(Self {
            range,
            aside: aside.into_boxed_slice(),
        })
    }

    /// The addresses of some pages.
    pub(super) fn addresses(&self, pages: &Pages) -> PageRange {
        let page = sys::page_bytes();
        PageRange::between(
            self.range.start() + pages.start * page,
            self.range.start() + pages.end * page,
        )
        .expect("pages of the region, of which there is one at least")
    }

    /// Puts tags into pages that are about to become volatile.
    ///
    /// # Safety
    /// The pages are moving, and the caller moves them.
    pub(super) unsafe fn mark(&self, pages: Pages) {
        for index in pages {
            // SAFETY: passed on.
            let word = unsafe { self.word(index) };
            // Nobody else writes: no exchange is needed, which would wait.
            self.aside[index].store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            word.store(TAG, Ordering::Release);
        }
    }

    /// Makes pages solid; adds those that are new to `purged`, which are to be
    /// discarded.
    ///
    /// # Safety
    /// As for [`mark`](Self::mark), after which they have been volatile.
    pub(super) unsafe fn claim(&self, pages: Pages, purged: &mut Vec<usize>) {
        for index in pages {
            // SAFETY: passed on.
            let word = unsafe { self.word(index) };
            let own = self.aside[index].load(Ordering::Relaxed);
            // An exchange writes even where it changes nothing, on every CPU.
            if word.swap(own, Ordering::AcqRel) != TAG {
                purged.push(index);
            }
        }
    }

    /// # Safety
    /// Nobody else uses the page as anything but its tag.
    unsafe fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < self.aside.len());
        let page = sys::page_bytes();
        let at = self.range.start() + index * page + index * LINE % page;
        // SAFETY: mapped, readable and writable for as long as the region is,
        // aligned, and in no other use by the word of the caller.
        unsafe { AtomicU64::from_ptr(at as *mut u64) }
    }
}

#[cfg(test)]
mod model;
