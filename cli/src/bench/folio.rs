//! `folio`: memory made of folios of one size, freed lazily and discarded, for
//! each size that the machine offers; and how many of them were split.

use anyhow::{Context, Result, bail};
use mmzap::Operation;

use super::memory_kind::Page;
use super::outcome::{Outcome, Row};
use super::progress::Progress;
use super::region::{self, populating_threads};
use super::rounds::{Order, Rounds, Sample, Variant};
use super::settings::Settings;
use super::teardown;
use crate::sys::{self, Access, Advice, HUGE_PAGE, Mapping};
use crate::thp::{self, Splits, Switches};
use crate::unavailable::Unavailable;
use crate::{frames, output, size, smaps};

/// The size of the published experiment.
const DEFAULT_SIZE: u64 = size::GIB;
const DEFAULT_RUNS: usize = 5;

/// What is done, by its name in a row.
#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    operation: Operation,
    advice: Advice,
}

const WORKS: [Work; 2] = [
    Work {
        name: "lazy-free",
        operation: Operation::LazyFree,
        advice: Advice::LazyFree,
    },
    Work {
        name: "discard",
        operation: Operation::Discard,
        advice: Advice::Discard,
    },
];

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    if !sys::is_root() {
        return Err(Unavailable::because(
            "folio sets the switches of huge pages and looks at page frames, which needs root",
        ));
    }
    let folios = folios()?;
    let len = settings.memory_size("folio", DEFAULT_SIZE, HUGE_PAGE as u64)?;
    let runs = settings.runs_or(DEFAULT_RUNS);
    teardown::probe_first();
    let mut outcome = Outcome::new("folio", "madvise", len as u64, runs)?;
    outcome.note = Some(
        "ratios compare with one madvise call on the same folios; splits are those of the whole \
         machine during all samples of a row: folios taken to pieces (folios), huge page-table \
         entries replaced (pmds), and folios of which a part went (deferred)",
    );
    let switches = Switches::take()?;
    for folio in folios {
        match measure(folio, len, settings, runs, &switches, progress) {
            Ok(rows) => outcome.rows.extend(rows),
            Err(error) if Unavailable::explains(&error) => left_out(folio, &error),
            Err(error) => return Err(error.context(format!("folios of {}", show(folio)))),
        }
    }
    switches.finish()?;
    if outcome.rows.is_empty() {
        return Err(Unavailable::because(
            "the machine handed out folios of none of its sizes",
        ));
    }
    Ok(outcome)
}

/// A page, and each size of folio that anonymous memory can be made of.
fn folios() -> Result<Vec<usize>> {
    let mut folios = vec![sys::page_size()];
    for (bytes, switched) in thp::sizes()? {
        let bytes = usize::try_from(bytes)?;
        if switched {
            folios.push(bytes);
        } else {
            let reason = Unavailable::because("this kernel has them for shared memory only");
            left_out(bytes, &reason);
        }
    }
    Ok(folios)
}

fn show(folio: usize) -> String {
    size::show(folio as u64)
}

fn left_out(folio: usize, reason: &anyhow::Error) {
    output::complain(&format!(
        "folio: {} left out: {}",
        show(folio),
        reason.root_cause()
    ));
}

fn measure(
    folio: usize,
    len: usize,
    settings: &Settings,
    runs: usize,
    switches: &Switches,
    progress: &Progress,
) -> Result<Vec<Row>> {
    switches.choose(folio as u64)?;
    // Asked first, so that a size that is not handed out costs no round.
    populated(len, folio)?;
    let mut rows = Vec::new();
    for work in WORKS {
        let mut variants = vec![Variant::new("madvise", None, move || {
            sample(len, folio, work, |mapping| {
                teardown::plain_advise(mapping, work.advice)
            })
        })];
        for &width in &settings.max_active {
            variants.push(Variant::new("mmzap", Some(width), move || {
                sample(len, folio, work, |mapping| {
                    teardown::advise(mapping, work.operation, width)
                })
            }));
        }
        let rounds = Rounds::measure(variants, runs, Order::Same, progress)
            .with_context(|| format!("{} of {} folios", work.name, show(folio)))?;
        rows.extend(
            rounds
                .rows(len as u64, |sample| sample.seconds)
                .into_iter()
                .map(|row| Row {
                    folio_bytes: Some(folio as u64),
                    operation: Some(work.name),
                    ..row
                }),
        );
    }
    Ok(rows)
}

/// Fresh memory, worked on, with the splits meanwhile.
fn sample(
    len: usize,
    folio: usize,
    work: Work,
    timed: impl FnOnce(&Mapping) -> Result<Sample>,
) -> Result<Sample> {
    let mapping = populated(len, folio)?;
    let before = Splits::read()?;
    let sample = timed(&mapping)?;
    let splits = Splits::read()? - before;
    verify(&mapping, work)?;
    Ok(Sample {
        splits: Some(splits),
        ..sample
    })
}

/// Memory that is proven to be made of such folios.
fn populated(len: usize, folio: usize) -> Result<Mapping> {
    let mapping = region::reserved(
        len,
        if folio > sys::page_size() {
            Page::Thp
        } else {
            Page::Small
        },
    )?;
    mapping
        .populate(Access::Write, populating_threads())
        .with_context(|| format!("cannot touch {}", size::show(len as u64)))?;
    // Smaps calls only the largest huge pages, and only these are its AnonHugePages.
    smaps::verify(mapping.start(), len, folio == HUGE_PAGE)?;
    frames::verify(mapping.start(), len, folio)?;
    Ok(mapping)
}

/// Fails if the kernel said yes and did little.
fn verify(mapping: &Mapping, work: Work) -> Result<()> {
    let usage = smaps::usage(mapping.start(), mapping.start() + mapping.len())?;
    let len = mapping.len() as u64;
    let (done, word) = match work.advice {
        Advice::LazyFree => (usage.lazy, "lazily freed"),
        _ => (len.saturating_sub(usage.resident), "discarded"),
    };
    // Pages on their way to a list, some dozens for each CPU, are not freed lazily.
    if done < len / 100 * 95 {
        bail!(
            "only {} of {} were {word}",
            size::show(done),
            size::show(len)
        );
    }
    Ok(())
}
