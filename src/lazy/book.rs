//! Which runs of pages are free, in which state, and since when.
//!
//! Pure, and without allocation: an allocator uses it, so it keeps its notes in
//! slots that it is given, and never in the free pages, which must stay clean.

use super::batch::Batch;
use crate::range::PageRange;

/// What is in a free run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// What its last owner left; in memory, and perhaps in the CPU's caches.
    Hot,
    /// The same, or zeros where the kernel has taken a page.
    Lazy,
    /// Zeros, and no memory behind them.
    Clean,
}

pub(super) const STATES: [State; 3] = [State::Hot, State::Lazy, State::Clean];

/// Place for what is known of one run.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    start: usize,
    len: usize,
    since: u64,
    older: u32,
    newer: u32,
}

impl Slot {
    pub(super) const UNUSED: Self = Self {
        start: 0,
        len: 0,
        since: 0,
        older: NONE,
        newer: NONE,
    };
}

const NONE: u32 = u32::MAX;

/// Four bins to a doubling, from one page up; the last has all that is larger.
const BINS: usize = 128;

/// A run serves a request if it is at most about twice as large.
const SPREAD: usize = 4;

/// Runs of about one size and one state, from the oldest to the newest.
#[derive(Clone, Copy)]
struct List {
    oldest: u32,
    newest: u32,
}

const EMPTY: List = List {
    oldest: NONE,
    newest: NONE,
};

/// The notes. Every run in it is in one list.
pub(super) struct Book {
    slots: &'static mut [Slot],
    /// Slots that were in use and are not; the others begin at `fresh`.
    unused: u32,
    fresh: usize,
    lists: [[List; BINS]; 3],
    /// Bins whose list is not empty, by state.
    filled: [u128; 3],
    bytes: [usize; 3],
    /// Slots in lists, and those of runs that are worked on.
    used: usize,
    away: usize,
    page_shift: u32,
}

impl Book {
    /// Without slots it takes nothing.
    pub(super) const fn new() -> Self {
        Self {
            slots: &mut [],
            unused: NONE,
            fresh: 0,
            lists: [[EMPTY; BINS]; 3],
            filled: [0; 3],
            bytes: [0; 3],
            used: 0,
            away: 0,
            page_shift: 12,
        }
    }

    /// Gives the book its slots, once.
    pub(super) fn equip(&mut self, slots: &'static mut [Slot], page_bytes: usize) {
        debug_assert!(self.slots.is_empty());
        self.slots = slots;
        self.page_shift = page_bytes.trailing_zeros();
    }

    /// Takes the slots away; the book is as new then.
    pub(super) fn strip(&mut self) -> &'static mut [Slot] {
        std::mem::replace(self, Self::new()).slots
    }

    pub(super) fn is_equipped(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Bytes of all runs of a state.
    pub(super) fn bytes(&self, state: State) -> usize {
        self.bytes[state as usize]
    }

    /// Bytes of all runs that may have memory behind them.
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes(State::Hot) + self.bytes(State::Lazy)
    }

    /// Notes a run that became free at `since`; `false` if there is no slot for
    /// it.
    #[must_use]
    pub(super) fn put(&mut self, run: PageRange, state: State, since: u64) -> bool {
        self.used + self.away < self.slots.len() && self.note(run, state, since)
    }

    /// Takes the runs that `next` takes, as many as there is room for; their
    /// slots stay theirs until [`put_back`](Self::put_back).
    pub(super) fn take_batch(
        &mut self,
        next: impl Fn(&mut Self) -> Option<PageRange>,
    ) -> Option<Batch> {
        let batch = Batch::of(std::iter::from_fn(|| next(self)))?;
        self.away += batch.count();
        Some(batch)
    }

    /// Ends a batch; `runs`, not more than were in it, are what is left of it.
    pub(super) fn put_back(
        &mut self,
        batch: &Batch,
        runs: impl Iterator<Item = PageRange>,
        state: State,
        since: u64,
    ) {
        self.away -= batch.count();
        for run in runs.take(batch.count()) {
            let _there_is_a_slot = self.note(run, state, since);
        }
    }

    /// What enters a list later is not older than what is in it, so that the
    /// oldest is at one end.
    fn note(&mut self, run: PageRange, state: State, since: u64) -> bool {
        let index = if self.unused != NONE {
            let index = self.unused;
            self.unused = self.slots[index as usize].older;
            index
        } else if self.fresh < self.slots.len() {
            self.fresh += 1;
            (self.fresh - 1) as u32
        } else {
            return false;
        };
        let bin = self.bin_holding(run.len());
        let list = &mut self.lists[state as usize][bin];
        let newest = list.newest;
        let since = match self.slots.get(newest as usize) {
            Some(last) => since.max(last.since),
            None => since,
        };
        self.slots[index as usize] = Slot {
            start: run.start(),
            len: run.len(),
            since,
            older: newest,
            newer: NONE,
        };
        list.newest = index;
        match self.slots.get_mut(newest as usize) {
            Some(last) => last.newer = index,
            None => list.oldest = index,
        }
        self.filled[state as usize] |= 1 << bin;
        self.bytes[state as usize] += run.len();
        self.used += 1;
        true
    }

    /// Takes `len` bytes from the run that suits best: hot before lazy before
    /// clean, then the smallest, then the one freed last. What is left of a
    /// larger run stays; where there is no slot for that, the run is not used.
    pub(super) fn take(&mut self, len: usize) -> Option<(PageRange, State)> {
        let first = self.bin_serving(len);
        let last = (first + SPREAD).min(BINS - 1);
        let range = (u128::MAX >> (BINS - 1 - last)) & (u128::MAX << first);
        for state in STATES {
            let bins = self.filled[state as usize] & range;
            // Runs of just this size are in the bin below, with smaller ones.
            let below = self.bin_holding(len);
            let newest = self.lists[state as usize][below].newest;
            let fits = self
                .slots
                .get(newest as usize)
                .is_some_and(|slot| slot.len >= len);
            let bin = match bins {
                _ if fits => below,
                0 => continue,
                bins => bins.trailing_zeros() as usize,
            };
            let index = self.lists[state as usize][bin].newest;
            let Slot { since, .. } = self.slots[index as usize];
            let run = self.remove(index, bin, state)?;
            if run.len() < len {
                // Only in the last bin, where all sizes meet.
                let _there_is_a_slot = self.note(run, state, since);
                continue;
            }
            let (taken, rest) = run.split_at(run.start() + len);
            if let Some(rest) = rest {
                let _there_is_a_slot = self.note(rest, state, since);
            }
            return taken.map(|taken| (taken, state));
        }
        None
    }

    /// Takes the oldest run of a state that has been in it since `before` or
    /// longer.
    pub(super) fn take_oldest(&mut self, state: State, before: u64) -> Option<PageRange> {
        let (index, bin) = self.oldest(state)?;
        if self.slots[index as usize].since > before {
            return None;
        }
        self.remove(index, bin, state)
    }

    /// Since when the oldest run of a state has been in it.
    pub(super) fn oldest_since(&self, state: State) -> Option<u64> {
        let (index, _) = self.oldest(state)?;
        Some(self.slots[index as usize].since)
    }

    /// Every run of a state.
    pub(super) fn runs(&self, state: State) -> impl Iterator<Item = PageRange> {
        self.lists[state as usize]
            .iter()
            .flat_map(|list| {
                let next = |index: &u32| Some(self.slots.get(*index as usize)?.newer);
                std::iter::successors(Some(list.oldest), next)
            })
            .filter_map(|index| {
                let slot = self.slots.get(index as usize)?;
                PageRange::between(slot.start, slot.start + slot.len)
            })
    }

    fn oldest(&self, state: State) -> Option<(u32, usize)> {
        let mut bins = self.filled[state as usize];
        let mut oldest: Option<(u64, u32, usize)> = None;
        while bins != 0 {
            let bin = bins.trailing_zeros() as usize;
            bins &= bins - 1;
            let index = self.lists[state as usize][bin].oldest;
            let since = self.slots[index as usize].since;
            if oldest.is_none_or(|(known, ..)| since < known) {
                oldest = Some((since, index, bin));
            }
        }
        oldest.map(|(_, index, bin)| (index, bin))
    }

    fn remove(&mut self, index: u32, bin: usize, state: State) -> Option<PageRange> {
        let slot = self.slots[index as usize];
        let list = &mut self.lists[state as usize][bin];
        match self.slots.get_mut(slot.older as usize) {
            Some(older) => older.newer = slot.newer,
            None => list.oldest = slot.newer,
        }
        match self.slots.get_mut(slot.newer as usize) {
            Some(newer) => newer.older = slot.older,
            None => list.newest = slot.older,
        }
        if list.oldest == NONE {
            self.filled[state as usize] &= !(1 << bin);
        }
        self.bytes[state as usize] -= slot.len;
        self.used -= 1;
        self.slots[index as usize] = Slot {
            older: self.unused,
            ..Slot::UNUSED
        };
        self.unused = index;
        PageRange::between(slot.start, slot.start + slot.len)
    }

    /// The bin of a run: all in it are at least as large as the bin says.
    fn bin_holding(&self, len: usize) -> usize {
        bin(len >> self.page_shift)
    }

    /// The first bin in which every run is large enough.
    fn bin_serving(&self, len: usize) -> usize {
        let pages = len >> self.page_shift;
        let bin = bin(pages);
        if bin_pages(bin) >= pages || bin == BINS - 1 {
            bin
        } else {
            bin + 1
        }
    }
}

/// The smallest size of a bin, in pages: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16 …
fn bin_pages(bin: usize) -> usize {
    if bin < 4 {
        return bin + 1;
    }
    (4 + bin % 4) << (bin / 4 - 1)
}

/// The last bin that is not larger.
fn bin(pages: usize) -> usize {
    if pages < 4 {
        return pages.max(1) - 1;
    }
    let doublings = pages.ilog2() as usize - 2;
    let quarter = (pages >> doublings) - 4;
    (4 * (doublings + 1) + quarter).min(BINS - 1)
}

/// What a request is rounded up to, so that runs of nearly one size serve each
/// other: at most a quarter more.
pub(crate) fn rounded_len(len: usize, page_bytes: usize) -> Option<usize> {
    let pages = len.checked_next_multiple_of(page_bytes)? / page_bytes;
    let below = bin(pages);
    if below == BINS - 1 {
        return Some(pages * page_bytes);
    }
    let pages = if bin_pages(below) >= pages {
        bin_pages(below)
    } else {
        bin_pages(below + 1)
    };
    pages.checked_mul(page_bytes)
}

#[cfg(test)]
mod tests;
