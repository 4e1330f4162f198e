//! One job: the batches that lie ready, who may take them, and the account.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;

use super::{
    Progress, execute,
    shelves::{Shelves, Takers},
};
use crate::{
    crew::{self, Lender, MaxActive, Work},
    error::Errno,
    gather::{Batch, Planned},
    mapping::smaps::HiddenTraits,
    operation::Operation,
    report::{Problems, Reason, Report},
    sys::{Kernel, affinity::Cpus, thread},
    tune::Tuner,
};

/// Batches ready when the caller goes into the kernel, for each thread: nobody
/// runs dry before it is back.
const READY_PER_THREAD: usize = 4;

/// And at most: crossbeam's deque holds this many without growing.
const READY_MAX: usize = 63;

/// Stops a job between two batches, from any thread.
///
/// ```
/// let cancel = mmzap::Cancel::default();
/// let job = mmzap::Teardown::new(mmzap::Operation::Discard).cancel(&cancel);
/// cancel.now();
/// # drop(job);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Stops the jobs that were given this token, for good. Batches in the
    /// kernel are finished; the rest is reported as cancelled.
    pub fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`now`](Self::now) was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where the batches come from.
pub(super) trait Plan: Iterator<Item = Planned> {
    /// Told how long a batch of the caller's took; answers whether helpers
    /// would be of use for what is left.
    fn pace(&mut self, batch_bytes: usize, took: Duration, width: usize) -> bool;

    /// Told, after that, that nobody will help for a while all the same.
    fn alone(&mut self, batch_bytes: usize, took: Duration);
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
        let mut caller = Caller {
            work: Arc::clone(&job) as Arc<dyn Work>,
            job: &job,
            shelves: &shelves,
            lender: orders.lender,
            make_tuner,
            refused: None,
            asked: false,
            helped: false,
        };
        if let Some((bytes, took)) = orders.telling {
            caller.learn(plan, bytes, took);
        }
        caller.drain(plan, progress);
        let refused = caller.refused;
        drop(caller); // waits for the helpers
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

/// The calling thread's side; dropping it waits for what helpers have taken,
/// also when a progress callback panics, so that nobody works on memory whose
/// owner has gone.
struct Caller<'a, K: Kernel + Send + 'static> {
    work: Arc<dyn Work>,
    job: &'a Job<K>,
    shelves: &'a Shelves,
    lender: &'a dyn Lender,
    make_tuner: Option<Box<dyn FnOnce() -> Tuner>>,
    refused: Option<Errno>,
    asked: bool,
    /// Whether helpers would be of use, by the pace so far.
    helped: bool,
}

impl<K: Kernel + Send + 'static> Caller<'_, K> {
    fn drain(&mut self, plan: &mut impl Plan, progress: &mut dyn FnMut(usize)) {
        let mut planned_all = false;
        while !planned_all || !self.shelves.is_empty() {
            let ready = self.ready();
            while !planned_all
                && (self.shelves.len() < ready || (self.helped && self.shelves.lack()))
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
                self.learn(plan, batch.bytes(), took);
            }
        }
    }

    /// What a batch of the caller's says about the rest of the job.
    fn learn(&mut self, plan: &mut impl Plan, bytes: usize, took: Duration) {
        let alone = !self.helped;
        self.helped = self.pace(plan, bytes, took);
        self.job.helped.store(self.helped, Ordering::Relaxed);
        if let Some(tuner) = self.job.tuner.get()
            && alone
            && self.helped
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
            plan.alone(bytes, took);
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
        if self.helped {
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
        if !self.helped {
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
