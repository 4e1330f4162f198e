//! What it costs to make a range solid and volatile again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use mmzap::volatile::VolatileRegion;

use crate::bench::outcome::Row;
use crate::bench::progress::Progress;
use crate::bench::rounds::{Order, Rounds, Sample, Variant};
use crate::sys::{self, Mapping};

/// Sizes of a range, and how often it is done in one sample.
const SIZES: [(usize, u32); 4] = [
    (4 << 10, 2000),
    (64 << 10, 1000),
    (1 << 20, 300),
    (256 << 20, 2),
];

/// Samples for each run asked for: one takes milliseconds.
const SAMPLES: usize = 9;

pub fn measure(runs: usize, progress: &Progress) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (bytes, times) in SIZES {
        let variants = vec![
            Variant::new("dontneed", None, move || refill(bytes, times)),
            Variant::new("loop", None, move || each_page(bytes, times)),
            Variant::new("volatile, by page", None, move || pin_pages(bytes, times)),
            Variant::new("volatile", None, move || pin(bytes, times)),
        ];
        let rounds = Rounds::measure(variants, runs * SAMPLES, Order::Same, progress)
            .with_context(|| format!("pins of {bytes} bytes"))?;
        rows.extend(
            rounds
                .rows(0, |sample| sample.seconds)
                .into_iter()
                .map(|row| Row {
                    operation: Some("pin"),
                    pressure: Some("none"),
                    size_bytes: Some(bytes as u64),
                    gib_per_s: None,
                    calls_per_sample: Some(times as usize),
                    ..row
                }),
        );
    }
    Ok(rows)
}

/// Discarding and touching every page again.
fn refill(bytes: usize, times: u32) -> Result<Sample> {
    let mapping = Mapping::anonymous(bytes, sys::HUGE_PAGE)?;
    mapping.huge_pages(false)?;
    mapping.populate(sys::Access::Write, 1)?;
    let began = Instant::now();
    for _ in 0..times {
        mapping.discard(0, bytes)?;
        touch(&mapping);
    }
    Ok(Sample::of(began.elapsed().as_secs_f64() / f64::from(times)))
}

/// A loop over all pages, as Chromium's discardable memory has it: a word of each
/// is exchanged to lock it, and again to unlock it, and one call frees the range
/// lazily.
fn each_page(bytes: usize, times: u32) -> Result<Sample> {
    const MARK: u64 = 1;
    let mapping = Mapping::anonymous(bytes, sys::HUGE_PAGE)?;
    mapping.huge_pages(false)?;
    mapping.populate(sys::Access::Write, 1)?;
    let (start, _) = mapping.as_raw();
    let words = || {
        (0..bytes).step_by(sys::page_size()).map(|at| {
            // SAFETY: the first word of a page of the mapping, which is used as
            // nothing else.
            unsafe { AtomicU64::from_ptr(start.add(at).cast()) }
        })
    };
    let began = Instant::now();
    for _ in 0..times {
        for word in words() {
            word.swap(MARK, Ordering::AcqRel);
        }
        mapping.advise(sys::Advice::LazyFree)?;
        for word in words() {
            std::hint::black_box(word.fetch_or(0, Ordering::AcqRel));
        }
    }
    Ok(Sample::of(began.elapsed().as_secs_f64() / f64::from(times)))
}

/// A pin for each page.
fn pin_pages(bytes: usize, times: u32) -> Result<Sample> {
    let region = VolatileRegion::new(bytes)?;
    let page = sys::page_size();
    region.pin_mut(0..bytes)?.fill(1);
    let began = Instant::now();
    for _ in 0..times {
        for at in (0..bytes).step_by(page) {
            std::hint::black_box(region.pin(at..at + page)?.is_kept());
        }
    }
    Ok(Sample::of(began.elapsed().as_secs_f64() / f64::from(times)))
}

fn pin(bytes: usize, times: u32) -> Result<Sample> {
    let region = VolatileRegion::new(bytes)?;
    region.pin_mut(0..bytes)?.fill(1);
    let began = Instant::now();
    let mut kept = 0;
    for _ in 0..times {
        kept += u32::from(region.pin(0..bytes)?.is_kept());
    }
    let took = began.elapsed();
    if kept < times {
        bail!("the kernel took some of it: memory is short");
    }
    Ok(Sample::of(took.as_secs_f64() / f64::from(times)))
}

fn touch(mapping: &Mapping) {
    let (start, len) = mapping.as_raw();
    for at in (0..len).step_by(sys::page_size()) {
        // SAFETY: inside the mapping, which nobody else uses.
        unsafe { start.add(at).write_volatile(1) };
    }
}
