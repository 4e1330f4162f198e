//! Purging when the machine is short of memory.

use std::{
    io, process,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
};

use super::VolatileRegion;
use crate::{
    pressure::{LOOK, Pressure},
    sys,
};

/// At each look while tasks stall, this part of the region's address space is
/// purged: all of it within two seconds.
const PART: usize = 8;

/// Purges a region while tasks of the machine stall for want of memory
/// (/proc/pressure/memory, where the kernel has it), the oldest pages first.
///
/// For programs that feel no pressure of their own: the kernel takes volatile
/// pages of a group whose limit is reached, or when the machine has none left,
/// but others can stall before that. The thread looks four times a second, ends
/// when this is dropped, and is gone in the child of a fork.
#[derive(Debug)]
pub struct PurgeOnPressure {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl VolatileRegion {
    /// Starts to purge this region whenever tasks stall for want of memory.
    ///
    /// # Errors
    /// Those of starting a thread, and `NotFound` where the kernel does not say
    /// who stalls.
    pub fn purge_on_pressure(self: &Arc<Self>) -> io::Result<PurgeOnPressure> {
        let mut pressure = Pressure::of_machine()?;
        self.purge_while(move || pressure.is_high())
    }

    /// Purges at each look at which `short` says that memory is.
    fn purge_while(
        self: &Arc<Self>,
        mut short: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<PurgeOnPressure> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (region, stopped) = (Arc::clone(self), Arc::clone(&stop));
        let thread = sys::thread::spawn_quiet("mmzap-volatile", move || {
            sys::thread::leave_real_time();
            let (stopped, bell) = &*stopped;
            let mut stop = stopped.lock().unwrap_or_else(PoisonError::into_inner);
            while !*stop {
                stop = bell
                    .wait_timeout(stop, LOOK)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
                if !*stop && short() {
                    region.purge_now(region.len().div_ceil(PART));
                }
            }
        })?;
        Ok(PurgeOnPressure {
            stop,
            thread: Some(thread),
            process: process::id(),
        })
    }
}

impl Drop for PurgeOnPressure {
    fn drop(&mut self) {
        if self.process == process::id() {
            // In a child its owner may be missing.
            *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.stop.1.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            sys::thread::join_in(self.process, thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn it_purges_while_memory_is_short_and_ends() {
        let len = 64 * sys::page_bytes();
        let region = Arc::new(VolatileRegion::new(len).expect("memory"));
        region.pin_mut(0..len).expect("nobody has it").fill(1);
        let (said, heard) = mpsc::channel();
        let mut looks = 0;
        let watcher = region.purge_while(move || {
            looks += 1;
            let _nobody_hears = said.send(looks);
            looks == 2
        });
        let watcher = watcher.expect("a thread");
        // At the third look what the second has found was done.
        while heard.recv_timeout(Duration::from_secs(60)).expect("a look") < 3 {}
        drop(watcher);
        assert_eq!(Arc::strong_count(&region), 1, "the thread is gone");
        assert_eq!(region.purge_now(len), len - len / PART);
    }
}
