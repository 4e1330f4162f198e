//! Folios at the edges of a range, and what khugepaged does to what is left.

mod support;

use std::{fs, thread, time::Duration};

use mmzap::{Cancel, Operation, PageRange, PartialFolios, Reason, Teardown, lazy::Cache, mapping};
use support::{
    memory::*,
    settings::{Setting, Swap},
    sys,
};

const HUGE: usize = 2 * MIB;
const LEN: usize = 32 * MIB;

/// Filled memory of folios of one size, at a multiple of 2 MiB. The settings
/// must stay until the test is over.
fn folios_of(bytes: usize) -> (usize, Vec<Setting>) {
    support::needs_root();
    if those_there(&[bytes]).is_empty() {
        support::skip(format_args!("this kernel has no folios of {bytes} bytes"));
    }
    let room = "/sys/kernel/mm/transparent_hugepage";
    let mut settings = vec![switch(format!("{room}/enabled"), "madvise")];
    for entry in fs::read_dir(room).expect(room).flatten() {
        let path = entry.path().join("enabled");
        if path.exists() {
            let own = entry.file_name() == *format!("hugepages-{}kB", bytes / 1024);
            let value = if own { "madvise" } else { "never" };
            settings.push(switch(path.to_str().unwrap().to_owned(), value));
        }
    }
    // What the library has read of the settings is fresh for a second.
    thread::sleep(Duration::from_millis(1100));
    let at = fresh_addresses(LEN + HUGE).next_multiple_of(HUGE);
    let protection = sys::PROT_READ | sys::PROT_WRITE;
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    let addr = sys::map(Some(at), LEN, protection, flags, None, 0).expect("memory");
    sys::hint(addr, LEN, sys::HUGE_PAGES).expect("huge pages");
    fill(addr, LEN);
    (addr, settings)
}

/// The sizes among these that this kernel has: before Linux 6.8, that of huge
/// pages alone.
fn those_there(sizes: &[usize]) -> Vec<usize> {
    let room = |bytes| {
        format!(
            "/sys/kernel/mm/transparent_hugepage/hugepages-{}kB",
            bytes / 1024
        )
    };
    let there = |bytes: &usize| *bytes == HUGE || fs::exists(room(*bytes)).is_ok_and(|is| is);
    sizes.iter().copied().filter(there).collect()
}

fn switch(path: String, value: &str) -> Setting {
    let answer = Setting::set(path.as_str(), value);
    support::needs(&path, answer)
}

fn counter(name: &str) -> usize {
    let text = fs::read_to_string("/proc/vmstat").expect("vmstat");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map_or(0, |value| value.parse().expect("a number"))
}

/// Splits of folios of one size, as the system counts them.
fn splits(bytes: usize) -> usize {
    let stats = format!(
        "/sys/kernel/mm/transparent_hugepage/hugepages-{}kB/stats",
        bytes / 1024
    );
    let of_size: usize = ["split", "split_deferred"]
        .iter()
        .filter_map(|name| fs::read_to_string(format!("{stats}/{name}")).ok())
        .map(|text| text.trim().parse::<usize>().expect("a number"))
        .sum();
    of_size + counter("thp_split_page") + counter("thp_deferred_split_page")
}

/// A range whose edges lie in the middle of folios is done up to whole folios,
/// and the others keep every byte and stay whole.
fn folios_at_the_edges_stay_whole() {
    support::needs_root();
    // Without swap, a page-out splits whatever cannot go.
    let _swap = support::needs("swap in memory (zram)", Swap::make(16 * LEN));
    for bytes in those_there(&[HUGE, 64 * 1024, 256 * 1024]) {
        for operation in [Operation::LazyFree, Operation::PageOut, Operation::Cold] {
            let (addr, _settings) = folios_of(bytes);
            let before = splits(bytes);
            let range = (addr + bytes / 2, LEN - bytes);
            let report = run(&mut Teardown::new(operation), &[range]);
            assert_eq!(splits(bytes), before, "{operation} {bytes}");
            assert_eq!(report.bytes_done, LEN - 2 * bytes, "{operation} {bytes}");
            let skipped: Vec<_> = report
                .skipped()
                .iter()
                .map(|skipped| (skipped.len, skipped.reason))
                .collect();
            let half = (bytes / 2, Reason::PartialFolio { folio_bytes: bytes });
            assert_eq!(skipped, [half, half], "{operation}");
            assert_eq!(report.discarded_bytes, 0);
            sys::unmap(addr, LEN).unwrap();
        }
    }
}

fn parts_of_folios_are_discarded_if_asked() {
    for bytes in those_there(&[HUGE, 64 * 1024]) {
        let (addr, _settings) = folios_of(bytes);
        let before = counter("thp_split_page");
        let range = (addr + bytes / 2, LEN - bytes);
        let mut job = Teardown::new(Operation::LazyFree).partial_folios(PartialFolios::Discard);
        let report = run(&mut job, &[range]);
        assert_eq!(counter("thp_split_page"), before);
        assert_eq!(report.bytes_done, LEN - bytes);
        assert_eq!(report.discarded_bytes, bytes);
        assert_eq!(report.freed_bytes(), 0);
        assert_eq!(report.reclaimable_bytes(), LEN - bytes);
        // What was not handed in is there, what was discarded is not.
        assert_eq!(kept_pages(addr, bytes), bytes / 2 / PAGE);
        sys::unmap(addr, LEN).unwrap();
    }
}

fn discarding() -> Teardown<'static> {
    Teardown::new(Operation::LazyFree).partial_folios(PartialFolios::Discard)
}

/// What lazy freeing would refuse is not discarded in its place.
fn parts_that_could_not_be_freed_lazily_are_left() {
    let (addr, _settings) = folios_of(HUGE);
    let range = (addr + HUGE / 2, LEN - HUGE);
    sys::lock(addr, HUGE).unwrap();
    let report = run(&mut discarding(), &[range]);
    assert_eq!(report.bytes_done, LEN - HUGE - HUGE / 2);
    let part = Reason::PartialFolio { folio_bytes: HUGE };
    assert_eq!(report.skipped().len(), 1, "{report:?}");
    assert_eq!(report.skipped()[0].reason, part);
    assert_eq!(kept_pages(addr, HUGE), HUGE / PAGE);
    sys::unmap(addr, LEN).unwrap();

    // In the place of a folio's last page, one of a private file.
    let (addr, _settings) = folios_of(64 * 1024);
    let file = sys::memfd(0).unwrap();
    file.set_len(PAGE as u64).unwrap();
    let at = addr + 15 * PAGE;
    sys::unmap(at, PAGE).unwrap();
    let protection = sys::PROT_READ | sys::PROT_WRITE;
    sys::map(Some(at), PAGE, protection, sys::MAP_PRIVATE, Some(&file), 0).expect("the file");
    fill(at, PAGE);
    let report = run(&mut discarding(), &[(addr + 8 * PAGE, 8 * PAGE)]);
    assert_eq!(report.bytes_done, 7 * PAGE, "{report:?}");
    assert!(matches!(report.skipped()[0].reason, Reason::Kind(_)));
    assert_eq!((kept_pages(at, PAGE), accounted(&report)), (1, 8 * PAGE));
    sys::unmap(addr, LEN).unwrap();
}

/// A folio of which a page in the middle is not mapped any more.
fn a_part_with_a_hole_is_done_around_it() {
    let (addr, _settings) = folios_of(64 * 1024);
    sys::unmap(addr + 10 * PAGE, PAGE).unwrap();
    let report = run(&mut discarding(), &[(addr + 8 * PAGE, 8 * PAGE)]);
    assert_eq!(report.bytes_done, 7 * PAGE, "{report:?}");
    assert_eq!(report.skipped()[0].reason, Reason::Unmapped);
    assert_eq!((report.bytes_skipped, accounted(&report)), (PAGE, 8 * PAGE));
    assert_eq!(kept_pages(addr, 8 * PAGE), 8);
    sys::unmap(addr, LEN).unwrap();
}

fn a_cancelled_job_leaves_the_edges_as_well() {
    let (addr, _settings) = folios_of(HUGE);
    let cancel = Cancel::default();
    cancel.now();
    let range = (addr + HUGE / 2, LEN - HUGE);
    let report = run(&mut discarding().cancel(&cancel), &[range]);
    assert_eq!((report.bytes_done, report.bytes_skipped), (0, LEN - HUGE));
    assert_eq!(kept_pages(addr, LEN), LEN / PAGE);
    sys::unmap(addr, LEN).unwrap();
}

fn parts_are_done_like_the_rest_if_asked() {
    let (addr, _settings) = folios_of(HUGE);
    let before = counter("thp_split_page");
    let range = (addr + HUGE / 2, LEN - HUGE);
    let mut job = Teardown::new(Operation::LazyFree).partial_folios(PartialFolios::Split);
    let report = run(&mut job, &[range]);
    assert_eq!(report.bytes_done, LEN - HUGE);
    assert_eq!(report.reclaimable_bytes(), LEN - HUGE);
    assert!(counter("thp_split_page") >= before + 2);
    sys::unmap(addr, LEN).unwrap();
}

/// The contents of a page-out are never given up.
fn paging_out_discards_nothing_even_if_asked() {
    let (addr, _settings) = folios_of(HUGE);
    let mut job = Teardown::new(Operation::PageOut).partial_folios(PartialFolios::Discard);
    let report = run(&mut job, &[(addr + HUGE / 2, LEN - HUGE)]);
    assert_eq!(report.bytes_skipped, HUGE);
    assert_eq!(kept_pages(addr, LEN), LEN / PAGE);
    sys::unmap(addr, LEN).unwrap();
}

/// A cache that frees lazily, and hands out parts of runs, splits no folio.
fn a_cache_of_lazy_runs_splits_nothing() {
    let (addr, _settings) = folios_of(HUGE);
    let before = counter("thp_split_page");
    let cache = Cache::new();
    cache.set_delay(Duration::ZERO);
    // SAFETY: nobody uses the memory.
    assert!(unsafe { cache.put(addr as *mut u8, LEN) });
    let lazy = || {
        let _ = cache.take(1 << 40); // does what is due
        cache.stats().lazy_bytes
    };
    until("lazy freeing", || lazy() == LEN);
    assert_eq!(counter("thp_split_page"), before);
    // A part that ends in the middle of a huge page.
    let part = LEN - HUGE - HUGE / 2;
    let run = cache.take(part).expect("a run");
    fill(run.addr.addr(), part);
    // SAFETY: as above.
    assert!(unsafe { cache.put(run.addr, run.len) });
    until("lazy freeing", || lazy() == LEN);
    assert_eq!(counter("thp_split_page"), before);
    assert_eq!(cache.stats().refused_bytes, 0);
    assert_eq!(cache.purge(), LEN);
}

fn the_mix_of_a_range_is_told() {
    let (addr, _settings) = folios_of(HUGE);
    // One huge page gone, one in small pages, the others whole.
    let _ = run(&mut Teardown::new(Operation::Discard), &[(addr, HUGE)]);
    let _ = run(
        &mut Teardown::new(Operation::Discard),
        &[(addr + HUGE, PAGE)],
    );
    let range = PageRange::new(addr, LEN, PAGE).unwrap();
    let mix = support::needs("PAGEMAP_SCAN", mapping::folio_mix(range));
    assert_eq!(mix.empty_bytes, HUGE + PAGE);
    assert_eq!(mix.small_bytes, HUGE - PAGE);
    assert_eq!(mix.huge_bytes, LEN - 2 * HUGE);
    sys::unmap(addr, LEN).unwrap();
}

/// All but one small page of each huge one is discarded. Left to itself, a
/// quick khugepaged takes all the memory again; told not to, it does not.
fn khugepaged_keeps_off_if_asked() {
    for no_collapse in [false, true] {
        let (addr, mut settings) = folios_of(HUGE);
        let room = "/sys/kernel/mm/transparent_hugepage/khugepaged";
        for (name, value) in [
            ("scan_sleep_millisecs", "1"),
            ("alloc_sleep_millisecs", "1"),
            ("pages_to_scan", "65536"),
            ("max_ptes_none", "511"),
        ] {
            settings.push(switch(format!("{room}/{name}"), value));
        }
        let ranges: Vec<_> = (addr..addr + LEN)
            .step_by(HUGE)
            .map(|at| (at + PAGE, HUGE - PAGE))
            .collect();
        let mut job = Teardown::new(Operation::Discard).no_collapse(no_collapse);
        let report = run(&mut job, &ranges);
        assert_eq!(report.bytes_done, LEN - LEN / HUGE * PAGE);
        let range = PageRange::new(addr, LEN, PAGE).unwrap();
        let mix = || support::needs("PAGEMAP_SCAN", mapping::folio_mix(range));
        let refilled = || mix().huge_bytes;
        if no_collapse {
            let scans = || counter_of(&format!("{room}/full_scans"));
            let before = scans();
            until("khugepaged's scans", || scans() >= before + 3);
            assert_eq!(refilled(), 0);
        } else {
            until("khugepaged's refill", || refilled() == LEN);
        }
        sys::unmap(addr, LEN).unwrap();
    }
}

fn counter_of(path: &str) -> usize {
    let text = fs::read_to_string(path).expect(path);
    text.trim().parse().expect("a number")
}

fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..600 {
        if done() {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("{what} did not come within a minute");
}

fn main() {
    support::main(
        named![
            folios_at_the_edges_stay_whole,
            parts_of_folios_are_discarded_if_asked,
            parts_that_could_not_be_freed_lazily_are_left,
            a_part_with_a_hole_is_done_around_it,
            a_cancelled_job_leaves_the_edges_as_well,
            parts_are_done_like_the_rest_if_asked,
            paging_out_discards_nothing_even_if_asked,
            a_cache_of_lazy_runs_splits_nothing,
            the_mix_of_a_range_is_told,
            khugepaged_keeps_off_if_asked,
        ],
        &[],
    );
}
