//! Sandboxes: system calls that are refused, or held until somebody lets them go.

use std::{
    ffi::c_int,
    fs::File,
    io,
    os::fd::{AsRawFd as _, FromRawFd as _},
};

use super::checked;

fn filter_for(calls: &[libc::c_long], answer: u32) -> Vec<libc::sock_filter> {
    let (load, equal, give) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    let op = |code: u32, jt: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    let mut program = vec![op(load, 0, 0)]; // seccomp_data.nr
    for (index, call) in calls.iter().enumerate() {
        program.push(op(equal, (calls.len() - index) as u8, *call as u32));
    }
    program.push(op(give, 0, libc::SECCOMP_RET_ALLOW));
    program.push(op(give, 0, answer));
    program
}

fn install(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<usize> {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads the program during the call.
    unsafe {
        checked(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        checked(libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const filter,
        ))
    }
}

/// From now on these system calls answer `errno` in the whole process.
pub fn refuse_calls(calls: &[libc::c_long], errno: i32) -> io::Result<()> {
    let answer = libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA);
    install(
        &filter_for(calls, answer),
        libc::SECCOMP_FILTER_FLAG_TSYNC as libc::c_ulong,
    )
    .map(drop)
}

/// From now on this system call of the calling thread waits until somebody
/// answers it on the returned file.
pub fn hold_call(call: libc::c_long) -> io::Result<Held> {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as libc::c_ulong;
    let fd = install(&filter_for(&[call], libc::SECCOMP_RET_USER_NOTIF), flags)?;
    // SAFETY: the descriptor is new and ours.
    Ok(Held(unsafe { File::from_raw_fd(fd as c_int) }))
}

/// The calls that wait.
pub struct Held(File);

/// One of them.
pub struct HeldCall(u64);

impl Held {
    /// Waits until the thread is in its call.
    pub fn next(&self) -> io::Result<HeldCall> {
        // SAFETY: zero is a valid notification, and the kernel fills it in.
        unsafe {
            let mut seen: libc::seccomp_notif = std::mem::zeroed();
            const RECEIVE: u64 = 0xc050_2100; // SECCOMP_IOCTL_NOTIF_RECV
            checked(libc::ioctl(self.0.as_raw_fd(), RECEIVE, &raw mut seen))?;
            Ok(HeldCall(seen.id))
        }
    }

    /// Lets the call go on as if nothing had been.
    pub fn let_go(&self, call: HeldCall) -> io::Result<()> {
        let answer = libc::seccomp_notif_resp {
            id: call.0,
            val: 0,
            error: 0,
            flags: 1, // SECCOMP_USER_NOTIF_FLAG_CONTINUE
        };
        const SEND: u64 = 0xc018_2101; // SECCOMP_IOCTL_NOTIF_SEND
        // SAFETY: the kernel reads one struct.
        checked(unsafe { libc::ioctl(self.0.as_raw_fd(), SEND, &raw const answer) }).map(drop)
    }
}
