//! The calling thread's side of a job.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{Job, Plan, lock};
use crate::{
    crew::{Lender, Work},
    error::Errno,
    gather::{Batch, Planned},
    sys::Kernel,
    teardown::shelves::Shelves,
    tune::Tuner,
};

/// Batches ready when the caller goes into the kernel, for each thread: nobody
/// runs dry before it is back.
const READY_PER_THREAD: usize = 4;

/// And at most: crossbeam's deque holds this many without growing.
const READY_MAX: usize = 63;

/// The calling thread's side; dropping it waits for what helpers have taken,
/// also when a progress callback panics, so that nobody works on memory whose
/// owner has gone.
pub(super) struct Caller<'a, K: Kernel + Send + 'static> {
    work: Arc<dyn Work>,
    job: &'a Job<K>,
    shelves: &'a Shelves,
    lender: &'a dyn Lender,
    make_tuner: Option<Box<dyn FnOnce() -> Tuner>>,
    refused: Option<Errno>,
    asked: bool,
}

impl<'a, K: Kernel + Send + 'static> Caller<'a, K> {
    pub(super) fn new(
        job: &'a Arc<Job<K>>,
        shelves: &'a Shelves,
        lender: &'a dyn Lender,
        make_tuner: Option<Box<dyn FnOnce() -> Tuner>>,
    ) -> Self {
        Self {
            work: Arc::clone(job) as Arc<dyn Work>,
            job,
            shelves,
            lender,
            make_tuner,
            refused: None,
            asked: false,
        }
    }

    /// Works until everything is done, by whomever; answers why helpers did
    /// not come, if so. `telling` is a batch that was done before.
    pub(super) fn run(
        mut self,
        telling: Option<(usize, Duration)>,
        plan: &mut impl Plan,
        progress: &mut dyn FnMut(usize),
    ) -> Option<Errno> {
        if let Some((bytes, took)) = telling {
            self.learn(plan, bytes, took);
        }
        self.drain(plan, progress);
        self.refused
    }

    /// Whether helpers would be of use, by the pace so far.
    fn helped(&self) -> bool {
        self.job.helped.load(Ordering::Relaxed)
    }

    fn drain(&mut self, plan: &mut impl Plan, progress: &mut dyn FnMut(usize)) {
        let mut planned_all = false;
        while !planned_all || !self.shelves.is_empty() {
            let ready = self.ready();
            while !planned_all
                && (self.shelves.len() < ready || (self.helped() && self.shelves.lack()))
            {
                planned_all = !self.step(plan);
            }
            self.recruit();
            if let Some(batch) = self.shelves.pop(self.job.home) {
                let began = Instant::now();
                self.job.finish(&batch, None);
                let took = began.elapsed();
                // The callback may change the width: the next step knows.
                let done_bytes = self.job.tally().done_bytes; // unlocked again
                progress(done_bytes);
                if !self.asked {
                    plan.rest(batch.bytes(), took);
                }
                self.learn(plan, batch.bytes(), took);
            }
        }
    }

    /// What a batch of the caller's says about the rest of the job.
    fn learn(&mut self, plan: &mut impl Plan, bytes: usize, took: Duration) {
        let alone = !self.helped();
        let helped = self.pace(plan, bytes, took);
        self.job.helped.store(helped, Ordering::Relaxed);
        if let Some(tuner) = self.job.tuner.get()
            && alone
            && helped
        {
            lock(tuner).sample(bytes, took, Some(1), false);
        }
    }

    /// Whether helpers are of use, by what the last batch took.
    fn pace(&mut self, plan: &mut impl Plan, bytes: usize, took: Duration) -> bool {
        if self.make_tuner.is_none() {
            return self.pace_tuned(plan, bytes, took, self.job.upper());
        }
        if plan.pace(bytes, took, 2)
            && let Some(make) = self.make_tuner.take()
        {
            let tuner = make();
            let upper = tuner.upper();
            self.job.max_active.set(tuner.width());
            // Nobody else sets it.
            let _ = self.job.tuner.set(Mutex::new(tuner));
            return self.pace_tuned(plan, bytes, took, upper);
        }
        false
    }

    fn pace_tuned(&self, plan: &mut impl Plan, bytes: usize, took: Duration, upper: usize) -> bool {
        let helped = plan.pace(bytes, took, upper);
        let tuner = self.job.tuner.get();
        if tuner.is_some_and(|tuner| lock(tuner).stays_at_one()) {
            // Helpers would be of use, and none will come for a while.
            let _ = plan.pace(bytes, took, 1);
        }
        helped
    }

    /// Takes a step of the plan; answers whether there was one.
    fn step(&self, plan: &mut impl Plan) -> bool {
        match plan.next() {
            Some(Planned::Batch(batch)) => self.shelve(batch),
            Some(Planned::Skip(range, reason)) => {
                let mut tally = self.job.tally();
                tally.problems.skip(range.start(), range.len(), reason);
            }
            None => return false,
        }
        true
    }

    /// How many batches should lie ready.
    fn ready(&self) -> usize {
        if self.helped() {
            (self.job.max_active.get() * READY_PER_THREAD).min(READY_MAX)
        } else {
            1 // what is planned later is planned better
        }
    }

    fn shelve(&self, batch: Batch) {
        let kernel = &self.job.kernel;
        let node = (self.job.nodes > 1).then(|| kernel.node_of(batch.ranges()));
        self.job.unfinished.fetch_add(1, Ordering::Relaxed);
        let node = node.flatten().unwrap_or(self.job.home);
        self.shelves.push(node, batch);
    }

    /// Offers seats for what lies ready, up to `max_active` and one thread for
    /// each batch beyond the caller's own.
    fn recruit(&mut self) {
        if !self.helped() {
            return;
        }
        let wanted = (self.job.max_active.get() - 1).min(self.shelves.len().saturating_sub(1));
        let seated = self.job.seated.load(Ordering::Relaxed);
        if wanted <= seated || self.refused.is_some() {
            return;
        }
        self.asked = true;
        self.job
            .seated
            .fetch_add(wanted - seated, Ordering::Relaxed);
        self.refused = self.lender.post(&self.work, wanted - seated).err();
    }
}

impl<K: Kernel + Send + 'static> Drop for Caller<'_, K> {
    fn drop(&mut self) {
        if self.asked {
            self.lender.withdraw(&self.work);
        }
        // After a panic: nobody shall take what the caller will not wait for.
        while let Some(batch) = self.shelves.pop(self.job.home) {
            self.job.abandoned.store(true, Ordering::Relaxed);
            self.job.finish(&batch, None);
        }
        let mut tally = self.job.tally();
        while self.job.unfinished.load(Ordering::Acquire) > 0 {
            tally = self
                .job
                .finished
                .wait(tally)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
