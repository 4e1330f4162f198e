//! How a helper thread is born and runs.

use std::{io, mem::MaybeUninit, thread, time::Duration};

/// Stack of a helper, in bytes: room for a vector of 1024 ranges and for the
/// explanation of a refusal. glibc refuses stacks that cannot hold the
/// program's thread-local storage; then the caller works alone.
const STACK_BYTES: usize = 256 << 10;

/// How far helpers stand back, in steps of nice(2).
///
/// Where all CPUs are busy, a turn of a helper lasts up to a scheduler tick
/// (4 ms), and somebody waits for it: at nice 10 every 37 ms, which is more than
/// one operation in a thousand of a thread that maps and unmaps all the time; at
/// 15 every 114 ms. Further back, whoever needs a lock that a helper holds would
/// wait too long (docs/measurements.md, `bystander`).
const NICE: i32 = 15;

/// The number by which the kernel knows the calling thread.
pub(crate) fn tid() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// Starts a thread that no signal handler of the program ever runs on.
///
/// # Errors
/// Those of pthread_create(3): no memory, RLIMIT_NPROC, a cgroup's pids.max.
pub(crate) fn spawn_quiet(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    let builder = thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES);
    with_signals_blocked(|| builder.spawn(body))
}

/// Waits for the end of a thread that was started in `process`.
///
/// In a child of that process the thread is not there, and its handle is not to
/// be touched: a thread of the child's own may have got the same one.
pub(crate) fn join_in(process: u32, thread: thread::JoinHandle<()>) {
    if process == std::process::id() {
        let _it_does_not_panic = thread.join();
    } else {
        std::mem::forget(thread);
    }
}

/// Runs `body` with every signal blocked, so that what it starts inherits that.
fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are written before they are read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = body();
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// Leaves a real-time class that was inherited. What is refused stays as it was.
pub(crate) fn leave_real_time() {
    // SAFETY: plain numbers and a struct of one; 0 is the calling thread.
    unsafe {
        let policy = libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK;
        if policy != libc::SCHED_OTHER && policy != libc::SCHED_BATCH && policy != libc::SCHED_IDLE
        {
            let normal = libc::sched_param { sched_priority: 0 };
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const normal);
        }
    }
}

/// [`leave_real_time`], and stands back from the program's own threads.
pub(crate) fn stand_back() {
    leave_real_time();
    // SAFETY: plain numbers.
    unsafe {
        let thread = libc::syscall(libc::SYS_gettid) as libc::id_t;
        let now = libc::getpriority(libc::PRIO_PROCESS, thread);
        libc::setpriority(libc::PRIO_PROCESS, thread, now.saturating_add(NICE).min(19));
    }
}

/// Time since some moment in the past, in microseconds; never goes back.
pub(crate) fn monotonic_micros() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let (seconds, nanos) = (now.tv_sec as u64, now.tv_nsec as u64);
    seconds * 1_000_000 + nanos / 1000
}

/// CPU time of the calling thread so far.
pub(crate) fn cpu_time() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}
