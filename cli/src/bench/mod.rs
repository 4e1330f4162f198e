//! `mmzap bench`: what giving memory back costs, with mmzap and without.
//!
//! Each scenario is one file. It names its variants; `rounds` runs them
//! interleaved and sums up; `outcome` is what is printed.

pub mod child;

mod bystander;
mod exit;
mod free;
mod html;
mod memory_kind;
mod outcome;
mod plan;
mod progress;
mod published;
mod region;
mod rounds;
mod scattered;
mod settings;
mod small;
mod space;
mod svg;
mod table;
mod teardown;

use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{output, size};
use memory_kind::{Backing, Page};
use outcome::Outcome;
use progress::Progress;
use settings::Settings;

#[derive(clap::Args)]
#[command(after_help = "\
Variants of a scenario take turns, so that a machine that slows down slows them all.
`ratio` is the median over the runs of baseline time / variant time of the same run:
above 1 is faster than the baseline. Figures are printed only for what was really
measured: what the machine lacks is named instead, with exit status 1.")]
pub struct Args {
    /// What to measure
    #[arg(value_enum, default_value = "free")]
    scenario: Vec<Scenario>,
    /// How much memory, in bytes or as 64M, 4G, 4GiB (binary); the default depends on the scenario
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// How often each variant runs [default: 5, small: 9]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: Option<u32>,
    /// Measure mmzap with each of these thread limits [default: 1 and this machine's default]
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = threads)]
    max_active: Vec<usize>,
    /// Print JSON: one object, or an array of them for several scenarios
    #[arg(long)]
    json: bool,
    /// Also write a self-contained page with plots beside the published figures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Size of the pages (free, bystander, exit)
    #[arg(long, value_enum, default_value = "4k")]
    page: Page,
    /// Measure one block from malloc instead of a mapping (free)
    #[arg(long)]
    malloc: bool,
    /// Add the kernel's own limit: two processes that share nothing (free)
    #[arg(long)]
    ceiling: bool,
    /// What stands behind the address space (space)
    #[arg(long, value_enum, default_value = "zero")]
    backing: Backing,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// One large mapping: munmap, a plain parallel loop, mmzap
    Free,
    /// Hundreds of GiB of address space with little memory behind it
    Space,
    /// Many small ranges, every second one of a mapping
    Scattered,
    /// Small and huge-page mappings, where threads cannot help
    Small,
    /// What another thread notices while memory is given back
    Bystander,
    /// The end of a process, as its parent sees it
    Exit,
    /// Planning alone: mappings and ranges in, batches out
    Plan,
}

impl Scenario {
    fn measure(self, settings: &Settings, progress: &Progress) -> Result<Outcome> {
        match self {
            Scenario::Free => free::run(settings, progress),
            Scenario::Space => space::run(settings, progress),
            Scenario::Scattered => scattered::run(settings, progress),
            Scenario::Small => small::run(settings, progress),
            Scenario::Bystander => bystander::run(settings, progress),
            Scenario::Exit => exit::run(settings, progress),
            Scenario::Plan => plan::run(settings, progress),
        }
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A thread limit. More than this many threads no machine has use for.
fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=4096) => Ok(count),
        _ => Err("a thread limit is a whole number from 1 to 4096".into()),
    }
}

impl Args {
    /// Options that none of the chosen scenarios takes are mistakes, not wishes to be ignored.
    fn check(&self) -> std::result::Result<(), &'static str> {
        let any = |takers: &[Scenario]| self.scenario.iter().any(|one| takers.contains(one));
        let free = any(&[Scenario::Free]);
        if self.page == Page::Thp && !any(&[Scenario::Free, Scenario::Bystander, Scenario::Exit]) {
            return Err("--page is for the scenarios free, bystander and exit");
        }
        if (self.malloc || self.ceiling) && !free {
            return Err("--malloc and --ceiling are for the scenario free");
        }
        if self.malloc && (self.page == Page::Thp || self.ceiling) {
            return Err("--malloc measures 4 KiB pages of one process: \
                        it goes with neither --page thp nor --ceiling");
        }
        if self.backing == Backing::Memfd && !any(&[Scenario::Space]) {
            return Err("--backing is for the scenario space");
        }
        if self.size.is_some() && self.scenario.iter().all(|one| *one == Scenario::Plan) {
            return Err("the scenario plan has a fixed size");
        }
        Ok(())
    }
}

pub fn run(args: &Args) -> Result<()> {
    if let Err(message) = args.check() {
        crate::usage_error("bench", message);
    }
    let fresh = args.html.as_ref().filter(|path| !path.exists());
    if let Some(path) = &args.html {
        // Minutes of measuring are not to be lost to a wrong path.
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let settings = Settings::new(args);
    let mut outcomes = Vec::new();
    let mut failed = 0;
    let mut alone = None;
    for scenario in &args.scenario {
        let progress = Progress::new();
        let measured = scenario.measure(&settings, &progress);
        progress.clear();
        match measured {
            Ok(outcome) => {
                if !args.json {
                    output::print(&table::show(&outcome))?;
                }
                outcomes.push(outcome);
            }
            Err(error) if args.scenario.len() == 1 => alone = Some(error),
            Err(error) => {
                failed += 1;
                output::complain(&format!("{}: {error:#}", scenario.name()));
            }
        }
    }
    if args.json {
        match &outcomes[..] {
            [one] if args.scenario.len() == 1 => output::print_json(one)?,
            [] => {}
            all => output::print_json(&all)?,
        }
    }
    match &args.html {
        Some(path) if !outcomes.is_empty() => fs::write(path, html::page(&outcomes))
            .with_context(|| format!("cannot write {}", path.display()))?,
        _ => {
            // Nothing was measured: leave no empty page behind.
            if let Some(path) = fresh {
                let _ = fs::remove_file(path);
            }
        }
    }
    if let Some(error) = alone {
        return Err(error);
    }
    if failed > 0 {
        bail!("{failed} of {} scenarios not measured", args.scenario.len());
    }
    Ok(())
}
