//! `ebizzy`: allocators under a load that allocates and frees 512 KiB all the
//! time, with what they keep from the rest of the machine.

mod allocators;
mod workload;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::child::{Child, Task};
use super::outcome::{Outcome, Row};
use super::progress::Progress;
use super::rounds::{Order, Rounds, Sample, Variant};
use super::settings::Settings;
use crate::unavailable::Unavailable;
use crate::{memory, output};
use allocators::Allocator;
use workload::{CHUNK_BYTES, Measured};

/// As the published experiment.
const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const CHUNKS: usize = 512;
const SECONDS: f64 = 10.0;
const DEFAULT_RUNS: usize = 1;

/// What one process does.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    allocator: Allocator,
    threads: usize,
    chunks: usize,
    seconds: f64,
}

/// Why some of them cannot be measured.
#[cfg_attr(feature = "allocators", allow(dead_code))]
fn unavailable() -> anyhow::Error {
    Unavailable::because(
        "ebizzy compares with jemalloc and mimalloc, which this program was built without: \
         build it with --features allocators",
    )
}

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    if !cfg!(feature = "allocators") {
        return Err(unavailable());
    }
    let chunks = settings.chunks.unwrap_or(CHUNKS);
    let seconds = settings.seconds.unwrap_or(SECONDS);
    let threads = match &settings.threads[..] {
        [] => &THREADS[..],
        given => given,
    };
    let most = threads.iter().copied().max().unwrap_or(1);
    // An allocator can keep as much again for each thread.
    let bytes = (chunks + 4 * most) as u64 * CHUNK_BYTES as u64;
    memory::require("ebizzy", bytes)?;
    let runs = settings.runs_or(DEFAULT_RUNS);
    let mut outcome = Outcome::new("ebizzy", "purge", (chunks * CHUNK_BYTES) as u64, runs)?;
    outcome.note = Some(
        "a record is a block of 512 KiB allocated, copied into, searched and freed; times are \
         those of one record, and faults its page faults (128 pages in a block, so that an \
         allocator that purges at once has about 128); rss is what the process holds beyond its \
         chunks 10 ms after the last free, and reclaimable the part of it that the kernel may \
         take at any moment",
    );
    for &threads in threads {
        let variants = allocators::ALL
            .into_iter()
            .map(|allocator| {
                let job = Job {
                    allocator,
                    threads,
                    chunks,
                    seconds,
                };
                Variant::new(allocator.name(), None, move || sample(&job))
            })
            .collect();
        let rounds = Rounds::measure(variants, runs, Order::Same, progress)
            .with_context(|| format!("{threads} threads"))?;
        let rows = rounds.rows(0, |sample| sample.seconds);
        outcome.rows.extend(rows.into_iter().map(|row| Row {
            threads: Some(threads),
            gib_per_s: None,
            records_per_s: Some(1.0 / row.median_s),
            ..row
        }));
    }
    if outcome.rows.iter().any(|row| row.records_per_s < Some(1.0)) {
        output::complain("ebizzy: less than a record a second; give more --seconds");
    }
    Ok(outcome)
}

fn sample(job: &Job) -> Result<Sample> {
    let text = serde_json::to_string(job)?;
    let word = job.allocator.environment(job.threads);
    let word = word.as_ref().map(|(name, value)| (*name, value.as_str()));
    let mut child = Child::start_job(Task::Ebizzy, &text, word)?;
    let text = child.read_to_end()?;
    let status = child.wait()?;
    if !status.success() {
        bail!("the process that did the work ended with {status}");
    }
    let measured: Measured = serde_json::from_str(&text).context("it printed no figures")?;
    if measured.records == 0 {
        bail!("not one record was read; give more --seconds");
    }
    Ok(Sample {
        rss_bytes: Some(measured.rss_bytes),
        reclaimable_bytes: Some(measured.reclaimable_bytes),
        faults: Some(measured.faults as f64 / measured.records as f64),
        ..Sample::of(measured.seconds / measured.records as f64)
    })
}

/// The work, in a process of its own, so that its memory is its own.
pub fn in_child(job: &str) -> Result<()> {
    let job: Job = serde_json::from_str(job).context("not a job")?;
    output::print_json(&job.allocator.run(&job)?)
}
