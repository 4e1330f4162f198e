//! Owned mappings: mmap(2) and the settings that madvise(2) gives them.

use super::{last_errno, page_bytes};
use crate::{error::Errno, range::PageRange};

/// A mapping that is unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Region {
    range: PageRange,
}

/// What mmap(2) is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ask {
    pub(crate) shared: bool,
    pub(crate) no_access: bool,
    pub(crate) reserve: bool,
    pub(crate) huge_tlb: bool,
}

impl Region {
    /// Private, anonymous, readable and writable, `len` bytes of whole pages.
    pub(crate) fn map(len: usize) -> Result<Self, Errno> {
        Self::ask(len, Ask::default())
    }

    pub(crate) fn ask(len: usize, ask: Ask) -> Result<Self, Errno> {
        let mut flags = libc::MAP_ANONYMOUS;
        flags |= if ask.shared {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        };
        if !ask.reserve {
            flags |= libc::MAP_NORESERVE;
        }
        if ask.huge_tlb {
            flags |= libc::MAP_HUGETLB;
        }
        let protection = if ask.no_access {
            libc::PROT_NONE
        } else {
            libc::PROT_READ | libc::PROT_WRITE
        };
        // SAFETY: without MAP_FIXED the kernel places the mapping where
        // nothing is.
        let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if addr == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let range = PageRange::new(addr.addr(), len, page_bytes()).ok_or(super::EINVAL)?;
        Ok(Self { range })
    }

    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// The pages, for an owner who knows them by address.
    pub(crate) fn leak(self) -> PageRange {
        let range = self.range;
        std::mem::forget(self);
        range
    }

    /// Pages that were leaked, or other private anonymous ones.
    ///
    /// # Safety
    /// They must be mapped, and nobody's.
    pub(crate) unsafe fn adopt(range: PageRange) -> Self {
        Self { range }
    }

    /// Changes the length, perhaps at another place; what is added reads zero.
    pub(crate) fn resize(self, len: usize) -> Result<Self, (Self, Errno)> {
        let old = self.range;
        // SAFETY: the region owns the old pages, and the kernel finds a place
        // for the new ones where nothing is.
        let addr =
            unsafe { libc::mremap(old.start() as *mut _, old.len(), len, libc::MREMAP_MAYMOVE) };
        match PageRange::new(addr.addr(), len, page_bytes()) {
            Some(range) if addr != libc::MAP_FAILED => {
                std::mem::forget(self);
                Ok(Self { range })
            }
            _ => Err((self, last_errno())),
        }
    }

    /// Unmaps the region and says how that went. If it is refused, the region
    /// stays mapped for good.
    #[inline]
    pub(crate) fn unmap(self) -> Result<(), Errno> {
        let range = self.range;
        std::mem::forget(self);
        // SAFETY: the region owned these pages, and nobody owns them now.
        let rc = unsafe { libc::munmap(range.start() as *mut _, range.len()) };
        if rc == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// Makes a part of the region readable and writable.
    pub(crate) fn open(&self, part: PageRange) -> Result<(), Errno> {
        assert!(self.range.contains(part), "a part of the region");
        // SAFETY: the part is this region's own.
        let rc = unsafe {
            libc::mprotect(
                part.start() as *mut _,
                part.len(),
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        if rc == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// Advice that changes no contents: huge pages or not, populate.
    pub(crate) fn hint(&self, part: PageRange, hint: Hint) -> Result<(), Errno> {
        assert!(self.range.contains(part), "a part of the region");
        loop {
            // SAFETY: the part is this region's own, and a hint keeps contents.
            let rc = unsafe { libc::madvise(part.start() as *mut _, part.len(), hint as i32) };
            if rc == 0 {
                return Ok(());
            }
            match last_errno() {
                Errno(libc::EINTR) => {}
                errno => return Err(errno),
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn punch_hole(&self, addr: usize, len: usize) {
        assert!(
            self.range
                .contains(PageRange::new(addr, len, page_bytes()).unwrap())
        );
        // SAFETY: the part is this region's own; what is left is unmapped twice
        // at worst, and tests keep nothing else there.
        assert_eq!(unsafe { libc::munmap(addr as *mut _, len) }, 0);
    }
}

/// Whether the kernel may do other than asked with an advice over a range and
/// say nothing, so that the mapping has to be looked at first: a huge-page file
/// system rounds an end down to its own pages, and the vDSO takes a discard as
/// any file mapping would.
pub(crate) fn is_treacherous(range: PageRange) -> bool {
    // The smallest huge page of x86-64; a larger one ends at such a boundary
    // too, or the range is too long to go straight to the kernel.
    const HUGE: usize = 2 << 20;
    let boundary = range.end() & !(HUGE - 1);
    let rounded = boundary != range.end() && boundary >= range.start();
    let giant = range.start().is_multiple_of(1 << 30);
    rounded || giant || vdso().is_some_and(|vdso| vdso.intersect(range).is_some())
}

/// Where the vDSO and the pages of data beside it lie, generously.
fn vdso() -> Option<PageRange> {
    const BESIDE: usize = 64 << 10;
    // SAFETY: takes any number, reads what the kernel left at process start.
    let start = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    PageRange::between(start.checked_sub(BESIDE)?, start.checked_add(BESIDE)?)
}

/// munmap(2) of the pages that hold these bytes, for a map whose owner gives
/// it up.
#[cfg(feature = "memmap2")]
pub(crate) fn unmap_owned(addr: usize, len: usize) -> Result<(), Errno> {
    let page = page_bytes();
    let start = addr & !(page - 1);
    let len = (addr - start + len).max(1);
    // SAFETY: the caller has taken the map from its owner, who does not unmap
    // it; memmap2 computes the same from its pointer and length.
    let rc = unsafe { libc::munmap(start as *mut _, len) };
    if rc == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Advice of madvise(2) that keeps contents.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Hint {
    HugePage = libc::MADV_HUGEPAGE,
    NoHugePage = libc::MADV_NOHUGEPAGE,
    /// `MADV_POPULATE_WRITE`, Linux 5.14.
    PopulateWrite = 23,
}

impl Drop for Region {
    fn drop(&mut self) {
        let (start, len) = (self.range.start() as *mut _, self.range.len());
        // SAFETY: the region owns these pages, and its owner is going away.
        // Where there can be no more mappings than there are, the middle of one
        // cannot go; its memory can.
        unsafe {
            if libc::munmap(start, len) != 0 {
                libc::madvise(start, len, libc::MADV_DONTNEED);
            }
        }
    }
}
