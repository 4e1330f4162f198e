//! From what the caller says to whole pages.

use crate::{
    range::{BadRange, PageRange},
    report::{Reason, Report},
    sys,
};

/// Cuts bytes inward to pages of this system; says what falls off.
pub(super) fn cut(addr: usize, len: usize, report: &mut Report) -> Option<PageRange> {
    let problems = &mut report.problems;
    let cut = match PageRange::inward(addr, len, sys::page_bytes()) {
        Ok(cut) => cut,
        Err(bad) => {
            let reason = match bad {
                BadRange::Empty => Reason::Empty,
                BadRange::Wraps => Reason::Wraps,
            };
            problems.skip(addr, len, reason);
            return None;
        }
    };
    let end = addr + len;
    if end > sys::USER_SPACE_END {
        problems.skip(addr, len, Reason::BeyondUserSpace);
        return None;
    }
    for (at, bytes) in [
        (addr, cut.head_bytes),
        (end - cut.tail_bytes, cut.tail_bytes),
    ] {
        if bytes > 0 {
            problems.skip(at, bytes, Reason::PartialPage);
        }
    }
    cut.pages
}
