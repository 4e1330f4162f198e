//! How a region is made.

use std::io;

use super::{
    answer::{PurgePolicy, Stray},
    faults::Faults,
    region::VolatileRegion,
};
use crate::{
    error::Errno,
    operation::Advice,
    sys::{self, Kernel as _, linux::Linux, mmap::Region},
};

/// How a [`VolatileRegion`] is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolatileOptions {
    policy: PurgePolicy,
    stray: Stray,
}

impl VolatileOptions {
    /// What a purge takes with it.
    #[must_use]
    pub fn purge_policy(mut self, policy: PurgePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// What happens when purged memory is touched without being pinned.
    #[must_use]
    pub fn stray(mut self, stray: Stray) -> Self {
        self.stray = stray;
        self
    }

    /// Maps a region of `len` bytes, rounded up to whole pages. It takes no
    /// memory before it is written, but for 24 bytes of notes for each page.
    ///
    /// # Errors
    /// Those of mmap(2), and `ENOMEM` for the notes. For [`Stray::Faults`] those of
    /// userfaultfd(2), MADV_POPULATE_WRITE and PAGEMAP_SCAN, whichever the kernel
    /// lacks: `ENOSYS`, `EINVAL` or `ENOTTY`.
    pub fn map(self, len: usize) -> io::Result<VolatileRegion> {
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.0);
        let page = sys::page_bytes();
        let len = len
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or_else(|| error(sys::ENOMEM))?;
        let memory = Region::map(len).map_err(error)?;
        // One written byte would keep a whole huge page. A kernel without huge
        // pages refuses, and has none.
        let _ = Linux::plain().advise(memory.range(), Advice::NoHugePage);
        let faults = match self.stray {
            Stray::ReadsZero => None,
            Stray::Faults => Some(Faults::over(memory.range())?),
        };
        VolatileRegion::over(memory, faults, self.policy).ok_or_else(|| error(sys::ENOMEM))
    }
}
