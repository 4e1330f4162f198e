//! `volatile`: memory that the kernel may take, against giving it back at once
//! and against keeping it, without and under pressure.

mod pins;
mod work;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::child::{Child, Task};
use super::outcome::{Killed, Outcome, Row};
use super::progress::Progress;
use super::rounds::{Order, Rounds, Sample, Variant};
use super::settings::Settings;
use crate::memory_group::MemoryGroup;
use crate::restore::Restore;
use crate::{memory, output, size, zram};
use work::Measured;

/// Blocks of the workload and of the cache, in bytes.
pub const BLOCK_BYTES: usize = 512 << 10;

/// Of the workload; the cache has as many.
const CHUNKS: usize = 256;
const THREADS: usize = 2;
const SECONDS: f64 = 5.0;
const DEFAULT_RUNS: usize = 1;

/// Free blocks of a thread.
const SPARE_BLOCKS: usize = 32;

/// How long the other process holds what it wanted before it lets it go and
/// wants it again.
const HELD: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Copy a block, search it, free it.
    Ebizzy,
    /// Read a block of a cache, or make it anew.
    Cache,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Given back at once, and filled in again.
    Dontneed,
    /// Kept.
    Plain,
    /// Kept, with swap for what does not fit.
    Swap,
    Volatile,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Dontneed => "dontneed",
            Way::Plain => "plain",
            Way::Swap => "swap",
            Way::Volatile => "volatile",
        }
    }
}

/// What one process does.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    work: Work,
    way: Way,
    threads: usize,
    chunks: usize,
    seconds: f64,
    /// Where to join a control group.
    door: Option<String>,
}

/// What the process does that wants memory meanwhile.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hog {
    door: String,
    bytes: usize,
}

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    let chunks = settings.chunks.unwrap_or(CHUNKS);
    let threads = match settings.threads[..] {
        [] => THREADS,
        [one] => one,
        _ => bail!("volatile runs with one number of threads: give --threads N"),
    };
    let seconds = settings.seconds.unwrap_or(SECONDS);
    let runs = settings.runs_or(DEFAULT_RUNS);
    let solid = (chunks * BLOCK_BYTES) as u64;
    let spare = (threads * SPARE_BLOCKS * BLOCK_BYTES) as u64;
    memory::require("volatile", 2 * (solid + spare))?;
    let restore = Restore::begin()?;
    if settings.zram {
        zram::swap(zram::room_for(solid + spare), &restore)?;
    }
    let group = MemoryGroup::make(&restore)?;
    let mut outcome = Outcome::new("volatile", "dontneed", solid, runs)?;
    outcome.note = Some(
        "ebizzy: a record is a free block of 512 KiB made solid, copied into, searched and made \
         free; cache: a record is a block of 512 KiB read from a cache or, where it is gone, made \
         anew (dontneed keeps none); background: in a control group that has room for half of \
         what is free or cached, beside a process that wants the other half all the time, and \
         a CPU; swap is \
         measured with --zram; pin: one solid-and-back of what was kept, per range, against \
         discarding and refilling it, and against a bare loop over its pages (an exchange each \
         way and one call); by page is a pin for each; killed is whom the kernel killed for want of memory, and where that is \
         the other process, there was no pressure from then on",
    );
    for work in [Work::Ebizzy, Work::Cache] {
        for load in [Load::None, Load::Background] {
            let with_swap = settings.zram;
            let rows = measure(work, load, &group, with_swap, runs, progress, |way| Job {
                work,
                way,
                threads,
                chunks,
                seconds,
                door: None,
            })?;
            outcome.rows.extend(rows);
        }
    }
    outcome.rows.extend(pins::measure(runs, progress)?);
    restore.finish()?;
    Ok(outcome)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    None,
    Background,
}

fn measure(
    work: Work,
    load: Load,
    group: &MemoryGroup,
    swap: bool,
    runs: usize,
    progress: &Progress,
    job: impl Fn(Way) -> Job,
) -> Result<Vec<Row>> {
    let ways = [Way::Dontneed, Way::Plain, Way::Swap, Way::Volatile];
    let variants = ways
        .into_iter()
        // Without pressure nothing is swapped.
        .filter(|way| *way != Way::Swap || (swap && load == Load::Background))
        .map(|way| {
            let job = job(way);
            Variant::new(way.name(), None, move || sample(&job, load, group))
        })
        .collect();
    let (name, load) = match (work, load) {
        (Work::Ebizzy, Load::None) => ("ebizzy", "none"),
        (Work::Ebizzy, Load::Background) => ("ebizzy", "background"),
        (Work::Cache, Load::None) => ("cache", "none"),
        (Work::Cache, Load::Background) => ("cache", "background"),
    };
    let rounds = Rounds::measure(variants, runs, Order::Same, progress)
        .with_context(|| format!("{name}, pressure: {load}"))?;
    let rows = rounds.rows(0, |sample| sample.seconds);
    Ok(rows
        .into_iter()
        .map(|row| Row {
            operation: Some(name),
            pressure: Some(load),
            gib_per_s: None,
            records_per_s: Some(1.0 / row.median_s),
            ..row
        })
        .collect())
}

fn sample(job: &Job, load: Load, group: &MemoryGroup) -> Result<Sample> {
    if load == Load::None {
        return measured(job)?.context("the process that did the work was killed");
    }
    let spare = match job.work {
        Work::Ebizzy => job.threads * SPARE_BLOCKS,
        Work::Cache => job.chunks,
    };
    let solid = match job.work {
        Work::Ebizzy => job.chunks,
        Work::Cache => 0,
    };
    let free_bytes = spare * BLOCK_BYTES;
    // Room for the programs themselves and their page tables, and for the hog to
    // come as far as its wish even where nothing can be taken.
    let limit = (solid * BLOCK_BYTES + free_bytes) as u64 + 24 * size::MIB;
    group.limit(limit, job.way == Way::Swap)?;
    let door = group.door().to_string_lossy().into_owned();
    let hog = Hog {
        door: door.clone(),
        bytes: free_bytes / 2 + (24 << 20),
    };
    let mut hog = Child::start_job(Task::Hog, &serde_json::to_string(&hog)?, None)?;
    let job = Job {
        door: Some(door),
        ..*job
    };
    let sample = measured(&job)?;
    let other = hog.has_ended()?;
    Ok(match sample {
        Some(sample) => Sample {
            killed: other.then_some(Killed::Other),
            ..sample
        },
        None => Sample {
            killed: Some(Killed::Itself),
            ..Sample::of(f64::INFINITY)
        },
    })
}

/// `None` if the process was killed.
fn measured(job: &Job) -> Result<Option<Sample>> {
    let text = serde_json::to_string(job)?;
    let mut child = Child::start_job(Task::Volatile, &text, None)?;
    let text = child.read_to_end()?;
    let status = child.wait()?;
    if std::os::unix::process::ExitStatusExt::signal(&status) == Some(9) {
        return Ok(None);
    }
    if !status.success() {
        bail!("the process that did the work ended with {status}");
    }
    let measured: Measured = serde_json::from_str(&text).context("it printed no figures")?;
    if measured.records == 0 {
        bail!("not one record was read; give more --seconds");
    }
    let records = measured.records as f64;
    Ok(Some(Sample {
        purged: Some(measured.purged as f64 / records),
        faults: Some(measured.faults as f64 / records),
        ..Sample::of(measured.seconds / records)
    }))
}

/// The work, in a process of its own.
pub fn in_child(job: &str) -> Result<()> {
    let job: Job = serde_json::from_str(job).context("not a job")?;
    output::print_json(&work::run(&job)?)
}

/// The process that wants memory: takes it, writes it, lets it go, and again.
pub fn hog_in_child(job: &str) -> Result<()> {
    let hog: Hog = serde_json::from_str(job).context("not a job")?;
    join(&hog.door)?;
    loop {
        let mut memory = vec![0_u8; hog.bytes];
        let began = Instant::now();
        while began.elapsed() < HELD {
            for page in memory.chunks_mut(4096) {
                page[0] = page[0].wrapping_add(1);
            }
            std::hint::black_box(&mut memory);
        }
    }
}

fn join(door: &str) -> Result<()> {
    std::fs::write(door, std::process::id().to_string())
        .with_context(|| format!("cannot join {door}"))
}
