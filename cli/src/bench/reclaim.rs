//! What the scenarios `pageout` and `cold` share: the whole of a mapping handed
//! to the kernel's reclaim, by one call, by a plain parallel loop, and by mmzap.

use anyhow::{Context, Result};
use mmzap::Operation;

use super::memory_kind::Page;
use super::outcome::Row;
use super::progress::Progress;
use super::region;
use super::rounds::{Order, Rounds, Sample, Variant};
use super::settings::Settings;
use super::teardown::{self, timed};
use super::{contents, naive};
use crate::smaps::{self, Usage};
use crate::sys::{Advice, Mapping};

/// Threads of the plain parallel loop. Paging out interrupts every other thread
/// of the process all the time, so that two show already what more do.
const NAIVE_THREADS: usize = 2;

/// One operation and the proof that it happened.
#[derive(Clone, Copy)]
pub struct Reclaim {
    pub operation: Operation,
    pub advice: Advice,
    /// Looks at smaps after a sample of so many bytes.
    pub prove: fn(&Usage, u64, Sample) -> Result<Sample>,
}

impl Reclaim {
    pub fn measure(
        self,
        len: usize,
        runs: usize,
        settings: &Settings,
        progress: &Progress,
    ) -> Result<Vec<Row>> {
        teardown::probe_first();
        let pool = &naive::pool(NAIVE_THREADS)?;
        let mut variants = vec![
            Variant::new("madvise", None, move || {
                self.sample(len, |mapping| teardown::plain_advise(mapping, self.advice))
            }),
            Variant::new("naive", None, move || {
                self.sample(len, |mapping| {
                    // A program that uses rayon has its threads running already.
                    pool.broadcast(|_| ());
                    let (done, seconds) = timed(|| {
                        pool.install(|| {
                            let (start, len) = mapping.as_raw();
                            naive::in_chunks(start, len, self.advice)
                        })
                    });
                    done.context("madvise failed")?;
                    Ok(Sample::of(seconds))
                })
            }),
        ];
        for &width in &settings.max_active {
            variants.push(Variant::new("mmzap", Some(width), move || {
                self.sample(len, |mapping| {
                    teardown::advise(mapping, self.operation, width)
                })
            }));
        }
        // What ran before leaves its marks on the swap device.
        let rounds = Rounds::measure(variants, runs, Order::Alternating, progress)?;
        let mut rows = rounds.rows(len as u64, |sample| sample.seconds);
        for row in &mut rows {
            row.threads = (row.variant == "naive").then_some(NAIVE_THREADS);
        }
        Ok(rows)
    }

    /// Fills memory, lets `work` be timed, and proves what happened and that the
    /// contents are still there.
    fn sample(self, len: usize, work: impl FnOnce(&Mapping) -> Result<Sample>) -> Result<Sample> {
        let mapping = region::populated(len, Page::Small)?;
        contents::fill(&mapping)?;
        let sample = work(&mapping)?;
        let usage = smaps::usage(mapping.start(), mapping.start() + len)?;
        let sample = (self.prove)(&usage, len as u64, sample)?;
        contents::check(&mapping)?;
        Ok(sample)
    }
}
