//! The work itself.

use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use mmzap::volatile::{VolatileCache, VolatileRegion};
use serde::{Deserialize, Serialize};

use super::{BLOCK_BYTES, Job, SPARE_BLOCKS, Way, Work, join};
use crate::bench::dice::Dice;
use crate::bench::load;
use crate::sys::{self, Mapping};

const RECORDS: usize = BLOCK_BYTES / size_of::<u64>();

/// How often each record of a block is worked on to make the block: a block of
/// a cache that is dear enough to be kept, about a millisecond.
const ROUNDS: usize = 16;

/// What the process that did the work says.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Measured {
    pub records: u64,
    pub seconds: f64,
    pub faults: u64,
    /// Blocks that were gone when they were wanted, in part or as a whole.
    pub purged: u64,
}

/// Counts of one thread.
#[derive(Default)]
struct Done {
    records: u64,
    purged: u64,
}

pub fn run(job: &Job) -> Result<Measured> {
    if let Some(door) = &job.door {
        join(door)?;
    }
    match job.work {
        Work::Ebizzy => ebizzy(job),
        Work::Cache => cache(job),
    }
}

fn ebizzy(job: &Job) -> Result<Measured> {
    let chunks: Vec<Vec<u64>> = (0..job.chunks)
        .map(|_| (0..RECORDS as u64).collect())
        .collect();
    let spare = job.threads * SPARE_BLOCKS * BLOCK_BYTES;
    let volatile = match job.way {
        Way::Volatile => Some(VolatileRegion::new(spare).context("no volatile memory")?),
        _ => None,
    };
    let plain = Mapping::anonymous(spare, sys::HUGE_PAGE)?;
    plain.huge_pages(false)?;
    let (start, _) = plain.as_raw();
    let start = start as usize;
    if let Some(region) = &volatile {
        // One after the other: all at once would have to be solid at once.
        for at in (0..spare).step_by(BLOCK_BYTES) {
            region.pin_mut(at..at + BLOCK_BYTES)?.fill(1);
        }
    } else if job.way != Way::Dontneed {
        plain.populate(sys::Access::Write, 1)?;
    }
    in_threads(job, |thread, dice, done| {
        // An allocator hands out the block first that was freed last. The others
        // are left from when more were needed.
        let at = thread * SPARE_BLOCKS * BLOCK_BYTES;
        let chunk = &chunks[dice.below(chunks.len())];
        if let Some(region) = &volatile {
            let mut block = region.pin_mut(at..at + BLOCK_BYTES)?;
            done.purged += u64::from(!block.is_kept());
            search(records_of(&mut block), chunk, dice)
        } else {
            // SAFETY: inside the mapping, aligned, and this thread's own part.
            let block =
                unsafe { std::slice::from_raw_parts_mut((start + at) as *mut u64, RECORDS) };
            search(block, chunk, dice)?;
            if job.way == Way::Dontneed {
                plain.discard(at, BLOCK_BYTES)?;
                done.purged += 1;
            }
            Ok(())
        }
    })
}

/// The block as records.
fn records_of(block: &mut [u8]) -> &mut [u64] {
    // SAFETY: any bits are records; the block begins at a page, so that nothing
    // is left before the first.
    unsafe { block.align_to_mut().1 }
}

fn search(copy: &mut [u64], chunk: &[u64], dice: &mut Dice) -> Result<()> {
    copy.copy_from_slice(chunk);
    let wanted = dice.below(RECORDS) as u64;
    match copy.binary_search(&wanted) {
        Ok(found) if found as u64 == wanted => Ok(()),
        _ => bail!("record {wanted} is not in its place: the memory was corrupted"),
    }
}

fn cache(job: &Job) -> Result<Measured> {
    let cached = job.chunks * BLOCK_BYTES;
    let volatile = VolatileCache::<usize>::new(cached).context("no volatile memory")?;
    let kept: Vec<Mutex<Vec<u64>>> = (0..job.chunks).map(|_| Mutex::new(Vec::new())).collect();
    in_threads(job, |_, dice, done| {
        // Some are wanted more often than others.
        let key = dice.below(job.chunks).min(dice.below(job.chunks));
        match job.way {
            Way::Dontneed => {
                done.purged += 1;
                look(&made(key), key, dice)
            }
            Way::Plain | Way::Swap => {
                let Ok(mut block) = kept[key].lock() else {
                    bail!("another thread has failed");
                };
                if block.is_empty() {
                    *block = made(key);
                    done.purged += 1;
                }
                look(&block, key, dice)
            }
            Way::Volatile => {
                if let Some(block) = volatile.get(&key) {
                    // SAFETY: as in `records_of`.
                    return look(unsafe { block.align_to().1 }, key, dice);
                }
                done.purged += 1;
                let block = made(key);
                // SAFETY: records are bytes.
                volatile.insert(key, unsafe { block.align_to::<u8>().1 });
                look(&block, key, dice)
            }
        }
    })
}

/// A block that takes its time.
fn made(key: usize) -> Vec<u64> {
    (0..RECORDS as u64)
        .map(|index| {
            let mut record = (key as u64) << 32 | index;
            for _ in 0..ROUNDS {
                record = (record ^ record >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            }
            record
        })
        .collect()
}

/// Reads all of a block, and holds one record to what it must be.
fn look(block: &[u64], key: usize, dice: &mut Dice) -> Result<()> {
    let index = dice.below(RECORDS);
    let mut record = (key as u64) << 32 | index as u64;
    for _ in 0..ROUNDS {
        record = (record ^ record >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    std::hint::black_box(block.iter().fold(0, |sum, record| sum ^ record));
    if block.get(index) == Some(&record) {
        Ok(())
    } else {
        bail!("record {index} of block {key} is not what was put in")
    }
}

/// Lets every thread do `one` record after the other until the time is up.
fn in_threads(
    job: &Job,
    one: impl Fn(usize, &mut Dice, &mut Done) -> Result<()> + Sync,
) -> Result<Measured> {
    let done = load::run(
        job.threads,
        job.seconds,
        |thread, dice, counts: &mut Done| {
            one(thread, dice, counts)?;
            counts.records += 1;
            Ok(())
        },
    )?;
    Ok(Measured {
        records: done.counts.iter().map(|counts| counts.records).sum(),
        seconds: done.seconds,
        faults: done.faults,
        purged: done.counts.iter().map(|counts| counts.purged).sum(),
    })
}
