//! Sleeping on a word of memory, and waking who does.

use std::{
    ffi::c_int,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

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

/// Lets threads sleep until something has changed, without a lock: whoever holds
/// one can be put to sleep, and in the child of a fork be missing.
///
/// The lowest bit says that somebody sleeps or is about to.
pub(crate) struct Bell(AtomicU32);

/// What a bell was like before the look that found nothing.
#[derive(Clone, Copy)]
pub(crate) struct Heard(u32);

impl Bell {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// To be called before looking whether there is a reason to
    /// [`sleep`](Self::sleep).
    pub(crate) fn listen(&self) -> Heard {
        Heard(self.0.fetch_or(1, Ordering::SeqCst) | 1)
    }

    /// Sleeps until the bell has rung since `heard`, at most for `limit`; can
    /// return before.
    pub(crate) fn sleep(&self, heard: Heard, limit: Option<Duration>) {
        wait(&self.0, heard.0, limit);
    }

    /// Wakes all; a load if nobody sleeps. To be called after the change.
    pub(crate) fn ring(&self) {
        let mut now = self.0.load(Ordering::SeqCst);
        while now & 1 == 1 {
            let next = now.wrapping_add(1); // the bit goes, the count goes up
            match self
                .0
                .compare_exchange(now, next, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return wake(&self.0),
                Err(other) => now = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, thread};

    use super::*;

    /// Two that sleep without a limit, and none is ever forgotten.
    #[test]
    fn nobody_is_left_asleep() {
        const ROUNDS: usize = 20_000;
        let (bell, count) = (Bell::new(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut seen = 0;
                    while seen < ROUNDS {
                        let heard = bell.listen();
                        let now = count.load(Ordering::SeqCst);
                        if now == seen {
                            bell.sleep(heard, None);
                        }
                        seen = now;
                    }
                });
            }
            for _ in 0..ROUNDS {
                count.fetch_add(1, Ordering::SeqCst);
                bell.ring();
            }
        });
    }
}
