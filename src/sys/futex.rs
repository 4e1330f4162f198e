//! Sleeping on a word of memory, and waking who does.

use std::{ffi::c_int, ptr, sync::atomic::AtomicU32, time::Duration};

/// Sleeps while `word` is `expected`, at most for `limit`; can return before.
pub(crate) fn wait(word: &AtomicU32, expected: u32, limit: Option<Duration>) {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos() as libc::c_long,
    });
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word and the time outlive the call. Any answer is fine: the
    // caller looks at the word again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            limit,
        )
    };
}

/// Wakes all that sleep on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            c_int::MAX,
        )
    };
}
