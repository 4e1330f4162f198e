//! Settings of the whole system, put back when the test is over.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// A file of /proc or /sys with another value for a while.
pub struct Setting {
    path: String,
    before: String,
}

impl Setting {
    pub fn set(path: impl Into<String>, value: &str) -> io::Result<Self> {
        let path = path.into();
        let before = fs::read_to_string(&path)?;
        // A choice shows all its values, the one in force in brackets.
        let chosen = before
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map_or(before.trim(), |(chosen, _)| chosen)
            .to_owned();
        fs::write(&path, value)?;
        Ok(Self {
            path,
            before: chosen,
        })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.before) {
            eprintln!("{} is not back at {}: {error}", self.path, self.before);
        }
    }
}

/// A control group that allows half a CPU, removed at the end.
pub struct HalfCpu(PathBuf);

impl HalfCpu {
    pub fn make() -> io::Result<Self> {
        let name = format!("mmzap-test-{}", std::process::id());
        let old = PathBuf::from("/sys/fs/cgroup/cpu");
        if old.join("cpu.cfs_quota_us").exists() || old.join("cpu.shares").exists() {
            let this = Self(old.join(name));
            fs::create_dir(&this.0)?;
            fs::write(this.0.join("cpu.cfs_period_us"), "100000")?;
            fs::write(this.0.join("cpu.cfs_quota_us"), "50000")?;
            return Ok(this);
        }
        let this = Self(PathBuf::from("/sys/fs/cgroup").join(name));
        fs::create_dir(&this.0)?;
        fs::write(this.0.join("cpu.max"), "50000 100000")?;
        Ok(this)
    }

    /// The file to which a process writes its number to join.
    pub fn door(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// That of a group inside, without a limit of its own.
    pub fn inner_door(&self) -> io::Result<PathBuf> {
        let inner = self.0.join(INNER);
        fs::create_dir(&inner)?;
        Ok(inner.join("cgroup.procs"))
    }
}

const INNER: &str = "inner";

impl Drop for HalfCpu {
    fn drop(&mut self) {
        remove_group(&self.0.join(INNER));
        remove_group(&self.0);
    }
}

/// Removes a control group whose last process may have just ended: it holds
/// the group for a moment.
fn remove_group(path: &Path) {
    for _ in 0..100 {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return eprintln!("{} is left: {error}", path.display()),
            Ok(()) => return,
        }
    }
    eprintln!("{} is left: busy", path.display());
}

/// Swap in compressed memory, removed at the end.
pub struct Swap {
    number: String,
    on: bool,
}

const ZRAM: &str = "/sys/class/zram-control";

impl Swap {
    pub fn make(bytes: usize) -> io::Result<Self> {
        if !Path::new(ZRAM).exists() {
            let _ = Command::new("modprobe").arg("zram").status();
        }
        // Reading this file is what makes a device.
        let number = fs::read_to_string(format!("{ZRAM}/hot_add"))?;
        let mut swap = Self {
            number: number.trim().to_owned(),
            on: false,
        };
        let size = format!("/sys/block/zram{}/disksize", swap.number);
        fs::write(size, bytes.to_string())?;
        swap.call("mkswap")?;
        swap.call("swapon")?;
        swap.on = true;
        Ok(swap)
    }

    fn call(&self, program: &str) -> io::Result<()> {
        let device = format!("/dev/zram{}", self.number);
        let answer = Command::new(program).arg(device).output()?;
        if answer.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&answer.stderr);
        Err(io::Error::other(format!("{program}: {words}")))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // Whoever looks at a new device, as udev does, holds it for a moment.
        for _ in 0..100 {
            if self.on && self.call("swapoff").is_ok() {
                self.on = false;
            }
            if !self.on && fs::write(format!("{ZRAM}/hot_remove"), &self.number).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        eprintln!("/dev/zram{} is left", self.number);
    }
}

/// A control group with a limit on memory and no swap, removed at the end.
pub struct LittleMemory(PathBuf);

impl LittleMemory {
    pub fn make(bytes: usize) -> io::Result<Self> {
        let name = format!("mmzap-test-memory-{}", std::process::id());
        let old = PathBuf::from("/sys/fs/cgroup/memory");
        let (parent, limit) = if old.join("memory.limit_in_bytes").exists() {
            (old, "memory.limit_in_bytes")
        } else {
            (PathBuf::from("/sys/fs/cgroup"), "memory.max")
        };
        let this = Self(parent.join(name));
        fs::create_dir(&this.0)?;
        fs::write(this.0.join(limit), bytes.to_string())?;
        let swap = this.0.join("memory.swap.max");
        if swap.exists() {
            fs::write(swap, "0")?;
        }
        Ok(this)
    }

    /// The file to which a process writes its number to join.
    pub fn door(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for LittleMemory {
    fn drop(&mut self) {
        remove_group(&self.0);
    }
}
