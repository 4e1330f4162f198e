//! How large a batch is.

use crate::{
    operation::Operation,
    pace::{BATCH_BYTES_MAX, FIRST_BYTES},
    sys::{self, VECTOR_RANGES_MAX},
};

/// Where a plan cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules {
    /// What will be done.
    pub operation: Operation,
    /// The system's page, in bytes.
    pub page_bytes: usize,
    /// About how many bytes a batch holds.
    pub batch_bytes: usize,
    /// Ranges are cut only at multiples of this, in bytes.
    pub boundary_bytes: usize,
    /// Ranges of at least this many bytes go alone.
    pub span_bytes: usize,
    /// How many small ranges go together.
    pub vector_ranges: usize,
}

/// A cut here never splits a huge page that is mapped as one, and 2 MiB of
/// page-table pages can go with their pages (Linux 6.14).
pub(crate) const BOUNDARY_BYTES: usize = 2 << 20;

/// Batches for each thread: the last straggler then keeps the others waiting
/// for 1/64 of the job at most, and usually half of that.
const BATCHES_PER_THREAD: usize = 32;

/// From here on the call costs less than the pages: a range goes alone.
const SPAN_BYTES: usize = 4 << 20;

/// Vectors for each thread, of scattered ranges.
const VECTORS_PER_THREAD: usize = 16;

/// Below this many ranges in a vector the TLB flush at its end shows
/// (docs/measurements.md, `scattered`).
const VECTOR_RANGES_MIN: usize = 64;

impl Rules {
    /// The rules for a job of `total_bytes` in `range_count` ranges on
    /// `width` threads.
    #[must_use]
    pub fn for_job(
        operation: Operation,
        total_bytes: usize,
        range_count: usize,
        width: usize,
        vectors: bool,
    ) -> Self {
        let width = width.max(1);
        let batch_bytes =
            (total_bytes / (width * BATCHES_PER_THREAD)).clamp(FIRST_BYTES, BATCH_BYTES_MAX);
        let vectors = vectors && operation.takes_vectors();
        Self {
            operation,
            page_bytes: sys::page_bytes(),
            batch_bytes,
            boundary_bytes: BOUNDARY_BYTES,
            span_bytes: if vectors { SPAN_BYTES } else { 0 },
            vector_ranges: (range_count / (width * VECTORS_PER_THREAD))
                .clamp(VECTOR_RANGES_MIN, VECTOR_RANGES_MAX),
        }
    }

    /// The same rules with batches of about `bytes`.
    #[must_use]
    pub fn with_batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.min(BATCH_BYTES_MAX).max(self.page_bytes);
        self
    }
}
