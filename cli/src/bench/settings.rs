//! What a scenario is asked to do, with the defaults filled in.

use anyhow::Result;

use super::Args;
use super::memory_kind::{Backing, Page};
use super::width::Width;
use crate::{memory, output, size};

pub struct Settings {
    size: Option<u64>,
    runs: Option<usize>,
    pub max_active: Vec<Width>,
    pub page: Page,
    pub malloc: bool,
    pub ceiling: bool,
    pub backing: Backing,
    pub zram: bool,
    pub threads: Vec<usize>,
    pub seconds: Option<f64>,
    pub chunks: Option<usize>,
}

impl Settings {
    pub fn new(args: &Args) -> Self {
        let mut max_active = args.max_active.clone();
        if max_active.is_empty() {
            max_active = Width::default_list();
        }
        let mut seen = Vec::new();
        max_active.retain(|width| {
            let new = !seen.contains(width);
            seen.push(*width);
            new
        });
        Settings {
            size: args.size,
            runs: args.runs.map(|runs| runs as usize),
            max_active,
            page: args.page,
            malloc: args.malloc,
            ceiling: args.ceiling,
            backing: args.backing,
            zram: args.zram,
            threads: args.threads.clone(),
            seconds: args.seconds,
            chunks: args.chunks.map(|chunks| chunks as usize),
        }
    }

    pub fn runs_or(&self, default: usize) -> usize {
        self.runs.unwrap_or(default)
    }

    /// The size as given, if it was.
    pub fn given_size(&self) -> Option<u64> {
        self.size
    }

    /// Real memory: the size as given, else `wanted` or half of the free memory.
    /// Either way rounded up to a multiple of `unit`, and refused if it does not fit.
    pub fn memory_size(&self, scenario: &str, wanted: u64, unit: u64) -> Result<usize> {
        let bytes = match self.size {
            Some(bytes) => bytes,
            None => {
                let bytes = memory::default_size(wanted)?.max(unit);
                output::complain(&format!(
                    "{scenario}: no --size given, measuring {}",
                    size::show(bytes)
                ));
                bytes
            }
        };
        let bytes = round_up(bytes, unit)?;
        memory::require(
            &format!("{scenario} of {}", size::show(bytes)),
            bytes.saturating_add(memory::page_tables(bytes)),
        )?;
        Ok(usize::try_from(bytes)?)
    }

    /// Address space: the size as given, else `wanted`, rounded up to a multiple of `unit`.
    pub fn space_size(&self, wanted: u64, unit: u64) -> Result<usize> {
        Ok(usize::try_from(round_up(
            self.size.unwrap_or(wanted),
            unit,
        )?)?)
    }
}

fn round_up(bytes: u64, unit: u64) -> Result<u64> {
    bytes
        .checked_next_multiple_of(unit)
        .ok_or_else(|| anyhow::anyhow!("a size of {bytes} bytes is larger than any address space"))
}
