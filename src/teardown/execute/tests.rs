use super::*;
use crate::sys::{
    ENOSYS,
    scripted::{Fake, Scripted},
};
use proptest::prelude::*;

const PAGE: usize = 4096;

fn range(start: usize, pages: usize) -> PageRange {
    PageRange::new(start * PAGE, pages * PAGE, PAGE).unwrap()
}

fn ranges(count: usize) -> Vec<PageRange> {
    (0..count).map(|i| range(i * 4, 2)).collect()
}

fn run(kernel: &Scripted, operation: Operation, batch: Batch) -> Tally {
    let mut tally = Tally::default();
    super::batch(
        kernel,
        operation,
        &batch,
        &HiddenTraits::default(),
        &mut tally,
    );
    tally
}

fn space(pages: usize) -> Vec<Fake> {
    vec![Fake::new(0, pages * PAGE, &[])]
}

#[test]
fn a_short_answer_is_resumed_at_exactly_the_rest() {
    for bytes in [0, 2 * PAGE, 3 * PAGE, 6 * PAGE, 7 * PAGE, 8 * PAGE] {
        let kernel = Scripted::with(space(64));
        kernel.vectors.lock().unwrap().push_back(Some(Ok(bytes)));
        let tally = run(&kernel, Operation::Discard, Batch::Vector(ranges(4)));
        assert_eq!(tally.done_bytes, 8 * PAGE, "after {bytes} bytes");
        assert_eq!(
            kernel.advised_bytes(),
            8 * PAGE,
            "nothing twice after {bytes} bytes"
        );
        assert!(tally.problems.failures.is_empty());
    }
}

#[test]
fn refused_vectors_fall_back_to_single_calls_for_this_batch() {
    for answer in [None, Some(Err(EPERM)), Some(Err(EINVAL)), Some(Err(ENOSYS))] {
        let kernel = Scripted::with(space(64));
        kernel
            .vectors
            .lock()
            .unwrap()
            .extend(std::iter::repeat_n(answer, 10));
        let tally = run(&kernel, Operation::LazyFree, Batch::Vector(ranges(10)));
        assert_eq!(tally.done_bytes, 20 * PAGE);
        assert!(tally.problems.failures.is_empty());
        // One odd answer switches nothing off; three in a row do, here.
        let used = 10 - kernel.vectors.lock().unwrap().len();
        assert_eq!(used, if answer.is_none() { 1 } else { STRIKES });
    }
}

#[test]
fn a_hole_is_skipped_and_the_rest_is_done() {
    let kernel = Scripted::with(vec![
        Fake::new(0, 8 * PAGE, &[]),
        Fake::new(16 * PAGE, 8 * PAGE, &[]),
    ]);
    let tally = run(&kernel, Operation::Discard, Batch::Span(range(0, 32)));
    assert_eq!(tally.done_bytes, 16 * PAGE);
    assert_eq!(tally.problems.skipped_bytes, 16 * PAGE);
    assert!(
        tally
            .problems
            .skipped
            .iter()
            .all(|s| s.reason == Reason::Unmapped)
    );
}

#[test]
fn locked_sealed_and_device_memory_is_named() {
    for (hidden, reason) in [
        (Trait::Locked, Reason::Locked),
        (Trait::Sealed, Reason::Sealed),
        (Trait::Device, Reason::Device),
    ] {
        let kernel = Scripted::with(vec![
            Fake::new(0, 8 * PAGE, &[]),
            Fake::new(8 * PAGE, 8 * PAGE, &[hidden]),
            Fake::new(16 * PAGE, 8 * PAGE, &[]),
        ]);
        let tally = run(&kernel, Operation::Discard, Batch::Span(range(0, 24)));
        assert_eq!(tally.done_bytes, 16 * PAGE, "{reason}");
        let [skipped] = tally.problems.skipped.as_slice() else {
            panic!("one range is skipped")
        };
        assert_eq!(
            (skipped.addr, skipped.len, skipped.reason),
            (8 * PAGE, 8 * PAGE, reason)
        );
    }
}

#[test]
fn however_much_is_refused_smaps_is_read_once() {
    let space = (0..100)
        .map(|i| Fake::new(i * 8 * PAGE, 4 * PAGE, &[Trait::Locked]))
        .collect();
    let kernel = Scripted::with(space);
    let ranges = (0..100).map(|i| range(i * 8, 2)).collect();
    let tally = run(&kernel, Operation::Discard, Batch::Vector(ranges));
    assert_eq!(tally.problems.skipped_bytes, 200 * PAGE);
    assert_eq!(kernel.hidden_reads.into_inner(), 1);
}

#[test]
fn locked_memory_goes_when_asked() {
    let locked = || Scripted::with(vec![Fake::new(0, 8 * PAGE, &[Trait::Locked])]);
    for operation in [Operation::DiscardLocked, Operation::Unmap] {
        let tally = run(&locked(), operation, Batch::Span(range(0, 8)));
        assert_eq!(tally.done_bytes, 8 * PAGE);
        assert!(tally.problems.skipped.is_empty());
    }
}

#[test]
fn a_passing_shortage_is_waited_out_and_a_lasting_one_reported() {
    let kernel = Scripted::with(space(8));
    kernel
        .singles
        .lock()
        .unwrap()
        .extend([Err(EAGAIN), Err(EAGAIN)]);
    assert_eq!(
        run(&kernel, Operation::Discard, Batch::Span(range(0, 8))).done_bytes,
        8 * PAGE
    );

    let kernel = Scripted::with(space(8));
    kernel
        .singles
        .lock()
        .unwrap()
        .extend(std::iter::repeat_n(Err(EAGAIN), 2 * TRIES));
    let tally = run(&kernel, Operation::Discard, Batch::Span(range(0, 8)));
    let [error] = tally.problems.failures.as_slice() else {
        panic!("one failure")
    };
    assert_eq!((error.errno(), error.range()), (EAGAIN, Some(range(0, 8))));
}

#[test]
fn a_true_shortage_of_memory_is_no_hole() {
    let kernel = Scripted::with(space(8));
    kernel
        .singles
        .lock()
        .unwrap()
        .extend([Err(ENOMEM), Err(ENOMEM)]);
    let tally = run(&kernel, Operation::Discard, Batch::Span(range(0, 8)));
    assert_eq!(
        (tally.done_bytes, tally.problems.failed_bytes),
        (0, 8 * PAGE)
    );
    assert_eq!(tally.problems.failures[0].errno(), ENOMEM);
}

#[test]
fn without_proc_a_refusal_is_not_called_done() {
    let kernel = Scripted {
        blind: true,
        ..Scripted::with(space(8))
    };
    let tally = run(&kernel, Operation::Discard, Batch::Span(range(0, 16)));
    assert_eq!(tally.done_bytes, 0);
    assert_eq!(tally.problems.failed_bytes, 16 * PAGE);
}

proptest! {
    /// Whatever the address space looks like, every byte is done, skipped or
    /// failed, and nothing outside the ranges is advised.
    #[test]
    fn the_account_adds_up(
        layout in prop::collection::vec((0usize..4, 1usize..6, 0u8..6), 1..12),
        wanted in prop::collection::vec((0usize..6, 1usize..5), 1..20),
        short in prop::option::of(0usize..20),
    ) {
        let mut at = 0;
        let mut space = Vec::new();
        for (gap, pages, hidden) in layout {
            at += gap * PAGE;
            let traits: &[Trait] = match hidden {
                0 => &[Trait::Locked],
                1 => &[Trait::Sealed],
                2 => &[Trait::Device],
                _ => &[],
            };
            space.push(Fake::new(at, pages * PAGE, traits));
            at += pages * PAGE;
        }
        let mut next = 0;
        let ranges: Vec<_> = wanted.iter().map(|&(gap, pages)| {
            next += gap + 1;
            let made = range(next, pages);
            next += pages;
            made
        }).collect();
        let total: usize = ranges.iter().map(|r| r.len()).sum();
        let kernel = Scripted::with(space);
        if let Some(short) = short {
            let whole: usize = ranges.iter().take(short).map(|r| r.len()).sum();
            if whole < total && short == 0 {
                kernel.vectors.lock().unwrap().push_back(Some(Err(EAGAIN)));
            }
        }
        let tally = run(&kernel, Operation::Discard, Batch::Vector(ranges.clone()));
        let account = tally.done_bytes + tally.problems.skipped_bytes + tally.problems.failed_bytes;
        prop_assert_eq!(account, total);
        for advised in kernel.advised.lock().unwrap().iter() {
            prop_assert!(ranges.iter().any(|r| r.contains(*advised)));
        }
    }
}
