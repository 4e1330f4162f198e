//! A control group with a limit on memory, for as long as a bench needs it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::restore::Restore;
use crate::unavailable::Unavailable;

/// How long a process that has just ended may hold its group.
const PATIENCE: Duration = Duration::from_secs(5);

/// The files of one version of control groups.
#[derive(Debug, Clone, Copy)]
struct Files {
    parent: &'static str,
    limit: &'static str,
    /// What says whether memory of the group may be swapped out, in words for
    /// yes and no.
    swap: (&'static str, &'static str, &'static str),
}

const OLD: Files = Files {
    parent: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    swap: ("memory.swappiness", "60", "0"),
};

const NEW: Files = Files {
    parent: "/sys/fs/cgroup",
    limit: "memory.max",
    swap: ("memory.swap.max", "max", "0"),
};

#[derive(Debug)]
pub struct MemoryGroup {
    directory: PathBuf,
    files: Files,
}

impl MemoryGroup {
    /// A group without a limit, removed when `restore` goes back.
    pub fn make(restore: &Restore) -> Result<Self> {
        let old = Path::new(OLD.parent).join(OLD.limit).exists();
        let files = if old { OLD } else { NEW };
        let name = format!("mmzap-bench-{}", std::process::id());
        let directory = Path::new(files.parent).join(name);
        restore.change(|steps| {
            fs::create_dir(&directory).map_err(|error| {
                Unavailable::because(format!(
                    "a control group with a limit on memory cannot be made ({}): {error}; it \
                     takes root and the memory controller",
                    directory.display()
                ))
            })?;
            let made = directory.clone();
            steps.push(move || remove(&made));
            Ok(())
        })?;
        Ok(MemoryGroup { directory, files })
    }

    /// From now on the group has room for `bytes`. Without `swap` nothing of it
    /// is swapped out, whatever swap there is.
    pub fn limit(&self, bytes: u64, swap: bool) -> Result<()> {
        self.write(self.files.limit, &bytes.to_string())?;
        let (file, yes, no) = self.files.swap;
        if self.directory.join(file).exists() {
            self.write(file, if swap { yes } else { no })?;
        }
        Ok(())
    }

    /// The file to which a process writes its number to join.
    pub fn door(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.directory.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {text} to {}", path.display()))
    }
}

fn remove(directory: &Path) -> Result<()> {
    let began = Instant::now();
    loop {
        match fs::remove_dir(directory) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && began.elapsed() < PATIENCE =>
            {
                thread::sleep(Duration::from_millis(20));
            }
            answer => {
                return answer.with_context(|| format!("{} is left", directory.display()));
            }
        }
    }
}
