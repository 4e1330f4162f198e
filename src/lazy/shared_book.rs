//! The book of a cache, for many threads and after a fork.

use std::{
    process,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use super::book::{Book, Slot};
use crate::{
    range::PageRange,
    sys::{self, mmap::Region},
};

/// Runs that a cache can know of; their notes take 40 bytes each.
pub(super) const SLOTS: usize = 8192;

/// How long a child waits for a lock that one of its own threads may hold, for
/// microseconds, or one that does not exist there, for ever.
const FORK_TRIES: u32 = 200;
const FORK_PAUSE: Duration = Duration::from_micros(50);

/// A [`Book`] under a lock. Its slots are mapped when the first run comes.
pub(super) struct SharedBook {
    book: Mutex<Book>,
    /// Where the slots were mapped, or where the lock was had since: there it
    /// is held by a thread that exists. 0 before.
    process: AtomicU32,
    /// The child that has given the book up.
    lost_in: AtomicU32,
}

impl SharedBook {
    pub(super) const fn new() -> Self {
        Self {
            book: Mutex::new(Book::new()),
            process: AtomicU32::new(0),
            lost_in: AtomicU32::new(0),
        }
    }

    /// The book; `None` in the child of a fork that happened while another
    /// thread held it.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, Book>> {
        match self.book.try_lock() {
            Ok(book) => return Some(book),
            // Nothing panics while it is half changed.
            Err(TryLockError::Poisoned(broken)) => return Some(broken.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        let here = process::id();
        if self.lost_in.load(Ordering::Relaxed) == here {
            return None;
        }
        if self.process.load(Ordering::Relaxed) == here {
            return Some(self.book.lock().unwrap_or_else(PoisonError::into_inner));
        }
        for _ in 0..FORK_TRIES {
            thread::sleep(FORK_PAUSE);
            if let Ok(book) = self.book.try_lock() {
                self.process.store(here, Ordering::Relaxed);
                return Some(book);
            }
        }
        self.lost_in.store(here, Ordering::Relaxed);
        None
    }

    /// [`lock`](Self::lock), with slots; `None` also if there is no memory for them.
    pub(super) fn lock_equipped(&self) -> Option<MutexGuard<'_, Book>> {
        let mut book = self.lock()?;
        if !book.is_equipped() {
            let slots = Region::map(slots_bytes()).ok()?.leak().start() as *mut Slot;
            // SAFETY: the mapping is new, large enough, unmapped only with the
            // book, and known to nobody else; zeros are a valid `Slot`.
            let slots = unsafe { std::slice::from_raw_parts_mut(slots, SLOTS) };
            book.equip(slots, sys::page_bytes());
            self.process.store(process::id(), Ordering::Relaxed);
        }
        Some(book)
    }
}

impl Drop for SharedBook {
    fn drop(&mut self) {
        let book = self.book.get_mut().unwrap_or_else(PoisonError::into_inner);
        let slots = book.strip();
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
