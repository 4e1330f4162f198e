//! Volatile memory: every answer is true, whatever the kernel does meanwhile.
#![allow(clippy::single_range_in_vec_init, reason = "answers with one range")]

mod support;

use std::{
    cell::Cell,
    env, fs,
    os::unix::process::ExitStatusExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use mmzap::{
    Map, PageRange, mapping,
    volatile::{Answer, PinError, PurgePolicy, Stray, VolatileCache, VolatileRegion},
};
use support::{
    forked,
    memory::*,
    settings::{LittleMemory, Setting, Swap},
    sys,
};

/// The tag that a page has in one word while it is volatile; the first page of a
/// region in its first.
const TAG: u64 = 0x706d_657a_6d61_707a;

fn region(pages: usize) -> VolatileRegion {
    VolatileRegion::new(pages * PAGE).expect("memory")
}

/// What page `index` holds in its generation `seed`, at any of its words.
fn word(seed: u64, index: usize) -> u64 {
    (seed << 20 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn write(page: &mut [u8], seed: u64, index: usize) {
    for chunk in page.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word(seed, index).to_ne_bytes());
    }
}

fn holds(page: &[u8], word: u64) -> bool {
    page.chunks_exact(8)
        .all(|chunk| chunk == word.to_ne_bytes())
}

fn write_all(region: &VolatileRegion, seed: u64) {
    let mut all = region.pin_mut(0..region.len()).expect("nobody has it");
    for (index, page) in all.chunks_exact_mut(PAGE).enumerate() {
        write(page, seed, index);
    }
}

/// Pins everything, and holds each page to the answer about it. Answers with the
/// number of pages that were lost.
fn check_all(region: &VolatileRegion, seed: u64) -> usize {
    let all = region.pin(0..region.len()).expect("nobody writes");
    let lost = match all.answer() {
        Answer::Kept => Vec::new(),
        Answer::Purged(ranges) => ranges.clone(),
    };
    for (index, page) in all.chunks_exact(PAGE).enumerate() {
        let gone = lost.iter().any(|range| range.contains(&(index * PAGE)));
        let expected = if gone { 0 } else { word(seed, index) };
        assert!(
            holds(page, expected),
            "page {index}, said to be lost: {gone}"
        );
    }
    assert!(
        lost.iter()
            .all(|range| range.start % PAGE == 0 && range.end % PAGE == 0)
    );
    lost.iter().map(|range| range.len() / PAGE).sum()
}

fn pages(range: std::ops::Range<usize>) -> std::ops::Range<usize> {
    range.start * PAGE..range.end * PAGE
}

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

/// A freed page is on a list of its CPU first, where reclaim does not find it:
/// others push it off.
fn settle_lists() {
    let other = region(256);
    write_all(&other, 0);
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
    assert!(reader.is_kept() && holds(&reader[..PAGE], word(3, 0)));
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
    assert!(holds(&two[..PAGE], word(4, 2)), "still pinned by the other");
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

/// How many pins and unpins; a long run says another number.
fn cycles() -> usize {
    env::var("MMZAP_VOLATILE_CYCLES").map_or(300_000, |text| text.parse().expect("a number"))
}

/// Threads that pin, check, write and unpin at random, while the kernel is made
/// to reclaim single pages and runs at any moment, and pages are purged by force.
fn threads_and_reclaim_at_random() {
    const PAGES: usize = 1024;
    let region = region(PAGES);
    // What each page holds, by whoever had it for writing last; 0 is nothing.
    let seeds: Vec<AtomicUsize> = (0..PAGES).map(|_| AtomicUsize::new(0)).collect();
    let (done, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (kept, lost, busy) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let most = cycles();
    let began = Instant::now();
    let act = |seed: u64| {
        let dice = Cell::new(seed);
        let below = |count: usize| {
            let mut next = dice.get();
            next ^= next << 13;
            next ^= next >> 7;
            next ^= next << 17;
            dice.set(next);
            ((u128::from(next) * count as u128) >> 64) as usize
        };
        while done.fetch_add(1, Ordering::Relaxed) < most {
            let start = below(PAGES);
            let count = 1 + below(if below(8) == 0 { 16 } else { 2 }).min(PAGES - 1 - start);
            let range = start..start + count;
            let check = |bytes: &[u8], answer: &Answer| {
                let gone: &[std::ops::Range<usize>] = match answer {
                    Answer::Kept => &[],
                    Answer::Purged(ranges) => ranges,
                };
                for (page, index) in bytes.chunks_exact(PAGE).zip(range.clone()) {
                    let seed = seeds[index].load(Ordering::Acquire) as u64;
                    let gone = gone.iter().any(|lost| lost.contains(&(index * PAGE)));
                    let expected = if gone || seed == 0 {
                        0
                    } else {
                        word(seed, index)
                    };
                    // Both ends and a word in between: the whole is too slow.
                    // … that of the tag among them.
                    for at in [0, index * 64 % PAGE, 8 * below(PAGE / 8), PAGE - 8] {
                        let found = u64::from_ne_bytes(page[at..at + 8].try_into().unwrap());
                        assert_eq!(found, expected, "page {index} at {at}, lost: {gone}");
                    }
                    let count = if gone { &lost } else { &kept };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            };
            if below(4) == 0 {
                match region.pin_mut(pages(range.clone())) {
                    Ok(mut pinned) => {
                        let answer = pinned.answer().clone();
                        check(&pinned, &answer);
                        for (page, index) in pinned.chunks_exact_mut(PAGE).zip(range.clone()) {
                            let seed = 1 + below(1 << 30);
                            write(page, seed as u64, index);
                            seeds[index].store(seed, Ordering::Release);
                        }
                        if below(8) == 0 {
                            pinned.discard();
                        }
                    }
                    Err(PinError::Held) => drop(busy.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => panic!("{error}"),
                }
            } else {
                match region.pin(pages(range.clone())) {
                    Ok(pinned) => check(&pinned, pinned.answer()),
                    Err(PinError::Held) => drop(busy.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    };
    thread::scope(|scope| {
        let reclaimer = scope.spawn(|| {
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                // Without a pause nearly every answer would be that it was purged.
                thread::sleep(Duration::from_micros(20));
                at = (at + 97) % PAGES;
                region.reclaim(pages(at..at + 1)).expect("works");
                if at % 16 == 0 {
                    region
                        .reclaim(pages(at & !15..(at & !15) + 16))
                        .expect("works");
                    region.purge_now(3 * PAGE);
                }
            }
        });
        let threads: Vec<_> = (1..4)
            .map(|seed| scope.spawn(move || act(seed * 0x9e37_79b9)))
            .collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        stop.store(true, Ordering::Relaxed);
        reclaimer.join().expect("the reclaimer");
        assert!(ends.iter().all(Result::is_ok));
    });
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    println!(
        "{} cycles in {:.0?}: {} pages kept, {} lost, {} times held",
        most,
        began.elapsed(),
        count(&kept),
        count(&lost),
        count(&busy),
    );
    assert!(count(&kept) > most / 10 && count(&lost) > most / 1000);
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
    assert!(holds(&pinned[..PAGE], word(10, 0)));
    drop(pinned);
    assert_eq!(check_all(&region, 10), 0);
    // What is written after the fork is nobody else's.
    let parent = region.pin_mut(pages(0..1)).unwrap();
    drop(parent);
    forked(|| {
        write(&mut region.pin_mut(pages(9..10)).unwrap(), 11, 9);
        region.reclaim(0..region.len()).unwrap();
    });
    assert!(holds(&region.pin(pages(9..10)).unwrap(), word(10, 9)));
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

fn locked_memory() {
    sys::lock_everything().unwrap_or_else(|error| support::cannot("mlockall", &error));
    let region = region(16);
    write_all(&region, 13);
    region.reclaim(0..region.len()).ok();
    assert_eq!(check_all(&region, 13), 0);
    assert!(region.refused_bytes() >= 16 * PAGE as u64);
    region.purge_now(usize::MAX);
    region.pin_mut(pages(0..1)).unwrap().discard();
    let page = region.pin(pages(0..1)).unwrap();
    assert!(!page.is_kept() && page.iter().all(|byte| *byte == 0));
}

fn locked_memory_is_always_kept() {
    support::needs_root();
    support::play_or_skip("locked_memory", "");
}

/// The last of a purged page to be touched, in a region that faults.
fn stray() {
    let region = VolatileRegion::options()
        .stray(Stray::Faults)
        .map(16 * PAGE)
        .unwrap_or_else(|error| support::cannot("userfaultfd", &error));
    assert_eq!(
        region.pin(pages(0..2)).unwrap().answer(),
        &Answer::Purged(vec![pages(0..2)])
    );
    write_all(&region, 14);
    settle_lists();
    for _ in 0..50 {
        assert_eq!(check_all(&region, 14), 0);
    }
    region.reclaim(pages(5..7)).unwrap();
    assert_eq!(check_all(&region, 14), 2);
    let both = region.pin_mut(pages(4..6)).unwrap();
    assert_eq!(both.answer(), &Answer::Purged(vec![pages(5..6)]));
    both.discard();
    if support::case() == "touch" {
        // SAFETY: that it faults is what is wanted.
        unsafe { region.as_ptr().add(4 * PAGE).read_volatile() };
        unreachable!("the page was purged");
    }
}

fn a_stray_touch_of_purged_memory_faults_if_wanted() {
    support::play_or_skip("stray", "");
    let status = support::child("stray", "touch").status().expect("a child");
    const SIGBUS: i32 = 7;
    assert_eq!(status.signal(), Some(SIGBUS), "{status}");
}

const GROUP: usize = 192 * MIB;

/// A region of 128 MiB in a group of 192, and a hog that needs more than is left.
fn pressure() {
    if let Err(error) = fs::write(support::case(), std::process::id().to_string()) {
        support::cannot("joining a control group", &error);
    }
    let region = region(128 * MIB / PAGE);
    write_all(&region, 15);
    let solid = region.pin(pages(100..200)).unwrap();
    for _ in 0..3 {
        let hog = anonymous(120 * MIB);
        fill(hog, 120 * MIB);
        assert_eq!(kept_pages(hog, 120 * MIB), 120 * MIB / PAGE);
        sys::unmap(hog, 120 * MIB).unwrap();
    }
    assert!(solid.is_kept() && holds(&solid[..PAGE], word(15, 100)));
    drop(solid);
    let lost = check_all(&region, 15);
    assert!(lost > 40 * MIB / PAGE, "{lost}");
}

fn a_hog_gets_volatile_memory_and_nothing_else() {
    support::needs_root();
    let group = support::needs("a memory control group", LittleMemory::make(GROUP));
    support::play_or_skip("pressure", &group.door().to_string_lossy());
}

fn swap_changes_no_answer() {
    support::needs_root();
    let swap = support::needs("swap in memory", Swap::make(64 * MIB));
    let region = region(64);
    write_all(&region, 16);
    let solid = region.pin(pages(0..8)).unwrap();
    settle_lists();
    region.reclaim(pages(0..32)).unwrap();
    // What is pinned can be out in swap, and is there all the same.
    assert!(holds(&solid[..PAGE], word(16, 0)));
    drop(solid);
    assert_eq!(check_all(&region, 16), 24);
    write_all(&region, 16);
    threads_and_reclaim_at_random();
    drop(swap);
}

/// Pages that are alike become one page, until one of them is written.
fn merged_pages() {
    let region = region(512);
    let (addr, len) = (region.as_ptr().addr(), region.len());
    region.pin_mut(0..len).unwrap().fill(5);
    sys::hint(addr, len, sys::MERGE).unwrap_or_else(|error| support::cannot("KSM", &error));
    let merged = || {
        let text = fs::read_to_string("/proc/self/ksm_stat").unwrap_or_default();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("ksm_merging_pages "));
        line.and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
            > 0
    };
    let reader = region.pin(0..len).unwrap();
    let some = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        merged()
    });
    if !some {
        let nothing = std::io::Error::other("nothing was merged in ten seconds");
        support::cannot("KSM", &nothing);
    }
    assert!(reader.is_kept() && reader.iter().all(|byte| *byte == 5));
    drop(reader);
    thread::sleep(Duration::from_millis(300)); // tagged pages are alike, too
    region.reclaim(pages(0..256)).unwrap();
    let all = region.pin(0..len).unwrap();
    let lost = match all.answer() {
        Answer::Kept => Vec::new(),
        Answer::Purged(ranges) => ranges.clone(),
    };
    for (index, page) in all.chunks_exact(PAGE).enumerate() {
        let gone = lost.iter().any(|range| range.contains(&(index * PAGE)));
        let expected = if gone { 0 } else { 5 };
        assert!(page.iter().all(|byte| *byte == expected), "page {index}");
    }
}

fn merging_changes_no_answer() {
    support::needs_root();
    let _ksm = [
        ("pages_to_scan", "20000"),
        ("sleep_millisecs", "5"),
        ("run", "1"),
    ]
    .map(|(file, value)| {
        let path = format!("/sys/kernel/mm/ksm/{file}");
        support::needs("KSM", Setting::set(path, value))
    });
    support::play_or_skip("merged_pages", "");
}

fn huge_bytes(addr: usize, len: usize) -> usize {
    let range = PageRange::new(addr, len, PAGE).unwrap();
    mapping::folio_mix(range).expect("6.7").huge_bytes
}

fn huge_pages_are_not_used() {
    support::needs_root();
    let switch = "/sys/kernel/mm/transparent_hugepage/enabled";
    let _always = support::needs("huge pages", Setting::set(switch, "always"));
    // One written byte would keep 2 MiB.
    let region = region(8 * MIB / PAGE);
    write_all(&region, 17);
    let start = region.as_ptr().addr();
    assert_eq!(huge_bytes(start, region.len()), 0);
    let mut other = Map::options().map(8 * MIB).unwrap();
    other.fill(1);
    assert!(
        huge_bytes(other.as_ptr().addr(), 8 * MIB) > 0,
        "there are huge pages"
    );
    settle_lists();
    region.reclaim(pages(700..701)).unwrap();
    assert_eq!(check_all(&region, 17), 1);
}

fn one_locked_page_is_kept_and_the_others_go() {
    for stray in [Stray::ReadsZero, Stray::Faults] {
        let region = match VolatileRegion::options().stray(stray).map(16 * PAGE) {
            Ok(region) => region,
            Err(error) => {
                eprintln!("skipped: {stray:?}: {error}");
                continue;
            }
        };
        write_all(&region, 20);
        let locked = region.as_ptr().addr() + 5 * PAGE;
        support::needs("locking a page", sys::lock(locked, PAGE));
        drop(region.pin(0..16 * PAGE).unwrap());
        assert_eq!(region.refused_bytes(), PAGE as u64);
        settle_lists();
        region.reclaim(pages(0..5)).unwrap();
        region.reclaim(pages(6..16)).unwrap();
        let all = region.pin(0..16 * PAGE).unwrap();
        assert_eq!(
            all.answer(),
            &Answer::Purged(vec![pages(0..5), pages(6..16)])
        );
        assert!(holds(&all[pages(5..6)], word(20, 5)));
        drop(all);
        write_all(&region, 21);
        region.pin_mut(pages(3..8)).unwrap().discard();
        let all = region.pin(0..16 * PAGE).unwrap();
        assert_eq!(all.answer(), &Answer::Purged(vec![pages(3..8)]));
        assert!(all[pages(3..8)].iter().all(|byte| *byte == 0));
        drop(all);
        assert_eq!(region.purge_now(usize::MAX), 11 * PAGE);
    }
}

fn guards_can_end_in_another_thread() {
    let region = region(8);
    write_all(&region, 22);
    let guard = region.pin(pages(0..4)).unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            assert!(holds(&guard[..PAGE], word(22, 0)));
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

fn a_cache_forks() {
    let cache = VolatileCache::new(64 * PAGE).unwrap();
    let stop = AtomicBool::new(false);
    assert!(cache.insert(1000, b"from before"));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut key = 0;
            while !stop.load(Ordering::Relaxed) {
                key = (key + 1) % 20;
                cache.insert(key, vec![key as u8; 2 * PAGE]);
            }
        });
        for _ in 0..100 {
            forked(|| {
                if let Some(bytes) = cache.get(&1000) {
                    assert_eq!(&*bytes, b"from before");
                }
                if cache.insert(2000, b"new") {
                    assert_eq!(&*cache.get(&2000).expect("just put in"), b"new");
                }
                let _ = format!("{cache:?}");
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn a_cache_gives_what_was_put_in_or_nothing() {
    let cache = VolatileCache::new(64 * PAGE).unwrap();
    assert!(cache.insert("a", vec![1; 3 * PAGE]));
    assert!(cache.insert("b", b"short"));
    assert!(!cache.insert("none", b""));
    assert!(!cache.insert("too much", vec![0; 65 * PAGE]));
    assert_eq!(&*cache.get(&"b").unwrap(), b"short");
    assert!(cache.get(&"c").is_none());
    let held = cache.get(&"a").unwrap();
    assert!(
        cache.insert("a", vec![2; PAGE]),
        "while somebody reads the old one"
    );
    assert!(held.iter().all(|byte| *byte == 1));
    assert_eq!(&*cache.get(&"a").unwrap(), &[2; PAGE][..]);
    drop(held);
    cache.purge_now(usize::MAX);
    assert!(cache.get(&"a").is_none() && cache.get(&"a").is_none());
    let stats = cache.stats();
    assert_eq!(
        (stats.hits, stats.misses, stats.purges, stats.entries),
        (3, 2, 1, 1)
    );
    assert!(cache.remove(&"b") && !cache.remove(&"b"));
    // All places are free again.
    assert!(cache.insert("all", vec![3; 64 * PAGE]));
    assert!(
        cache.insert("next", vec![4; 32 * PAGE]),
        "the old one makes way"
    );
    assert!(cache.get(&"all").is_none());
    let reader = cache.get(&"next").unwrap();
    assert!(!cache.insert("no room", vec![5; 64 * PAGE]));
    assert!(reader.iter().all(|byte| *byte == 4));
    assert!(cache.get(&"next").is_some(), "what is read stays");
    drop(reader);
    assert!(cache.insert("room", vec![5; 64 * PAGE]));
}

fn a_cache_evicts_what_was_not_asked_for_the_longest() {
    let cache = VolatileCache::new(4 * PAGE).unwrap();
    for key in 0..4 {
        assert!(cache.insert(key, [key; 10]));
    }
    assert!(cache.get(&0).is_some());
    assert!(cache.insert(4, [4; 10]));
    let there: Vec<u8> = (0..5).filter(|key| cache.get(key).is_some()).collect();
    assert_eq!(there, [0, 2, 3, 4]);
    assert_eq!(cache.stats().evictions, 1);
}

/// Threads that read and fill a cache at random while its memory is purged.
fn a_cache_is_right_in_a_crowd() {
    let cache = VolatileCache::<usize>::new(128 * PAGE).unwrap();
    let stop = AtomicBool::new(false);
    let right = AtomicUsize::new(0);
    thread::scope(|scope| {
        let purger = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                cache.purge_now(4 * PAGE);
                cache.reclaim().expect("works");
                thread::yield_now();
            }
        });
        let threads: Vec<_> = (1..4_usize)
            .map(|seed| {
                let (cache, right) = (&cache, &right);
                scope.spawn(move || {
                    let mut dice = seed;
                    for _ in 0..20_000 {
                        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let key = (dice >> 33) % 100;
                        match cache.get(&key) {
                            Some(bytes) => {
                                assert_eq!(bytes.len(), 100 + 50 * key);
                                assert!(bytes.iter().all(|byte| *byte == key as u8 + 1), "{key}");
                                right.fetch_add(1, Ordering::Relaxed);
                            }
                            None => drop(cache.insert(key, vec![key as u8 + 1; 100 + 50 * key])),
                        }
                    }
                })
            })
            .collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        stop.store(true, Ordering::Relaxed);
        purger.join().expect("the purger");
        assert!(ends.iter().all(Result::is_ok));
    });
    let stats = cache.stats();
    assert!(
        right.load(Ordering::Relaxed) > 1000 && stats.purges > 0,
        "{stats:?}"
    );
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
