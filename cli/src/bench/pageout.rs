//! `pageout`: memory written out to swap at once.

use anyhow::{Result, bail};
use mmzap::Operation;

use super::memory_kind::Page;
use super::outcome::Outcome;
use super::progress::Progress;
use super::reclaim::Reclaim;
use super::rounds::Sample;
use super::settings::Settings;
use crate::memory::Meminfo;
use crate::restore::Restore;
use crate::smaps::Usage;
use crate::sys::{Advice, HUGE_PAGE};
use crate::unavailable::Unavailable;
use crate::{memory, size, zram};

const DEFAULT_SIZE: u64 = 2 * size::GIB;
const DEFAULT_RUNS: usize = 5;

/// The size of the published experiment. Less is over before a second thread
/// makes a difference.
const LEAST: u64 = 512 * size::MIB;

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    if let Some(bytes) = settings.given_size()
        && bytes < LEAST
    {
        return Err(Unavailable::because(format!(
            "pageout of {} is too little to compare: give a --size of at least {}",
            size::show(bytes),
            size::show(LEAST)
        )));
    }
    let restore = Restore::begin()?;
    if !settings.zram {
        // Without any swap, its size does not matter.
        require_swap(1)?;
    }
    let len = settings.memory_size("pageout", DEFAULT_SIZE, HUGE_PAGE as u64)?;
    let bytes = len as u64;
    if bytes < LEAST {
        return Err(Unavailable::because(format!(
            "pageout needs {} of memory, and half of what is free is only {}",
            size::show(LEAST),
            size::show(bytes)
        )));
    }
    if settings.zram {
        set_up_zram("pageout", bytes, &restore)?;
    }
    require_swap(bytes)?;
    let runs = settings.runs_or(DEFAULT_RUNS);
    let mut outcome = Outcome::new("pageout", "madvise", bytes, runs)?;
    outcome.page = Some(Page::Small);
    outcome.note = Some(
        "each sample is written anew and, after the clock has stopped, read back and compared; \
         naive is a rayon pool over chunks of 2 MiB",
    );
    let work = Reclaim {
        operation: Operation::PageOut,
        advice: Advice::PageOut,
        prove: went_out,
    };
    outcome.rows = work.measure(len, runs, settings, progress)?;
    restore.finish()?;
    Ok(outcome)
}

/// Swap of compressed memory with room for `bytes`, checked to fit beside them.
pub fn set_up_zram(scenario: &str, bytes: u64, restore: &Restore) -> Result<()> {
    // The contents shrink to less than a third; half leaves room for the device's own.
    memory::require(
        &format!("{scenario} of {} with --zram", size::show(bytes)),
        bytes + bytes / 2 + memory::page_tables(bytes),
    )?;
    zram::swap(zram::room_for(bytes), restore)
}

fn require_swap(bytes: u64) -> Result<()> {
    let meminfo = Meminfo::read()?;
    let free = meminfo.bytes("SwapFree").unwrap_or(0);
    if meminfo.bytes("SwapTotal").unwrap_or(0) == 0 {
        return Err(Unavailable::because(
            "pageout needs swap, and this machine has none: \
             --zram sets up a swap device in memory and removes it afterwards (as root)",
        ));
    }
    if free < bytes {
        return Err(Unavailable::because(format!(
            "pageout of {} does not fit into swap, of which {} is free: \
             --zram sets up a swap device in memory and removes it afterwards (as root)",
            size::show(bytes),
            size::show(free)
        )));
    }
    Ok(())
}

/// The kernel says yes also where it leaves everything as it was.
fn went_out(usage: &Usage, bytes: u64, sample: Sample) -> Result<Sample> {
    if usage.swapped < bytes / 10 * 9 {
        bail!(
            "only {} of {} went out to swap (see memory.swap.max of the control group)",
            size::show(usage.swapped),
            size::show(bytes)
        );
    }
    Ok(Sample {
        swapped_bytes: Some(usage.swapped),
        ..sample
    })
}
