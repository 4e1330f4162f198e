//! Limits that control groups put on this process: its own group and every
//! group above it, version 1 and 2.
//!
//! Read from the files of the control group file systems each time, some twenty
//! of them (0.1 ms): limits change while a program runs.

use std::fs;
use std::path::{Path, PathBuf};

/// The memory that may still be charged before a limit is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryRoom {
    /// How much, counting cache that the kernel would give back first.
    pub bytes: u64,
    /// The limit itself.
    pub limit_bytes: u64,
    /// The file that says so.
    pub file: PathBuf,
}

/// The tightest memory limit of all groups, `None` where there is none.
///
/// ```
/// if let Some(room) = mmzap::cgroup::memory_room() {
///     assert!(room.bytes <= room.limit_bytes);
/// }
/// ```
#[must_use]
pub fn memory_room() -> Option<MemoryRoom> {
    groups("memory")
        .iter()
        .filter_map(|group| group.memory_room())
        .min_by_key(|room| room.bytes)
}

/// The tightest CPU quota of all groups in CPUs, `None` where there is none.
///
/// ```
/// assert!(mmzap::cgroup::cpu_quota().is_none_or(|cpus| cpus > 0.0));
/// ```
#[must_use]
pub fn cpu_quota() -> Option<f64> {
    groups("cpu")
        .iter()
        .filter_map(Group::cpu_quota)
        .min_by(f64::total_cmp)
}

/// One directory of a hierarchy that this process belongs to.
struct Group {
    directory: PathBuf,
    unified: bool,
}

impl Group {
    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.directory.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    fn memory_room(&self) -> Option<MemoryRoom> {
        let (limits, used, cache): (&[&str], _, _) = if self.unified {
            // Above memory.high nothing is refused, but everything crawls.
            (
                &["memory.max", "memory.high"],
                "memory.current",
                "inactive_file",
            )
        } else {
            (
                &["memory.limit_in_bytes"],
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        };
        let (limit, file) = limits
            .iter()
            .filter_map(|file| Some((self.number(file)?, *file)))
            .min()?;
        // Version 1 writes "no limit" as the largest page-aligned number.
        if limit >= 1 << 62 {
            return None;
        }
        let used = self.number(used)?;
        let stat = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let reclaimable = field(&stat, cache).unwrap_or(0).min(used);
        Some(MemoryRoom {
            bytes: limit.saturating_sub(used - reclaimable),
            limit_bytes: limit,
            file: self.directory.join(file),
        })
    }

    fn cpu_quota(&self) -> Option<f64> {
        let (quota, period) = if self.unified {
            let text = fs::read_to_string(self.directory.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        } else {
            // Version 1 writes "no quota" as -1, which is no u64.
            (
                self.number("cpu.cfs_quota_us")?,
                self.number("cpu.cfs_period_us")?,
            )
        };
        (period > 0).then(|| quota as f64 / period as f64)
    }
}

/// The number behind `key` in a file of `key number` lines.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| value.trim().parse().ok())
}

/// Every group with this controller, from the own one up to the root that is visible here.
fn groups(controller: &str) -> Vec<Group> {
    let Ok(memberships) = fs::read_to_string("/proc/self/cgroup") else {
        return Vec::new();
    };
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else {
        return Vec::new();
    };
    directories(controller, &memberships, &mounts)
        .into_iter()
        .map(|(directory, unified)| Group { directory, unified })
        .collect()
}

/// The directories for `controller`, the own group first, and whether each is of version 2.
fn directories(controller: &str, memberships: &str, mounts: &str) -> Vec<(PathBuf, bool)> {
    let mut found = Vec::new();
    for line in memberships.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == controller) {
            continue;
        }
        let Some((root, point)) = mount(mounts, unified, controller) else {
            continue;
        };
        // In a container the path may start above what is mounted: then only the mount is seen.
        let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
        let mut directory: PathBuf = point.join(below).components().collect();
        loop {
            found.push((directory.clone(), unified));
            if directory == point || !directory.pop() {
                break;
            }
        }
    }
    found
}

/// The root and the mount point of the hierarchy.
fn mount(mounts: &str, unified: bool, controller: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        let mut head = head.split(' ').skip(3);
        let (root, point) = (head.next()?, head.next()?);
        let mut tail = tail.split(' ');
        let kind = tail.next()?;
        let options = tail.nth(1).unwrap_or("");
        let wanted = match unified {
            true => kind == "cgroup2",
            false => kind == "cgroup" && options.split(',').any(|option| option == controller),
        };
        wanted.then(|| (PathBuf::from(root), PathBuf::from(point)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(controller: &str, memberships: &str, mounts: &str) -> Vec<String> {
        directories(controller, memberships, mounts)
            .into_iter()
            .map(|(path, _)| path.display().to_string())
            .collect()
    }

    #[test]
    fn version_2_goes_up_to_the_mount() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw";
        assert_eq!(
            paths("memory", "0::/user.slice/a.scope\n", mounts),
            [
                "/sys/fs/cgroup/user.slice/a.scope",
                "/sys/fs/cgroup/user.slice",
                "/sys/fs/cgroup"
            ]
        );
    }

    #[test]
    fn version_1_picks_the_controller() {
        let mounts = "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
        let own = "4:memory:/a\n1:cpu,cpuacct:/\n";
        assert_eq!(
            paths("memory", own, mounts),
            ["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"]
        );
        assert_eq!(paths("cpu", own, mounts), ["/sys/fs/cgroup/cpu,cpuacct"]);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        assert_eq!(
            paths("memory", "4:memory:/docker/abc/x\n", mounts),
            ["/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"]
        );
        assert_eq!(
            paths("memory", "4:memory:/elsewhere\n", mounts),
            ["/sys/fs/cgroup/memory"]
        );
    }

    #[test]
    fn limits_are_read_with_the_cache_given_back() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let write = |file: &str, text: &str| {
            fs::write(directory.path().join(file), text).expect("a file in it");
        };
        let group = Group {
            directory: directory.path().into(),
            unified: true,
        };
        assert_eq!(group.memory_room(), None);
        write("memory.max", "max\n");
        write("memory.current", "300\n");
        write("memory.stat", "anon 200\ninactive_file 100\n");
        assert_eq!(group.memory_room(), None);
        write("memory.max", "1000\n");
        assert_eq!(group.memory_room().map(|room| room.bytes), Some(800));
        write("memory.high", "500\n");
        assert_eq!(group.memory_room().map(|room| room.bytes), Some(300));
        write("cpu.max", "50000 100000\n");
        assert_eq!(group.cpu_quota(), Some(0.5));
        write("cpu.max", "max 100000\n");
        assert_eq!(group.cpu_quota(), None);
    }
}
