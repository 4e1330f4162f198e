//! The work itself: a model of a search server, written from the description of
//! ebizzy. Threads copy a block into a new one, find a record in the copy, and
//! free it.

use std::alloc::{GlobalAlloc, Layout};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::Job;
use crate::bench::dice::Dice;
use crate::bench::load;
use crate::smaps;

pub const CHUNK_BYTES: usize = 512 << 10;
const RECORDS: usize = CHUNK_BYTES / size_of::<u64>();

/// The promise that is looked at: what was freed is reclaimable after so long.
const SETTLES: Duration = Duration::from_millis(10);

/// What the process that did the work says.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Measured {
    pub records: u64,
    pub seconds: f64,
    /// Page faults meanwhile.
    pub faults: u64,
    /// Resident beyond the chunks, a moment after the last free.
    pub rss_bytes: u64,
    /// Lazily freed, of the above.
    pub reclaimable_bytes: u64,
}

/// Runs the work on blocks of `allocator`.
pub fn run<A: GlobalAlloc + Sync>(allocator: &A, job: &Job) -> Result<Measured> {
    let chunks: Vec<Block<'_, A>> = (0..job.chunks)
        .map(|_| {
            let mut chunk = Block::new(allocator)?;
            for (index, record) in chunk.records_mut().iter_mut().enumerate() {
                *record = index as u64;
            }
            Ok(chunk)
        })
        .collect::<Result<_>>()?;
    let before = smaps::whole_process()?;
    let done = load::run(job.threads, job.seconds, |_, dice, records: &mut u64| {
        search(allocator, &chunks, dice)?;
        *records += 1;
        Ok(())
    })?;
    thread::sleep(SETTLES);
    let after = smaps::whole_process()?;
    Ok(Measured {
        records: done.counts.iter().sum(),
        seconds: done.seconds,
        faults: done.faults,
        rss_bytes: after.resident.saturating_sub(before.resident),
        reclaimable_bytes: after.lazy,
    })
}

/// One record read.
fn search<A: GlobalAlloc + Sync>(
    allocator: &A,
    chunks: &[Block<'_, A>],
    dice: &mut Dice,
) -> Result<()> {
    let chunk = &chunks[dice.below(chunks.len())];
    let mut copy = Block::new(allocator)?;
    copy.records_mut().copy_from_slice(chunk.records());
    let wanted = dice.below(RECORDS) as u64;
    match copy.records().binary_search(&wanted) {
        Ok(found) if found as u64 == wanted => Ok(()),
        _ => bail!("record {wanted} is not in its place: the memory was corrupted"),
    }
}

/// A block of the allocator's.
struct Block<'a, A: GlobalAlloc> {
    allocator: &'a A,
    start: *mut u64,
}

const LAYOUT: Layout = match Layout::array::<u64>(RECORDS) {
    Ok(layout) => layout,
    Err(_) => panic!("a small size"),
};

impl<'a, A: GlobalAlloc> Block<'a, A> {
    fn new(allocator: &'a A) -> Result<Self> {
        // SAFETY: the layout has a size. Zeroed, it would be written twice.
        let start = unsafe { allocator.alloc(LAYOUT) }.cast::<u64>();
        if start.is_null() {
            return Err(anyhow::anyhow!("no memory")).context("cannot allocate 512 KiB");
        }
        // SAFETY: one word of a block that is ours; the others are written
        // before they are read, too.
        unsafe { start.write(0) };
        Ok(Block { allocator, start })
    }

    fn records(&self) -> &[u64] {
        // SAFETY: whoever made the block has written all of it.
        unsafe { std::slice::from_raw_parts(self.start, RECORDS) }
    }

    fn records_mut(&mut self) -> &mut [u64] {
        // SAFETY: the block is ours alone, and any bits are a record.
        unsafe { std::slice::from_raw_parts_mut(self.start, RECORDS) }
    }
}

impl<A: GlobalAlloc> Drop for Block<'_, A> {
    fn drop(&mut self) {
        // SAFETY: allocated by the same with this layout, and not used after.
        unsafe { self.allocator.dealloc(self.start.cast(), LAYOUT) };
    }
}

// SAFETY: a block is plain memory; only its owner writes to it, and the
// allocator can be used by all threads.
unsafe impl<A: GlobalAlloc + Sync> Sync for Block<'_, A> {}
