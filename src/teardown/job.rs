//! One job: the batches that lie ready, who may take them, and the account.

mod caller;

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use caller::Caller;
use crossbeam_utils::CachePadded;

use super::{
    Cancel, Progress, execute,
    shelves::{Shelves, Takers},
};
use crate::{
    crew::{self, Lender, MaxActive, Work},
    gather::{Batch, Planned},
    mapping::smaps::HiddenTraits,
    operation::Operation,
    report::{Problems, Reason, Report},
    sys::{Kernel, affinity::Cpus, thread},
    tune::Tuner,
};

/// Where the batches come from.
pub(super) trait Plan: Iterator<Item = Planned> {
    /// Told how long a batch of the caller's took; answers whether helpers
    /// would be of use for what is left, if there can be `width` threads.
    fn pace(&mut self, batch_bytes: usize, took: Duration, width: usize) -> bool;

    /// Told the same where the caller works alone: it may take a rest.
    fn rest(&mut self, _batch_bytes: usize, _took: Duration) {}
}

/// How many threads a job may have.
pub(super) enum Width {
    /// What the user says, also while the job runs.
    Set(MaxActive),
    /// What turns out to be best. Made when the job turns out to be worth it:
    /// the bound that it starts from takes longer to find than a small job.
    Found(Box<dyn FnOnce() -> Tuner>),
}

/// Who does what to how much of the machine.
pub(super) struct Orders<'a> {
    pub(super) operation: Operation,
    pub(super) width: Width,
    pub(super) cancel: Cancel,
    pub(super) lender: &'a dyn Lender,
    /// A batch that the caller did before, and what it took.
    pub(super) telling: Option<(usize, Duration)>,
}

/// What helpers and caller share. The protocol is in crew/README.md.
pub(super) struct Job<K> {
    kernel: K,
    operation: Operation,
    batches: Takers,
    max_active: MaxActive,
    /// Set by the caller, once it knows that helpers are of use.
    tuner: OnceLock<Mutex<Tuner>>,
    /// Whether helpers would be of use, by the pace so far: only then is there
    /// anything to tune.
    helped: AtomicBool,
    nodes: usize,
    /// The caller's node.
    home: usize,
    cancel: Cancel,
    /// The caller was torn away by a panic: what is left is not to be done.
    abandoned: AtomicBool,
    /// Where the caller may run, and so its helpers.
    cpus: Option<Cpus>,
    /// Batches pushed and not finished.
    unfinished: CachePadded<AtomicUsize>,
    /// Threads that may be in the kernel for this job, the caller included.
    active: CachePadded<AtomicUsize>,
    /// Seats posted whose helpers have not left yet.
    seated: AtomicUsize,
    /// Helpers that came, so that each node gets its share.
    came: AtomicUsize,
    hidden: HiddenTraits,
    tally: Mutex<Tally>,
    finished: Condvar,
}

/// The account, brought in batch by batch.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) done_bytes: usize,
    pub(super) batches: usize,
    pub(super) system_calls: usize,
    pub(super) steals: usize,
    pub(super) helpers: usize,
    pub(super) helper_cpu: Duration,
    pub(super) problems: Problems,
}

impl<K: Kernel + Send + 'static> Job<K> {
    /// Runs `plan` to its end on this thread and others.
    pub(super) fn run(
        kernel: K,
        orders: Orders<'_>,
        plan: &mut impl Plan,
        progress: &mut dyn FnMut(usize),
        report: &mut Report,
    ) -> Option<Tuner> {
        let (max_active, make_tuner) = match orders.width {
            Width::Set(max_active) => (max_active, None),
            Width::Found(make) => (MaxActive::new(1), Some(make)),
        };
        let wide = max_active.get() > 1 || make_tuner.is_some();
        let nodes = if wide { kernel.nodes() } else { 1 };
        let shelves = Shelves::new(nodes);
        let job = Arc::new(Self {
            operation: orders.operation,
            batches: shelves.takers(),
            max_active,
            tuner: OnceLock::new(),
            helped: AtomicBool::new(false),
            home: if nodes > 1 { kernel.node_here() } else { 0 },
            nodes,
            kernel,
            cancel: orders.cancel,
            abandoned: AtomicBool::new(false),
            cpus: (wide && orders.lender.binds())
                .then(crew::callers_cpus)
                .flatten(),
            unfinished: CachePadded::new(AtomicUsize::new(0)),
            active: CachePadded::new(AtomicUsize::new(1)),
            seated: AtomicUsize::new(0),
            came: AtomicUsize::new(0),
            hidden: HiddenTraits::default(),
            tally: Mutex::default(),
            finished: Condvar::new(),
        });
        let caller = Caller::new(&job, &shelves, orders.lender, make_tuner);
        let refused = caller.run(orders.telling, plan, progress);
        let tally = std::mem::take(&mut *job.tally());
        report.helpers_refused = report.helpers_refused.or(refused);
        tally.add_to(report);
        // A helper that comes late may still look at its own.
        let tuner = job.tuner.get().map(|tuner| lock(tuner).clone());
        report.max_active = tuner
            .as_ref()
            .map_or_else(|| job.max_active.get(), Tuner::settled);
        tuner
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    /// The most threads that this job can come to have.
    fn upper(&self) -> usize {
        match self.tuner.get() {
            Some(tuner) => lock(tuner).upper(),
            None => self.max_active.get(),
        }
    }

    /// Does a batch, and lets the tuner know how it went.
    fn execute(&self, batch: &Batch, by_helper: bool, part: &mut Tally) {
        let Some(tuner) = self
            .tuner
            .get()
            .filter(|_| self.helped.load(Ordering::Relaxed))
        else {
            execute::batch(&self.kernel, self.operation, batch, &self.hidden, part);
            return;
        };
        let busy = self.active.load(Ordering::Relaxed);
        let began = Instant::now();
        execute::batch(&self.kernel, self.operation, batch, &self.hidden, part);
        let took = began.elapsed();
        let steady = busy == self.active.load(Ordering::Relaxed);
        let busy = steady.then_some(busy);
        let mut tuner = lock(tuner);
        let width = tuner.sample(batch.bytes(), took, busy, by_helper);
        // Under the lock: of two answers the later one stays.
        self.max_active.set(width);
    }

    /// Where the next helper belongs.
    fn settle(&self) -> usize {
        if self.nodes == 1 {
            if let Some(cpus) = &self.cpus {
                // A refusal leaves the helper where it is allowed to be.
                let _ = cpus.bind();
            }
            return 0;
        }
        let Some(cpus) = &self.cpus else {
            return self.kernel.node_here(); // somebody else's thread
        };
        let home = (self.home + 1 + self.came.fetch_add(1, Ordering::Relaxed)) % self.nodes;
        self.kernel.stay_on(home, cpus);
        home
    }

    /// Does one batch, or passes it by after a cancellation.
    fn finish(&self, batch: &Batch, cpu_since: Option<Duration>) {
        // However this ends: the caller waits for it.
        let _finished = Finished {
            job: self,
            by_helper: cpu_since.is_some(),
        };
        let mut part = Tally::default();
        if self.cancel.is_cancelled() || self.abandoned.load(Ordering::Relaxed) {
            for range in batch.ranges() {
                part.problems
                    .skip(range.start(), range.len(), Reason::Cancelled);
            }
        } else {
            self.execute(batch, cpu_since.is_some(), &mut part);
        }
        if let Some(since) = cpu_since {
            part.steals = 1;
            part.helper_cpu = thread::cpu_time().saturating_sub(since);
        }
        self.tally().absorb(part);
    }

    /// Takes one of the places below `max_active`.
    fn join(&self) -> bool {
        self.active
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |active| {
                (active < self.max_active.get()).then_some(active + 1)
            })
            .is_ok()
    }

    /// Gives the place up if there are more than `max_active` by now.
    fn must_leave(&self) -> bool {
        self.active
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |active| {
                (active > self.max_active.get()).then_some(active - 1)
            })
            .is_ok()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while what is locked is half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One batch less to wait for.
struct Finished<'a, K> {
    job: &'a Job<K>,
    by_helper: bool,
}

impl<K> Drop for Finished<'_, K> {
    fn drop(&mut self) {
        // The lock is what the caller holds between its look and its sleep.
        let lock = self.job.tally.lock();
        let last = self.job.unfinished.fetch_sub(1, Ordering::Release) == 1;
        drop(lock);
        // Only the caller ever waits, and not while it works itself.
        if last && self.by_helper {
            self.job.finished.notify_all();
        }
    }
}

impl<K: Kernel + Send + 'static> Work for Job<K> {
    fn cpus(&self) -> Option<&Cpus> {
        self.cpus.as_ref()
    }

    fn help(&self) {
        if self.join() {
            let home = self.settle();
            let mut first = true;
            loop {
                let Some(batch) = self.batches.take(home) else {
                    self.active.fetch_sub(1, Ordering::Relaxed);
                    break;
                };
                if std::mem::take(&mut first) {
                    self.tally().helpers += 1;
                }
                self.finish(&batch, Some(thread::cpu_time()));
                if self.must_leave() {
                    break;
                }
            }
        }
        self.seated.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tally {
    fn absorb(&mut self, part: Self) {
        self.done_bytes += part.done_bytes;
        self.batches += 1;
        self.system_calls += part.system_calls;
        self.steals += part.steals;
        self.helper_cpu += part.helper_cpu;
        self.problems.absorb(part.problems);
    }

    fn add_to(self, report: &mut Report) {
        report.bytes_done += self.done_bytes;
        report.batches += self.batches;
        report.system_calls += self.system_calls;
        report.steals += self.steals;
        report.helpers = report.helpers.max(self.helpers);
        report.helper_cpu += self.helper_cpu;
        report.problems.absorb(self.problems);
    }
}

impl Progress {
    pub(super) fn of(done_bytes: usize, total_bytes: usize) -> Self {
        Self {
            done_bytes,
            total_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
