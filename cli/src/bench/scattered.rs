//! `scattered`: many small ranges, every second one of a mapping, as an allocator
//! or a cache gives them back.

use anyhow::{Context, Result, bail};
use mmzap::{Operation, Teardown};

use super::memory_kind::Page;
use super::outcome::Outcome;
use super::progress::Progress;
use super::region;
use super::rounds::{Order, Rounds, Sample, Variant};
use super::settings::Settings;
use super::teardown::{self, timed};
use crate::sys::Mapping;
use crate::{size, smaps};

const RANGE: usize = 16 << 10;
const STRIDE: usize = 2 * RANGE;

/// 65 536 ranges.
const DEFAULT_SIZE: u64 = 2 * size::GIB;
const DEFAULT_RUNS: usize = 5;

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    let len = settings.memory_size("scattered", DEFAULT_SIZE, STRIDE as u64)?;
    let runs = settings.runs_or(DEFAULT_RUNS);
    let ranges = len / STRIDE;
    let bytes = (ranges * RANGE) as u64;
    teardown::probe_first();
    let mut outcome = Outcome::new("scattered", "madvise", len as u64, runs)?;
    outcome.page = Some(Page::Small);
    outcome.ranges = Some(ranges as u64);
    outcome.note = Some(
        "size_bytes is the mapping; half of it, every second 16 KiB, is given back, \
         and gib_per_s counts that half",
    );
    let mut variants = vec![Variant::new("madvise", None, move || {
        let mapping = region::populated(len, Page::Small)?;
        let (done, seconds) =
            timed(|| (0..ranges).try_for_each(|index| mapping.discard(index * STRIDE, RANGE)));
        done.context("madvise failed")?;
        verify(&mapping, bytes)?;
        Ok(Sample::of(seconds))
    })];
    for &width in &settings.max_active {
        variants.push(Variant::new("mmzap", Some(width), move || {
            let mapping = region::populated(len, Page::Small)?;
            let (start, _) = mapping.as_raw();
            let (report, seconds) = timed(|| {
                // SAFETY: ranges inside memory of ours whose contents do not matter.
                unsafe {
                    width.limit(Teardown::new(Operation::Discard)).run_raw(
                        (0..ranges).map(|index| (start.wrapping_add(index * STRIDE), RANGE)),
                    )
                }
            });
            let sample = teardown::sample(report, seconds, bytes)?;
            verify(&mapping, bytes)?;
            Ok(sample)
        }));
    }
    let rounds = Rounds::measure(variants, runs, Order::Same, progress)?;
    outcome.rows = rounds.rows(bytes, |sample| sample.seconds);
    Ok(outcome)
}

/// Exactly the ranges are gone, and their neighbours are still there.
fn verify(mapping: &Mapping, discarded: u64) -> Result<()> {
    let usage = smaps::usage(mapping.start(), mapping.start() + mapping.len())?;
    let kept = mapping.len() as u64 - discarded;
    if usage.resident != kept {
        bail!(
            "{} are resident after discarding where {} should be",
            size::show(usage.resident),
            size::show(kept)
        );
    }
    Ok(())
}
