//! The machine a figure was measured on.

use std::fs;

use anyhow::Result;
use mmzap::cgroup;
use serde::Serialize;

use crate::memory::Meminfo;
use crate::sys;

#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu_model: String,
    /// CPUs this process may use: affinity and quotas of all groups.
    pub cpus: usize,
    pub physical_cores: usize,
    /// CPUs' worth of time that the tightest control group allows.
    pub cpu_quota: Option<f64>,
    pub page_size: usize,
    pub mem_total_bytes: u64,
    pub mem_available_bytes: u64,
    /// What the tightest control group limit leaves.
    pub memory_limit_room_bytes: Option<u64>,
    pub swap_total_bytes: u64,
    pub swap_free_bytes: u64,
    pub thp: String,
}

impl Machine {
    pub fn read() -> Result<Self> {
        let memory = Meminfo::read()?;
        let bytes = |key| memory.bytes(key).unwrap_or(0);
        Ok(Machine {
            kernel: trimmed("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
            cpu_model: cpu_model().unwrap_or_else(unknown),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            physical_cores: mmzap::physical_cores(),
            cpu_quota: cgroup::cpu_quota(),
            page_size: sys::page_size(),
            mem_total_bytes: bytes("MemTotal"),
            mem_available_bytes: bytes("MemAvailable"),
            memory_limit_room_bytes: cgroup::memory_room().map(|room| room.bytes),
            swap_total_bytes: bytes("SwapTotal"),
            swap_free_bytes: bytes("SwapFree"),
            thp: thp().unwrap_or_else(|| "not in this kernel".into()),
        })
    }
}

fn unknown() -> String {
    "unknown".into()
}

/// The content of a one-line file.
pub fn trimmed(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().into())
}

/// The setting of transparent huge pages: `always`, `madvise` or `never`.
pub fn thp() -> Option<String> {
    chosen(&trimmed("/sys/kernel/mm/transparent_hugepage/enabled")?)
}

/// The word in brackets, among the words of a switch.
pub fn chosen(line: &str) -> Option<String> {
    let (_, rest) = line.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word.into())
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| matches!(key.trim(), "model name" | "Model" | "cpu model"))
        .map(|(_, model)| model.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_stands_in_brackets() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise".into()));
        assert_eq!(chosen("always"), None);
    }

    #[test]
    fn this_machine_reads() {
        let machine = Machine::read().expect("/proc is mounted");
        assert!(machine.cpus >= 1 && machine.mem_total_bytes > 0 && machine.page_size >= 4096);
    }
}
