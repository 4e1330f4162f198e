//! What is pinned, for as long as it is.

use std::{
    fmt,
    ops::{Deref, DerefMut, Range},
    slice, thread,
};

use super::{
    answer::Answer,
    pins::{Contents, Pages},
    region::VolatileRegion,
};

/// What both guards are made of.
pub(super) struct Held<'a> {
    pub(super) region: &'a VolatileRegion,
    pub(super) bytes: Range<usize>,
    pub(super) pages: Pages,
    pub(super) answer: Answer,
}

impl Held<'_> {
    fn start(&self) -> *mut u8 {
        (self.region.as_ptr().addr() + self.bytes.start) as *mut u8
    }
}

impl fmt::Debug for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned")
            .field(&self.bytes)
            .field(&self.answer)
            .finish()
    }
}

/// Bytes that are solid and can be read, until this is dropped.
#[derive(Debug)]
pub struct Pinned<'a>(pub(super) Held<'a>);

impl Pinned<'_> {
    /// What the pin found.
    #[must_use]
    pub fn answer(&self) -> &Answer {
        &self.0.answer
    }

    /// Whether every byte is as it was.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.0.answer == Answer::Kept
    }
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and initialised (by the kernel, if by nobody else);
        // while it is pinned for reading nobody writes to it and the kernel
        // does not take it.
        unsafe { slice::from_raw_parts(self.0.start(), self.0.bytes.len()) }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.0.region.release(self.0.pages.clone(), Contents::Stay);
    }
}

/// Bytes that are solid and the holder's alone, until this is dropped.
#[derive(Debug)]
pub struct PinnedMut<'a> {
    held: Held<'a>,
    contents: Contents,
    /// Whether a panic was on its way already when this was made.
    panicking: bool,
}

impl<'a> PinnedMut<'a> {
    pub(super) fn of(held: Held<'a>) -> Self {
        Self {
            held,
            contents: Contents::Stay,
            panicking: thread::panicking(),
        }
    }

    /// What the pin found.
    #[must_use]
    pub fn answer(&self) -> &Answer {
        &self.held.answer
    }

    /// Whether every byte is as it was.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.held.answer == Answer::Kept
    }

    /// Unpins the pages and gives their memory back: the next pin finds them
    /// purged.
    pub fn discard(mut self) {
        self.contents = Contents::Go;
    }
}

impl Deref for PinnedMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as for `Pinned`; pinned for writing, it is the holder's alone.
        unsafe { slice::from_raw_parts(self.held.start(), self.held.bytes.len()) }
    }
}

impl DerefMut for PinnedMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { slice::from_raw_parts_mut(self.held.start(), self.held.bytes.len()) }
    }
}

impl Drop for PinnedMut<'_> {
    fn drop(&mut self) {
        if thread::panicking() && !self.panicking {
            self.contents = Contents::Go;
        }
        let pages = self.held.pages.clone();
        self.held.region.release(pages, self.contents);
    }
}
