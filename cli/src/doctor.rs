//! `mmzap doctor`: what this kernel and this sandbox allow, and what mmzap does instead.

use std::fs;

use anyhow::Result;
use serde::Serialize;

use crate::machine::{Machine, trimmed};
use crate::{output, size};

#[derive(clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Findings {
    capabilities: Vec<Capability>,
    limits: Limits,
    machine: Machine,
}

#[derive(Serialize)]
struct Capability {
    name: &'static str,
    available: bool,
    /// What was found.
    detail: String,
    /// What mmzap does where it is not available.
    fallback: &'static str,
}

#[derive(Serialize)]
struct Limits {
    default_max_active: usize,
    /// What the default follows from.
    default_max_active_why: String,
    affinity_cpus: Option<usize>,
    /// Bytes of address space a process may have; null for no limit.
    address_space_bytes: Option<u64>,
    max_map_count: Option<u64>,
    overcommit_memory: Option<u64>,
    overcommit_meaning: &'static str,
}

pub fn run(args: &Args) -> Result<()> {
    let findings = Findings {
        capabilities: mmzap::capabilities()
            .list()
            .iter()
            .map(|found| Capability {
                name: found.name,
                available: found.available,
                detail: found.detail.clone(),
                fallback: found.fallback,
            })
            .collect(),
        limits: Limits::read(),
        machine: Machine::read()?,
    };
    if args.json {
        output::print_json(&findings)
    } else {
        output::print(&findings.show())
    }
}

impl Limits {
    fn read() -> Self {
        let number = |path| trimmed(path)?.parse::<u64>().ok();
        let affinity_cpus = affinity_cpus();
        let quota = mmzap::cgroup::cpu_quota();
        let overcommit_memory = number("/proc/sys/vm/overcommit_memory");
        Limits {
            default_max_active: mmzap::default_max_active(),
            default_max_active_why: format!(
                "the smallest of: CPUs in the affinity mask {}, CPU quota {}, physical cores {}",
                affinity_cpus.map_or_else(|| "unknown".into(), |cpus| cpus.to_string()),
                quota.map_or_else(|| "none".into(), |cpus| format!("{cpus:.2}")),
                mmzap::physical_cores(),
            ),
            affinity_cpus,
            address_space_bytes: address_space_limit(),
            max_map_count: number("/proc/sys/vm/max_map_count"),
            overcommit_memory,
            overcommit_meaning: match overcommit_memory {
                Some(0) => "heuristic: only requests beyond all memory are refused",
                Some(1) => "always: nothing is refused",
                Some(2) => "strict: large mappings may be refused",
                _ => "unknown",
            },
        }
    }
}

/// The soft limit on address space, `None` for unlimited.
fn address_space_limit() -> Option<u64> {
    soft_limit(
        &fs::read_to_string("/proc/self/limits").ok()?,
        "Max address space",
    )
}

fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The CPUs that this process may be scheduled on.
fn affinity_cpus() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    count_list(list.trim())
}

/// How many numbers a list such as `0-3,8` names.
fn count_list(list: &str) -> Option<usize> {
    list.split(',')
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .sum()
}

impl Findings {
    fn show(&self) -> String {
        let mut capabilities = output::table(&["capability", "available", "found", "otherwise"]);
        for one in &self.capabilities {
            capabilities.add_row([
                one.name,
                if one.available { "yes" } else { "no" },
                &one.detail,
                one.fallback,
            ]);
        }
        let mut limits = output::table(&["limit", "value"]);
        for (name, value) in self.limit_rows() {
            limits.add_row([name.to_owned(), value]);
        }
        output::wrap(&mut capabilities);
        output::wrap(&mut limits);
        format!("{capabilities}\n\n{limits}")
    }

    fn limit_rows(&self) -> Vec<(&'static str, String)> {
        let (limits, machine) = (&self.limits, &self.machine);
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "no limit".into(), size::show);
        vec![
            ("kernel", machine.kernel.clone()),
            (
                "CPU",
                format!(
                    "{}, {} usable, {} physical cores",
                    machine.cpu_model, machine.cpus, machine.physical_cores
                ),
            ),
            (
                "default max_active",
                format!(
                    "{}: {}",
                    limits.default_max_active, limits.default_max_active_why
                ),
            ),
            (
                "memory",
                format!(
                    "{}, {} available",
                    size::show(machine.mem_total_bytes),
                    size::show(machine.mem_available_bytes)
                ),
            ),
            (
                "room under control group limits",
                bytes(machine.memory_limit_room_bytes),
            ),
            (
                "swap",
                match machine.swap_total_bytes {
                    0 => "none: paging out anonymous memory does nothing".into(),
                    total => format!(
                        "{}, {} free",
                        size::show(total),
                        size::show(machine.swap_free_bytes)
                    ),
                },
            ),
            ("page size", size::show(machine.page_size as u64)),
            ("transparent huge pages", machine.thp.clone()),
            (
                "overcommit",
                match limits.overcommit_memory {
                    Some(mode) => format!("{mode} ({})", limits.overcommit_meaning),
                    None => limits.overcommit_meaning.into(),
                },
            ),
            (
                "address space (RLIMIT_AS)",
                bytes(limits.address_space_bytes),
            ),
            (
                "mappings of a process",
                limits
                    .max_map_count
                    .map_or_else(|| "unknown".into(), |count| count.to_string()),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted() {
        assert_eq!(count_list("0-1"), Some(2));
        assert_eq!(count_list("0-3,8,10-11"), Some(7));
        assert_eq!(count_list("7"), Some(1));
        assert_eq!(count_list("3-1"), None);
        assert_eq!(count_list(""), None);
    }

    #[test]
    fn limits_are_read_by_name() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max address space         unlimited            unlimited            bytes     \n\
                    Max file locks            65536                unlimited            locks     \n";
        assert_eq!(soft_limit(text, "Max address space"), None);
        assert_eq!(soft_limit(text, "Max file locks"), Some(65536));
    }
}
