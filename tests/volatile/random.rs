//! Threads, reclaim and purging in any order.

use std::{
    cell::Cell,
    env,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use mmzap::volatile::{Answer, PinError};

use crate::{pages::*, support::memory::*};

/// How many pins and unpins; a long run says another number.
pub fn cycles() -> usize {
    env::var("MMZAP_VOLATILE_CYCLES").map_or(300_000, |text| text.parse().expect("a number"))
}

/// Threads that pin, check, write and unpin at random, while the kernel is made
/// to reclaim single pages and runs at any moment, and pages are purged by force.
pub fn threads_and_reclaim_at_random() {
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
                        content(seed, index)
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
