//! Folios that reach over the edge of a range.
//!
//! MADV_FREE, MADV_PAGEOUT and MADV_COLD of a part of a folio split it, at once
//! and for good, and what is left costs more to map and to reclaim. So the
//! part is left out, or discarded, which keeps the folio whole until the kernel
//! needs its memory.

use super::Report;
use crate::{
    mapping::{Found, Mappings as _, folios::Folios},
    operation::{Advice, Operation},
    range::PageRange,
    report::Reason,
    sys::Kernel,
};

/// What becomes of a part of a folio at the edge of a range; see
/// [`Teardown::partial_folios`](super::Teardown::partial_folios).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PartialFolios {
    /// It is left alone and reported as skipped.
    #[default]
    Leave,
    /// It is discarded, which keeps the folio whole until the kernel needs its
    /// memory. Only for [`Operation::LazyFree`], which gives the contents up
    /// anyway; left alone by the others.
    Discard,
    /// It is done like the rest, as by a plain call: the kernel splits the
    /// folio, and nothing needs to be looked up before.
    Split,
}

impl Operation {
    /// Whether this operation would split the folios at its edges.
    pub(super) fn splits_folios(self) -> bool {
        matches!(self, Self::LazyFree | Self::PageOut | Self::Cold)
    }
}

/// The inner parts of `pages`: those that end where folios do. The rest is
/// dealt with here.
pub(super) fn settle<K: Kernel>(
    kernel: &K,
    operation: Operation,
    partial: PartialFolios,
    pages: &[PageRange],
    folios: &Folios,
    report: &mut Report,
) -> Vec<PageRange> {
    let discards = partial == PartialFolios::Discard && operation == Operation::LazyFree;
    let mut inner = Vec::new();
    for range in pages {
        let (mut parts, whole) = cut(*range, |edge, inside| folios.across(edge, inside));
        if let Some(whole) = whole {
            if inner.try_reserve(1).is_ok() {
                inner.push(whole);
            } else {
                parts = [Some((whole, 0)), None]; // no memory to do better
            }
        }
        for (part, folio_bytes) in parts.into_iter().flatten() {
            if discards {
                discard(kernel, part, folio_bytes, report);
            } else {
                let reason = Reason::PartialFolio { folio_bytes };
                report.problems.skip(part.start(), part.len(), reason);
            }
        }
    }
    inner
}

/// Discards a part of a folio, in those mappings that could be freed lazily.
fn discard<K: Kernel>(kernel: &K, part: PageRange, folio_bytes: usize, report: &mut Report) {
    let mut mappings = kernel.mappings();
    let mut rest = Some(part);
    while let Some(now) = rest {
        let found = match mappings.at_or_after(now.start()) {
            Found::Mapping(mapping) => Some(mapping),
            Found::Nothing | Found::Unknown => None,
        };
        let Some((mapping, inside)) = found.and_then(|mapping| {
            let inside = mapping.range.intersect(now)?;
            Some((mapping, inside))
        }) else {
            report
                .problems
                .skip(now.start(), now.len(), Reason::Unmapped);
            return;
        };
        let (hole, _) = now.split_at(inside.start());
        if let Some(hole) = hole {
            report
                .problems
                .skip(hole.start(), hole.len(), Reason::Unmapped);
        }
        rest = now.split_at(inside.end()).1;
        let refused = Operation::LazyFree.refuses(&mapping).map(Reason::Kind);
        let reason = refused.or_else(|| {
            report.system_calls += 1;
            // A refusal (locked memory) leaves it as it was.
            let refusal = kernel.advise(inside, Advice::DontNeed).err();
            refusal.map(|_| Reason::PartialFolio { folio_bytes })
        });
        match reason {
            Some(reason) => report.problems.skip(inside.start(), inside.len(), reason),
            None => {
                report.bytes_done += inside.len();
                report.discarded_bytes += inside.len();
            }
        }
    }
}

/// A part of a range at one of its edges, and the size of its folio.
type Part = Option<(PageRange, usize)>;

/// Splits a range into parts of folios that go on outside, and what is between.
fn cut(
    range: PageRange,
    across: impl Fn(usize, usize) -> Option<PageRange>,
) -> ([Part; 2], Option<PageRange>) {
    let page = crate::sys::page_bytes();
    let mut rest = Some(range);
    let mut head = None;
    if let Some(folio) = across(range.start(), range.start()) {
        let (part, after) = range.split_at(folio.end());
        head = part.map(|part| (part, folio.len()));
        rest = after;
    }
    let mut tail = None;
    if let Some(now) = rest
        && let Some(folio) = across(range.end(), range.end() - page)
    {
        let (before, part) = now.split_at(folio.start());
        tail = part.map(|part| (part, folio.len()));
        rest = before;
    }
    ([head, tail], rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = 4096;

    fn pages(start: usize, count: usize) -> PageRange {
        PageRange::new(start * PAGE, count * PAGE, PAGE).expect("pages")
    }

    /// Folios of `pages` pages everywhere.
    fn folios_of(count: usize) -> impl Fn(usize, usize) -> Option<PageRange> {
        move |edge, inside| {
            let folio = pages(inside / PAGE / count * count, count);
            (folio.start() < edge && edge < folio.end()).then_some(folio)
        }
    }

    #[test]
    fn edges_inside_a_folio_are_cut_off() {
        let (parts, rest) = cut(pages(17, 40), folios_of(16));
        assert_eq!(parts[0], Some((pages(17, 15), 16 * PAGE)));
        assert_eq!(parts[1], Some((pages(48, 9), 16 * PAGE)));
        assert_eq!(rest, Some(pages(32, 16)));
        // All of it inside one folio.
        let (parts, rest) = cut(pages(17, 4), folios_of(16));
        assert_eq!(parts, [Some((pages(17, 4), 16 * PAGE)), None]);
        assert_eq!(rest, None);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_what_is_left_is_whole(
            start in 1_usize..200, count in 1_usize..200, order in 0_u32..6
        ) {
            let folio = 1_usize << order;
            let range = pages(start, count);
            let (parts, rest) = cut(range, folios_of(folio));
            let cut_off: usize = parts.iter().flatten().map(|(part, _)| part.len()).sum();
            prop_assert_eq!(cut_off + rest.map_or(0, |rest| rest.len()), range.len());
            if let Some(rest) = rest {
                prop_assert_eq!(rest.start() % (folio * PAGE), 0);
                prop_assert_eq!(rest.end() % (folio * PAGE), 0);
            }
            for (part, bytes) in parts.into_iter().flatten() {
                prop_assert!(part.len() < bytes);
                prop_assert!(range.intersect(part) == Some(part));
            }
        }
    }
}
