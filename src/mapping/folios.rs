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
    /// Whether `huge` is all there is around the edges.
    all_huge_known: bool,
}

/// Edges closer to each other than this are looked at in one call: walking over
/// small pages between them costs less than a call for each.
const NEAR_BYTES: usize = 4 << 20;

impl Folios {
    /// Looks at the memory around the edges of `ranges`, which are in address
    /// order; `None` if no edge can fall into a folio.
    pub(crate) fn around(ranges: &[PageRange]) -> Option<Self> {
        let whole = |range: &PageRange| (range.start() | range.end()).is_multiple_of(HUGE_BYTES);
        if ranges.iter().all(whole) {
            return None; // whole folios of any size
        }
        let sizes = folio_sizes::recent();
        let mut edges = ranges
            .iter()
            .flat_map(|range| [range.start(), range.end()])
            .filter(|edge| sizes.can_cross(*edge))
            .peekable();
        edges.peek()?;
        let mut folios = Self {
            sizes,
            pagemap: Pagemap::open().ok(),
            huge: Vec::new(),
            all_huge_known: true,
        };
        if sizes.huge {
            folios.all_huge_known = folios.find_huge(edges).is_some();
        }
        if sizes.largest_small_bytes > 0 || !folios.all_huge_known {
            folios.pagemap = folios.pagemap.map(Pagemap::with_flags);
        }
        Some(folios)
    }

    /// Finds the huge pages that hold one of `edges`.
    fn find_huge(&mut self, edges: impl Iterator<Item = usize>) -> Option<()> {
        let mut near: Option<PageRange> = None;
        for edge in edges.filter(|edge| !edge.is_multiple_of(HUGE_BYTES)) {
            let block = aligned(edge, HUGE_BYTES)?;
            near = match near {
                Some(before) if block.start() <= before.end().saturating_add(NEAR_BYTES) => {
                    PageRange::between(before.start(), block.end().max(before.end()))
                }
                before => {
                    self.find_huge_in(before)?;
                    Some(block)
                }
            };
        }
        self.find_huge_in(near)
    }

    fn find_huge_in(&mut self, near: Option<PageRange>) -> Option<()> {
        let Some(near) = near else {
            return Some(());
        };
        let huge = &mut self.huge;
        let mut room = true;
        self.pagemap
            .as_ref()?
            .scan(near, true, |part| {
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
        let frames = self.pagemap.as_ref().filter(|map| map.knows_frames());
        let folio = if self.is_huge(edge, inside) {
            aligned(inside, HUGE_BYTES)
        } else if !self.sizes.can_cross(edge) {
            None
        } else if let Some(frames) = frames {
            frames.folio_at(inside)
        } else if self.sizes.huge && !self.all_huge_known {
            aligned(inside, HUGE_BYTES)
        } else {
            let small = self.sizes.largest_small_bytes;
            (small > 0).then(|| aligned(inside, small)).flatten()
        };
        folio.filter(|folio| folio.start() < edge && edge < folio.end())
    }

    /// Whether `inside` is known to be in a huge page that `edge` cuts.
    fn is_huge(&self, edge: usize, inside: usize) -> bool {
        let at = self.huge.partition_point(|part| part.end() <= inside);
        let found = self.huge.get(at).is_some_and(|part| part.start() <= inside);
        found && !edge.is_multiple_of(HUGE_BYTES)
    }
}

impl FolioSizes {
    /// Whether an edge there can be in the middle of a folio.
    fn can_cross(self, edge: usize) -> bool {
        let small = self.largest_small_bytes;
        (self.huge && !edge.is_multiple_of(HUGE_BYTES))
            || (small > 0 && !edge.is_multiple_of(small))
    }
}

fn aligned(addr: usize, bytes: usize) -> Option<PageRange> {
    let start = addr & !(bytes - 1);
    PageRange::between(start, start.checked_add(bytes)?)
}
