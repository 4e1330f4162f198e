//! Volatile memory: every answer is true, whatever the kernel does meanwhile.
#![allow(clippy::single_range_in_vec_init, reason = "answers with one range")]

#[path = "volatile/cache.rs"]
mod cache;
#[path = "volatile/pages.rs"]
mod pages;
#[path = "volatile/random.rs"]
mod random;
mod support;
#[path = "volatile/surroundings.rs"]
mod surroundings;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use cache::*;
use mmzap::volatile::{Answer, PinError, PurgePolicy, VolatileRegion};
use pages::*;
use random::*;
use support::{forked, memory::*};
use surroundings::*;

fn a_new_region_is_empty_and_what_is_written_stays() {
    let region = region(16);
    assert_eq!(region.len(), 16 * PAGE);
    let first = region.pin(100..5000).expect("inside");
    assert_eq!(first.answer(), &Answer::Purged(vec![pages(0..2)]));
    assert!(first.len() == 4900 && first.iter().all(|byte| *byte == 0));
    drop(first);
    write_all(&region, 1);
    for _ in 0..3 {
        assert_eq!(check_all(&region, 1), 0);
    }
    // Nothing that was never written takes memory for having been looked at.
    let empty = region_with_nothing();
    assert_eq!(present_pages(empty.as_ptr().addr(), empty.len()), 0);
}

fn region_with_nothing() -> VolatileRegion {
    let region = region(8);
    assert_eq!(
        region
            .pin(0..8 * PAGE)
            .unwrap()
            .iter()
            .map(|b| usize::from(*b))
            .sum::<usize>(),
        0
    );
    region
}

fn pages_that_the_kernel_takes_are_named() {
    let region = region(64);
    write_all(&region, 2);
    settle_lists();
    region.reclaim(pages(3..5)).expect("works");
    region.reclaim(pages(40..41)).expect("works");
    let all = region.pin(0..region.len()).unwrap();
    assert_eq!(
        all.answer(),
        &Answer::Purged(vec![pages(3..5), pages(40..41)])
    );
    drop(all);
    // They stay empty until somebody writes them, for everybody.
    assert_eq!(check_all(&region, 2), 3);
    let mut page = region.pin_mut(pages(3..4)).unwrap();
    assert!(!page.is_kept());
    write(&mut page, 2, 3);
    drop(page);
    assert_eq!(check_all(&region, 2), 2);
}

fn what_is_pinned_is_not_taken() {
    let region = region(64);
    write_all(&region, 3);
    let reader = region.pin(pages(0..16)).unwrap();
    let mut writer = region.pin_mut(pages(32..40)).unwrap();
    writer[0] = 99;
    for _ in 0..20 {
        region.reclaim(0..region.len()).expect("works");
        region.purge_now(usize::MAX / 2);
    }
    assert!(reader.is_kept() && holds(&reader[..PAGE], content(3, 0)));
    assert_eq!(writer[0], 99);
    drop((reader, writer));
    assert_eq!(
        region.pin(pages(16..32)).unwrap().answer(),
        &Answer::Purged(vec![pages(16..32)])
    );
    assert!(region.pin(pages(0..16)).unwrap().is_kept());
    assert!(region.pin(pages(32..40)).unwrap().is_kept());
}

fn pins_are_counted_and_a_writer_is_alone() {
    let region = region(8);
    write_all(&region, 4);
    let one = region.pin(pages(0..4)).unwrap();
    let two = region.pin(pages(2..6)).unwrap();
    assert_eq!(region.pin_mut(pages(3..4)).unwrap_err(), PinError::Held);
    drop(one);
    assert_eq!(region.pin_mut(pages(3..4)).unwrap_err(), PinError::Held);
    region.purge_now(8 * PAGE);
    assert!(
        holds(&two[..PAGE], content(4, 2)),
        "still pinned by the other"
    );
    assert_eq!(
        region.pin(pages(0..2)).unwrap().answer(),
        &Answer::Purged(vec![pages(0..2)])
    );
    drop(two);
    let writer = region.pin_mut(pages(3..4)).unwrap();
    assert_eq!(region.pin(pages(0..8)).unwrap_err(), PinError::Held);
    drop(writer);
    for bad in [0..0, 5..5, 0..8 * PAGE + 1, usize::MAX - 1..usize::MAX] {
        assert_eq!(region.pin(bad).unwrap_err(), PinError::OutOfRange);
    }
    #[expect(clippy::reversed_empty_ranges, reason = "bad input")]
    let backwards = 9..3;
    assert_eq!(region.pin_mut(backwards).unwrap_err(), PinError::OutOfRange);
}

fn a_page_that_looks_like_a_tagged_one_is_itself() {
    let region = region(3);
    let mut all = region.pin_mut(0..region.len()).unwrap();
    for chunk in all.chunks_exact_mut(8) {
        chunk.copy_from_slice(&TAG.to_ne_bytes());
    }
    drop(all);
    // The constant is really the one in use.
    // SAFETY: a volatile page can be looked at; it is a tag or zero.
    let there = unsafe { region.as_ptr().cast::<u64>().read_volatile() };
    assert!(there == TAG || there == 0);
    for _ in 0..2 {
        let all = region.pin(0..region.len()).unwrap();
        assert!(all.is_kept() && holds(&all, TAG));
    }
    // A page of zeros is kept as well.
    region.pin_mut(pages(1..2)).unwrap().fill(0);
    assert!(region.pin(pages(1..2)).unwrap().is_kept());
    region.purge_now(usize::MAX);
    assert_eq!(
        region.pin(0..region.len()).unwrap().answer(),
        &Answer::Purged(vec![pages(0..3)])
    );
}

fn one_lost_page_loses_a_whole_object() {
    let region = VolatileRegion::options()
        .purge_policy(PurgePolicy::Whole)
        .map(16 * PAGE)
        .unwrap();
    write_all(&region, 5);
    settle_lists();
    region.reclaim(pages(9..10)).unwrap();
    let object = region.pin(pages(8..12)).unwrap();
    assert_eq!(object.answer(), &Answer::Purged(vec![pages(8..12)]));
    assert!(object.iter().all(|byte| *byte == 0));
    drop(object);
    assert!(region.pin(pages(0..8)).unwrap().is_kept());
}

fn the_oldest_are_purged_first() {
    let region = region(12);
    write_all(&region, 6);
    for index in [7, 2, 9] {
        drop(region.pin(pages(index..index + 1)).unwrap());
    }
    assert_eq!(region.purge_now(9 * PAGE), 9 * PAGE);
    for (index, kept) in [(7, true), (2, true), (9, true), (0, false), (11, false)] {
        assert_eq!(
            region.pin(pages(index..index + 1)).unwrap().is_kept(),
            kept,
            "{index}"
        );
    }
    assert_eq!(region.purge_now(1), PAGE, "rounded up");
    assert_eq!(region.purge_now(usize::MAX), 2 * PAGE);
    assert_eq!(region.purge_now(usize::MAX), 0);
    assert_eq!(present_pages(region.as_ptr().addr(), region.len()), 0);
}

fn a_writer_that_panics_or_gives_up_leaves_nothing() {
    let region = region(4);
    write_all(&region, 7);
    let ended = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut half = region.pin_mut(pages(1..2)).unwrap();
            half[..PAGE / 2].fill(1);
            panic!("in the middle, as this test wants it");
        });
        writer.join()
    });
    assert!(ended.is_err());
    assert_eq!(check_all(&region, 7), 1);
    region.pin_mut(pages(0..1)).unwrap().discard();
    assert_eq!(check_all(&region, 7), 2);
    // One that begins and ends during a panic has nothing to do with it.
    struct Writes<'a>(&'a VolatileRegion);
    impl Drop for Writes<'_> {
        fn drop(&mut self) {
            write(&mut self.0.pin_mut(pages(0..1)).unwrap(), 7, 0);
        }
    }
    let ended = std::panic::catch_unwind(|| {
        let _writes = Writes(&region);
        panic!("as this test wants it");
    });
    assert!(ended.is_err());
    assert_eq!(check_all(&region, 7), 1);
}

fn a_dropped_region_is_gone_with_what_it_held() {
    let region = region(2048);
    write_all(&region, 8);
    let (addr, len) = (region.as_ptr().addr(), region.len());
    drop(region);
    assert!(peek(addr, 8).is_err() && peek(addr + len - 8, 8).is_err());
}

fn large_ranges_are_moved_by_several_threads() {
    let region = region(64 * MIB / PAGE);
    write_all(&region, 9);
    settle_lists();
    assert_eq!(check_all(&region, 9), 0);
    region.reclaim(pages(5000..5002)).unwrap();
    assert_eq!(check_all(&region, 9), 2);
    assert_eq!(region.purge_now(usize::MAX), 64 * MIB - 2 * PAGE);
    assert_eq!(check_all(&region, 9), 64 * MIB / PAGE);
}

fn a_child_and_its_parent_have_answers_of_their_own() {
    let region = region(32);
    write_all(&region, 10);
    let pinned = region.pin(pages(0..4)).unwrap();
    settle_lists();
    forked(|| {
        assert_eq!(check_all(&region, 10), 0);
        region.purge_now(usize::MAX);
        // The parent's pin is the child's as well.
        assert!(region.pin(pages(0..4)).unwrap().is_kept());
        assert!(!region.pin(pages(4..8)).unwrap().is_kept());
    });
    assert!(holds(&pinned[..PAGE], content(10, 0)));
    drop(pinned);
    assert_eq!(check_all(&region, 10), 0);
    // What is written after the fork is nobody else's.
    let parent = region.pin_mut(pages(0..1)).unwrap();
    drop(parent);
    forked(|| {
        write(&mut region.pin_mut(pages(9..10)).unwrap(), 11, 9);
        region.reclaim(0..region.len()).unwrap();
    });
    assert!(holds(&region.pin(pages(9..10)).unwrap(), content(10, 9)));
}

/// Forks while other threads are in the middle of moving pages.
fn forks_amid_moves() {
    let region = Arc::new(region(64));
    write_all(&region, 12);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for start in [0, 16] {
            let (region, stop) = (&region, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    drop(region.pin(pages(start..start + 32)).unwrap());
                }
            });
        }
        for _ in 0..200 {
            forked(|| match region.pin(0..region.len()) {
                Ok(_) => {
                    check_all(&region, 12);
                }
                Err(error) => assert_eq!(error, PinError::LostInFork),
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(check_all(&region, 12), 0);
}

fn a_child_does_not_hang_on_pages_that_moved() {
    support::play("forks_amid_moves", "");
}

fn guards_can_end_in_another_thread() {
    let region = region(8);
    write_all(&region, 22);
    let guard = region.pin(pages(0..4)).unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            assert!(holds(&guard[..PAGE], content(22, 0)));
            guard
        });
        let guard = other.join().unwrap();
        scope.spawn(move || drop(guard)).join().unwrap();
    });
    assert!(region.pin_mut(0..region.len()).is_ok());
}

/// More than any machine has, and more than its notes could be.
fn what_cannot_be_had_is_an_error() {
    for len in [1 << 45, usize::MAX, usize::MAX - PAGE] {
        assert!(VolatileRegion::new(len).is_err(), "{len}");
    }
}

fn main() {
    support::main(
        named![
            a_new_region_is_empty_and_what_is_written_stays,
            pages_that_the_kernel_takes_are_named,
            what_is_pinned_is_not_taken,
            pins_are_counted_and_a_writer_is_alone,
            a_page_that_looks_like_a_tagged_one_is_itself,
            one_lost_page_loses_a_whole_object,
            the_oldest_are_purged_first,
            a_writer_that_panics_or_gives_up_leaves_nothing,
            a_dropped_region_is_gone_with_what_it_held,
            large_ranges_are_moved_by_several_threads,
            threads_and_reclaim_at_random,
            a_child_and_its_parent_have_answers_of_their_own,
            a_child_does_not_hang_on_pages_that_moved,
            locked_memory_is_always_kept,
            a_stray_touch_of_purged_memory_faults_if_wanted,
            a_hog_gets_volatile_memory_and_nothing_else,
            swap_changes_no_answer,
            merging_changes_no_answer,
            huge_pages_are_not_used,
            a_cache_gives_what_was_put_in_or_nothing,
            a_cache_evicts_what_was_not_asked_for_the_longest,
            a_cache_is_right_in_a_crowd,
            one_locked_page_is_kept_and_the_others_go,
            guards_can_end_in_another_thread,
            what_cannot_be_had_is_an_error,
            a_cache_forks,
        ],
        named![
            forks_amid_moves,
            locked_memory,
            stray,
            pressure,
            merged_pages
        ],
    );
}
