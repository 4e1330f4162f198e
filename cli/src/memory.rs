//! How much memory is free, and the refusal of work that would not fit.

use std::fs;

use anyhow::{Context, Result};
use mmzap::cgroup;

use crate::size;
use crate::unavailable::Unavailable;

/// What a bench needs beside the memory it asks for: stacks, buffers, the
/// kernel's lists per CPU. Less risks the out-of-memory killer, more refuses
/// sizes that would have fitted.
const SPARE: u64 = 64 * size::MIB;

/// The figures of /proc/meminfo that matter here, in bytes.
pub struct Meminfo(String);

impl Meminfo {
    pub fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/meminfo")
            .context("cannot read /proc/meminfo to learn how much memory is free")?;
        Ok(Meminfo(text))
    }

    pub fn bytes(&self, key: &str) -> Option<u64> {
        kib_field(&self.0, key).map(|kib| kib * size::KIB)
    }
}

/// The number behind `key` in a file of `Key:  number kB` lines.
pub fn kib_field(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .and_then(|(_, value)| value.split_whitespace().next()?.parse().ok())
}

/// A figure of /proc/self/status in bytes, such as `VmHWM`.
pub fn of_this_process(key: &str) -> Result<u64> {
    let path = "/proc/self/status";
    let status = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    kib_field(&status, key)
        .map(|kib| kib * size::KIB)
        .with_context(|| format!("{path} does not name {key}"))
}

/// Memory that can be used now, and who says so.
pub struct Free {
    pub bytes: u64,
    reason: String,
}

/// The smaller of what the machine has free and what the control groups leave.
pub fn free() -> Result<Free> {
    let machine = Meminfo::read()?
        .bytes("MemAvailable")
        .context("/proc/meminfo does not name MemAvailable")?;
    Ok(match cgroup::memory_room() {
        Some(room) if room.bytes < machine => Free {
            bytes: room.bytes,
            reason: format!(
                "the limit of {} in {}",
                size::show(room.limit_bytes),
                room.file.display()
            ),
        },
        _ => Free {
            bytes: machine,
            reason: "MemAvailable in /proc/meminfo".into(),
        },
    })
}

/// Page tables for `bytes` mapped with 4 KiB pages: 8 bytes a page.
pub fn page_tables(bytes: u64) -> u64 {
    bytes / 512
}

/// Refuses work that needs more memory than is free. Touches nothing.
pub fn require(what: &str, needed: u64) -> Result<()> {
    let free = free()?;
    let needed = needed.saturating_add(SPARE);
    if needed > free.bytes {
        return Err(Unavailable::because(format!(
            "{what} needs {} of memory, page tables included, but only {} is free ({}): \
             give a smaller --size",
            size::show(needed),
            size::show(free.bytes),
            free.reason
        )));
    }
    Ok(())
}

/// A size for who gave none: `wanted`, or half of the free memory where that is less.
pub fn default_size(wanted: u64) -> Result<u64> {
    let half = free()?.bytes / 2;
    Ok(wanted.min(half / (2 * size::MIB) * (2 * size::MIB)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "MemTotal:       24000 kB\nMemFree:    12 kB\nHugePages_Total:       3\n";
        assert_eq!(kib_field(text, "MemFree"), Some(12));
        assert_eq!(kib_field(text, "HugePages_Total"), Some(3));
        assert_eq!(kib_field(text, "Mem"), None);
    }

    #[test]
    fn what_fits_passes_and_what_does_not_is_named() {
        require("--size 1M", size::MIB).expect("a MiB is free");
        let refused = require("--size 100T", 100 << 40).expect_err("100 TiB is not");
        let text = refused.to_string();
        assert!(text.contains("--size 100T needs 100.00 TiB"), "{text}");
        assert!(text.contains("is free"), "{text}");
    }

    #[test]
    fn an_overflowing_need_is_refused() {
        assert!(require("--size", u64::MAX).is_err());
    }
}
