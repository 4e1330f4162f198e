//! A region of volatile memory.

use std::{
    fmt, io,
    ops::Range,
    process,
    sync::{
        MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    answer::{Answer, PinError, PurgePolicy},
    faults::Faults,
    guards::{Held, Pinned, PinnedMut},
    options::VolatileOptions,
    order::Order,
    pins::{Contents, Hold, Not, Pages, Pins, Run},
    tagged::Tagged,
    wide,
};
use crate::{
    error::Errno,
    fork_lock::ForkLock,
    operation::{Advice, Operation},
    range::PageRange,
    sys::{self, Kernel as _, futex::Bell, linux::Linux, mmap::Region},
    teardown::{PartialFolios, Teardown},
};

/// For how long it is taken for granted that pages cannot be freed lazily, after
/// all of a range was refused.
const REFUSED_MICROS: u64 = 1_000_000;

struct State {
    pins: Pins,
    order: Order,
    /// Counts the times that something became volatile.
    unpins: u32,
    /// Whose pins these are: a child inherits those of threads that it lacks.
    process: u32,
}

/// Memory that the kernel may take while it is not pinned, with a definite
/// answer whether it did; see the [module](super).
pub struct VolatileRegion {
    memory: Region,
    tagged: Tagged,
    faults: Option<Faults>,
    policy: PurgePolicy,
    state: ForkLock<State>,
    /// Rings when pages have moved.
    moved: Bell,
    refused_bytes: AtomicU64,
    /// Until when a refusal is not looked into.
    refused_until: AtomicU64,
}

impl fmt::Debug for VolatileRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolatileRegion")
            .field("range", &self.memory.range())
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl VolatileRegion {
    /// A region of that memory; `None` without memory for the notes.
    pub(super) fn over(
        memory: Region,
        faults: Option<Faults>,
        policy: PurgePolicy,
    ) -> Option<Self> {
        let region = Self {
            tagged: Tagged::new(memory.range())?,
            faults,
            policy,
            state: ForkLock::new(State {
                pins: Pins::new(memory.range().len() / sys::page_bytes())?,
                order: Order::default(),
                unpins: 0,
                process: process::id(),
            }),
            moved: Bell::new(),
            refused_bytes: AtomicU64::new(0),
            refused_until: AtomicU64::new(0),
            memory,
        };
        region.state.belongs_here();
        Some(region)
    }

    /// How one is made, with choices.
    #[must_use]
    pub fn options() -> VolatileOptions {
        VolatileOptions::default()
    }

    /// A region of `len` bytes, rounded up to whole pages: all of it volatile
    /// and empty, so that the first pin of a page answers [`Answer::Purged`].
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(len: usize) -> io::Result<Self> {
        Self::options().map(len)
    }

    /// Bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.memory.range().len()
    }

    /// Where it lies, for tools that look at it from outside. Nothing may be
    /// read or written there that is not pinned.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.range().start() as *const u8
    }

    /// Makes the pages that hold `bytes` solid for reading, until the guard is
    /// dropped. Pins of the same pages are counted.
    ///
    /// # Errors
    /// [`PinError`]; nothing is pinned then.
    pub fn pin(&self, bytes: Range<usize>) -> Result<Pinned<'_>, PinError> {
        Ok(Pinned(self.hold(bytes, Hold::Read)?))
    }

    /// Makes the pages that hold `bytes` solid for reading and writing, for the
    /// caller alone, until the guard is dropped.
    ///
    /// A thread that panics with the guard has perhaps written half of what it
    /// wanted: then the contents are given up, and the next answer is
    /// [`Answer::Purged`].
    ///
    /// # Errors
    /// [`PinError`]; nothing is pinned then.
    pub fn pin_mut(&self, bytes: Range<usize>) -> Result<PinnedMut<'_>, PinError> {
        Ok(PinnedMut::of(self.hold(bytes, Hold::Write)?))
    }

    /// Purges up to `bytes` (rounded up to whole pages) that are volatile, those
    /// first that were unpinned first. Returns how many were: less if there is
    /// no more. Pages that the kernel has taken already, which nobody knows before
    /// they are pinned, count as well. For programs that know better than the
    /// kernel when memory is short.
    pub fn purge_now(&self, bytes: usize) -> usize {
        let page = sys::page_bytes();
        let mut left = bytes.div_ceil(page);
        while left > 0 {
            let Some(mut state) = self.lock() else {
                break;
            };
            let State { pins, order, .. } = &mut *state;
            let Some(runs) = order.oldest(pins, left) else {
                break;
            };
            drop(state);
            for run in &runs {
                self.empty(&run.pages);
                left -= run.pages.len();
            }
            if let Some(mut state) = self.lock() {
                state.pins.end_purge(&runs);
            }
            self.moved.ring();
        }
        (bytes.div_ceil(page) - left) * page
    }

    /// Asks the kernel to reclaim now what is volatile of `bytes`
    /// (`MADV_PAGEOUT`, Linux 5.4): what it would do under pressure, at any
    /// moment and whatever is pinned meanwhile. What is pinned stays; where
    /// there is swap it can be moved there.
    ///
    /// # Errors
    /// [`PinError::OutOfRange`], or the errno of the call.
    pub fn reclaim(&self, bytes: Range<usize>) -> Result<(), PinError> {
        let pages = self.pages_of(&bytes)?;
        Linux::plain()
            .advise(self.tagged.addresses(&pages), Advice::PageOut)
            .map_err(PinError::Kernel)
    }

    /// Bytes that were unpinned and could not be made volatile: the kernel
    /// refuses that for locked memory (mlockall(2)). They are always kept.
    #[must_use]
    pub fn refused_bytes(&self) -> u64 {
        self.refused_bytes.load(Ordering::Relaxed)
    }

    fn hold(&self, bytes: Range<usize>, hold: Hold) -> Result<Held<'_>, PinError> {
        let pages = self.pages_of(&bytes)?;
        let runs = loop {
            if let Some(runs) = self.begin_pin(&pages, hold)? {
                break runs;
            }
            let heard = self.moved.listen();
            if let Some(runs) = self.begin_pin(&pages, hold)? {
                break runs;
            }
            self.moved.sleep(heard, None);
        };
        let claimed = self.claim(&runs);
        let mut state = self.lock().ok_or(PinError::LostInFork)?;
        let mut purged = match claimed {
            Ok(purged) => purged,
            Err(errno) => {
                drop(state);
                self.take_back(pages, &runs);
                return Err(PinError::Kernel(errno));
            }
        };
        if self.policy == PurgePolicy::Whole
            && purged.is_empty()
            && !state.pins.empty(pages.clone()).is_empty()
        {
            // A part was lost before. The rest is still moving: nobody sees it half.
            drop(state);
            for run in &runs {
                self.empty(&run.pages);
                purged.extend(run.pages.clone());
            }
            let filled = runs
                .iter()
                .try_for_each(|run| self.fill(self.tagged.addresses(&run.pages)));
            if let Err(errno) = filled {
                self.take_back(pages, &runs);
                return Err(PinError::Kernel(errno));
            }
            state = self.lock().ok_or(PinError::LostInFork)?;
        }
        state.pins.end_pin(&runs, hold, &purged);
        let empty = state.pins.empty(pages.clone());
        drop(state);
        if !runs.is_empty() {
            self.moved.ring();
        }
        let answer = match &empty[..] {
            [] => Answer::Kept,
            empty => Answer::Purged(empty.iter().map(bytes_of).collect()),
        };
        Ok(Held {
            region: self,
            bytes,
            pages,
            answer,
        })
    }

    /// `None` while some of the pages are moving.
    fn begin_pin(&self, pages: &Pages, hold: Hold) -> Result<Option<Vec<Run>>, PinError> {
        let mut state = self.lock().ok_or(PinError::LostInFork)?;
        match state.pins.begin_pin(pages.clone(), hold) {
            Ok(runs) => Ok(Some(runs)),
            Err(Not::Yet) => Ok(None),
            Err(Not::Held) => Err(PinError::Held),
        }
    }

    /// Makes pages solid that are moving; answers with those that were new, and
    /// are empty now.
    fn claim(&self, runs: &[Run]) -> Result<Vec<usize>, Errno> {
        // Before anything is changed, so that a refusal changes nothing.
        for run in runs {
            self.fill(self.tagged.addresses(&run.pages))?;
        }
        let mut purged = Vec::new();
        for run in runs.iter().filter(|run| !run.empty) {
            let lost = wide::each_part(run.pages.clone(), |pages| {
                let mut lost = Vec::new();
                // SAFETY: the pages are moving, and this thread moves them.
                unsafe { self.tagged.claim(pages, &mut lost) };
                lost
            });
            purged.extend(lost.into_iter().flatten());
        }
        let lose_all = self.policy == PurgePolicy::Whole && !purged.is_empty();
        let lost: Vec<Pages> = if lose_all {
            purged = runs.iter().flat_map(|run| run.pages.clone()).collect();
            runs.iter().map(|run| run.pages.clone()).collect()
        } else {
            runs_of(&purged)
        };
        for pages in &lost {
            // Reclaim flushes TLBs late: another CPU could still see the page
            // that was there. A discard flushes them now. It also gives back the
            // page of zeros that may never be written.
            self.empty(pages);
            self.fill(self.tagged.addresses(pages))?;
        }
        Ok(purged)
    }

    /// Ends a pin of `pages` that failed while those of `runs` were moving; the
    /// others are held.
    fn take_back(&self, pages: Pages, runs: &[Run]) {
        // The tags are still there; where they are not, nothing is left.
        self.make_volatile(runs, |_| {});
        let mut at = pages.start;
        for end in runs
            .iter()
            .map(|run| run.pages.clone())
            .chain(std::iter::once(pages.end..pages.end))
        {
            if at < end.start {
                self.release(at..end.start, Contents::Stay);
            }
            at = end.end;
        }
    }

    pub(super) fn release(&self, pages: Pages, contents: Contents) {
        let Some(mut state) = self.lock() else {
            return; // in a child that has lost it
        };
        let runs = state.pins.begin_unpin(pages, contents);
        drop(state);
        if !runs.is_empty() {
            self.make_volatile(&runs, |pages| {
                // SAFETY: the pages are moving, and this thread moves them.
                unsafe { self.tagged.mark(pages) };
            });
        }
    }

    /// Makes pages volatile that are moving; `mark` puts tags into them.
    fn make_volatile(&self, runs: &[Run], mark: impl Fn(Pages) + Sync) {
        for run in runs {
            if run.empty {
                // Nothing to keep, and perhaps a page of zeros.
                self.empty(&run.pages);
            } else {
                wide::each_part(run.pages.clone(), &mark);
                self.free_lazily(self.tagged.addresses(&run.pages));
            }
        }
        if let Some(mut state) = self.lock() {
            let State {
                pins,
                order,
                unpins,
                ..
            } = &mut *state;
            *unpins = unpins.wrapping_add(1);
            pins.end_unpin(runs, *unpins);
            for run in runs.iter().filter(|run| !run.empty) {
                order.push(run.pages.clone(), *unpins, pins);
            }
        }
        self.moved.ring();
    }

    fn free_lazily(&self, range: PageRange) {
        let small = range.len() < wide::BYTES;
        if small && Linux::plain().advise(range, Advice::Free).is_ok() {
            return;
        }
        let now = sys::thread::monotonic_micros();
        let left = if small && now < self.refused_until.load(Ordering::Relaxed) {
            range.len()
        } else {
            let pages = [(range.start() as *mut u8, range.len())];
            // SAFETY: the pages are tagged and moving: nobody relies on them.
            let report = unsafe {
                Teardown::new(Operation::LazyFree)
                    .partial_folios(PartialFolios::Split)
                    .run_raw(pages)
            };
            range.len() - report.bytes_done
        };
        if left > 0 {
            if left == range.len() {
                // To find out which part it is costs more than all the rest.
                let until = now.saturating_add(REFUSED_MICROS);
                self.refused_until.store(until, Ordering::Relaxed);
            }
            self.refused_bytes.fetch_add(left as u64, Ordering::Relaxed);
        }
    }

    /// Discards pages that are moving. With [`Stray::Faults`] they are holes then.
    fn empty(&self, pages: &Pages) {
        let range = self.tagged.addresses(pages);
        let kernel = Linux::plain();
        let done = kernel
            .advise(range, Advice::DontNeed)
            // Of locked pages, Linux 5.18.
            .or_else(|_| kernel.advise(range, Advice::DontNeedLocked));
        if done.is_err() && self.fill(range).is_ok() {
            // SAFETY: nobody else uses the pages while they move.
            unsafe { std::ptr::write_bytes(range.start() as *mut u8, 0, range.len()) };
        }
    }

    /// Where holes fault, there are none afterwards.
    fn fill(&self, range: PageRange) -> Result<(), Errno> {
        self.faults
            .as_ref()
            .map_or(Ok(()), |faults| faults.fill(range))
    }

    fn pages_of(&self, bytes: &Range<usize>) -> Result<Pages, PinError> {
        if bytes.start >= bytes.end || bytes.end > self.len() {
            return Err(PinError::OutOfRange);
        }
        let page = sys::page_bytes();
        Ok(bytes.start / page..bytes.end.div_ceil(page))
    }

    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.lock()?;
        if state.process != process::id() {
            state.process = process::id();
            self.state.belongs_here(); // it is held, by one who exists
            // Whoever moved them is not here, and how far it came nobody knows.
            for pages in state.pins.abandon_moving() {
                self.empty(&pages);
            }
        }
        Some(state)
    }
}

fn bytes_of(pages: &Pages) -> Range<usize> {
    let page = sys::page_bytes();
    pages.start * page..pages.end * page
}

/// Pages in order, as runs.
fn runs_of(pages: &[usize]) -> Vec<Pages> {
    pages
        .chunk_by(|one, next| one + 1 == *next)
        .map(|run| run[0]..run[0] + run.len())
        .collect()
}

#[cfg(test)]
mod tests;
