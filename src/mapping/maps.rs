//! /proc/self/maps: one line at a time, without allocation.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader},
};

use super::{Kind, Mapping};
use crate::{range::PageRange, sys};

/// What one line of maps says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) range: PageRange,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) shared: bool,
    pub(crate) inode: u64,
    pub(crate) name: &'a [u8],
}

impl<'a> Line<'a> {
    /// Parses a line without its newline; `None` if it is none of maps'.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        let (start, rest) = hex(line)?;
        let (end, rest) = hex(rest.strip_prefix(b"-")?)?;
        let rest = rest.strip_prefix(b" ")?;
        let (perms, rest) = rest.split_at_checked(4)?;
        let (_offset, rest) = hex(rest.strip_prefix(b" ")?)?;
        let mut fields = rest.strip_prefix(b" ")?.splitn(3, |&b| b == b' ');
        let _device = fields.next()?;
        let inode = fields.next()?.iter().try_fold(0u64, |n, b| match b {
            b'0'..=b'9' => n.checked_mul(10)?.checked_add(u64::from(b - b'0')),
            _ => None,
        })?;
        Some(Self {
            range: PageRange::new(start, end.checked_sub(start)?, sys::page_bytes())?,
            readable: perms[0] == b'r',
            writable: perms[1] == b'w',
            shared: perms[3] == b's',
            inode,
            name: fields.next().unwrap_or_default().trim_ascii_start(),
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        if self.name.starts_with(b"/anon_hugepage") {
            return Kind::HugeTlb;
        }
        kind(self.shared, self.inode != 0, self.name)
    }
}

/// The kind, from what both maps and PROCMAP_QUERY tell.
pub(crate) fn kind(shared: bool, file: bool, name: &[u8]) -> Kind {
    match name {
        b"[heap]" => Kind::Heap,
        b"[stack]" => Kind::Stack,
        _ if name.starts_with(b"[v") || name == b"[uprobes]" => Kind::Special,
        _ if shared => Kind::Shared,
        _ if file => Kind::PrivateFile,
        _ => Kind::Anonymous,
    }
}

fn hex(text: &[u8]) -> Option<(usize, &[u8])> {
    let digits = text.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let (number, rest) = text.split_at(digits);
    let value = number.iter().try_fold(0usize, |value, &b| {
        let digit = (b as char).to_digit(16)? as usize;
        value.checked_mul(16)?.checked_add(digit)
    })?;
    (digits > 0).then_some((value, rest))
}

/// All mappings of an open maps file, in address order.
pub(crate) fn snapshot(file: File) -> io::Result<Vec<Mapping>> {
    let huge_bytes = sys::probe::hugetlb_page_bytes();
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut text = Vec::with_capacity(256);
    let mut all = Vec::new();
    while reader.read_until(b'\n', &mut text)? > 0 {
        if let Some(line) = Line::parse(text.trim_ascii_end()) {
            let kind = line.kind();
            all.push(Mapping {
                range: line.range,
                kind,
                page_bytes: match kind {
                    Kind::HugeTlb => huge_bytes,
                    _ => sys::page_bytes(),
                },
                writable: line.writable,
            });
        }
        text.clear();
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_every_kind() {
        let cases: [(&[u8], Kind, bool); 9] = [
            (b"7f00-7f10 rw-p 00000000 00:00 0 ", Kind::Anonymous, true),
            (
                b"7f0000-7f1000 rw-p 00000000 00:00 0 ",
                Kind::Anonymous,
                true,
            ),
            (
                b"7f0000-7f1000 r--p 00001000 fe:00 12345   /usr/lib/a b.so",
                Kind::PrivateFile,
                false,
            ),
            (
                b"7f0000-7f1000 rw-s 00000000 00:01 77    /memfd:x (deleted)",
                Kind::Shared,
                true,
            ),
            (
                b"7f0000-7f1000 rw-s 00000000 00:01 77    /dev/zero (deleted)",
                Kind::Shared,
                true,
            ),
            (
                b"7f0000-7f1000 rw-p 00000000 00:0f 9    /anon_hugepage (deleted)",
                Kind::HugeTlb,
                true,
            ),
            (
                b"7f0000-7f1000 r-xp 00000000 00:00 0    [vdso]",
                Kind::Special,
                false,
            ),
            (
                b"7f0000-7f1000 rw-p 00000000 00:00 0    [heap]",
                Kind::Heap,
                true,
            ),
            (
                b"7f0000-7f1000 rw-p 00000000 00:00 0    [anon:arena]",
                Kind::Anonymous,
                true,
            ),
        ];
        assert!(Line::parse(cases[0].0).is_none(), "not cut to pages");
        for (text, kind, writable) in &cases[1..] {
            let line = Line::parse(text).expect("a line of maps");
            assert_eq!((line.kind(), line.writable), (*kind, *writable));
            assert_eq!(
                (line.range.start(), line.range.end()),
                (0x7f_0000, 0x7f_1000)
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = Line::parse(&bytes);
        }

        #[test]
        fn no_damage_to_a_line_makes_it_panic(at in 0usize..60, byte in any::<u8>()) {
            let mut line = *b"7f0000-7f1000 rw-p 00000000 fe:00 18446744073709551615  /x y";
            line[at.min(line.len() - 1)] = byte;
            let _ = Line::parse(&line);
        }
    }
}
