//! Pages of a region that know what they hold.

use mmzap::volatile::{Answer, VolatileRegion};

use crate::support::memory::*;

/// The tag that a page has in one word while it is volatile; the first page of a
/// region in its first.
pub const TAG: u64 = 0x706d_657a_6d61_707a;

pub fn region(pages: usize) -> VolatileRegion {
    VolatileRegion::new(pages * PAGE).expect("memory")
}

/// What page `index` holds in its generation `seed`, at any of its words.
pub fn content(seed: u64, index: usize) -> u64 {
    (seed << 20 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

pub fn write(page: &mut [u8], seed: u64, index: usize) {
    for chunk in page.chunks_exact_mut(8) {
        chunk.copy_from_slice(&content(seed, index).to_ne_bytes());
    }
}

pub fn holds(page: &[u8], word: u64) -> bool {
    page.chunks_exact(8)
        .all(|chunk| chunk == word.to_ne_bytes())
}

pub fn write_all(region: &VolatileRegion, seed: u64) {
    let mut all = region.pin_mut(0..region.len()).expect("nobody has it");
    for (index, page) in all.chunks_exact_mut(PAGE).enumerate() {
        write(page, seed, index);
    }
}

/// Pins everything, and holds each page to the answer about it. Answers with the
/// number of pages that were lost.
pub fn check_all(region: &VolatileRegion, seed: u64) -> usize {
    let all = region.pin(0..region.len()).expect("nobody writes");
    let lost = match all.answer() {
        Answer::Kept => Vec::new(),
        Answer::Purged(ranges) => ranges.clone(),
    };
    for (index, page) in all.chunks_exact(PAGE).enumerate() {
        let gone = lost.iter().any(|range| range.contains(&(index * PAGE)));
        let expected = if gone { 0 } else { content(seed, index) };
        assert!(
            holds(page, expected),
            "page {index}, said to be lost: {gone}"
        );
    }
    assert!(
        lost.iter()
            .all(|range| range.start % PAGE == 0 && range.end % PAGE == 0)
    );
    lost.iter().map(|range| range.len() / PAGE).sum()
}

pub fn pages(range: std::ops::Range<usize>) -> std::ops::Range<usize> {
    range.start * PAGE..range.end * PAGE
}

/// A freed page is on a list of its CPU first, where reclaim does not find it:
/// others push it off.
pub fn settle_lists() {
    let other = region(256);
    write_all(&other, 0);
}
