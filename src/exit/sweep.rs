//! What is discarded at the end, and when that is safe.

use std::{ffi::CStr, sync::atomic::Ordering, time::Duration};

use super::{
    ISLAND,
    island::Island,
    world::{number, write_number},
};
use crate::{
    gather::BOUNDARY_BYTES,
    mapping::{Kind, maps::Line},
    operation::Advice,
    pace::{BATCH_BYTES_MAX, FIRST_BYTES},
    range::PageRange,
    sys::{
        ENOENT, futex,
        stop::{self, Raw},
    },
};

/// Mappings smaller than this are left to the kernel: a call each would cost
/// as much as their pages.
const LARGE_BYTES: usize = 1 << 20;

/// How much stays around a stack pointer, a thread's local storage and our
/// statics, where they lie in a mapping larger than [`STACK_BYTES_MAX`]. The
/// last steps use a few KiB of stack.
const KEEP_BYTES: usize = 256 << 10;

/// A mapping up to this size that holds a stack or thread-local storage is
/// taken for a thread's stack and stays whole. A larger one was merged by the
/// kernel with a stack beside it, and only the stack's part stays.
const STACK_BYTES_MAX: usize = 64 << 20;

/// Pieces for each worker: none waits for a last straggler.
const PIECES_PER_WORKER: usize = 32;

/// If no piece is done for this long, something holds the kernel up that we
/// cannot see (an unread userfaultfd of another process): leave.
const STUCK: Duration = Duration::from_secs(2);

/// Whether the kernel itself may still use this process's memory: an io_uring
/// and a vhost device read and write buffers on their own, and a userfaultfd
/// can keep a discard waiting for an answer from a thread that is stopped. What
/// a device reaches by DMA is pinned and keeps its contents, except where it
/// follows page tables, as RDMA can.
pub(super) fn is_safe(island: &Island) -> bool {
    // A /proc of another PID namespace numbers our threads differently.
    let mut target = [0u8; 16];
    let proc_pid = stop::read_link(c"/proc/self", &mut target)
        .ok()
        .and_then(number);
    if proc_pid != Some(island.pid()) {
        return false;
    }
    let Ok(files) = Raw::open(c"/proc/thread-self/fd") else {
        return false;
    };
    let mut safe = true;
    // SAFETY: this is the leaving thread, and no other borrow is alive.
    let text = unsafe { island.text() };
    let listed = files.entries(text, |name| {
        safe = number(name).is_none_or(|fd| !is_hazard(fd));
        safe
    });
    listed.is_ok() && safe
}

fn is_hazard(fd: u32) -> bool {
    let mut path = *b"/proc/thread-self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    write_number(fd, &mut path[21..]);
    let mut target = [0u8; 64];
    let Ok(path) = CStr::from_bytes_until_nul(&path) else {
        return true;
    };
    match stop::read_link(path, &mut target) {
        Ok(target) => is_hazard_name(target),
        Err(ENOENT) => false, // closed meanwhile
        Err(_) => true,
    }
}

fn is_hazard_name(name: &[u8]) -> bool {
    const HAZARDS: [&[u8]; 4] = [
        b"anon_inode:[io_uring]",
        b"anon_inode:[userfaultfd]",
        b"/dev/vhost",
        b"/dev/infiniband/",
    ];
    HAZARDS.iter().any(|hazard| name.starts_with(hazard))
}

/// Whether no other process shares this memory (`CLONE_VM`, a vfork child).
///
/// kcmp(2) tells; where a sandbox refuses it, a process whose address space
/// has exactly our size is taken for one that shares it.
pub(super) fn is_alone(island: &Island) -> bool {
    let me = island.pid();
    let by_kcmp = stop::same_memory(me, me) == Ok(true);
    let my_size = address_space_pages(me);
    let Ok(processes) = Raw::open(c"/proc") else {
        return false;
    };
    let mut alone = true;
    // SAFETY: this is the leaving thread, and no other borrow is alive.
    let text = unsafe { island.text() };
    let listed = processes.entries(text, |name| {
        if let Some(pid) = number(name).filter(|&pid| pid != me) {
            alone = if by_kcmp {
                stop::same_memory(me, pid) != Ok(true)
            } else {
                address_space_pages(pid) != my_size
            };
        }
        alone
    });
    listed.is_ok() && alone
}

fn address_space_pages(pid: u32) -> Option<u32> {
    let mut path = *b"/proc/\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let digits = write_number(pid, &mut path[6..]);
    path[6 + digits..][..6].copy_from_slice(b"/statm");
    let file = Raw::open(CStr::from_bytes_until_nul(&path).ok()?).ok()?;
    let mut text = [0u8; 64];
    let read = file.read(&mut text).ok()?;
    number(text[..read].split(|&b| b == b' ').next()?)
}

/// Discards everything large, and returns when that is done or stuck.
pub(super) fn all(island: &Island) {
    keep(island);
    if collect(island).is_none() {
        return;
    }
    island.go();
    let total = island.pieces_len.load(Ordering::Relaxed) as u32;
    loop {
        let done = island.done.load(Ordering::Acquire);
        if done >= total || stuck(island, done) {
            return;
        }
    }
}

/// Whether nothing moved for [`STUCK`]: a wake without progress starts over.
fn stuck(island: &Island, done: u32) -> bool {
    let deadline = stop::now() + STUCK;
    while island.done.load(Ordering::Acquire) == done {
        let Some(left) = deadline.checked_sub(stop::now()) else {
            return true;
        };
        futex::wait(&island.done, done, Some(left));
    }
    false
}

/// A worker's part.
pub(super) fn work(island: &Island) {
    while let Some(piece) = island.take() {
        // SAFETY: every thread that used this memory is stopped for good, and
        // `collect` left out what the last steps use.
        unsafe {
            if !stop::advise(piece, Advice::DontNeed) {
                stop::advise(piece, Advice::DontNeedLocked);
            }
        }
        island.done.fetch_add(1, Ordering::Release);
        futex::wake(&island.done);
    }
}

/// Lists the pieces. Read twice: the first time for the size of a piece.
fn collect(island: &Island) -> Option<()> {
    let mut total = 0usize;
    each_large(island, |range| {
        total = total.saturating_add(range.len());
        true
    })?;
    let piece_bytes =
        (total / (island.workers() * PIECES_PER_WORKER).max(1)).clamp(FIRST_BYTES, BATCH_BYTES_MAX);
    each_large(island, |range| {
        let mut rest = Some(range);
        while let Some(now) = rest {
            let (piece, after) = now.split_at(now.cut_point(piece_bytes, BOUNDARY_BYTES));
            // SAFETY: this is the leaving thread, before `go`.
            if piece.is_some_and(|piece| unsafe { !island.add(piece) }) {
                return false;
            }
            rest = after;
        }
        true
    })
}

/// Calls `each` with every part of memory that can go, until it answers false.
fn each_large(island: &Island, mut each: impl FnMut(PageRange) -> bool) -> Option<()> {
    let maps = Raw::open(c"/proc/thread-self/maps").ok()?;
    // SAFETY: this is the leaving thread, and no other borrow is alive.
    let text = unsafe { island.text() };
    let mut filled = 0;
    loop {
        let read = maps.read(text.get_mut(filled..)?).ok()?;
        if read == 0 {
            return Some(());
        }
        filled += read;
        let mut used = 0;
        while let Some(len) = text[used..filled].iter().position(|&b| b == b'\n') {
            let line = Line::parse(&text[used..used + len])?;
            used += len + 1;
            if line.name.starts_with(b"anon_inode:[io_uring]") {
                return None;
            }
            let large = line.range.len() >= LARGE_BYTES
                && !line.shared
                && matches!(line.kind(), Kind::Anonymous | Kind::Heap);
            if large && !parts(island, line.range, &mut each) {
                return Some(());
            }
        }
        text.copy_within(used..filled, 0);
        filled -= used;
    }
}

/// The parts of a mapping between what stays.
fn parts(island: &Island, mapping: PageRange, each: &mut impl FnMut(PageRange) -> bool) -> bool {
    let mut rest = Some(mapping);
    while let Some(now) = rest {
        match first_kept(island, now) {
            Some(_) if mapping.len() <= STACK_BYTES_MAX => return true,
            Some((start, end)) => {
                if let (Some(before), _) = now.split_at(start)
                    && !each(before)
                {
                    return false;
                }
                rest = now.split_at(end).1;
            }
            None => return each(now),
        }
    }
    true
}

/// The lowest kept bytes that meet `range`.
fn first_kept(island: &Island, range: PageRange) -> Option<(usize, usize)> {
    // SAFETY: this is the leaving thread, and `keep` is done.
    let kept = unsafe { island.kept() };
    // What begins further below than any place is long ends below the range.
    kept.iter()
        .skip(kept.partition_point(|&(start, _)| start.saturating_add(REACH_MAX) <= range.start()))
        .take_while(|&&(start, _)| start < range.end())
        .find(|&&(_, end)| range.start() < end)
        .copied()
}

/// No kept place is longer than this.
const REACH_MAX: usize = size_of::<Island>() + 4 * KEEP_BYTES;

/// Lists what stays, once the world is stopped.
fn keep(island: &Island) {
    let page = island.page_bytes();
    let here = 0u8;
    let around = |addr: usize| {
        let start = addr.saturating_sub(KEEP_BYTES) & !(page - 1);
        (start, addr.saturating_add(KEEP_BYTES) & !(page - 1))
    };
    let own = [
        island.range(),
        around((&raw const here).addr()),
        around(stop::thread_pointer()),
        around((&raw const ISLAND).addr()),
    ];
    let threads = island
        .slots
        .iter()
        .filter(|slot| slot.tid.load(Ordering::Relaxed) != 0)
        .flat_map(|slot| {
            [&slot.stack, &slot.storage, &slot.handler]
                .map(|address| around(address.load(Ordering::Relaxed)))
        });
    // SAFETY: this is the leaving thread, before `go`.
    unsafe { island.keep(own.into_iter().chain(threads)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_cuts_a_large_mapping_and_spares_a_small_one() {
        let island = Island::make(0).expect("memory");
        let page = island.page_bytes();
        let inside = |base: usize, len: usize, stack: usize| {
            let slot = island.slot(1).expect("a slot");
            slot.stack.store(stack, Ordering::Relaxed);
            slot.storage.store(stack + page, Ordering::Relaxed);
            let mut seen = Vec::new();
            let mapping = PageRange::new(base, len, page).expect("pages");
            keep(island);
            assert!(parts(island, mapping, &mut |part| {
                seen.push(part);
                true
            }));
            seen
        };
        let base = 1 << 40;
        assert!(inside(base, 8 << 20, base + (4 << 20)).is_empty());
        let stack = base + (100 << 20);
        let cut = inside(base, 1 << 30, stack);
        assert_eq!(cut.len(), 2);
        assert!(cut[0].end() <= stack - KEEP_BYTES && cut[1].start() >= stack + KEEP_BYTES);
        let whole = inside(base, 1 << 30, 1 << 30);
        assert_eq!(whole.iter().map(|part| part.len()).sum::<usize>(), 1 << 30);
    }

    #[test]
    fn hazards_go_by_their_names() {
        assert!(is_hazard_name(b"anon_inode:[io_uring]"));
        assert!(is_hazard_name(b"anon_inode:[userfaultfd]"));
        assert!(is_hazard_name(b"/dev/vhost-net"));
        assert!(!is_hazard_name(b"anon_inode:[eventfd]"));
    }
}
