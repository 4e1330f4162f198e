//! The cache upon volatile memory.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use mmzap::volatile::VolatileCache;

use crate::support::{forked, memory::*};

pub fn a_cache_forks() {
    let cache = VolatileCache::new(64 * PAGE).unwrap();
    let stop = AtomicBool::new(false);
    assert!(cache.insert(1000, b"from before"));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut key = 0;
            while !stop.load(Ordering::Relaxed) {
                key = (key + 1) % 20;
                cache.insert(key, vec![key as u8; 2 * PAGE]);
            }
        });
        for _ in 0..100 {
            forked(|| {
                if let Some(bytes) = cache.get(&1000) {
                    assert_eq!(&*bytes, b"from before");
                }
                if cache.insert(2000, b"new") {
                    assert_eq!(&*cache.get(&2000).expect("just put in"), b"new");
                }
                let _ = format!("{cache:?}");
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
}

pub fn a_cache_gives_what_was_put_in_or_nothing() {
    let cache = VolatileCache::new(64 * PAGE).unwrap();
    assert!(cache.insert("a", vec![1; 3 * PAGE]));
    assert!(cache.insert("b", b"short"));
    assert!(!cache.insert("none", b""));
    assert!(!cache.insert("too much", vec![0; 65 * PAGE]));
    assert_eq!(&*cache.get(&"b").unwrap(), b"short");
    assert!(cache.get(&"c").is_none());
    let held = cache.get(&"a").unwrap();
    assert!(
        cache.insert("a", vec![2; PAGE]),
        "while somebody reads the old one"
    );
    assert!(held.iter().all(|byte| *byte == 1));
    assert_eq!(&*cache.get(&"a").unwrap(), &[2; PAGE][..]);
    drop(held);
    cache.purge_now(usize::MAX);
    assert!(cache.get(&"a").is_none() && cache.get(&"a").is_none());
    let stats = cache.stats();
    assert_eq!(
        (stats.hits, stats.misses, stats.purges, stats.entries),
        (3, 2, 1, 1)
    );
    assert!(cache.remove(&"b") && !cache.remove(&"b"));
    // All places are free again.
    assert!(cache.insert("all", vec![3; 64 * PAGE]));
    assert!(
        cache.insert("next", vec![4; 32 * PAGE]),
        "the old one makes way"
    );
    assert!(cache.get(&"all").is_none());
    let reader = cache.get(&"next").unwrap();
    assert!(!cache.insert("no room", vec![5; 64 * PAGE]));
    assert!(reader.iter().all(|byte| *byte == 4));
    assert!(cache.get(&"next").is_some(), "what is read stays");
    drop(reader);
    assert!(cache.insert("room", vec![5; 64 * PAGE]));
}

pub fn a_cache_evicts_what_was_not_asked_for_the_longest() {
    let cache = VolatileCache::new(4 * PAGE).unwrap();
    for key in 0..4 {
        assert!(cache.insert(key, [key; 10]));
    }
    assert!(cache.get(&0).is_some());
    assert!(cache.insert(4, [4; 10]));
    let there: Vec<u8> = (0..5).filter(|key| cache.get(key).is_some()).collect();
    assert_eq!(there, [0, 2, 3, 4]);
    assert_eq!(cache.stats().evictions, 1);
}

/// Threads that read and fill a cache at random while its memory is purged.
pub fn a_cache_is_right_in_a_crowd() {
    let cache = VolatileCache::<usize>::new(128 * PAGE).unwrap();
    let stop = AtomicBool::new(false);
    let right = AtomicUsize::new(0);
    thread::scope(|scope| {
        let purger = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                cache.purge_now(4 * PAGE);
                cache.reclaim().expect("works");
                thread::yield_now();
            }
        });
        let threads: Vec<_> = (1..4_usize)
            .map(|seed| {
                let (cache, right) = (&cache, &right);
                scope.spawn(move || {
                    let mut dice = seed;
                    for _ in 0..20_000 {
                        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let key = (dice >> 33) % 100;
                        match cache.get(&key) {
                            Some(bytes) => {
                                assert_eq!(bytes.len(), 100 + 50 * key);
                                assert!(bytes.iter().all(|byte| *byte == key as u8 + 1), "{key}");
                                right.fetch_add(1, Ordering::Relaxed);
                            }
                            None => drop(cache.insert(key, vec![key as u8 + 1; 100 + 50 * key])),
                        }
                    }
                })
            })
            .collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        stop.store(true, Ordering::Relaxed);
        purger.join().expect("the purger");
        assert!(ends.iter().all(Result::is_ok));
    });
    let stats = cache.stats();
    assert!(
        right.load(Ordering::Relaxed) > 1000 && stats.purges > 0,
        "{stats:?}"
    );
}
