//! Memory nodes: how many there are, and what lies where.

use std::{fs, ptr};

use super::{
    Once,
    affinity::{Cpus, ranges},
    page_bytes,
};
use crate::range::PageRange;

/// Pages of a batch that are asked about: enough for a majority, at 0.2 µs each.
const SAMPLES: usize = 5;

/// The highest node in use and one more; 1 where the system does not tell.
pub(crate) fn count() -> usize {
    static NODES: Once = Once::new();
    NODES.get(|| {
        fs::read_to_string("/sys/devices/system/node/has_memory")
            .ok()
            .and_then(|list| ranges(&list).map(|range| *range.end()).max())
            .map_or(1, |highest| highest.saturating_add(1).clamp(1, NODES_MAX))
    })
}

/// The kernel's own limit (`CONFIG_NODES_SHIFT` of 10).
const NODES_MAX: usize = 1024;

/// The node of most of a few pages spread over `ranges`, and over each of them
/// if they are few.
pub(crate) fn of(ranges: &[PageRange]) -> Option<usize> {
    let page = page_bytes();
    let last = ranges.len().checked_sub(1)?;
    let pages: [usize; SAMPLES] = std::array::from_fn(|sample| {
        let range = ranges[last * sample / (SAMPLES - 1)];
        let offset = range.len() / SAMPLES * sample;
        range.start() + offset / page * page
    });
    let mut status = [-1_i32; SAMPLES];
    // SAFETY: both arrays have as many elements as are announced; without
    // target nodes the call only reports, page by page, and moves nothing.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            SAMPLES,
            pages.as_ptr(),
            ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    };
    (rc == 0).then(|| majority(&status)).flatten()
}

/// What occurs most often, negative answers (no page there) aside.
fn majority(status: &[i32]) -> Option<usize> {
    let times = |node: i32| status.iter().filter(|other| **other == node).count();
    let node = status
        .iter()
        .copied()
        .filter(|node| *node >= 0)
        .max_by_key(|node| times(*node))?;
    usize::try_from(node).ok()
}

/// The node of the CPU on which this thread runs at the moment.
pub(crate) fn here() -> usize {
    let mut node = 0_u32;
    // SAFETY: the kernel writes one u32; the other pointers may be null.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_getcpu,
            ptr::null_mut::<u32>(),
            &raw mut node,
            ptr::null_mut::<u8>(),
        )
    };
    if rc == 0 { node as usize } else { 0 }
}

/// Binds this thread to those CPUs of a node that it may use; where there are
/// none, to all that it may use.
pub(crate) fn stay_on(node: usize, allowed: &Cpus) {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let own = fs::read_to_string(path)
        .ok()
        .and_then(|list| Cpus::listed(&list).and(allowed));
    // A refusal leaves the thread where it is allowed to be.
    let _ = own.as_ref().unwrap_or(allowed).bind();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_decides_and_missing_pages_do_not_count() {
        assert_eq!(majority(&[1, 0, 1, -2, -14]), Some(1));
        assert_eq!(majority(&[-2, -2, -2, 3, -2]), Some(3));
        assert_eq!(majority(&[-2, -14]), None);
    }

    #[test]
    fn this_machine_answers() {
        assert!(here() < count().max(here() + 1));
        let mut map = crate::Map::options().map(1 << 20).expect("memory");
        map.fill(1);
        assert_eq!(of(&[]), None);
        let node = of(&[map.pages()]).expect("a page has a node");
        assert!(node < count(), "{node}");
    }
}
