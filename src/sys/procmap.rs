//! PROCMAP_QUERY: one mapping for one ioctl (Linux 6.11, linux/fs.h).

use std::{fs::File, io, mem::size_of, os::fd::AsRawFd as _};

use super::{last_errno, page_bytes};
use crate::{
    error::Errno,
    mapping::{Found, Kind, Mapping, maps},
    range::PageRange,
};

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | 0x66 << 8 | 17;
const VMA_WRITABLE: u64 = 0x02;
const VMA_SHARED: u64 = 0x08;
const COVERING_OR_NEXT: u64 = 0x10;

/// Holds every name the kernel gives a mapping without a file: fixed words, or
/// `[anon:…]` of at most 80 characters.
const NAME_BYTES: usize = 128;

/// The mapping at or after `addr`.
pub(crate) fn query(maps: &File, addr: usize) -> Result<Found, Errno> {
    let mut name = [0u8; NAME_BYTES];
    let Some(first) = ask(maps, addr, None)? else {
        return Ok(Found::Nothing);
    };
    // A file's name can be as long as a path and says nothing more.
    let (answer, named) = if first.inode == 0 {
        match ask(maps, addr, Some(&mut name)) {
            Ok(Some(again)) if again.vma_start == first.vma_start => (again, true),
            _ => (first, false),
        }
    } else {
        (first, false)
    };
    let name = match (answer.vma_name_size as usize).checked_sub(1) {
        Some(len) if named => &name[..len.min(NAME_BYTES)],
        _ => &[],
    };
    let page = page_bytes();
    let page_size = usize::try_from(answer.vma_page_size).unwrap_or(page);
    let range = usize::try_from(answer.vma_start)
        .ok()
        .zip(usize::try_from(answer.vma_end).ok())
        .and_then(|(start, end)| PageRange::between(start, end))
        .ok_or(super::EINVAL)?;
    let shared = answer.vma_flags & VMA_SHARED != 0;
    Ok(Found::Mapping(Mapping {
        range,
        kind: if page_size > page {
            Kind::HugeTlb
        } else {
            maps::kind(shared, answer.inode != 0, name)
        },
        page_bytes: page_size.max(page),
        writable: answer.vma_flags & VMA_WRITABLE != 0,
    }))
}

fn ask(maps: &File, addr: usize, name: Option<&mut [u8]>) -> Result<Option<Query>, Errno> {
    let mut query = Query {
        size: size_of::<Query>() as u64,
        query_flags: COVERING_OR_NEXT,
        query_addr: addr as u64,
        ..Query::default()
    };
    if let Some(name) = name {
        query.vma_name_size = u32::try_from(name.len()).unwrap_or(0);
        query.vma_name_addr = name.as_mut_ptr() as u64;
    }
    // SAFETY: `query` has the layout of the kernel's struct and names a buffer
    // that lives through the call, or none.
    let rc = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if rc == 0 {
        return Ok(Some(query));
    }
    match last_errno() {
        Errno(libc::ENOENT) => Ok(None),
        errno => Err(errno),
    }
}

/// A file of /proc about this process's memory.
///
/// By the calling thread: /proc/self is the main thread, and when that has left
/// before the others its files are empty.
pub(crate) fn open(name: &str) -> io::Result<File> {
    File::open(format!("/proc/thread-self/{name}"))
        .or_else(|_| File::open(format!("/proc/self/{name}")))
}

/// Whether the running kernel answers at all.
pub(crate) fn answers() -> bool {
    open("maps").is_ok_and(|maps| matches!(query(&maps, 0), Ok(Found::Mapping(_))))
}
