//! Free pages kept for an allocator, which the kernel may take meanwhile.
//!
//! An allocator that gives every large block back at once pays for it: the next
//! block of that size faults in page by page. One that keeps them holds memory
//! that others need. A [`Cache`] does neither. A run of pages that was freed is
//! *hot* for some milliseconds, and taking it back then costs no system call.
//! After that it is freed lazily (`MADV_FREE`, many runs by one call): the
//! kernel takes its pages when somebody needs memory, and until then taking the
//! run back costs no fault either. What nobody wants for long is unmapped.
//!
//! ```
//! use mmzap::lazy::Cache;
//!
//! static CACHE: Cache = Cache::new();
//!
//! let run = CACHE.map(1 << 20)?;
//! // SAFETY: the pages came from the cache, and nothing refers to them.
//! assert!(unsafe { CACHE.put(run.addr, run.len) });
//! let again = CACHE.take(1 << 20).expect("it is there");
//! assert_eq!(again.addr, run.addr);
//! assert!(!again.zeroed, "whatever was in it");
//! # unsafe { CACHE.put(again.addr, again.len) };
//! # Ok::<(), std::io::Error>(())
//! ```

mod book;
mod keeper;

use std::{
    fmt, io, process,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, Thread},
    time::Duration,
};

pub(crate) use book::rounded_len;
use book::{Book, STATES, Slot, State};
pub use keeper::Keeper;

use crate::{
    error::Errno,
    operation::Operation,
    range::PageRange,
    sys::{
        self,
        mmap::Region,
        pagemap::Pagemap,
        probe::{self, Laziness},
    },
    teardown::{PartialFolios, Teardown},
};

/// Runs that a cache can know of; their notes take 40 bytes each.
const SLOTS: usize = 8192;

/// Runs that are freed by one job, between two looks at the book.
const BATCH: usize = 256;

/// What becomes of runs that were not wanted for long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// They are unmapped, and the cache forgets them.
    #[default]
    Unmap,
    /// They are discarded and stay, as pages that read zero: for allocators
    /// that cannot give addresses back.
    Discard,
}

/// A run of pages that was taken from a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The first byte.
    pub addr: *mut u8,
    /// Bytes; whole pages.
    pub len: usize,
    /// Whether every byte is zero. If not, there is anything in it, and it can
    /// change from one read to the next, until it is written.
    pub zeroed: bool,
}

/// What a cache holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes freed a moment ago, in use as far as the kernel knows.
    pub hot_bytes: usize,
    /// Bytes freed lazily: reclaimable, or taken by the kernel already.
    pub lazy_bytes: usize,
    /// Bytes of address space without memory, kept for [`End::Discard`].
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
    /// Bytes for which the kernel refused what was tried; they stay as they
    /// were, and are tried again when they are old.
    pub refused_bytes: u64,
}

/// A cache of free page runs; see the [module](self). Dropped, it gives back
/// what it holds.
///
/// It can be a static, serves any number of threads, allocates nothing on the
/// heap while it holds its lock, and keeps no notes in the pages themselves,
/// which must stay clean.
///
/// **Time.** Whoever calls [`put`](Self::put) or [`take`](Self::take) does what
/// is due. A program that then goes quiet keeps its last runs hot; a
/// [`Keeper`], if wanted, does what is due at its time in a thread of its own.
///
/// **Fork.** A child has the runs as copies. If another thread of the parent was
/// in the middle of a call, the child does without the cache: its runs are lost
/// to it, and it takes no new ones.
pub struct Cache {
    book: Mutex<Book>,
    end: End,
    delay_micros: AtomicU64,
    max_age_micros: AtomicU64,
    /// 0 is the default.
    max_bytes: AtomicUsize,
    /// When something may be due next.
    next_tick: AtomicU64,
    counts: Counts,
    /// Whose lock it is; see `book`.
    process: AtomicU32,
    lost_in: AtomicU32,
    keeper: Mutex<Option<Thread>>,
    keeper_waits: AtomicBool,
}

struct Counts {
    reused: [AtomicU64; 3],
    missed: AtomicU64,
    lazily_freed_bytes: AtomicU64,
    ended_bytes: AtomicU64,
    refused_bytes: AtomicU64,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cache").field(&self.stats()).finish()
    }
}

/// What the cache holds ends; runs that were discarded stay mapped.
impl Drop for Cache {
    fn drop(&mut self) {
        self.purge();
        let slots = match self.book.get_mut() {
            Ok(book) => book.strip(),
            Err(broken) => broken.into_inner().strip(),
        };
        let bytes = slots_bytes();
        if let Some(range) = PageRange::new(slots.as_ptr().addr(), bytes, sys::page_bytes())
            && !slots.is_empty()
        {
            // SAFETY: mapped by `equip`, with this length, and in no use now.
            drop(unsafe { Region::adopt(range) });
        }
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self::new()
    }
}

impl Cache {
    /// A cache that unmaps what was not wanted for ten seconds, holds at most a
    /// quarter of the machine's memory, and frees lazily after five milliseconds.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            book: Mutex::new(Book::new()),
            end: End::Unmap,
            delay_micros: AtomicU64::new(5_000),
            max_age_micros: AtomicU64::new(10_000_000),
            max_bytes: AtomicUsize::new(0),
            next_tick: AtomicU64::new(0),
            counts: Counts {
                reused: [const { AtomicU64::new(0) }; 3],
                missed: AtomicU64::new(0),
                lazily_freed_bytes: AtomicU64::new(0),
                ended_bytes: AtomicU64::new(0),
                refused_bytes: AtomicU64::new(0),
            },
            process: AtomicU32::new(0),
            lost_in: AtomicU32::new(0),
            keeper: Mutex::new(None),
            keeper_waits: AtomicBool::new(false),
        }
    }

    /// What becomes of runs that nobody wants.
    #[must_use]
    pub const fn with_end(mut self, end: End) -> Self {
        self.end = end;
        self
    }

    /// How long a run stays hot; at once for zero. Takes effect also for what
    /// is in the cache.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_micros.store(micros(delay), Ordering::Relaxed);
        self.hurry();
    }

    /// After what time since it was freed lazily a run ends.
    pub fn set_max_age(&self, age: Duration) {
        self.max_age_micros.store(micros(age), Ordering::Relaxed);
        self.hurry();
    }

    /// How many bytes the cache may hold, hot and lazily freed; 0 is a quarter
    /// of the machine's memory.
    pub fn set_max_bytes(&self, bytes: usize) {
        self.max_bytes.store(bytes, Ordering::Relaxed);
        self.hurry();
    }

    /// New pages for an allocator: zeroed, private, anonymous.
    ///
    /// # Errors
    /// Those of mmap(2): `ENOMEM`.
    pub fn map(&self, len: usize) -> io::Result<Run> {
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.0);
        let len = whole_pages(len).ok_or_else(|| error(sys::ENOMEM))?;
        let region = Region::map(len).map_err(error)?.leak();
        Ok(Run {
            addr: region.start() as *mut u8,
            len,
            zeroed: true,
        })
    }

    /// Hands in a free run. `false` if the cache has no place for another note,
    /// or if these are not whole pages: then the run is still the caller's.
    ///
    /// # Safety
    /// The pages must be private anonymous memory, mapped for reading and
    /// writing, that nobody uses: from now on they belong to the cache, which
    /// may change or unmap them at any time.
    #[must_use]
    pub unsafe fn put(&self, addr: *mut u8, len: usize) -> bool {
        let page = sys::page_bytes();
        let Some(run) = PageRange::new(addr.addr(), len, page) else {
            return false;
        };
        let now = sys::thread::monotonic_micros();
        let Some(mut book) = self.book() else {
            return false;
        };
        if !book.is_equipped() && !self.equip(&mut book) {
            return false;
        }
        let noted = book.put(run, State::Hot, now);
        let over = book.all_bytes() - book.bytes(State::Clean) > self.most_bytes();
        drop(book);
        if self.keeper_waits.load(Ordering::Relaxed) {
            self.wake_keeper();
        }
        if over {
            self.hurry();
        }
        self.tick(now);
        noted
    }

    /// Takes a run of `len` bytes, rounded up to whole pages, if there is one:
    /// hot before lazy, the one freed last before others.
    #[must_use]
    pub fn take(&self, len: usize) -> Option<Run> {
        let len = whole_pages(len)?;
        let found = self.book().and_then(|mut book| book.take(len));
        let Some((run, state)) = found else {
            self.counts.missed.fetch_add(1, Ordering::Relaxed);
            self.tick(sys::thread::monotonic_micros());
            return None;
        };
        self.counts.reused[state as usize].fetch_add(1, Ordering::Relaxed);
        Some(Run {
            addr: run.start() as *mut u8,
            len: run.len(),
            zeroed: state == State::Clean,
        })
    }

    /// Ends everything now, in parallel: for a program that knows it will be
    /// idle, or that memory is short. Returns the bytes.
    pub fn purge(&self) -> usize {
        self.end_until(0, u64::MAX)
    }

    /// What the cache holds and has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let bytes = self
            .book()
            .map_or([0; 3], |book| STATES.map(|state| book.bytes(state)));
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let reused = |state: State| count(&self.counts.reused[state as usize]);
        Stats {
            hot_bytes: bytes[State::Hot as usize],
            lazy_bytes: bytes[State::Lazy as usize],
            clean_bytes: bytes[State::Clean as usize],
            reused_hot: reused(State::Hot),
            reused_lazy: reused(State::Lazy),
            reused_clean: reused(State::Clean),
            missed: count(&self.counts.missed),
            lazily_freed_bytes: count(&self.counts.lazily_freed_bytes),
            ended_bytes: count(&self.counts.ended_bytes),
            refused_bytes: count(&self.counts.refused_bytes),
        }
    }

    /// Bytes of the lazily freed runs that the kernel has really taken
    /// (PAGEMAP_SCAN, Linux 6.7); runs that are taken back meanwhile count as
    /// they are met.
    ///
    /// # Errors
    /// Without /proc, or the errno of the call: `ENOTTY` before Linux 6.7.
    pub fn taken_by_kernel_bytes(&self) -> io::Result<usize> {
        let runs: Vec<PageRange> = self
            .book()
            .map(|book| book.runs(State::Lazy).collect())
            .unwrap_or_default();
        let pagemap = Pagemap::open()?;
        let (mut all, mut there) = (0, 0);
        for run in runs {
            all += run.len();
            pagemap
                .scan(run, false, |part| there += part.range.len())
                .map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        }
        Ok(all - there)
    }

    /// Does what is due at `now`, if it is time and nobody else does.
    fn tick(&self, now: u64) {
        let due = self.next_tick.load(Ordering::Relaxed);
        if now < due {
            return;
        }
        let delay = self.delay_micros.load(Ordering::Relaxed);
        let next = now + (delay / 4).max(100);
        if self
            .next_tick
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            self.settle(now);
        }
    }

    /// What is hot for long enough becomes lazy; what is too old or too much ends.
    fn settle(&self, now: u64) {
        let delay = self.delay_micros.load(Ordering::Relaxed);
        let age = self.max_age_micros.load(Ordering::Relaxed);
        self.free_lazily(now.saturating_sub(delay), now);
        if let Some(before) = now.checked_sub(age) {
            self.end_until(usize::MAX, before);
        }
        self.end_until(self.most_bytes(), u64::MAX);
    }

    fn free_lazily(&self, before: u64, now: u64) {
        let lazy = probe::laziness() == Laziness::Lazy;
        loop {
            let mut batch = Batch::new();
            let Some(mut book) = self.book() else { return };
            while batch.has_room()
                && let Some(run) = book.take_oldest(State::Hot, before)
            {
                batch.push(run);
            }
            drop(book);
            if batch.is_empty() {
                return;
            }
            let operation = if lazy {
                Operation::LazyFree
            } else {
                Operation::Discard
            };
            let done = self.run(operation, &batch);
            let counter = if lazy {
                &self.counts.lazily_freed_bytes
            } else {
                &self.counts.ended_bytes
            };
            counter.fetch_add(done as u64, Ordering::Relaxed);
            // Where a page of a batch was refused, nobody knows which reads zero.
            let state = if lazy || done < batch.bytes() {
                State::Lazy
            } else {
                State::Clean
            };
            self.put_all(&batch, state, now);
        }
    }

    /// Ends runs, the oldest lazy ones first, until at most `most_bytes` are
    /// left, but only those that have been what they are since `before`.
    fn end_until(&self, most_bytes: usize, before: u64) -> usize {
        let mut ended = 0;
        // Which state a batch is taken from; a batch is of one state, so that
        // what is refused can go back to it.
        for state in [State::Lazy, State::Hot] {
            loop {
                let mut batch = Batch::new();
                let Some(mut book) = self.book() else {
                    return ended;
                };
                let held = |book: &Book| book.bytes(State::Lazy) + book.bytes(State::Hot);
                let all = most_bytes < usize::MAX;
                // Hot runs do not age; they become lazy.
                while batch.has_room()
                    && (state == State::Lazy || all)
                    && (!all || held(&book) > most_bytes)
                    && let Some(run) = book.take_oldest(state, before)
                {
                    batch.push(run);
                }
                drop(book);
                if batch.is_empty() {
                    break;
                }
                let operation = match self.end {
                    End::Unmap => Operation::Unmap,
                    End::Discard => Operation::Discard,
                };
                let done = self.run(operation, &batch);
                ended += done;
                self.counts
                    .ended_bytes
                    .fetch_add(done as u64, Ordering::Relaxed);
                if self.end == End::Discard {
                    let whole = done == batch.bytes();
                    let state = if whole { State::Clean } else { State::Lazy };
                    self.put_all(&batch, state, sys::thread::monotonic_micros());
                    if !whole {
                        break; // or the same would be tried for ever
                    }
                }
                // What could not be unmapped is lost: mapped, and nobody's.
            }
        }
        ended
    }

    /// Runs a job over a batch; returns the bytes done.
    fn run(&self, operation: Operation, batch: &Batch) -> usize {
        // SAFETY: the runs belong to the cache, and are in no list meanwhile.
        let report = unsafe {
            Teardown::new(operation)
                .partial_folios(PartialFolios::Discard)
                .run_raw(batch.runs().map(|run| (run.start() as *mut u8, run.len())))
        };
        let left = batch.bytes().saturating_sub(report.bytes_done);
        self.counts
            .refused_bytes
            .fetch_add(left as u64, Ordering::Relaxed);
        report.bytes_done
    }

    fn put_all(&self, batch: &Batch, state: State, since: u64) {
        let Some(mut book) = self.book() else { return };
        for run in batch.runs() {
            if !book.put(run, state, since) {
                // Others came meanwhile, and the book is full.
                drop(book);
                // SAFETY: the run is the cache's, and in no list.
                drop(unsafe { Region::adopt(run) });
                match self.book() {
                    Some(again) => book = again,
                    None => return,
                }
            }
        }
    }

    fn most_bytes(&self) -> usize {
        match self.max_bytes.load(Ordering::Relaxed) {
            0 => sys::memory_bytes() / 4,
            bytes => bytes,
        }
    }

    /// Lets the next call look whether something is due.
    fn hurry(&self) {
        self.next_tick.store(0, Ordering::Relaxed);
        self.wake_keeper();
    }

    fn wake_keeper(&self) {
        if self.keeper_waits.swap(false, Ordering::AcqRel)
            && let Ok(keeper) = self.keeper.try_lock()
            && let Some(thread) = keeper.as_ref()
        {
            thread.unpark();
        }
    }

    fn equip(&self, book: &mut Book) -> bool {
        let page = sys::page_bytes();
        let Ok(region) = Region::map(slots_bytes()) else {
            return false;
        };
        let slots = region.leak().start() as *mut Slot;
        // SAFETY: the mapping is new, large enough, unmapped only with the book,
        // and known to nobody else; zeros are a valid `Slot`.
        book.equip(
            unsafe { std::slice::from_raw_parts_mut(slots, SLOTS) },
            page,
        );
        self.process.store(process::id(), Ordering::Relaxed);
        true
    }

    /// Whether this process is a child of the one that equipped the cache.
    fn is_elsewhere(&self) -> bool {
        ![0, process::id()].contains(&self.process.load(Ordering::Relaxed))
    }

    /// The book; `None` in the child of a fork that happened while another
    /// thread held it.
    fn book(&self) -> Option<MutexGuard<'_, Book>> {
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
        // In a child: either another of its threads has it, for microseconds, or
        // one that does not exist here, for ever.
        for _ in 0..200 {
            thread::sleep(Duration::from_micros(50));
            if let Ok(book) = self.book.try_lock() {
                self.process.store(here, Ordering::Relaxed);
                return Some(book);
            }
        }
        self.lost_in.store(here, Ordering::Relaxed);
        None
    }
}

/// Runs between two lists, without the heap.
struct Batch {
    runs: [Option<PageRange>; BATCH],
    count: usize,
}

impl Batch {
    fn new() -> Self {
        Self {
            runs: [None; BATCH],
            count: 0,
        }
    }

    fn has_room(&self) -> bool {
        self.count < BATCH
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn push(&mut self, run: PageRange) {
        self.runs[self.count] = Some(run);
        self.count += 1;
    }

    fn runs(&self) -> impl Iterator<Item = PageRange> {
        self.runs.iter().copied().flatten()
    }

    fn bytes(&self) -> usize {
        self.runs().map(|run| run.len()).sum()
    }
}

fn slots_bytes() -> usize {
    (SLOTS * size_of::<Slot>()).next_multiple_of(sys::page_bytes())
}

fn whole_pages(len: usize) -> Option<usize> {
    len.max(1).checked_next_multiple_of(sys::page_bytes())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 2)
}

/// What [`settle`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// Bytes that are free now.
    pub freed_bytes: usize,
    /// Bytes that hold something: written since they were freed lazily.
    pub kept_bytes: usize,
}

/// Brings what was freed lazily to an end: pages that were not written since
/// are free afterwards, and the others keep every byte.
///
/// The kernel is asked to reclaim the pages (`MADV_PAGEOUT`, Linux 5.4), which
/// drops those that are still clean, and moves those that were written to swap,
/// where there is any. What is gone is then counted (PAGEMAP_SCAN, Linux 6.7).
///
/// ```
/// use mmzap::{Operation, Teardown, lazy};
///
/// let run = lazy::Cache::new().map(4 << 20)?;
/// # unsafe { run.addr.write_bytes(1, run.len) };
/// // SAFETY: nobody needs what is in it.
/// let report = unsafe { Teardown::new(Operation::LazyFree).run_raw([(run.addr, run.len)]) };
/// assert_eq!((report.reclaimable_bytes(), report.freed_bytes()), (4 << 20, 0));
/// // SAFETY: the memory is ours.
/// unsafe { run.addr.write(7) };
/// let range = mmzap::PageRange::new(run.addr.addr(), run.len, 4096).unwrap();
/// let settled = lazy::settle(range)?;
/// assert!(settled.freed_bytes >= 2 << 20);
/// // SAFETY: as above.
/// assert_eq!(unsafe { run.addr.read() }, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Without /proc, or the errno of the scan: `ENOTTY` before Linux 6.7.
pub fn settle(range: PageRange) -> io::Result<Settled> {
    // SAFETY: paging out keeps what is in a page; a clean page that was freed
    // lazily may turn to zero at any time.
    let _ = unsafe {
        Teardown::new(Operation::PageOut)
            .partial_folios(PartialFolios::Split)
            .run_raw([(range.start() as *mut u8, range.len())])
    };
    let mix = crate::mapping::folio_mix(range)?;
    Ok(Settled {
        freed_bytes: mix.empty_bytes,
        kept_bytes: range.len() - mix.empty_bytes,
    })
}
