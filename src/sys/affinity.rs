//! Which CPUs a thread may use.

use std::ops::RangeInclusive;

use super::last_errno;
use crate::error::Errno;

const BITS: usize = usize::BITS as usize;

/// A set of CPUs, as sched_getaffinity(2) tells it.
///
/// Sized for 8192 CPUs, the largest that x86-64 kernels are built for; a
/// smaller set is refused with EINVAL by a kernel that knows more CPUs.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Cpus([usize; CPUS / BITS]);

const CPUS: usize = 8192;

/// The kernel's way to write a list of numbers: `0-3,8`.
pub(crate) fn ranges(list: &str) -> impl Iterator<Item = RangeInclusive<usize>> {
    list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    })
}

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

    /// Those of a list as the kernel writes them: `0-3,8`.
    pub(crate) fn listed(list: &str) -> Self {
        Self::of(ranges(list).flat_map(|range| *range.start()..=(*range.end()).min(CPUS - 1)))
    }

    /// Their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        (0..CPUS).filter(|cpu| self.0[cpu / BITS] & (1 << (cpu % BITS)) != 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let cpus = |list| Cpus::listed(list).iter().collect::<Vec<_>>();
        assert_eq!(cpus("0\n"), [0]);
        assert_eq!(cpus("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(cpus("\n"), [0; 0]);
        assert_eq!(cpus("x-2,7,9-"), [7]);
        assert_eq!(cpus("8190-18446744073709551615"), [8190, 8191]);
        assert_eq!(cpus("5-3"), [0; 0]);
    }

    #[test]
    fn sets_meet() {
        let both = |a, b| Cpus::listed(a).and(&Cpus::listed(b));
        assert!(both("0-3", "4-7").is_none());
        let met = both("0-3", "2-7").expect("CPUs in both");
        assert_eq!(met.iter().collect::<Vec<_>>(), [2, 3]);
    }
}
