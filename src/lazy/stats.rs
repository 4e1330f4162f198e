//! What a cache has done so far.

use std::sync::atomic::{AtomicU64, Ordering};

use super::book::{Book, STATES, State};

/// What a cache holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes freed a moment ago, in use as far as the kernel knows.
    pub hot_bytes: usize,
    /// Bytes freed lazily: reclaimable, or taken by the kernel already. Where the
    /// kernel refuses that (mlockall(2)), bytes that wait for their end here.
    pub lazy_bytes: usize,
    /// Bytes of address space without memory: for [`End::Discard`](super::End),
    /// and where lazy freeing is not lazy.
    pub clean_bytes: usize,
    /// Runs taken back while they were hot: no system call.
    pub reused_hot: u64,
    /// Runs taken back after they were freed lazily.
    pub reused_lazy: u64,
    /// Runs taken back after they were discarded.
    pub reused_clean: u64,
    /// Requests that found nothing.
    pub missed: u64,
    /// Bytes freed lazily so far.
    pub lazily_freed_bytes: u64,
    /// Bytes unmapped or discarded so far.
    pub ended_bytes: u64,
    /// Bytes for which the kernel refused what was tried. They stay in the
    /// cache, and are tried again when they are old.
    pub refused_bytes: u64,
}

/// Counts that go up only.
pub(super) struct Counts {
    reused: [AtomicU64; 3],
    missed: AtomicU64,
    lazily_freed_bytes: AtomicU64,
    ended_bytes: AtomicU64,
    refused_bytes: AtomicU64,
}

impl Counts {
    pub(super) const fn new() -> Self {
        Self {
            reused: [const { AtomicU64::new(0) }; 3],
            missed: AtomicU64::new(0),
            lazily_freed_bytes: AtomicU64::new(0),
            ended_bytes: AtomicU64::new(0),
            refused_bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn reused(&self, state: State) {
        add(&self.reused[state as usize], 1);
    }

    pub(super) fn missed(&self) {
        add(&self.missed, 1);
    }

    pub(super) fn lazily_freed(&self, bytes: usize) {
        add(&self.lazily_freed_bytes, bytes);
    }

    pub(super) fn ended(&self, bytes: usize) {
        add(&self.ended_bytes, bytes);
    }

    pub(super) fn refused(&self, bytes: usize) {
        add(&self.refused_bytes, bytes);
    }

    /// Beside what is in `book`; nothing, in a child that has lost it.
    pub(super) fn stats(&self, book: Option<&Book>) -> Stats {
        let held = book.map_or([0; 3], |book| STATES.map(|state| book.bytes(state)));
        let so_far = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let reused = |state: State| so_far(&self.reused[state as usize]);
        Stats {
            hot_bytes: held[State::Hot as usize],
            lazy_bytes: held[State::Lazy as usize],
            clean_bytes: held[State::Clean as usize],
            reused_hot: reused(State::Hot),
            reused_lazy: reused(State::Lazy),
            reused_clean: reused(State::Clean),
            missed: so_far(&self.missed),
            lazily_freed_bytes: so_far(&self.lazily_freed_bytes),
            ended_bytes: so_far(&self.ended_bytes),
            refused_bytes: so_far(&self.refused_bytes),
        }
    }
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
