//! A test's own memory, looked at from outside: no reference into it is ever
//! made, so it may be anything at all, also gone.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    sync::atomic::{AtomicUsize, Ordering},
};

use mmzap::{Report, Teardown};

use super::sys;

pub const PAGE: usize = 4096;
pub const MIB: usize = 1 << 20;

/// Addresses that nobody else is given: far below where the kernel places
/// mappings by itself, so what a test leaves unmapped stays unmapped.
pub fn fresh_addresses(len: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1 << 36);
    const APART: usize = 2 << 20;
    let step = len.next_multiple_of(APART) + APART;
    NEXT.fetch_add(step, Ordering::Relaxed)
}

/// Private anonymous memory, in 4 KiB pages, at addresses of its own; never
/// unmapped by itself.
pub fn anonymous(len: usize) -> usize {
    let at = fresh_addresses(len);
    let protection = sys::PROT_READ | sys::PROT_WRITE;
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    let addr = sys::map(Some(at), len, protection, flags, None, 0).expect("memory");
    // Refused only by a kernel without huge pages.
    let _ = sys::hint(addr, len, sys::NO_HUGE_PAGES);
    addr
}

/// The same, with something written to every page.
pub fn filled(len: usize) -> usize {
    let addr = anonymous(len);
    fill(addr, len);
    addr
}

/// Writes `stamp` of each page to the first word of it.
pub fn fill(addr: usize, len: usize) {
    for page in (addr..addr + len).step_by(PAGE) {
        // SAFETY: tests pass writable memory of their own, to which no
        // reference exists.
        unsafe { (page as *mut usize).write_volatile(stamp(page)) };
    }
}

pub fn stamp(page: usize) -> usize {
    page ^ 0x5aa5_5aa5_5aa5_5aa5
}

/// The first word of a page.
pub fn word(page: usize) -> usize {
    // SAFETY: tests pass readable memory of their own, to which no reference
    // exists.
    unsafe { (page as *const usize).read_volatile() }
}

/// How many pages of filled memory still hold what was written; the others
/// must hold zero.
pub fn kept_pages(addr: usize, len: usize) -> usize {
    (addr..addr + len)
        .step_by(PAGE)
        .filter(|&page| match word(page) {
            0 => false,
            value => {
                assert_eq!(value, stamp(page), "page {page:#x} holds something else");
                true
            }
        })
        .count()
}

/// The bytes at an address as the kernel sees them, whatever the protection;
/// an error where nothing is mapped.
pub fn peek(addr: usize, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, addr as u64)?;
    Ok(bytes)
}

/// How many pages are in memory, the zero page included.
pub fn present_pages(addr: usize, len: usize) -> usize {
    const PRESENT: u64 = 1 << 63;
    let mut entries = vec![0; len / PAGE * 8];
    File::open("/proc/self/pagemap")
        .and_then(|map| map.read_exact_at(&mut entries, (addr / PAGE * 8) as u64))
        .expect("the page map of this process");
    let (entries, _) = entries.as_chunks::<8>();
    entries
        .iter()
        .filter(|entry| u64::from_ne_bytes(**entry) & PRESENT != 0)
        .count()
}

/// A line of a status file, in KiB.
pub fn status_kib(pid: &str, line: &str) -> Option<usize> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = text.lines().find_map(|l| l.strip_prefix(line))?;
    value
        .trim_start_matches(':')
        .trim()
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()
}

/// This process's own anonymous memory, in bytes.
pub fn anonymous_rss_bytes() -> usize {
    status_kib("self", "RssAnon").expect("RssAnon") * 1024
}

/// Mappings of this process.
pub fn mapping_count() -> usize {
    fs::read_to_string("/proc/self/maps")
        .expect("maps")
        .lines()
        .count()
}

/// Threads of this process.
pub fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads");
    tasks
        .filter_map(|task| Some(task.ok()?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// [`Teardown::run_raw`] over a test's own memory.
pub fn run(job: &mut Teardown<'_>, ranges: &[(usize, usize)]) -> Report {
    let ranges = ranges.iter().map(|&(addr, len)| (addr as *mut u8, len));
    // SAFETY: tests pass memory of their own, to which no reference exists, and
    // ranges that the kernel must refuse.
    unsafe { job.run_raw(ranges) }
}

/// The bytes of a report, which must add up.
pub fn accounted(report: &Report) -> usize {
    report.bytes_done + report.bytes_skipped + report.bytes_failed
}
