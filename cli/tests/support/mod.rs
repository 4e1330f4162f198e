//! What the tests share that change settings of the system: the library's own
//! harness, the program under test, and what puts things back when a test fails.
#![allow(dead_code, reason = "every test file uses a part of this")]

#[path = "../../../tests/support/mod.rs"]
pub mod harness;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use serde_json::Value;

/// Longer than anything here takes, also on a busy machine.
const HUNG: Duration = Duration::from_secs(100);

pub fn mmzap() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("mmzap"));
    command.arg("bench").stdin(Stdio::null());
    command
}

/// A finished run, as text.
pub struct Ran {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Ran {
            status: output.status,
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

pub fn bench(arguments: &[&str]) -> Ran {
    let output = mmzap().args(arguments).output();
    output.expect("the mmzap program starts").into()
}

impl Ran {
    pub fn json(&self) -> Value {
        assert_eq!(self.status.code(), Some(0), "{}", self.err);
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {}", self.out))
    }

    /// Refused, for a reason with these words, and without a figure.
    pub fn refused(&self, words: &[&str]) {
        assert_eq!(self.status.code(), Some(1), "{}", self.err);
        assert_eq!(self.out, "");
        for word in words {
            assert!(self.err.contains(word), "no {word} in {}", self.err);
        }
    }
}

/// What any other user is told. That user may not reach the program where it was
/// built, so a copy is run.
pub fn bench_as_nobody(arguments: &[&str]) -> Ran {
    const NOBODY: u32 = 65_534;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let open = |path: &std::path::Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
    };
    open(directory.path());
    let copy = directory.path().join("mmzap");
    fs::copy(assert_cmd::cargo::cargo_bin!("mmzap"), &copy).expect("a copy");
    open(&copy);
    let output = Command::new(&copy)
        .arg("bench")
        .args(arguments)
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    match output {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            harness::skip(format_args!("another user cannot run a copy: {error}"))
        }
        other => other.expect("the mmzap program starts").into(),
    }
}

/// Starts a run that would take for ever, waits until it has changed something,
/// and ends it with a signal.
pub fn interrupted(arguments: &[&str], signal: i32, changed: impl Fn() -> bool) -> ExitStatus {
    let mut child = mmzap()
        .args(arguments)
        .args(["--runs", "100000"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the mmzap program starts");
    let until = Instant::now() + HUNG;
    while !changed() {
        if let Some(status) = child.try_wait().expect("a child") {
            panic!("ended before it changed anything: {status}");
        }
        give_up_after(until, &mut child, "changes nothing");
    }
    // Into the middle of the work.
    thread::sleep(Duration::from_millis(300));
    let pid = i32::try_from(child.id()).expect("a process number");
    // SAFETY: sends a signal to a child that was not waited for, so the number is its own.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        give_up_after(until, &mut child, "does not end");
    }
}

fn give_up_after(until: Instant, child: &mut Child, what: &str) {
    if Instant::now() > until {
        let _ = child.kill();
        let _ = child.wait();
        panic!("a run that {what}");
    }
    thread::sleep(Duration::from_millis(5));
}

/// The switches of huge pages as they stand.
pub fn switches() -> BTreeMap<String, String> {
    let root = "/sys/kernel/mm/transparent_hugepage";
    let mut paths = vec![format!("{root}/enabled")];
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path().join("enabled");
        paths.extend(path.to_str().map(str::to_owned));
    }
    paths
        .into_iter()
        .filter_map(|path| Some((path.clone(), fs::read_to_string(path).ok()?)))
        .collect()
}

/// Puts the switches back where a test that fails leaves them changed.
pub struct Switches(pub BTreeMap<String, String>);

impl Switches {
    pub fn remember() -> Self {
        let found = switches();
        if found.is_empty() {
            harness::skip("needs transparent huge pages");
        }
        Switches(found)
    }

    pub fn same(&self) -> bool {
        switches() == self.0
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        for (path, line) in &self.0 {
            let word = line.split(['[', ']']).nth(1).unwrap_or_default();
            if fs::read_to_string(path).is_ok_and(|now| now != *line)
                && let Err(error) = fs::write(path, word)
            {
                eprintln!("{path} is not back at {word}: {error}");
            }
        }
    }
}

/// Swap devices in use, and zram devices there are.
pub fn devices() -> Vec<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut devices: Vec<String> = swaps
        .lines()
        .skip(1)
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .collect();
    devices.extend(
        fs::read_dir("/sys/block")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with("zram")),
    );
    devices.sort();
    devices
}

/// Removes devices that a test which fails leaves behind.
pub struct Devices(pub Vec<String>);

impl Devices {
    pub fn remember() -> Self {
        Devices(devices())
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        let new = devices().into_iter().filter(|one| !self.0.contains(one));
        // Paths of swap devices sort before names of block devices: off, then away.
        for one in new {
            let number = one.trim_start_matches("zram");
            let done = if one.starts_with('/') {
                Command::new("swapoff").arg(&one).status().map(drop)
            } else {
                fs::write("/sys/class/zram-control/hot_remove", number)
            };
            if let Err(error) = done {
                eprintln!("{one} is left: {error}");
            }
        }
    }
}
