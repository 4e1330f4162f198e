//! What can be done to memory, and which mapping takes what.

use std::fmt;

use crate::mapping::{Kind, Mapping};

/// What a job does with the pages it is given.
///
/// [`Discard`](Self::Discard), [`DiscardLocked`](Self::DiscardLocked),
/// [`Unmap`](Self::Unmap) and [`Punch`](Self::Punch) destroy contents; the
/// others only tell the kernel what the memory is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Gives the pages back, keeps the range mapped (`MADV_DONTNEED`).
    /// Anonymous memory reads zero afterwards, a private file mapping its
    /// file's contents; shared memory keeps its data in the page cache.
    /// Refused for mlocked memory.
    Discard,
    /// Like [`Discard`](Self::Discard), mlocked memory included
    /// (`MADV_DONTNEED_LOCKED`, Linux 5.18).
    DiscardLocked,
    /// Gives pages and addresses back: discarded in parallel, then one
    /// munmap(2) of each range.
    Unmap,
    /// Lets the kernel take the pages when it needs memory (`MADV_FREE`,
    /// Linux 4.5; private anonymous memory only). Until then the memory is
    /// *reclaimable*, not free. A write to a page takes it back. Where the
    /// kernel is found not to be lazy about it, this is a discard, and the
    /// report says so ([`Report::eager`](crate::Report::eager)).
    LazyFree,
    /// Writes the pages out to swap or their file now (`MADV_PAGEOUT`, Linux
    /// 5.4). Without swap, anonymous memory stays where it is, and its folios
    /// smaller than 2 MiB are split (6.18); memory mapped with `MAP_DROPPABLE`
    /// loses its contents, as it was meant to.
    PageOut,
    /// Makes the pages the first candidates for reclaim (`MADV_COLD`, Linux
    /// 5.4).
    Cold,
    /// Punches a hole into shared memory or a file (`MADV_REMOVE`): the data
    /// is gone for everybody who maps it. The freeing is serial inside the
    /// kernel for one file, so more threads do not help.
    Punch,
}

/// The advice values of madvise(2), as numbers the kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Advice {
    DontNeed = 4,
    Free = 8,
    Remove = 9,
    NoHugePage = 15,
    Cold = 20,
    PageOut = 21,
    PopulateWrite = 23,
    DontNeedLocked = 24,
}

impl Operation {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::Punch as usize + 1;

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    pub(crate) fn advice(self) -> Advice {
        match self {
            Self::Discard | Self::Unmap => Advice::DontNeed,
            Self::DiscardLocked => Advice::DontNeedLocked,
            Self::LazyFree => Advice::Free,
            Self::PageOut => Advice::PageOut,
            Self::Cold => Advice::Cold,
            Self::Punch => Advice::Remove,
        }
    }

    /// Whether memory is free when the kernel has answered.
    pub(crate) fn frees(self) -> bool {
        matches!(
            self,
            Self::Discard | Self::DiscardLocked | Self::Unmap | Self::Punch
        )
    }

    /// Why a mapping does not take this operation; `None` if it does.
    ///
    /// The table stands in docs/kernel.md. Locks and seals are not visible
    /// cheaply, so those are found out by the kernel's answer.
    pub(crate) fn refuses(self, mapping: &Mapping) -> Option<&'static str> {
        match (self, mapping.kind) {
            // The kernel would discard the vDSO if asked; nobody means that.
            (_, Kind::Special) => Some("memory of the kernel's own (vdso, vvar, device)"),
            (Self::LazyFree, Kind::PrivateFile | Kind::Shared) => {
                Some("only private anonymous memory can be freed lazily")
            }
            (Self::LazyFree | Self::PageOut | Self::Cold, Kind::HugeTlb) => {
                Some("huge-page file systems take neither lazy freeing nor reclaim hints")
            }
            (Self::Punch, Kind::Anonymous | Kind::Stack | Kind::Heap) => {
                Some("only shared memory and files can be punched")
            }
            (Self::Punch, Kind::PrivateFile) => Some("a private mapping cannot punch its file"),
            _ => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discard => "discard",
            Self::DiscardLocked => "discard (locked memory included)",
            Self::Unmap => "unmap",
            Self::LazyFree => "lazy free",
            Self::PageOut => "page out",
            Self::Cold => "cold hint",
            Self::Punch => "punch",
        })
    }
}
