//! `mmzap bench`: what giving memory back costs, with mmzap and without.
//!
//! Each scenario is one file. It names its variants; `rounds` runs them
//! interleaved and sums up; `outcome` is what is printed.

pub mod child;

mod bystander;
mod cold;
mod contents;
mod dice;
mod ebizzy;
mod exit;
mod folio;
mod free;
mod html;
mod load;
mod memory_kind;
mod naive;
mod outcome;
mod pageout;
mod plan;
mod progress;
mod published;
mod reclaim;
mod region;
mod rounds;
mod scattered;
mod settings;
mod small;
mod space;
mod svg;
mod table;
mod teardown;
mod volatile;
mod width;

use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::unavailable::Unavailable;
use crate::{output, size};
use memory_kind::{Backing, Page};
use outcome::Outcome;
use progress::Progress;
use settings::Settings;
use width::Width;

#[derive(clap::Args)]
#[command(after_help = "\
Variants of a scenario take turns, so that a machine that slows down slows them all.
`ratio` is the median over the runs of baseline time / variant time of the same run:
above 1 is faster than the baseline. On a virtual machine the head of a table says how
much CPU time the host gave to others meanwhile: beyond some percent, threads mostly
wait for each other, and the figures say little. Figures are printed only for what was really
measured: what the machine lacks is named instead, with exit status 1; with --all it
is named and left out.

folio (root) lets memory have folios of one size after the other and puts the switches
back afterwards, also after an error, SIGINT, SIGTERM, SIGHUP and SIGQUIT. After SIGKILL
they are to be put back by hand:
  cd /sys/kernel/mm/transparent_hugepage
  grep . enabled hugepages-*/enabled          # the words in brackets are in force
  echo madvise > enabled                      # the usual values of most systems
  for f in hugepages-*/enabled; do echo never > $f; done
  echo inherit > hugepages-2048kB/enabled
pageout needs swap with room for --size, or --zram (root), which removes its device in
the same cases. After SIGKILL: grep zram /proc/swaps; swapoff /dev/zramN; and
echo N > /sys/class/zram-control/hot_remove. Later runs are not disturbed by such a
device; they name it. cold needs no swap: pages are marked, and stay where they are.")]
pub struct Args {
    /// What to measure
    #[arg(value_enum, default_value = "free")]
    scenario: Vec<Scenario>,
    /// Measure every scenario that the machine and the options allow; name the others and why
    #[arg(long, conflicts_with = "scenario")]
    all: bool,
    /// How much memory, in bytes or as 64M, 4G, 4GiB (binary); the default depends on the scenario
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// How often each variant runs [default: 5, small: 9]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: Option<u32>,
    /// Measure mmzap with each of these thread limits, numbers or auto [default: 1, this machine's default, auto]
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = Width::parse)]
    max_active: Vec<Width>,
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
    /// Numbers of threads that allocate (ebizzy, volatile) [default: 1,2,4,8,16,32]
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = threads)]
    threads: Vec<usize>,
    /// How long each of them runs (ebizzy, volatile) [default: 10]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Blocks of 512 KiB that are searched (ebizzy, volatile) [default: 512]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    chunks: Option<u32>,
    /// Set up a swap device of compressed memory and remove it afterwards (pageout, cold, volatile)
    #[arg(long)]
    zram: bool,
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
    /// Memory made of folios of each size: lazy freeing, discarding, and their splits (root)
    Folio,
    /// Paging out 512 MiB and more: one call, a plain parallel loop, mmzap (swap or --zram)
    Pageout,
    /// Marking memory as the first to be reclaimed; needs no swap
    Cold,
    /// Allocators under a load of large blocks, with what they keep (--features allocators)
    Ebizzy,
    /// Memory that the kernel may take, with and without pressure (root)
    Volatile,
}

fn threads(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=1024) => Ok(threads),
        _ => Err("give a number of threads from 1 to 1024".into()),
    }
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.1 to 86400".into()),
    }
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
            Scenario::Folio => folio::run(settings, progress),
            Scenario::Pageout => pageout::run(settings, progress),
            Scenario::Cold => cold::run(settings, progress),
            Scenario::Ebizzy => ebizzy::run(settings, progress),
            Scenario::Volatile => volatile::run(settings, progress),
        }
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl Args {
    fn scenarios(&self) -> &[Scenario] {
        if self.all {
            Scenario::value_variants()
        } else {
            &self.scenario
        }
    }

    /// Options that none of the chosen scenarios takes are mistakes, not wishes to be ignored.
    fn check(&self) -> std::result::Result<(), &'static str> {
        let scenarios = self.scenarios();
        let any = |takers: &[Scenario]| scenarios.iter().any(|one| takers.contains(one));
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
        if self.zram && !any(&[Scenario::Pageout, Scenario::Cold, Scenario::Volatile]) {
            return Err("--zram is for the scenarios pageout, cold and volatile");
        }
        let fixed = [Scenario::Plan, Scenario::Ebizzy, Scenario::Volatile];
        if self.size.is_some() && scenarios.iter().all(|one| fixed.contains(one)) {
            return Err(
                "the scenario plan has a fixed size, and that of ebizzy and volatile \
                        is --chunks",
            );
        }
        let load = !self.threads.is_empty() || self.seconds.is_some() || self.chunks.is_some();
        if load && !any(&[Scenario::Ebizzy, Scenario::Volatile]) {
            return Err(
                "--threads, --seconds and --chunks are for the scenarios ebizzy and volatile",
            );
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
    let scenarios = args.scenarios();
    for scenario in scenarios {
        let progress = Progress::new();
        let measured = scenario.measure(&settings, &progress);
        progress.clear();
        match measured {
            Ok(mut outcome) => {
                outcome.end();
                if !args.json {
                    output::print(&table::show(&outcome))?;
                }
                outcomes.push(outcome);
            }
            Err(error) if args.all && Unavailable::explains(&error) => {
                output::complain(&format!("{} left out: {error:#}", scenario.name()));
            }
            Err(error) if scenarios.len() == 1 => alone = Some(error),
            Err(error) => {
                failed += 1;
                output::complain(&format!("{}: {error:#}", scenario.name()));
            }
        }
    }
    if args.json {
        match &outcomes[..] {
            [one] if scenarios.len() == 1 => output::print_json(one)?,
            [] if !args.all => {}
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
        bail!("{failed} of {} scenarios not measured", scenarios.len());
    }
    Ok(())
}
