//! Locks, swap, huge pages, merging and limits: none of them changes an answer.

use std::{fs, os::unix::process::ExitStatusExt as _, thread, time::Duration};

use mmzap::{
    Map, PageRange, mapping,
    volatile::{Answer, Stray, VolatileRegion},
};

use crate::{
    pages::*,
    random::threads_and_reclaim_at_random,
    support::{
        self,
        memory::*,
        settings::{LittleMemory, Setting, Swap},
        sys,
    },
};

pub fn locked_memory() {
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

pub fn locked_memory_is_always_kept() {
    support::needs_root();
    support::play_or_skip("locked_memory", "");
}

/// The last of a purged page to be touched, in a region that faults.
pub fn stray() {
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

pub fn a_stray_touch_of_purged_memory_faults_if_wanted() {
    support::play_or_skip("stray", "");
    let status = support::child("stray", "touch").status().expect("a child");
    const SIGBUS: i32 = 7;
    assert_eq!(status.signal(), Some(SIGBUS), "{status}");
}

pub const GROUP: usize = 192 * MIB;

/// A region of 128 MiB in a group of 192, and a hog that needs more than is left.
pub fn pressure() {
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
    assert!(solid.is_kept() && holds(&solid[..PAGE], content(15, 100)));
    drop(solid);
    let lost = check_all(&region, 15);
    assert!(lost > 40 * MIB / PAGE, "{lost}");
}

pub fn a_hog_gets_volatile_memory_and_nothing_else() {
    support::needs_root();
    let group = support::needs("a memory control group", LittleMemory::make(GROUP));
    support::play_or_skip("pressure", &group.door().to_string_lossy());
}

pub fn swap_changes_no_answer() {
    support::needs_root();
    let swap = support::needs("swap in memory", Swap::make(64 * MIB));
    let region = region(64);
    write_all(&region, 16);
    let solid = region.pin(pages(0..8)).unwrap();
    settle_lists();
    region.reclaim(pages(0..32)).unwrap();
    // What is pinned can be out in swap, and is there all the same.
    assert!(holds(&solid[..PAGE], content(16, 0)));
    drop(solid);
    assert_eq!(check_all(&region, 16), 24);
    write_all(&region, 16);
    threads_and_reclaim_at_random();
    drop(swap);
}

/// Pages that are alike become one page, until one of them is written.
pub fn merged_pages() {
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

pub fn merging_changes_no_answer() {
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

pub fn huge_bytes(addr: usize, len: usize) -> usize {
    let range = PageRange::new(addr, len, PAGE).unwrap();
    mapping::folio_mix(range).expect("6.7").huge_bytes
}

pub fn huge_pages_are_not_used() {
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

pub fn one_locked_page_is_kept_and_the_others_go() {
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
        assert!(holds(&all[pages(5..6)], content(20, 5)));
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
