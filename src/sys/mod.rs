//! The only directory that calls libc.
//!
//! Contract of every function that takes a [`PageRange`]: the range is
//! non-empty, page-aligned and does not wrap (its type says so); the answer is
//! the kernel's, with the errno as a value, and nothing is retried or hidden
//! here except `EINTR`. Deciding what an answer means is the callers' work.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub(crate) mod affinity;
pub(crate) mod cores;
pub(crate) mod folio_sizes;
pub(crate) mod futex;
pub(crate) mod linux;
pub(crate) mod mmap;
pub(crate) mod node;
pub(crate) mod pagemap;
pub(crate) mod probe;
pub(crate) mod procmap;
#[cfg(test)]
pub(crate) mod scripted;
pub(crate) mod stop;
pub(crate) mod thread;
pub(crate) mod userfault;

use std::sync::atomic::{AtomicUsize, Ordering};

use self::affinity::Cpus;
use crate::{
    error::Errno,
    mapping::{Mappings, smaps::Hidden},
    operation::Advice,
    range::PageRange,
};

/// What the library asks of a kernel; replaced by a script in tests.
pub(crate) trait Kernel: Sync {
    /// madvise(2) over one range.
    fn advise(&self, range: PageRange, advice: Advice) -> Result<(), Errno>;

    /// process_madvise(2) on this process: bytes of the whole leading ranges
    /// that were done. `None` where the call is not to be had.
    fn advise_vector(&self, ranges: &[PageRange], advice: Advice) -> Option<Result<usize, Errno>>;

    /// Whether [`advise_vector`](Self::advise_vector) is to be had.
    fn has_vectors(&self) -> bool;

    /// munmap(2).
    fn unmap(&self, range: PageRange) -> Result<(), Errno>;

    /// What is mapped, looked up as asked.
    type Mappings: Mappings;

    /// A fresh view of what is mapped.
    fn mappings(&self) -> Self::Mappings;

    /// What hides behind refusals: locks, seals, device memory.
    fn hidden(&self) -> Vec<Hidden>;

    /// How many memory nodes there are; with one, nobody asks for more.
    fn nodes(&self) -> usize;

    /// The node on which a few sampled pages of some ranges mostly are, below
    /// [`nodes`](Self::nodes); `None` if there are none or nobody can tell.
    fn node_of(&self, ranges: &[PageRange]) -> Option<usize>;

    /// The node of the CPU on which this thread runs.
    fn node_here(&self) -> usize;

    /// Keeps this thread on the CPUs of a node, as far as `allowed` has them.
    fn stay_on(&self, node: usize, allowed: &Cpus);
}

/// Ranges that one process_madvise(2) takes: `UIO_MAXIOV`.
pub(crate) const VECTOR_RANGES_MAX: usize = 1024;

/// Bytes that one process_madvise(2) takes. The kernel cuts a vector silently
/// to `MAX_RW_COUNT`, 2 GiB less one page; a batch that stays below it needs
/// no second call.
pub(crate) const VECTOR_BYTES_MAX: usize = 0x7fff_f000;

/// Where user space ends: no mapping can lie above it.
pub(crate) const USER_SPACE_END: usize = if cfg!(target_pointer_width = "64") {
    // Five-level page tables; the kernel's half begins far above.
    1_u64.wrapping_shl(56) as usize
} else {
    0xffff_f000
};

/// A number that is found out once.
///
/// Threads that ask at the same time may each find out, and nobody waits: a
/// child forked while another thread was at it would wait for ever.
pub(crate) struct Once(AtomicUsize);

impl Once {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }

    /// The number if it is known, or the one that `find` is sure of.
    pub(crate) fn get_if_sure(&self, find: impl FnOnce() -> (usize, bool)) -> usize {
        match self.0.load(Ordering::Relaxed) {
            usize::MAX => {
                let (found, sure) = find();
                if sure {
                    self.0.store(found, Ordering::Relaxed);
                }
                found
            }
            known => known,
        }
    }

    /// The number, by `find` if it is not known; never `usize::MAX`.
    pub(crate) fn get(&self, find: impl FnOnce() -> usize) -> usize {
        // Relaxed: the number stands for itself.
        match self.0.load(Ordering::Relaxed) {
            usize::MAX => {
                let found = find();
                self.0.store(found, Ordering::Relaxed);
                found
            }
            known => known,
        }
    }
}

pub(crate) fn page_bytes() -> usize {
    static PAGE: Once = Once::new();
    PAGE.get(|| {
        // SAFETY: sysconf takes any name and only returns a number.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes)
            .ok()
            .filter(|bytes| bytes.is_power_of_two())
            .unwrap_or(4096)
    })
}

/// Memory of the machine, in bytes.
pub(crate) fn memory_bytes() -> usize {
    static BYTES: Once = Once::new();
    BYTES.get(|| {
        // SAFETY: as above.
        let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
        usize::try_from(pages).map_or(1 << 30, |pages| pages.saturating_mul(page_bytes()))
    })
}

pub(crate) const EPERM: Errno = Errno(libc::EPERM);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const EACCES: Errno = Errno(libc::EACCES);
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const EAGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const EEXIST: Errno = Errno(libc::EEXIST);
pub(crate) const EFAULT: Errno = Errno(libc::EFAULT);
pub(crate) const EBADF: Errno = Errno(libc::EBADF);
pub(crate) const ENOENT: Errno = Errno(libc::ENOENT);
pub(crate) const ESRCH: Errno = Errno(libc::ESRCH);
pub(crate) const ENOSYS: Errno = Errno(libc::ENOSYS);

pub(crate) fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}
