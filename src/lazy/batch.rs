//! Runs that are worked on together.

use crate::range::PageRange;

/// Runs that are freed by one job, between two looks at the book.
pub(super) const RUNS: usize = 256;

/// Runs between two lists, without the heap.
pub(super) struct Batch {
    runs: [Option<PageRange>; RUNS],
    count: usize,
}

impl Batch {
    /// As many of `runs` as there is room for; `None` if there are none.
    pub(super) fn of(runs: impl Iterator<Item = PageRange>) -> Option<Self> {
        let mut batch = Self {
            runs: [None; RUNS],
            count: 0,
        };
        for run in runs.take(RUNS) {
            batch.runs[batch.count] = Some(run);
            batch.count += 1;
        }
        (batch.count > 0).then_some(batch)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = PageRange> {
        self.runs.iter().copied().flatten()
    }

    pub(super) fn bytes(&self) -> usize {
        self.runs().map(|run| run.len()).sum()
    }
}
