//! Giving back maps that the program owns: the library's own and memmap2's.

use std::error::Error;

use memmap2::MmapOptions;
use mmzap::{Cancel, Map, MaxActive, Operation, Teardown};

const BYTES: usize = 256 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    // A map of memmap2, emptied and used again.
    let mut pool = MmapOptions::new().len(BYTES).map_anon()?;
    pool.fill(7);
    let report = Teardown::new(Operation::Discard)
        .run(&mut pool)
        .into_result()?;
    println!(
        "discarded {} bytes in {:?}",
        report.freed_bytes(),
        report.wall
    );
    assert!(pool.iter().step_by(4096).all(|&byte| byte == 0));

    // The same map, gone for good. The width can be changed while this runs.
    pool.fill(8);
    let width = MaxActive::new(2);
    let report = Teardown::new(Operation::Unmap)
        .max_active(width.clone())
        .on_progress(|progress| {
            if progress.done_bytes * 2 > progress.total_bytes {
                width.set(1);
            }
        })
        .unmap(pool)
        .into_result()?;
    println!(
        "unmapped {} bytes in {:?}: {} batches, {} of them stolen by {} helpers",
        report.freed_bytes(),
        report.wall,
        report.batches,
        report.steals,
        report.helpers
    );

    // A map of our own, and a job that is stopped half-way.
    let mut map = Map::options().huge_pages(false).populate(true).map(BYTES)?;
    let cancel = Cancel::default();
    let report = Teardown::new(Operation::Discard)
        .max_active(1)
        .batch_bytes(8 << 20)
        .cancel(&cancel)
        .on_progress(|progress| {
            if progress.done_bytes * 2 >= progress.total_bytes {
                cancel.now();
            }
        })
        .run(&mut map);
    println!(
        "stopped after {} bytes, {} left alone",
        report.bytes_done, report.bytes_skipped
    );
    Ok(())
}
