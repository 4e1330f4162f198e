//! Address space with every kind of mapping in it, and what each page is to hold.

use std::{
    fs::File,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
};

use mmzap::{Operation, Reason};

use crate::support::{memory::*, sys};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Anonymous,
    ReadOnly,
    NoAccess,
    Droppable,
    Locked,
    Sealed,
    PrivateFile,
    PrivateMemfd,
    LockedPrivateMemfd,
    SharedFile,
    SharedMemfd,
    SharedReadOnlyMemfd,
    LockedSharedMemfd,
    SharedAnonymous,
    Hole,
}

pub const KINDS: [Kind; 15] = [
    Kind::Anonymous,
    Kind::ReadOnly,
    Kind::NoAccess,
    Kind::Droppable,
    Kind::Locked,
    Kind::Sealed,
    Kind::PrivateFile,
    Kind::PrivateMemfd,
    Kind::LockedPrivateMemfd,
    Kind::SharedFile,
    Kind::SharedMemfd,
    Kind::SharedReadOnlyMemfd,
    Kind::LockedSharedMemfd,
    Kind::SharedAnonymous,
    Kind::Hole,
];

/// Those that this kernel has.
pub fn kinds() -> Vec<Kind> {
    let protection = sys::PROT_READ | sys::PROT_WRITE;
    let made = |flags| sys::map(None, PAGE, protection, flags | sys::MAP_ANONYMOUS, None, 0);
    let droppable = made(sys::MAP_DROPPABLE).is_ok();
    let seals = made(sys::MAP_PRIVATE).is_ok_and(|page| sys::seal(page, PAGE).is_ok());
    let there = |kind: &Kind| match kind {
        Kind::Droppable => droppable,
        Kind::Sealed => seals,
        _ => true,
    };
    KINDS.into_iter().filter(there).collect()
}

impl Kind {
    pub fn is_shared(self) -> bool {
        matches!(
            self,
            Self::SharedFile
                | Self::SharedMemfd
                | Self::SharedReadOnlyMemfd
                | Self::LockedSharedMemfd
                | Self::SharedAnonymous
        )
    }

    pub fn is_private_file(self) -> bool {
        matches!(
            self,
            Self::PrivateFile | Self::PrivateMemfd | Self::LockedPrivateMemfd
        )
    }

    pub fn is_locked(self) -> bool {
        matches!(
            self,
            Self::Locked | Self::LockedPrivateMemfd | Self::LockedSharedMemfd
        )
    }
}

/// What a page holds after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// What it held before, because the operation does not take it.
    Left,
    /// What it held before, and the operation was done.
    Kept,
    Zero,
    File,
    Gone,
}

/// The table of docs/kernel.md as the operations document it.
pub fn after(operation: Operation, kind: Kind) -> After {
    use Operation as Op;
    if kind == Kind::Hole {
        return After::Gone;
    }
    match operation {
        Op::Unmap if kind == Kind::Sealed => After::Left,
        Op::Unmap => After::Gone,
        Op::Punch if kind.is_shared() => match kind {
            Kind::LockedSharedMemfd | Kind::SharedReadOnlyMemfd => After::Left,
            _ => After::Zero,
        },
        Op::Punch => After::Left,
        Op::Cold | Op::PageOut if kind.is_locked() => After::Left,
        Op::Cold | Op::PageOut => After::Kept,
        _ if kind == Kind::Sealed => After::Left,
        Op::Discard if kind.is_locked() => After::Left,
        _ if kind.is_shared() => After::Kept,
        _ if kind.is_private_file() => After::File,
        _ => After::Zero,
    }
}

pub fn reason_fits(operation: Operation, kind: Kind, reason: Reason) -> bool {
    match reason {
        Reason::Unmapped => kind == Kind::Hole,
        Reason::Locked => kind.is_locked(),
        Reason::Sealed => kind == Kind::Sealed,
        Reason::ReadOnlyFile => operation == Operation::Punch && kind == Kind::SharedReadOnlyMemfd,
        Reason::Kind(_) => operation == Operation::Punch && !kind.is_shared(),
        _ => false,
    }
}

/// A stretch of pages of one kind.
pub struct Segment {
    pub kind: Kind,
    pub start: usize,
    pub len: usize,
    pub file: Option<File>,
}

/// Address space with everything in it, and what every page should hold.
pub struct Space {
    pub start: usize,
    pub len: usize,
    pub segments: Vec<Segment>,
}

/// What the file behind a page holds.
pub fn in_file(page: usize) -> [u8; PAGE] {
    pattern(page, 0xf11e)
}

/// What the page was given: private file mappings are written at every second
/// page only.
pub fn at_first(kind: Kind, page: usize) -> [u8; PAGE] {
    match kind {
        k if k.is_private_file() && (page / PAGE).is_multiple_of(2) => in_file(page),
        k if k.is_shared() && k != Kind::SharedAnonymous => in_file(page),
        _ => pattern(page, 0xa110c),
    }
}

/// No byte of it is zero.
pub fn pattern(page: usize, salt: usize) -> [u8; PAGE] {
    let word = (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt) | 0x0101_0101_0101_0101;
    let mut bytes = [0; PAGE];
    let (words, _) = bytes.as_chunks_mut::<8>();
    words.fill(word.to_le_bytes());
    bytes
}

impl Space {
    pub fn build(parts: &[(Kind, usize)]) -> Self {
        let len = parts.iter().map(|&(_, len)| len).sum();
        let start = fresh_addresses(len);
        let mut segments = Vec::new();
        let mut at = start;
        for &(kind, len) in parts {
            segments.push(Segment::map(kind, at, len));
            at += len;
        }
        Self {
            start,
            len,
            segments,
        }
    }

    pub fn kind_at(&self, addr: usize) -> Kind {
        let segment = self.segments.iter().find(|s| addr < s.start + s.len);
        segment.expect("an address of the space").kind
    }
}

impl Segment {
    pub fn map(kind: Kind, start: usize, len: usize) -> Self {
        let mut segment = Self {
            kind,
            start,
            len,
            file: None,
        };
        let mut flags = match kind {
            Kind::Hole => return segment,
            Kind::Droppable => sys::MAP_DROPPABLE,
            kind if kind.is_shared() => sys::MAP_SHARED,
            _ => sys::MAP_PRIVATE,
        };
        let file = match kind {
            Kind::PrivateFile | Kind::SharedFile => {
                Some(tempfile::tempfile().expect("a temporary file"))
            }
            kind if kind.is_private_file() || kind.is_shared() => {
                (kind != Kind::SharedAnonymous).then(|| sys::memfd(0).expect("a memfd"))
            }
            _ => None,
        };
        match &file {
            Some(file) => {
                for (index, page) in segment.pages().enumerate() {
                    file.write_all_at(&in_file(page), (index * PAGE) as u64)
                        .expect("room for a file");
                }
            }
            None => flags |= sys::MAP_ANONYMOUS,
        }
        let read_only = kind == Kind::SharedReadOnlyMemfd;
        let mapped = match &file {
            Some(file) if read_only => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                Some(File::open(path).expect("the memfd again"))
            }
            Some(file) => Some(file.try_clone().expect("the file again")),
            None => None,
        };
        let protection = if read_only {
            sys::PROT_READ
        } else {
            sys::PROT_READ | sys::PROT_WRITE
        };
        sys::map(Some(start), len, protection, flags, mapped.as_ref(), 0).expect("a mapping");
        // Where all memory is of huge pages, a page in the middle is a part of
        // one: tests/folios.rs has those. A kernel without them refuses.
        let _ = sys::hint(start, len, sys::NO_HUGE_PAGES);
        for page in segment.pages() {
            let bytes = at_first(kind, page);
            if bytes != in_file(page) {
                // SAFETY: a whole page of the mapping that was just made; no
                // reference to it exists.
                unsafe { (page as *mut [u8; PAGE]).write_volatile(bytes) };
            }
        }
        match kind {
            Kind::ReadOnly => sys::protect(start, len, sys::PROT_READ),
            Kind::NoAccess => sys::protect(start, len, sys::PROT_NONE),
            Kind::Sealed => {
                sys::protect(start, len, sys::PROT_READ).and_then(|()| sys::seal(start, len))
            }
            kind if kind.is_locked() => sys::lock(start, len),
            _ => Ok(()),
        }
        .expect("the mapping made what it is");
        segment.file = file;
        segment
    }

    pub fn pages(&self) -> impl Iterator<Item = usize> + use<> {
        (self.start..self.start + self.len).step_by(PAGE)
    }

    /// Checks every byte; `touched` tells which pages were handed in whole.
    pub fn check(
        &self,
        operation: Operation,
        touched: &dyn Fn(usize) -> bool,
    ) -> Result<(), String> {
        for page in self.pages() {
            let then = at_first(self.kind, page);
            let expected = match after(operation, self.kind) {
                After::Gone if self.kind == Kind::Hole || touched(page) => None,
                After::Zero if touched(page) => Some([0; PAGE]),
                After::File if touched(page) => Some(in_file(page)),
                _ => Some(then),
            };
            let seen = peek(page, PAGE).ok();
            // What the kernel takes back of droppable memory reads zero.
            let dropped = self.kind == Kind::Droppable && operation == Operation::PageOut;
            if dropped && touched(page) && seen.as_deref() == Some(&[0; PAGE]) {
                continue;
            }
            if seen.as_deref() != expected.as_ref().map(<[u8; PAGE]>::as_slice) {
                let first = |bytes: Option<&[u8]>| bytes.map(|bytes| bytes[..8].to_vec());
                return Err(format!(
                    "{:?} after {operation}: page {page:#x} (handed in: {}) begins with {:x?}, not {:x?}",
                    self.kind,
                    touched(page),
                    first(seen.as_deref()),
                    first(expected.as_ref().map(|bytes| bytes.as_slice())),
                ));
            }
        }
        self.check_file(operation, touched)
    }

    pub fn check_file(
        &self,
        operation: Operation,
        touched: &dyn Fn(usize) -> bool,
    ) -> Result<(), String> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let punched = operation == Operation::Punch && after(operation, self.kind) == After::Zero;
        for (index, page) in self.pages().enumerate() {
            let mut seen = [0; PAGE];
            file.read_exact_at(&mut seen, (index * PAGE) as u64)
                .map_err(|error| error.to_string())?;
            let expected = if punched && touched(page) {
                [0; PAGE]
            } else {
                in_file(page)
            };
            if seen != expected {
                return Err(format!(
                    "{:?} after {operation}: the file changed at page {index}",
                    self.kind
                ));
            }
        }
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Sealed memory stays for good.
        let _ = sys::unmap(self.start, self.len);
    }
}
