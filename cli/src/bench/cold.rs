//! `cold`: memory made the first candidate for reclaim. It stays where it is, so
//! no swap is needed.

use anyhow::{Result, bail};
use mmzap::Operation;

use super::memory_kind::Page;
use super::outcome::Outcome;
use super::pageout;
use super::progress::Progress;
use super::reclaim::Reclaim;
use super::rounds::Sample;
use super::settings::Settings;
use crate::restore::Restore;
use crate::size;
use crate::smaps::Usage;
use crate::sys::{Advice, HUGE_PAGE};

const DEFAULT_SIZE: u64 = 2 * size::GIB;
const DEFAULT_RUNS: usize = 5;

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    let restore = Restore::begin()?;
    let len = settings.memory_size("cold", DEFAULT_SIZE, HUGE_PAGE as u64)?;
    let bytes = len as u64;
    if settings.zram {
        pageout::set_up_zram("cold", bytes, &restore)?;
    }
    let runs = settings.runs_or(DEFAULT_RUNS);
    let mut outcome = Outcome::new("cold", "madvise", bytes, runs)?;
    outcome.page = Some(Page::Small);
    outcome.note = Some(
        "nothing goes out to swap and no memory becomes free: gib_per_s is the memory marked; \
         naive is a rayon pool over chunks of 2 MiB",
    );
    let work = Reclaim {
        operation: Operation::Cold,
        advice: Advice::Cold,
        prove: grew_cold,
    };
    outcome.rows = work.measure(len, runs, settings, progress)?;
    restore.finish()?;
    Ok(outcome)
}

/// What can be seen of it: the kernel has forgotten that the pages were touched.
fn grew_cold(usage: &Usage, bytes: u64, sample: Sample) -> Result<Sample> {
    if usage.referenced > bytes / 10 {
        bail!(
            "{} of {} still count as touched",
            size::show(usage.referenced),
            size::show(bytes)
        );
    }
    Ok(sample)
}
