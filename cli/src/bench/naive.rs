//! What a capable programmer writes in a few lines: a rayon pool, and fixed
//! chunks of 2 MiB.

use std::io;
use std::sync::OnceLock;

use anyhow::{Result, anyhow};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::sys::{self, Advice, HUGE_PAGE};

/// Advises on memory of the caller's, on the pool that this is called in.
pub fn in_chunks(start: *mut u8, len: usize, advice: Advice) -> io::Result<()> {
    let base = start as usize;
    (0..len.div_ceil(HUGE_PAGE))
        .into_par_iter()
        .try_for_each(|chunk| {
            let offset = chunk * HUGE_PAGE;
            let part = HUGE_PAGE.min(len - offset);
            // SAFETY: chunks of memory that the caller owns; after discarding it
            // does not read them again.
            unsafe { sys::advise((base + offset) as *mut u8, part, advice) }
        })
}

/// Starts rayon's threads, once: on its own it would panic where it gets none.
pub fn start_rayon() -> Result<()> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    STARTED
        .get_or_init(|| {
            ThreadPoolBuilder::new()
                .build_global()
                .map_err(|error| error.to_string())
        })
        .clone()
        .map_err(|error| anyhow!("cannot start rayon's threads: {error}"))
}

/// A program that uses rayon has its threads running already.
pub fn wake_rayon() {
    rayon::broadcast(|_| ());
}

/// A pool of its own, for a variant whose threads are counted.
pub fn pool(threads: usize) -> Result<ThreadPool> {
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|error| anyhow!("cannot start rayon's threads: {error}"))
}
