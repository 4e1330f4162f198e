//! The result of a scenario, as it is printed.

use anyhow::Result;
use serde::Serialize;

use super::memory_kind::{Backing, Page};
use super::width::Width;
use crate::cpu_time::CpuTime;
use crate::machine::Machine;
use crate::thp::Splits;

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub scenario: &'static str,
    pub machine: Machine,
    /// Of the CPU time wanted while measuring, the part that a host gave to others.
    pub stolen_share: Option<f64>,
    #[serde(skip)]
    began: Option<CpuTime>,
    pub size_bytes: u64,
    pub runs: usize,
    pub baseline: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<Page>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing: Option<Backing>,
    /// One block from malloc instead of a mapping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub malloc: Option<bool>,
    /// Ranges handed in, where there are many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranges: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mappings: Option<u64>,
    /// What a reader has to know about the figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
    pub rows: Vec<Row>,
}

impl Outcome {
    /// To be called before measuring, so that the machine's free memory is not that of a busy bench.
    pub fn new(
        scenario: &'static str,
        baseline: &'static str,
        size_bytes: u64,
        runs: usize,
    ) -> Result<Self> {
        Ok(Outcome {
            scenario,
            machine: Machine::read()?,
            stolen_share: None,
            began: CpuTime::read(),
            size_bytes,
            runs,
            baseline,
            page: None,
            backing: None,
            malloc: None,
            ranges: None,
            mappings: None,
            note: None,
            rows: Vec::new(),
        })
    }

    /// To be called when everything is measured.
    pub fn end(&mut self) {
        self.stolen_share = self
            .began
            .zip(CpuTime::read())
            .map(|(began, now)| now.stolen_share_since(began));
    }
}

/// A process that the kernel killed for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Killed {
    /// The one that wanted memory beside the variant's own.
    Other,
    Itself,
}

impl Killed {
    pub fn name(self) -> &'static str {
        match self {
            Killed::Other => "the other",
            Killed::Itself => "itself",
        }
    }
}

#[derive(Debug, Default, Serialize)]
pub struct Row {
    pub variant: &'static str,
    pub max_active: Option<Width>,
    /// Threads of a variant that is not ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Where the rows of a scenario differ in size or pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<Page>,
    /// The size of the folios that the memory was made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folio_bytes: Option<u64>,
    /// Where the rows of a scenario differ in what is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<&'static str>,
    /// Who else wants memory meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure: Option<&'static str>,
    pub median_s: f64,
    pub min_s: f64,
    pub max_s: f64,
    /// `None` where no memory was given back.
    pub gib_per_s: Option<f64>,
    pub ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teardown_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscalls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records_per_s: Option<f64>,
    /// What a process holds, and the part of it that the kernel may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaimable_bytes: Option<u64>,
    /// Page faults of one unit of work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<f64>,
    /// Of one unit of work: how much was gone and had to be made anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purged: Option<f64>,
    /// Whom the kernel killed for want of memory, in any run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed: Option<Killed>,
    /// What went out to swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swapped_bytes: Option<u64>,
    /// Splits of huge pages during all samples of the row, and their kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub splits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split_counters: Option<Splits>,
    /// Calls that one sample consists of; the times are those of one call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_sample: Option<usize>,
    /// The time of every run, in order.
    pub times_s: Vec<f64>,
}

impl Row {
    /// `mmzap ×2`, `mmzap auto`, `munmap`.
    pub fn label(&self) -> String {
        match self.max_active {
            Some(Width::Auto) => format!("{} auto", self.variant),
            Some(width) => format!("{} ×{width}", self.variant),
            None => self.variant.to_owned(),
        }
    }
}
