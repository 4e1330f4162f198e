//! Keeps khugepaged from filling up what was discarded.

use super::Report;
use crate::{
    error::Error,
    mapping::{Found, Kind, Mappings},
    operation::Advice,
    range::PageRange,
    sys::{EINVAL, ENOENT, Kernel, folio_sizes::HUGE_BYTES},
};

/// Tells the kernel to have no huge pages in `pages`, which are in address
/// order. Every change of advice inside a mapping splits it, so ranges with
/// gaps of less than a huge page are one.
pub(super) fn tell<K: Kernel>(kernel: &K, pages: &[PageRange], report: &mut Report) {
    let mut mappings = kernel.mappings();
    let near = |pair: &&[PageRange]| pair[1].start() - pair[0].end() < HUGE_BYTES;
    let mut rest = pages;
    while let [first, ..] = rest {
        let count = 1 + rest.windows(2).take_while(near).count();
        let (group, after) = rest.split_at(count);
        let end = group.last().unwrap_or(first).end();
        tell_one(kernel, &mut mappings, first.start(), end, report);
        rest = after;
    }
}

fn tell_one<K: Kernel>(
    kernel: &K,
    mappings: &mut impl Mappings,
    start: usize,
    end: usize,
    report: &mut Report,
) {
    let mut rest = PageRange::between(start, end);
    while let Some(now) = rest {
        let mapping = match mappings.at_or_after(now.start()) {
            Found::Mapping(mapping) => mapping,
            Found::Nothing => return,
            Found::Unknown => {
                let advice = "mount /proc: without it huge pages may come back there";
                let error = Error::new(report.operation, Some(now), 0, ENOENT, advice);
                return report.problems.fail(error, 0);
            }
        };
        let Some(part) = mapping.range.intersect(now) else {
            return;
        };
        if matches!(mapping.kind, Kind::Anonymous | Kind::Heap | Kind::Shared) {
            report.system_calls += 1;
            match kernel.advise(part, Advice::NoHugePage) {
                // EINVAL: a kernel without huge pages.
                Ok(()) | Err(EINVAL) => {}
                Err(errno) => {
                    let advice = "huge pages may come back there";
                    let error = Error::new(report.operation, Some(part), 0, errno, advice);
                    report.problems.fail(error, 0);
                }
            }
        }
        rest = now.split_at(part.end()).1;
    }
}
