//! The cache of lazily freed runs and the allocator upon it: nothing is lost,
//! nothing stale comes back, and others get the memory.

#[path = "lazy/blocks.rs"]
mod blocks;
mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    env, fs,
    os::unix::process::ExitStatusExt as _,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use blocks::Blocks;
use mmzap::{
    Alloc, Operation, PageRange, Teardown,
    lazy::{self, Cache, End},
};
use support::{forked, memory::*, settings::LittleMemory, sys};

const RUN: usize = 4 * MIB;

/// Runs of a cache, filled, and handed back to it.
fn put_filled(cache: &Cache, count: usize) -> Vec<usize> {
    let runs: Vec<usize> = (0..count)
        .map(|_| {
            let run = cache.map(RUN).expect("memory");
            let addr = run.addr.addr();
            let _ = sys::hint(addr, RUN, sys::NO_HUGE_PAGES);
            fill(addr, RUN);
            addr
        })
        .collect();
    for addr in &runs {
        // SAFETY: nobody uses the run.
        assert!(unsafe { cache.put(*addr as *mut u8, RUN) });
    }
    runs
}

/// Calls that find something due do it.
fn until(what: &str, cache: &Cache, done: impl Fn(&lazy::Stats) -> bool) {
    for _ in 0..2000 {
        // Too large for any run; the cache looks at its clock.
        let _ = cache.take(1 << 40);
        if done(&cache.stats()) {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{what}: {:?}", cache.stats());
}

fn a_run_taken_back_soon_is_as_it_was() {
    let cache = Cache::new();
    cache.set_delay(Duration::from_secs(3600));
    let runs = put_filled(&cache, 3);
    let again = cache.take(RUN).expect("a run");
    assert_eq!(again.addr.addr(), runs[2], "the one freed last");
    assert!(!again.zeroed);
    assert_eq!(kept_pages(runs[2], RUN), RUN / PAGE);
    let stats = cache.stats();
    assert_eq!((stats.reused_hot, stats.lazily_freed_bytes), (1, 0));
    assert_eq!(stats.hot_bytes, 2 * RUN);
    assert_eq!(cache.purge(), 2 * RUN);
    assert_eq!(cache.stats().hot_bytes, 0);
    sys::unmap(runs[2], RUN).unwrap();
}

fn what_nobody_wants_becomes_lazy_and_then_ends() {
    for end in [End::Unmap, End::Discard] {
        let cache = Cache::new().with_end(end);
        cache.set_delay(Duration::from_millis(1));
        let runs = put_filled(&cache, 8);
        until("lazy", &cache, |stats| stats.lazy_bytes == 8 * RUN);
        assert_eq!(cache.stats().lazily_freed_bytes, 8 * RUN as u64);
        let run = cache.take(RUN).expect("a run");
        assert_eq!(cache.stats().reused_lazy, 1);
        // SAFETY: the run is ours, and goes back.
        assert!(unsafe { cache.put(run.addr, run.len) });
        cache.set_max_age(Duration::from_millis(1));
        until("the end", &cache, |stats| {
            stats.hot_bytes + stats.lazy_bytes == 0
        });
        let stats = cache.stats();
        assert_eq!(stats.ended_bytes, 8 * RUN as u64, "{stats:?}");
        assert_eq!(stats.refused_bytes, 0);
        match end {
            End::Discard => {
                assert_eq!(stats.clean_bytes, 8 * RUN);
                let run = cache.take(RUN).expect("a run");
                assert!(run.zeroed);
                assert_eq!(present_pages(run.addr.addr(), RUN), 0);
            }
            _ => assert!(runs.iter().all(|addr| peek(*addr, 8).is_err())),
        }
    }
}

fn the_bound_in_bytes_is_kept() {
    let cache = Cache::new();
    cache.set_delay(Duration::from_secs(3600));
    cache.set_max_bytes(3 * RUN);
    let runs = put_filled(&cache, 10);
    assert_eq!(cache.stats().hot_bytes, 3 * RUN);
    // The oldest are gone.
    assert!(runs[..7].iter().all(|addr| peek(*addr, 8).is_err()));
    assert!(runs[7..].iter().all(|addr| peek(*addr, 8).is_ok()));
    assert_eq!(cache.purge(), 3 * RUN);
}

fn a_keeper_does_it_while_the_program_is_quiet() {
    static CACHE: Cache = Cache::new();
    let keeper = CACHE.keep().expect("a thread");
    for _ in 0..3 {
        put_filled(&CACHE, 4);
        let quiet = (0..2000).any(|_| {
            thread::sleep(Duration::from_millis(5));
            CACHE.stats().lazy_bytes == 4 * RUN
        });
        assert!(quiet, "{:?}", CACHE.stats());
        // Time enough for the keeper to go to sleep with nothing to do.
        assert_eq!(CACHE.purge(), 4 * RUN);
        thread::sleep(Duration::from_millis(20));
    }
    drop(keeper);
    put_filled(&CACHE, 1);
    CACHE.purge();
}

/// Far more threads than CPUs, so that whoever wakes the keeper is often put to
/// sleep in the middle of it.
fn the_keeper_misses_no_run_of_a_crowd() {
    static CACHE: Cache = Cache::new();
    let _keeper = CACHE.keep().expect("a thread");
    for round in 0..100 {
        thread::scope(|scope| {
            for _ in 0..24 {
                scope.spawn(|| {
                    let run = CACHE.take(PAGE).or_else(|| CACHE.map(PAGE).ok());
                    let run = run.expect("memory");
                    // SAFETY: nobody uses the run.
                    assert!(unsafe { CACHE.put(run.addr, run.len) });
                });
            }
        });
        // It does not look by itself for 250 ms while there is only lazy memory,
        // and for ever while there is none.
        let quiet = (0..2000).any(|_| {
            thread::sleep(Duration::from_millis(1));
            CACHE.stats().hot_bytes == 0
        });
        assert!(quiet, "round {round}: {:?}", CACHE.stats());
        CACHE.purge();
    }
}

/// The list of runs is as large as the allocator's large blocks, and must not
/// be allocated while the cache is locked.
fn a_cache_under_the_global_allocator_answers() {
    #[global_allocator]
    static ALLOC: Alloc<System> = Alloc::new(System);
    let cache = ALLOC.cache();
    cache.set_delay(Duration::ZERO);
    let runs: Vec<_> = (0..6000)
        .map(|_| cache.map(PAGE).expect("memory"))
        .collect();
    for run in &runs {
        // SAFETY: nobody uses the run.
        assert!(unsafe { cache.put(run.addr, run.len) });
    }
    until("lazy", cache, |stats| stats.hot_bytes == 0);
    let taken = cache.taken_by_kernel_bytes().expect("6.7");
    assert!(taken >= 6000 * PAGE, "never touched: {taken}");
    assert!(format!("{cache:?}").contains("lazy_bytes"));
    cache.purge();
}

const GROUP: usize = 256 * MIB;

/// Joins the group of the case and holds 160 MiB of freed memory in a cache
/// when a hog of as much comes.
fn hog(cache: &'static Cache) -> Vec<usize> {
    if let Err(error) = fs::write(support::case(), std::process::id().to_string()) {
        support::cannot("joining a control group", &error);
    }
    let runs = put_filled(cache, 40);
    thread::sleep(Duration::from_millis(10));
    let hog = anonymous(40 * RUN);
    fill(hog, 40 * RUN);
    assert_eq!(kept_pages(hog, 40 * RUN), 40 * RUN / PAGE);
    runs
}

fn a_hog_gets_what_was_freed_10_ms_ago() {
    static CACHE: Cache = Cache::new();
    let _keeper = CACHE.keep().expect("a thread");
    let runs = hog(&CACHE);
    let taken = CACHE.taken_by_kernel_bytes().expect("6.7");
    assert!(taken >= 60 * MIB, "{taken} of {:?}", CACHE.stats());
    // What is left is whole pages of before, or zeros.
    for _ in &runs {
        let run = CACHE.take(RUN).expect("a run");
        let addr = run.addr.addr();
        assert!(runs.contains(&addr));
        let kept = kept_pages(addr, RUN);
        let zero = (0..RUN / PAGE)
            .filter(|page| {
                let bytes = peek(addr + page * PAGE, PAGE).expect("a page");
                bytes.iter().all(|byte| *byte == 0)
            })
            .count();
        assert_eq!(kept + zero, RUN / PAGE);
        fill(addr, RUN);
        assert_eq!(kept_pages(addr, RUN), RUN / PAGE);
        sys::unmap(addr, RUN).unwrap();
    }
}

fn a_hog_dies_of_a_cache_that_keeps_everything() {
    static CACHE: Cache = Cache::new();
    CACHE.set_delay(Duration::from_secs(3600));
    hog(&CACHE);
}

fn a_hog_in_the_same_group_gets_the_memory_without_swap() {
    support::needs_root();
    let group = support::needs("a memory control group", LittleMemory::make(GROUP));
    let door = group.door();
    let door = door.to_string_lossy();
    support::play_or_skip("a_hog_gets_what_was_freed_10_ms_ago", &door);
    // The limit is real: memory that is kept kills.
    let mut child = support::child("a_hog_dies_of_a_cache_that_keeps_everything", &door);
    let status = child.status().expect("a child");
    assert_eq!(status.signal(), Some(9), "{status}");
}

/// Threads that allocate, grow, shrink and free at random, while the kernel
/// takes what it can: every block keeps every word from its write to its free.
fn blocks_under_pressure() {
    static ALLOC: Alloc<System> = Alloc::new(System);
    if let Err(error) = fs::write(support::case(), std::process::id().to_string()) {
        support::cannot("joining a control group", &error);
    }
    // A long run says how long (ci/soak.sh).
    let least = env::var("MMZAP_LAZY_SECONDS").ok();
    let least = least.map_or(0, |text| text.parse().expect("seconds"));
    let least = Duration::from_secs(least);
    let (began, total) = (Instant::now(), AtomicUsize::new(0));
    ALLOC.cache().set_delay(Duration::from_micros(200));
    let keeper = ALLOC.cache().keep().expect("a thread");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The group is always full, so that the kernel looks for memory.
            while !stop.load(Ordering::Relaxed) {
                let hog = anonymous(120 * MIB);
                fill(hog, 120 * MIB);
                sys::unmap(hog, 120 * MIB).unwrap();
            }
        });
        let workers: Vec<_> = (1..=3_u64)
            .map(|seed| {
                let (began, total) = (&began, &total);
                scope.spawn(move || {
                    let mut blocks = Blocks {
                        alloc: &ALLOC,
                        held: Vec::new(),
                        dice: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    };
                    let mut steps = 0;
                    while steps < 6000 || began.elapsed() < least {
                        blocks.step();
                        steps += 1;
                    }
                    total.fetch_add(steps, Ordering::Relaxed);
                    for (addr, layout, pattern) in blocks.held {
                        Blocks::check(addr, addr, layout.size(), pattern);
                        // SAFETY: as in `step`.
                        unsafe { ALLOC.dealloc(addr as *mut u8, layout) };
                    }
                })
            })
            .collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok));
    });
    let stats = ALLOC.cache().stats();
    println!("{} steps in {:.0?}", total.into_inner(), began.elapsed());
    assert!(stats.reused_hot > 0 && stats.reused_lazy > 0, "{stats:?}");
    assert_eq!(stats.refused_bytes, 0);
    drop(keeper);
    ALLOC.cache().purge();
    assert_eq!(ALLOC.cache().stats().lazy_bytes, 0);
}

fn blocks_keep_every_word_while_the_kernel_takes_what_is_free() {
    support::needs_root();
    let group = support::needs("a memory control group", LittleMemory::make(320 * MIB));
    support::play_or_skip("blocks_under_pressure", &group.door().to_string_lossy());
}

/// Threads use the cache all the time while another one forks.
fn forks() {
    static ALLOC: Alloc<System> = Alloc::new(System);
    ALLOC.cache().set_delay(Duration::from_micros(100));
    let _keeper = ALLOC.cache().keep().expect("a thread");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 1..=2 {
            let stop = &stop;
            scope.spawn(move || {
                let mut blocks = Blocks {
                    alloc: &ALLOC,
                    held: Vec::new(),
                    dice: seed,
                };
                while !stop.load(Ordering::Relaxed) {
                    blocks.step();
                }
            });
        }
        for _ in 0..200 {
            forked(|| {
                let mut blocks = Blocks {
                    alloc: &ALLOC,
                    held: Vec::new(),
                    dice: 77,
                };
                for _ in 0..50 {
                    blocks.step();
                }
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn a_child_does_not_hang_in_its_parents_cache() {
    support::play("forks", "");
}

/// What a cache holds must not be what is missing elsewhere.
fn little_address_space() {
    static ALLOC: Alloc<System> = Alloc::new(System);
    ALLOC.cache().set_delay(Duration::from_secs(3600));
    let text = fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    let limit = pages * PAGE as u64 + 300 * MIB as u64;
    sys::set_limit(libc::RLIMIT_AS, limit)
        .unwrap_or_else(|error| support::cannot("ulimit", &error));
    let block = |mib: usize| Layout::from_size_align(mib * MIB, 16).unwrap();
    // SAFETY: the layouts have sizes, and each block is freed as it was allocated.
    unsafe {
        let first = ALLOC.alloc(block(150));
        assert!(!first.is_null());
        ALLOC.dealloc(first, block(150));
        assert_eq!(ALLOC.cache().stats().hot_bytes, 160 * MIB);
        let second = ALLOC.alloc(block(220));
        assert!(!second.is_null(), "{:?}", ALLOC.cache().stats());
        assert_eq!(ALLOC.cache().stats().hot_bytes, 0);
        assert!(ALLOC.alloc(block(400)).is_null());
        ALLOC.dealloc(second, block(220));
    }
}

fn what_a_cache_holds_makes_way() {
    support::play_or_skip("little_address_space", "");
}

/// Locked memory cannot be freed lazily; it can be unmapped.
fn locked_runs() {
    sys::lock_everything().unwrap_or_else(|error| support::cannot("mlockall", &error));
    let cache = Cache::new();
    cache.set_delay(Duration::from_millis(1));
    let runs = put_filled(&cache, 6);
    until("tried", &cache, |stats| stats.hot_bytes == 0);
    let stats = cache.stats();
    assert_eq!((stats.lazily_freed_bytes, stats.lazy_bytes), (0, 6 * RUN));
    assert!(stats.refused_bytes >= 6 * RUN as u64);
    let run = cache.take(RUN).expect("a run");
    assert_eq!(kept_pages(run.addr.addr(), RUN), RUN / PAGE);
    // SAFETY: nobody uses the run.
    assert!(unsafe { cache.put(run.addr, run.len) });
    assert_eq!(cache.purge(), 6 * RUN);
    assert!(runs.iter().all(|addr| peek(*addr, 8).is_err()));
}

fn locked_runs_are_kept_and_end() {
    support::needs_root();
    support::play_or_skip("locked_runs", "");
}

/// One run that cannot be discarded does not keep the others.
fn a_refused_run_is_no_reason_to_stop() {
    let cache = Cache::new().with_end(End::Discard);
    cache.set_delay(Duration::from_secs(3600));
    let runs: Vec<_> = (0..600)
        .map(|_| cache.map(2 * PAGE).expect("memory"))
        .collect();
    for run in &runs {
        fill(run.addr.addr(), run.len);
    }
    support::needs("locking a page", sys::lock(runs[100].addr.addr(), PAGE));
    for run in &runs {
        // SAFETY: nobody uses the run.
        assert!(unsafe { cache.put(run.addr, run.len) });
    }
    let done = cache.purge();
    assert!((598 * 2 * PAGE..600 * 2 * PAGE).contains(&done), "{done}");
    let present: usize = runs
        .iter()
        .map(|run| present_pages(run.addr.addr(), run.len))
        .sum();
    assert_eq!(present, 1);
    for run in runs {
        sys::unmap(run.addr.addr(), run.len).unwrap();
    }
}

/// Case 9 of the field: half of what was freed lazily is written again.
fn settling_frees_what_was_not_written_again() {
    const LEN: usize = 64 * MIB;
    let addr = filled(LEN);
    let report = run(&mut Teardown::new(Operation::LazyFree), &[(addr, LEN)]);
    assert_eq!((report.freed_bytes(), report.reclaimable_bytes()), (0, LEN));
    assert_eq!(present_pages(addr, LEN), LEN / PAGE);
    fill(addr, LEN / 2);
    let range = PageRange::new(addr, LEN, PAGE).unwrap();
    let settled = lazy::settle(range).expect("6.7");
    // Pages on their way to a list, some dozens for each CPU, stay.
    assert!(settled.freed_bytes >= LEN / 2 / 10 * 9, "{settled:?}");
    assert_eq!(settled.freed_bytes + settled.kept_bytes, LEN);
    assert_eq!(kept_pages(addr, LEN / 2), LEN / 2 / PAGE);
    sys::unmap(addr, LEN).unwrap();
}

fn main() {
    support::main(
        named![
            a_run_taken_back_soon_is_as_it_was,
            what_nobody_wants_becomes_lazy_and_then_ends,
            the_bound_in_bytes_is_kept,
            a_keeper_does_it_while_the_program_is_quiet,
            the_keeper_misses_no_run_of_a_crowd,
            a_cache_under_the_global_allocator_answers,
            a_hog_in_the_same_group_gets_the_memory_without_swap,
            blocks_keep_every_word_while_the_kernel_takes_what_is_free,
            a_child_does_not_hang_in_its_parents_cache,
            what_a_cache_holds_makes_way,
            locked_runs_are_kept_and_end,
            a_refused_run_is_no_reason_to_stop,
            settling_frees_what_was_not_written_again,
        ],
        named![
            little_address_space,
            locked_runs,
            a_hog_gets_what_was_freed_10_ms_ago,
            a_hog_dies_of_a_cache_that_keeps_everything,
            blocks_under_pressure,
            forks,
        ],
    );
}
