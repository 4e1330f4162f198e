//! A thread that does for a cache what is due, at its time.

use std::{
    io, process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{Cache, State, micros};
use crate::{
    pressure::{LOOK, Pressure},
    sys,
};

/// Keeps a [`Cache`] up to date for as long as it lives.
///
/// With it, what is freed is reclaimable after the cache's delay even if the
/// program goes quiet, old runs end when they are old, and everything is given
/// back when tasks stall for want of memory (/proc/pressure/memory, where the
/// kernel has it). The thread sleeps while there is nothing to do, is never a
/// real-time one, and is gone in the child of a fork.
#[derive(Debug)]
pub struct Keeper {
    cache: &'static Cache,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// In the child of a fork the thread is not there.
    process: u32,
}

impl Cache {
    /// Starts a thread that does what is due, at its time. One for each cache
    /// is enough.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn keep(&'static self) -> io::Result<Keeper> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = sys::thread::spawn_quiet("mmzap-lazy", move || self.run_keeper(&stopped))?;
        Ok(Keeper {
            cache: self,
            stop,
            thread: Some(thread),
            process: process::id(),
        })
    }

    fn run_keeper(&self, stop: &AtomicBool) {
        sys::thread::leave_real_time();
        let mut pressure = Pressure::of_machine().ok();
        let mut looked = 0;
        while !stop.load(Ordering::Acquire) {
            let now = sys::thread::monotonic_micros();
            self.do_due(now);
            if now - looked > micros(LOOK) {
                let high = pressure.as_mut().is_some_and(Pressure::is_high);
                if high && looked > 0 {
                    self.purge();
                }
                looked = now;
            }
            let Some((hot_since, anything)) = self.book.lock().map(|book| {
                let anything = book.held_bytes() > 0;
                (book.oldest_since(State::Hot), anything)
            }) else {
                return;
            };
            let Some(since) = hot_since else {
                self.wait(anything, stop);
                continue;
            };
            // Runs that come meanwhile are due later than this one. The clock is
            // read again: on a busy machine doing what was due can take long.
            let delay = self.delay_micros.load(Ordering::Relaxed);
            let now = sys::thread::monotonic_micros();
            let due = since.saturating_add(delay).saturating_sub(now);
            thread::sleep(Duration::from_micros(due.clamp(200, micros(LOOK))));
        }
    }

    /// Until a run comes; if there is `anything`, not for long.
    fn wait(&self, anything: bool, stop: &AtomicBool) {
        let heard = self.bell.listen();
        // A run that came before would wake nobody.
        let hot = self
            .book
            .lock()
            .is_some_and(|book| book.bytes(State::Hot) > 0);
        if !hot && !stop.load(Ordering::SeqCst) {
            self.bell.sleep(heard, anything.then_some(LOOK));
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.cache.bell.ring();
        if let Some(thread) = self.thread.take() {
            sys::thread::join_in(self.process, thread);
        }
    }
}
