//! Maps that are handed over whole: losing their contents is safe.

#[cfg(feature = "memmap2")]
use crate::sys::mmap;
use crate::{error::Errno, map::Map};

mod sealed {
    pub trait Sealed {}
}

/// A mapping that its owner can lend or give to a
/// [`Teardown`](crate::Teardown): [`Map`], and with the feature `memmap2` also
/// `memmap2::MmapMut` and `memmap2::Mmap`.
///
/// An exclusive borrow proves that nobody else looks at the bytes while they
/// go.
pub trait OwnedMap: sealed::Sealed {
    #[doc(hidden)]
    fn bytes(&mut self) -> Bytes;

    #[doc(hidden)]
    fn unmap(self) -> Result<(), Errno>;
}

/// What a map offers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// Where its bytes begin.
    pub addr: usize,
    /// How many its owner knows of.
    pub len: usize,
    /// How many may be worked on: the same, or with the rest of the last page
    /// where that is nobody else's.
    pub work_len: usize,
}

impl sealed::Sealed for Map {}

impl OwnedMap for Map {
    #[inline]
    fn bytes(&mut self) -> Bytes {
        let pages = self.pages();
        Bytes {
            addr: pages.start(),
            len: self.len(),
            work_len: pages.len(),
        }
    }

    #[inline]
    fn unmap(self) -> Result<(), Errno> {
        self.into_region().unmap()
    }
}

#[cfg(feature = "memmap2")]
impl sealed::Sealed for memmap2::MmapMut {}

#[cfg(feature = "memmap2")]
impl OwnedMap for memmap2::MmapMut {
    fn bytes(&mut self) -> Bytes {
        // A file goes on behind the last byte: whole pages inside only.
        let len = self.len();
        Bytes {
            addr: self.as_mut_ptr().addr(),
            len,
            work_len: len,
        }
    }

    fn unmap(self) -> Result<(), Errno> {
        // memmap2 would do the same, and keep the answer to itself.
        let map = std::mem::ManuallyDrop::new(self);
        mmap::unmap_owned(map.as_ptr().addr(), map.len())
    }
}

#[cfg(feature = "memmap2")]
impl sealed::Sealed for memmap2::Mmap {}

#[cfg(feature = "memmap2")]
impl OwnedMap for memmap2::Mmap {
    fn bytes(&mut self) -> Bytes {
        let len = self.len(); // as for MmapMut
        Bytes {
            addr: self.as_ptr().addr(),
            len,
            work_len: len,
        }
    }

    fn unmap(self) -> Result<(), Errno> {
        let map = std::mem::ManuallyDrop::new(self); // as for MmapMut
        mmap::unmap_owned(map.as_ptr().addr(), map.len())
    }
}
