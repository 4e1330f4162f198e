//! A lock that a forked child can do without.

use std::{
    process,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

/// How long a child waits for a lock that one of its own threads may hold, for
/// microseconds, or one that does not exist there, for ever.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_micros(50);

/// A mutex whose owner may be missing after a fork. What it guards must be
/// consistent whenever it is unlocked, and nothing may panic while it is not.
pub(crate) struct ForkLock<T> {
    inner: Mutex<T>,
    /// Where the lock was last had after waiting: there it is held by a thread
    /// that exists. 0 before.
    process: AtomicU32,
    /// The child that has given it up.
    lost_in: AtomicU32,
}

impl<T> ForkLock<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Self {
            inner: Mutex::new(inner),
            process: AtomicU32::new(0),
            lost_in: AtomicU32::new(0),
        }
    }

    /// What is guarded; `None` in the child of a fork that happened while
    /// another thread held it.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(broken)) => return Some(broken.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        let here = process::id();
        if self.process.load(Ordering::Relaxed) == here {
            return Some(self.inner.lock().unwrap_or_else(PoisonError::into_inner));
        }
        if self.lost_in.load(Ordering::Relaxed) == here {
            return None;
        }
        for _ in 0..TRIES {
            thread::sleep(PAUSE);
            if let Ok(guard) = self.inner.try_lock() {
                self.process.store(here, Ordering::Relaxed);
                return Some(guard);
            }
        }
        self.lost_in.store(here, Ordering::Relaxed);
        None
    }

    /// Says that the lock is this process's own: to be called by whoever has it
    /// first, at once.
    pub(crate) fn belongs_here(&self) {
        self.process.store(process::id(), Ordering::Relaxed);
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn in_its_own_process_it_is_waited_for() {
        let lock = ForkLock::new(0);
        lock.belongs_here();
        let both = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut held = lock.lock().expect("free");
                both.wait();
                // Longer than a child would wait.
                thread::sleep(TRIES * PAUSE * 4);
                *held += 1;
            });
            both.wait();
            assert_eq!(lock.lock().as_deref(), Some(&1));
        });
    }
}
