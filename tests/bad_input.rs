//! Ranges that are wrong: each is reported with its reason and its place, and
//! the rest is done.

mod support;

use std::{fs, io};

use mmzap::{Operation, Reason, Report, Teardown};
use support::{memory::*, sys};

/// Discards the bad range between two good ones; checks that those are gone.
fn discard_beside(addr: usize, len: usize) -> Report {
    let good = [filled(4 * PAGE), filled(4 * PAGE)];
    let report = run(
        &mut Teardown::new(Operation::Discard),
        &[(good[0], 4 * PAGE), (addr, len), (good[1], 4 * PAGE)],
    );
    for addr in good {
        assert_eq!(kept_pages(addr, 4 * PAGE), 0, "the rest was not freed");
    }
    report
}

/// The one skip of a report: where, how long, why.
#[track_caller]
fn only_skip(report: &Report) -> (usize, usize, Reason) {
    assert!(report.failures().is_empty(), "{:?}", report.failures());
    match report.skipped() {
        [one] => (one.addr, one.len, one.reason),
        several => panic!("not one skip: {several:?}"),
    }
}

#[test]
fn unaligned_edges_are_left_and_named() {
    let addr = filled(4 * PAGE);
    let report = discard_beside(addr + 100, 3 * PAGE);
    let skipped: Vec<_> = report
        .skipped()
        .iter()
        .map(|s| (s.addr, s.len, s.reason))
        .collect();
    assert_eq!(
        skipped,
        [
            (addr + 100, PAGE - 100, Reason::PartialPage),
            (addr + 3 * PAGE, 100, Reason::PartialPage)
        ]
    );
    assert_eq!(report.bytes_done, 8 * PAGE + 2 * PAGE);
    assert_eq!(kept_pages(addr, 4 * PAGE), 2);
}

#[test]
fn less_than_a_page_is_left_whole() {
    let addr = filled(2 * PAGE);
    let report = discard_beside(addr + 10, PAGE);
    assert_eq!(only_skip(&report), (addr + 10, PAGE, Reason::PartialPage));
    assert_eq!(kept_pages(addr, 2 * PAGE), 2);
}

#[test]
fn an_empty_range_is_named() {
    let addr = filled(PAGE);
    let report = discard_beside(addr, 0);
    assert_eq!(only_skip(&report), (addr, 0, Reason::Empty));
    assert_eq!(kept_pages(addr, PAGE), 1);
    assert_eq!(report.bytes_done, 8 * PAGE);
}

#[test]
fn a_range_that_wraps_is_named() {
    let (addr, len) = (usize::MAX - PAGE + 1, 2 * PAGE);
    assert_eq!(
        only_skip(&discard_beside(addr, len)),
        (addr, len, Reason::Wraps)
    );
    let addr = filled(PAGE);
    let report = discard_beside(addr, usize::MAX);
    assert_eq!(only_skip(&report), (addr, usize::MAX, Reason::Wraps));
    assert_eq!(kept_pages(addr, PAGE), 1);
}

#[test]
fn the_kernels_half_is_named() {
    for addr in [
        0xffff_8000_0000_0000,
        0xffff_ffff_8000_0000,
        0x8000_0000_0000_0000,
    ] {
        let report = discard_beside(addr, 4 * PAGE);
        assert_eq!(
            only_skip(&report),
            (addr, 4 * PAGE, Reason::BeyondUserSpace)
        );
    }
}

#[test]
fn a_range_from_user_space_into_the_kernels_half_is_named() {
    let (addr, len) = (filled(PAGE), 1 << 57);
    let report = discard_beside(addr, len);
    assert_eq!(only_skip(&report), (addr, len, Reason::BeyondUserSpace));
    assert_eq!(kept_pages(addr, PAGE), 1);
}

#[test]
fn the_null_page_is_unmapped_memory() {
    let report = discard_beside(0, 4 * PAGE);
    assert_eq!(only_skip(&report), (0, 4 * PAGE, Reason::Unmapped));
}

#[test]
fn unmapped_memory_is_named() {
    let hole = fresh_addresses(8 * PAGE);
    let report = discard_beside(hole, 8 * PAGE);
    assert_eq!(only_skip(&report), (hole, 8 * PAGE, Reason::Unmapped));
    assert_eq!(report.bytes_done, 8 * PAGE);
}

#[test]
fn a_hole_in_a_range_is_named_and_both_sides_are_done() {
    for pages in [6, 6000] {
        let len = pages * PAGE;
        let addr = filled(len);
        let third = len / 3;
        sys::unmap(addr + third, third).unwrap();
        // Alone, so that the small one goes straight to the kernel.
        let report = run(&mut Teardown::new(Operation::Discard), &[(addr, len)]);
        assert_eq!(only_skip(&report), (addr + third, third, Reason::Unmapped));
        assert_eq!(report.bytes_done, 2 * third);
        assert_eq!(
            kept_pages(addr, third) + kept_pages(addr + 2 * third, third),
            0
        );
    }
}

#[test]
fn the_kernels_own_mappings_are_never_touched() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let own: Vec<_> = maps
        .lines()
        .filter(|line| line.contains("[v"))
        .map(|line| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let hex = |text| usize::from_str_radix(text, 16).unwrap();
            (hex(start), hex(end) - hex(start), line.to_owned())
        })
        .collect();
    assert!(
        own.iter().any(|(_, _, line)| line.ends_with("[vdso]")),
        "{maps}"
    );
    for (addr, len, line) in own {
        for operation in [Operation::Discard, Operation::Unmap, Operation::Cold] {
            let good = [filled(PAGE), filled(PAGE)];
            let report = run(
                &mut Teardown::new(operation),
                &[(good[0], PAGE), (addr, len), (good[1], PAGE)],
            );
            let (at, bytes, reason) = only_skip(&report);
            assert_eq!((at, bytes), (addr, len), "{line}");
            assert!(
                matches!(reason, Reason::Kind(_) | Reason::BeyondUserSpace),
                "{line}: {reason}"
            );
            assert_eq!(report.bytes_done, 2 * PAGE);
        }
    }
    let after = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(after.contains("[vdso]"));
    // A clock that the vDSO answers still works.
    assert!(std::time::SystemTime::now() > std::time::SystemTime::UNIX_EPOCH);
}

/// A small job over one range goes straight to the kernel, which would discard
/// the vDSO if asked.
#[test]
fn the_kernels_own_mappings_are_refused_alone_as_well() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines().filter(|line| line.contains("[v")) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let start = usize::from_str_radix(start, 16).unwrap();
        let len = usize::from_str_radix(end, 16).unwrap() - start;
        for operation in [Operation::Discard, Operation::Unmap] {
            let report = run(&mut Teardown::new(operation), &[(start, len)]);
            let (at, bytes, reason) = only_skip(&report);
            assert_eq!((at, bytes), (start, len), "{operation} of {line}");
            assert!(
                matches!(reason, Reason::Kind(_) | Reason::BeyondUserSpace),
                "{reason}"
            );
            assert_eq!(report.bytes_done, 0);
        }
    }
    // The clock lives in those pages.
    assert!(std::time::SystemTime::now().elapsed().is_ok());
}

#[test]
fn a_hole_is_not_called_unmapped_by_us() {
    let hole = fresh_addresses(4 * PAGE);
    let report = run(&mut Teardown::new(Operation::Unmap), &[(hole, 4 * PAGE)]);
    assert_eq!(only_skip(&report), (hole, 4 * PAGE, Reason::Unmapped));
    assert_eq!(report.freed_bytes(), 0);
}

#[test]
fn many_locked_mappings_are_explained_in_one_go() {
    // Every second page locked, so that each is a mapping of its own.
    const COUNT: usize = 2000;
    let addr = filled(2 * COUNT * PAGE);
    for i in 0..COUNT {
        sys::lock(addr + 2 * i * PAGE, PAGE).unwrap();
    }
    let report = run(
        &mut Teardown::new(Operation::Discard),
        &[(addr, 2 * COUNT * PAGE)],
    );
    assert_eq!(
        (report.bytes_done, report.bytes_skipped),
        (COUNT * PAGE, COUNT * PAGE)
    );
    assert!(report.skipped().iter().all(|s| s.reason == Reason::Locked));
    sys::unmap(addr, 2 * COUNT * PAGE).unwrap();
}

#[test]
fn locked_memory_is_named_and_left() {
    let addr = filled(4 * PAGE);
    sys::lock(addr, 4 * PAGE).unwrap();
    let report = discard_beside(addr, 4 * PAGE);
    assert_eq!(only_skip(&report), (addr, 4 * PAGE, Reason::Locked));
    assert_eq!(kept_pages(addr, 4 * PAGE), 4);
    let report = run(
        &mut Teardown::new(Operation::DiscardLocked),
        &[(addr, 4 * PAGE)],
    );
    assert_eq!(report.bytes_done, 4 * PAGE);
    assert_eq!(kept_pages(addr, 4 * PAGE), 0);
}

#[test]
fn a_locked_page_in_the_middle_does_not_keep_its_neighbours() {
    for pages in [9, 6000] {
        let len = pages * PAGE;
        let addr = filled(len);
        let middle = addr + len / 3;
        sys::lock(middle, PAGE).unwrap();
        let report = run(&mut Teardown::new(Operation::Discard), &[(addr, len)]);
        assert_eq!(only_skip(&report), (middle, PAGE, Reason::Locked));
        assert_eq!(report.bytes_done, len - PAGE);
        assert_eq!(kept_pages(addr, len), 1);
        assert_eq!(word(middle), stamp(middle));
    }
}

/// Seals pages; false, with the reason printed, where mseal(2) is missing.
fn seal(addr: usize, len: usize) -> bool {
    sys::protect(addr, len, sys::PROT_READ).unwrap();
    match sys::seal(addr, len) {
        Err(error) if error.raw_os_error() == Some(sys::ENOSYS) => {
            eprintln!("skipped: needs mseal: {error}");
            false
        }
        answer => {
            answer.unwrap();
            true
        }
    }
}

#[test]
fn sealed_memory_is_named_and_left() {
    let addr = filled(4 * PAGE);
    if !seal(addr, 4 * PAGE) {
        return;
    }
    let report = discard_beside(addr, 4 * PAGE);
    assert_eq!(only_skip(&report), (addr, 4 * PAGE, Reason::Sealed));
    assert_eq!(kept_pages(addr, 4 * PAGE), 4);
}

#[test]
fn a_sealed_mapping_does_not_keep_its_neighbours_mapped() {
    for pages in [9, 6000] {
        let len = pages * PAGE;
        let addr = filled(len);
        let middle = addr + len / 3;
        if !seal(middle, PAGE) {
            return;
        }
        let report = run(&mut Teardown::new(Operation::Unmap), &[(addr, len)]);
        assert_eq!(only_skip(&report), (middle, PAGE, Reason::Sealed));
        assert_eq!(report.bytes_done, len - PAGE);
        assert_eq!(word(middle), stamp(middle));
        let left: Vec<_> = mmzap::mapping::of(addr as *const u8, len)
            .iter()
            .map(|mapping| (mapping.range.start(), mapping.range.len()))
            .collect();
        assert_eq!(left, [(middle, PAGE)]);
    }
}

#[test]
fn overlapping_ranges_count_once() {
    for operation in [Operation::Discard, Operation::Unmap] {
        let addr = filled(12 * PAGE);
        let ranges = [
            (addr + 4 * PAGE, 4 * PAGE),
            (addr + PAGE, 4 * PAGE),
            (addr + 6 * PAGE, PAGE),
            (addr + PAGE, 4 * PAGE),
            (addr + 8 * PAGE, 2 * PAGE),
        ];
        let report = run(&mut Teardown::new(operation), &ranges);
        assert_eq!((report.bytes_done, report.bytes_skipped), (9 * PAGE, 0));
        assert!(report.failures().is_empty());
        assert_eq!(word(addr), stamp(addr));
        assert_eq!(kept_pages(addr + 10 * PAGE, 2 * PAGE), 2);
        let mapped = mmzap::mapping::of((addr + PAGE) as *const u8, 9 * PAGE);
        assert_eq!(mapped.is_empty(), operation == Operation::Unmap);
    }
}

/// Bytes that one range hands in as part of a page and another one whole: the
/// page goes, and each range is told of its edges.
#[test]
fn a_partial_page_is_reported_for_each_range_that_has_it() {
    let addr = filled(4 * PAGE);
    let ranges = [(addr, 4 * PAGE), (addr + 100, PAGE), (addr + 100, PAGE)];
    let report = run(&mut Teardown::new(Operation::Discard), &ranges);
    assert_eq!(kept_pages(addr, 4 * PAGE), 0);
    assert_eq!(report.bytes_done, 4 * PAGE);
    assert_eq!(report.bytes_skipped, 2 * PAGE, "{:?}", report.skipped());
}

#[test]
fn many_bad_ranges_are_all_counted_even_if_not_all_are_listed() {
    let hole = fresh_addresses(10_000 * PAGE);
    let bad: Vec<_> = (0..5000).map(|i| (hole + 2 * i * PAGE, PAGE)).collect();
    let good = filled(4 * PAGE);
    let mut ranges = bad.clone();
    ranges.push((good, 4 * PAGE));
    let report = run(&mut Teardown::new(Operation::Discard), &ranges);
    assert_eq!(report.bytes_skipped, 5000 * PAGE);
    assert_eq!(report.bytes_done, 4 * PAGE);
    assert!(!report.skipped().is_empty() && report.skipped().len() <= bad.len());
    assert_eq!(kept_pages(good, 4 * PAGE), 0);
}

#[test]
fn no_ranges_are_no_job() {
    let report = run(&mut Teardown::new(Operation::Unmap), &[]);
    assert_eq!(
        (accounted(&report), report.batches, report.system_calls),
        (0, 0, 0)
    );
    assert!(report.into_result().is_ok());
}

#[test]
fn skips_say_where_how_much_and_why() {
    let hole = fresh_addresses(2 * PAGE);
    let report = discard_beside(hole, 2 * PAGE);
    let text = report.skipped()[0].to_string();
    let place = format!("{hole:#x}..{:#x}", hole + 2 * PAGE);
    assert!(
        text.contains(&place) && text.contains("8192 bytes"),
        "{text}"
    );
    assert!(text.contains("nothing is mapped"), "{text}");
}

#[test]
fn an_error_names_operation_range_bytes_errno_and_what_to_do() {
    let mut map = mmzap::Map::options().map(8 * PAGE).unwrap();
    let start = map.as_ptr().addr();
    let error = Teardown::new(Operation::LazyFree)
        .run(&mut map)
        .into_result()
        .expect_err("an owned map is not freed lazily");
    assert_eq!(error.operation(), Operation::LazyFree);
    assert_eq!(error.errno().0, sys::EINVAL);
    assert_eq!(error.done_bytes(), 0);
    let range = error.range().expect("a place");
    assert_eq!((range.start(), range.len()), (start, 8 * PAGE));
    let text = error.to_string();
    for part in [
        "lazy free",
        &format!("{start:#x}..{:#x}", start + 8 * PAGE),
        "32768 bytes",
        "after 0 bytes",
        "os error 22",
        "run_raw",
    ] {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
    let as_io = io::Error::from(error);
    assert_eq!(as_io.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(as_io.to_string(), text);
}

/// A token that comes when everything is emptied stops nothing; one that comes
/// before leaves the addresses mapped, and the report says so.
#[test]
fn a_cancelled_unmap_says_what_is_still_mapped() {
    const LEN: usize = 64 << 20;
    for at_the_end in [true, false] {
        let addr = filled(LEN);
        let cancel = mmzap::Cancel::default();
        let mut job = Teardown::new(Operation::Unmap)
            .max_active(1)
            .batch_bytes(8 << 20)
            .cancel(&cancel)
            .on_progress(|progress| {
                if !at_the_end || progress.done_bytes == progress.total_bytes {
                    cancel.now();
                }
            });
        let report = run(&mut job, &[(addr, LEN)]);
        let gone = mmzap::mapping::of(addr as *const u8, LEN).is_empty();
        assert_eq!(gone, at_the_end);
        assert_eq!(accounted(&report), LEN);
        assert_eq!(report.bytes_done == LEN, at_the_end, "{report:?}");
        if !gone {
            let emptied = LEN - kept_pages(addr, LEN) * PAGE;
            assert_eq!(report.bytes_done, emptied);
            sys::unmap(addr, LEN).unwrap();
        }
    }
}
