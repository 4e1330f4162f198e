//! `max_active`: how many threads may be in the kernel at once.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::LocalKey,
    time::{Duration, Instant},
};

use crate::{
    cgroup,
    sys::{affinity::Cpus, cores},
};

/// The bound on the threads that give memory back at once, the caller among
/// them.
///
/// A clone is the same bound: keep one, hand the other to a
/// [`Teardown`](crate::Teardown), and [`set`](Self::set) works while the job
/// runs. Lowered, the surplus threads leave after their batch; raised, helpers
/// come when the caller next finishes one.
///
/// ```
/// let width = mmzap::MaxActive::new(4);
/// let job = mmzap::Teardown::new(mmzap::Operation::Discard).max_active(width.clone());
/// width.set(1);
/// # drop(job);
/// ```
#[derive(Clone, Debug)]
pub struct MaxActive(Arc<AtomicUsize>);

impl MaxActive {
    /// At most `threads`; 0 counts as 1, since the caller always works.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(threads.max(1))))
    }

    /// The bound in force.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes the bound, also of jobs that are running.
    pub fn set(&self, threads: usize) {
        // Relaxed: only the number itself is communicated.
        self.0.store(threads.max(1), Ordering::Relaxed);
    }
}

impl From<usize> for MaxActive {
    fn from(threads: usize) -> Self {
        Self::new(threads)
    }
}

/// The most threads that a job comes to have by default: the physical cores
/// that this thread may use.
///
/// The smaller of what affinity and cgroup quotas leave
/// (`std::thread::available_parallelism`, which reads the quotas of all
/// ancestors) and the number of cores to which the CPUs of its affinity belong:
/// two threads of one core share what the work is bound by.
#[must_use]
pub fn default_max_active() -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = Cpus::mine().map_or(available, |cpus| cores::of(&cpus));
    available.min(cores).max(1)
}

/// [`default_max_active`] as it was at most [`FRESH`] ago, for this thread.
///
/// Finding it out reads a dozen files of cgroups, 0.1 ms: as much as freeing
/// 4 MiB.
pub(crate) fn recent_max_active() -> usize {
    thread_local! {
        static WIDTH: Recent<usize> = const { Cell::new(None) };
    }
    recent(&WIDTH, default_max_active)
}

/// [`cgroup::cpu_quota`] as it was at most [`FRESH`] ago.
pub(crate) fn recent_cpu_quota() -> Option<f64> {
    thread_local! {
        static QUOTA: Recent<Option<f64>> = const { Cell::new(None) };
    }
    recent(&QUOTA, cgroup::cpu_quota)
}

/// What was found, and when.
type Recent<T> = Cell<Option<(Instant, T)>>;

fn recent<T: Copy>(known: &'static LocalKey<Recent<T>>, find: impl FnOnce() -> T) -> T {
    let now = Instant::now();
    match known.get() {
        Some((found, value)) if now.duration_since(found) < FRESH => value,
        _ => {
            let value = find();
            known.set(Some((now, value)));
            value
        }
    }
}

/// Quotas and affinity are set by people and schedulers, not within a second
/// of each other.
const FRESH: Duration = Duration::from_secs(1);

/// Physical cores of the machine; at least 1.
#[must_use]
pub fn physical_cores() -> usize {
    cores::online().map_or(1, |cpus| cores::of(&cpus)).max(1)
}

/// The CPUs of the thread that asks for help, for its helpers to use.
pub(crate) fn callers_cpus() -> Option<Cpus> {
    Cpus::mine().ok()
}
