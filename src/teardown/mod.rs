//! The main job: a builder, a run, a [`Report`].

mod ahead;
mod cancel;
mod edges;
mod execute;
mod inward;
mod job;
mod launch;
mod no_collapse;
mod restraint;
mod shelves;
mod unmap;

use std::time::Instant;

use crate::{
    crew::{Lender, MaxActive},
    error::Error,
    mapping::{self, folios::Folios},
    operation::Operation,
    owned::{Bytes, OwnedMap},
    range::{self, PageRange},
    report::{Problems, Reason, Report},
    sys::{self, EINVAL, Kernel, linux::Linux},
};
pub use cancel::Cancel;
pub use edges::PartialFolios;
use inward::cut;

/// Below this many bytes one thread is done before a second one is awake: the
/// job goes straight to the kernel, without threads, allocation or lookups.
/// Waking a helper and ending its batch cost about 100 µs in a virtual
/// machine, as much as 4 MiB of pages; docs/measurements.md, `small`.
const DIRECT_BYTES: usize = 16 << 20;

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes done so far.
    pub done_bytes: usize,
    /// Bytes of all ranges.
    pub total_bytes: usize,
}

/// Gives memory back, on as many threads as allowed.
///
/// ```
/// use mmzap::{Map, Operation, Teardown};
///
/// let mut map = Map::options().map(64 << 20)?;
/// map[0] = 1;
/// let report = Teardown::new(Operation::Discard).run(&mut map).into_result()?;
/// assert_eq!(report.freed_bytes(), 64 << 20);
/// assert_eq!(map[0], 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "nothing happens until it is run"]
pub struct Teardown<'a> {
    operation: Operation,
    max_active: Option<MaxActive>,
    batch_bytes: Option<usize>,
    progress: Option<Box<dyn FnMut(Progress) + 'a>>,
    cancel: Cancel,
    partial_folios: PartialFolios,
    no_collapse: bool,
    /// Whose threads help, if not ours.
    lender: Option<Box<dyn Lender + 'a>>,
}

impl<'a> Teardown<'a> {
    /// A job that does `operation`.
    pub fn new(operation: Operation) -> Self {
        Self {
            operation,
            max_active: None,
            batch_bytes: None,
            progress: None,
            cancel: Cancel::default(),
            partial_folios: PartialFolios::default(),
            no_collapse: false,
            lender: None,
        }
    }

    /// How many threads may work at once, the caller included.
    ///
    /// By default that is found out: the job begins with a few threads, looks
    /// at what its batches take, and goes to the width at which the most bytes
    /// are done, up to [`default_max_active`](crate::default_max_active). The
    /// next job of the same operation begins there.
    pub fn max_active(mut self, width: impl Into<MaxActive>) -> Self {
        self.max_active = Some(width.into());
        self
    }

    /// About how many bytes go to the kernel in one call; at most 1 GiB, and
    /// by default chosen from the size of the job.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = Some(bytes);
        self
    }

    /// Calls `callback` on the calling thread, after each of its own batches
    /// and at the end. Jobs that go straight to the kernel call it once.
    ///
    /// A callback that forks must not return in the child: the threads that
    /// work on the job are not there.
    pub fn on_progress(mut self, callback: impl FnMut(Progress) + 'a) -> Self {
        self.progress = Some(Box::new(callback));
        self
    }

    /// What becomes of a part of a folio (a transparent huge page of any size)
    /// at the edge of a range, where [`Operation::LazyFree`],
    /// [`PageOut`](Operation::PageOut) or [`Cold`](Operation::Cold) would split
    /// it. The other operations take what they are given.
    ///
    /// Huge pages of 2 MiB are found by PAGEMAP_SCAN (Linux 6.7); before, and
    /// for smaller folios on any kernel, only root can tell (/proc/kpageflags).
    /// For others every edge that is not at a multiple of the largest size
    /// switched on counts as being inside of one: where huge pages are switched
    /// on, a program without privileges that frees small ranges lazily on an
    /// old kernel wants [`PartialFolios::Split`].
    ///
    /// Not seen are folios that mremap(2) has moved to another alignment, and
    /// those made before their size was switched off.
    pub fn partial_folios(mut self, choice: PartialFolios) -> Self {
        self.partial_folios = choice;
        self
    }

    /// Keeps khugepaged from filling up what was discarded.
    ///
    /// It collapses what is left of a huge page into a new one, and the memory
    /// given back is taken again, within seconds where it is set to be quick.
    /// With this the ranges are told to have no huge pages from now on
    /// (`MADV_NOHUGEPAGE`), together with gaps of less than a huge page between
    /// them, before anything else is done. Not for [`Operation::Unmap`].
    pub fn no_collapse(mut self, wanted: bool) -> Self {
        self.no_collapse = wanted;
        self
    }

    /// Borrows the threads of a rayon pool instead of using some of this
    /// library's. They keep their priority and their CPUs.
    ///
    /// The caller works as always and waits only for batches that a thread of
    /// the pool has taken, so that a busy pool delays nothing. In the child of
    /// a fork, where the pool has no threads, a job made before the fork does
    /// without it; do not name a pool that did not survive a fork.
    #[cfg(feature = "rayon")]
    pub fn pool(mut self, pool: &'a rayon_core::ThreadPool) -> Self {
        self.lender = Some(Box::new(crate::crew::Borrowed::new(pool)));
        self
    }

    /// Lets `token` stop the job between batches.
    pub fn cancel(mut self, token: &Cancel) -> Self {
        self.cancel = token.clone();
        self
    }

    /// Works over ranges of this process: address and length in bytes.
    ///
    /// Each is cut inward to whole pages. They may overlap and come in any
    /// order. What is empty, wraps, is not mapped or does not take the
    /// operation is left alone and named in the report; the rest is done.
    /// [`Operation::Unmap`] unmaps at the end, so a range of it that could not
    /// be unmapped (sealed) may have been emptied.
    ///
    /// # Safety
    /// For operations that destroy contents, nothing in the program may rely
    /// on what the whole pages inside the ranges hold (or, for `Unmap`, on
    /// their being mapped), no reference may point into them, and no other
    /// thread may write to them until the call returns. `Discard` of a private
    /// file mapping brings the file's contents back: relocated code and data of
    /// a program or library must not be among the ranges.
    /// [`Operation::LazyFree`] leaves pages that can turn to zero at any later
    /// moment, until they are written.
    pub unsafe fn run_raw<I>(&mut self, ranges: I) -> Report
    where
        I: IntoIterator<Item = (*mut u8, usize)>,
    {
        let started = Instant::now();
        let mut report = Report::new(self.operation);
        let mut ranges = ranges.into_iter();
        let mut pages: Vec<PageRange> = Vec::new();
        loop {
            let mut more = false;
            for (addr, len) in ranges.by_ref() {
                if let Some(range) = cut(addr.addr(), len, &mut report) {
                    pages.push(range);
                }
                // No memory for more ranges: do these first.
                if pages.len() == pages.capacity() && pages.try_reserve(pages.len().max(4)).is_err()
                {
                    more = !pages.is_empty();
                    break;
                }
            }
            range::normalize(&mut pages);
            self.run_pages(&pages, &mut report);
            if !more {
                break;
            }
            pages.clear();
        }
        report.end(started);
        report
    }

    /// Works over an owned map and keeps it mapped: the whole of a
    /// [`Map`](crate::Map), the whole pages inside a map of memmap2.
    ///
    /// Two operations are refused with a failure in the report: `Unmap`, which
    /// consumes the map ([`unmap`](Self::unmap)), and `LazyFree`, after which
    /// bytes behind safe references would change on their own
    /// ([`run_raw`](Self::run_raw)).
    pub fn run<M: OwnedMap>(&mut self, map: &mut M) -> Report {
        let Bytes {
            addr,
            len,
            work_len,
        } = map.bytes();
        let started = Instant::now();
        let mut report = Report::new(self.operation);
        let advice = match self.operation {
            Operation::Unmap => "unmapping consumes the map: use Teardown::unmap",
            Operation::LazyFree => {
                "bytes of a lazily freed map change on their own: use Teardown::run_raw"
            }
            _ => {
                if let Some(pages) = cut(addr, work_len, &mut report) {
                    self.run_pages(&[pages], &mut report);
                }
                report.forget_bytes(work_len - len);
                report.end(started);
                return report;
            }
        };
        let page = sys::page_bytes();
        let range = PageRange::inward(addr, len, page)
            .ok()
            .and_then(|cut| cut.pages);
        let error = Error::new(self.operation, range, 0, EINVAL, advice);
        report.problems.fail(error, len);
        report.end(started);
        report
    }

    /// Empties an owned map in parallel, then unmaps it by one munmap(2).
    ///
    /// The operation of the builder does not matter: the report is that of
    /// [`Operation::Unmap`]. A cancelled job leaves more to munmap(2), which
    /// takes everything all the same: the map is consumed.
    #[inline]
    pub fn unmap<M: OwnedMap>(&mut self, mut map: M) -> Report {
        let bytes = map.bytes();
        if bytes.len >= TIMED_BYTES {
            return self.unmap_large(map, bytes);
        }
        let mut report = Report::new(Operation::Unmap);
        report.system_calls = 1;
        match map.unmap() {
            Ok(()) => report.bytes_done = bytes.len,
            Err(errno) => unmap::refused(bytes.addr, bytes.len, errno, &mut report),
        }
        self.say(report.bytes_done, bytes.len);
        report
    }

    fn unmap_large<M: OwnedMap>(&mut self, map: M, bytes: Bytes) -> Report {
        let Bytes {
            addr,
            len,
            work_len,
        } = bytes;
        let started = Instant::now();
        let mut report = Report::new(Operation::Unmap);
        if len >= DIRECT_BYTES
            && let Ok(inner) = PageRange::inward(addr, work_len, sys::page_bytes())
            && let Some(pages) = inner.pages
        {
            self.empty(Linux::with_vectors(), &[pages], &mut report);
            // What would not be emptied goes with the addresses.
            report.problems = Problems::default();
        }
        report.system_calls += 1;
        match map.unmap() {
            Ok(()) => report.bytes_done = len,
            Err(errno) => {
                report.bytes_done = 0;
                unmap::refused(addr, len, errno, &mut report);
            }
        }
        self.say(report.bytes_done, len);
        report.end(started);
        report
    }

    fn run_pages(&mut self, pages: &[PageRange], report: &mut Report) {
        if self.cancel.is_cancelled() {
            for range in pages {
                report
                    .problems
                    .skip(range.start(), range.len(), Reason::Cancelled);
            }
            return;
        }
        if self.no_collapse && self.operation != Operation::Unmap {
            // First: khugepaged can be quicker than a long job.
            no_collapse::tell(&Linux::plain(), pages, report);
        }
        report.eager = self.operation == Operation::LazyFree
            && sys::probe::laziness() != sys::probe::Laziness::Lazy;
        let settles = self.operation.splits_folios() && self.partial_folios != PartialFolios::Split;
        if settles && let Some(folios) = Folios::around(pages) {
            let (kernel, operation) = (Linux::plain(), self.operation);
            let whole = edges::settle(
                &kernel,
                operation,
                self.partial_folios,
                pages,
                &folios,
                report,
            );
            self.run_whole(&whole, report);
        } else {
            self.run_whole(pages, report);
        }
    }

    fn run_whole(&mut self, pages: &[PageRange], report: &mut Report) {
        let total = total(pages);
        let (done_before, left_before) = (report.bytes_done, report.problems.left_bytes());
        match *pages {
            [] => return,
            [only] if total < DIRECT_BYTES && self.may_go_directly(only) => {
                self.direct(only, report);
            }
            _ => {
                let kernel = Linux::with_vectors();
                if self.operation == Operation::Unmap {
                    self.empty(kernel, pages, report);
                    self.drop_addresses(pages, true, report);
                } else {
                    self.job(kernel, self.operation, pages, report);
                }
            }
        }
        if self.operation == Operation::Unmap {
            let left = report.problems.left_bytes() - left_before;
            if report.problems.was_cancelled() {
                // What was emptied is free, and everything is still mapped.
                let emptied = report.bytes_done - done_before;
                report.problems.skipped_bytes += total.saturating_sub(emptied + left);
            } else {
                // What is neither skipped nor refused is unmapped.
                report.bytes_done = done_before + total.saturating_sub(left);
            }
        }
        self.say(report.bytes_done, total);
    }

    /// Whether the kernel's own answer to one call tells the whole truth.
    ///
    /// munmap(2) takes holes, and everything else that is mapped, without a word.
    fn may_go_directly(&self, range: PageRange) -> bool {
        let suspect = self.operation == Operation::Unmap || sys::mmap::is_treacherous(range);
        !suspect || mapping::is_ordinary(range, sys::page_bytes())
    }

    /// One small range: one call, and more only if the kernel objects.
    fn direct(&mut self, range: PageRange, report: &mut Report) {
        let kernel = Linux::plain();
        report.batches += 1;
        if self.operation == Operation::Unmap {
            self.drop_addresses(&[range], false, report);
            return;
        }
        report.system_calls += 1;
        match kernel.advise(range, self.operation.advice()) {
            Ok(()) => report.bytes_done += range.len(),
            Err(_) => {
                let width = MaxActive::new(1);
                let wanted = self.max_active.replace(width);
                self.job(kernel, self.operation, &[range], report);
                self.max_active = wanted;
            }
        }
    }

    /// The first half of an unmap: contents go, in parallel.
    fn empty(&mut self, kernel: Linux, pages: &[PageRange], report: &mut Report) {
        self.job(kernel, Operation::Unmap, pages, report);
    }

    /// The second half. What the plan skipped before is not done either.
    fn drop_addresses(&mut self, pages: &[PageRange], planned: bool, report: &mut Report) {
        if report.problems.was_cancelled() {
            return;
        }
        unmap::ranges(&Linux::plain(), pages, planned, report);
    }

    #[inline]
    fn say(&mut self, done_bytes: usize, total_bytes: usize) {
        if let Some(callback) = &mut self.progress {
            callback(Progress::of(done_bytes, total_bytes));
        }
    }
}

fn total(pages: &[PageRange]) -> usize {
    pages.iter().map(|range| range.len()).sum()
}

/// Below this many bytes a call on an owned map is not timed. The clock's pages
/// are cold after a system call: two looks at it cost 0.2 µs, a tenth of what
/// the kernel needs for one page.
const TIMED_BYTES: usize = 256 << 10;
