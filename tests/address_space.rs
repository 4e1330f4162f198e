//! Unmapping beside a thread that maps: nobody loses what is theirs.

mod support;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use mmzap::{Map, Operation, Teardown};
use support::{memory::*, sys};

/// Maps, writes, reads back and unmaps until told to stop. What the kernel
/// hands out here may be addresses that a teardown has just given back.
fn map_all_the_time(stop: &AtomicBool) -> usize {
    const BYTES: usize = 64 << 10;
    let mut rounds = 0;
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let protection = sys::PROT_READ | sys::PROT_WRITE;
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
        let addr = sys::map(None, BYTES, protection, flags, None, 0).expect("memory");
        assert_eq!(kept_pages(addr, BYTES), 0, "new memory is zero");
        fill(addr, BYTES);
        held.push(addr);
        if held.len() > 16 {
            let oldest = held.remove(0);
            assert_eq!(
                kept_pages(oldest, BYTES),
                BYTES / PAGE,
                "lost at {oldest:#x}"
            );
            sys::unmap(oldest, BYTES).unwrap();
        }
        rounds += 1;
    }
    for addr in held {
        assert_eq!(kept_pages(addr, BYTES), BYTES / PAGE, "lost at {addr:#x}");
        sys::unmap(addr, BYTES).unwrap();
    }
    rounds
}

fn beside_a_mapping_thread(mut body: impl FnMut()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| map_all_the_time(&stop));
        for _ in 0..12 {
            body();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(other.join().expect("nothing lost") > 0);
    });
}

#[test]
fn unmapping_an_owned_map_takes_exactly_its_own_addresses() {
    beside_a_mapping_thread(|| {
        let map = Map::options()
            .huge_pages(false)
            .populate(true)
            .map(128 * MIB)
            .unwrap();
        let report = Teardown::new(Operation::Unmap).max_active(3).unmap(map);
        assert_eq!(report.freed_bytes(), 128 * MIB);
        assert!(report.failures().is_empty());
    });
}

#[test]
fn unmapping_raw_ranges_takes_exactly_their_addresses() {
    beside_a_mapping_thread(|| {
        let protection = sys::PROT_READ | sys::PROT_WRITE;
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
        let addr = sys::map(None, 64 * MIB, protection, flags, None, 0).unwrap();
        fill(addr, 64 * MIB);
        // The first page and the last stay.
        let inner = (addr + PAGE, 64 * MIB - 2 * PAGE);
        let report = run(&mut Teardown::new(Operation::Unmap).max_active(3), &[inner]);
        assert_eq!(report.bytes_done, inner.1);
        for page in [addr, addr + 64 * MIB - PAGE] {
            assert_eq!(word(page), stamp(page));
            sys::unmap(page, PAGE).unwrap();
        }
    });
}

#[test]
fn discarding_scattered_ranges_beside_a_mapping_thread_keeps_the_rest() {
    beside_a_mapping_thread(|| {
        let protection = sys::PROT_READ | sys::PROT_WRITE;
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
        let addr = sys::map(None, 64 * MIB, protection, flags, None, 0).unwrap();
        fill(addr, 64 * MIB);
        let ranges: Vec<_> = (addr..addr + 64 * MIB)
            .step_by(4 * PAGE)
            .map(|start| (start, 2 * PAGE))
            .collect();
        let report = run(
            &mut Teardown::new(Operation::Discard).max_active(3),
            &ranges,
        );
        assert_eq!(report.bytes_done, 32 * MIB);
        assert_eq!(kept_pages(addr, 64 * MIB), 32 * MIB / PAGE);
        sys::unmap(addr, 64 * MIB).unwrap();
    });
}
