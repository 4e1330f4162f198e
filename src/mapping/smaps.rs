//! What only /proc/self/smaps tells: locks, seals, device memory.
//!
//! The kernel walks the pages of every mapping up to the one that is sought
//! (6 ms for 512 MiB), so this is read only to explain a refusal.

use std::io::{BufRead as _, BufReader};

use super::{Trait, maps::Line};
use crate::sys::procmap;

/// The traits of the mapping that holds `addr`; none where smaps is not to be
/// had.
pub(crate) fn traits_at(addr: usize) -> Vec<Trait> {
    let Ok(file) = procmap::open("smaps") else {
        return Vec::new();
    };
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    let mut inside = false;
    while let Ok(1..) = reader.read_until(b'\n', &mut text) {
        if let Some(line) = Line::parse(text.trim_ascii_end()) {
            inside = line.range.start() <= addr && addr < line.range.end();
        } else if inside && let Some(flags) = text.strip_prefix(b"VmFlags:") {
            return parse_flags(flags);
        }
        text.clear();
    }
    Vec::new()
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
