//! What is due in a cache, and its doing.
//!
//! Runs are taken from the book in batches, worked on without its lock, and
//! noted again as what they have become. Their slots stay theirs meanwhile.

use std::{cell::Cell, sync::atomic::Ordering};

use super::{
    Cache, End,
    batch::Batch,
    book::{Book, State},
};
use crate::{
    operation::Operation,
    range::PageRange,
    report::Report,
    sys::{
        probe::{self, Laziness},
        thread,
    },
    teardown::{PartialFolios, Teardown},
};

/// The shortest time between two looks, in microseconds: with hardly any delay
/// each call would look, and no batch have more than a run.
const LOOK_MIN_MICROS: u64 = 100;

/// For how long lazy freeing is not tried after it was refused altogether, as
/// it is for locked memory.
const REFUSED_MICROS: u64 = 1_000_000;

impl Cache {
    /// Does what is due at `now`, if it is time and nobody else does.
    pub(super) fn tick(&self, now: u64) {
        thread_local! {
            static INSIDE: Cell<bool> = const { Cell::new(false) };
        }
        let due = self.next_tick.load(Ordering::Relaxed);
        if now < due {
            return;
        }
        let delay = self.delay_micros.load(Ordering::Relaxed);
        let age = self.max_age_micros.load(Ordering::Relaxed);
        let next = now.saturating_add((delay.min(age) / 4).max(LOOK_MIN_MICROS));
        // What is done allocates, and the allocator can be one upon this cache.
        if INSIDE.replace(true) {
            return;
        }
        if self
            .next_tick
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            self.do_due(now);
        }
        INSIDE.set(false);
    }

    /// What is hot for long enough becomes lazy; what is too old or too much ends.
    pub(super) fn do_due(&self, now: u64) {
        let delay = self.delay_micros.load(Ordering::Relaxed);
        let age = self.max_age_micros.load(Ordering::Relaxed);
        self.free_lazily(now.saturating_sub(delay), now);
        if let Some(before) = now.checked_sub(age) {
            // Hot runs do not age; they become lazy.
            self.end(|book| book.take_oldest(State::Lazy, before));
            self.end_clean(before);
        }
        self.end_surplus(self.most_bytes());
    }

    /// Ends runs, the oldest lazy ones first, until at most `most_bytes` are left.
    pub(super) fn end_surplus(&self, most_bytes: usize) -> usize {
        // What is refused comes back younger, and is not tried again now.
        let began = thread::monotonic_micros();
        [State::Lazy, State::Hot]
            .map(|state| {
                self.end(|book| {
                    (book.held_bytes() > most_bytes)
                        .then(|| book.take_oldest(state, began))
                        .flatten()
                })
            })
            .iter()
            .sum()
    }

    /// Ends runs without memory that have been so since `before`: there are some
    /// where lazy freeing is not lazy. With [`End::Discard`] they stay.
    pub(super) fn end_clean(&self, before: u64) -> usize {
        match self.end {
            End::Unmap => self.end(|book| book.take_oldest(State::Clean, before)),
            End::Discard => 0,
        }
    }

    fn free_lazily(&self, before: u64, now: u64) {
        let lazy = probe::laziness() == Laziness::Lazy;
        let operation = if lazy {
            Operation::LazyFree
        } else {
            Operation::Discard
        };
        while let Some(batch) = self.batch(|book| book.take_oldest(State::Hot, before)) {
            if lazy && now < self.refused_until.load(Ordering::Relaxed) {
                self.counts.refused(batch.bytes());
                self.put_back(&batch, batch.runs(), State::Lazy, now);
                continue;
            }
            let report = self.run(operation, &batch);
            if lazy && report.bytes_done == 0 {
                // To find out why costs far more than what is wanted.
                let until = now.saturating_add(REFUSED_MICROS);
                self.refused_until.store(until, Ordering::Relaxed);
            }
            if lazy {
                self.counts.lazily_freed(report.bytes_done);
            } else {
                self.counts.ended(report.bytes_done);
            }
            let clean = !lazy && report.bytes_done == batch.bytes();
            let state = if clean { State::Clean } else { State::Lazy };
            self.put_back(&batch, batch.runs(), state, now);
        }
    }

    /// Ends what `next` takes from the book; returns the bytes.
    fn end(&self, next: impl Fn(&mut Book) -> Option<PageRange>) -> usize {
        let operation = match self.end {
            End::Unmap => Operation::Unmap,
            End::Discard => Operation::Discard,
        };
        let (began, mut ended) = (thread::monotonic_micros(), 0);
        while let Some(batch) = self.batch(&next) {
            let report = self.run(operation, &batch);
            self.counts.ended(report.bytes_done);
            ended += report.bytes_done;
            let whole = report.bytes_done == batch.bytes();
            let now = thread::monotonic_micros().max(began + 1);
            match self.end {
                End::Unmap => self.put_back(&batch, refused(&report), State::Lazy, now),
                // Where something was refused, nobody knows which reads zero.
                End::Discard if whole => {
                    self.put_back(&batch, batch.runs(), State::Clean, now);
                }
                End::Discard => self.put_back(&batch, batch.runs(), State::Lazy, now),
            }
        }
        ended
    }

    fn batch(&self, next: impl Fn(&mut Book) -> Option<PageRange>) -> Option<Batch> {
        let mut book = self.book.lock()?;
        book.take_batch(next)
    }

    fn run(&self, operation: Operation, batch: &Batch) -> Report {
        // SAFETY: the runs belong to the cache, and are in no list meanwhile.
        let report = unsafe {
            Teardown::new(operation)
                .partial_folios(PartialFolios::Discard)
                .run_raw(batch.runs().map(|run| (run.start() as *mut u8, run.len())))
        };
        let left = batch.bytes().saturating_sub(report.bytes_done);
        self.counts.refused(left);
        report
    }

    /// Ends a batch: of its runs, `runs` are in the book again.
    fn put_back(
        &self,
        batch: &Batch,
        runs: impl Iterator<Item = PageRange>,
        state: State,
        now: u64,
    ) {
        // Else: in a child that has lost the book, and its runs with it.
        if let Some(mut book) = self.book.lock() {
            book.put_back(batch, runs, state, now);
        }
    }
}

/// What was refused and is as it was. What was skipped (sealed since, or not
/// mapped any more) is nothing to hand out.
fn refused(report: &Report) -> impl Iterator<Item = PageRange> {
    report.failures().iter().filter_map(|error| {
        let range = error.range()?;
        range.split_at(range.start() + error.done_bytes()).1
    })
}
