//! How a job is set up: how far the caller goes alone, how wide the rest is,
//! and in what batches it is cut.

use std::time::Duration;

use super::{
    DIRECT_BYTES, Progress, Teardown,
    ahead::Ahead,
    job::{self, Orders, Width},
    restraint::Restraint,
    total,
};
use crate::{
    crew::{MaxActive, OwnThreads, recent_max_active},
    gather::{Gather, Planned, Rules},
    mapping::Mappings,
    operation::Operation,
    pace::{self, Alone},
    range::PageRange,
    report::Report,
    sys::{Kernel, thread},
    tune,
};

impl Teardown<'_> {
    pub(super) fn job<K: Kernel + Send + 'static>(
        &mut self,
        kernel: K,
        operation: Operation,
        pages: &[PageRange],
        report: &mut Report,
    ) {
        let total = total(pages);
        let cpu = thread::cpu_time();
        let vectors = kernel.has_vectors();
        let width = self.width(operation, total, pages.len(), vectors);
        let mut callback = self.progress.as_mut();
        let mut progress = |done: usize| {
            if let Some(callback) = &mut callback {
                callback(Progress::of(done, total));
            }
        };
        let may_have = || match &width {
            Width::Set(max_active) => max_active.get(),
            Width::Found(_) => 2, // found when it turns out to matter
        };
        let alone = match *pages {
            [only] if self.batch_bytes.is_none() => Some(only),
            _ => None,
        };
        let mut ahead = Ahead::of(alone, Restraint::begin(cpu));
        ahead.go(
            &kernel,
            operation,
            may_have,
            &self.cancel,
            &mut progress,
            report,
        );
        let rest = alone.map_or(pages, |_| ahead.rest.as_slice());
        if !rest.is_empty() {
            let most = match &width {
                Width::Set(max_active) => max_active.get(),
                Width::Found(_) if vectors && pages.len() > 1 => recent_max_active(),
                Width::Found(_) => 1, // of no consequence: no vectors
            };
            let rules = Rules::for_job(operation, total, pages.len(), most, vectors)
                .with_batch_bytes(self.batch_bytes.unwrap_or(ahead.batch_bytes));
            let mut plan = Paced {
                gather: Gather::new(rest.iter().copied(), kernel.mappings(), rules),
                left_bytes: total - ahead.done_bytes,
                fixed: self.batch_bytes.is_some(),
                alone: Alone::before_help(operation),
                restraint: ahead.restraint,
            };
            let orders = Orders {
                operation,
                width,
                cancel: self.cancel.clone(),
                lender: self.lender.as_deref().unwrap_or(&OwnThreads),
                telling: ahead.telling,
            };
            let mut progress = |done| progress(ahead.done_bytes + done);
            let tuner = job::Job::run(kernel, orders, &mut plan, &mut progress, report);
            if let Some(tuner) = tuner {
                tune::remember(operation, tuner);
            }
            report.shared_bytes += plan.gather.shared_bytes();
        }
        report.caller_cpu += thread::cpu_time().saturating_sub(cpu);
    }

    /// The width asked for, or the one to be found; 1 where more threads would
    /// only be in each other's way: single calls over many small ranges end in
    /// a TLB flush each, which interrupts the other thread (docs/kernel.md).
    fn width(
        &self,
        operation: Operation,
        total_bytes: usize,
        ranges: usize,
        vectors: bool,
    ) -> Width {
        let scattered = total_bytes / ranges.max(1) < (1 << 20);
        let vectors = vectors && operation.takes_vectors();
        if total_bytes < DIRECT_BYTES || (scattered && !vectors) {
            return Width::Set(MaxActive::new(1));
        }
        match &self.max_active {
            Some(width) => Width::Set(width.clone()),
            None => Width::Found(Box::new(move || {
                tune::begin(operation, recent_max_active())
            })),
        }
    }
}

/// A plan whose batches follow the pace of the caller's own.
struct Paced<R, M> {
    gather: Gather<R, M>,
    /// Bytes not handed out yet.
    left_bytes: usize,
    /// The user has chosen the size of a batch.
    fixed: bool,
    alone: Alone,
    restraint: Restraint,
}

impl<R: Iterator<Item = PageRange>, M: Mappings> Iterator for Paced<R, M> {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        let step = self.gather.next()?;
        let bytes = match &step {
            Planned::Batch(batch) => batch.bytes(),
            Planned::Skip(range, _) => range.len(),
        };
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        Some(step)
    }
}

impl<R: Iterator<Item = PageRange>, M: Mappings> job::Plan for Paced<R, M> {
    fn pace(&mut self, batch_bytes: usize, took: Duration, width: usize) -> bool {
        let alone = self.restraint.hold(self.alone);
        let step = pace::next(batch_bytes, took, self.left_bytes, width, alone);
        if step.helped {
            self.alone = self.alone.helped();
        }
        if !self.fixed {
            self.gather.set_batch_bytes(step.batch_bytes);
        }
        step.helped || (self.fixed && width > 1)
    }

    fn rest(&mut self, batch_bytes: usize, took: Duration) {
        self.restraint
            .rest(pace::time_of(self.left_bytes, batch_bytes, took));
    }
}
