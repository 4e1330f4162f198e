use super::*;
use crate::mapping::Kind;
use proptest::prelude::*;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

fn range(start: usize, len: usize) -> PageRange {
    PageRange::new(start, len, PAGE).unwrap()
}

fn mapping(start: usize, len: usize, kind: Kind) -> Mapping {
    Mapping {
        range: range(start, len),
        kind,
        page_bytes: if kind == Kind::HugeTlb { HUGE } else { PAGE },
        writable: true,
    }
}

fn rules(operation: Operation) -> Rules {
    Rules::for_job(operation, 0, 0, 2, true)
}

fn batches(plan: &[Planned]) -> Vec<&Batch> {
    plan.iter()
        .filter_map(|step| match step {
            Planned::Batch(batch) => Some(batch),
            Planned::Skip(..) => None,
        })
        .collect()
}

#[test]
fn large_ranges_are_cut_at_huge_page_boundaries() {
    let start = 0x7f00_0000_0000 + PAGE;
    let whole = range(start, 64 << 20);
    let plan: Vec<_> = plan(
        vec![whole],
        &[mapping(start, 64 << 20, Kind::Anonymous)],
        rules(Operation::Discard),
    )
    .collect();
    let spans = batches(&plan);
    assert!(spans.len() > 4);
    for pair in spans.windows(2) {
        let (a, b) = (pair[0].ranges()[0], pair[1].ranges()[0]);
        assert_eq!(a.end(), b.start());
        assert_eq!(a.end() % HUGE, 0);
    }
}

#[test]
fn small_ranges_become_vectors_and_holes_are_named() {
    let ranges: Vec<_> = (0..100).map(|i| range(i * 8 * PAGE, 4 * PAGE)).collect();
    let maps = [
        mapping(0, 200 * PAGE, Kind::Anonymous),
        mapping(300 * PAGE, 500 * PAGE, Kind::Anonymous),
    ];
    let plan: Vec<_> = plan(ranges, &maps, rules(Operation::LazyFree)).collect();
    let skipped: usize = plan
        .iter()
        .map(|step| match step {
            Planned::Skip(range, Reason::Unmapped) => range.len(),
            Planned::Skip(..) => panic!("only holes are skipped"),
            Planned::Batch(_) => 0,
        })
        .sum();
    let planned: usize = batches(&plan).iter().map(|b| b.bytes()).sum();
    assert_eq!(skipped + planned, 400 * PAGE);
    assert!(batches(&plan).iter().any(|b| b.ranges().len() == 64));
}

#[test]
fn a_huge_page_file_system_is_cut_inward_to_its_own_pages() {
    let base = 64 * HUGE;
    let plan: Vec<_> = plan(
        vec![range(base, HUGE + HUGE / 2)],
        &[mapping(base, 2 * HUGE, Kind::HugeTlb)],
        rules(Operation::Discard),
    )
    .collect();
    assert_eq!(
        plan,
        [
            Planned::Skip(
                range(base + HUGE, HUGE / 2),
                Reason::PartialHugePage { page_bytes: HUGE }
            ),
            Planned::Batch(Batch::Span(range(base, HUGE))),
        ]
    );
}

#[test]
fn what_a_mapping_does_not_take_is_skipped_with_the_reason() {
    let maps = [
        mapping(0, 16 * PAGE, Kind::Shared),
        mapping(16 * PAGE, 16 * PAGE, Kind::Special),
    ];
    let plan: Vec<_> = plan(vec![range(0, 32 * PAGE)], &maps, rules(Operation::LazyFree)).collect();
    assert_eq!(plan.len(), 2);
    assert!(
        plan.iter()
            .all(|s| matches!(s, Planned::Skip(_, Reason::Kind(_))))
    );
}

#[test]
fn shared_bytes_are_counted_once_however_they_are_cut() {
    let maps = [
        mapping(0, 64 << 20, Kind::Shared),
        mapping(64 << 20, 64 << 20, Kind::Anonymous),
    ];
    let wanted = [range(1 << 20, 40 << 20), range(60 << 20, 10 << 20)];
    let mut gather = Gather::new(
        wanted.into_iter(),
        maps.as_slice(),
        rules(Operation::Discard),
    );
    gather.by_ref().for_each(drop);
    assert_eq!(gather.shared_bytes(), 44 << 20);
}

#[test]
fn without_proc_everything_is_left_to_the_kernel() {
    struct Blind;
    impl Mappings for Blind {
        fn at_or_after(&mut self, _: usize) -> Found {
            Found::Unknown
        }
    }
    let whole = range(PAGE, 10 << 20);
    let plan: Vec<_> = Gather::new([whole].into_iter(), Blind, rules(Operation::Discard)).collect();
    assert_eq!(
        batches(&plan).iter().map(|b| b.bytes()).sum::<usize>(),
        whole.len()
    );
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Anonymous),
        Just(Kind::PrivateFile),
        Just(Kind::Shared),
        Just(Kind::HugeTlb),
        Just(Kind::Special),
    ]
}

fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![
        Just(Operation::Discard),
        Just(Operation::Unmap),
        Just(Operation::LazyFree),
        Just(Operation::PageOut),
        Just(Operation::Punch),
    ]
}

proptest! {
    /// Every byte handed in is planned or skipped exactly once, no other byte
    /// is touched, and every batch is one the kernel takes in one call.
    #[test]
    fn every_byte_is_planned_once_and_no_other(
        layout in prop::collection::vec((0usize..3, 1usize..4, kinds()), 1..20),
        wanted in prop::collection::vec((0usize..40 * 1024, 1usize..3000), 1..40),
        operation in operations(),
        batch_bytes in 1usize..64 << 20,
        vectors in any::<bool>(),
    ) {
        let mut at = 0;
        let mut maps = Vec::new();
        for (gap, len, kind) in layout {
            at += gap * HUGE;
            maps.push(mapping(at, len * HUGE, kind));
            at += len * HUGE;
        }
        let mut ranges: Vec<_> = wanted.iter().map(|&(s, l)| range(s * PAGE, l * PAGE)).collect();
        let rules = Rules::for_job(operation, 0, ranges.len(), 2, vectors).with_batch_bytes(batch_bytes);
        let steps: Vec<_> = plan(ranges.clone(), &maps, rules).collect();
        range::normalize(&mut ranges);
        let mut seen = Vec::new();
        for step in &steps {
            match step {
                Planned::Skip(range, _) => seen.push(*range),
                Planned::Batch(batch) => {
                    prop_assert!(batch.ranges().len() <= 1024);
                    prop_assert!(batch.bytes() < 2 << 30);
                    for piece in batch.ranges() {
                        let home = maps.iter().find(|m| m.range.contains(*piece));
                        prop_assert!(home.is_some(), "{piece:?} crosses a mapping");
                        let home = home.unwrap();
                        prop_assert!(operation.refuses(home).is_none());
                        prop_assert_eq!(piece.start() % home.page_bytes, 0);
                        prop_assert_eq!(piece.len() % home.page_bytes, 0);
                        seen.push(*piece);
                    }
                }
            }
        }
        let total: usize = seen.iter().map(|r| r.len()).sum();
        range::normalize(&mut seen);
        prop_assert_eq!(total, ranges.iter().map(|r| r.len()).sum::<usize>());
        prop_assert_eq!(seen, ranges);
    }
}
