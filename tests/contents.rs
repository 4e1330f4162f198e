//! No byte outside the handed ranges changes, and inside them the contents are
//! what each kind of mapping promises: random ranges over random mappings, on
//! the running kernel.

#[path = "contents/space.rs"]
mod space;
mod support;

use mmzap::{Operation, Reason, Teardown};
use proptest::prelude::*;
use space::*;
use support::{memory::*, sys};

const OPERATIONS: [Operation; 6] = [
    Operation::Discard,
    Operation::DiscardLocked,
    Operation::Unmap,
    Operation::Cold,
    Operation::PageOut,
    Operation::Punch,
];

#[derive(Clone, Debug)]
struct Case {
    parts: Vec<(Kind, usize)>,
    /// Start and length, in thousandths of the space, and what is added to
    /// the bytes of both.
    ranges: Vec<(usize, usize, usize, usize)>,
    width: usize,
    batch_bytes: Option<usize>,
}

fn cases() -> impl Strategy<Value = Case> {
    // Most spaces are small: more cases in the same time. One in eight is
    // large enough to be shared among threads.
    let scale = prop_oneof![7 => Just(1usize), 1 => Just(120usize)];
    let parts = (
        prop::collection::vec((prop::sample::select(kinds()), 1usize..10), 1..12),
        scale,
    )
        .prop_map(|(parts, scale)| {
            parts
                .into_iter()
                .map(|(kind, pages)| {
                    // Locking is bounded for ordinary users.
                    let pages = if kind.is_locked() {
                        pages
                    } else {
                        pages * scale
                    };
                    (kind, pages * PAGE)
                })
                .collect()
        });
    let edge = prop_oneof![2 => Just(0usize), 1 => 0..PAGE];
    let range = (0usize..1000, 0usize..500, edge.clone(), edge);
    (
        parts,
        prop::collection::vec(range, 1..7),
        1usize..4,
        prop::option::of(prop::sample::select(&[PAGE, 64 << 10, 2 << 20][..])),
    )
        .prop_map(|(parts, ranges, width, batch_bytes)| Case {
            parts,
            ranges,
            width,
            batch_bytes,
        })
}

impl Case {
    /// The ranges in bytes, all inside the space.
    fn ranges(&self, space: &Space) -> Vec<(usize, usize)> {
        let pages = space.len / PAGE;
        self.ranges
            .iter()
            .map(|&(start, len, shift, more)| {
                let start = (start * pages / 1000 * PAGE + shift).min(space.len);
                let len = (len * pages / 1000 * PAGE + more).min(space.len - start);
                (space.start + start, len)
            })
            .collect()
    }
}

/// Bytes that are in at least one range.
fn union_bytes(ranges: &[(usize, usize)]) -> usize {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut end = 0;
    let mut sum = 0;
    for (start, len) in sorted {
        let from = start.max(end);
        end = end.max(start + len);
        sum += end.saturating_sub(from);
    }
    sum
}

fn check(case: &Case, operation: Operation) -> Result<(), TestCaseError> {
    let space = Space::build(&case.parts);
    let ranges = case.ranges(&space);
    let mut job = Teardown::new(operation).max_active(case.width);
    if let Some(bytes) = case.batch_bytes {
        job = job.batch_bytes(bytes);
    }
    let report = run(&mut job, &ranges);

    let touched = |page: usize| {
        ranges
            .iter()
            .any(|&(start, len)| start <= page && page + PAGE <= start + len)
    };
    for segment in &space.segments {
        segment
            .check(operation, &touched)
            .map_err(TestCaseError::fail)?;
    }
    prop_assert!(report.failures().is_empty(), "{:?}", report.failures());

    let mut skipped_pages = 0;
    for skipped in report.skipped() {
        match skipped.reason {
            Reason::Empty => prop_assert_eq!(skipped.len, 0),
            Reason::PartialPage => {
                prop_assert!(skipped.len < PAGE || !skipped.addr.is_multiple_of(PAGE))
            }
            reason => {
                for page in (skipped.addr..skipped.addr + skipped.len).step_by(PAGE) {
                    let kind = space.kind_at(page);
                    prop_assert!(touched(page), "{} was not handed in", skipped);
                    prop_assert!(
                        reason_fits(operation, kind, reason),
                        "{:?}: {}",
                        kind,
                        skipped
                    );
                }
                skipped_pages += skipped.len / PAGE;
            }
        }
    }
    // Whole pages are done exactly where the table says so. An unmap may take
    // a hole in its stride.
    let pages = (space.start..space.start + space.len).step_by(PAGE);
    let (mut left, mut holes, mut whole) = (0, 0, 0);
    for page in pages.filter(|&page| touched(page)) {
        whole += 1;
        match space.kind_at(page) {
            Kind::Hole => holes += 1,
            kind if after(operation, kind) == After::Left => left += 1,
            _ => {}
        }
    }
    let least = if operation == Operation::Unmap {
        left
    } else {
        left + holes
    };
    prop_assert!(
        (least..=left + holes).contains(&skipped_pages),
        "{} pages skipped",
        skipped_pages
    );
    prop_assert_eq!(report.bytes_done, (whole - skipped_pages) * PAGE);
    // Of partial pages in several ranges tests/bad_input.rs has the account.
    let bytes = union_bytes(&ranges);
    if bytes == ranges.iter().map(|&(_, len)| len).sum::<usize>() {
        prop_assert_eq!(accounted(&report), bytes, "{:?} over {:x?}", report, ranges);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn only_whole_pages_inside_the_ranges_change(case in cases()) {
        for operation in OPERATIONS {
            check(&case, operation)?;
        }
    }
}

#[test]
fn every_kind_alone_under_every_operation() {
    for kind in kinds() {
        for operation in OPERATIONS {
            let case = Case {
                parts: vec![(kind, 4 * PAGE)],
                ranges: vec![(250, 500, 0, 0)],
                width: 2,
                batch_bytes: None,
            };
            check(&case, operation).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        }
    }
}

#[test]
fn lazily_freed_memory_is_reclaimable_and_everything_else_is_left() {
    let parts: Vec<_> = kinds().into_iter().map(|kind| (kind, 2 * PAGE)).collect();
    let space = Space::build(&parts);
    let report = run(
        &mut Teardown::new(Operation::LazyFree),
        &[(space.start, space.len)],
    );
    let taken = [
        Kind::Anonymous,
        Kind::ReadOnly,
        Kind::NoAccess,
        Kind::Droppable,
    ];

    let kept = space.segments.iter().filter(|s| taken.contains(&s.kind));
    let bytes: usize = kept.map(|s| s.len).sum();
    assert_eq!(report.reclaimable_bytes(), bytes);
    assert_eq!(report.freed_bytes(), 0);
    assert_eq!(accounted(&report), space.len);
    for segment in space.segments.iter().filter(|s| !taken.contains(&s.kind)) {
        segment.check(Operation::Cold, &|_| false).unwrap();
    }
    // Those it took hold what they held or zero, page by page.
    for segment in space.segments.iter().filter(|s| taken.contains(&s.kind)) {
        for page in segment.pages() {
            let seen = peek(page, PAGE).expect("still mapped");
            assert!(seen == [0; PAGE] || seen == at_first(segment.kind, page));
        }
    }
}

#[test]
fn heap_memory_is_discarded_and_keeps_its_neighbours() {
    let end = sys::grow_heap(8 * PAGE).expect("a longer heap");
    let first = end.next_multiple_of(PAGE);
    fill(first, 6 * PAGE);
    let report = run(
        &mut Teardown::new(Operation::Discard),
        &[(first + PAGE + 1, 3 * PAGE)],
    );
    assert_eq!((report.bytes_done, report.bytes_skipped), (2 * PAGE, PAGE));
    for (index, page) in (first..first + 6 * PAGE).step_by(PAGE).enumerate() {
        let expected = if (2..4).contains(&index) {
            0
        } else {
            stamp(page)
        };
        assert_eq!(word(page), expected, "page {index}");
    }
}
