//! What the integration tests share.
//!
//! **Two kinds of test files.** Those that only look at their own memory use
//! the standard harness. Those that change settings of the system, count what
//! belongs to the whole process, or need processes that die in a certain way
//! have `harness = false` and call [`main`]: its tests run one after the other
//! on one thread.
//!
//! **Children.** Such a file also has *roles*. [`child`] starts the test's own
//! program again with `MMZAP_TEST_ROLE` set, and [`main`] then plays that role
//! on the main thread instead of running tests. A role that returns ends with
//! status 0, one that panics with 101, and one that hangs is killed by SIGALRM.
//!
//! **Skips.** A test states what it needs and calls [`skip`] where the machine
//! lacks it; the reason is printed.
#![allow(
    dead_code,
    unused_imports,
    reason = "every test file uses a part of this"
)]

pub mod memory;
pub mod settings;
pub mod sys;

use std::{
    env,
    io::{self, Read as _},
    panic,
    process::{self, Command, Output, Stdio},
};

/// Seconds after which a child counts as hung. Far above what any takes, also
/// on a machine that is busy.
const HUNG_SECONDS: u32 = 120;

/// [`HUNG_SECONDS`], or what a run says that is meant to be long (ci/soak.sh).
fn hung_seconds() -> u32 {
    let said = env::var("MMZAP_TEST_HUNG_SECONDS").ok();
    said.map_or(HUNG_SECONDS, |text| text.parse().expect("seconds"))
}

const ROLE: &str = "MMZAP_TEST_ROLE";
const CASE: &str = "MMZAP_TEST_CASE";

pub type Named = (&'static str, fn());

/// Names functions for [`main`].
#[macro_export]
macro_rules! named {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
        &[$($(#[$attribute])* (stringify!($name), $name as fn())),*]
    };
}

/// Runs the tests that the command line selects, or plays a role.
///
/// It takes what the standard harness takes as far as `cargo test` passes it
/// on: names to select by, `--exact`, `--skip`, `--list`.
pub fn main(tests: &[Named], roles: &[Named]) {
    if let Ok(role) = env::var(ROLE) {
        let (_, play) = roles
            .iter()
            .find(|(name, _)| *name == role)
            .expect("a role of this program");
        sys::alarm(hung_seconds());
        play();
        return;
    }
    let selection = Selection::from_args();
    let chosen: Vec<&Named> = tests.iter().filter(|t| selection.takes(t.0)).collect();
    if selection.list {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    println!("\nrunning {} tests", chosen.len());
    sys::alarm(5 * hung_seconds());
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, test) in &chosen {
        let word = match panic::catch_unwind(test) {
            Ok(()) => {
                passed += 1;
                "ok"
            }
            Err(reason) if reason.is::<Skip>() => {
                skipped += 1;
                "ignored"
            }
            Err(_) => {
                failed += 1;
                "FAILED"
            }
        };
        println!("test {name} ... {word}");
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    let left = tests.len() - chosen.len();
    println!(
        "\ntest result: {result}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; {left} filtered out\n"
    );
    if failed > 0 {
        process::exit(101);
    }
}

#[derive(Default)]
struct Selection {
    names: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    list: bool,
}

impl Selection {
    fn from_args() -> Self {
        let mut this = Self::default();
        let mut args = env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--exact" => this.exact = true,
                "--list" => this.list = true,
                "--skip" => this.skips.extend(args.next()),
                "--test-threads" | "--color" | "--format" | "-Z" => drop(args.next()),
                flag if flag.starts_with('-') => {}
                name => this.names.push(name.to_owned()),
            }
        }
        this
    }

    fn takes(&self, test: &str) -> bool {
        let hit = |name: &String| {
            if self.exact {
                test == name
            } else {
                test.contains(name.as_str())
            }
        };
        (self.names.is_empty() || self.names.iter().any(hit)) && !self.skips.iter().any(hit)
    }
}

struct Skip;

/// Leaves a test that this machine cannot run.
pub fn skip(reason: impl std::fmt::Display) -> ! {
    eprintln!("skipped: {reason}");
    panic::resume_unwind(Box::new(Skip))
}

/// Leaves the test with a reason if the system refused what it needs.
pub fn needs<T>(what: &str, answer: io::Result<T>) -> T {
    answer.unwrap_or_else(|error| skip(format_args!("needs {what}: {error}")))
}

pub fn needs_root() {
    if !sys::is_root() {
        skip("needs root");
    }
}

/// This program again, in a role; `case` is what [`case`] answers there.
pub fn child(role: &str, case: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.env(ROLE, role).env(CASE, case);
    command
}

/// In a child: which case of its role it plays.
pub fn case() -> String {
    env::var(CASE).unwrap_or_default()
}

/// Plays a role to its end, which must be a good one.
pub fn play(role: &str, case: &str) {
    let status = child(role, case).status().expect("a child");
    assert!(status.success(), "{role} {case}: {status}");
}

/// In a role: what the machine lacks, told to the parent by a status of its
/// own; see [`play_or_skip`].
pub fn cannot(what: &str, error: &io::Error) -> ! {
    eprintln!("{what}: {error}");
    process::exit(LACKS)
}

const LACKS: i32 = 77;

/// [`play`], or skip where the role called [`cannot`].
pub fn play_or_skip(role: &str, case: &str) {
    let status = child(role, case).status().expect("a child");
    if status.code() == Some(LACKS) {
        skip(format_args!("{role} {case} lacks what it needs"));
    }
    assert!(status.success(), "{role} {case}: {status}");
}

/// Waits until the parent lets it go on, by closing or writing stdin.
pub fn wait_for_parent() {
    let mut byte = [0];
    let _ = io::stdin().read(&mut byte);
}

/// Forks; the child runs `body` and must end well and in time.
pub fn forked(body: impl FnOnce() + std::panic::UnwindSafe) {
    match sys::fork().expect("a fork") {
        Some(child) => {
            let status = sys::wait_for(child).expect("the child");
            assert!(status.success(), "the child: {status}");
        }
        None => {
            sys::alarm(60);
            let done = std::panic::catch_unwind(body);
            sys::leave_now(if done.is_ok() { 0 } else { 101 });
        }
    }
}
