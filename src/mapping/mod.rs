//! What is mapped where, and of what kind.
//!
//! Looked up lazily: PROCMAP_QUERY (Linux 6.11) answers for one address in
//! under a microsecond; elsewhere /proc/self/maps is read once for a job. Both
//! are a snapshot that another thread can outdate, so the kernel's answer to
//! the operation itself is what counts in the end.

pub(crate) mod folios;
mod live;
pub(crate) mod maps;
pub(crate) mod smaps;

use crate::range::PageRange;
pub use folios::{FolioMix, folio_mix};
pub(crate) use live::LiveMappings;

/// The kinds of mapping that advice treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Private memory without a file.
    Anonymous,
    /// The heap that brk(2) moves.
    Heap,
    /// The main thread's stack.
    Stack,
    /// A private mapping of a file or memfd.
    PrivateFile,
    /// Shared memory or a shared file.
    Shared,
    /// A huge-page file system (hugetlb), private or shared.
    HugeTlb,
    /// The kernel's own: vdso, vvar, vsyscall.
    Special,
}

/// One mapping (the kernel's VMA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where it lies.
    pub range: PageRange,
    /// Of what kind it is.
    pub kind: Kind,
    /// Size of the pages that the kernel maps at least, in bytes. Larger than
    /// the system's page only in a huge-page file system; transparent huge
    /// pages do not show here.
    pub page_bytes: usize,
    /// Whether it can be written.
    pub writable: bool,
}

/// What the kernel tells only in smaps: found out after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Trait {
    Locked,
    Sealed,
    Device,
}

/// The answer to "what is mapped at or after this address".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Mapping(Mapping),
    /// Nothing from there to the end of the address space.
    Nothing,
    /// There is no way to find out (no /proc).
    Unknown,
}

/// A source of mappings, in address order.
pub(crate) trait Mappings {
    /// The mapping that holds `addr`, or the first one after it.
    fn at_or_after(&mut self, addr: usize) -> Found;
}

/// A list in address order, as a snapshot or a test has it.
impl Mappings for &[Mapping] {
    fn at_or_after(&mut self, addr: usize) -> Found {
        let next = self.partition_point(|m| m.range.end() <= addr);
        self.get(next)
            .map_or(Found::Nothing, |m| Found::Mapping(m.clone()))
    }
}

/// Whether one mapping of ordinary pages holds all of `range`, and it is none
/// of the kernel's own.
pub(crate) fn is_ordinary(range: PageRange, page_bytes: usize) -> bool {
    match LiveMappings::open().at_or_after(range.start()) {
        Found::Mapping(found) => {
            found.range.contains(range)
                && found.page_bytes == page_bytes
                && found.kind != Kind::Special
        }
        Found::Nothing | Found::Unknown => false,
    }
}

/// The mappings that `addr..addr + len` meets, in address order.
///
/// Empty where nothing is mapped, and where /proc is not to be had.
///
/// ```
/// let local = 0u8;
/// let found = mmzap::mapping::of(&raw const local, 1);
/// assert_eq!(found.len(), 1);
/// ```
#[must_use]
pub fn of<T>(addr: *const T, len: usize) -> Vec<Mapping> {
    let mut live = LiveMappings::open();
    let end = addr.addr().saturating_add(len);
    let mut at = addr.addr();
    let mut all = Vec::new();
    while at < end {
        let Found::Mapping(mapping) = live.at_or_after(at) else {
            break;
        };
        if mapping.range.start() >= end {
            break;
        }
        at = mapping.range.end();
        all.push(mapping);
    }
    all
}
