//! `space`: far more address space than there is memory. Every page is mapped,
//! but to the kernel's page of zeros or to one small file in memory, so only the
//! page tables take room: 640 MiB for 320 GiB.

use anyhow::{Context, Result, bail};

use super::memory_kind::{Backing, Page};
use super::outcome::Outcome;
use super::progress::Progress;
use super::region::{self, populating_threads};
use super::rounds::{Order, Rounds, Variant};
use super::settings::Settings;
use super::teardown;
use crate::sys::{self, Access, HUGE_PAGE, Mapping};
use crate::{memory, size};

/// The size of the published experiment.
const DEFAULT_SIZE: u64 = 320 * size::GIB;
const DEFAULT_RUNS: usize = 5;

/// Memory behind `--backing memfd`.
const FILE_SIZE: u64 = size::GIB;

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    let len = settings.space_size(DEFAULT_SIZE, HUGE_PAGE as u64)?;
    let bytes = len as u64;
    let piece = FILE_SIZE.min(bytes) as usize;
    let backing = settings.backing;
    let behind = match backing {
        Backing::Zero => 0,
        Backing::Memfd => piece as u64,
    };
    memory::require(
        &format!("space of {}", size::show(bytes)),
        memory::page_tables(bytes).saturating_add(behind),
    )?;
    let runs = settings.runs_or(DEFAULT_RUNS);
    teardown::probe_first();
    let mut outcome = Outcome::new("space", "munmap", bytes, runs)?;
    outcome.page = Some(Page::Small);
    outcome.backing = Some(backing);
    let mut variants = vec![Variant::new("munmap", None, move || {
        teardown::plain_unmap(populated(len, piece, backing)?)
    })];
    for &width in &settings.max_active {
        variants.push(Variant::new("mmzap", Some(width), move || {
            teardown::unmap(populated(len, piece, backing)?, width)
        }));
    }
    let rounds = Rounds::measure(variants, runs, Order::Same, progress)?;
    outcome.rows = rounds.rows(bytes, |sample| sample.seconds);
    Ok(outcome)
}

fn populated(len: usize, piece: usize, backing: Backing) -> Result<Mapping> {
    let before = memory::of_this_process("VmPTE")?;
    let mapping = match backing {
        Backing::Zero => region::reserved(len, Page::Small)?,
        Backing::Memfd => tiled(len, piece)?,
    };
    mapping
        .populate(Access::Read, populating_threads())
        .context("cannot populate the address space")?;
    // Pages of zeros count as nobody's memory, but their page tables do.
    let grown = memory::of_this_process("VmPTE")?.saturating_sub(before);
    if grown < memory::page_tables(len as u64) / 100 * 99 {
        bail!(
            "page tables grew by {} where {} of 4 KiB pages need {}: \
             the space is not populated as it should be",
            size::show(grown),
            size::show(len as u64),
            size::show(memory::page_tables(len as u64))
        );
    }
    Ok(mapping)
}

fn tiled(len: usize, piece: usize) -> Result<Mapping> {
    let file = sys::memory_file(piece).context("cannot make a file in memory (memfd_create)")?;
    let once = Mapping::tiled(&file, piece, piece).context("cannot map the file in memory")?;
    once.huge_pages(false)?;
    once.populate(Access::Write, populating_threads())
        .context("cannot fill the file in memory")?;
    let mapping = Mapping::tiled(&file, piece, len).with_context(|| {
        format!(
            "cannot map {} in pieces of {} (see `ulimit -v` and /proc/sys/vm/max_map_count)",
            size::show(len as u64),
            size::show(piece as u64)
        )
    })?;
    mapping.huge_pages(false)?;
    Ok(mapping)
}
