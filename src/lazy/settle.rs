//! Bringing what was freed lazily to an end.

use std::io;

use crate::{
    mapping,
    operation::Operation,
    range::PageRange,
    teardown::{PartialFolios, Teardown},
};

/// What [`settle`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// Bytes that are free now.
    pub freed_bytes: usize,
    /// Bytes that hold something: written since they were freed lazily.
    pub kept_bytes: usize,
}

/// Brings what was freed lazily to an end: pages that were not written since
/// are free afterwards, and the others keep every byte.
///
/// The kernel is asked to reclaim the pages (`MADV_PAGEOUT`, Linux 5.4), which
/// drops those that are still clean, and moves those that were written to swap,
/// where there is any. What is gone is then counted (PAGEMAP_SCAN, Linux 6.7).
///
/// ```
/// use mmzap::{Operation, Teardown, lazy};
///
/// let run = lazy::Cache::new().map(4 << 20)?;
/// # unsafe { run.addr.write_bytes(1, run.len) };
/// // SAFETY: nobody needs what is in it.
/// let report = unsafe { Teardown::new(Operation::LazyFree).run_raw([(run.addr, run.len)]) };
/// assert_eq!((report.reclaimable_bytes(), report.freed_bytes()), (4 << 20, 0));
/// // SAFETY: the memory is ours.
/// unsafe { run.addr.write(7) };
/// let range = mmzap::PageRange::new(run.addr.addr(), run.len, 4096).unwrap();
/// let settled = lazy::settle(range)?;
/// assert!(settled.freed_bytes >= 2 << 20);
/// // SAFETY: as above.
/// assert_eq!(unsafe { run.addr.read() }, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Without /proc, or the errno of the scan: `ENOTTY` before Linux 6.7.
pub fn settle(range: PageRange) -> io::Result<Settled> {
    // SAFETY: paging out keeps what is in a page; a clean page that was freed
    // lazily may turn to zero at any time.
    let _ = unsafe {
        Teardown::new(Operation::PageOut)
            .partial_folios(PartialFolios::Split)
            .run_raw([(range.start() as *mut u8, range.len())])
    };
    let mix = mapping::folio_mix(range)?;
    Ok(Settled {
        freed_bytes: mix.empty_bytes,
        kept_bytes: range.len() - mix.empty_bytes,
    })
}
