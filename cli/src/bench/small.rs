//! `small`: mappings so small, or of so large pages, that threads cannot help:
//! what the way through the library costs.

use std::io;

use anyhow::{Context, Result, bail};
use mmzap::{Map, Operation, Teardown};

use super::memory_kind::Page;
use super::outcome::{Outcome, Row};
use super::progress::Progress;
use super::region::populating_threads;
use super::rounds::{Order, Rounds, Sample, Variant};
use super::settings::Settings;
use super::teardown::{self, timed};
use super::width::Width;
use crate::sys::{self, Access, HUGE_PAGE, Mapping, Spacer};
use crate::{memory, output, size, smaps};

const SIZES: [u64; 8] = [
    4 * size::KIB,
    16 * size::KIB,
    64 * size::KIB,
    256 * size::KIB,
    size::MIB,
    4 * size::MIB,
    16 * size::MIB,
    64 * size::MIB,
];
const HUGE_SIZE: u64 = size::GIB;
const DEFAULT_RUNS: usize = 9;

/// Memory of one sample: at 15 GiB/s it lasts some 17 ms, long enough that the
/// clock and a stray interrupt do not matter.
const SAMPLE_BYTES: u64 = 256 * size::MIB;

/// Mappings of one sample: with a page between any two they stay well below the
/// usual limit of 65 530, and 8192 calls of about 1 µs last long enough.
const MOST_CALLS: u64 = 8192;

/// One size of mapping.
#[derive(Clone, Copy)]
struct Case {
    len: usize,
    page: Page,
    /// Calls that make up one sample.
    calls: usize,
}

impl Case {
    fn small(len: u64) -> Self {
        Case {
            len: len as usize,
            page: Page::Small,
            calls: (SAMPLE_BYTES / len).clamp(1, MOST_CALLS) as usize,
        }
    }

    fn huge(len: u64) -> Self {
        Case {
            len: len as usize,
            page: Page::Thp,
            calls: (2 * HUGE_SIZE / len).clamp(1, 4) as usize,
        }
    }

    fn bytes(&self) -> u64 {
        (self.len * self.calls) as u64
    }
}

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    // --size bounds the mappings that are measured.
    let most = settings.given_size().unwrap_or(HUGE_SIZE);
    let mut cases: Vec<Case> = SIZES
        .into_iter()
        .filter(|len| *len <= most)
        .map(Case::small)
        .collect();
    let huge = most.min(HUGE_SIZE) / HUGE_PAGE as u64 * HUGE_PAGE as u64;
    if huge > 0 {
        match Page::Thp.check() {
            Ok(()) => cases.push(Case::huge(huge)),
            Err(error) => output::complain(&format!("small: no huge-page row: {error:#}")),
        }
    }
    let needed = cases.iter().map(Case::bytes).max().unwrap_or(0);
    if needed == 0 {
        bail!(
            "the smallest mapping measured is {}: give a larger --size",
            size::show(SIZES[0])
        );
    }
    memory::require(
        &format!("small up to {}", size::show(most)),
        needed + memory::page_tables(needed),
    )?;
    let runs = settings.runs_or(DEFAULT_RUNS);
    teardown::probe_first();
    let largest = cases.iter().map(|case| case.len).max().unwrap_or(0);
    let mut outcome = Outcome::new("small", "munmap", largest as u64, runs)?;
    outcome.note = Some(
        "times are those of one call; variants alternate A B, B A; \
         one Teardown serves all calls",
    );
    for case in cases {
        outcome.rows.extend(measure(case, runs, progress)?);
    }
    Ok(outcome)
}

fn measure(case: Case, runs: usize, progress: &Progress) -> Result<Vec<Row>> {
    let mut job = Teardown::new(Operation::Unmap);
    let variants = vec![
        Variant::new("munmap", None, move || {
            let prepared = Prepared::new(case, || plain_map(case))?;
            let (done, seconds) = timed(|| prepared.maps.into_iter().try_for_each(Mapping::unmap));
            done.context("munmap failed")?;
            Ok(Sample::of(seconds / case.calls as f64))
        }),
        Variant::new("mmzap", Some(Width::Auto), move || {
            let prepared = Prepared::new(case, || library_map(case))?;
            let (done, seconds) = timed(|| {
                prepared.maps.into_iter().try_fold(0, |bytes, map| {
                    let report = job.unmap(map).into_result()?;
                    Ok::<_, mmzap::Error>(bytes + report.bytes_done as u64)
                })
            });
            let bytes = done.context("mmzap could not give all memory back")?;
            if bytes != case.bytes() {
                bail!("mmzap reports {bytes} bytes given back of {}", case.bytes());
            }
            Ok(Sample::of(seconds / case.calls as f64))
        }),
    ];
    let rounds = Rounds::measure(variants, runs, Order::Alternating, progress)
        .with_context(|| format!("mappings of {}", size::show(case.len as u64)))?;
    let mut rows = rounds.rows(case.len as u64, |sample| sample.seconds);
    for row in &mut rows {
        row.size_bytes = Some(case.len as u64);
        row.page = Some(case.page);
        row.calls_per_sample = Some(case.calls);
    }
    Ok(rows)
}

/// The mappings of one sample, all touched.
struct Prepared<T> {
    maps: Vec<T>,
    _spacers: Vec<Spacer>,
}

impl<T> Prepared<T> {
    /// `make` maps once and says where.
    fn new(case: Case, make: impl Fn() -> io::Result<(T, *mut u8)>) -> Result<Self> {
        let mut maps = Vec::with_capacity(case.calls);
        let mut spacers = Vec::with_capacity(2 * case.calls);
        let page = sys::page_size();
        let threads = populating_threads();
        for index in 0..case.calls {
            let (map, start) =
                make().with_context(|| format!("cannot map {}", size::show(case.len as u64)))?;
            // Neighbours would become one mapping, and unmapping one would split it.
            spacers.extend(Spacer::at(start as usize - page));
            spacers.extend(Spacer::at(start as usize + case.len));
            // SAFETY: the map is owned here and nothing refers to its contents.
            unsafe { sys::populate(start, case.len, Access::Write, threads) }
                .context("cannot touch a mapping")?;
            if index == 0 {
                smaps::verify(start as usize, case.len, case.page == Page::Thp)?;
            }
            maps.push(map);
        }
        Ok(Prepared {
            maps,
            _spacers: spacers,
        })
    }
}

/// Memory as a program without mmzap maps it.
fn plain_map(case: Case) -> io::Result<(Mapping, *mut u8)> {
    let align = if case.len < HUGE_PAGE {
        sys::page_size()
    } else {
        HUGE_PAGE
    };
    let mapping = Mapping::anonymous(case.len, align)?;
    mapping.huge_pages(case.page == Page::Thp)?;
    let (start, _) = mapping.as_raw();
    Ok((mapping, start))
}

fn library_map(case: Case) -> io::Result<(Map, *mut u8)> {
    let mut map = Map::options()
        .huge_pages(case.page == Page::Thp)
        .map(case.len)?;
    let start = map.as_mut_ptr();
    Ok((map, start))
}
