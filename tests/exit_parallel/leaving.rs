//! Leaving plainly and in parallel, and what the parent sees of it.

use std::{
    fs,
    io::Read as _,
    process::{self, Child, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use crate::support::{self, memory::*, sys};

/// What most roles hold.
pub const HELD: usize = 192 * MIB;
/// And their status.
pub const CODE: i32 = 42;

pub fn leave_by(how: &str, code: i32) -> ! {
    match how {
        "plain" => process::exit(code),
        _ => mmzap::exit::parallel(code),
    }
}

/// The end of every role: `case` begins with `plain` or `parallel`.
pub fn leave() -> ! {
    leave_with(CODE)
}

pub fn leave_with(code: i32) -> ! {
    sys::name_this_thread("leaver");
    support::wait_for_parent();
    let case = support::case();
    leave_by(case.split(' ').next().expect("a word"), code)
}

pub fn start(role: &str, case: &str) -> Child {
    support::child(role, case)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child")
}

/// The thread that is about to leave, once it is.
pub fn leaver(child: &mut Child) -> i32 {
    loop {
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).expect("the child");
        for task in tasks.flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if name.trim() == "leaver" {
                return task
                    .file_name()
                    .to_string_lossy()
                    .parse()
                    .expect("a number");
            }
        }
        assert!(
            child.try_wait().expect("the child").is_none(),
            "gone too early"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

pub struct End {
    pub status: ExitStatus,
    pub said: Vec<u8>,
    /// Anonymous memory that it held when it came to its exit.
    pub held_bytes: usize,
}

/// Plays a role under the eye of the tracer.
pub fn end_of(role: &str, case: &str) -> End {
    let mut child = start(role, case);
    let mut out = child.stdout.take().expect("a pipe");
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        out.read_to_end(&mut said).expect("the child's output");
        said
    });
    let tid = leaver(&mut child);
    support::needs("ptrace", sys::trace_exit_of(tid));
    drop(child.stdin.take());
    let seen = sys::wait_at_exit(tid);
    let held = status_kib(&tid.to_string(), "RssAnon");
    if seen.is_ok() {
        sys::untrace(tid).expect("let go");
    }
    let status = child.wait().expect("the child");
    seen.expect("its exit seen");
    End {
        status,
        said: reader.join().expect("the reader"),
        held_bytes: held.expect("RssAnon") * 1024,
    }
}

impl End {
    pub fn gave_back(&self) -> bool {
        self.held_bytes < HELD / 4
    }

    pub fn kept(&self) -> bool {
        self.held_bytes >= HELD
    }
}

/// The status without a tracer, and the output.
pub fn plainly_seen(role: &str, case: &str) -> (ExitStatus, Vec<u8>) {
    let output = support::child(role, case)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("a child");
    (output.status, output.stdout)
}

/// It gives back in one of a few tries: a busy machine may keep a thread from
/// stopping in time, which is then a plain exit with the same status.
#[track_caller]
pub fn gives_back(role: &str) {
    for _ in 0..5 {
        let end = end_of(role, "parallel");
        assert_eq!(end.status.code(), Some(CODE), "{}", end.status);
        if end.gave_back() {
            return;
        }
    }
    panic!("{role} never gave its memory back");
}

#[track_caller]
pub fn leaves_plainly(role: &str) {
    let end = end_of(role, "parallel");
    assert_eq!(end.status.code(), Some(CODE), "{}", end.status);
    assert!(end.kept(), "{} bytes are left", end.held_bytes);
}

#[track_caller]
pub fn ends_well(role: &str, rounds: usize) {
    for _ in 0..rounds {
        let (status, _) = plainly_seen(role, "parallel");
        assert_eq!(status.code(), Some(CODE), "{status}");
    }
}
