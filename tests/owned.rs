//! Owned maps: the library's own and memmap2's, emptied and given up.

mod support;

use std::{fs::File, os::unix::fs::FileExt as _};

use memmap2::{Mmap, MmapMut, MmapOptions};
use mmzap::{Map, MapOptions, Operation, OwnedMap, Teardown};
use support::{memory::*, sys};

const LARGE: usize = 256 * MIB;

fn options() -> Vec<(&'static str, MapOptions)> {
    vec![
        ("default", Map::options()),
        ("no huge pages", Map::options().huge_pages(false)),
        ("huge pages", Map::options().huge_pages(true)),
        ("populated", Map::options().populate(true)),
        ("reserved", Map::options().reserve(true)),
        (
            "all",
            Map::options().huge_pages(true).populate(true).reserve(true),
        ),
    ]
}

fn file_of(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().expect("a file");
    file.write_all_at(bytes, 0).expect("room");
    file
}

fn unmapped(addr: usize, len: usize) -> bool {
    mmzap::mapping::of(addr as *const u8, len).is_empty()
}

fn gone<M: OwnedMap>(map: M, addr: usize, len: usize) {
    let mut last = 0;
    let report = Teardown::new(Operation::Unmap)
        .max_active(2)
        .on_progress(|progress| last = progress.done_bytes)
        .unmap(map);
    assert!(report.failures().is_empty(), "{:?}", report.failures());
    assert_eq!((report.freed_bytes(), accounted(&report)), (len, len));
    assert_eq!(last, len);
    assert!(unmapped(addr, len), "{addr:#x} is still mapped");
}

fn maps_of_every_kind_and_length_are_emptied_and_unmapped() {
    for len in [1, PAGE - 1, PAGE, 5 * MIB + 123, 32 * MIB, 48 * MIB + 1] {
        for (name, options) in options() {
            let mut map = options.map(len).expect(name);
            assert_eq!(map.len(), len);
            assert!(map.iter().all(|&byte| byte == 0), "{name}");
            map.fill(7);
            let report = Teardown::new(Operation::Discard)
                .max_active(2)
                .run(&mut map);
            assert!(report.failures().is_empty());
            assert_eq!(
                (report.bytes_done, accounted(&report)),
                (len, len),
                "{name}"
            );
            assert!(map.iter().all(|&byte| byte == 0), "{name}");
            map.fill(8);
            let addr = map.as_ptr().addr();
            gone(map, addr, len);
        }
    }
}

fn shared_maps_keep_their_data_under_discard_and_lose_it_under_punch() {
    for len in [4 * PAGE, 40 * MIB] {
        let mut map = Map::options().shared(true).map(len).unwrap();
        map.fill(7);
        let report = Teardown::new(Operation::Discard).run(&mut map);
        assert_eq!(report.bytes_done, len);
        assert!(map.iter().all(|&byte| byte == 7));
        let report = Teardown::new(Operation::Punch).run(&mut map);
        assert_eq!((report.bytes_done, report.freed_bytes()), (len, len));
        assert!(map.iter().all(|&byte| byte == 0));
        let addr = map.as_ptr().addr();
        gone(map, addr, len);
    }
}

fn lengths_that_no_map_has_are_refused() {
    for len in [0, usize::MAX, isize::MAX as usize] {
        assert!(Map::options().map(len).is_err(), "{len}");
    }
}

fn unmap_and_lazy_free_are_refused_on_a_map_that_stays() {
    for len in [4 * PAGE, 40 * MIB] {
        for (operation, advice) in [
            (Operation::Unmap, "Teardown::unmap"),
            (Operation::LazyFree, "Teardown::run_raw"),
        ] {
            let mut map = Map::options().map(len).unwrap();
            map.fill(7);
            let report = Teardown::new(operation).run(&mut map);
            assert_eq!((report.bytes_done, report.bytes_failed), (0, len));
            assert!(report.failures()[0].to_string().contains(advice));
            assert!(map.iter().all(|&byte| byte == 7));
        }
    }
}

fn memmap2_anonymous() {
    for len in [3 * PAGE + 5, 40 * MIB] {
        let mut map = MmapMut::map_anon(len).unwrap();
        map.fill(7);
        let report = Teardown::new(Operation::Discard)
            .max_active(2)
            .run(&mut map);
        // memmap2 maps anonymous memory privately.
        assert_eq!(report.bytes_done, len / PAGE * PAGE);
        assert!(map[..len / PAGE * PAGE].iter().all(|&byte| byte == 0));
        let mut map = map.make_read_only().unwrap();
        assert_eq!(
            Teardown::new(Operation::Cold).run(&mut map).bytes_done,
            len / PAGE * PAGE
        );
        let addr = map.as_ptr().addr();
        gone(map, addr, len);
    }
}

fn memmap2_files() {
    for (offset, pages) in [(0, 5), (PAGE, 5), (PAGE + 100, 5), (100, 10_240)] {
        let len = pages * PAGE + 50;
        let bytes = vec![3u8; offset + len];
        let file = file_of(&bytes);
        let in_file = || {
            let mut seen = vec![0; bytes.len()];
            file.read_exact_at(&mut seen, 0).expect("the file");
            seen
        };
        let at = || MmapOptions::new().offset(offset as u64).len(len).to_owned();

        // SAFETY: nobody else has this file.
        let mut copy = unsafe { at().map_copy(&file) }.unwrap();
        copy.fill(7);
        let report = Teardown::new(Operation::Discard)
            .max_active(2)
            .run(&mut copy);
        assert_eq!(accounted(&report), len);
        assert_eq!(
            copy.iter().filter(|&&byte| byte == 3).count(),
            report.bytes_done
        );
        assert!(copy.iter().all(|&byte| byte == 3 || byte == 7));
        let addr = copy.as_ptr().addr();
        gone(copy, addr, len);
        assert!(in_file() == bytes, "a private map changed its file");

        // SAFETY: as above.
        let shared: Mmap = unsafe { at().map(&file) }.unwrap();
        let addr = shared.as_ptr().addr();
        gone(shared, addr, len);
        assert!(in_file() == bytes);

        // SAFETY: as above.
        let mut shared = unsafe { at().map_mut(&file) }.unwrap();
        shared.fill(9);
        let report = Teardown::new(Operation::Discard)
            .max_active(2)
            .run(&mut shared);
        assert_eq!(accounted(&report), len);
        assert!(shared.iter().all(|&byte| byte == 9));
        let addr = shared.as_ptr().addr();
        gone(shared, addr, len);
        let seen = in_file();
        assert!(seen[..offset].iter().all(|&byte| byte == 3));
        assert!(
            seen[offset..].iter().all(|&byte| byte == 9),
            "written data was lost"
        );
    }
}

/// RssAnon, not MemFree: freed pages sit in per-CPU lists for a while.
fn the_memory_is_back() {
    const SLACK: usize = 16 * MIB;
    let base = anonymous_rss_bytes();
    let mut map = Map::options().populate(true).map(LARGE).unwrap();
    assert!(anonymous_rss_bytes() >= base + LARGE - SLACK);
    let report = Teardown::new(Operation::Discard)
        .max_active(2)
        .run(&mut map);
    assert_eq!(report.freed_bytes(), LARGE);
    assert!(anonymous_rss_bytes() <= base + SLACK);
    for page in map.chunks_mut(PAGE) {
        page[0] = 1;
    }
    let addr = map.as_ptr().addr();
    gone(map, addr, LARGE);
    assert!(anonymous_rss_bytes() <= base + SLACK);
    let mut map = MmapMut::map_anon(LARGE).unwrap();
    map.fill(1);
    let addr = map.as_ptr().addr();
    gone(map, addr, LARGE);
    assert!(anonymous_rss_bytes() <= base + SLACK);
}

fn no_mapping_is_left_after_a_thousand_rounds() {
    // Whatever the first round of each keeps for good.
    let round = |len: usize| {
        let map = Map::options().map(len).unwrap();
        assert!(
            Teardown::new(Operation::Unmap)
                .max_active(1)
                .unmap(map)
                .failures()
                .is_empty()
        );
        drop(Map::options().map(len).unwrap());
        let map = MmapMut::map_anon(len).unwrap();
        assert!(
            Teardown::new(Operation::Unmap)
                .max_active(1)
                .unmap(map)
                .failures()
                .is_empty()
        );
    };
    for len in [PAGE, 40 * MIB] {
        round(len);
        let before = mapping_count();
        (0..1000).for_each(|_| round(len));
        let after = mapping_count();
        assert!(after <= before, "{after} mappings, {before} before");
    }
}

/// A sealed map cannot go: said, and nothing is claimed.
fn a_sealed_map_is_reported() {
    for len in [4 * PAGE, 40 * MIB] {
        let map = Map::options().map(len).unwrap();
        support::needs("mseal", sys::seal(map.as_ptr().addr(), len));
        let addr = map.as_ptr().addr();
        let report = Teardown::new(Operation::Unmap).unmap(map);
        assert_eq!((report.bytes_done, report.bytes_failed), (0, len));
        assert!(report.failures()[0].to_string().contains("sealed"));
        assert!(!unmapped(addr, len));
    }
}

fn main() {
    support::main(
        named![
            maps_of_every_kind_and_length_are_emptied_and_unmapped,
            shared_maps_keep_their_data_under_discard_and_lose_it_under_punch,
            lengths_that_no_map_has_are_refused,
            unmap_and_lazy_free_are_refused_on_a_map_that_stays,
            memmap2_anonymous,
            memmap2_files,
            the_memory_is_back,
            no_mapping_is_left_after_a_thousand_rounds,
            a_sealed_map_is_reported,
        ],
        &[],
    );
}
