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
    /// Not a step yet; `range` is the whole job, if the caller may go ahead.
    pub(super) fn of(range: Option<PageRange>, restraint: Restraint) -> Self {
        Self {
            done_bytes: 0,
            rest: range,
            batch_bytes: pace::FIRST_BYTES,
            telling: None,
            restraint,
        }
    }

    /// Goes ahead; `width` says how many threads may work.
    pub(super) fn go<K: Kernel>(
        &mut self,
        kernel: &K,
        operation: Operation,
        width: impl Fn() -> usize,
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize),
        report: &mut Report,
    ) {
        let alone = Alone::before_help(operation);
        while let Some(now) = self.rest
            && self.telling.is_none()
            && !cancel.is_cancelled()
        {
            let at = now.cut_point(self.batch_bytes, BOUNDARY_BYTES);
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
            self.done_bytes += piece.len();
            self.rest = after;
            progress(self.done_bytes);
            let left = after.map_or(0, |rest| rest.len());
            self.restraint.rest(pace::time_of(left, piece.len(), took));
            let step = pace::next(piece.len(), took, left, width(), self.restraint.hold(alone));
            self.batch_bytes = step.batch_bytes;
            self.telling = step.helped.then_some((piece.len(), took));
        }
        report.bytes_done += self.done_bytes;
    }
}
