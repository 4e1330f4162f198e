//! Jobs of many gigabytes and of many thousand ranges are done whole.
//!
//! The kernel stops silently after 2 147 479 552 bytes of one vector, and
//! takes 1024 ranges at once.

mod support;

use mmzap::{Operation, Reason, Report, Teardown};
use support::{memory::*, sys};

const GIB: usize = 1 << 30;

/// Pages that are all present, but all the kernel's one zero page.
fn read_populated(len: usize) -> usize {
    let addr = anonymous(len);
    support::needs(
        "MADV_POPULATE_READ",
        sys::hint(addr, len, sys::POPULATE_READ),
    );
    assert_eq!(present_pages(addr, len), len / PAGE);
    addr
}

#[track_caller]
fn all_done(report: &Report, bytes: usize) {
    assert!(report.failures().is_empty(), "{:?}", report.failures());
    assert_eq!((report.bytes_done, accounted(report)), (bytes, bytes));
}

/// Ranges of 3 MiB go to the kernel in vectors, and 1500 of them are 4.4 GiB.
fn vectors_of_more_than_two_gib_are_done_whole() {
    const RANGES: usize = 1500;
    const RANGE: usize = 3 * MIB;
    const STRIDE: usize = RANGE + PAGE;
    for width in [1, 3] {
        for batch_bytes in [None, Some(8 * GIB)] {
            let addr = read_populated(RANGES * STRIDE);
            let between: Vec<_> = (0..RANGES).map(|i| addr + i * STRIDE + RANGE).collect();
            between.iter().for_each(|&page| fill(page, PAGE));
            let ranges: Vec<_> = (0..RANGES).map(|i| (addr + i * STRIDE, RANGE)).collect();
            let mut job = Teardown::new(Operation::Discard).max_active(width);
            if let Some(bytes) = batch_bytes {
                job = job.batch_bytes(bytes);
            }
            let report = run(&mut job, &ranges);
            all_done(&report, RANGES * RANGE);
            assert_eq!(present_pages(addr, RANGES * STRIDE), RANGES);
            assert!(between.iter().all(|&page| word(page) == stamp(page)));
            sys::unmap(addr, RANGES * STRIDE).unwrap();
        }
    }
}

fn one_range_of_more_than_two_gib_is_done_whole() {
    let len = 5 * GIB + 3 * PAGE;
    for operation in [
        Operation::Discard,
        Operation::DiscardLocked,
        Operation::Unmap,
    ] {
        let addr = read_populated(len);
        let edges = [addr, addr + len - PAGE];
        edges.iter().for_each(|&page| fill(page, PAGE));
        let mut job = Teardown::new(operation).max_active(2);
        let report = run(&mut job, &[(addr + PAGE, len - 2 * PAGE)]);
        all_done(&report, len - 2 * PAGE);
        assert!(edges.iter().all(|&page| word(page) == stamp(page)));
        if operation == Operation::Unmap {
            assert!(mmzap::mapping::of((addr + PAGE) as *const u8, len - 2 * PAGE).is_empty());
        } else {
            assert_eq!(present_pages(addr, len), 2);
        }
        for page in edges {
            sys::unmap(page, PAGE).unwrap();
        }
        let _ = sys::unmap(addr, len);
    }
}

const SCATTERED: usize = 65_536;
const SMALL: usize = 2 * PAGE;

fn every_second_one(addr: usize) -> Vec<(usize, usize)> {
    (0..SCATTERED)
        .map(|i| (addr + 2 * i * SMALL, SMALL))
        .collect()
}

fn scattered_ranges_go_and_their_neighbours_stay() {
    let len = 2 * SCATTERED * SMALL;
    let addr = filled(len);
    for (operation, width) in [
        (Operation::Discard, 1),
        (Operation::Discard, 2),
        (Operation::DiscardLocked, 3),
    ] {
        fill(addr, len);
        let before = anonymous_rss_bytes();
        let report = run(
            &mut Teardown::new(operation).max_active(width),
            &every_second_one(addr),
        );
        all_done(&report, len / 2);
        assert_eq!(present_pages(addr, len), len / 2 / PAGE);
        assert_eq!(kept_pages(addr, len), len / 2 / PAGE);
        for (start, _) in every_second_one(addr) {
            assert_eq!(kept_pages(start + SMALL, SMALL), SMALL / PAGE);
        }
        let gone = before.saturating_sub(anonymous_rss_bytes());
        assert!(gone > len / 2 - 64 * MIB, "{gone} bytes of RSS went");
    }
    sys::unmap(addr, len).unwrap();
}

/// In any order, with a bad one among them.
fn scattered_ranges_in_reverse_with_a_locked_page_among_them() {
    let len = 2 * SCATTERED * SMALL;
    let addr = filled(len);
    let locked = addr + SCATTERED * SMALL;
    sys::lock(locked, PAGE).unwrap();
    let mut ranges = every_second_one(addr);
    ranges.reverse();
    let report = run(
        &mut Teardown::new(Operation::Discard).max_active(2),
        &ranges,
    );
    assert_eq!(report.bytes_done, len / 2 - PAGE);
    let skipped: Vec<_> = report
        .skipped()
        .iter()
        .map(|s| (s.addr, s.len, s.reason))
        .collect();
    assert_eq!(skipped, [(locked, PAGE, Reason::Locked)]);
    assert_eq!(kept_pages(addr, len), len / 2 / PAGE + 1);
    sys::unmap(addr, len).unwrap();
}

/// A process may hold 65 530 mappings: past that the kernel refuses to cut
/// one in two.
fn unmapping_into_more_pieces_than_are_allowed_says_which_are_left() {
    support::play("too_many_pieces", "");
}

fn too_many_pieces() {
    const EXTRA: usize = 8000;
    let allowed: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    if allowed > 1 << 18 {
        eprintln!("skipped: {allowed} mappings are more than this test wants to make");
        return;
    }
    let pieces = allowed + EXTRA;
    let len = 2 * pieces * PAGE;
    let addr = filled(len);
    let ranges: Vec<_> = (0..pieces).map(|i| (addr + 2 * i * PAGE, PAGE)).collect();
    let report = run(&mut Teardown::new(Operation::Unmap), &ranges);
    assert_eq!(accounted(&report), pieces * PAGE);
    assert_eq!(report.bytes_skipped, 0);
    assert!(
        report.bytes_failed >= EXTRA / 2 * PAGE,
        "{}",
        report.bytes_failed
    );
    let first = &report.failures()[0];
    assert_eq!(first.errno().0, sys::ENOMEM);
    assert!(first.to_string().contains("max_map_count"), "{first}");
    let still_mapped = |page: usize| peek(page, 1).is_ok();
    let left = ranges
        .iter()
        .filter(|&&(page, _)| still_mapped(page))
        .count();
    assert_eq!(left * PAGE, report.bytes_failed);
    for error in report.failures() {
        assert!(still_mapped(error.range().expect("a place").start()));
    }
    let kept = ranges
        .iter()
        .filter(|&&(page, _)| word(page + PAGE) == stamp(page + PAGE));
    assert_eq!(kept.count(), pieces, "neighbours");
    // What could not be unmapped was emptied.
    assert!(
        ranges
            .iter()
            .filter(|&&(page, _)| still_mapped(page))
            .all(|&(page, _)| word(page) == 0)
    );
}

fn main() {
    support::main(
        named![
            vectors_of_more_than_two_gib_are_done_whole,
            one_range_of_more_than_two_gib_is_done_whole,
            scattered_ranges_go_and_their_neighbours_stay,
            scattered_ranges_in_reverse_with_a_locked_page_among_them,
            unmapping_into_more_pieces_than_are_allowed_says_which_are_left,
        ],
        named![too_many_pieces],
    );
}
