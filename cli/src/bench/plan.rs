//! `plan`: planning alone, without a kernel: 1 000 000 ranges in random order,
//! scattered over 100 000 mappings, are sorted, matched and cut into batches.

use anyhow::{Context, Result, bail};
use mmzap::gather::{self, Planned, Rules};
use mmzap::mapping::{Kind, Mapping};
use mmzap::{Operation, PageRange};
use serde::{Deserialize, Serialize};

use super::child::{Child, Task};
use super::memory_kind::Page;
use super::outcome::Outcome;
use super::progress::Progress;
use super::rounds::{Order, Rounds, Sample, Variant};
use super::settings::Settings;
use super::teardown::timed;
use crate::{memory, output, size, sys};

const MAPPINGS: usize = 100_000;
const RANGES_PER_MAPPING: usize = 10;
const RANGES: usize = MAPPINGS * RANGES_PER_MAPPING;
const RANGE: usize = 16 << 10;
const STRIDE: usize = 2 * RANGE;
const BYTES: usize = RANGES * RANGE;

/// An address as programs have them; any would do.
const FIRST: usize = 0x7000_0000_0000;

/// Room for the inputs and a plan far larger than the goal of 64 MiB.
const NEEDED: u64 = 256 * size::MIB;

const DEFAULT_RUNS: usize = 5;

/// What the child measured.
#[derive(Serialize, Deserialize)]
struct Measured {
    seconds: f64,
    peak_bytes: u64,
}

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    memory::require("plan", NEEDED)?;
    let runs = settings.runs_or(DEFAULT_RUNS);
    let mut outcome = Outcome::new("plan", "mmzap", BYTES as u64, runs)?;
    outcome.mappings = Some(MAPPINGS as u64);
    outcome.ranges = Some(RANGES as u64);
    outcome.note = Some(
        "nothing is freed: the time is that of planning alone, the ranges come in random order; \
         peak_bytes is the growth of the peak resident set of a process of its own, \
         inputs included",
    );
    let variants = vec![Variant::new(
        "mmzap",
        Some(mmzap::default_max_active().into()),
        || {
            let mut child = Child::start(Task::Plan, 1, Page::Small)?;
            let text = child.read_to_end()?;
            let status = child.wait()?;
            if !status.success() {
                bail!("the planning process ended with {status}");
            }
            let measured: Measured =
                serde_json::from_str(&text).context("the planning process printed no figures")?;
            Ok(Sample {
                peak_bytes: Some(measured.peak_bytes),
                ..Sample::of(measured.seconds)
            })
        },
    )];
    let rounds = Rounds::measure(variants, runs, Order::Same, progress)?;
    outcome.rows = rounds.rows(BYTES as u64, |sample| sample.seconds);
    for row in &mut outcome.rows {
        row.gib_per_s = None;
    }
    Ok(outcome)
}

/// The work itself, in a process of its own so that the peak is only its own.
pub fn in_child() -> Result<()> {
    let before = memory::of_this_process("VmRSS")?;
    let page_bytes = sys::page_size();
    let mappings = (0..MAPPINGS)
        .map(|index| mapping(index, page_bytes))
        .collect::<Option<Vec<_>>>()
        .context("the pages of this system are larger than the ranges of this scenario")?;
    let mut ranges = mappings
        .iter()
        .flat_map(|mapping| {
            (0..RANGES_PER_MAPPING).map(|index| {
                PageRange::new(mapping.range.start() + index * STRIDE, RANGE, page_bytes)
            })
        })
        .collect::<Option<Vec<_>>>()
        .context("the ranges are not whole pages")?;
    shuffle(&mut ranges);
    let rules = Rules::for_job(
        Operation::Discard,
        BYTES,
        RANGES,
        mmzap::default_max_active(),
        true,
    );
    let (planned, seconds) = timed(|| {
        gather::plan(ranges, &mappings, rules)
            .map(|step| match step {
                Planned::Batch(batch) => batch.bytes(),
                Planned::Skip(..) => 0,
            })
            .sum::<usize>()
    });
    if planned != BYTES {
        bail!("{planned} bytes were planned of {BYTES}");
    }
    let peak_bytes = memory::of_this_process("VmHWM")?.saturating_sub(before);
    output::print_json(&Measured {
        seconds,
        peak_bytes,
    })
}

fn mapping(index: usize, page_bytes: usize) -> Option<Mapping> {
    const LEN: usize = RANGES_PER_MAPPING * STRIDE;
    // A gap after each, as between mappings that the kernel cannot join.
    let start = FIRST + index * (LEN + STRIDE);
    Some(Mapping {
        range: PageRange::new(start, LEN, page_bytes)?,
        kind: Kind::Anonymous,
        page_bytes,
        writable: true,
    })
}

/// Fisher and Yates, with a xorshift generator: the same order in every run.
fn shuffle<T>(items: &mut [T]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for end in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(end, (state % (end as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<u32> = (0..1000).collect();
        shuffle(&mut items);
        assert!(items.windows(2).any(|pair| pair[0] > pair[1]));
        items.sort_unstable();
        assert!(items.into_iter().eq(0..1000));
    }
}
