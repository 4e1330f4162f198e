//! /proc/self/pagemap and /proc/kpageflags: what pages are behind addresses.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
};

use super::{last_errno, page_bytes};
use crate::{error::Errno, range::PageRange};

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<Scan>() as u64) << 16 | 0x66 << 8 | 16;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const HUGE: u64 = 1 << 6;

/// Regions that one call reports.
const REGIONS: usize = 256;

/// Bit 63 of an entry of pagemap: the page is in memory.
const ENTRY_PRESENT: u64 = 1 << 63;
/// Bits 0 to 54: its frame; zero without CAP_SYS_ADMIN.
const ENTRY_FRAME: u64 = (1 << 55) - 1;

/// Bits of /proc/kpageflags: where compound pages begin and go on.
const FLAG_HEAD: u64 = 1 << 15;
const FLAG_TAIL: u64 = 1 << 16;

/// Pages of the largest folio: one huge page of 2 MiB on x86-64.
const FOLIO_PAGES: u64 = 512;

/// A part of a range that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Populated {
    pub(crate) range: PageRange,
    /// Mapped as a huge page.
    pub(crate) huge: bool,
}

/// The pages of this process.
pub(crate) struct Pagemap {
    entries: File,
    /// Flags of frames, for root alone.
    flags: Option<File>,
}

impl Pagemap {
    /// Not to be kept over a fork: it goes on naming the parent.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            entries: File::open("/proc/thread-self/pagemap")?,
            flags: None,
        })
    }

    /// With the flags of frames as well, if this process may have them.
    pub(crate) fn with_flags(mut self) -> Self {
        self.flags = File::open("/proc/kpageflags").ok();
        // The file may open where frames are hidden all the same.
        let here = std::ptr::from_ref(&self).addr() / page_bytes();
        if self.frame(here).is_none() {
            self.flags = None;
        }
        self
    }

    /// Whether [`folio_at`](Self::folio_at) can tell.
    pub(crate) fn knows_frames(&self) -> bool {
        self.flags.is_some()
    }

    /// Calls `found` with every mapped part of `range` in address order;
    /// `huge` limits it to huge pages. PAGEMAP_SCAN, Linux 6.7.
    pub(crate) fn scan(
        &self,
        range: PageRange,
        huge: bool,
        mut found: impl FnMut(Populated),
    ) -> Result<(), Errno> {
        let mut regions = [Region::default(); REGIONS];
        let mut at = range.start() as u64;
        while at < range.end() as u64 {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                start: at,
                end: range.end() as u64,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                category_mask: if huge { HUGE } else { 0 },
                category_anyof_mask: PRESENT | SWAPPED,
                return_mask: HUGE,
                ..Scan::default()
            };
            // SAFETY: the structure has the kernel's layout and announces the
            // array that it points to; both outlive the call.
            let filled =
                unsafe { libc::ioctl(self.entries.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            let Ok(filled) = usize::try_from(filled) else {
                return Err(last_errno());
            };
            for region in regions.iter().take(filled) {
                if let Some(range) = PageRange::between(region.start as usize, region.end as usize)
                {
                    let huge = region.categories & HUGE != 0;
                    found(Populated { range, huge });
                }
            }
            if scan.walk_end <= at {
                break;
            }
            at = scan.walk_end;
        }
        Ok(())
    }

    /// The addresses of the folio to which the page at `addr` belongs, taken
    /// to be mapped as a whole; `None` if it is a page by itself or nobody may
    /// know.
    pub(crate) fn folio_at(&self, addr: usize) -> Option<PageRange> {
        let flags = self.flags.as_ref()?;
        let page = page_bytes();
        let frame = self.frame(addr / page)?;
        let first = frame & !(FOLIO_PAGES - 1);
        let mut words = [0_u8; FOLIO_PAGES as usize * 8];
        flags.read_exact_at(&mut words, first * 8).ok()?;
        let flag = |at: usize| {
            let word = words.get(at * 8..at * 8 + 8)?;
            Some(u64::from_ne_bytes(word.try_into().ok()?))
        };
        let at = (frame - first) as usize;
        if flag(at)? & (FLAG_HEAD | FLAG_TAIL) == 0 {
            return None;
        }
        let mut head = at;
        while flag(head)? & FLAG_TAIL != 0 {
            head = head.checked_sub(1)?;
        }
        let mut end = at + 1;
        while end < FOLIO_PAGES as usize && flag(end)? & FLAG_TAIL != 0 {
            end += 1;
        }
        let start = (addr / page).checked_sub(at - head)?;
        PageRange::new(start * page, (end - head) * page, page)
    }

    fn frame(&self, page: usize) -> Option<u64> {
        let mut entry = [0_u8; 8];
        self.entries
            .read_exact_at(&mut entry, page as u64 * 8)
            .ok()?;
        let entry = u64::from_ne_bytes(entry);
        let frame = entry & ENTRY_FRAME;
        (entry & ENTRY_PRESENT != 0 && frame != 0).then_some(frame)
    }
}
