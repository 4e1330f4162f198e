//! What this kernel and this sandbox allow, found out by effect.
//!
//! Each probe works on a throwaway page of its own and is made once, when
//! somebody first needs the answer: a sandbox that punishes a call is not
//! provoked by a program that never needs it.

use super::{
    EBADF, EINVAL, ENOMEM, ENOSYS, EPERM, Once, last_errno,
    linux::{self, PIDFD_SELF_THREAD, Pidfd},
    mmap::Region,
    page_bytes, procmap,
};
use crate::{error::Errno, operation::Advice};

/// How vectors reach this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vectors {
    /// By `PIDFD_SELF_THREAD`, without a descriptor.
    Itself,
    /// By a descriptor of pidfd_open(2).
    Pidfd,
    /// Not at all, and with what answer.
    No(Errno),
}

impl Vectors {
    /// As a number that [`Once`] keeps: errnos are 1 to 4095.
    fn number(self) -> usize {
        match self {
            Self::Itself => 0,
            Self::Pidfd => 1 << 16,
            Self::No(errno) => errno.0.unsigned_abs() as usize,
        }
    }

    fn from_number(number: usize) -> Self {
        match number {
            0 => Self::Itself,
            0x1_0000 => Self::Pidfd,
            errno => Self::No(Errno(errno as i32)),
        }
    }

    pub(crate) fn open(self) -> Option<Pidfd> {
        match self {
            Self::Itself => Some(Pidfd::Itself),
            Self::Pidfd => Pidfd::open().ok(),
            Self::No(_) => None,
        }
    }
}

/// Whether process_madvise(2) discards this process's own pages (Linux 6.13).
pub(crate) fn vectors() -> Vectors {
    static ANSWER: Once = Once::new();
    Vectors::from_number(ANSWER.get_if_sure(|| {
        let found = find_vectors();
        // A shortage of memory or descriptors says nothing about the kernel.
        let sure = match found {
            Vectors::No(errno) => [ENOSYS, EINVAL, EPERM, EBADF].contains(&errno),
            _ => true,
        };
        (found.number(), sure)
    }))
}

fn find_vectors() -> Vectors {
    let by_itself = discards_by(PIDFD_SELF_THREAD);
    if by_itself.is_ok() {
        return Vectors::Itself;
    }
    let by_pidfd = Pidfd::open().and_then(|fd| match fd {
        Pidfd::Open(fd) => discards_by(std::os::fd::AsRawFd::as_raw_fd(&fd)),
        Pidfd::Itself => by_itself,
    });
    match by_pidfd {
        Ok(()) => Vectors::Pidfd,
        Err(errno) => Vectors::No(errno),
    }
}

fn discards_by(pidfd: i32) -> Result<(), Errno> {
    let page = page_bytes();
    let region = Region::map(2 * page)?;
    let (first, second) = region.range().split_at(region.range().start() + page);
    let ranges = [first.ok_or(super::EINVAL)?, second.ok_or(super::EINVAL)?];
    let bytes = region.range().start() as *mut u8;
    // SAFETY: both bytes lie in the region that was just mapped.
    unsafe {
        bytes.write_volatile(1);
        bytes.add(page).write_volatile(1);
    }
    let done = linux::process_madvise(pidfd, &ranges, Advice::DontNeed)?;
    // SAFETY: as above; discarding keeps the pages mapped.
    let zero = unsafe { bytes.read_volatile() == 0 && bytes.add(page).read_volatile() == 0 };
    if done == 2 * page && zero {
        Ok(())
    } else {
        Err(ENOSYS)
    }
}

/// Whether PROCMAP_QUERY answers.
pub(crate) fn procmap_query() -> bool {
    static ANSWER: Once = Once::new();
    ANSWER.get(|| procmap::answers().into()) == 1
}

/// What the kernel says of an advice on an ordinary private page.
pub(crate) fn advice(advice: Advice) -> Result<(), Errno> {
    let region = Region::map(page_bytes())?;
    // SAFETY: the byte lies in the region that was just mapped.
    unsafe { (region.range().start() as *mut u8).write_volatile(1) };
    linux::advise(region.range(), advice)
}

/// What lazy freeing does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Laziness {
    /// The page stays until its memory is needed.
    Lazy,
    /// The page is gone at once (before Linux 4.12 where there is no swap).
    Eager,
    /// Refused (before Linux 4.5, or in a sandbox).
    Refused,
}

/// Whether lazy freeing is lazy.
pub(crate) fn laziness() -> Laziness {
    static ANSWER: Once = Once::new();
    let found = ANSWER.get_if_sure(|| {
        let found = find_laziness();
        // A shortage of memory says nothing about the kernel.
        let sure = !matches!(found, Err(errno) if errno == ENOMEM);
        let number = match found {
            Ok(Laziness::Lazy) => 0,
            Ok(Laziness::Eager) => 1,
            Ok(Laziness::Refused) | Err(_) => 2,
        };
        (number, sure)
    });
    match found {
        0 => Laziness::Lazy,
        1 => Laziness::Eager,
        _ => Laziness::Refused,
    }
}

fn find_laziness() -> Result<Laziness, Errno> {
    let region = Region::map(page_bytes())?;
    let byte = region.range().start() as *mut u8;
    // SAFETY: the byte lies in the region that was just mapped.
    unsafe { byte.write_volatile(1) };
    match linux::advise(region.range(), Advice::Free) {
        // SAFETY: as above; reading does not keep a lazily freed page.
        Ok(()) if unsafe { byte.read_volatile() } == 1 => Ok(Laziness::Lazy),
        Ok(()) => Ok(Laziness::Eager),
        Err(ENOMEM) => Err(ENOMEM),
        Err(_) => Ok(Laziness::Refused),
    }
}

/// Whether process_mrelease(2) exists (Linux 5.15).
pub(crate) fn process_mrelease() -> Result<(), Errno> {
    // SAFETY: plain numbers; no process has the descriptor −1.
    let rc = unsafe { libc::syscall(libc::SYS_process_mrelease, -1, 0) };
    match if rc == 0 { Errno(0) } else { last_errno() } {
        Errno(0 | libc::EBADF) => Ok(()),
        errno => Err(errno),
    }
}

/// Whether pidfd_open(2) works on this process.
pub(crate) fn pidfd_open() -> Result<(), Errno> {
    Pidfd::open().map(drop)
}

/// Page size of the default huge-page file system, in bytes.
pub(crate) fn hugetlb_page_bytes() -> usize {
    static ANSWER: Once = Once::new();
    ANSWER.get(|| {
        std::fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| {
                let line = text.lines().find_map(|l| l.strip_prefix("Hugepagesize:"))?;
                let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
                kib.checked_mul(1024)
            })
            .filter(|bytes| bytes.is_power_of_two())
            .unwrap_or(2 << 20)
    })
}

/// Whether transparent huge pages can be had, by the word of sysfs.
pub(crate) fn transparent_huge_pages() -> Option<String> {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = text.split_once('[')?.1.split_once(']')?.0;
    Some(chosen.to_owned())
}
