//! The book of a cache, for many threads and after a fork.

use std::sync::MutexGuard;

use super::book::{Book, Slot};
use crate::{
    fork_lock::ForkLock,
    range::PageRange,
    sys::{self, mmap::Region},
};

/// Runs that a cache can know of; their notes take 40 bytes each.
pub(super) const SLOTS: usize = 8192;

/// A [`Book`] under a lock. Its slots are mapped when the first run comes.
pub(super) struct SharedBook(ForkLock<Book>);

impl SharedBook {
    pub(super) const fn new() -> Self {
        Self(ForkLock::new(Book::new()))
    }

    /// The book; `None` in the child of a fork that happened while another
    /// thread held it.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, Book>> {
        self.0.lock()
    }

    /// [`lock`](Self::lock), with slots; `None` also if there is no memory for them.
    pub(super) fn lock_equipped(&self) -> Option<MutexGuard<'_, Book>> {
        let mut book = self.lock()?;
        if !book.is_equipped() {
            // First: mapping can take long, and others wait for it.
            self.0.belongs_here();
            let slots = Region::map(slots_bytes()).ok()?.leak().start() as *mut Slot;
            // SAFETY: the mapping is new, large enough, unmapped only with the
            // book, and known to nobody else; zeros are a valid `Slot`.
            let slots = unsafe { std::slice::from_raw_parts_mut(slots, SLOTS) };
            book.equip(slots, sys::page_bytes());
        }
        Some(book)
    }
}

impl Drop for SharedBook {
    fn drop(&mut self) {
        let slots = self.0.get_mut().strip();
        if !slots.is_empty()
            && let Some(range) =
                PageRange::new(slots.as_ptr().addr(), slots_bytes(), sys::page_bytes())
        {
            // SAFETY: mapped in `lock_equipped`, with this length, and in no use now.
            drop(unsafe { Region::adopt(range) });
        }
    }
}

fn slots_bytes() -> usize {
    (SLOTS * size_of::<Slot>()).next_multiple_of(sys::page_bytes())
}
