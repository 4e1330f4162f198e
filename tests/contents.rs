//! No byte outside the handed ranges changes, and inside them the contents are
//! what each kind of mapping promises: random ranges over random mappings, on
//! the running kernel.

mod support;

use std::{
    fs::File,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
};

use mmzap::{Operation, Reason, Teardown};
use proptest::prelude::*;
use support::{memory::*, sys};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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

const KINDS: [Kind; 15] = [
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
fn kinds() -> Vec<Kind> {
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
    fn is_shared(self) -> bool {
        matches!(
            self,
            Self::SharedFile
                | Self::SharedMemfd
                | Self::SharedReadOnlyMemfd
                | Self::LockedSharedMemfd
                | Self::SharedAnonymous
        )
    }

    fn is_private_file(self) -> bool {
        matches!(
            self,
            Self::PrivateFile | Self::PrivateMemfd | Self::LockedPrivateMemfd
        )
    }

    fn is_locked(self) -> bool {
        matches!(
            self,
            Self::Locked | Self::LockedPrivateMemfd | Self::LockedSharedMemfd
        )
    }
}

/// What a page holds after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// What it held before, because the operation does not take it.
    Left,
    /// What it held before, and the operation was done.
    Kept,
    Zero,
    File,
    Gone,
}

/// The table of docs/kernel.md as the operations document it.
fn after(operation: Operation, kind: Kind) -> After {
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

fn reason_fits(operation: Operation, kind: Kind, reason: Reason) -> bool {
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
struct Segment {
    kind: Kind,
    start: usize,
    len: usize,
    file: Option<File>,
}

/// Address space with everything in it, and what every page should hold.
struct Space {
    start: usize,
    len: usize,
    segments: Vec<Segment>,
}

/// What the file behind a page holds.
fn in_file(page: usize) -> [u8; PAGE] {
    pattern(page, 0xf11e)
}

/// What the page was given: private file mappings are written at every second
/// page only.
fn at_first(kind: Kind, page: usize) -> [u8; PAGE] {
    match kind {
        k if k.is_private_file() && (page / PAGE).is_multiple_of(2) => in_file(page),
        k if k.is_shared() && k != Kind::SharedAnonymous => in_file(page),
        _ => pattern(page, 0xa110c),
    }
}

/// No byte of it is zero.
fn pattern(page: usize, salt: usize) -> [u8; PAGE] {
    let word = (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt) | 0x0101_0101_0101_0101;
    let mut bytes = [0; PAGE];
    let (words, _) = bytes.as_chunks_mut::<8>();
    words.fill(word.to_le_bytes());
    bytes
}

impl Space {
    fn build(parts: &[(Kind, usize)]) -> Self {
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

    fn kind_at(&self, addr: usize) -> Kind {
        let segment = self.segments.iter().find(|s| addr < s.start + s.len);
        segment.expect("an address of the space").kind
    }
}

impl Segment {
    fn map(kind: Kind, start: usize, len: usize) -> Self {
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

    fn pages(&self) -> impl Iterator<Item = usize> + use<> {
        (self.start..self.start + self.len).step_by(PAGE)
    }

    /// Checks every byte; `touched` tells which pages were handed in whole.
    fn check(&self, operation: Operation, touched: &dyn Fn(usize) -> bool) -> Result<(), String> {
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

    fn check_file(
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

const OPERATIONS: [Operation; 6] = [
    Operation::Discard,
    Operation::DiscardLocked,
    Operation::Unmap,
    Operation::Cold,
    Operation::PageOut,
    Operation::Punch,
];

#[derive(Clone, Debug)]
struct Case {
    parts: Vec<(Kind, usize)>,
    /// Start and length, in thousandths of the space, and what is added to
    /// the bytes of both.
    ranges: Vec<(usize, usize, usize, usize)>,
    width: usize,
    batch_bytes: Option<usize>,
}

fn cases() -> impl Strategy<Value = Case> {
    // Most spaces are small: more cases in the same time. One in eight is
    // large enough to be shared among threads.
    let scale = prop_oneof![7 => Just(1usize), 1 => Just(120usize)];
    let parts = (
        prop::collection::vec((prop::sample::select(kinds()), 1usize..10), 1..12),
        scale,
    )
        .prop_map(|(parts, scale)| {
            parts
                .into_iter()
                .map(|(kind, pages)| {
                    // Locking is bounded for ordinary users.
                    let pages = if kind.is_locked() {
                        pages
                    } else {
                        pages * scale
                    };
                    (kind, pages * PAGE)
                })
                .collect()
        });
    let edge = prop_oneof![2 => Just(0usize), 1 => 0..PAGE];
    let range = (0usize..1000, 0usize..500, edge.clone(), edge);
    (
        parts,
        prop::collection::vec(range, 1..7),
        1usize..4,
        prop::option::of(prop::sample::select(&[PAGE, 64 << 10, 2 << 20][..])),
    )
        .prop_map(|(parts, ranges, width, batch_bytes)| Case {
            parts,
            ranges,
            width,
            batch_bytes,
        })
}

impl Case {
    /// The ranges in bytes, all inside the space.
    fn ranges(&self, space: &Space) -> Vec<(usize, usize)> {
        let pages = space.len / PAGE;
        self.ranges
            .iter()
            .map(|&(start, len, shift, more)| {
                let start = (start * pages / 1000 * PAGE + shift).min(space.len);
                let len = (len * pages / 1000 * PAGE + more).min(space.len - start);
                (space.start + start, len)
            })
            .collect()
    }
}

/// Bytes that are in at least one range.
fn union_bytes(ranges: &[(usize, usize)]) -> usize {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut end = 0;
    let mut sum = 0;
    for (start, len) in sorted {
        let from = start.max(end);
        end = end.max(start + len);
        sum += end.saturating_sub(from);
    }
    sum
}

fn check(case: &Case, operation: Operation) -> Result<(), TestCaseError> {
    let space = Space::build(&case.parts);
    let ranges = case.ranges(&space);
    let mut job = Teardown::new(operation).max_active(case.width);
    if let Some(bytes) = case.batch_bytes {
        job = job.batch_bytes(bytes);
    }
    let report = run(&mut job, &ranges);

    let touched = |page: usize| {
        ranges
            .iter()
            .any(|&(start, len)| start <= page && page + PAGE <= start + len)
    };
    for segment in &space.segments {
        segment
            .check(operation, &touched)
            .map_err(TestCaseError::fail)?;
    }
    prop_assert!(report.failures().is_empty(), "{:?}", report.failures());

    let mut skipped_pages = 0;
    for skipped in report.skipped() {
        match skipped.reason {
            Reason::Empty => prop_assert_eq!(skipped.len, 0),
            Reason::PartialPage => {
                prop_assert!(skipped.len < PAGE || !skipped.addr.is_multiple_of(PAGE))
            }
            reason => {
                for page in (skipped.addr..skipped.addr + skipped.len).step_by(PAGE) {
                    let kind = space.kind_at(page);
                    prop_assert!(touched(page), "{} was not handed in", skipped);
                    prop_assert!(
                        reason_fits(operation, kind, reason),
                        "{:?}: {}",
                        kind,
                        skipped
                    );
                }
                skipped_pages += skipped.len / PAGE;
            }
        }
    }
    // Whole pages are done exactly where the table says so. An unmap may take
    // a hole in its stride.
    let pages = (space.start..space.start + space.len).step_by(PAGE);
    let (mut left, mut holes, mut whole) = (0, 0, 0);
    for page in pages.filter(|&page| touched(page)) {
        whole += 1;
        match space.kind_at(page) {
            Kind::Hole => holes += 1,
            kind if after(operation, kind) == After::Left => left += 1,
            _ => {}
        }
    }
    let least = if operation == Operation::Unmap {
        left
    } else {
        left + holes
    };
    prop_assert!(
        (least..=left + holes).contains(&skipped_pages),
        "{} pages skipped",
        skipped_pages
    );
    prop_assert_eq!(report.bytes_done, (whole - skipped_pages) * PAGE);
    // Of partial pages in several ranges tests/bad_input.rs has the account.
    let bytes = union_bytes(&ranges);
    if bytes == ranges.iter().map(|&(_, len)| len).sum::<usize>() {
        prop_assert_eq!(accounted(&report), bytes, "{:?} over {:x?}", report, ranges);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn only_whole_pages_inside_the_ranges_change(case in cases()) {
        for operation in OPERATIONS {
            check(&case, operation)?;
        }
    }
}

#[test]
fn every_kind_alone_under_every_operation() {
    for kind in kinds() {
        for operation in OPERATIONS {
            let case = Case {
                parts: vec![(kind, 4 * PAGE)],
                ranges: vec![(250, 500, 0, 0)],
                width: 2,
                batch_bytes: None,
            };
            check(&case, operation).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        }
    }
}

#[test]
fn lazily_freed_memory_is_reclaimable_and_everything_else_is_left() {
    let parts: Vec<_> = kinds().into_iter().map(|kind| (kind, 2 * PAGE)).collect();
    let space = Space::build(&parts);
    let report = run(
        &mut Teardown::new(Operation::LazyFree),
        &[(space.start, space.len)],
    );
    let taken = [
        Kind::Anonymous,
        Kind::ReadOnly,
        Kind::NoAccess,
        Kind::Droppable,
    ];

    let kept = space.segments.iter().filter(|s| taken.contains(&s.kind));
    let bytes: usize = kept.map(|s| s.len).sum();
    assert_eq!(report.reclaimable_bytes(), bytes);
    assert_eq!(report.freed_bytes(), 0);
    assert_eq!(accounted(&report), space.len);
    for segment in space.segments.iter().filter(|s| !taken.contains(&s.kind)) {
        segment.check(Operation::Cold, &|_| false).unwrap();
    }
    // Those it took hold what they held or zero, page by page.
    for segment in space.segments.iter().filter(|s| taken.contains(&s.kind)) {
        for page in segment.pages() {
            let seen = peek(page, PAGE).expect("still mapped");
            assert!(seen == [0; PAGE] || seen == at_first(segment.kind, page));
        }
    }
}

#[test]
fn heap_memory_is_discarded_and_keeps_its_neighbours() {
    let end = sys::grow_heap(8 * PAGE).expect("a longer heap");
    let first = end.next_multiple_of(PAGE);
    fill(first, 6 * PAGE);
    let report = run(
        &mut Teardown::new(Operation::Discard),
        &[(first + PAGE + 1, 3 * PAGE)],
    );
    assert_eq!((report.bytes_done, report.bytes_skipped), (2 * PAGE, PAGE));
    for (index, page) in (first..first + 6 * PAGE).step_by(PAGE).enumerate() {
        let expected = if (2..4).contains(&index) {
            0
        } else {
            stamp(page)
        };
        assert_eq!(word(page), expected, "page {index}");
    }
}
