//! Which CPUs a thread may use.

use super::last_errno;
use crate::error::Errno;

const BITS: usize = usize::BITS as usize;

/// A set of CPUs, as sched_getaffinity(2) tells it.
///
/// Sized for 8192 CPUs, the largest that x86-64 kernels are built for; a
/// smaller set is refused with EINVAL by a kernel that knows more CPUs.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Cpus([usize; 8192 / usize::BITS as usize]);

impl Cpus {
    /// Those of the calling thread.
    pub(crate) fn mine() -> Result<Self, Errno> {
        let mut set = Self([0; _]);
        // SAFETY: the kernel writes at most the size that is passed.
        let rc = unsafe { libc::sched_getaffinity(0, size_of::<Self>(), (&raw mut set.0).cast()) };
        if rc == 0 { Ok(set) } else { Err(last_errno()) }
    }

    /// A set of these CPUs; what is beyond its size is left out.
    pub(crate) fn of(cpus: impl IntoIterator<Item = usize>) -> Self {
        let mut set = Self([0; _]);
        for cpu in cpus {
            if let Some(word) = set.0.get_mut(cpu / BITS) {
                *word |= 1 << (cpu % BITS);
            }
        }
        set
    }

    /// The CPUs in both, if there are any.
    pub(crate) fn and(&self, other: &Self) -> Option<Self> {
        let both = Self(std::array::from_fn(|word| self.0[word] & other.0[word]));
        both.0.iter().any(|word| *word != 0).then_some(both)
    }

    /// Those but the one on which the calling thread runs at the moment, if
    /// there are any.
    pub(crate) fn elsewhere(&self) -> Option<Self> {
        // SAFETY: no arguments.
        let here = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
        let mut others = self.clone();
        *others.0.get_mut(here / BITS)? &= !(1 << (here % BITS));
        others.0.iter().any(|word| *word != 0).then_some(others)
    }

    /// Binds the calling thread to this set.
    pub(crate) fn bind(&self) -> Result<(), Errno> {
        self.bind_thread(0)
    }

    /// Binds a thread of this process to this set.
    pub(crate) fn bind_thread(&self, tid: i32) -> Result<(), Errno> {
        // SAFETY: the kernel reads the size that is passed, the set's own.
        let rc =
            unsafe { libc::sched_setaffinity(tid, size_of::<Self>(), (&raw const self.0).cast()) };
        if rc == 0 { Ok(()) } else { Err(last_errno()) }
    }
}
