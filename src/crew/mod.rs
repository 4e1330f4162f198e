//! The pool of helper threads. README.md beside this file has the protocol.

mod limit;
#[cfg(feature = "rayon")]
mod rayon_pool;

use std::{
    collections::VecDeque,
    process,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicPtr, Ordering},
    },
    time::Duration,
};

use crate::{
    error::Errno,
    sys::{affinity::Cpus, thread},
};
pub use limit::{MaxActive, default_max_active, physical_cores};
pub(crate) use limit::{callers_cpus, recent_cpu_quota, recent_max_active};
#[cfg(feature = "rayon")]
pub(crate) use rayon_pool::Borrowed;

/// Work that helpers can join.
pub(crate) trait Work: Send + Sync {
    /// Works until nothing is left to take, or one helper fewer is allowed.
    fn help(&self);

    /// Where its helpers may run; `None` if that does not matter.
    fn cpus(&self) -> Option<&Cpus> {
        None
    }
}

/// Who lends threads to a job.
pub(crate) trait Lender {
    /// Offers `seats` seats at `work` to threads; none need ever come.
    ///
    /// # Errors
    /// The errno with which the system refused a thread.
    fn post(&self, work: &Arc<dyn Work>, seats: usize) -> Result<(), Errno>;

    /// Takes back the seats that nobody took.
    fn withdraw(&self, work: &Arc<dyn Work>);

    /// Whether the threads are ours, to be bound to the caller's CPUs.
    fn binds(&self) -> bool;
}

/// The threads of this library.
pub(crate) struct OwnThreads;

impl Lender for OwnThreads {
    fn post(&self, work: &Arc<dyn Work>, seats: usize) -> Result<(), Errno> {
        Crew::get().post(work, seats)
    }

    fn withdraw(&self, work: &Arc<dyn Work>) {
        Crew::get().withdraw(work);
    }

    fn binds(&self) -> bool {
        true
    }
}

/// How long a helper waits for the next job. Long enough that a program that
/// frees ten times a second keeps its helpers, short enough that one that
/// freed once is soon back to its own threads.
const IDLE: Duration = Duration::from_secs(2);

/// Jobs and idle helpers for which there is room at first, each time twice that.
const ROOM: usize = 32;

/// A pool of this process.
pub(crate) struct Crew {
    /// The process that made it: after a fork its threads do not exist.
    pid: u32,
    state: Mutex<State>,
    posted: Condvar,
}

#[derive(Default)]
struct State {
    /// Work with open seats, oldest first.
    open: VecDeque<(Arc<dyn Work>, usize)>,
    /// Helpers that wait, the one that began first in front.
    idle: VecDeque<i32>,
    /// Helpers that exist.
    threads: usize,
}

impl State {
    fn seats(&self) -> usize {
        self.open.iter().map(|(_, seats)| seats).sum()
    }

    /// Lets helpers that are about to be woken wake on other CPUs than this one.
    ///
    /// The kernel wakes a thread where it ran last, and after a busy moment it
    /// looks for no idle CPU. Where the caller runs by now, a helper would get
    /// the few turns of its nice value until the load is balanced, which takes
    /// longer than many jobs. The helper takes all CPUs of the caller back when
    /// it joins.
    fn send_away(&self, work: &Arc<dyn Work>, helpers: usize) {
        if helpers == 0 {
            return;
        }
        let Some(others) = work.cpus().and_then(Cpus::elsewhere) else {
            return;
        };
        for tid in self.idle.iter().take(helpers) {
            // A refusal leaves the helper where it is allowed to be.
            let _ = others.bind_thread(*tid);
        }
    }

    fn take_seat(&mut self) -> Option<Arc<dyn Work>> {
        let (work, seats) = self.open.front_mut()?;
        *seats -= 1;
        if *seats == 0 {
            return self.open.pop_front().map(|(work, _)| work);
        }
        Some(Arc::clone(work))
    }
}

impl Crew {
    /// The pool of this process, made when first asked for.
    ///
    /// A forked child finds its parent's pool and makes one of its own; the
    /// parent's is left behind unlocked and unread, since a thread that is not
    /// there may have held its lock.
    pub(crate) fn get() -> &'static Self {
        static CREW: AtomicPtr<Crew> = AtomicPtr::new(std::ptr::null_mut());
        let pid = process::id();
        let seen = CREW.load(Ordering::Acquire);
        // SAFETY: what is stored here was leaked from a box and is never freed.
        if let Some(crew) = unsafe { seen.as_ref() }
            && crew.pid == pid
        {
            return crew;
        }
        let new = Box::into_raw(Box::new(Self {
            pid,
            state: Mutex::default(),
            posted: Condvar::new(),
        }));
        match CREW.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just leaked from a box, never freed.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: `new` was never shown to anybody; `other` was stored
                // by another thread of this process just now, as above.
                unsafe {
                    drop(Box::from_raw(new));
                    &*other
                }
            }
        }
    }

    /// Offers `seats` seats at `work`, wakes idle helpers, starts new ones.
    ///
    /// # Errors
    /// The errno with which the system refused a thread; the seats stay open
    /// for helpers that exist.
    pub(crate) fn post(&'static self, work: &Arc<dyn Work>, seats: usize) -> Result<(), Errno> {
        if seats == 0 {
            return Ok(());
        }
        let mut state = self.lock_with_room();
        state.open.push_back((Arc::clone(work), seats));
        let missing = state.seats().saturating_sub(state.idle.len());
        let to_start = missing.min(seats);
        state.threads += to_start;
        state.send_away(work, seats - to_start);
        drop(state);
        for _ in to_start..seats {
            self.posted.notify_one();
        }
        for started in 0..to_start {
            if let Err(refusal) = thread::spawn_quiet("mmzap", move || self.serve()) {
                self.lock().threads -= to_start - started;
                return Err(Errno(refusal.raw_os_error().unwrap_or(0)));
            }
        }
        Ok(())
    }

    /// Takes back the seats that nobody took.
    pub(crate) fn withdraw(&self, work: &Arc<dyn Work>) {
        self.lock()
            .open
            .retain(|(other, _)| !Arc::ptr_eq(other, work));
    }

    fn serve(&self) {
        thread::stand_back();
        let mut state = self.lock();
        loop {
            if let Some(work) = state.take_seat() {
                drop(state);
                work.help();
                drop(work);
                state = self.lock();
                continue;
            }
            if state.idle.len() == state.idle.capacity() {
                drop(state);
                state = self.lock_with_room();
                continue;
            }
            let me = thread::tid();
            state.idle.push_back(me);
            let (again, wait) = self
                .posted
                .wait_timeout(state, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle.retain(|tid| *tid != me);
            if wait.timed_out() && state.open.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// [`lock`](Self::lock), with room for one more in both queues. They must not
    /// grow under the lock: an allocator can free memory by a job of ours.
    fn lock_with_room(&self) -> MutexGuard<'_, State> {
        loop {
            let state = self.lock();
            let (open, idle) = (state.open.capacity(), state.idle.capacity());
            if state.open.len() < open && state.idle.len() < idle {
                return state;
            }
            drop(state);
            let mut larger = (
                VecDeque::with_capacity(2 * open.max(ROOM)),
                VecDeque::with_capacity(2 * idle.max(ROOM)),
            );
            let mut state = self.lock();
            if state.open.capacity() == open && state.idle.capacity() == idle {
                larger.0.extend(state.open.drain(..));
                larger.1.extend(state.idle.drain(..));
                std::mem::swap(&mut state.open, &mut larger.0);
                std::mem::swap(&mut state.idle, &mut larger.1);
            }
            drop(state); // before the smaller ones
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics while the state is half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn threads(&self) -> usize {
        self.lock().threads
    }
}

#[cfg(test)]
mod tests;
