//! `free`: one large mapping, or one block from malloc, given back at once.

use anyhow::{Context, Result, bail};
use mmzap::{Operation, Teardown};

use super::child::{Child, Task};
use super::memory_kind::Page;
use super::naive;
use super::outcome::Outcome;
use super::progress::Progress;
use super::region::{self, populating_threads};
use super::rounds::{Order, Rounds, Sample, Variant};
use super::settings::Settings;
use super::teardown::{self, timed};
use super::width::Width;
use crate::sys::{Advice, Block, HUGE_PAGE};
use crate::{size, smaps};

const DEFAULT_SIZE: u64 = 8 * size::GIB;
const DEFAULT_RUNS: usize = 5;

pub fn run(settings: &Settings, progress: &Progress) -> Result<Outcome> {
    settings.page.check()?;
    let len = settings.memory_size("free", DEFAULT_SIZE, HUGE_PAGE as u64)?;
    let runs = settings.runs_or(DEFAULT_RUNS);
    teardown::probe_first();
    naive::start_rayon()?;
    let baseline = if settings.malloc { "plain" } else { "munmap" };
    let mut outcome = Outcome::new("free", baseline, len as u64, runs)?;
    outcome.page = Some(settings.page);
    outcome.malloc = Some(settings.malloc);
    let variants = if settings.malloc {
        block_variants(len, &settings.max_active)
    } else {
        mapping_variants(len, settings)
    };
    let rounds = Rounds::measure(variants, runs, Order::Same, progress)?;
    outcome.rows = rounds.rows(len as u64, |sample| sample.seconds);
    Ok(outcome)
}

fn mapping_variants(len: usize, settings: &Settings) -> Vec<Variant<'static>> {
    let page = settings.page;
    let mut variants = vec![
        Variant::new("munmap", None, move || {
            teardown::plain_unmap(region::populated(len, page)?)
        }),
        Variant::new("naive", None, move || {
            let mapping = region::populated(len, page)?;
            let start = mapping.start();
            naive::wake_rayon();
            let (done, seconds) = timed(|| {
                let (pages, len) = mapping.as_raw();
                naive::in_chunks(pages, len, Advice::Discard).and_then(|()| mapping.unmap())
            });
            done.context("madvise or munmap failed")?;
            smaps::verify_unmapped(start, len)?;
            Ok(Sample::of(seconds))
        }),
    ];
    for &width in &settings.max_active {
        variants.push(Variant::new("mmzap", Some(width), move || {
            teardown::unmap(region::populated(len, page)?, width)
        }));
    }
    if settings.ceiling {
        variants.push(Variant::new("processes", Some(2.into()), move || {
            two_processes(len, page)
        }));
    }
    variants
}

fn block_variants(size: usize, widths: &[Width]) -> Vec<Variant<'static>> {
    let mut variants = vec![
        Variant::new("plain", None, move || {
            let block = populated_block(size)?;
            let ((), seconds) = timed(|| block.free());
            Ok(Sample::of(seconds))
        }),
        Variant::new("naive", None, move || {
            let block = populated_block(size)?;
            naive::wake_rayon();
            let (done, seconds) = timed(|| {
                let (pages, len) = block.whole_pages();
                let done = naive::in_chunks(pages, len, Advice::Discard);
                block.free();
                done
            });
            done.context("madvise failed")?;
            Ok(Sample::of(seconds))
        }),
    ];
    for &width in widths {
        variants.push(Variant::new("mmzap", Some(width), move || {
            let block = populated_block(size)?;
            let (pages, len) = block.whole_pages();
            let (report, seconds) = timed(|| {
                // SAFETY: whole pages inside a block of ours, which nobody reads any more;
                // what the allocator notes lies outside of the block.
                let report = unsafe {
                    width
                        .limit(Teardown::new(Operation::Discard))
                        .run_raw([(pages, len)])
                };
                block.free();
                report
            });
            teardown::sample(report, seconds, len as u64)
        }));
    }
    variants
}

fn populated_block(size: usize) -> Result<Block> {
    let block = Block::new(size)
        .with_context(|| format!("malloc of {} failed", size::show(size as u64)))?;
    block
        .populate(populating_threads())
        .context("cannot touch the block")?;
    let (pages, len) = block.whole_pages();
    smaps::verify(pages as usize, len, false)?;
    Ok(block)
}

/// Each of two processes discards half at the same time. They share no address
/// space, no lock and nothing of mmzap: what they gain is what the kernel and
/// the machine can give.
fn two_processes(len: usize, page: Page) -> Result<Sample> {
    let half = (len / 2).next_multiple_of(HUGE_PAGE);
    let mut children = [half, len - half]
        .into_iter()
        .filter(|len| *len > 0)
        .map(|len| Child::start(Task::Discard, len, page))
        .collect::<Result<Vec<_>>>()?;
    for child in &mut children {
        child.wait_until_ready()?;
    }
    let (done, seconds) = timed(|| {
        children.iter_mut().try_for_each(Child::go)?;
        children.iter_mut().try_for_each(Child::wait_for_answer)
    });
    done?;
    for child in children {
        let status = child.wait()?;
        if !status.success() {
            bail!("a process that discarded memory ended with {status}");
        }
    }
    Ok(Sample::of(seconds))
}
