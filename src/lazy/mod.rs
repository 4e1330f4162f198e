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

mod batch;
mod book;
mod due;
mod keeper;
mod settle;
mod shared_book;
mod stats;

use std::{
    fmt, io,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use book::State;
pub(crate) use book::rounded_len;
pub use keeper::Keeper;
pub use settle::{Settled, settle};
use shared_book::{SLOTS, SharedBook};
use stats::Counts;
pub use stats::Stats;

use crate::{
    error::Errno,
    range::PageRange,
    sys::{self, futex::Bell, mmap::Region, pagemap::Pagemap},
};

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
    book: SharedBook,
    end: End,
    delay_micros: AtomicU64,
    max_age_micros: AtomicU64,
    /// 0 is the default.
    max_bytes: AtomicUsize,
    /// When something may be due next.
    next_tick: AtomicU64,
    counts: Counts,
    /// Rings when a run comes, for keepers.
    bell: Bell,
    /// Until when lazy freeing is not tried: it was refused.
    refused_until: AtomicU64,
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
            book: SharedBook::new(),
            end: End::Unmap,
            delay_micros: AtomicU64::new(5_000),
            max_age_micros: AtomicU64::new(10_000_000),
            max_bytes: AtomicUsize::new(0),
            next_tick: AtomicU64::new(0),
            counts: Counts::new(),
            bell: Bell::new(),
            refused_until: AtomicU64::new(0),
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

    /// New pages for an allocator: zeroed, private, anonymous. Where there are
    /// none, what the cache holds makes way.
    ///
    /// # Errors
    /// Those of mmap(2): `ENOMEM`.
    pub fn map(&self, len: usize) -> io::Result<Run> {
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.0);
        let len = whole_pages(len).ok_or_else(|| error(sys::ENOMEM))?;
        let region = Region::map(len)
            // What the cache holds may be all that there was.
            .or_else(|errno| match self.purge() {
                0 => Err(errno),
                _ => Region::map(len),
            })
            .map_err(error)?
            .leak();
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
        let Some(mut book) = self.book.lock_equipped() else {
            return false;
        };
        let noted = book.put(run, State::Hot, now);
        let over = book.held_bytes() > self.most_bytes();
        drop(book);
        self.bell.ring();
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
        let found = self.book.lock().and_then(|mut book| book.take(len));
        let Some((run, state)) = found else {
            self.counts.missed();
            self.tick(sys::thread::monotonic_micros());
            return None;
        };
        self.counts.reused(state);
        Some(Run {
            addr: run.start() as *mut u8,
            len: run.len(),
            zeroed: state == State::Clean,
        })
    }

    /// Ends everything now, in parallel: for a program that knows it will be
    /// idle, or that memory is short. Returns the bytes.
    pub fn purge(&self) -> usize {
        self.end_surplus(0) + self.end_clean(u64::MAX)
    }

    /// What the cache holds and has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counts.stats(self.book.lock().as_deref())
    }

    /// Bytes of the lazily freed runs that the kernel has really taken
    /// (PAGEMAP_SCAN, Linux 6.7); runs that are taken back meanwhile count as
    /// they are met.
    ///
    /// # Errors
    /// Without /proc, or the errno of the call: `ENOTTY` before Linux 6.7.
    pub fn taken_by_kernel_bytes(&self) -> io::Result<usize> {
        // Before the lock: the global allocator may be one upon this cache.
        let mut runs: Vec<PageRange> = Vec::with_capacity(SLOTS);
        if let Some(book) = self.book.lock() {
            runs.extend(book.runs(State::Lazy));
        }
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

    fn most_bytes(&self) -> usize {
        match self.max_bytes.load(Ordering::Relaxed) {
            0 => sys::memory_bytes() / 4,
            bytes => bytes,
        }
    }

    /// Lets the next call look whether something is due.
    fn hurry(&self) {
        self.next_tick.store(0, Ordering::Relaxed);
        self.bell.ring();
    }
}

fn whole_pages(len: usize) -> Option<usize> {
    len.max(1).checked_next_multiple_of(sys::page_bytes())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 2)
}
