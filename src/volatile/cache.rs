//! A cache whose contents the kernel may take.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::Hash,
    io,
    ops::{Deref, Range},
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    answer::{PinError, PurgePolicy},
    guards::{Pinned, PinnedMut},
    pressure::PurgeOnPressure,
    region::VolatileRegion,
};
use crate::{fork_lock::ForkLock, sys};

/// What a [`VolatileCache`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Entries that were there.
    pub hits: u64,
    /// Requests for what was never put in, or was evicted or removed.
    pub misses: u64,
    /// Requests for what the kernel had taken; not counted as misses.
    pub purges: u64,
    /// Entries that made room for others.
    pub evictions: u64,
    /// Entries now, those included that the kernel has taken and nobody has
    /// asked for since.
    pub entries: usize,
}

/// Bytes by key, in volatile memory: under pressure the kernel takes what it
/// needs, and the cache says so when it is asked.
///
/// An entry takes whole pages. When there is no room left, entries that nobody
/// reads make way, those that were not asked for the longest first.
///
/// In the child of a fork it has what it had, unless another thread was in the
/// middle of a call: then it is empty there, and takes nothing.
///
/// ```
/// let cache = mmzap::volatile::VolatileCache::new(1 << 20)?;
/// assert!(cache.insert("block 7", b"its bytes"));
/// match cache.get(&"block 7") {
///     Some(bytes) => assert_eq!(&*bytes, b"its bytes"),
///     None => { /* read it again, and insert it */ }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct VolatileCache<K> {
    region: Arc<VolatileRegion>,
    shelf: ForkLock<Shelf<K>>,
    hits: AtomicU64,
    misses: AtomicU64,
    purges: AtomicU64,
    evictions: AtomicU64,
}

struct Shelf<K> {
    entries: HashMap<K, Entry>,
    /// Keys by the time that they were asked for.
    by_age: BTreeMap<u64, K>,
    free: Free,
    /// Places whose entries are gone while somebody still reads there.
    lingering: Vec<Range<usize>>,
    clock: u64,
}

#[derive(Clone)]
struct Entry {
    /// Bytes of the region.
    place: Range<usize>,
    /// When it was put in: tells it from others at the same place.
    born: u64,
    asked: u64,
}

impl<K> fmt::Debug for VolatileCache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VolatileCache").field(&self.stats()).finish()
    }
}

impl<K> VolatileCache<K> {
    /// A cache of `len` bytes of address space, rounded up to whole pages.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(len: usize) -> io::Result<Self> {
        let region = VolatileRegion::options()
            .purge_policy(PurgePolicy::Whole)
            .map(len)?;
        let cache = Self {
            shelf: ForkLock::new(Shelf {
                entries: HashMap::new(),
                by_age: BTreeMap::new(),
                free: Free::all(region.len()),
                lingering: Vec::new(),
                clock: 0,
            }),
            region: Arc::new(region),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            purges: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        };
        cache.shelf.belongs_here();
        Ok(cache)
    }

    /// [`VolatileRegion::purge_now`], for all entries that nobody reads.
    pub fn purge_now(&self, bytes: usize) -> usize {
        self.region.purge_now(bytes)
    }

    /// [`VolatileRegion::purge_on_pressure`], for this cache.
    ///
    /// # Errors
    /// Those of that function.
    pub fn purge_on_pressure(&self) -> io::Result<PurgeOnPressure> {
        self.region.purge_on_pressure()
    }

    /// Asks the kernel to reclaim now what nobody reads, as it would under
    /// pressure.
    ///
    /// # Errors
    /// Those of [`VolatileRegion::reclaim`].
    pub fn reclaim(&self) -> Result<(), PinError> {
        self.region.reclaim(0..self.region.len())
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            hits: count(&self.hits),
            misses: count(&self.misses),
            purges: count(&self.purges),
            evictions: count(&self.evictions),
            entries: self.shelf().map_or(0, |shelf| shelf.entries.len()),
        }
    }

    /// `None` in a child that has lost it. Only a key's own code can panic while
    /// it is locked: then a place is lost, and nothing else.
    fn shelf(&self) -> Option<MutexGuard<'_, Shelf<K>>> {
        self.shelf.lock()
    }
}

impl<K: Eq + Hash + Clone> VolatileCache<K> {
    /// Puts a copy of `bytes` in, instead of what was there under this key.
    /// `false` if there is no room beside what is being read, or the bytes are
    /// none or more than the cache.
    pub fn insert(&self, key: K, bytes: impl AsRef<[u8]>) -> bool {
        let bytes = bytes.as_ref();
        self.remove(&key);
        loop {
            let Some(place) = self.place_for(bytes.len()) else {
                return false;
            };
            let pinned = self.region.pin_mut(place.clone());
            if let Ok(pinned) = pinned {
                return self.put(key, bytes, place, pinned);
            }
            // Somebody who looked for an entry that was there has come late.
            match self.shelf() {
                Some(mut shelf) => shelf.lingering.push(place),
                None => return false,
            }
        }
    }

    fn put(&self, key: K, bytes: &[u8], place: Range<usize>, mut pinned: PinnedMut<'_>) -> bool {
        pinned.copy_from_slice(bytes);
        drop(pinned);
        let Some(mut shelf) = self.shelf() else {
            return false;
        };
        // Of two that come at once the later one stays.
        self.forget(&mut shelf, &key);
        let now = shelf.tick();
        let entry = Entry {
            place,
            born: now,
            asked: now,
        };
        shelf.entries.insert(key.clone(), entry);
        shelf.by_age.insert(now, key);
        true
    }

    /// The bytes under this key, solid until the guard is dropped; `None` if
    /// there are none any more.
    pub fn get(&self, key: &K) -> Option<Guard<'_>> {
        let missed = || {
            self.misses.fetch_add(1, Ordering::Relaxed);
            None
        };
        loop {
            let found = self
                .shelf()
                .and_then(|shelf| shelf.entries.get(key).cloned());
            let Some(entry) = found else {
                return missed();
            };
            // Without the lock, which others need meanwhile.
            let pinned = self.region.pin(entry.place.clone());
            let Some(mut shelf) = self.shelf() else {
                return missed();
            };
            if shelf.entries.get(key).map(|now| now.born) != Some(entry.born) {
                continue; // it went, and perhaps another came to its place
            }
            return match pinned {
                Ok(pinned) if pinned.is_kept() => {
                    shelf.ask(key);
                    self.hits.fetch_add(1, Ordering::Relaxed);
                    Some(Guard(pinned))
                }
                Ok(pinned) => {
                    drop(pinned);
                    self.forget(&mut shelf, key);
                    self.purges.fetch_add(1, Ordering::Relaxed);
                    None
                }
                // No memory for pages that were purged.
                Err(_) => missed(),
            };
        }
    }

    /// Removes what is there under this key, if there is anything.
    pub fn remove(&self, key: &K) -> bool {
        match self.shelf() {
            Some(mut shelf) => self.forget(&mut shelf, key),
            None => false,
        }
    }

    fn place_for(&self, len: usize) -> Option<Range<usize>> {
        let pages = whole_pages(&(0..len)).len();
        if len == 0 || pages > self.region.len() {
            return None;
        }
        let mut shelf = self.shelf()?;
        self.sweep(&mut shelf);
        let mut from = 0;
        loop {
            if let Some(start) = shelf.free.take(pages) {
                return Some(start..start + len);
            }
            let (age, key) = shelf.by_age.range(from..).next()?;
            let (age, key) = (*age, key.clone());
            from = age + 1;
            let Some(entry) = shelf.entries.get(&key) else {
                continue;
            };
            let place = entry.place.clone();
            // An entry that is being read stays.
            if self.free(&mut shelf.free, &place) {
                shelf.by_age.remove(&age);
                shelf.entries.remove(&key);
                self.evictions.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes an entry out; its place is free, or will be when nobody reads it.
    fn forget(&self, shelf: &mut Shelf<K>, key: &K) -> bool {
        let Some(entry) = shelf.entries.remove(key) else {
            return false;
        };
        shelf.by_age.remove(&entry.asked);
        if !self.free(&mut shelf.free, &entry.place) {
            shelf.lingering.push(entry.place);
        }
        true
    }

    /// Frees the places that nobody reads any more.
    fn sweep(&self, shelf: &mut Shelf<K>) {
        let Shelf {
            free, lingering, ..
        } = shelf;
        lingering.retain(|place| !self.free(free, place));
    }

    /// Frees a place that is nobody's, unless somebody still reads there.
    fn free(&self, free: &mut Free, place: &Range<usize>) -> bool {
        let Ok(pinned) = self.region.pin_mut(place.clone()) else {
            return false;
        };
        pinned.discard();
        free.give(whole_pages(place));
        true
    }
}

impl<K: Eq + Hash + Clone> Shelf<K> {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn ask(&mut self, key: &K) {
        let now = self.tick();
        if let Some(entry) = self.entries.get_mut(key)
            && let Some(key) = self.by_age.remove(&entry.asked)
        {
            entry.asked = now;
            self.by_age.insert(now, key);
        }
    }
}

/// An entry of a [`VolatileCache`], which stays while this is held.
#[derive(Debug)]
pub struct Guard<'a>(Pinned<'a>);

impl Deref for Guard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The pages that hold some bytes, which begin at one.
fn whole_pages(bytes: &Range<usize>) -> Range<usize> {
    bytes.start..bytes.end.next_multiple_of(sys::page_bytes())
}

/// Free bytes of a region: runs of whole pages, none beside another.
struct Free(BTreeMap<usize, usize>);

impl Free {
    fn all(len: usize) -> Self {
        Self(BTreeMap::from([(0, len)]))
    }

    /// The first run that is long enough.
    fn take(&mut self, len: usize) -> Option<usize> {
        let (start, end) = self
            .0
            .iter()
            .map(|(start, end)| (*start, *end))
            .find(|(start, end)| end - start >= len)?;
        self.0.remove(&start);
        if start + len < end {
            self.0.insert(start + len, end);
        }
        Some(start)
    }

    fn give(&mut self, run: Range<usize>) {
        let Range { mut start, mut end } = run;
        if let Some((before, until)) = self.0.range(..start).next_back()
            && *until == start
        {
            start = *before;
        }
        if let Some(after) = self.0.remove(&end) {
            end = after;
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn free_runs_are_as_large_as_can_be(steps in proptest::collection::vec((1_usize..9, any::<bool>()), 1..200)) {
            let mut free = Free::all(64);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (len, take) in steps {
                if take {
                    if let Some(start) = free.take(len) {
                        prop_assert!(taken.iter().all(|run| run.end <= start || start + len <= run.start));
                        taken.push(start..start + len);
                    }
                } else if !taken.is_empty() {
                    free.give(taken.swap_remove(len % taken.len()));
                }
                let used: usize = taken.iter().map(ExactSizeIterator::len).sum();
                let left: usize = free.0.iter().map(|(start, end)| end - start).sum();
                prop_assert_eq!(used + left, 64);
                let ends: Vec<usize> = free.0.values().copied().collect();
                prop_assert!(ends.iter().all(|end| !free.0.contains_key(end)));
            }
        }
    }
}
