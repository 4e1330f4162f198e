//! Arenas of jemalloc with hooks of ours: what they purge is reclaimable, what
//! they purge by force is gone, and what they hand out as zeros is zeros.

mod support;

use std::{
    ffi::{CString, c_void},
    ptr,
};

use mmzap::jemalloc;
use support::memory::*;
use tikv_jemalloc_sys as je;

const BLOCK: usize = 4 * MIB;
const COUNT: usize = 16;

fn control<T>(name: &str, mut new: Option<T>) -> T
where
    T: Copy + Default,
{
    let name = CString::new(name).unwrap();
    let mut old = T::default();
    let mut len = size_of::<T>();
    let (at, bytes) = match &mut new {
        Some(value) => ((&raw mut *value).cast::<c_void>(), size_of::<T>()),
        None => (ptr::null_mut(), 0),
    };
    let (old_at, old_len) = if bytes == 0 {
        ((&raw mut old).cast::<c_void>(), &raw mut len)
    } else {
        (ptr::null_mut(), ptr::null_mut())
    };
    // SAFETY: the values have the types of the names that the tests use.
    let answer = unsafe { je::mallctl(name.as_ptr(), old_at, old_len, at, bytes) };
    assert_eq!(answer, 0, "{name:?}");
    old
}

fn command(name: &str) {
    let name = CString::new(name).unwrap();
    let null = ptr::null_mut();
    // SAFETY: a name that takes no value.
    let answer = unsafe { je::mallctl(name.as_ptr(), null, ptr::null_mut(), null, 0) };
    assert_eq!(answer, 0, "{name:?}");
}

/// An arena of its own, which keeps what is freed until it is told.
fn arena() -> u32 {
    let arena: u32 = control("arenas.create", None);
    jemalloc::install(arena).expect("hooks");
    jemalloc::install(arena).expect("the same hooks again");
    control(&format!("arena.{arena}.dirty_decay_ms"), Some(-1_isize));
    control(&format!("arena.{arena}.muzzy_decay_ms"), Some(-1_isize));
    arena
}

fn flags(arena: u32) -> i32 {
    je::MALLOCX_ARENA(arena as usize) | je::MALLOCX_TCACHE_NONE
}

fn block(arena: u32, len: usize, zeroed: bool) -> usize {
    let zero = if zeroed { je::MALLOCX_ZERO } else { 0 };
    // SAFETY: plain numbers.
    let addr = unsafe { je::mallocx(len, flags(arena) | zero) };
    assert!(!addr.is_null());
    addr.addr()
}

fn free(arena: u32, addr: usize) {
    // SAFETY: a block of this arena that nobody uses.
    unsafe { je::dallocx(addr as *mut c_void, flags(arena)) };
}

fn freed_blocks(arena: u32, count: usize, len: usize) -> Vec<usize> {
    let blocks: Vec<usize> = (0..count).map(|_| block(arena, len, false)).collect();
    for addr in &blocks {
        fill(*addr, len);
    }
    for addr in &blocks {
        free(arena, *addr);
    }
    blocks
}

fn lazy_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("smaps");
    let line = text.lines().find_map(|l| l.strip_prefix("LazyFree:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB"));
    kib.map_or(0, |kib| kib.trim().parse::<usize>().unwrap() * 1024)
}

fn decay_frees_lazily_and_purging_frees() {
    let arena = arena();
    let blocks = freed_blocks(arena, COUNT, BLOCK);
    let present = || {
        blocks
            .iter()
            .map(|addr| present_pages(*addr, BLOCK))
            .sum::<usize>()
    };
    let all = COUNT * BLOCK / PAGE;
    assert_eq!(present(), all);
    let before = lazy_bytes();
    control(&format!("arena.{arena}.dirty_decay_ms"), Some(0_isize));
    command(&format!("arena.{arena}.decay"));
    assert!(lazy_bytes() - before >= COUNT * BLOCK / 10 * 9);
    assert_eq!(present(), all, "lazily");
    command(&format!("arena.{arena}.purge"));
    assert_eq!(present(), 0);
}

fn blocks_of_zeros_are_zeros() {
    let arena = arena();
    for command_after in ["decay", "purge"] {
        freed_blocks(arena, COUNT, BLOCK);
        command(&format!("arena.{arena}.{command_after}"));
        for _ in 0..COUNT {
            let addr = block(arena, BLOCK, true);
            // SAFETY: the block is ours.
            let words = unsafe { std::slice::from_raw_parts(addr as *const u64, BLOCK / 8) };
            assert!(words.iter().all(|word| *word == 0));
            free(arena, addr);
        }
    }
}

/// Large enough for several threads.
fn large_extents_go_too() {
    const LARGE: usize = 160 * MIB;
    let arena = arena();
    let blocks = freed_blocks(arena, 1, LARGE);
    command(&format!("arena.{arena}.purge"));
    assert_eq!(present_pages(blocks[0], LARGE), 0);
    freed_blocks(arena, 1, LARGE);
    let before = anonymous_rss_bytes();
    command(&format!("arena.{arena}.destroy"));
    assert!(before - anonymous_rss_bytes() >= LARGE / 10 * 9);
}

fn arena_of(mut block: *mut c_void) -> u32 {
    let (mut arena, mut len) = (0_u32, size_of::<u32>());
    // SAFETY: the name takes a pointer and answers with a number.
    let answer = unsafe {
        je::mallctl(
            c"arenas.lookup".as_ptr(),
            (&raw mut arena).cast(),
            &raw mut len,
            (&raw mut block).cast(),
            size_of::<*mut c_void>(),
        )
    };
    assert_eq!(answer, 0);
    arena
}

fn all_arenas_at_once() {
    jemalloc::install_everywhere(None).expect("hooks");
    let refused = jemalloc::install(1 << 20).expect_err("no such arena");
    assert!(refused.to_string().contains("arena.1048576"), "{refused}");
    // Blocks of 8 MiB and more have an arena of their own, the next in number.
    // jemalloc gives each up at once; with hooks of ours, by several threads.
    const LARGE: usize = 96 * MIB;
    let arenas: u32 = control("opt.narenas", None);
    let bare: u32 = control("arenas.create", None);
    let hooks = |arena| control::<usize>(&format!("arena.{arena}.extent_hooks"), None);
    assert_ne!(hooks(arenas), hooks(bare));
    // SAFETY: plain numbers.
    let large = unsafe { je::mallocx(LARGE, 0) };
    assert_eq!(arena_of(large), arenas);
    fill(large.addr(), LARGE);
    // SAFETY: nobody uses the block.
    unsafe { je::dallocx(large, 0) };
    assert_eq!(present_pages(large.addr(), LARGE), 0);
    // Arena 0 serves what hooks allocate themselves.
    let blocks = freed_blocks(0, 1, 96 * MIB);
    command("arena.0.purge");
    assert_eq!(present_pages(blocks[0], 96 * MIB), 0);
}

fn main() {
    support::main(
        named![
            decay_frees_lazily_and_purging_frees,
            blocks_of_zeros_are_zeros,
            large_extents_go_too,
            all_arenas_at_once,
        ],
        &[],
    );
}
