//! Threads that do one record after the other for some seconds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::dice::Dice;
use crate::sys;

/// What a load has done.
pub struct Done<T> {
    /// What each thread has counted.
    pub counts: Vec<T>,
    pub seconds: f64,
    /// Page faults meanwhile.
    pub faults: u64,
}

/// Lets each of `threads` do `one` record after the other, with counts of its own,
/// until the time is up.
pub fn run<T: Default + Send>(
    threads: usize,
    seconds: f64,
    one: impl Fn(usize, &mut Dice, &mut T) -> Result<()> + Sync,
) -> Result<Done<T>> {
    let stop = AtomicBool::new(false);
    let faults = sys::page_faults();
    let began = Instant::now();
    let counts = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let (one, stop) = (&one, &stop);
                scope.spawn(move || {
                    let mut dice = Dice::new(thread as u64);
                    let mut counts = T::default();
                    while !stop.load(Ordering::Relaxed) {
                        one(thread, &mut dice, &mut counts)?;
                    }
                    anyhow::Ok(counts)
                })
            })
            .collect();
        thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(counts) => counts,
                Err(_) => bail!("a thread of the workload panicked"),
            })
            .collect::<Result<Vec<T>>>()
    })?;
    Ok(Done {
        counts,
        seconds: began.elapsed().as_secs_f64(),
        faults: sys::page_faults() - faults,
    })
}
