//! Ranges in, batches out: what the kernel can take in one call.
//!
//! The user-space sister of the kernel's `mmu_gather`. Pure: it takes sorted
//! ranges and a source of mappings and calls nothing. Like its sister it needs
//! no memory to make progress: where a vector cannot be allocated, a range
//! becomes a batch of its own.

mod rules;

use std::collections::VecDeque;

use crate::{
    mapping::{Found, Kind, Mapping, Mappings},
    operation::Operation,
    range::{self, PageRange},
    report::Reason,
    sys::VECTOR_BYTES_MAX,
};
pub(crate) use rules::BOUNDARY_BYTES;
pub use rules::Rules;

/// What the kernel is asked to do in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Batch {
    /// One range inside one mapping: madvise(2).
    Span(PageRange),
    /// Many small ranges, each inside one mapping: process_madvise(2).
    Vector(Vec<PageRange>),
}

impl Batch {
    /// Bytes of all its ranges.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ranges().iter().map(|range| range.len()).sum()
    }

    /// Its ranges, in address order.
    #[must_use]
    pub fn ranges(&self) -> &[PageRange] {
        match self {
            Self::Span(range) => std::slice::from_ref(range),
            Self::Vector(ranges) => ranges,
        }
    }
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Planned {
    /// Hand this to the kernel.
    Batch(Batch),
    /// Leave this alone, and say why.
    Skip(PageRange, Reason),
}

/// Plans an operation over `ranges` as the mappings in `mappings` allow it.
///
/// `mappings` must be in address order. The ranges are sorted and merged
/// first.
///
/// ```
/// use mmzap::{Operation, PageRange, gather};
/// let range = PageRange::new(0x10000, 0x4000, 0x1000).unwrap();
/// let mapping = mmzap::mapping::Mapping {
///     range,
///     kind: mmzap::mapping::Kind::Anonymous,
///     page_bytes: 0x1000,
///     writable: true,
/// };
/// let rules = gather::Rules::for_job(Operation::Discard, range.len(), 1, 2, true);
/// let plan: Vec<_> = gather::plan(vec![range], &[mapping], rules).collect();
/// assert_eq!(plan.len(), 1);
/// ```
pub fn plan<'a>(
    mut ranges: Vec<PageRange>,
    mappings: &'a [Mapping],
    rules: Rules,
) -> impl Iterator<Item = Planned> + 'a {
    range::normalize(&mut ranges);
    Gather::new(ranges.into_iter(), mappings, rules)
}

/// The planner: an iterator of [`Planned`] steps over sorted ranges.
pub(crate) struct Gather<R, M> {
    ranges: R,
    mappings: M,
    rules: Rules,
    /// What is left of the range that is being cut.
    rest: Option<PageRange>,
    /// The mapping met last; ranges are sorted, so it often serves again.
    current: Option<Mapping>,
    vector: Vec<PageRange>,
    vector_bytes: usize,
    shared_bytes: usize,
    /// Steps decided but not yet handed out; never more than three.
    ready: VecDeque<Planned>,
}

impl<R: Iterator<Item = PageRange>, M: Mappings> Gather<R, M> {
    /// `ranges` must be sorted and must not overlap.
    pub(crate) fn new(ranges: R, mappings: M, rules: Rules) -> Self {
        Self {
            ranges,
            mappings,
            rules,
            rest: None,
            current: None,
            vector: Vec::new(),
            vector_bytes: 0,
            shared_bytes: 0,
            ready: VecDeque::new(),
        }
    }

    /// Bytes of shared mappings that were handed out so far.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.shared_bytes
    }

    /// Makes the batches that are not cut yet about `bytes` large.
    pub(crate) fn set_batch_bytes(&mut self, bytes: usize) {
        self.rules.batch_bytes = bytes.max(self.rules.page_bytes);
    }

    /// Decides about the front of the rest, up to where the answer changes.
    fn step(&mut self, rest: PageRange) {
        let mapping = match self.lookup(rest.start()) {
            Some(mapping) => mapping,
            None => {
                self.skip(rest, Reason::Unmapped);
                return;
            }
        };
        let (hole, mapped) = rest.split_at(mapping.range.start());
        if let Some(hole) = hole {
            self.skip(hole, Reason::Unmapped);
        }
        let Some(mapped) = mapped else { return };
        let (piece, after) = mapped.split_at(mapping.range.end());
        self.rest = after;
        let Some(piece) = piece else { return };
        let refused = self.rules.operation.refuses(&mapping);
        if let Some(why) = refused {
            self.skip(piece, Reason::Kind(why));
        } else if mapping.page_bytes > self.rules.page_bytes {
            self.cut_to_pages_of(&mapping, piece);
        } else if piece.len() >= self.rules.span_bytes || !self.add(piece) {
            self.span(piece, self.rules.boundary_bytes);
        }
        if mapping.kind == Kind::Shared && refused.is_none() {
            // What `span` put back comes here again.
            let back = self
                .rest
                .map_or(0, |rest| piece.end().saturating_sub(rest.start()));
            self.shared_bytes += piece.len().saturating_sub(back);
        }
        self.current = Some(mapping);
    }

    fn lookup(&mut self, addr: usize) -> Option<Mapping> {
        if let Some(last) = self.current.take()
            && last.range.start() <= addr
            && addr < last.range.end()
        {
            return Some(last);
        }
        match self.mappings.at_or_after(addr) {
            // A list out of order would lead nowhere.
            Found::Mapping(mapping) if mapping.range.end() > addr => Some(mapping),
            Found::Mapping(_) | Found::Nothing => None,
            // Nobody can tell: the kernel will.
            Found::Unknown => Some(Mapping {
                range: PageRange::between(0, !(self.rules.page_bytes - 1))?,
                kind: Kind::Anonymous,
                page_bytes: self.rules.page_bytes,
                writable: true,
            }),
        }
    }

    /// Huge-page file systems round a length *up*: cut inward ourselves.
    fn cut_to_pages_of(&mut self, mapping: &Mapping, piece: PageRange) {
        let reason = Reason::PartialHugePage {
            page_bytes: mapping.page_bytes,
        };
        let Some(whole) = piece.shrink_to(mapping.page_bytes) else {
            self.skip(piece, reason);
            return;
        };
        let (head, _) = piece.split_at(whole.start());
        let (_, tail) = piece.split_at(whole.end());
        for part in [head, tail].into_iter().flatten() {
            self.skip(part, reason);
        }
        self.span(whole, mapping.page_bytes.max(self.rules.boundary_bytes));
    }

    /// Adds a small range to the vector; false if there is no memory for one.
    fn add(&mut self, piece: PageRange) -> bool {
        let limit = self.rules.batch_bytes.min(VECTOR_BYTES_MAX);
        if self.vector_bytes + piece.len() > limit {
            self.flush();
        }
        if self.vector.capacity() == 0
            && self
                .vector
                .try_reserve_exact(self.rules.vector_ranges)
                .is_err()
        {
            return false;
        }
        self.vector.push(piece);
        self.vector_bytes += piece.len();
        if self.vector.len() >= self.rules.vector_ranges {
            self.flush();
        }
        true
    }

    /// Hands out the first piece of a large range, puts the rest back.
    fn span(&mut self, piece: PageRange, boundary_bytes: usize) {
        let cut = piece.cut_point(self.rules.batch_bytes, boundary_bytes);
        let (first, more) = piece.split_at(cut);
        self.rest = match (more, self.rest) {
            (Some(more), Some(after)) => more.merge(after),
            (more, after) => more.or(after),
        };
        if let Some(first) = first {
            self.ready.push_back(Planned::Batch(Batch::Span(first)));
        }
    }

    fn skip(&mut self, range: PageRange, reason: Reason) {
        self.ready.push_back(Planned::Skip(range, reason));
    }

    fn flush(&mut self) {
        self.vector_bytes = 0;
        let ranges = std::mem::take(&mut self.vector);
        let batch = match *ranges.as_slice() {
            [] => return,
            [only] => Batch::Span(only),
            _ => Batch::Vector(ranges),
        };
        self.ready.push_back(Planned::Batch(batch));
    }
}

impl<R: Iterator<Item = PageRange>, M: Mappings> Iterator for Gather<R, M> {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        loop {
            if let Some(step) = self.ready.pop_front() {
                return Some(step);
            }
            match self.rest.take().or_else(|| self.ranges.next()) {
                Some(rest) => self.step(rest),
                None => {
                    self.flush();
                    return self.ready.pop_front();
                }
            }
        }
    }
}

impl Operation {
    /// Whether the kernel takes this operation in vectors.
    pub(crate) fn takes_vectors(self) -> bool {
        // MADV_DONTNEED_LOCKED and MADV_REMOVE have one range or several, at
        // no less cost each.
        !matches!(self, Self::Punch)
    }
}

#[cfg(test)]
mod tests;
