//! What can be asked of volatile memory, and what comes back.

use std::{error, fmt, ops::Range};

use crate::error::Errno;

/// What a purge takes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PurgePolicy {
    /// Single pages are lost, and the answer says which.
    #[default]
    Page,
    /// One lost page loses all that is pinned with it: for objects that are of
    /// no use in parts. Pages that others have pinned meanwhile stay, and the
    /// answer does not name them.
    Whole,
}

/// What happens when memory that was purged is touched without being pinned.
/// Safe code cannot do that; this is for raw pointers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stray {
    /// It reads zero.
    #[default]
    ReadsZero,
    /// The thread gets SIGBUS (userfaultfd(2) and PAGEMAP_SCAN, Linux 6.7). Each
    /// pin then costs a call into the kernel more. Not in the child of a fork.
    Faults,
}

/// What a pin finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Every byte is as it was when it was unpinned.
    Kept,
    /// The bytes of these ranges, whole pages, are zero: they were purged, or
    /// nothing was written there yet. All others are as they were.
    Purged(Vec<Range<usize>>),
}

/// Why nothing was pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinError {
    /// The range is empty, or not inside of the region.
    OutOfRange,
    /// A page of it is pinned for writing, or, where the wish is to write, for
    /// reading.
    Held,
    /// In the child of a fork that happened while another thread used the
    /// region: it cannot be used there.
    LostInFork,
    /// The kernel had no memory for pages that were purged.
    Kernel(Errno),
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange => f.write_str("pin: the range is empty or not inside of the region"),
            Self::Held => f.write_str("pin: a page is pinned by another; try again when it is not"),
            Self::LostInFork => f.write_str(
                "pin: another thread was using the region when this process was forked; make a new one",
            ),
            Self::Kernel(errno) => write!(f, "pin: {errno:?}; the range is still volatile"),
        }
    }
}

impl error::Error for PinError {}
