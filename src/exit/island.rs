//! What the last steps stand on: one mapping that is never emptied.

use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering},
    time::Duration,
};

use crate::{
    range::PageRange,
    sys::{self, futex, mmap::Region, stop},
};

/// Threads that can be stopped; a process with more leaves plainly. A power of
/// two: thread numbers are hashed into it.
pub(super) const THREADS_MAX: usize = 1 << 15;

/// Pieces to discard; memory in more pieces is left to the kernel.
pub(super) const PIECES_MAX: usize = 1 << 15;

/// What stays: three places for each thread, and our own four.
pub(super) const KEPT_MAX: usize = 3 * THREADS_MAX + 4;

/// For one read of /proc: holds any line of maps (a path of 4096 bytes, each
/// perhaps escaped to four).
pub(super) const TEXT_BYTES: usize = 32 << 10;

/// One thread that was told to stop.
#[derive(Default)]
pub(super) struct Slot {
    /// Its number; 0 is a free slot.
    pub(super) tid: AtomicU32,
    /// 1 once the signal was sent.
    pub(super) told: AtomicU32,
    /// 1 once it sleeps in the handler.
    pub(super) stopped: AtomicU32,
    /// Where its stack and its thread-local storage are.
    pub(super) stack: AtomicUsize,
    pub(super) storage: AtomicUsize,
    /// The stack that its signal handler sleeps on, perhaps another one.
    pub(super) handler: AtomicUsize,
}

/// All memory that is used after the world is stopped. Zero is its initial
/// state, so a fresh mapping is one.
#[repr(C)]
pub(super) struct Island {
    code: AtomicI32,
    pid: AtomicU32,
    page_bytes: AtomicUsize,
    island_bytes: AtomicUsize,
    /// The thread that leaves.
    leaver: AtomicU32,
    workers_started: AtomicU32,
    workers_ready: AtomicU32,
    /// Raised to 1 when the pieces may be taken.
    go: AtomicU32,
    /// Counts threads that have stopped; slept on.
    pub(super) stops: AtomicU32,
    /// The next piece to take.
    pub(super) next: AtomicUsize,
    pub(super) pieces_len: AtomicUsize,
    /// Pieces done; slept on.
    pub(super) done: AtomicU32,
    pub(super) slots: [Slot; THREADS_MAX],
    /// Written by the leaving thread before `go`, read by workers after it.
    pieces: UnsafeCell<[Option<PageRange>; PIECES_MAX]>,
    /// What stays, sorted; used by the leaving thread alone.
    kept: UnsafeCell<[(usize, usize); KEPT_MAX]>,
    kept_len: AtomicUsize,
    /// Used by the leaving thread alone.
    text: UnsafeCell<[u8; TEXT_BYTES]>,
}

// SAFETY: the two cells are handed over as their comments say, the rest is
// atomic.
unsafe impl Sync for Island {}

impl Island {
    pub(super) fn make(code: i32) -> Option<&'static Self> {
        let page = sys::page_bytes();
        let bytes = size_of::<Self>().next_multiple_of(page);
        let region = Region::map(bytes).ok()?;
        let start = region.range().start();
        std::mem::forget(region); // for as long as the process lives
        // SAFETY: the mapping is large enough, page-aligned, zeroed and never
        // unmapped; zeroes are a valid island (no pieces, free slots).
        let island = unsafe { &*(start as *const Self) };
        island.code.store(code, Ordering::Relaxed);
        island.pid.store(std::process::id(), Ordering::Relaxed);
        island.page_bytes.store(page, Ordering::Relaxed);
        island.island_bytes.store(bytes, Ordering::Relaxed);
        Some(island)
    }

    pub(super) fn code(&self) -> i32 {
        self.code.load(Ordering::Relaxed)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.page_bytes.load(Ordering::Relaxed)
    }

    /// Its own pages, which stay.
    pub(super) fn range(&self) -> (usize, usize) {
        let start = std::ptr::from_ref(self).addr();
        (start, start + self.island_bytes.load(Ordering::Relaxed))
    }

    /// Makes the calling thread the one whose exit(3) ends in the last steps.
    pub(super) fn leave_by_this_thread(&self) {
        self.leaver.store(stop::tid(), Ordering::Relaxed);
    }

    /// Whether the calling thread is that one: another one may have called
    /// exit(3) first, with a code of its own.
    pub(super) fn is_leaver(&self) -> bool {
        self.leaver.load(Ordering::Relaxed) == stop::tid()
    }

    pub(super) fn workers_started(&self) {
        self.workers_started.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn has_workers(&self) -> bool {
        self.workers() > 0
    }

    pub(super) fn workers(&self) -> usize {
        self.workers_started.load(Ordering::Relaxed) as usize
    }

    /// Puts the calling worker among the threads that stay as they are.
    pub(super) fn note_worker(&self) {
        let here = 0u8;
        if let Some(slot) = self.slot(stop::tid()) {
            slot.stack
                .store((&raw const here).addr(), Ordering::Relaxed);
            slot.storage
                .store(stop::thread_pointer(), Ordering::Relaxed);
            slot.handler
                .store((&raw const here).addr(), Ordering::Relaxed);
            slot.stopped.store(1, Ordering::Release);
            self.workers_ready.fetch_add(1, Ordering::Release);
            futex::wake(&self.workers_ready);
        }
    }

    /// Waits a moment for the workers; they have had all exit handlers' time.
    pub(super) fn workers_ready(&self) -> bool {
        const LIMIT: Duration = Duration::from_millis(50);
        let deadline = stop::now() + LIMIT;
        loop {
            let ready = self.workers_ready.load(Ordering::Acquire);
            if ready as usize == self.workers() {
                return true;
            }
            let Some(left) = deadline.checked_sub(stop::now()) else {
                return false;
            };
            futex::wait(&self.workers_ready, ready, Some(left));
        }
    }

    pub(super) fn wait_for_go(&self) {
        while self.go.load(Ordering::Acquire) == 0 {
            futex::wait(&self.go, 0, None);
        }
    }

    pub(super) fn go(&self) {
        self.go.store(1, Ordering::Release);
        futex::wake(&self.go);
    }

    /// The slot of a thread, taken for it if it has none yet; `None` if there
    /// are more threads than slots.
    pub(super) fn slot(&self, tid: u32) -> Option<&Slot> {
        let first = tid as usize;
        (0..THREADS_MAX).find_map(|step| {
            let slot = &self.slots[(first + step) % THREADS_MAX];
            let owner = slot
                .tid
                .compare_exchange(0, tid, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|other| other);
            (owner == 0 || owner == tid).then_some(slot)
        })
    }

    /// Adds a piece; false when there is no room.
    ///
    /// # Safety
    /// Only the leaving thread, before [`go`](Self::go).
    pub(super) unsafe fn add(&self, piece: PageRange) -> bool {
        let len = self.pieces_len.load(Ordering::Relaxed);
        // SAFETY: nobody else looks at the pieces before `go`.
        let pieces = unsafe { &mut *self.pieces.get() };
        let Some(place) = pieces.get_mut(len) else {
            return false;
        };
        *place = Some(piece);
        self.pieces_len.store(len + 1, Ordering::Relaxed);
        true
    }

    /// The next piece for a worker, after [`go`](Self::go).
    pub(super) fn take(&self) -> Option<PageRange> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        if index >= self.pieces_len.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: written before `go`, which every worker has seen; nobody
        // writes after it.
        unsafe { (*self.pieces.get())[index] }
    }

    /// Sets what stays: first and last address of each place, in any order.
    ///
    /// # Safety
    /// Only the leaving thread, before [`go`](Self::go).
    pub(super) unsafe fn keep(&self, places: impl Iterator<Item = (usize, usize)>) {
        // SAFETY: the caller's promise.
        let kept = unsafe { &mut *self.kept.get() };
        let mut len = 0;
        for (to, place) in kept.iter_mut().zip(places) {
            *to = place;
            len += 1;
        }
        kept[..len].sort_unstable();
        self.kept_len.store(len, Ordering::Relaxed);
    }

    /// What stays, sorted.
    ///
    /// # Safety
    /// Only the leaving thread, and not while [`keep`](Self::keep) runs.
    pub(super) unsafe fn kept(&self) -> &[(usize, usize)] {
        // SAFETY: the caller's promise.
        unsafe { &(&*self.kept.get())[..self.kept_len.load(Ordering::Relaxed)] }
    }

    /// The buffer for reading /proc.
    ///
    /// # Safety
    /// Only the leaving thread, one borrow at a time.
    #[allow(clippy::mut_from_ref, reason = "one thread, one borrow: see Safety")]
    pub(super) unsafe fn text(&self) -> &mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.text.get() }
    }
}
