//! Transparent huge pages as the system offers them: which sizes of folio there
//! are, the switches that choose one, and the counters of their splits.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::ops::Sub;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::machine;
use crate::restore::Restore;
use crate::unavailable::Unavailable;
use crate::{size, sys};

const ROOT: &str = "/sys/kernel/mm/transparent_hugepage";

/// The sizes of folio in bytes, and whether each has a switch for anonymous memory.
pub fn sizes() -> Result<BTreeMap<u64, bool>> {
    let mut sizes = BTreeMap::new();
    let entries = fs::read_dir(ROOT).map_err(|error| {
        Unavailable::because(format!(
            "this kernel has no transparent huge pages ({ROOT}: {error})"
        ))
    })?;
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {ROOT}"))?.path();
        if let Some(bytes) = size_of(&path) {
            sizes.insert(bytes, path.join("enabled").exists());
        }
    }
    // Before Linux 6.8 there is one size and one switch, the global one.
    if sizes.is_empty()
        && let Some(bytes) =
            machine::trimmed(&format!("{ROOT}/hpage_pmd_size")).and_then(|text| text.parse().ok())
    {
        sizes.insert(bytes, true);
    }
    Ok(sizes)
}

/// The size that a directory `hugepages-64kB` stands for.
fn size_of(directory: &Path) -> Option<u64> {
    let name = directory.file_name()?.to_str()?;
    let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    Some(kib.parse::<u64>().ok()? * size::KIB)
}

/// All switches, and where they stood before.
pub struct Switches {
    each: Vec<Switch>,
    restore: Restore,
}

struct Switch {
    path: PathBuf,
    /// `None` for the global one.
    bytes: Option<u64>,
}

impl Switches {
    /// Takes note of all switches; they go back there in the end.
    pub fn take() -> Result<Self> {
        let global = Switch {
            path: Path::new(ROOT).join("enabled"),
            bytes: None,
        };
        let directory = |bytes: u64| format!("{ROOT}/hugepages-{}kB/enabled", bytes / size::KIB);
        let each: Vec<Switch> = sizes()?
            .into_keys()
            .map(|bytes| Switch {
                path: directory(bytes).into(),
                bytes: Some(bytes),
            })
            .filter(|switch| switch.path.exists())
            .chain([global])
            .collect();
        let restore = Restore::begin()?;
        for switch in &each {
            let path = switch.path.clone();
            let before = machine::trimmed(&path.to_string_lossy())
                .and_then(|line| machine::chosen(&line))
                .with_context(|| format!("cannot read {}", path.display()))?;
            restore.change(|steps| {
                steps.push(move || write(&path, &before));
                Ok(())
            })?;
        }
        Ok(Switches { each, restore })
    }

    /// Lets memory that asks for huge pages have folios of this size and of no
    /// other; the size of a page switches all off.
    pub fn choose(&self, bytes: u64) -> Result<()> {
        let any = bytes > sys::page_size() as u64;
        // Off before on: never two sizes at a time.
        for on in [false, true] {
            for switch in &self.each {
                if switch.bytes.map_or(any, |own| own == bytes) == on {
                    let value = if on { "madvise" } else { "never" };
                    self.restore.change(|_| write(&switch.path, value))?;
                }
            }
        }
        Ok(())
    }

    /// Puts all switches back.
    pub fn finish(self) -> Result<()> {
        self.restore.finish()
    }
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).map_err(|error| {
        let told = format!("cannot write {value} to {}: {error}", path.display());
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                Unavailable::because(told)
            }
            _ => anyhow::anyhow!(told),
        }
    })
}

/// Splits of huge pages in the whole machine. Counted apart because they cost
/// differently: a folio taken to pieces, a huge entry of a page table replaced by
/// a table of small ones, a folio of which a part is gone and which waits to be
/// taken to pieces, and folios that would not come apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Splits {
    pub folios: u64,
    pub pmds: u64,
    pub deferred: u64,
    pub failed: u64,
}

impl Splits {
    pub fn read() -> Result<Self> {
        let path = "/proc/vmstat";
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        let whole = |key: &str| vmstat(&text, key);
        // The counters of each size include those of the largest, which vmstat has.
        let by_size = |file: &str, key: &str| sum(file).unwrap_or_else(|| whole(key));
        Ok(Splits {
            folios: by_size("split", "thp_split_page"),
            pmds: whole("thp_split_pmd"),
            deferred: by_size("split_deferred", "thp_deferred_split_page"),
            failed: by_size("split_failed", "thp_split_page_failed"),
        })
    }

    /// All that came apart or waits to.
    pub fn total(self) -> u64 {
        self.folios + self.pmds + self.deferred
    }

    pub fn plus(self, other: Splits) -> Splits {
        Splits {
            folios: self.folios + other.folios,
            pmds: self.pmds + other.pmds,
            deferred: self.deferred + other.deferred,
            failed: self.failed + other.failed,
        }
    }
}

impl Sub for Splits {
    type Output = Splits;

    fn sub(self, before: Splits) -> Splits {
        Splits {
            folios: self.folios.saturating_sub(before.folios),
            pmds: self.pmds.saturating_sub(before.pmds),
            deferred: self.deferred.saturating_sub(before.deferred),
            failed: self.failed.saturating_sub(before.failed),
        }
    }
}

fn vmstat(text: &str, key: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

/// A counter summed up over all sizes; `None` if no size has it.
fn sum(file: &str) -> Option<u64> {
    let counts: Vec<u64> = fs::read_dir(ROOT)
        .ok()?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            size_of(&path)?;
            machine::trimmed(path.join("stats").join(file).to_str()?)?
                .parse()
                .ok()
        })
        .collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_name_their_size() {
        assert_eq!(size_of(Path::new("/x/hugepages-64kB")), Some(64 << 10));
        assert_eq!(size_of(Path::new("/x/khugepaged")), None);
        assert_eq!(size_of(Path::new("/x/hugepages-xkB")), None);
    }

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let text = "thp_split_page_failed 9\nthp_split_page 3\n";
        assert_eq!(vmstat(text, "thp_split_page"), 3);
        assert_eq!(vmstat(text, "thp_split"), 0);
    }

    #[test]
    fn splits_subtract_and_add_up() {
        let before = Splits {
            folios: 1,
            pmds: 2,
            deferred: 3,
            failed: 4,
        };
        let grown = before.plus(Splits {
            folios: 1,
            pmds: 1,
            ..Splits::default()
        });
        assert_eq!((grown - before).total(), 2);
        assert_eq!((before - grown), Splits::default());
    }

    #[test]
    fn a_split_is_counted() {
        let mapping = sys::Mapping::anonymous(2 * sys::HUGE_PAGE, sys::HUGE_PAGE).expect("4 MiB");
        let huge = mapping
            .huge_pages(true)
            .and_then(|()| mapping.populate(sys::Access::Write, 1))
            .map_err(anyhow::Error::from)
            .and_then(|()| crate::smaps::verify(mapping.start(), mapping.len(), true));
        if let Err(error) = huge {
            eprintln!("skipped: needs huge pages: {error}");
            return;
        }
        let before = Splits::read().expect("counters");
        mapping.discard(0, sys::page_size()).expect("discard");
        let splits = Splits::read().expect("counters") - before;
        assert!(splits.pmds >= 1 && splits.deferred >= 1, "{splits:?}");
    }
}
