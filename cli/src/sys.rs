//! The raw calls of the bench: memory that is mapped, populated and given back
//! as a program without mmzap does it. The only file that names the C library.
//!
//! Contract: addresses handed to a call here are whole pages of a mapping or
//! block that the caller owns and that nothing refers to.
#![allow(clippy::disallowed_methods)]

mod swap;

pub use swap::{is_root, swap_off, swap_on};

use std::fs::File;
use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{self, NonNull};

/// A transparent huge page.
pub const HUGE_PAGE: usize = 2 << 20;

pub fn page_size() -> usize {
    // SAFETY: sysconf only reads a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

fn checked(status: libc::c_int) -> io::Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

/// How a page is touched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// What the kernel is told about memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    Discard,
    LazyFree,
    PageOut,
    Cold,
}

/// Readable and writable memory of its own, without contents that matter.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned like a Box and carries no reference to its thread.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference its pages are only touched or given back,
// which the kernel orders; no Rust reference to its bytes is ever made.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private anonymous memory whose start is a multiple of `align`. No swap is
    /// reserved for it: the bench has checked that it fits.
    pub fn anonymous(len: usize, align: usize) -> io::Result<Self> {
        // Nothing is cut off at page alignment: what trimming leaves behind in the
        // kernel makes the munmap of a small mapping 150 ns cheaper than usual.
        let wide = len
            .checked_add(align.saturating_sub(page_size()))
            .ok_or_else(|| Error::from_raw_os_error(libc::ENOMEM))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                wide,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let base = base.cast::<u8>();
        let head = base.align_offset(align);
        let tail = wide - head - len;
        // SAFETY: head and tail are whole pages of the mapping just made, outside
        // the len bytes that are kept; a zero length is not handed on.
        unsafe {
            let start = base.add(head);
            if head > 0 {
                checked(libc::munmap(base.cast(), head))?;
            }
            if tail > 0 {
                checked(libc::munmap(start.add(len).cast(), tail))?;
            }
            Ok(Mapping {
                start: NonNull::new_unchecked(start),
                len,
            })
        }
    }

    /// `len` bytes of address space in which the first `piece` bytes of `file`
    /// appear again and again.
    pub fn tiled(file: &File, piece: usize, len: usize) -> io::Result<Self> {
        let mapping = Mapping::anonymous(len, HUGE_PAGE)?;
        for offset in (0..len).step_by(piece) {
            // SAFETY: replaces pages of the mapping just made, within its length.
            let tile = unsafe {
                libc::mmap(
                    mapping.start.as_ptr().add(offset).cast(),
                    piece.min(len - offset),
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_FIXED,
                    file.as_raw_fd(),
                    0,
                )
            };
            if tile == libc::MAP_FAILED {
                return Err(Error::last_os_error());
            }
        }
        Ok(mapping)
    }

    pub fn start(&self) -> usize {
        self.start.as_ptr() as usize
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The memory as a raw range; it stays owned here.
    pub fn as_raw(&self) -> (*mut u8, usize) {
        (self.start.as_ptr(), self.len)
    }

    /// Gives up ownership without unmapping.
    pub fn into_raw(self) -> (*mut u8, usize) {
        let raw = self.as_raw();
        std::mem::forget(self);
        raw
    }

    /// Asks for huge pages, or for none.
    pub fn huge_pages(&self, wanted: bool) -> io::Result<()> {
        // SAFETY: changes a flag of a mapping owned here.
        unsafe { huge_pages(self.start.as_ptr(), self.len, wanted) }
    }

    /// Touches every page with several threads, which share the work at huge-page boundaries.
    pub fn populate(&self, access: Access, threads: usize) -> io::Result<()> {
        // SAFETY: the mapping is owned here and its contents do not matter.
        unsafe { populate(self.start.as_ptr(), self.len, access, threads) }
    }

    /// Discards part of the memory with one madvise call; afterwards it reads zero.
    pub fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "outside the mapping"
        );
        // SAFETY: the part lies within memory owned here, whose contents do not matter.
        unsafe { advise(self.start.as_ptr().add(offset), len, Advice::Discard) }
    }

    /// Advises on the whole with one madvise call.
    pub fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: memory owned here; its contents are lost only where the caller asks for that.
        unsafe { advise(self.start.as_ptr(), self.len, advice) }
    }

    /// One plain munmap of the whole.
    pub fn unmap(self) -> io::Result<()> {
        let (start, len) = self.into_raw();
        // SAFETY: ownership was just taken over.
        unsafe { unmap(start, len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: owned here and never used again. Nobody could act on a failure.
        let _ = unsafe { unmap(self.start.as_ptr(), self.len) };
    }
}

/// Unmaps a range.
///
/// # Safety
/// The caller owns the mappings in the range and nothing uses them afterwards.
pub unsafe fn unmap(start: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: promised by the caller.
    checked(unsafe { libc::munmap(start.cast(), len) })
}

/// One madvise call on whole pages.
///
/// # Safety
/// The caller owns the pages; after `Discard` and `LazyFree` nobody relies on
/// their contents.
pub unsafe fn advise(start: *mut u8, len: usize, advice: Advice) -> io::Result<()> {
    let advice = match advice {
        Advice::Discard => libc::MADV_DONTNEED,
        Advice::LazyFree => libc::MADV_FREE,
        Advice::PageOut => libc::MADV_PAGEOUT,
        Advice::Cold => libc::MADV_COLD,
    };
    // SAFETY: promised by the caller.
    checked(unsafe { libc::madvise(start.cast(), len, advice) })
}

/// Asks for huge pages in a range of whole pages, or for none. A kernel without
/// huge pages refuses both, and then has none either.
///
/// # Safety
/// The caller owns the pages.
pub unsafe fn huge_pages(start: *mut u8, len: usize, wanted: bool) -> io::Result<()> {
    let advice = if wanted {
        libc::MADV_HUGEPAGE
    } else {
        libc::MADV_NOHUGEPAGE
    };
    // SAFETY: promised by the caller; contents stay as they are.
    match checked(unsafe { libc::madvise(start.cast(), len, advice) }) {
        Err(error) if !wanted && error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    }
}

/// Touches every page of a range with `threads` threads.
///
/// # Safety
/// The caller owns the memory; with `Access::Write` its contents may be overwritten.
pub unsafe fn populate(
    start: *mut u8,
    len: usize,
    access: Access,
    threads: usize,
) -> io::Result<()> {
    let share = len
        .div_ceil(threads.max(1))
        .next_multiple_of(HUGE_PAGE)
        .max(HUGE_PAGE);
    if share >= len {
        // SAFETY: the same promise.
        return unsafe { populate_part(start, len, access) };
    }
    let base = start as usize;
    std::thread::scope(|scope| {
        let crew: Vec<_> = (0..len)
            .step_by(share)
            .map(|offset| {
                let part = share.min(len - offset);
                let address = base + offset;
                // SAFETY: parts do not overlap and lie within what the caller owns.
                let touch = move || unsafe { populate_part(address as *mut u8, part, access) };
                std::thread::Builder::new().spawn_scoped(scope, touch)
            })
            .collect();
        crew.into_iter().try_for_each(|thread| {
            thread?
                .join()
                .unwrap_or_else(|_| Err(Error::other("a thread that touched memory failed")))
        })
    })
}

/// # Safety
/// As for `populate`.
unsafe fn populate_part(start: *mut u8, len: usize, access: Access) -> io::Result<()> {
    let advice = match access {
        Access::Read => libc::MADV_POPULATE_READ,
        Access::Write => libc::MADV_POPULATE_WRITE,
    };
    loop {
        // SAFETY: brings pages in; promised to be owned by the caller.
        let Err(error) = checked(unsafe { libc::madvise(start.cast(), len, advice) }) else {
            return Ok(());
        };
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // Kernels before 5.14 know no such advice, unaligned edges get none.
            Some(libc::EINVAL) => break,
            _ => return Err(error),
        }
    }
    let first = start as usize;
    let page = page_size();
    let mut address = first;
    while address < first + len {
        let byte = address as *mut u8;
        // SAFETY: within the range that the caller owns.
        unsafe {
            match access {
                Access::Read => drop(byte.read_volatile()),
                Access::Write => byte.write_volatile(1),
            }
        }
        address = (address / page + 1) * page;
    }
    Ok(())
}

/// A page without access rights beside other memory. It keeps the kernel from
/// joining two mappings that happen to be neighbours.
pub struct Spacer(#[expect(dead_code, reason = "held for its Drop")] Mapping);

impl Spacer {
    /// Takes the page at `address` if it is free; `None` if something is there already.
    pub fn at(address: usize) -> Option<Self> {
        let len = page_size();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: takes free address space only, never replaces a mapping.
        let got = unsafe { libc::mmap(address as *mut _, len, libc::PROT_NONE, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return None;
        }
        let start = NonNull::new(got.cast::<u8>())?;
        // A kernel without that flag (before 4.17) may have put it elsewhere: it is dropped then.
        let spacer = Spacer(Mapping { start, len });
        (got as usize == address).then_some(spacer)
    }
}

/// One block from malloc.
pub struct Block {
    start: NonNull<u8>,
    size: usize,
}

impl Block {
    pub fn new(size: usize) -> io::Result<Self> {
        // SAFETY: malloc has no precondition.
        let start = unsafe { libc::malloc(size) };
        let start = NonNull::new(start.cast()).ok_or_else(Error::last_os_error)?;
        Ok(Block { start, size })
    }

    /// The whole pages inside the block: those that hold nothing of the allocator's.
    pub fn whole_pages(&self) -> (*mut u8, usize) {
        let start = self.start.as_ptr();
        let head = start.align_offset(page_size()).min(self.size);
        let len = (self.size - head) / page_size() * page_size();
        // SAFETY: head is at most the size of the block.
        (unsafe { start.add(head) }, len)
    }

    /// Touches every page of the block, without huge pages.
    pub fn populate(&self, threads: usize) -> io::Result<()> {
        let (pages, len) = self.whole_pages();
        // SAFETY: the block is owned here, its contents do not matter.
        unsafe {
            if len > 0 {
                huge_pages(pages, len, false)?;
            }
            populate(pages, len, Access::Write, threads)?;
            // The partial pages at the edges.
            self.start.as_ptr().write_volatile(1);
            self.start.as_ptr().add(self.size - 1).write_volatile(1);
        }
        Ok(())
    }

    /// The plain free() call.
    pub fn free(self) {
        let start = self.start;
        std::mem::forget(self);
        // SAFETY: from malloc, freed once.
        unsafe { libc::free(start.as_ptr().cast()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: from malloc; `free` forgets the block, so this is the only time.
        unsafe { libc::free(self.start.as_ptr().cast()) }
    }
}

/// Maps `len` bytes, touches each page and unmaps them: what a thread does that
/// knows nothing of a teardown beside it.
pub fn map_touch_unmap(len: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, touched within its length and unmapped again.
    unsafe {
        let got = libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0);
        if got == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        for offset in (0..len).step_by(4096) {
            got.cast::<u8>().add(offset).write_volatile(1);
        }
        checked(libc::munmap(got, len))
    }
}

/// A file in memory of `len` bytes.
pub fn memory_file(len: usize) -> io::Result<File> {
    // SAFETY: the name is a terminated string; the descriptor is new and owned by the File.
    let file = unsafe {
        let fd = libc::memfd_create(c"mmzap-bench".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    file.set_len(len as u64)?;
    Ok(file)
}

/// Page faults of this process that needed no disk, so far.
pub fn page_faults() -> u64 {
    // SAFETY: zeros are a valid `rusage`, which the call fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    u64::try_from(usage.ru_minflt).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smaps;

    #[test]
    fn populated_memory_is_resident_and_discarded_memory_is_not() {
        let len = 4 * HUGE_PAGE;
        let mapping = Mapping::anonymous(len, HUGE_PAGE).expect("8 MiB of address space");
        assert_eq!(mapping.start() % HUGE_PAGE, 0);
        mapping.huge_pages(false).expect("no huge pages");
        mapping.populate(Access::Write, 2).expect("8 MiB");
        smaps::verify(mapping.start(), len, false).expect("resident small pages");
        mapping.discard(0, len / 2).expect("discard");
        let usage = smaps::usage(mapping.start(), mapping.start() + len).expect("smaps");
        assert_eq!(usage.resident, len as u64 / 2);
        let start = mapping.start();
        mapping.unmap().expect("munmap");
        smaps::verify_unmapped(start, len).expect("nothing left");
    }

    #[test]
    fn a_file_appears_again_and_again() {
        let file = memory_file(HUGE_PAGE).expect("a memfd");
        let tiled = Mapping::tiled(&file, HUGE_PAGE, 5 * HUGE_PAGE / 2).expect("three pieces");
        let (start, _) = tiled.as_raw();
        // SAFETY: within the mapping.
        unsafe {
            start.write_volatile(7);
            assert_eq!(start.add(2 * HUGE_PAGE).read_volatile(), 7);
        }
    }

    #[test]
    fn a_spacer_replaces_nothing() {
        let mapping = Mapping::anonymous(HUGE_PAGE, HUGE_PAGE).expect("address space");
        assert!(Spacer::at(mapping.start()).is_none());
    }

    #[test]
    fn whole_pages_lie_inside_the_block() {
        for size in [1, 5000, 1 << 20] {
            let block = Block::new(size).expect("a small block");
            let (start, whole) = (block.start.as_ptr(), block.size);
            let (pages, len) = block.whole_pages();
            assert!(pages >= start && pages as usize + len <= start as usize + whole);
            assert!(len == 0 || (pages as usize).is_multiple_of(page_size()));
            block.populate(2).expect("touching");
            block.free();
        }
    }
}
