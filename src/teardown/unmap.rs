//! The second half of an unmap: the emptied addresses go.

use super::execute::what_to_do;
use crate::{
    error::{Errno, Error},
    gather::{Batch, Gather, Planned, Rules},
    mapping::{Kind, Trait, smaps::HiddenTraits},
    operation::Operation,
    range::PageRange,
    report::{Reason, Report},
    sys::{self, EPERM, Kernel},
};

/// One munmap(2) for each range; mapping by mapping where that is refused, so
/// that one sealed mapping does not keep its neighbours.
///
/// `planned` says that the plan has already reported what must be left alone.
pub(super) fn ranges<K: Kernel>(
    kernel: &K,
    pages: &[PageRange],
    planned: bool,
    report: &mut Report,
) {
    let whole = !planned || !report.problems.has_untouchable();
    let hidden = HiddenTraits::default();
    for range in pages {
        report.system_calls += 1;
        if !whole || kernel.unmap(*range).is_err() {
            by_mapping(kernel, *range, planned, &hidden, report);
        }
    }
}

fn by_mapping<K: Kernel>(
    kernel: &K,
    range: PageRange,
    planned: bool,
    hidden: &HiddenTraits,
    report: &mut Report,
) {
    let mut rules = Rules::for_job(Operation::Unmap, range.len(), 1, 1, false);
    rules.batch_bytes = usize::MAX; // one call for each mapping
    let plan = Gather::new([range].into_iter(), kernel.mappings(), rules);
    for step in plan {
        match step {
            Planned::Skip(part, reason) if !planned => {
                report.problems.skip(part.start(), part.len(), reason);
            }
            Planned::Skip(..) => {}
            Planned::Batch(batch) => one(kernel, &batch, hidden, report),
        }
    }
}

fn one<K: Kernel>(kernel: &K, batch: &Batch, hidden: &HiddenTraits, report: &mut Report) {
    let sealed = |addr| hidden.at(addr, || kernel.hidden()).contains(&Trait::Sealed);
    for piece in batch.ranges() {
        report.system_calls += 1;
        match kernel.unmap(*piece) {
            Ok(()) => {}
            Err(EPERM) if sealed(piece.start()) => {
                report
                    .problems
                    .skip(piece.start(), piece.len(), Reason::Sealed);
            }
            Err(errno) => fail(*piece, errno, report),
        }
    }
}

fn fail(piece: PageRange, errno: Errno, report: &mut Report) {
    let advice = what_to_do(errno, Kind::Anonymous);
    let error = Error::new(Operation::Unmap, Some(piece), 0, errno, advice);
    report.problems.fail(error, piece.len());
}

/// An owned map whose munmap(2) the kernel refused.
#[cold]
pub(super) fn refused(addr: usize, len: usize, errno: Errno, report: &mut Report) {
    let range = PageRange::inward(addr, len, sys::page_bytes())
        .ok()
        .and_then(|cut| cut.pages);
    let advice = "the map is left mapped for good; was it sealed, or cut up by others?";
    let error = Error::new(Operation::Unmap, range, 0, errno, advice);
    report.problems.fail(error, len);
    report.bytes_failed = report.problems.failed_bytes;
}
