//! Page ranges: the only address arithmetic in the crate.

use std::fmt;

/// A non-empty run of whole pages in this process's address space.
///
/// `start` is an address and `len` a number of bytes; both are multiples of
/// the page size that the range was cut to, and `start + len` does not wrap.
/// The memory layout is that of the kernel's `struct iovec`, so a slice of
/// ranges is a vector for process_madvise(2) without copying.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct PageRange {
    start: usize,
    len: usize,
}

/// What is left of a byte range after cutting it inward to whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The whole pages, if there is at least one.
    pub pages: Option<PageRange>,
    /// Bytes before the first whole page; the whole length if there is none.
    pub head_bytes: usize,
    /// Bytes after the last whole page.
    pub tail_bytes: usize,
}

/// Why a byte range is no range at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRange {
    /// The length is zero.
    Empty,
    /// `addr + len` does not fit in an address.
    Wraps,
}

impl PageRange {
    /// A range of exactly `start..start + len`.
    ///
    /// Returns `None` when it is empty, wraps, or is not cut to `page_bytes`.
    ///
    /// ```
    /// use mmzap::PageRange;
    /// assert!(PageRange::new(0x1000, 0x2000, 0x1000).is_some());
    /// assert!(PageRange::new(0x1001, 0x2000, 0x1000).is_none());
    /// assert!(PageRange::new(usize::MAX - 0xfff, 0x2000, 0x1000).is_none());
    /// ```
    #[must_use]
    pub fn new(start: usize, len: usize, page_bytes: usize) -> Option<Self> {
        debug_assert!(page_bytes.is_power_of_two());
        let aligned = (start | len) & (page_bytes - 1) == 0;
        (aligned && len > 0 && start.checked_add(len).is_some()).then_some(Self { start, len })
    }

    /// Cuts `addr..addr + len` **inward** to whole pages of `page_bytes`.
    ///
    /// # Errors
    /// [`BadRange`] when the bytes are none or wrap around.
    ///
    /// ```
    /// use mmzap::PageRange;
    /// let cut = PageRange::inward(0x1ff0, 0x2000, 0x1000).unwrap();
    /// assert_eq!(cut.pages, PageRange::new(0x2000, 0x1000, 0x1000));
    /// assert_eq!((cut.head_bytes, cut.tail_bytes), (0x10, 0xff0));
    /// ```
    pub fn inward(addr: usize, len: usize, page_bytes: usize) -> Result<Cut, BadRange> {
        debug_assert!(page_bytes.is_power_of_two());
        if len == 0 {
            return Err(BadRange::Empty);
        }
        let end = addr.checked_add(len).ok_or(BadRange::Wraps)?;
        let mask = page_bytes - 1;
        let first = addr.checked_add(mask).map(|a| a & !mask);
        let last = end & !mask;
        Ok(match first {
            Some(first) if first < last => Cut {
                pages: Some(Self {
                    start: first,
                    len: last - first,
                }),
                head_bytes: first - addr,
                tail_bytes: end - last,
            },
            _ => Cut {
                pages: None,
                head_bytes: len,
                tail_bytes: 0,
            },
        })
    }

    /// The first address.
    #[must_use]
    pub const fn start(self) -> usize {
        self.start
    }

    /// The address after the last byte.
    #[must_use]
    pub const fn end(self) -> usize {
        self.start + self.len
    }

    /// Length in bytes; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether every byte of `other` lies in this range.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// The bytes that both ranges hold.
    #[must_use]
    pub fn intersect(self, other: Self) -> Option<Self> {
        Self::between(self.start.max(other.start), self.end().min(other.end()))
    }

    /// One range of both, if they touch or overlap.
    #[must_use]
    pub fn merge(self, other: Self) -> Option<Self> {
        if self.start.max(other.start) > self.end().min(other.end()) {
            return None;
        }
        Self::between(self.start.min(other.start), self.end().max(other.end()))
    }

    /// Both sides of `at`; the second is `None` when `at` is at or past the
    /// end, the first when it is at or before the start.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Option<Self>, Option<Self>) {
        (
            Self::between(self.start, at.min(self.end())),
            Self::between(at.max(self.start), self.end()),
        )
    }

    /// The part that is whole pages of a larger page size (inward).
    #[must_use]
    pub fn shrink_to(self, page_bytes: usize) -> Option<Self> {
        Self::inward(self.start, self.len, page_bytes)
            .ok()
            .and_then(|cut| cut.pages)
    }

    /// The end of a first piece of about `target_bytes`, at a multiple of
    /// `boundary_bytes` wherever the range reaches one.
    ///
    /// The piece is at most `target_bytes` long, or up to the first boundary
    /// if that is farther; its length is never 0.
    #[must_use]
    pub fn cut_point(self, target_bytes: usize, boundary_bytes: usize) -> usize {
        debug_assert!(boundary_bytes.is_power_of_two());
        let mask = boundary_bytes - 1;
        let target = self.start.saturating_add(target_bytes);
        if target >= self.end() {
            return self.end();
        }
        let below = target & !mask;
        if below > self.start {
            return below;
        }
        let above = (self.start | mask).saturating_add(1);
        above.min(self.end())
    }

    pub(crate) fn between(start: usize, end: usize) -> Option<Self> {
        (start < end).then(|| Self {
            start,
            len: end - start,
        })
    }
}

impl fmt::Debug for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end())
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} ({} bytes)", self.len)
    }
}

/// Sorts `ranges` and merges those that touch or overlap, in place.
pub(crate) fn normalize(ranges: &mut Vec<PageRange>) {
    if ranges.is_sorted_by(|a, b| a.end() < b.start()) {
        return;
    }
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| match kept.merge(*next) {
        Some(both) => {
            *kept = both;
            true
        }
        None => false,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = 4096;

    fn range(start: usize, len: usize) -> PageRange {
        PageRange::new(start, len, PAGE).unwrap()
    }

    #[test]
    fn a_cut_never_reaches_past_the_bytes_handed_in() {
        assert_eq!(PageRange::inward(0, 0, PAGE), Err(BadRange::Empty));
        assert_eq!(PageRange::inward(usize::MAX, 2, PAGE), Err(BadRange::Wraps));
        let top = PageRange::inward(usize::MAX - 10, 5, PAGE).unwrap();
        assert_eq!((top.pages, top.head_bytes), (None, 5));
    }

    proptest! {
        #[test]
        fn inward_is_the_largest_range_of_whole_pages(addr in any::<usize>(), len in 1usize..1 << 40, shift in 12u32..31) {
            let page = 1usize << shift;
            let Ok(cut) = PageRange::inward(addr, len, page) else {
                prop_assert!(addr.checked_add(len).is_none());
                return Ok(());
            };
            let inside = cut.pages.map_or(0, PageRange::len);
            prop_assert_eq!(cut.head_bytes + inside + cut.tail_bytes, len);
            if let Some(pages) = cut.pages {
                prop_assert!(cut.head_bytes < page && cut.tail_bytes < page);
                prop_assert_eq!(pages.start(), addr + cut.head_bytes);
                prop_assert_eq!(pages.start() % page, 0);
                prop_assert_eq!(pages.len() % page, 0);
            }
        }

        #[test]
        fn pieces_add_up_and_end_at_boundaries(start in 0usize..1 << 20, pages in 1usize..5000, target in 1usize..64 << 20) {
            let whole = range(start * PAGE, pages * PAGE);
            let boundary = 2 << 20;
            let mut rest = Some(whole);
            let mut sum = 0;
            while let Some(now) = rest {
                let (piece, after) = now.split_at(now.cut_point(target, boundary));
                let piece = piece.expect("a piece is never empty");
                sum += piece.len();
                prop_assert!(piece.len() <= target.max(boundary));
                prop_assert!(piece.end() == whole.end() || piece.end() % boundary == 0);
                rest = after;
            }
            prop_assert_eq!(sum, whole.len());
        }

        #[test]
        fn normalized_ranges_cover_the_same_pages(pairs in prop::collection::vec((0usize..200, 1usize..20), 0..60)) {
            let mut ranges: Vec<_> = pairs.iter().map(|&(s, l)| range(s * PAGE, l * PAGE)).collect();
            let page_set = |ranges: &[PageRange]| {
                let mut pages: Vec<usize> = ranges.iter().flat_map(|r| (r.start()..r.end()).step_by(PAGE)).collect();
                pages.sort_unstable();
                pages.dedup();
                pages
            };
            let before = page_set(&ranges);
            normalize(&mut ranges);
            prop_assert_eq!(page_set(&ranges), before);
            prop_assert!(ranges.windows(2).all(|w| w[0].end() < w[1].start()));
        }
    }
}
