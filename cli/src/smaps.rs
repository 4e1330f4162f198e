//! Proof of what memory is made of, from /proc/self/smaps.

use std::fs::File;
use std::io::{BufRead, BufReader};

use anyhow::{Context, Result, bail};

use crate::size::{self, KIB};
use crate::unavailable::Unavailable;

/// Sums over the mappings that overlap a range.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub mapped: u64,
    pub resident: u64,
    pub huge: u64,
    /// Lazily freed and not taken yet.
    pub lazy: u64,
    /// Touched since the kernel last looked.
    pub referenced: u64,
    /// Out in swap.
    pub swapped: u64,
}

/// What the mappings that overlap `start..end` hold. The whole of a mapping that
/// sticks out of the range is counted.
pub fn usage(start: usize, end: usize) -> Result<Usage> {
    let path = "/proc/self/smaps";
    let file = File::open(path).with_context(|| format!("cannot open {path}"))?;
    read(BufReader::new(file), start, end).with_context(|| format!("cannot read {path}"))
}

/// What this process holds in all (/proc/self/smaps_rollup).
pub fn whole_process() -> Result<Usage> {
    let path = "/proc/self/smaps_rollup";
    let file = File::open(path).with_context(|| format!("cannot open {path}"))?;
    read(BufReader::new(file), 0, usize::MAX).with_context(|| format!("cannot read {path}"))
}

fn read(lines: impl BufRead, start: usize, end: usize) -> std::io::Result<Usage> {
    let mut usage = Usage::default();
    let mut inside = false;
    for line in lines.lines() {
        let line = line?;
        if let Some((from, to)) = bounds(&line) {
            inside = from < end && to > start;
            if inside {
                usage.mapped += (to - from) as u64;
            }
        } else if inside && let Some((key, value)) = line.split_once(':') {
            let sum = match key {
                "Rss" => &mut usage.resident,
                "AnonHugePages" => &mut usage.huge,
                "LazyFree" => &mut usage.lazy,
                "Referenced" => &mut usage.referenced,
                "Swap" => &mut usage.swapped,
                _ => continue,
            };
            let kib = value.split_whitespace().next();
            *sum += kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * KIB;
        }
    }
    Ok(usage)
}

/// The addresses at the head of a mapping; `None` for any other line.
fn bounds(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(from)?, address(to)?))
}

/// Fails unless `len` bytes at `start` are resident, in 4 KiB pages or in
/// transparent huge pages as wanted.
pub fn verify(start: usize, len: usize, huge: bool) -> Result<()> {
    let usage = usage(start, start + len)?;
    let len = len as u64;
    if usage.resident < share(len) {
        bail!(
            "only {} of {} were resident after touching every page: \
             something takes memory away, so a figure would mean nothing",
            size::show(usage.resident),
            size::show(len)
        );
    }
    if huge && usage.huge < share(len) {
        return Err(Unavailable::because(format!(
            "only {} of {} got huge pages: free memory is too fragmented \
             (try `echo 1 > /proc/sys/vm/compact_memory` as root) or huge pages are restricted",
            size::show(usage.huge),
            size::show(len)
        )));
    }
    if !huge && usage.huge > 0 {
        bail!(
            "{} of {} are huge pages although they were switched off for this memory",
            size::show(usage.huge),
            size::show(len)
        );
    }
    Ok(())
}

/// 99 %: the kernel may have the last per cent on its way elsewhere.
fn share(len: u64) -> u64 {
    len / 100 * 99
}

/// Fails if anything is still mapped in the range.
pub fn verify_unmapped(start: usize, len: usize) -> Result<()> {
    let path = "/proc/self/maps";
    let file = File::open(path).with_context(|| format!("cannot open {path}"))?;
    for line in BufReader::new(file).lines() {
        let line = line.with_context(|| format!("cannot read {path}"))?;
        if let Some((from, to)) = bounds(&line)
            && from < start + len
            && to > start
        {
            bail!(
                "after unmapping {start:#x}-{:#x} this is left: {line}",
                start + len
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7f0000000000-7f0000200000 rw-p 00000000 00:00 0 
Size:               2048 kB
KernelPageSize:        4 kB
Rss:                1024 kB
Referenced:          512 kB
LazyFree:             64 kB
Swap:                256 kB
SwapPss:             256 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac nh 
7f0000400000-7f0000600000 rw-p 00000000 00:00 0                          [heap]
Rss:                2048 kB
AnonHugePages:      2048 kB
";

    #[test]
    fn only_overlapping_mappings_count() {
        let at = |start, end| read(TEXT.as_bytes(), start, end).expect("text reads");
        assert_eq!(at(0x7f00_0020_0000, 0x7f00_0040_0000), Usage::default());
        assert_eq!(
            at(0x7f00_0000_0000, 0x7f00_0000_1000),
            Usage {
                mapped: 2 << 20,
                resident: 1 << 20,
                referenced: 512 << 10,
                lazy: 64 << 10,
                swapped: 256 << 10,
                ..Usage::default()
            }
        );
        assert_eq!(at(0, usize::MAX).resident, 3 << 20);
        assert_eq!(at(0x7f00_0040_0000, usize::MAX).huge, 2 << 20);
    }
}
