//! Which folio sizes the system hands out for anonymous memory.

use std::{
    cell::Cell,
    fs,
    time::{Duration, Instant},
};

const ROOM: &str = "/sys/kernel/mm/transparent_hugepage";

/// What transparent huge pages there can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FolioSizes {
    /// Huge pages that one entry of the page table's second level maps.
    pub(crate) huge: bool,
    /// The largest smaller size, in bytes; 0 if there is none.
    pub(crate) largest_small_bytes: usize,
}

/// Huge page of x86-64.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// As the settings were at most a second ago.
///
/// Reading them takes some 0.1 ms, more than a small job.
pub(crate) fn recent() -> FolioSizes {
    thread_local! {
        static RECENT: Cell<Option<(Instant, FolioSizes)>> = const { Cell::new(None) };
    }
    let now = Instant::now();
    match RECENT.get() {
        Some((read, sizes)) if now.duration_since(read) < Duration::from_secs(1) => sizes,
        _ => {
            let sizes = read();
            RECENT.set(Some((now, sizes)));
            sizes
        }
    }
}

/// Memory that got its folios before a size was switched off has them still;
/// that is known only page by page, and not looked for.
fn read() -> FolioSizes {
    let on = |setting: &str, inherited: bool| {
        let chosen = setting
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map_or("", |(chosen, _)| chosen);
        match chosen {
            "inherit" => inherited,
            chosen => matches!(chosen, "always" | "madvise"),
        }
    };
    let global = fs::read_to_string(format!("{ROOM}/enabled")).is_ok_and(|s| on(&s, false));
    let Ok(entries) = fs::read_dir(ROOM) else {
        return FolioSizes::default();
    };
    let mut sizes = FolioSizes {
        huge: global,
        largest_small_bytes: 0,
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(kib) = name
            .to_str()
            .and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"))
            .and_then(|kib| kib.parse::<usize>().ok())
        else {
            continue;
        };
        let enabled = fs::read_to_string(entry.path().join("enabled"))
            .is_ok_and(|setting| on(&setting, global));
        let bytes = kib.saturating_mul(1024);
        if enabled && bytes < HUGE_BYTES {
            sizes.largest_small_bytes = sizes.largest_small_bytes.max(bytes);
        } else if enabled {
            sizes.huge = true;
        }
    }
    sizes
}
