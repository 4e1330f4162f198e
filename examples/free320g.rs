//! The published experiment on a small machine: 320 GB of address space,
//! every page of it present, freed on one CPU and on several.
//!
//! The pages are all the kernel's one zero page, so that only page tables
//! take memory: 1/512 of the size, 640 MiB for 320 GiB.
//!
//! `cargo run --release --example free320g -- [GIB] [MAX_ACTIVE]`

use std::{env, error::Error, thread, time::Instant};

use mmzap::{Map, Operation, Teardown};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let gib: usize = args.next().map_or(Ok(320), |text| text.parse())?;
    let width = match args.next() {
        Some(text) => text.parse()?,
        None => mmzap::default_max_active(),
    };
    let bytes = gib
        .checked_mul(1 << 30)
        .ok_or("that many GiB do not fit in an address")?;

    let plain = map(bytes)?;
    let start = Instant::now();
    drop(plain);
    let serial = start.elapsed();
    println!("munmap of {gib} GiB: {serial:.3?}");

    let report = Teardown::new(Operation::Unmap)
        .max_active(width)
        .unmap(map(bytes)?)
        .into_result()?;
    println!(
        "mmzap, max_active {width}: {:.3?}, {:.2} times as fast ({} batches, {} stolen)",
        report.wall,
        serial.as_secs_f64() / report.wall.as_secs_f64(),
        report.batches,
        report.steals
    );
    Ok(())
}

/// Address space in which every page has been read, by two threads.
fn map(bytes: usize) -> std::io::Result<Map> {
    let map = Map::options().huge_pages(false).map(bytes)?;
    let (left, right) = map.split_at(bytes / 2);
    thread::scope(|scope| {
        for part in [left, right] {
            scope.spawn(|| {
                let sum: u64 = part.iter().step_by(4096).map(|&byte| u64::from(byte)).sum();
                assert_eq!(sum, 0, "untouched memory reads zero");
            });
        }
    });
    Ok(map)
}
