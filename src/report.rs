//! What a job did, what it left alone, and why.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::{
    error::{Errno, Error, Result},
    operation::Operation,
};

/// Why bytes were left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The range has no bytes.
    Empty,
    /// The range wraps around the address space.
    Wraps,
    /// The range reaches past user space.
    BeyondUserSpace,
    /// The bytes are less than a page, at an edge of the range; somebody
    /// else's bytes share the page.
    PartialPage,
    /// The bytes are less than a page of a huge-page file system.
    PartialHugePage {
        /// That page size, in bytes.
        page_bytes: usize,
    },
    /// The bytes are a part of a folio that goes on outside of the range, and
    /// the operation would have split it.
    PartialFolio {
        /// The folio's size, in bytes; where nobody may know it, the largest
        /// there could be.
        folio_bytes: usize,
    },
    /// Nothing is mapped there.
    Unmapped,
    /// The kind of mapping does not take the operation, for the reason said.
    Kind(&'static str),
    /// The memory is mlocked; [`Operation::DiscardLocked`] takes it.
    Locked,
    /// The mapping is sealed by mseal(2).
    Sealed,
    /// The mapping is a device's or the kernel's own.
    Device,
    /// The file behind the mapping was not opened for writing.
    ReadOnlyFile,
    /// The job was cancelled before it came to these bytes.
    Cancelled,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the range is empty",
            Self::Wraps => "the range wraps around the address space",
            Self::BeyondUserSpace => "the range reaches past user space",
            Self::PartialPage => "less than a whole page",
            Self::PartialHugePage { page_bytes } => {
                return write!(f, "less than a whole page of {page_bytes} bytes");
            }
            Self::PartialFolio { folio_bytes } => {
                return write!(f, "a part of a folio of {folio_bytes} bytes");
            }
            Self::Unmapped => "nothing is mapped there",
            Self::Kind(why) => why,
            Self::Locked => "the memory is locked (mlock)",
            Self::Sealed => "the mapping is sealed (mseal)",
            Self::Device => "device memory or the kernel's own",
            Self::ReadOnlyFile => "the file behind it is not open for writing",
            Self::Cancelled => "the job was cancelled",
        })
    }
}

/// Bytes that a job left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The first address.
    pub addr: usize,
    /// How many bytes.
    pub len: usize,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.addr.wrapping_add(self.len);
        write!(
            f,
            "{:#x}..{end:#x} ({} bytes): {}",
            self.addr, self.len, self.reason
        )
    }
}

/// The account of one job.
///
/// Every byte handed in is in `bytes_done`, `bytes_skipped` or `bytes_failed`.
/// Pages handed in twice count once; less than a page at the edge of a range
/// is counted as skipped for each range that has it.
#[derive(Debug)]
#[must_use = "a report says what was not freed"]
#[non_exhaustive]
pub struct Report {
    /// What was asked.
    pub operation: Operation,
    /// Bytes of address space on which the kernel did it.
    pub bytes_done: usize,
    /// Bytes, among those done, that were discarded although the operation is
    /// another: parts of folios, see
    /// [`PartialFolios::Discard`](crate::PartialFolios::Discard).
    pub discarded_bytes: usize,
    /// Whether lazy freeing was not lazy here, as a probe found, and everything
    /// was discarded: what is done is free.
    pub eager: bool,
    /// Bytes left alone: see [`skipped`](Self::skipped).
    pub bytes_skipped: usize,
    /// Bytes that the kernel refused: see [`failures`](Self::failures).
    pub bytes_failed: usize,
    /// Bytes, among those worked on, of shared memory and files. Unmapping such
    /// pages is parallel, but the kernel frees the pages of one file one after
    /// the other, whatever is called and by however many threads: when the last
    /// mapping and descriptor go, or in a [`Operation::Punch`]. Not counted is
    /// what went straight to the kernel: small jobs, and the first batches of
    /// others.
    pub shared_bytes: usize,
    /// Batches that the job was cut into.
    pub batches: usize,
    /// System calls that gave memory back; lookups are not counted.
    pub system_calls: usize,
    /// Batches that a helper took from the caller.
    pub steals: usize,
    /// Helper threads that did at least one batch.
    pub helpers: usize,
    /// How many threads the job could have at its end: the bound asked for, or
    /// what was found to be best. 1 for a job that went straight to the kernel
    /// or was too quick for helpers.
    pub max_active: usize,
    /// Why helpers that were wanted could not be started, if so. The caller
    /// did their work.
    pub helpers_refused: Option<Errno>,
    /// From the call to its return. Zero where an owned map of less than
    /// 256 KiB was unmapped: reading the clock twice would take as long.
    pub wall: Duration,
    /// CPU time of the calling thread; that of a job too small to be cut is
    /// its wall time.
    pub caller_cpu: Duration,
    /// CPU time of all helpers, spent on this job.
    pub helper_cpu: Duration,
    pub(crate) problems: Problems,
}

/// Ranges that are listed one by one; the counts go on past it. A job over a
/// million bad ranges must not need memory for a million answers.
const LISTED_MAX: usize = 1024;

/// What a job met, bounded in memory.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) skipped_bytes: usize,
    pub(crate) failures: Vec<Error>,
    pub(crate) failed_bytes: usize,
    untouchable: bool,
    cancelled: bool,
}

impl Problems {
    pub(crate) fn skip(&mut self, addr: usize, len: usize, reason: Reason) {
        self.skipped_bytes = self.skipped_bytes.saturating_add(len);
        self.cancelled |= reason == Reason::Cancelled;
        self.untouchable |= matches!(reason, Reason::Kind(_) | Reason::PartialHugePage { .. });
        let next = Skipped { addr, len, reason };
        if let Some(last) = self.skipped.last_mut()
            && last.reason == reason
            && last.addr.checked_add(last.len) == Some(addr)
            && reason != Reason::PartialPage
        {
            last.len += len;
        } else if self.skipped.len() < LISTED_MAX && self.skipped.try_reserve(1).is_ok() {
            self.skipped.push(next);
        }
    }

    /// Whether a range was skipped that an unmap must not take either.
    pub(crate) fn has_untouchable(&self) -> bool {
        self.untouchable
    }

    /// Whether anything was left because the job was cancelled.
    pub(crate) fn was_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Bytes that were not done.
    pub(crate) fn left_bytes(&self) -> usize {
        self.skipped_bytes.saturating_add(self.failed_bytes)
    }

    /// Takes over what another thread met.
    pub(crate) fn absorb(&mut self, other: Self) {
        let listed: usize = other.skipped.iter().map(|skipped| skipped.len).sum();
        self.untouchable |= other.untouchable;
        self.cancelled |= other.cancelled;
        for skipped in other.skipped {
            self.skip(skipped.addr, skipped.len, skipped.reason);
        }
        self.skipped_bytes += other.skipped_bytes.saturating_sub(listed);
        for error in other.failures {
            self.fail(error, 0);
        }
        self.failed_bytes = self.failed_bytes.saturating_add(other.failed_bytes);
    }

    pub(crate) fn fail(&mut self, error: Error, lost_bytes: usize) {
        self.failed_bytes = self.failed_bytes.saturating_add(lost_bytes);
        if self.failures.len() < LISTED_MAX && self.failures.try_reserve(1).is_ok() {
            self.failures.push(error);
        }
    }
}

impl Report {
    // Inlined with its kin: on the way of a 4 KiB unmap, copies of a report
    // would cost as much as everything else of ours.
    #[inline]
    pub(crate) fn new(operation: Operation) -> Self {
        Self {
            operation,
            bytes_done: 0,
            discarded_bytes: 0,
            eager: false,
            bytes_skipped: 0,
            bytes_failed: 0,
            shared_bytes: 0,
            batches: 0,
            system_calls: 0,
            steals: 0,
            helpers: 0,
            max_active: 1,
            helpers_refused: None,
            wall: Duration::ZERO,
            caller_cpu: Duration::ZERO,
            helper_cpu: Duration::ZERO,
            problems: Problems::default(),
        }
    }

    /// Closes the account of a run that began then.
    pub(crate) fn end(&mut self, began: Instant) {
        self.wall = began.elapsed();
        self.bytes_skipped = self.problems.skipped_bytes;
        self.bytes_failed = self.problems.failed_bytes;
        if self.caller_cpu.is_zero() {
            self.caller_cpu = self.wall; // no job: a call or two
        }
    }

    /// Takes bytes out of the account that the owner does not know of.
    pub(crate) fn forget_bytes(&mut self, mut bytes: usize) {
        let problems = &mut self.problems;
        for count in [
            &mut self.bytes_done,
            &mut problems.skipped_bytes,
            &mut problems.failed_bytes,
        ] {
            let less = bytes.min(*count);
            *count -= less;
            bytes -= less;
        }
    }

    /// Bytes whose memory is back with the kernel: those done, if the
    /// operation frees at all. Counted in addresses, whether or not a page was
    /// behind each.
    #[must_use]
    pub fn freed_bytes(&self) -> usize {
        if self.operation.frees() || self.eager {
            self.bytes_done
        } else {
            0
        }
    }

    /// Bytes that the kernel may take when it needs them, and has not been
    /// seen to take: those lazily freed, and parts of folios that were
    /// discarded, whose memory goes when the kernel comes to split the folio.
    #[must_use]
    pub fn reclaimable_bytes(&self) -> usize {
        match self.operation {
            Operation::LazyFree if !self.eager => self.bytes_done,
            _ => 0,
        }
    }

    /// What was left alone, and why: the first thousand ranges, in no order.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.problems.skipped
    }

    /// What the kernel refused: the first thousand refusals, in no order. The
    /// remaining ranges were still worked on.
    #[must_use]
    pub fn failures(&self) -> &[Error] {
        &self.problems.failures
    }

    /// The report, if the kernel refused nothing. What was skipped by the
    /// rules of the operation is no failure.
    ///
    /// # Errors
    /// The first refusal.
    #[inline]
    pub fn into_result(mut self) -> Result<Self> {
        if self.problems.failures.is_empty() {
            Ok(self)
        } else {
            Err(self.problems.failures.swap_remove(0))
        }
    }
}
