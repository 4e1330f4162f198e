//! The mappings of this process, by whichever way the kernel offers.

use std::fs::File;

use super::{Found, Mapping, Mappings, maps};
use crate::sys::{probe, procmap};

/// One job's view; opened anew for each, since a file kept over a fork would
/// show the parent.
pub(crate) enum LiveMappings {
    /// PROCMAP_QUERY on an open /proc/self/maps.
    Query(File),
    /// All of /proc/self/maps, read once.
    Snapshot(Vec<Mapping>),
    /// No /proc.
    Blind,
}

impl LiveMappings {
    pub(crate) fn open() -> Self {
        let Ok(file) = procmap::open("maps") else {
            return Self::Blind;
        };
        if probe::procmap_query() {
            return Self::Query(file);
        }
        Self::snapshot(file)
    }

    fn snapshot(file: File) -> Self {
        match maps::snapshot(file) {
            Ok(all) if !all.is_empty() => Self::Snapshot(all),
            _ => Self::Blind,
        }
    }
}

impl Mappings for LiveMappings {
    fn at_or_after(&mut self, addr: usize) -> Found {
        match self {
            Self::Query(file) => procmap::query(file, addr).unwrap_or(Found::Unknown),
            Self::Snapshot(all) => all.as_slice().at_or_after(addr),
            Self::Blind => Found::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        mapping::Kind,
        sys::{mmap, page_bytes},
    };

    #[test]
    fn a_query_and_a_snapshot_see_the_same() {
        let pages = mmap::Region::map(4 * page_bytes()).unwrap();
        let mut snapshot = LiveMappings::snapshot(File::open("/proc/self/maps").unwrap());
        let mut live = LiveMappings::open();
        for addr in [
            pages.range().start(),
            (&raw const live).addr(),
            page_bytes as *const () as usize,
        ] {
            let Found::Mapping(seen) = snapshot.at_or_after(addr) else {
                panic!("nothing found at {addr:#x}");
            };
            assert!(seen.range.start() <= addr && addr < seen.range.end());
            let Found::Mapping(queried) = live.at_or_after(addr) else {
                panic!("query found nothing at {addr:#x}");
            };
            assert_eq!(seen.kind, queried.kind);
        }
    }

    #[test]
    fn a_hole_answers_with_the_next_mapping() {
        let page = page_bytes();
        let region = mmap::Region::map(3 * page).unwrap();
        let (start, middle) = (region.range().start(), region.range().start() + page);
        region.punch_hole(middle, page);
        let mut live = LiveMappings::open();
        let Found::Mapping(after) = live.at_or_after(middle) else {
            panic!("nothing after the hole");
        };
        assert!(after.range.start() >= middle + page);
        let Found::Mapping(before) = live.at_or_after(start) else {
            panic!("nothing at the start");
        };
        assert!(before.range.end() <= middle);
        assert_eq!(before.kind, Kind::Anonymous);
    }
}
