//! Holding back under a CPU quota of less than one CPU.
//!
//! A thread that never rests uses the quota of a period up at its beginning,
//! and then every thread of the control group stands still until the period
//! ends, or for several periods where the kernel lets a long call run on. A job
//! that rests a little after each batch waits for its quota as well, in pieces,
//! and the others run meanwhile (docs/measurements.md has what that costs).

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{crew, pace::Alone, sys::thread::cpu_time};

/// CPU time that a job takes before it holds back, and again at its end: with
/// the usual periods of 100 ms a part of the quota, and a job that needs no
/// more is not delayed at all. The plain call runs ahead of its quota as well;
/// with less a job of 2 GiB took longer than it, with more the others of the
/// group stand still for as long as without any restraint.
const FREELY: Duration = Duration::from_millis(35);

/// The part of the quota that a job takes between; the rest is for the others of
/// the group.
const PART: f64 = 0.99;

/// A longer pause than this would be due to a quota that cannot be meant.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How the calling thread holds back.
pub(super) struct Restraint {
    quota: Quota,
    began: Instant,
    /// CPU time of this thread at the beginning.
    cpu_before: Duration,
}

enum Quota {
    /// Not yet of interest.
    Unknown,
    /// None, or one of a CPU and more.
    Ample,
    /// In CPUs, below 1.
    Short(f64),
}

impl Restraint {
    /// For a job that begins now, when the calling thread has used `cpu_before`.
    pub(super) fn begin(cpu_before: Duration) -> Self {
        Self {
            quota: Quota::Unknown,
            began: Instant::now(),
            cpu_before,
        }
    }

    /// How a thread goes on alone that is held back like this.
    pub(super) fn hold(&self, alone: Alone) -> Alone {
        match self.quota {
            Quota::Short(_) => alone.resting(),
            _ => alone,
        }
    }

    /// To be called after a batch of this thread's, with the time that the rest
    /// of the job will take.
    pub(super) fn rest(&mut self, left: Duration) {
        if let Quota::Ample = self.quota {
            return; // for the rest of the job: quotas are not set within seconds
        }
        let used = cpu_time().saturating_sub(self.cpu_before);
        if used <= FREELY || left <= FREELY {
            return;
        }
        if let Quota::Unknown = self.quota {
            self.quota = match crew::recent_cpu_quota() {
                Some(cpus) if cpus < 1.0 => Quota::Short(cpus),
                _ => Quota::Ample,
            };
        }
        if let Quota::Short(cpus) = self.quota {
            // By the clock: a pause that lasts too long shortens the next.
            let pause = pause(used, self.began.elapsed(), cpus);
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
    }
}

/// The pause that is due to a thread that has `used` CPU time since it began.
fn pause(used: Duration, since: Duration, quota_cpus: f64) -> Duration {
    let held_back = used.saturating_sub(FREELY).as_secs_f64() / (quota_cpus * PART);
    Duration::try_from_secs_f64(held_back).map_or(PAUSE_MAX, |time| {
        (FREELY + time).saturating_sub(since).min(PAUSE_MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_is_used_stays_below_the_quota_and_comes_close() {
        for quota in [0.05, 0.25, 0.5, 0.9] {
            let (mut used, mut time) = (FREELY, FREELY);
            for _ in 0..50 {
                used += 4 * MS;
                time += 4 * MS;
                // Woken late, as one is.
                time += pause(used, time, quota) + MS / 4;
            }
            let part = (used - FREELY).as_secs_f64() / (time - FREELY).as_secs_f64();
            assert!((0.97 * quota..quota).contains(&part), "{quota}: {part}");
        }
    }

    #[test]
    fn who_was_kept_waiting_does_not_rest() {
        assert_eq!(
            pause(FREELY + 4 * MS, FREELY + 20 * MS, 0.5),
            Duration::ZERO
        );
    }

    #[test]
    fn absurd_quotas_make_no_endless_pause() {
        for quota in [0.0, -1.0, f64::MIN_POSITIVE, f64::NAN, f64::INFINITY] {
            assert!(pause(2 * FREELY, FREELY, quota) <= PAUSE_MAX);
        }
    }
}
