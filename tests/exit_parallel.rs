//! `exit::parallel` ends a process as `std::process::exit` does, whatever the
//! other threads are at, and gives large memory back first.
//!
//! That the memory went *before* the exit is seen without a clock: the parent
//! traces the thread that leaves, stops it at its exit, and reads how much
//! memory the process still holds.

#[path = "exit_parallel/leaving.rs"]
mod leaving;
#[path = "exit_parallel/sharers.rs"]
mod sharers;
mod support;

use std::{
    cell::RefCell,
    fs::{self, File},
    io::{Seek as _, SeekFrom, Write as _},
    os::unix::fs::FileExt as _,
    path::PathBuf,
    process, thread,
    time::Duration,
};

use leaving::*;
use sharers::*;
use support::{memory::*, sys};

// How a role leaves.

// The parent's side.

// Roles and their tests, in pairs.

fn only_memory() {
    filled(HELD);
    leave()
}

fn memory_is_given_back_before_the_exit() {
    let plain = end_of("only_memory", "plain");
    assert_eq!(plain.status.code(), Some(CODE));
    assert!(plain.kept(), "the method sees what a plain exit leaves");
    gives_back("only_memory");
}

fn little_memory() {
    filled(MIB);
    leave()
}

fn a_small_process_leaves_plainly() {
    ends_well("little_memory", 3);
}

fn status() {
    let case = support::case();
    let code = case
        .rsplit(' ')
        .next()
        .expect("a word")
        .parse()
        .expect("a code");
    filled(HELD);
    leave_with(code)
}

fn every_status_is_kept() {
    for code in [0, 1, 3, 101, 255, 256, -1] {
        let by = |how: &str| plainly_seen("status", &format!("{how} {code}")).0;
        assert_eq!(by("parallel"), by("plain"), "{code}");
    }
}

thread_local! {
    static LAST_WORD: RefCell<Option<LastWord>> = const { RefCell::new(None) };
}

struct LastWord;

impl Drop for LastWord {
    fn drop(&mut self) {
        sys::c_print(b"[destructor of thread-local storage]");
    }
}

extern "C" fn first_registered() {
    sys::c_print(b"[first registered]");
    sys::c_flush_all();
    print!("[rust from a hook]");
}

extern "C" fn second_registered() {
    sys::c_print(b"[second registered]");
    sys::c_flush_all();
    if let Some((path, memory)) = HOOK_FILE.get() {
        let bytes = peek(*memory, 8 * MIB).expect("memory is still there");
        fs::write(path, bytes).expect("a file from a hook");
    }
}

static HOOK_FILE: std::sync::OnceLock<(PathBuf, usize)> = std::sync::OnceLock::new();

fn everything_to_say() {
    let memory = filled(HELD);
    let case = support::case();
    if let Some((_, path)) = case.split_once(' ') {
        HOOK_FILE
            .set((PathBuf::from(path), memory))
            .expect("set once");
    }
    sys::at_exit(first_registered);
    sys::at_exit(second_registered);
    LAST_WORD.with(|word| *word.borrow_mut() = Some(LastWord));
    let line: String = ('a'..='z').cycle().take(999).chain(['\n']).collect();
    print!("{}", line.repeat(1000));
    print!("no newline at the end");
    std::io::stdout().flush().expect("stdout");
    sys::c_print(line.repeat(1000).as_bytes());
    sys::c_print(b"none here either");
    print!("and a last word of Rust");
    leave()
}

fn output_hooks_and_destructors_are_those_of_a_plain_exit() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let by = |how: &str| {
        let case = format!("{how} {}", file.path().display());
        let (status, said) = plainly_seen("everything_to_say", &case);
        assert_eq!(status.code(), Some(CODE), "{how}: {status}");
        (said, fs::read(file.path()).expect("the hook's file"))
    };
    let (plain, plain_file) = by("plain");
    let (parallel, parallel_file) = by("parallel");
    assert!(plain.len() > 2_000_000);
    assert!(
        plain == parallel,
        "{} bytes, not {}",
        parallel.len(),
        plain.len()
    );
    // The address differs from run to run at most in what the stamp says.
    assert_eq!(plain_file.len(), 8 * MIB);
    assert!(parallel_file == plain_file, "the hook saw other contents");
    let text = String::from_utf8_lossy(&parallel);
    let at = |part: &str| {
        assert_eq!(text.matches(part).count(), 1, "{part}");
        text.find(part).expect("found")
    };
    assert!(at("[second registered]") < at("[first registered]"));
    at("[destructor of thread-local storage]");
    at("none here either");
    at("and a last word of Rust");
    assert!(end_of("everything_to_say", "parallel").said == plain);
}

fn read_ahead() {
    filled(HELD);
    assert_eq!(sys::c_read_byte(), i32::from(b'a'));
    leave_by(&support::case(), CODE)
}

/// exit(3) takes a stream that was read ahead back to where its reader stands.
fn a_shared_input_is_left_where_a_plain_exit_leaves_it() {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&b"abc".repeat(1000)).expect("room");
    let mut by = |how: &str| {
        file.seek(SeekFrom::Start(0)).expect("a seek");
        let input = file.try_clone().expect("the file again");
        let status = support::child("read_ahead", how)
            .stdin(input)
            .status()
            .expect("a child");
        assert_eq!(status.code(), Some(CODE), "{status}");
        file.stream_position().expect("a position")
    };
    assert_eq!(by("parallel"), by("plain"));
}

fn computing() {
    for _ in 0..4 {
        thread::spawn(|| {
            let mut x = 1u64;
            loop {
                x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005) + 1);
            }
        });
    }
    filled(HELD);
    leave()
}

fn computing_threads_are_stopped() {
    gives_back("computing");
    ends_well("computing", 10);
}

fn allocating() {
    for seed in 0..4usize {
        thread::spawn(move || {
            let mut held: Vec<Vec<u8>> = Vec::new();
            for round in seed.. {
                held.push(vec![round as u8; 1 << (round % 22)]);
                if held.len() > 8 {
                    let gone = held.swap_remove(round % 8);
                    assert!(gone.iter().all(|&byte| byte == gone[0]));
                }
            }
        });
    }
    filled(HELD);
    leave()
}

fn allocating_threads_are_stopped() {
    gives_back("allocating");
    ends_well("allocating", 20);
}

fn starting_threads() {
    for _ in 0..2 {
        thread::spawn(|| {
            loop {
                let more: Vec<_> = (0..4)
                    .map(|_| thread::spawn(|| vec![1u8; 1 << 16]))
                    .collect();
                more.into_iter().for_each(|one| drop(one.join()));
            }
        });
    }
    filled(HELD);
    leave()
}

fn threads_that_start_threads_are_stopped() {
    ends_well("starting_threads", 20);
}

fn blocked_and_asleep() {
    for _ in 0..8 {
        thread::spawn(|| {
            sys::block_all_signals();
            thread::sleep(Duration::from_secs(3600));
        });
        thread::spawn(|| {
            sys::block_all_signals();
            loop {
                std::hint::spin_loop();
            }
        });
        thread::spawn(|| thread::sleep(Duration::from_secs(3600)));
    }
    let (_tx, rx) = std::sync::mpsc::channel::<()>();
    thread::spawn(move || rx.recv());
    filled(HELD);
    leave()
}

fn threads_that_block_all_signals_or_sleep_are_stopped() {
    gives_back("blocked_and_asleep");
    ends_well("blocked_and_asleep", 5);
}

fn many_threads() {
    for _ in 0..300 {
        thread::Builder::new()
            .stack_size(64 << 10)
            .spawn(|| thread::sleep(Duration::from_secs(3600)))
            .expect("a thread");
    }
    filled(HELD);
    leave()
}

fn hundreds_of_threads_are_stopped() {
    ends_well("many_threads", 3);
}

/// Writes memory that never holds a zero byte to a file, again and again.
fn writing() {
    let case = support::case();
    let path = case.split_once(' ').expect("a path").1.to_owned();
    let map = Box::leak(vec![7u8; HELD].into_boxed_slice());
    for index in 0..2u64 {
        let (path, map) = (path.clone(), &map[..]);
        thread::spawn(move || {
            let file = File::options().write(true).open(path).expect("the file");
            for round in 0.. {
                let from = (round * 3 * MIB) % (HELD - 4 * MIB);
                let part = &map[from..from + 4 * MIB];
                if round % 2 == 0 {
                    file.write_all_at(part, index * 4 * MIB as u64)
                        .expect("room");
                } else {
                    // By way of a copy that the program itself makes.
                    let copy = part[..64 << 10].to_vec();
                    file.write_all_at(&copy, index * 4 * MIB as u64)
                        .expect("room");
                }
            }
        });
    }
    while fs::metadata(&path).expect("the file").len() < 8 * MIB as u64 {
        thread::yield_now();
    }
    leave()
}

fn no_zero_is_written_that_memory_never_held() {
    for _ in 0..20 {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let case = format!("parallel {}", file.path().display());
        let (status, _) = plainly_seen("writing", &case);
        assert_eq!(status.code(), Some(CODE), "{status}");
        let written = fs::read(file.path()).expect("the file");
        assert!(written.len() >= 8 * MIB);
        assert!(written.iter().all(|&byte| byte == 7), "zeros were written");
    }
}

fn from_another_thread() {
    filled(HELD);
    thread::spawn(|| leave());
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

fn any_thread_may_leave() {
    gives_back("from_another_thread");
    ends_well("from_another_thread", 5);
}

fn main_thread_gone() {
    filled(HELD);
    thread::spawn(|| {
        let path = format!("/proc/self/task/{}/stat", process::id());
        while !fs::read_to_string(&path).is_ok_and(|stat| stat.contains(") Z ")) {
            thread::yield_now();
        }
        leave_by(&support::case(), CODE)
    });
    sys::end_this_thread()
}

fn a_dead_main_thread_changes_no_status() {
    ends_well("main_thread_gone", 5);
}

fn locked_memory() {
    if let Err(error) = sys::lock_everything() {
        support::cannot("mlockall", &error);
    }
    filled(HELD);
    leave()
}

fn locked_memory_is_given_back_too() {
    support::needs_root();
    gives_back("locked_memory");
}

fn with_userfaultfd() {
    filled(HELD);
    let _open = sys::userfaultfd().unwrap_or_else(|error| support::cannot("userfaultfd", &error));
    leave()
}

fn with_io_uring() {
    filled(HELD);
    let _open = sys::io_uring().unwrap_or_else(|error| support::cannot("io_uring", &error));
    leave()
}

fn an_open_userfaultfd_means_a_plain_exit() {
    support::needs("userfaultfd", sys::userfaultfd());
    leaves_plainly("with_userfaultfd");
}

fn an_open_io_uring_means_a_plain_exit() {
    support::needs("io_uring", sys::io_uring());
    leaves_plainly("with_io_uring");
}

extern "C" fn leave_from_a_hook() {
    mmzap::exit::parallel(CODE + 1)
}

fn from_a_hook() {
    filled(HELD);
    sys::at_exit(leave_from_a_hook);
    sys::c_exit(CODE)
}

fn called_from_an_exit_handler_it_still_ends() {
    let (status, _) = plainly_seen("from_a_hook", "parallel");
    assert_eq!(status.code(), Some(CODE + 1), "{status}");
}

fn two_at_once() {
    filled(HELD);
    let other = thread::spawn(|| mmzap::exit::parallel(CODE));
    leave_by(&support::case(), if other.is_finished() { 1 } else { CODE })
}

fn two_threads_that_leave_at_once_end_once() {
    ends_well("two_at_once", 20);
}

fn main() {
    support::main(
        named![
            memory_is_given_back_before_the_exit,
            a_small_process_leaves_plainly,
            every_status_is_kept,
            output_hooks_and_destructors_are_those_of_a_plain_exit,
            a_shared_input_is_left_where_a_plain_exit_leaves_it,
            computing_threads_are_stopped,
            allocating_threads_are_stopped,
            threads_that_start_threads_are_stopped,
            threads_that_block_all_signals_or_sleep_are_stopped,
            hundreds_of_threads_are_stopped,
            no_zero_is_written_that_memory_never_held,
            any_thread_may_leave,
            a_dead_main_thread_changes_no_status,
            locked_memory_is_given_back_too,
            an_open_userfaultfd_means_a_plain_exit,
            an_open_io_uring_means_a_plain_exit,
            a_process_that_shares_the_memory_keeps_it,
            called_from_an_exit_handler_it_still_ends,
            two_threads_that_leave_at_once_end_once,
        ],
        named![
            only_memory,
            little_memory,
            status,
            everything_to_say,
            read_ahead,
            computing,
            allocating,
            starting_threads,
            blocked_and_asleep,
            many_threads,
            writing,
            from_another_thread,
            main_thread_gone,
            locked_memory,
            with_userfaultfd,
            with_io_uring,
            with_sibling,
            with_vfork,
            from_a_hook,
            two_at_once,
        ],
    );
}
