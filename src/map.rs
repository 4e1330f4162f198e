//! The library's own mapping type.

use std::{
    io,
    ops::{Deref, DerefMut},
    slice,
};

use crate::{
    error::Errno,
    range::PageRange,
    sys::{
        mmap::{Ask, Hint, Region},
        page_bytes, probe,
    },
};

/// Anonymous memory of its own, zeroed, readable and writable.
///
/// Dropping it is a plain munmap(2);
/// [`Teardown::unmap`](crate::Teardown::unmap) frees it in parallel and says
/// what happened.
///
/// ```
/// let mut map = mmzap::Map::options().huge_pages(false).map(1 << 20)?;
/// map[4096] = 7;
/// assert_eq!(map.len(), 1 << 20);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Map {
    region: Region,
    /// The part that is the user's: the region less gaps and rounding.
    pages: PageRange,
    len: usize,
}

/// How a [`Map`] is made; see [`Map::options`].
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "nothing is mapped until `map`"]
pub struct MapOptions {
    huge_pages: Option<bool>,
    shared: bool,
    populate: bool,
    reserve: bool,
    huge_tlb: bool,
}

/// From this size on a map begins at a multiple of 2 MiB and has a page
/// without access on both sides. The kernel merges neighbouring mappings of
/// one kind, and then whoever maps memory beside this one waits for a lock
/// that a discard holds for as long as it runs. Smaller maps are gone before
/// anybody notices, and the gaps would be most of their cost.
const APART_BYTES: usize = 32 << 20;

const ALIGN_BYTES: usize = 2 << 20;

impl Map {
    /// Options with their defaults: private, swap not reserved, huge pages as
    /// the system has them, pages appearing when touched.
    pub fn options() -> MapOptions {
        MapOptions::default()
    }

    /// The first byte.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pages.start() as *mut u8
    }

    /// The first byte, to read from.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.pages.start() as *const u8
    }

    /// Length in bytes, as asked for; never 0.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a map is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whole pages, the rest of the last one included: it is nobody else's.
    #[inline]
    pub(crate) fn pages(&self) -> PageRange {
        self.pages
    }

    #[inline]
    pub(crate) fn into_region(self) -> Region {
        self.region
    }
}

impl MapOptions {
    /// Asks for transparent huge pages (`MADV_HUGEPAGE`), or for none
    /// (`MADV_NOHUGEPAGE`). A kernel without them takes this as said.
    pub fn huge_pages(mut self, wanted: bool) -> Self {
        self.huge_pages = Some(wanted);
        self
    }

    /// Shared with children that are forked later (`MAP_SHARED`).
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Lets all pages appear at once, on this thread
    /// (`MADV_POPULATE_WRITE`; by touching before Linux 5.14).
    pub fn populate(mut self, populate: bool) -> Self {
        self.populate = populate;
        self
    }

    /// Counts the memory against the commit limit (no `MAP_NORESERVE`).
    pub fn reserve(mut self, reserve: bool) -> Self {
        self.reserve = reserve;
        self
    }

    /// Takes the pages from the system's pool of huge pages (`MAP_HUGETLB`,
    /// its default size). The length is rounded up to whole ones.
    pub fn huge_tlb(mut self, huge_tlb: bool) -> Self {
        self.huge_tlb = huge_tlb;
        self
    }

    /// Maps `len` bytes.
    ///
    /// # Errors
    /// `InvalidInput` for a length of 0 or one that no address space holds;
    /// otherwise the answer of mmap(2) or madvise(2).
    pub fn map(self, len: usize) -> io::Result<Map> {
        let granule = if self.huge_tlb {
            probe::hugetlb_page_bytes()
        } else {
            page_bytes()
        };
        let rounded = len
            .checked_next_multiple_of(granule)
            .filter(|&rounded| rounded > 0 && rounded <= isize::MAX as usize)
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("cannot map {len} bytes"),
                )
            })?;
        let apart = rounded >= APART_BYTES && !self.huge_tlb;
        let ask = Ask {
            shared: self.shared,
            no_access: apart,
            reserve: self.reserve,
            huge_tlb: self.huge_tlb,
        };
        let (region, pages) = if apart {
            Self::map_apart(rounded, ask)?
        } else {
            let region = Region::ask(rounded, ask).map_err(io_error)?;
            let pages = region.range();
            (region, pages)
        };
        let map = Map { region, pages, len };
        self.settle(&map)?;
        Ok(map)
    }

    fn map_apart(rounded: usize, ask: Ask) -> io::Result<(Region, PageRange)> {
        let page = page_bytes();
        let too_long = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("cannot map {rounded} bytes"),
            )
        };
        let outer = rounded
            .checked_add(ALIGN_BYTES + 2 * page)
            .ok_or_else(too_long)?;
        let region = Region::ask(outer, ask).map_err(io_error)?;
        let first = (region.range().start() + page).next_multiple_of(ALIGN_BYTES);
        let pages = PageRange::new(first, rounded, page).ok_or_else(too_long)?;
        region.open(pages).map_err(io_error)?;
        Ok((region, pages))
    }

    fn settle(self, map: &Map) -> io::Result<()> {
        let hint = match self.huge_pages {
            Some(true) => Some(Hint::HugePage),
            Some(false) => Some(Hint::NoHugePage),
            None => None,
        };
        if let Some(hint) = hint {
            match map.region.hint(map.pages, hint) {
                // A kernel built without huge pages.
                Ok(()) | Err(crate::sys::EINVAL) => {}
                Err(errno) => return Err(io_error(errno)),
            }
        }
        if self.populate {
            match map.region.hint(map.pages, Hint::PopulateWrite) {
                Ok(()) => {}
                Err(crate::sys::EINVAL) => touch(map.pages),
                Err(errno) => return Err(io_error(errno)),
            }
        }
        Ok(())
    }
}

fn touch(pages: PageRange) {
    for addr in (pages.start()..pages.end()).step_by(page_bytes()) {
        // SAFETY: the byte lies in a map that was just made and is not lent.
        unsafe { (addr as *mut u8).write_volatile(0) };
    }
}

fn io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pages are mapped, initialised (zero) and this map's own;
        // writes go through the exclusive borrow below.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl DerefMut for Map {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}
