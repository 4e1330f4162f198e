//! `bystander`: what another thread of the process notices while memory is given
//! back. It maps, touches and unmaps 64 KiB all the time; every cycle is timed.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{io, thread};

use anyhow::{Context, Result, anyhow};
use mmzap::{Operation, Teardown};

use super::outcome::Outcome;
use super::progress::Progress;
use super::region;
use super::rounds::{Order, Rounds, Sample, Variant, percentile};
use super::settings::Settings;
use super::teardown::{self, timed};
use crate::sys::{self, HUGE_PAGE};
use crate::{size, smaps};

const CYCLE_BYTES: usize = 64 << 10;

/// Cycles before the record begins: caches and the allocator of page tables are warm then.
const WARM_UP: usize = 500;

/// Cycles that are kept, 32 MiB of them. At 5 µs a cycle that lasts 20 s; later
/// cycles count for the worst only.
const KEPT: usize = 4 << 20;

const DEFAULT_SIZE: u64 = 8 * size::GIB;
const DEFAULT_RUNS: usize = 5;

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    settings.page.check()?;
    let len = settings.memory_size("bystander", DEFAULT_SIZE, HUGE_PAGE as u64)?;
    let runs = settings.runs_or(DEFAULT_RUNS);
    let page = settings.page;
    teardown::probe_first();
    let mut outcome = Outcome::new("bystander", "munmap", len as u64, runs)?;
    outcome.page = Some(page);
    outcome.note = Some(
        "p50_s to worst_s are one bystander cycle (map, touch and unmap 64 KiB) and ratio is \
         that of worst_s; median_s, gib_per_s and teardown_ratio are the teardown itself",
    );
    let plain_seconds = Cell::new(0.0);
    let mut variants = vec![
        Variant::new("munmap", None, || {
            let mapping = region::populated(len, page)?;
            let start = mapping.start();
            let ((done, seconds), cycles) = beside(|| timed(|| mapping.unmap()))?;
            done.context("munmap failed")?;
            smaps::verify_unmapped(start, len)?;
            plain_seconds.set(seconds);
            Ok(cycles.describe(Sample::of(seconds)))
        }),
        Variant::new("idle", None, || {
            let pause = Duration::from_secs_f64(plain_seconds.get());
            let (((), seconds), cycles) = beside(|| timed(|| thread::sleep(pause)))?;
            Ok(cycles.describe(Sample::of(seconds)))
        }),
    ];
    for &width in &settings.max_active {
        variants.push(Variant::new("mmzap", Some(width), move || {
            let (start, len) = region::populated(len, page)?.into_raw();
            let ((report, seconds), cycles) = beside(|| {
                timed(|| {
                    // SAFETY: the mapping was just taken over, nothing refers to it.
                    unsafe {
                        width
                            .limit(Teardown::new(Operation::Unmap))
                            .run_raw([(start, len)])
                    }
                })
            })?;
            let sample = teardown::sample(report, seconds, len as u64)?;
            smaps::verify_unmapped(start as usize, len)?;
            Ok(cycles.describe(sample))
        }));
    }
    let rounds = Rounds::measure(variants, runs, Order::Same, progress)?;
    outcome.rows = rounds.rows(len as u64, |sample| {
        sample.worst_s.unwrap_or(sample.seconds)
    });
    for (row, ratio) in outcome.rows.iter_mut().zip(rounds.time_ratios()) {
        if row.variant == "idle" {
            row.gib_per_s = None;
        } else {
            row.teardown_ratio = Some(ratio);
        }
    }
    Ok(outcome)
}

/// Runs `work` while the bystander goes round, and returns what both found.
fn beside<T>(work: impl FnOnce() -> T) -> Result<(T, Cycles)> {
    let stop = AtomicBool::new(false);
    let (ready, awaited) = mpsc::channel();
    thread::scope(|scope| {
        let stop = &stop;
        let bystander = thread::Builder::new()
            .spawn_scoped(scope, move || go_round(&ready, stop))
            .context("cannot start the bystander thread")?;
        // The channel closes if the bystander fails early; then there is nothing to measure.
        let done = awaited.recv().ok().map(|()| work());
        stop.store(true, Ordering::Relaxed);
        let cycles = bystander
            .join()
            .map_err(|_| anyhow!("the bystander thread failed"))?
            .context("the bystander could not map memory")?;
        let done = done.context("the bystander thread did not start")?;
        Ok((done, cycles))
    })
}

/// Cycles until told to stop. The one under way when the work ends is counted:
/// it is the one that waited.
fn go_round(ready: &mpsc::Sender<()>, stop: &AtomicBool) -> io::Result<Cycles> {
    // Written once, so that recording takes no page fault.
    let mut kept = vec![1_u64; KEPT];
    kept.clear();
    let mut worst = 0;
    for _ in 0..WARM_UP {
        sys::map_touch_unmap(CYCLE_BYTES)?;
    }
    // A receiver that is gone sets `stop` as well.
    let _ = ready.send(());
    loop {
        let start = Instant::now();
        sys::map_touch_unmap(CYCLE_BYTES)?;
        let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        worst = worst.max(nanoseconds);
        if kept.len() < KEPT {
            kept.push(nanoseconds);
        }
        // Asked last: a thread that never got a turn while the work ran waited
        // at least for this cycle.
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(Cycles { kept, worst })
}

/// How long the bystander's cycles took, in nanoseconds.
struct Cycles {
    kept: Vec<u64>,
    worst: u64,
}

impl Cycles {
    fn describe(mut self, sample: Sample) -> Sample {
        self.kept.sort_unstable();
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        let at = |share| percentile(&self.kept, share).map(seconds);
        Sample {
            p50_s: at(0.5),
            p99_s: at(0.99),
            p999_s: at(0.999),
            worst_s: Some(seconds(self.worst)),
            ..sample
        }
    }
}
