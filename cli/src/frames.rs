//! Proof of the size of folios: which page frames stand behind memory of this
//! process, and whether the kernel keeps them as one. Root only.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};

use crate::unavailable::Unavailable;
use crate::{size, sys};

/// Bits of an entry in /proc/self/pagemap.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Bits of an entry in /proc/kpageflags.
const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;
const HUGETLB: u64 = 1 << 17;

/// Folios that are looked at, spread evenly: with 64 of them a share of 5 % that
/// differs goes unnoticed in one of 26 samples, and each sample looks again.
const LOOKED_AT: usize = 64;

/// Fails unless memory at `start`, a multiple of `folio`, is made of folios of
/// `folio` bytes: one of a hundred may differ.
pub fn verify(start: usize, len: usize, folio: usize) -> Result<()> {
    let open = |path: &str| File::open(path).with_context(|| format!("cannot open {path}"));
    let pagemap = open("/proc/self/pagemap")?;
    let flags = open("/proc/kpageflags")?;
    let folios = len / folio;
    let step = (folios / LOOKED_AT).max(1);
    let (mut seen, mut right) = (0, 0);
    for index in (0..folios).step_by(step) {
        seen += 1;
        if is_folio(&pagemap, &flags, start + index * folio, folio)? {
            right += 1;
        }
    }
    if seen == 0 || right * 100 < seen * 99 {
        return Err(Unavailable::because(format!(
            "only {right} of {seen} places that were looked at are folios of {}: \
             free memory is too fragmented, or the kernel gives other sizes",
            size::show(folio as u64)
        )));
    }
    Ok(())
}

/// Whether one folio of exactly that size begins at `address`.
fn is_folio(pagemap: &File, flags: &File, address: usize, folio: usize) -> Result<bool> {
    let page = sys::page_size();
    let pages = folio / page;
    let entries = read(pagemap, address / page, pages).context("cannot read /proc/self/pagemap")?;
    let first = entries.first().copied().unwrap_or(0) & FRAME;
    if entries.iter().any(|entry| entry & PRESENT == 0) {
        return Ok(false);
    }
    if first == 0 {
        return Err(Unavailable::because(
            "/proc/self/pagemap hides page frames: CAP_SYS_ADMIN is needed to see folios",
        ));
    }
    let in_order = |(index, entry): (usize, &u64)| entry & FRAME == first + index as u64;
    // One frame more: a tail behind the last means that the folio is larger. The
    // end of memory has none.
    let kinds =
        read(flags, usize::try_from(first)?, pages + 1).context("cannot read /proc/kpageflags")?;
    if kinds.len() < pages {
        bail!("/proc/kpageflags ends before the frames of this process");
    }
    Ok(entries.iter().enumerate().all(in_order) && is_whole(&kinds, pages))
}

/// Whether flags begin with those of one folio of `pages` pages that ends there.
fn is_whole(kinds: &[u64], pages: usize) -> bool {
    let head = if pages > 1 { COMPOUND_HEAD } else { 0 };
    kinds.iter().enumerate().all(|(index, kind)| {
        let found = kind & (COMPOUND_HEAD | COMPOUND_TAIL);
        match index {
            _ if index == pages => found != COMPOUND_TAIL,
            0 => found == head && kind & HUGETLB == 0,
            _ => found == COMPOUND_TAIL && kind & HUGETLB == 0,
        }
    })
}

/// Entries of eight bytes from `first` on; fewer at the end of the file.
fn read(file: &File, first: usize, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], (first * 8 + filled) as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes[..filled]
        .chunks_exact(8)
        .map(|entry| u64::from_ne_bytes(entry.try_into().unwrap_or_default()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folio_is_a_head_and_its_tails() {
        const H: u64 = COMPOUND_HEAD | 1 << 22;
        const T: u64 = COMPOUND_TAIL | 1 << 22;
        assert!(is_whole(&[0, 0], 1));
        assert!(is_whole(&[0], 1));
        assert!(is_whole(&[0, H], 1));
        assert!(!is_whole(&[H, T], 1));
        assert!(is_whole(&[H, T, T, T, H], 4));
        assert!(is_whole(&[H, T, T, T], 4));
        assert!(!is_whole(&[H, T, T, T, T], 4), "larger");
        assert!(!is_whole(&[H, T, H, T, H], 4), "smaller");
        assert!(!is_whole(&[T, T, T, T, H], 4), "in the middle of a larger");
        assert!(!is_whole(&[0, 0, 0, 0, 0], 4), "single pages");
        assert!(!is_whole(&[H | HUGETLB, T, T, T, H], 4));
    }
}
