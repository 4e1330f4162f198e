//! What the tests ask of the system on their own, beside the library.
//!
//! The only room of the tests that calls libc. Everything returns the
//! kernel's answer as it is; what it means is the tests' business.
#![allow(clippy::disallowed_methods)]

mod seccomp;

use std::{
    ffi::{CString, c_int, c_void},
    fs::File,
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _},
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    process::{Command, ExitStatus},
};

pub use seccomp::{HeldCall, hold_call, refuse_calls};

pub use libc::{EAGAIN, EINVAL, ENOMEM, ENOSYS, EPERM, SIGALRM};
pub use libc::{
    MAP_ANONYMOUS, MAP_HUGETLB, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, MFD_HUGETLB, PROT_NONE,
    PROT_READ, PROT_WRITE, RLIMIT_AS, RLIMIT_NPROC, RLIMIT_STACK, SYS_madvise, SYS_pidfd_open,
    SYS_process_madvise, SYS_process_mrelease,
};

/// Linux 6.11; the libc crate does not have it.
pub const MAP_DROPPABLE: c_int = 0x08;
/// Linux 6.10; as above.
const SYS_MSEAL: libc::c_long = 462;

pub const NO_HUGE_PAGES: c_int = libc::MADV_NOHUGEPAGE;
pub const HUGE_PAGES: c_int = libc::MADV_HUGEPAGE;
pub const MERGE: c_int = libc::MADV_MERGEABLE;
pub const POPULATE_READ: c_int = 22;
pub const POPULATE_WRITE: c_int = 23;

fn checked(answer: impl Into<i64>) -> io::Result<usize> {
    usize::try_from(answer.into()).map_err(|_| io::Error::last_os_error())
}

pub fn page_bytes() -> usize {
    // SAFETY: sysconf only returns a number.
    checked(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a page size")
}

/// mmap(2); with `at` exactly there, where nothing may be mapped yet.
pub fn map(
    at: Option<usize>,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: Option<&File>,
    offset: usize,
) -> io::Result<usize> {
    let fixed = at.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
    let fd = file.map_or(-1, |file| file.as_raw_fd());
    // SAFETY: nothing that is mapped is replaced.
    let addr = unsafe {
        libc::mmap(
            at.unwrap_or(0) as *mut c_void,
            len,
            protection,
            flags | fixed,
            fd,
            offset as libc::off_t,
        )
    };
    if addr == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(addr.addr())
    }
}

/// munmap(2) of a test's own memory.
pub fn unmap(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: tests pass memory that they mapped and hold no reference into.
    checked(unsafe { libc::munmap(addr as *mut c_void, len) }).map(drop)
}

pub fn protect(addr: usize, len: usize, protection: c_int) -> io::Result<()> {
    // SAFETY: as for `unmap`.
    checked(unsafe { libc::mprotect(addr as *mut c_void, len, protection) }).map(drop)
}

/// madvise(2) with advice that keeps contents.
pub fn hint(addr: usize, len: usize, advice: c_int) -> io::Result<()> {
    let harmless = [
        NO_HUGE_PAGES,
        HUGE_PAGES,
        MERGE,
        POPULATE_READ,
        POPULATE_WRITE,
    ];
    assert!(harmless.contains(&advice));
    // SAFETY: these values change no contents.
    checked(unsafe { libc::madvise(addr as *mut c_void, len, advice) }).map(drop)
}

pub fn lock(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: locking changes no contents.
    checked(unsafe { libc::mlock(addr as *const c_void, len) }).map(drop)
}

pub fn lock_everything() -> io::Result<()> {
    // SAFETY: locking changes no contents.
    checked(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) }).map(drop)
}

/// mseal(2): for as long as the process lives.
pub fn seal(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: sealing changes no contents.
    checked(unsafe { libc::syscall(SYS_MSEAL, addr, len, 0) }).map(drop)
}

pub fn memfd(flags: u32) -> io::Result<File> {
    // SAFETY: a C string and a number; the descriptor is new and ours.
    unsafe {
        let fd = libc::memfd_create(c"mmzap-test".as_ptr(), flags | libc::MFD_CLOEXEC);
        checked(fd)?;
        Ok(File::from_raw_fd(fd))
    }
}

/// Grows the heap by brk(2); the old end.
pub fn grow_heap(len: usize) -> io::Result<usize> {
    // SAFETY: malloc copes with others moving the break.
    let old = unsafe { libc::sbrk(len as libc::intptr_t) };
    if old.addr() == usize::MAX {
        Err(io::Error::last_os_error())
    } else {
        Ok(old.addr())
    }
}

// Processes and threads.

/// fork(2): the child's number, or `None` in the child.
pub fn fork() -> io::Result<Option<i32>> {
    // SAFETY: the child only does what tests of fork are about.
    let pid = unsafe { libc::fork() };
    checked(pid)?;
    Ok((pid != 0).then_some(pid))
}

/// Leaves without running anything.
pub fn leave_now(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

/// Ends only the calling thread, at once: for the main thread of a process
/// that lives on.
pub fn end_this_thread() -> ! {
    loop {
        // SAFETY: the thread's stack stays mapped; nothing of it is used again.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

pub fn wait_for(pid: i32) -> io::Result<ExitStatus> {
    let mut status = 0;
    // SAFETY: the kernel writes one int.
    checked(unsafe { libc::waitpid(pid, &raw mut status, 0) })?;
    Ok(ExitStatus::from_raw(status))
}

/// Kills this process after so many seconds: a hang becomes a failure.
pub fn alarm(seconds: u32) {
    // SAFETY: a plain number.
    unsafe { libc::alarm(seconds) };
}

pub fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

pub fn name_this_thread(name: &str) {
    let name = CString::new(name).expect("a name");
    // SAFETY: the kernel reads at most 16 bytes of a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Becomes an ordinary user for good, with /proc/self still its own.
pub fn become_nobody() -> io::Result<()> {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: plain numbers.
    unsafe {
        checked(libc::setresuid(NOBODY, NOBODY, NOBODY))?;
        checked(libc::prctl(libc::PR_SET_DUMPABLE, 1)).map(drop)
    }
}

/// Sets a soft limit; the hard one stays.
pub fn set_limit(what: libc::__rlimit_resource_t, soft: u64) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes and reads one struct.
    unsafe {
        checked(libc::getrlimit(what, &raw mut limit))?;
        limit.rlim_cur = soft.min(limit.rlim_max);
        checked(libc::setrlimit(what, &raw const limit)).map(drop)
    }
}

/// Starts the command with this soft limit: glibc reads the one of the stack
/// at program start.
pub fn limit_from_the_start(command: &mut Command, what: libc::__rlimit_resource_t, soft: u64) {
    // SAFETY: between fork and exec only getrlimit and setrlimit are called.
    unsafe { command.pre_exec(move || set_limit(what, soft)) };
}

/// Binds the calling thread to one CPU of those it may use.
pub fn pin_to_one_cpu() -> io::Result<()> {
    // SAFETY: both sets are plain memory of the size passed.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        checked(libc::sched_getaffinity(0, size, &raw mut set))?;
        let first = (0..libc::CPU_SETSIZE as usize)
            .find(|&cpu| libc::CPU_ISSET(cpu, &set))
            .ok_or(io::ErrorKind::NotFound)?;
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(first, &mut set);
        checked(libc::sched_setaffinity(0, size, &raw const set)).map(drop)
    }
}

/// Gives the calling thread real-time priority.
pub fn become_fifo() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads one struct.
    checked(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) }).map(drop)
}

/// Blocks every signal that pthread_sigmask(3) blocks.
pub fn block_all_signals() {
    // SAFETY: the set is filled before it is read.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// A userfaultfd, or what refused it.
pub fn userfaultfd() -> io::Result<File> {
    // SAFETY: a plain number; the descriptor is new and ours.
    unsafe {
        let fd = checked(libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC))?;
        Ok(File::from_raw_fd(fd as c_int))
    }
}

/// An io_uring, or what refused it.
pub fn io_uring() -> io::Result<File> {
    let mut parameters = [0u64; 15]; // struct io_uring_params
    // SAFETY: the kernel reads and writes the 120 bytes of its struct.
    unsafe {
        let fd = checked(libc::syscall(
            libc::SYS_io_uring_setup,
            8,
            parameters.as_mut_ptr(),
        ))?;
        Ok(File::from_raw_fd(fd as c_int))
    }
}

// C's side of leaving.

unsafe extern "C" {
    static mut stdout: *mut libc::FILE;
    static mut stdin: *mut libc::FILE;
}

pub fn at_exit(hook: extern "C" fn()) {
    // SAFETY: the hook is a plain function.
    assert_eq!(unsafe { libc::atexit(hook) }, 0);
}

/// Writes through C's own buffered stdout.
pub fn c_print(bytes: &[u8]) {
    // SAFETY: stdio's stream, and a buffer of the length passed.
    let written = unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), stdout) };
    assert_eq!(written, bytes.len());
}

/// Reads one byte through C's own buffered stdin.
pub fn c_read_byte() -> i32 {
    // SAFETY: stdio's stream.
    unsafe { libc::fgetc(stdin) }
}

pub fn c_flush_all() {
    // SAFETY: null means all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// exit(3), as a C program leaves.
pub fn c_exit(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::exit(code) }
}

/// Starts a process that shares this one's memory, and waits for it to exec or
/// end if it is a `vfork`. `body` must keep to [`Sibling`].
pub fn clone_sibling(vfork: bool, body: extern "C" fn(*mut c_void) -> c_int) -> io::Result<i32> {
    const STACK_BYTES: usize = 256 << 10;
    let protection = PROT_READ | PROT_WRITE;
    let stack = map(
        None,
        STACK_BYTES,
        protection,
        MAP_PRIVATE | MAP_ANONYMOUS,
        None,
        0,
    )?;
    let flags = libc::CLONE_VM | libc::SIGCHLD | if vfork { libc::CLONE_VFORK } else { 0 };
    // SAFETY: the stack is the sibling's own and never unmapped.
    let pid = unsafe {
        libc::clone(
            body,
            (stack + STACK_BYTES) as *mut c_void,
            flags,
            std::ptr::null_mut(),
        )
    };
    checked(pid)?;
    Ok(pid)
}

/// All that a sibling may do: it shares the thread-local storage of a thread
/// that may be gone.
pub struct Sibling;

impl Sibling {
    /// Sleeps until the process that started it is gone.
    pub fn wait_until_orphaned(self, parent: i32) {
        let nap = libc::timespec {
            tv_sec: 0,
            tv_nsec: 5_000_000,
        };
        // SAFETY: no arguments, and a time that lives through the call.
        unsafe {
            while libc::syscall(libc::SYS_getppid) == libc::c_long::from(parent) {
                libc::syscall(libc::SYS_nanosleep, &raw const nap, 0);
            }
        }
    }

    /// Writes to the inherited stdout and ends.
    pub fn say_and_end(self, word: &[u8]) -> ! {
        // SAFETY: a buffer of the length passed; the second does not return.
        unsafe {
            libc::syscall(libc::SYS_write, 1, word.as_ptr(), word.len());
            loop {
                libc::syscall(libc::SYS_exit, 0);
            }
        }
    }
}

// Looking at a process at the moment it leaves.

/// Attaches to a thread, to be told when it is about to exit.
pub fn trace_exit_of(tid: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    checked(unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0, libc::PTRACE_O_TRACEEXIT) }).map(drop)
}

/// Waits until the traced thread stands at its exit, its memory still there.
pub fn wait_at_exit(tid: i32) -> io::Result<()> {
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one int.
        checked(unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) })?;
        if !libc::WIFSTOPPED(status) {
            return Err(io::Error::other(format!("gone unseen: {status:#x}")));
        }
        if status >> 16 == libc::PTRACE_EVENT_EXIT {
            return Ok(());
        }
        let event = status >> 16 != 0;
        let signal = if event { 0 } else { libc::WSTOPSIG(status) };
        // SAFETY: plain numbers.
        checked(unsafe { libc::ptrace(libc::PTRACE_CONT, tid, 0, signal) })?;
    }
}

/// Lets a traced thread go its way.
pub fn untrace(tid: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    checked(unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, 0, 0) }).map(drop)
}

/// Lets this thread's signal handlers run on `len` bytes at `addr`.
pub fn use_signal_stack(addr: usize, len: usize) -> io::Result<()> {
    let stack = libc::stack_t {
        ss_sp: addr as *mut c_void,
        ss_flags: 0,
        ss_size: len,
    };
    // SAFETY: the memory is the caller's and stays for as long as the thread.
    checked(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }).map(drop)
}

/// Closes all streams of C, as some programs do at their end.
pub fn c_close_all() {
    unsafe extern "C" {
        fn fcloseall() -> c_int;
    }
    // SAFETY: no arguments.
    unsafe { fcloseall() };
}
