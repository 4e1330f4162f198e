//! userfaultfd(2): ranges whose holes are not filled by touching them.

use std::{
    ffi::c_ulong,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use super::{EEXIST, last_errno};
use crate::{error::Errno, range::PageRange};

/// Only faults of user space are asked for, which any user may.
const UFFD_USER_MODE_ONLY: i32 = 1;

const UFFD_API: u64 = 0xaa;
/// A hole that is touched raises SIGBUS, and nobody is told.
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

/// `_IOWR(0xaa, number, structure)`.
const fn request(number: c_ulong, structure_bytes: usize) -> c_ulong {
    3 << 30 | (structure_bytes as c_ulong) << 16 | 0xaa << 8 | number
}

const UFFDIO_API: c_ulong = request(0x3f, size_of::<Api>());
const UFFDIO_REGISTER: c_ulong = request(0x00, size_of::<Ranged>());
const UFFDIO_ZEROPAGE: c_ulong = request(0x04, size_of::<Ranged>());

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register` and `struct uffdio_zeropage`.
#[repr(C)]
struct Ranged {
    start: u64,
    len: u64,
    mode: u64,
    /// What can be done with the range, or the bytes that were done.
    answer: i64,
}

/// A descriptor whose ranges raise SIGBUS. Closed, they are ordinary again.
pub(crate) struct Userfault(OwnedFd);

impl Userfault {
    pub(crate) fn open() -> Result<Self, Errno> {
        // SAFETY: the call takes flags only.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_userfaultfd,
                libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY,
            )
        };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
        let Some(fd) = fd else {
            return Err(last_errno());
        };
        // SAFETY: the descriptor is new and nobody else's.
        let this = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        let mut api = Api {
            api: UFFD_API,
            features: UFFD_FEATURE_SIGBUS,
            ioctls: 0,
        };
        // SAFETY: the structure is the one of this request.
        unsafe { this.ask(UFFDIO_API, &mut api) }?;
        Ok(this)
    }

    /// From now on touching a hole of `range` raises SIGBUS.
    pub(crate) fn register(&self, range: PageRange) -> Result<(), Errno> {
        let mut wish = Ranged::of(range, UFFDIO_REGISTER_MODE_MISSING);
        // SAFETY: the structure is the one of this request, and the range of
        // the caller's own memory, whose contents stay.
        unsafe { self.ask(UFFDIO_REGISTER, &mut wish) }
    }

    /// Fills what is a hole in `range` with zeros, as far as the first page
    /// that is there.
    pub(crate) fn zero(&self, range: PageRange) -> Result<(), Errno> {
        let mut wish = Ranged::of(range, 0);
        // SAFETY: the structure is the one of this request; pages that are
        // there are not touched.
        match unsafe { self.ask(UFFDIO_ZEROPAGE, &mut wish) } {
            // Somebody's page came between, or it was done in part.
            Err(EEXIST | super::EAGAIN) => Ok(()),
            answer => answer,
        }
    }

    /// # Safety
    /// `wish` must be the structure of that request.
    unsafe fn ask<T>(&self, request: c_ulong, wish: &mut T) -> Result<(), Errno> {
        // SAFETY: passed on.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, wish) };
        if answer < 0 {
            Err(last_errno())
        } else {
            Ok(())
        }
    }
}

impl Ranged {
    fn of(range: PageRange, mode: u64) -> Self {
        Self {
            start: range.start() as u64,
            len: range.len() as u64,
            mode,
            answer: 0,
        }
    }
}
