//! Memory that a variant gives back: populated by several threads before the
//! clock starts, and proven to be made of the pages that were asked for.

use anyhow::{Context, Result};

use super::memory_kind::Page;
use crate::sys::{Access, HUGE_PAGE, Mapping};
use crate::{size, smaps};

/// Threads that touch memory. At least two, so that even on one CPU the memory
/// is not laid out by a single thread in one sweep; more than 16 gain nothing.
pub fn populating_threads() -> usize {
    std::thread::available_parallelism()
        .map_or(2, usize::from)
        .clamp(2, 16)
}

/// Address space for `len` bytes of pages of that size, not yet touched.
pub fn reserved(len: usize, page: Page) -> Result<Mapping> {
    let mapping = Mapping::anonymous(len, HUGE_PAGE).with_context(|| {
        format!(
            "cannot map {} (see `ulimit -v` and /proc/sys/vm/overcommit_memory)",
            size::show(len as u64)
        )
    })?;
    mapping
        .huge_pages(page == Page::Thp)
        .with_context(|| format!("cannot choose {} pages", page.name()))?;
    Ok(mapping)
}

/// Populated and verified memory.
pub fn populated(len: usize, page: Page) -> Result<Mapping> {
    let mapping = reserved(len, page)?;
    mapping
        .populate(Access::Write, populating_threads())
        .with_context(|| format!("cannot touch {}", size::show(len as u64)))?;
    smaps::verify(mapping.start(), len, page == Page::Thp)?;
    Ok(mapping)
}
