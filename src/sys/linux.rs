//! The real kernel.

use super::{
    ENOSYS, Kernel,
    affinity::Cpus,
    last_errno, node,
    probe::{self, Laziness},
};
use crate::{
    error::Errno,
    mapping::{
        LiveMappings,
        smaps::{self, Hidden},
    },
    operation::Advice,
    range::PageRange,
};

/// `PIDFD_SELF_THREAD` of linux/pidfd.h: names the caller without a file
/// descriptor and works even after the main thread has left (Linux 6.14).
pub(crate) const PIDFD_SELF_THREAD: i32 = -10000;

/// One job's view of the running kernel.
///
/// Not kept between jobs: a file descriptor on this process would name the
/// parent after a fork.
pub(crate) struct Linux {
    pidfd: Option<Pidfd>,
}

/// How process_madvise(2) names this process.
pub(crate) enum Pidfd {
    Itself,
    Open(std::os::fd::OwnedFd),
}

impl Pidfd {
    fn raw(&self) -> i32 {
        match self {
            Self::Itself => PIDFD_SELF_THREAD,
            Self::Open(fd) => std::os::fd::AsRawFd::as_raw_fd(fd),
        }
    }

    pub(crate) fn open() -> Result<Self, Errno> {
        use std::os::fd::FromRawFd as _;
        // SAFETY: pidfd_open takes plain numbers and returns a new descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
        let Ok(fd) = i32::try_from(fd) else {
            return Err(last_errno());
        };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: the kernel has just handed out this descriptor to us alone.
        Ok(Self::Open(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }))
    }
}

impl Linux {
    /// A kernel for a job that may use vectors.
    pub(crate) fn with_vectors() -> Self {
        Self {
            pidfd: probe::vectors().open(),
        }
    }

    /// A kernel for a job that makes single calls.
    pub(crate) const fn plain() -> Self {
        Self { pidfd: None }
    }
}

impl Kernel for Linux {
    type Mappings = LiveMappings;

    fn advise(&self, range: PageRange, advice: Advice) -> Result<(), Errno> {
        advise(range, substitute(advice))
    }

    fn advise_vector(&self, ranges: &[PageRange], advice: Advice) -> Option<Result<usize, Errno>> {
        let pidfd = self.pidfd.as_ref()?;
        match process_madvise(pidfd.raw(), ranges, substitute(advice)) {
            Err(ENOSYS) => None,
            answer => Some(answer),
        }
    }

    fn has_vectors(&self) -> bool {
        self.pidfd.is_some()
    }

    fn unmap(&self, range: PageRange) -> Result<(), Errno> {
        // SAFETY: whoever started the job vouched, by the unsafe raw call or by
        // giving up an owned map, that nothing uses this range any more.
        let rc = unsafe { libc::munmap(range.start() as *mut _, range.len()) };
        if rc == 0 { Ok(()) } else { Err(last_errno()) }
    }

    fn mappings(&self) -> LiveMappings {
        LiveMappings::open()
    }

    fn hidden(&self) -> Vec<Hidden> {
        smaps::hidden()
    }

    fn nodes(&self) -> usize {
        node::count()
    }

    fn node_of(&self, ranges: &[PageRange]) -> Option<usize> {
        node::of(ranges)
    }

    fn node_here(&self) -> usize {
        node::here()
    }

    fn stay_on(&self, node: usize, allowed: &Cpus) {
        node::stay_on(node, allowed);
    }
}

/// Where lazy freeing is not lazy, or not allowed, pages are discarded.
fn substitute(advice: Advice) -> Advice {
    match advice {
        Advice::Free if probe::laziness() != Laziness::Lazy => Advice::DontNeed,
        other => other,
    }
}

/// madvise(2), `EINTR` resumed.
pub(crate) fn advise(range: PageRange, advice: Advice) -> Result<(), Errno> {
    loop {
        // SAFETY: whoever started the job vouched, by the unsafe raw call or by
        // lending an owned map exclusively, for losing this range's contents.
        let rc = unsafe { libc::madvise(range.start() as *mut _, range.len(), advice as i32) };
        if rc == 0 {
            return Ok(());
        }
        match last_errno() {
            Errno(libc::EINTR) => {}
            errno => return Err(errno),
        }
    }
}

/// process_madvise(2): bytes of the leading ranges that were done whole.
pub(crate) fn process_madvise(
    pidfd: i32,
    ranges: &[PageRange],
    advice: Advice,
) -> Result<usize, Errno> {
    // SAFETY: a PageRange has the layout of an iovec, `ranges` outlives the
    // call, and the right to lose the contents is the job's, as in `advise`.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd,
            ranges.as_ptr(),
            ranges.len(),
            advice as i32,
            0,
        )
    };
    usize::try_from(done).map_err(|_| last_errno())
}
