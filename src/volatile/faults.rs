//! Memory that faults where it was purged.
//!
//! A range that is registered with userfaultfd(2) gets no pages by being
//! touched: with UFFD_FEATURE_SIGBUS whoever touches a hole dies of SIGBUS. So
//! before a page is pinned here, holes are filled on purpose, and what is there
//! is made to stay by a write that the kernel pretends (MADV_POPULATE_WRITE).

use std::{io, process};

use crate::{
    error::Errno,
    operation::Advice,
    range::PageRange,
    sys::{self, Kernel as _, linux::Linux, mmap::Region, pagemap::Pagemap, userfault::Userfault},
};

pub(super) struct Faults {
    descriptor: Userfault,
    pagemap: Pagemap,
    /// A child has the memory, but not its registration.
    process: u32,
    #[cfg(test)]
    pub(super) refuses: std::sync::atomic::AtomicBool,
}

/// Whether memory can be made to fault where it was purged; tried on a page.
pub(crate) fn stray_faults() -> Result<(), Errno> {
    let page = Region::map(sys::page_bytes())?;
    match Faults::over(page.range()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Errno(error.raw_os_error().unwrap_or(0))),
    }
}

impl Faults {
    pub(super) fn over(range: PageRange) -> io::Result<Self> {
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.0);
        let descriptor = Userfault::open().map_err(error)?;
        descriptor.register(range).map_err(error)?;
        let faults = Self {
            descriptor,
            pagemap: Pagemap::open()?,
            process: process::id(),
            #[cfg(test)]
            refuses: false.into(),
        };
        // Finds out now what would be missing later: MADV_POPULATE_WRITE is in
        // Linux 5.14, PAGEMAP_SCAN in 6.7.
        let page = range.split_at(range.start() + sys::page_bytes()).0;
        let first = page.unwrap_or(range);
        faults.fill(first).map_err(error)?;
        Linux::plain()
            .advise(first, Advice::DontNeed)
            .map_err(error)?;
        Ok(faults)
    }

    /// Fills a hole with zeros. The kernel does it in one mapping at a time, and
    /// mlock(2) of some pages makes three of one.
    fn zero(&self, hole: PageRange) -> Result<(), Errno> {
        match self.descriptor.zero(hole) {
            Err(sys::ENOENT) if hole.len() > sys::page_bytes() => {
                let middle = hole.start() + hole.len() / 2;
                let at = middle.next_multiple_of(sys::page_bytes());
                let (before, after) = hole.split_at(at);
                [before, after]
                    .into_iter()
                    .flatten()
                    .try_for_each(|part| self.zero(part))
            }
            answer => answer,
        }
    }

    /// Every page of `range` is there afterwards, and stays until it is freed
    /// lazily again; those that were not are zeros.
    pub(super) fn fill(&self, range: PageRange) -> Result<(), Errno> {
        #[cfg(test)]
        if self.refuses.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(sys::ENOMEM);
        }
        let kernel = Linux::plain();
        loop {
            match kernel.advise(range, Advice::PopulateWrite) {
                Err(sys::EFAULT) if self.process == process::id() => {}
                answer => return answer,
            }
            let mut at = range.start();
            let mut filled = Ok(());
            let mut holes = 0;
            let mut fill = |from: usize, to: usize| match PageRange::between(from, to) {
                Some(hole) => {
                    holes += 1;
                    self.zero(hole)
                }
                None => Ok(()),
            };
            self.pagemap.scan(range, false, |part| {
                if filled.is_ok() {
                    filled = fill(at, part.range.start());
                }
                at = part.range.end();
            })?;
            filled?;
            fill(at, range.end())?;
            if holes == 0 {
                return Err(sys::EFAULT); // not for want of a page: a swap device fails
            }
        }
    }
}
