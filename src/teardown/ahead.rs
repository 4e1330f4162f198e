//! The caller alone, before anything is set up.
//!
//! Much is over before helpers could come: huge pages, empty space, all that
//! nobody has touched. So the caller goes ahead with plain calls over pieces of
//! the one range of a job, looks nothing up and allocates nothing, and sets the
//! job up only when a piece has shown that it will last, or when the kernel
//! objects to one.

use std::time::{Duration, Instant};

use super::{Cancel, Report, restraint::Restraint};
use crate::{
    gather::BOUNDARY_BYTES,
    operation::Operation,
    pace::{self, Alone},
    range::PageRange,
    sys::{self, Kernel},
};

/// How far the caller got.
pub(super) struct Ahead {
    pub(super) done_bytes: usize,
    /// What is left for the job.
    pub(super) rest: Option<PageRange>,
    /// Bytes of the next batch.
    pub(super) batch_bytes: usize,
    /// The piece that showed that helpers are of use, and what it took.
    pub(super) telling: Option<(usize, Duration)>,
    /// How the caller holds back, also in the job.
    pub(super) restraint: Restraint,
}

impl Ahead {
    /// Not a step.
    pub(super) fn none() -> Self {
        Self {
            done_bytes: 0,
            rest: None,
            batch_bytes: pace::FIRST_BYTES,
            telling: None,
            restraint: Restraint::begin(),
        }
    }

    /// Goes ahead on `range`; `width` says how many threads may work.
    pub(super) fn go<K: Kernel>(
        kernel: &K,
        operation: Operation,
        range: PageRange,
        width: impl Fn() -> usize,
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize),
        report: &mut Report,
    ) -> Self {
        let mut ahead = Self::none();
        ahead.rest = Some(range);
        let alone = Alone::before_help(operation);
        while let Some(now) = ahead.rest
            && ahead.telling.is_none()
            && !cancel.is_cancelled()
        {
            let at = now.cut_point(ahead.batch_bytes, BOUNDARY_BYTES);
            let (Some(piece), after) = now.split_at(at) else {
                break;
            };
            if sys::mmap::is_treacherous(piece) {
                break;
            }
            let began = Instant::now();
            report.system_calls += 1;
            if kernel.advise(piece, operation.advice()).is_err() {
                break; // the job finds out why, from this piece on
            }
            let took = began.elapsed();
            report.batches += 1;
            ahead.done_bytes += piece.len();
            ahead.rest = after;
            progress(ahead.done_bytes);
            let left = after.map_or(0, |rest| rest.len());
            ahead.restraint.rest(pace::time_of(left, piece.len(), took));
            let step = pace::next(
                piece.len(),
                took,
                left,
                width(),
                ahead.restraint.hold(alone),
            );
            ahead.batch_bytes = step.batch_bytes;
            ahead.telling = step.helped.then_some((piece.len(), took));
        }
        report.bytes_done += ahead.done_bytes;
        ahead
    }
}
