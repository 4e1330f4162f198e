//! The primitives of leaving: run last, stop the other threads, read /proc
//! without allocating.
//!
//! Everything here that runs after the world is stopped works on memory that
//! the caller keeps (its stack, the arguments) and makes system calls through
//! the one libc function `syscall`, so nothing it needs can be emptied.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use crate::{error::Errno, operation::Advice, range::PageRange};

/// The signal that stops threads: glibc keeps it for setuid(2) across threads
/// and takes it out of every mask that a program sets, so a thread that blocks
/// "all" signals still receives it. A process that is leaving changes its user
/// no more.
pub(crate) const STOP_SIGNAL: c_int = 33;

/// Whether this platform can stop threads and run last.
pub(crate) const SUPPORTED: bool = cfg!(all(
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64"
));

/// What the kernel calls a signal's disposition on x86-64.
#[repr(C)]
struct KernelSigaction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// glibc declares it; the libc crate does not.
#[repr(C)]
struct CookieFunctions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> isize>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const u8, usize) -> isize>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions,
    ) -> *mut libc::FILE;
}

/// Arranges for `hook` to run inside exit(3) when every exit handler has run
/// and every stdio stream is flushed.
///
/// After the flush, exit(3) makes each stream unbuffered, which takes a stream
/// that was read ahead back to where its reader stands: by its seek function.
/// A stream of our own with a byte read ahead gets that call. Somebody's handler
/// can cause it too early, by fcloseall(3): see [`handlers_done`].
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn run_last(hook: extern "C" fn()) -> Result<(), Errno> {
    unsafe extern "C" fn read(_: *mut c_void, buffer: *mut u8, len: usize) -> isize {
        let bytes = len.min(2);
        // SAFETY: stdio passes a buffer of `len` bytes.
        unsafe { buffer.write_bytes(0, bytes) };
        isize::try_from(bytes).unwrap_or(0)
    }
    unsafe extern "C" fn seek(hook: *mut c_void, _: *mut i64, _: c_int) -> c_int {
        // SAFETY: the cookie is the function that `run_last` was given.
        let hook: extern "C" fn() = unsafe { std::mem::transmute(hook) };
        hook();
        // Any error but "not seekable" leaves the byte read ahead where it is,
        // and the stream is asked again at the next occasion.
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = libc::EIO };
        -1
    }
    let functions = CookieFunctions {
        read: Some(read),
        write: None,
        seek: Some(seek),
        close: None,
    };
    // SAFETY: the mode is a C string; the functions have the types that stdio
    // calls; the cookie is only passed back to them.
    let stream = unsafe { fopencookie(hook as *mut c_void, c"r".as_ptr(), functions) };
    if stream.is_null() {
        return Err(super::last_errno());
    }
    // SAFETY: an open stream. It is never closed: it has to be there at exit.
    if unsafe { libc::fgetc(stream) } < 0 {
        return Err(super::last_errno());
    }
    Ok(())
}

/// Whether exit(3) has run every handler: then, and only then, it takes no new
/// one.
pub(crate) fn handlers_done() -> bool {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // An empty handler is one that the compiler knows it need not register.
    extern "C" fn count() {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler touches one static.
    unsafe { libc::atexit(count) != 0 }
}

/// Brings every other stream to the state in which exit(3) leaves it: flushed,
/// and an input that was read ahead back at its reader's position, which a
/// process that shares the file relies on. False in the call of the hook that
/// this itself causes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn settle_streams() -> bool {
    static ENTERED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" {
        // glibc: the last step of exit(3), under a name. It closes nothing.
        fn fcloseall() -> c_int;
    }
    if ENTERED.swap(true, Ordering::Relaxed) {
        return false;
    }
    // SAFETY: no arguments; the locks of stdio are recursive, and this is the
    // thread that holds them.
    unsafe { fcloseall() };
    true
}

/// Elsewhere nothing has to.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn settle_streams() -> bool {
    true
}

/// Elsewhere nothing runs last.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn run_last(_: extern "C" fn()) -> Result<(), Errno> {
    Err(super::ENOSYS)
}

/// Leaves at once, with all threads, without running anything.
pub(crate) fn exit_group(code: i32) -> ! {
    loop {
        // SAFETY: the call does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

/// Sleeps for ever without touching memory: neither the stack nor
/// thread-local storage is needed again.
pub(crate) fn park() -> ! {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: pause(2) takes nothing and only returns after a signal handler;
    // the loop keeps its state in no register and no memory.
    unsafe {
        std::arch::asm!(
            "2:",
            "mov eax, 34",
            "syscall",
            "jmp 2b",
            options(noreturn, nostack)
        )
    }
    #[cfg(not(target_arch = "x86_64"))]
    loop {
        // SAFETY: no arguments. Not reached: `SUPPORTED` is false here.
        unsafe { libc::pause() };
    }
}

/// The thread pointer: where this thread's local storage lies; 0 if the kernel
/// does not say. Asked of the kernel, since a thread of a foreign runtime may
/// keep anything behind it.
pub(crate) fn thread_pointer() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        const ARCH_GET_FS: c_int = 0x1003;
        let mut pointer = 0usize;
        // SAFETY: the kernel writes one word.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_FS, &raw mut pointer) };
        pointer
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// This process's number, from the kernel: a C library may remember one from
/// before a fork.
pub(crate) fn pid() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

/// This thread's number.
pub(crate) fn tid() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Blocks every signal that can be blocked, those of glibc included.
pub(crate) fn block_everything() {
    let all = u64::MAX;
    // SAFETY: the kernel reads eight bytes.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            0usize,
            8,
        )
    };
}

/// Lets `handler` receive [`STOP_SIGNAL`], with all signals blocked. The
/// handler must not return.
///
/// It runs on the threads' signal stacks, as glibc's own handler of that signal
/// does, for runtimes whose stacks are small. But not if this is not the main
/// thread: `std::process::exit` frees the main thread's signal stack, whoever
/// calls it, and the kernel still has it noted; a handler would run on whatever
/// lies there by now.
pub(crate) fn on_stop(
    handler: extern "C" fn(c_int, *mut c_void, *mut c_void),
) -> Result<(), Errno> {
    const SA_RESTORER: u64 = 0x0400_0000;
    let on_stack = if tid() == pid() { libc::SA_ONSTACK } else { 0 };
    let action = KernelSigaction {
        handler: handler as usize,
        flags: (libc::SA_SIGINFO | on_stack) as u64 | SA_RESTORER,
        // x86-64 wants one; a handler that never returns never uses it.
        restorer: handler as usize,
        mask: u64::MAX,
    };
    // SAFETY: the struct is the kernel's on x86-64; glibc's own wrapper would
    // refuse this signal.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            STOP_SIGNAL,
            &raw const action,
            0usize,
            8,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(super::last_errno())
    }
}

/// Sends [`STOP_SIGNAL`] to one thread of this process.
pub(crate) fn signal(pid: u32, tid: u32) -> Result<(), Errno> {
    // SAFETY: plain numbers.
    let rc = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, STOP_SIGNAL) };
    if rc == 0 {
        Ok(())
    } else {
        Err(super::last_errno())
    }
}

/// The stack pointer at the moment a signal arrived, from its third argument.
pub(crate) fn interrupted_stack(context: *const c_void) -> usize {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel passes a ucontext to a SA_SIGINFO handler.
        let stack = unsafe { (*context).uc_mcontext.gregs[libc::REG_RSP as usize] };
        stack as usize
    }
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    {
        context.addr()
    }
}

/// Monotonic time, without the vDSO's data being needed afterwards.
pub(crate) fn now() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec.
    unsafe {
        libc::syscall(
            libc::SYS_clock_gettime,
            libc::CLOCK_MONOTONIC,
            &raw mut time,
        )
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// madvise(2) through `syscall`.
///
/// # Safety
/// The contents of the range are needed by nobody.
pub(crate) unsafe fn advise(range: PageRange, advice: Advice) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        libc::syscall(
            libc::SYS_madvise,
            range.start(),
            range.len(),
            advice as c_int,
        ) == 0
    }
}

/// A file or directory opened without allocating.
pub(crate) struct Raw(c_int);

impl Raw {
    pub(crate) fn open(path: &CStr) -> Result<Self, Errno> {
        // SAFETY: a C string and plain numbers.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_openat,
                libc::AT_FDCWD,
                path.as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC,
            )
        };
        if fd < 0 {
            Err(super::last_errno())
        } else {
            Ok(Self(fd as c_int))
        }
    }

    /// Reads up to the length of `buffer`; 0 at the end.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the kernel writes at most the length passed.
        let n = unsafe { libc::syscall(libc::SYS_read, self.0, buffer.as_mut_ptr(), buffer.len()) };
        usize::try_from(n).map_err(|_| super::last_errno())
    }

    /// Calls `each` with the name of every entry until it answers false.
    pub(crate) fn entries(
        &self,
        buffer: &mut [u8],
        mut each: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Errno> {
        loop {
            // SAFETY: the kernel writes at most the length passed.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_getdents64,
                    self.0,
                    buffer.as_mut_ptr(),
                    buffer.len(),
                )
            };
            let filled = usize::try_from(n).map_err(|_| super::last_errno())?;
            if filled == 0 {
                return Ok(());
            }
            // struct linux_dirent64: inode 8, offset 8, length 2, type 1, name.
            let mut rest = &buffer[..filled];
            while let Some(&[low, high]) = rest.get(16..18).and_then(|l| l.first_chunk()) {
                let length = usize::from(u16::from_ne_bytes([low, high]));
                let Some(name) = rest.get(19..length) else {
                    break;
                };
                let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
                if !each(&name[..end]) {
                    return Ok(());
                }
                rest = &rest[length..];
            }
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Where a symbolic link points, as far as it fits.
pub(crate) fn read_link<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    // SAFETY: a C string, and a buffer of the length passed.
    let n = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            path.as_ptr(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    };
    let n = usize::try_from(n).map_err(|_| super::last_errno())?;
    Ok(&buffer[..n])
}

/// Whether two processes share their memory: kcmp(2).
pub(crate) fn same_memory(a: u32, b: u32) -> Result<bool, Errno> {
    const KCMP_VM: c_int = 1;
    // SAFETY: plain numbers.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) } {
        0 => Ok(true),
        n if n > 0 => Ok(false),
        _ => Err(super::last_errno()),
    }
}
