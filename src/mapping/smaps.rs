//! What only /proc/self/smaps tells: locks, seals, device memory.
//!
//! The kernel walks the pages of every mapping up to the one that is sought
//! (6 ms for 512 MiB), so this is read only to explain a refusal.

use std::{
    io::{BufRead as _, BufReader},
    sync::OnceLock,
};

use super::{Trait, maps::Line};
use crate::{range::PageRange, sys::procmap};

/// Every mapping that has a hidden trait, in address order; none where smaps is
/// not to be had.
pub(crate) fn hidden() -> Vec<Hidden> {
    let Ok(file) = procmap::open("smaps") else {
        return Vec::new();
    };
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    let mut current = None;
    let mut all = Vec::new();
    while let Ok(1..) = reader.read_until(b'\n', &mut text) {
        if let Some(line) = Line::parse(text.trim_ascii_end()) {
            current = Some(line.range);
        } else if let Some(flags) = text.strip_prefix(b"VmFlags:")
            && let Some(range) = current.take()
        {
            let traits = parse_flags(flags);
            if !traits.is_empty() {
                all.push(Hidden { range, traits });
            }
        }
        text.clear();
    }
    all
}

/// A mapping and what hides in it.
#[derive(Clone, Debug)]
pub(crate) struct Hidden {
    pub(crate) range: PageRange,
    pub(crate) traits: Vec<Trait>,
}

/// Looked up in smaps once, at the first question: reading it once for every
/// refused mapping would take time with their square.
#[derive(Debug, Default)]
pub(crate) struct HiddenTraits(OnceLock<Vec<Hidden>>);

impl HiddenTraits {
    /// The traits of the mapping that holds `addr`; `read` reads smaps.
    pub(crate) fn at(&self, addr: usize, read: impl FnOnce() -> Vec<Hidden>) -> &[Trait] {
        let all = self.0.get_or_init(read);
        let next = all.partition_point(|hidden| hidden.range.end() <= addr);
        match all.get(next) {
            Some(hidden) if hidden.range.start() <= addr => &hidden.traits,
            _ => &[],
        }
    }
}

fn parse_flags(flags: &[u8]) -> Vec<Trait> {
    flags
        .split(u8::is_ascii_whitespace)
        .filter_map(|flag| match flag {
            b"lo" => Some(Trait::Locked),
            b"sl" => Some(Trait::Sealed),
            b"pf" | b"io" => Some(Trait::Device),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_whole_words() {
        assert_eq!(parse_flags(b" rd wr mr mw me lo ac sd\n"), [Trait::Locked]);
        assert_eq!(parse_flags(b" rd sl pf\n"), [Trait::Sealed, Trait::Device]);
        assert_eq!(parse_flags(b" rd slo xlo\n"), []);
    }
}
