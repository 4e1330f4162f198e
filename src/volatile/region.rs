//! A region of volatile memory, and the guards of what is pinned in it.

use std::{
    error, fmt, io,
    ops::{Deref, DerefMut, Range},
    process, slice,
    sync::{
        MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::{
    faults::Faults,
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

/// What a purge takes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PurgePolicy {
    /// Single pages are lost, and the answer says which.
    #[default]
    Page,
    /// One lost page loses all that is pinned with it: for objects that are of
    /// no use in parts. Pages that others have pinned meanwhile stay, and the
    /// answer does not name them.
    Whole,
}

/// What happens when memory that was purged is touched without being pinned.
/// Safe code cannot do that; this is for raw pointers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stray {
    /// It reads zero.
    #[default]
    ReadsZero,
    /// The thread gets SIGBUS (userfaultfd(2) and PAGEMAP_SCAN, Linux 6.7). Each
    /// pin then costs a call into the kernel more. Not in the child of a fork.
    Faults,
}

/// What a pin finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Every byte is as it was when it was unpinned.
    Kept,
    /// The bytes of these ranges, whole pages, are zero: they were purged, or
    /// nothing was written there yet. All others are as they were.
    Purged(Vec<Range<usize>>),
}

/// Why nothing was pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinError {
    /// The range is empty, or not inside of the region.
    OutOfRange,
    /// A page of it is pinned for writing, or, where the wish is to write, for
    /// reading.
    Held,
    /// In the child of a fork that happened while another thread used the
    /// region: it cannot be used there.
    LostInFork,
    /// The kernel had no memory for pages that were purged.
    Kernel(Errno),
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange => f.write_str("pin: the range is empty or not inside of the region"),
            Self::Held => f.write_str("pin: a page is pinned by another; try again when it is not"),
            Self::LostInFork => f.write_str(
                "pin: another thread was using the region when this process was forked; make a new one",
            ),
            Self::Kernel(errno) => write!(f, "pin: {errno:?}; the range is still volatile"),
        }
    }
}

impl error::Error for PinError {}

/// For how long it is taken for granted that pages cannot be freed lazily, after
/// all of a range was refused.
const REFUSED_MICROS: u64 = 1_000_000;

/// How a [`VolatileRegion`] is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolatileOptions {
    policy: PurgePolicy,
    stray: Stray,
}

impl VolatileOptions {
    /// What a purge takes with it.
    #[must_use]
    pub fn purge_policy(mut self, policy: PurgePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// What happens when purged memory is touched without being pinned.
    #[must_use]
    pub fn stray(mut self, stray: Stray) -> Self {
        self.stray = stray;
        self
    }

    /// Maps a region of `len` bytes, rounded up to whole pages. It takes no
    /// memory before it is written, but for 24 bytes of notes for each page.
    ///
    /// # Errors
    /// Those of mmap(2), and `ENOMEM` for the notes. For [`Stray::Faults`] those of
    /// userfaultfd(2), MADV_POPULATE_WRITE and PAGEMAP_SCAN, whichever the kernel
    /// lacks: `ENOSYS`, `EINVAL` or `ENOTTY`.
    pub fn map(self, len: usize) -> io::Result<VolatileRegion> {
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.0);
        let page = sys::page_bytes();
        let len = len
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or_else(|| error(sys::ENOMEM))?;
        let memory = Region::map(len).map_err(error)?;
        // One written byte would keep a whole huge page. A kernel without huge
        // pages refuses, and has none.
        let _ = Linux::plain().advise(memory.range(), Advice::NoHugePage);
        let faults = match self.stray {
            Stray::ReadsZero => None,
            Stray::Faults => Some(Faults::over(memory.range())?),
        };
        let region = VolatileRegion {
            tagged: Tagged::new(memory.range()).ok_or_else(|| error(sys::ENOMEM))?,
            faults,
            policy: self.policy,
            state: ForkLock::new(State {
                pins: Pins::new(len / page).ok_or_else(|| error(sys::ENOMEM))?,
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
        Ok(region)
    }
}

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
        Ok(PinnedMut {
            held: self.hold(bytes, Hold::Write)?,
            contents: Contents::Stay,
            panicking: thread::panicking(),
        })
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

    fn release(&self, pages: Pages, contents: Contents) {
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

/// What both guards are made of.
struct Held<'a> {
    region: &'a VolatileRegion,
    bytes: Range<usize>,
    pages: Pages,
    answer: Answer,
}

impl Held<'_> {
    fn start(&self) -> *mut u8 {
        (self.region.memory.range().start() + self.bytes.start) as *mut u8
    }
}

impl fmt::Debug for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned")
            .field(&self.bytes)
            .field(&self.answer)
            .finish()
    }
}

/// Bytes that are solid and can be read, until this is dropped.
#[derive(Debug)]
pub struct Pinned<'a>(Held<'a>);

impl Pinned<'_> {
    /// What the pin found.
    #[must_use]
    pub fn answer(&self) -> &Answer {
        &self.0.answer
    }

    /// Whether every byte is as it was.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.0.answer == Answer::Kept
    }
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and initialised (by the kernel, if by nobody else);
        // while it is pinned for reading nobody writes to it and the kernel
        // does not take it.
        unsafe { slice::from_raw_parts(self.0.start(), self.0.bytes.len()) }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.0.region.release(self.0.pages.clone(), Contents::Stay);
    }
}

/// Bytes that are solid and the holder's alone, until this is dropped.
#[derive(Debug)]
pub struct PinnedMut<'a> {
    held: Held<'a>,
    contents: Contents,
    /// Whether a panic was on its way already when this was made.
    panicking: bool,
}

impl PinnedMut<'_> {
    /// What the pin found.
    #[must_use]
    pub fn answer(&self) -> &Answer {
        &self.held.answer
    }

    /// Whether every byte is as it was.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.held.answer == Answer::Kept
    }

    /// Unpins the pages and gives their memory back: the next pin finds them
    /// purged.
    pub fn discard(mut self) {
        self.contents = Contents::Go;
    }
}

impl Deref for PinnedMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as for `Pinned`; pinned for writing, it is the holder's alone.
        unsafe { slice::from_raw_parts(self.held.start(), self.held.bytes.len()) }
    }
}

impl DerefMut for PinnedMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { slice::from_raw_parts_mut(self.held.start(), self.held.bytes.len()) }
    }
}

impl Drop for PinnedMut<'_> {
    fn drop(&mut self) {
        if thread::panicking() && !self.panicking {
            self.contents = Contents::Go;
        }
        let pages = self.held.pages.clone();
        self.held.region.release(pages, self.contents);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_that_the_kernel_refuses_changes_nothing() {
        let page = sys::page_bytes();
        let options = VolatileRegion::options().stray(Stray::Faults);
        let region = match options.map(8 * page) {
            Ok(region) => region,
            Err(error) => return println!("skipped: needs userfaultfd: {error}"),
        };
        let refuse = |on| {
            let faults = region.faults.as_ref().expect("it faults");
            faults.refuses.store(on, Ordering::Relaxed);
        };
        region.pin_mut(0..8 * page).expect("memory").fill(5);
        let middle = region.pin(3 * page..5 * page).expect("memory");
        refuse(true);
        let refused = region.pin(0..8 * page).expect_err("no memory");
        assert_eq!(refused, PinError::Kernel(sys::ENOMEM));
        refuse(false);
        drop(middle);
        for _ in 0..2 {
            let all = region.pin_mut(0..8 * page).expect("nobody holds any of it");
            assert!(all.is_kept() && all.iter().all(|byte| *byte == 5));
        }
        // Nothing was forgotten in the order either.
        assert_eq!(region.purge_now(usize::MAX), 8 * page);
    }
}
