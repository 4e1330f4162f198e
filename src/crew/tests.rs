use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::Instant,
};

use super::*;

/// Work that counts who came and keeps them until it is let go.
struct Counting {
    came: AtomicUsize,
    gate: Mutex<bool>,
    opened: Condvar,
}

impl Counting {
    fn closed() -> Arc<Self> {
        Arc::new(Self {
            came: AtomicUsize::new(0),
            gate: Mutex::new(false),
            opened: Condvar::new(),
        })
    }

    fn open(&self) {
        *self.gate.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Work for Counting {
    fn help(&self) {
        self.came.fetch_add(1, Relaxed);
        let gate = self.gate.lock().unwrap();
        drop(self.opened.wait_while(gate, |open| !*open).unwrap());
    }
}

/// Waits for what another thread is about to do; no verdict on how fast.
fn until(mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "nothing happened for a minute"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

fn own_crew() -> &'static Crew {
    Box::leak(Box::new(Crew {
        pid: process::id(),
        state: Mutex::default(),
        posted: Condvar::new(),
    }))
}

#[test]
fn seats_bring_as_many_helpers_and_no_more() {
    let crew = own_crew();
    let counting = Counting::closed();
    let work: Arc<dyn Work> = counting.clone();
    crew.post(&work, 3).expect("three threads");
    until(|| counting.came.load(Relaxed) == 3);
    assert_eq!(crew.threads(), 3);
    counting.open();
    until(|| crew.lock().idle.len() == 3);
    // Idle ones come first.
    let second = Counting::closed();
    let work: Arc<dyn Work> = second.clone();
    crew.post(&work, 2).expect("no new thread is needed");
    until(|| second.came.load(Relaxed) == 2);
    assert_eq!(crew.threads(), 3);
    second.open();
}

#[test]
fn idle_helpers_leave() {
    let crew = own_crew();
    let counting = Counting::closed();
    counting.open();
    let work: Arc<dyn Work> = counting.clone();
    crew.post(&work, 2).expect("two threads");
    until(|| counting.came.load(Relaxed) == 2);
    until(|| crew.threads() == 0);
}

#[test]
fn withdrawn_seats_are_not_taken() {
    let crew = own_crew();
    let counting = Counting::closed();
    let work: Arc<dyn Work> = counting.clone();
    crew.lock().open.push_back((Arc::clone(&work), 5));
    crew.withdraw(&work);
    assert!(crew.lock().take_seat().is_none());
    assert_eq!(Arc::strong_count(&work), 2);
}

#[test]
fn many_posts_from_many_threads_stress() {
    let crew = own_crew();
    let total = Arc::new(AtomicUsize::new(0));
    struct Once(Arc<AtomicUsize>);
    impl Work for Once {
        fn help(&self) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let work: Arc<dyn Work> = Arc::new(Once(Arc::clone(&total)));
                    crew.post(&work, 2).expect("threads");
                }
            });
        }
    });
    until(|| total.load(Relaxed) == 4 * 200 * 2);
}
