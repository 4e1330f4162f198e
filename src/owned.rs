//! Maps that are handed over whole: losing their contents is safe.

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
    fn bytes(&mut self) -> (usize, usize);

    #[doc(hidden)]
    fn unmap(self) -> Result<(), Errno>;
}

impl sealed::Sealed for Map {}

impl OwnedMap for Map {
    fn bytes(&mut self) -> (usize, usize) {
        (self.as_mut_ptr().addr(), self.len())
    }

    fn unmap(self) -> Result<(), Errno> {
        self.into_region().unmap()
    }
}

#[cfg(feature = "memmap2")]
impl sealed::Sealed for memmap2::MmapMut {}

#[cfg(feature = "memmap2")]
impl OwnedMap for memmap2::MmapMut {
    fn bytes(&mut self) -> (usize, usize) {
        (self.as_mut_ptr().addr(), self.len())
    }

    fn unmap(self) -> Result<(), Errno> {
        // memmap2 unmaps by one munmap(2) and keeps its answer to itself; it
        // refuses a whole mapping only if somebody sealed it.
        drop(self);
        Ok(())
    }
}

#[cfg(feature = "memmap2")]
impl sealed::Sealed for memmap2::Mmap {}

#[cfg(feature = "memmap2")]
impl OwnedMap for memmap2::Mmap {
    fn bytes(&mut self) -> (usize, usize) {
        (self.as_ptr().addr(), self.len())
    }

    fn unmap(self) -> Result<(), Errno> {
        drop(self); // as for MmapMut
        Ok(())
    }
}
