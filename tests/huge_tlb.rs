//! Memory of a huge-page file system: rounded to its own pages, the rest
//! reported, nothing leaked. Sets vm.nr_hugepages for the while.

mod support;

use std::fs;

use mmzap::{Map, Operation, Reason, Teardown};
use support::{memory::*, settings::Setting, sys};

const HUGE: usize = 2 * MIB;

/// A pool of this many free huge pages.
fn pool(pages: usize) -> Setting {
    support::needs_root();
    if meminfo("Hugepagesize:") * 1024 != HUGE {
        support::skip("needs huge pages of 2 MiB");
    }
    let setting = support::needs(
        "vm.nr_hugepages",
        Setting::set("/proc/sys/vm/nr_hugepages", &pages.to_string()),
    );
    if meminfo("HugePages_Free:") < pages {
        support::skip(format_args!(
            "needs {pages} huge pages, memory is too cut up"
        ));
    }
    setting
}

fn meminfo(line: &str) -> usize {
    let text = fs::read_to_string("/proc/meminfo").expect("meminfo");
    let value = text
        .lines()
        .find_map(|l| l.strip_prefix(line))
        .expect("the line");
    value
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

fn free_pages() -> usize {
    meminfo("HugePages_Free:")
}

/// Pages that are neither in use nor promised to somebody.
fn unclaimed_pages() -> usize {
    meminfo("HugePages_Free:") - meminfo("HugePages_Rsvd:")
}

/// Huge pages that go back to the pool also when a test fails.
struct Huge(usize, usize);

impl Drop for Huge {
    fn drop(&mut self) {
        let _ = sys::unmap(self.0, self.1 * HUGE);
    }
}

fn huge(pages: usize, how: i32) -> Huge {
    let protection = sys::PROT_READ | sys::PROT_WRITE;
    let flags = how | sys::MAP_ANONYMOUS | sys::MAP_HUGETLB;
    let at = fresh_addresses(pages * HUGE);
    let addr = sys::map(Some(at), pages * HUGE, protection, flags, None, 0).expect("huge pages");
    fill(addr, pages * HUGE);
    Huge(addr, pages)
}

/// Each page's words as they were, or all zero.
fn state(addr: usize, pages: usize) -> Vec<bool> {
    (0..pages)
        .map(|i| match kept_pages(addr + i * HUGE, HUGE) {
            0 => false,
            kept if kept == HUGE / PAGE => true,
            kept => panic!("{kept} of a huge page's {} small pages kept", HUGE / PAGE),
        })
        .collect()
}

/// The case from the field: 3 MiB of a mapping whose kernel length is 4 MiB.
fn three_of_four_mib_are_rounded_down_and_the_rest_is_named() {
    let _pool = pool(8);
    for operation in [Operation::Discard, Operation::DiscardLocked] {
        let held = huge(2, sys::MAP_PRIVATE);
        let addr = held.0;
        let report = run(&mut Teardown::new(operation), &[(addr, 3 * MIB)]);
        assert_eq!(state(addr, 2), [false, true]);
        assert_eq!(report.bytes_done, HUGE, "{report:?}");
        let skipped: Vec<_> = report
            .skipped()
            .iter()
            .map(|s| (s.addr, s.len, s.reason))
            .collect();
        let reason = Reason::PartialHugePage { page_bytes: HUGE };
        assert_eq!(skipped, [(addr + HUGE, MIB, reason)]);
        assert_eq!(accounted(&report), 3 * MIB);
        drop(held);
    }
    assert_eq!(unclaimed_pages(), 8);
}

fn less_than_a_huge_page_is_left_whole() {
    let _pool = pool(8);
    for (from, len) in [(0, PAGE), (0, HUGE - PAGE), (PAGE, HUGE), (MIB, 2 * MIB)] {
        let held = huge(2, sys::MAP_PRIVATE);
        let addr = held.0;
        let report = run(
            &mut Teardown::new(Operation::Discard),
            &[(addr + from, len)],
        );
        assert_eq!(state(addr, 2), [true, true], "{from:#x} {len:#x}");
        assert_eq!(
            (report.bytes_done, report.bytes_skipped),
            (0, len),
            "{from:#x} {len:#x}"
        );
        drop(held);
    }
}

fn both_unaligned_edges_are_left_and_named() {
    let _pool = pool(8);
    let held = huge(4, sys::MAP_PRIVATE);
    let addr = held.0;
    let report = run(
        &mut Teardown::new(Operation::Discard),
        &[(addr + MIB, 3 * HUGE - PAGE)],
    );
    assert_eq!(state(addr, 4), [true, false, false, true]);
    assert_eq!(
        (report.bytes_done, report.bytes_skipped),
        (2 * HUGE, HUGE - PAGE)
    );
    drop(held);
}

/// Huge pages and small ones in one job.
fn a_mixed_job_rounds_only_what_is_huge() {
    let _pool = pool(8);
    let held = huge(4, sys::MAP_PRIVATE);
    let addr = held.0;
    let small = filled(32 * MIB);
    let report = run(
        &mut Teardown::new(Operation::Discard).max_active(2),
        &[(addr, 3 * HUGE + MIB), (small + PAGE, 32 * MIB - 2 * PAGE)],
    );
    assert_eq!(state(addr, 4), [false, false, false, true]);
    assert_eq!(report.bytes_done, 3 * HUGE + 32 * MIB - 2 * PAGE);
    assert_eq!(report.bytes_skipped, MIB);
    assert_eq!(kept_pages(small, 32 * MIB), 2);
    drop(held);
    sys::unmap(small, 32 * MIB).unwrap();
}

fn unmapping_a_part_takes_whole_huge_pages_and_a_retry_leaks_nothing() {
    let _pool = pool(8);
    for _ in 0..3 {
        let held = huge(2, sys::MAP_PRIVATE);
        let addr = held.0;
        let report = run(&mut Teardown::new(Operation::Unmap), &[(addr, 3 * MIB)]);
        assert_eq!(
            (report.bytes_done, report.bytes_skipped),
            (HUGE, MIB),
            "{report:?}"
        );
        assert!(report.failures().is_empty());
        assert_eq!(state(addr + HUGE, 1), [true]);
        assert!(mmzap::mapping::of(addr as *const u8, HUGE).is_empty());
        let again = run(&mut Teardown::new(Operation::Unmap), &[(addr + HUGE, HUGE)]);
        assert_eq!(again.bytes_done, HUGE);
        assert_eq!((free_pages(), unclaimed_pages()), (8, 8));
        std::mem::forget(held); // unmapped already
    }
}

fn shared_huge_pages_are_kept_by_discard_and_go_by_punch() {
    let _pool = pool(8);
    let held = huge(4, sys::MAP_SHARED);
    let addr = held.0;
    let report = run(&mut Teardown::new(Operation::Discard), &[(addr, 4 * HUGE)]);
    assert_eq!((report.bytes_done, report.bytes_failed), (4 * HUGE, 0));
    assert_eq!(state(addr, 4), [true; 4]);
    assert_eq!(free_pages(), 4);
    let report = run(
        &mut Teardown::new(Operation::Punch),
        &[(addr, 3 * HUGE + MIB)],
    );
    assert_eq!((report.bytes_done, report.bytes_skipped), (3 * HUGE, MIB));
    assert_eq!(free_pages(), 7);
    assert_eq!(state(addr, 4), [false, false, false, true]);
    drop(held);
    assert_eq!(unclaimed_pages(), 8);
}

fn hints_are_refused_with_the_reason() {
    let _pool = pool(8);
    let held = huge(2, sys::MAP_PRIVATE);
    let addr = held.0;
    for operation in [Operation::LazyFree, Operation::Cold, Operation::PageOut] {
        let report = run(&mut Teardown::new(operation), &[(addr, 2 * HUGE)]);
        assert_eq!((report.bytes_done, report.bytes_skipped), (0, 2 * HUGE));
        assert!(matches!(report.skipped()[0].reason, Reason::Kind(_)));
    }
    assert_eq!(state(addr, 2), [true, true]);
    drop(held);
}

fn owned_maps_of_huge_pages_give_all_of_them_back() {
    let _pool = pool(8);
    for round in 0..20 {
        let mut map = Map::options()
            .huge_tlb(true)
            .populate(true)
            .map(3 * MIB)
            .unwrap();
        assert_eq!(map.len(), 3 * MIB);
        assert_eq!(free_pages(), 6, "round {round}");
        map.fill(7);
        let report = Teardown::new(Operation::Discard).run(&mut map);
        assert_eq!(
            (report.bytes_done, report.bytes_skipped),
            (3 * MIB, 0),
            "{report:?}"
        );
        assert!(map.iter().all(|&byte| byte == 0));
        if round % 2 == 0 {
            let report = Teardown::new(Operation::Unmap).unmap(map);
            assert!(report.failures().is_empty(), "{:?}", report.failures());
            assert_eq!(report.freed_bytes(), 3 * MIB);
        } else {
            drop(map);
        }
        assert_eq!((free_pages(), unclaimed_pages()), (8, 8), "round {round}");
    }
}

fn main() {
    support::main(
        named![
            three_of_four_mib_are_rounded_down_and_the_rest_is_named,
            less_than_a_huge_page_is_left_whole,
            both_unaligned_edges_are_left_and_named,
            a_mixed_job_rounds_only_what_is_huge,
            unmapping_a_part_takes_whole_huge_pages_and_a_retry_leaks_nothing,
            shared_huge_pages_are_kept_by_discard_and_go_by_punch,
            hints_are_refused_with_the_reason,
            owned_maps_of_huge_pages_give_all_of_them_back,
        ],
        &[],
    );
}
