//! Physical cores: how many there are behind some CPUs.

use std::{fs, path::Path};

use super::affinity::Cpus;

const ROOM: &str = "/sys/devices/system/cpu";

/// The physical cores to which `cpus` belong; CPUs of which the system does not
/// tell count as one each.
pub(crate) fn of(cpus: &Cpus) -> usize {
    of_in(Path::new(ROOM), cpus)
}

/// All CPUs that are switched on.
pub(crate) fn online() -> Option<Cpus> {
    let list = fs::read_to_string(Path::new(ROOM).join("online")).ok()?;
    Some(Cpus::listed(&list))
}

fn of_in(room: &Path, cpus: &Cpus) -> usize {
    let read = |path: &str| fs::read_to_string(room.join(path)).ok();
    if read("smt/active").is_some_and(|active| active.trim() == "0") {
        return cpus.iter().count();
    }
    // The first of the CPUs of a core stands for all of them.
    let cores = cpus.iter().map(|cpu| {
        let topology = |file: &str| read(&format!("cpu{cpu}/topology/{file}"));
        topology("core_cpus_list")
            .or_else(|| topology("thread_siblings_list")) // before Linux 5.3
            .and_then(|list| Cpus::listed(&list).iter().next())
            .unwrap_or(cpu)
    });
    Cpus::of(cores).iter().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPUs 0 to 7: those of a core are four apart, as machines number them.
    fn machine(file: &str) -> tempfile::TempDir {
        let room = tempfile::tempdir().expect("a directory");
        for cpu in 0..8 {
            let topology = room.path().join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&topology).expect("a directory");
            let core = cpu % 4;
            fs::write(topology.join(file), format!("{core},{}\n", core + 4)).expect("a file");
        }
        room
    }

    #[test]
    fn siblings_count_once() {
        for file in ["core_cpus_list", "thread_siblings_list"] {
            let room = machine(file);
            let cores = |list| of_in(room.path(), &Cpus::listed(list));
            assert_eq!(
                (cores("0-7"), cores("0,4"), cores("0-3"), cores("3,5,7")),
                (4, 1, 4, 2)
            );
            assert_eq!(cores("6,9-10"), 3, "unknown CPUs are cores of their own");
        }
    }

    #[test]
    fn without_siblings_nothing_is_looked_up() {
        let room = machine("core_cpus_list");
        fs::create_dir(room.path().join("smt")).expect("a directory");
        fs::write(room.path().join("smt/active"), "0\n").expect("a file");
        assert_eq!(of_in(room.path(), &Cpus::listed("0-7")), 8);
    }

    #[test]
    fn this_machine_has_cores() {
        let all = online().expect("sysfs");
        let mine = Cpus::mine().expect("an affinity");
        assert!(of(&mine) >= 1 && of(&mine) <= of(&all));
    }
}
