//! Puts back what a bench changed on the system: at the end of the work, on an
//! error, and when a signal ends the program. SIGKILL cannot be covered.
//!
//! One lock guards the steps back *and* every change, and a signal keeps it until
//! the process is gone. So a change is either whole, with its step back noted, or
//! it never happens.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{fs, thread};

use anyhow::{Context, Result, anyhow};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::output;

type Step = Box<dyn FnOnce() -> Result<()> + Send>;

/// The steps back, the first to be made last.
#[derive(Default)]
pub struct Steps(Vec<Step>);

impl Steps {
    /// Notes how a change that was just made is taken back.
    pub fn push(&mut self, step: impl FnOnce() -> Result<()> + Send + 'static) {
        self.0.push(Box::new(step));
    }

    /// Goes back until `keep` steps are left. Every step is tried; what failed is
    /// said, and counted.
    fn back_to(&mut self, keep: usize) -> usize {
        let mut failed = 0;
        while self.0.len() > keep
            && let Some(step) = self.0.pop()
        {
            if let Err(error) = step() {
                output::complain(&format!("cannot restore: {error:#}"));
                failed += 1;
            }
        }
        failed
    }
}

static STEPS: Mutex<Steps> = Mutex::new(Steps(Vec::new()));

fn steps() -> MutexGuard<'static, Steps> {
    // A panic in the middle of a change leaves whole steps behind.
    STEPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Goes back to where it began when it is dropped.
#[must_use = "what is changed is restored when this is dropped"]
pub struct Restore {
    keep: usize,
}

impl Restore {
    /// From here on SIGINT, SIGTERM, SIGHUP and SIGQUIT restore before they end
    /// the program.
    pub fn begin() -> Result<Self> {
        listen()?;
        let keep = steps().0.len();
        Ok(Restore { keep })
    }

    /// Makes a change that no signal cuts in two; it notes its step back in what
    /// it is given.
    pub fn change<T>(&self, change: impl FnOnce(&mut Steps) -> Result<T>) -> Result<T> {
        change(&mut steps())
    }

    /// Restores now and fails if a step did.
    pub fn finish(self) -> Result<()> {
        match steps().back_to(self.keep) {
            0 => Ok(()),
            failed => Err(anyhow!(
                "{failed} settings of the system could not be restored"
            )),
        }
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        // Said on stderr; after `finish` nothing is left to do.
        steps().back_to(self.keep);
    }
}

/// Starts the thread that waits for signals, once a process.
fn listen() -> Result<()> {
    static LISTENING: OnceLock<Result<(), String>> = OnceLock::new();
    LISTENING
        .get_or_init(|| start_listening().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}

fn start_listening() -> Result<()> {
    // What nohup and its like have switched off stays off.
    let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let wanted = [SIGINT, SIGTERM, SIGHUP, SIGQUIT]
        .into_iter()
        .filter(|signal| ignored & (1 << (signal - 1)) == 0);
    let mut signals = Signals::new(wanted)
        .context("cannot take signals, so what is changed could not be restored")?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Held to the end: the other threads change nothing any more.
                let mut steps = steps();
                steps.back_to(0);
                // Ends the process as the signal does by itself, so that the parent sees it.
                let _ = emulate_default_handler(signal);
                std::process::exit(128 + signal);
            }
        })
        .context("cannot start the thread that waits for signals")?;
    Ok(())
}

/// The signals that this process ignores, by its status; signal 1 is bit 0.
fn ignored(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read() {
        let mask = ignored("SigBlk:\t0000000000000004\nSigIgn:\t0000000000000001\n");
        assert_eq!(mask, 1 << (SIGHUP - 1));
        assert_eq!(ignored(""), 0);
    }
    use anyhow::bail;
    use std::sync::Arc;

    #[test]
    fn the_last_change_is_taken_back_first_and_a_failure_stops_nothing() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let note = |name: &'static str, fails: bool| {
            let log = Arc::clone(&log);
            move || {
                log.lock().expect("no panic").push(name);
                if fails {
                    bail!("{name} fails");
                }
                Ok(())
            }
        };
        let mut steps = Steps::default();
        for (name, fails) in [("a", false), ("b", false), ("c", true), ("d", false)] {
            steps.push(note(name, fails));
        }
        assert_eq!(steps.back_to(1), 1);
        assert_eq!(*log.lock().expect("no panic"), ["d", "c", "b"]);
        assert_eq!(steps.back_to(0), 0);
        assert_eq!(log.lock().expect("no panic").last(), Some(&"a"));
    }
}
