//! What folios a range is made of.

use std::io;

use crate::{
    range::PageRange,
    sys::{
        folio_sizes::{self, FolioSizes, HUGE_BYTES},
        pagemap::Pagemap,
    },
};

/// What is behind a range of addresses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FolioMix {
    /// Nothing.
    pub empty_bytes: usize,
    /// Pages mapped one by one, in memory or swapped out. They may belong to
    /// folios of up to 1 MiB.
    pub small_bytes: usize,
    /// Huge pages mapped as such.
    pub huge_bytes: usize,
}

/// Tells empty space, small pages and huge pages of this process apart
/// (PAGEMAP_SCAN, Linux 6.7; 2 µs for each MiB of small pages, nothing to
/// speak of for the others).
///
/// ```
/// # use mmzap::{Map, PageRange, mapping};
/// let mut map = Map::options().huge_pages(false).map(1 << 20)?;
/// map[0] = 1;
/// let range = PageRange::new(map.as_ptr().addr(), 1 << 20, 4096).unwrap();
/// let mix = mapping::folio_mix(range)?;
/// assert_eq!((mix.small_bytes, mix.huge_bytes), (4096, 0));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Without /proc, or the errno of the call: `ENOTTY` before Linux 6.7.
pub fn folio_mix(range: PageRange) -> io::Result<FolioMix> {
    let mut mix = FolioMix::default();
    Pagemap::open()?
        .scan(range, false, |part| {
            if part.huge {
                mix.huge_bytes += part.range.len();
            } else {
                mix.small_bytes += part.range.len();
            }
        })
        .map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
    mix.empty_bytes = range.len() - mix.small_bytes - mix.huge_bytes;
    Ok(mix)
}

/// The folios into which edges of some ranges may fall.
pub(crate) struct Folios {
    sizes: FolioSizes,
    pagemap: Option<Pagemap>,
    /// Huge pages, in address order, those side by side as one.
    huge: Vec<PageRange>,
    /// Whether `huge` is all there is.
    all_huge_known: bool,
}

impl Folios {
    /// Looks at the memory between the first and the last of `ranges`, unless
    /// no edge can fall into a folio.
    pub(crate) fn around(ranges: &[PageRange]) -> Option<Self> {
        // Whole huge pages are whole folios of any size.
        if ranges
            .iter()
            .all(|range| (range.start() | range.end()).is_multiple_of(HUGE_BYTES))
        {
            return None;
        }
        let sizes = folio_sizes::recent();
        let suspect = |addr: usize| {
            (sizes.huge && !addr.is_multiple_of(HUGE_BYTES))
                || (sizes.largest_small_bytes > 0
                    && !addr.is_multiple_of(sizes.largest_small_bytes))
        };
        if !ranges
            .iter()
            .any(|range| suspect(range.start()) || suspect(range.end()))
        {
            return None;
        }
        let mut pagemap = Pagemap::open().ok();
        if sizes.largest_small_bytes > 0 {
            pagemap = pagemap.map(Pagemap::with_flags);
        }
        let mut folios = Self {
            sizes,
            pagemap,
            huge: Vec::new(),
            all_huge_known: true,
        };
        if sizes.huge
            && let (Some(first), Some(last)) = (ranges.first(), ranges.last())
        {
            let start = first.start() & !(HUGE_BYTES - 1);
            let end = last.end().next_multiple_of(HUGE_BYTES);
            folios.all_huge_known = folios.find_huge(PageRange::between(start, end)).is_some();
        }
        Some(folios)
    }

    fn find_huge(&mut self, hull: Option<PageRange>) -> Option<()> {
        let huge = &mut self.huge;
        let mut room = true;
        self.pagemap
            .as_ref()?
            .scan(hull?, true, |part| {
                room = room && huge.try_reserve(1).is_ok();
                if room {
                    huge.push(part.range);
                }
            })
            .ok()?;
        room.then_some(())
    }

    /// The folio that has pages on both sides of `edge`; `inside` is a page of
    /// it next to the edge. Where nobody can tell, the largest there could be.
    pub(crate) fn across(&self, edge: usize, inside: usize) -> Option<PageRange> {
        let crosses = |folio: &PageRange| folio.start() < edge && edge < folio.end();
        if self.sizes.huge && !edge.is_multiple_of(HUGE_BYTES) {
            let huge = aligned(inside, HUGE_BYTES);
            let at = self.huge.partition_point(|part| part.end() <= inside);
            let mapped = self.huge.get(at).is_some_and(|part| part.start() <= inside);
            if mapped || !self.all_huge_known {
                return huge.filter(crosses);
            }
        }
        let small = self.sizes.largest_small_bytes;
        if small == 0 || edge.is_multiple_of(small) {
            return None;
        }
        match &self.pagemap {
            Some(pagemap) if pagemap.knows_frames() => pagemap.folio_at(inside),
            _ => aligned(inside, small),
        }
        .filter(crosses)
    }
}

fn aligned(addr: usize, bytes: usize) -> Option<PageRange> {
    let start = addr & !(bytes - 1);
    PageRange::between(start, start.checked_add(bytes)?)
}
