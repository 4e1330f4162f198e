//! Processes that share the memory of the one that leaves.

use std::{
    fs, process,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use crate::{
    leaving::*,
    support::{memory::*, sys},
};

/// What a process that shares the memory does: waits, looks, and says.
extern "C" fn look_at_the_memory(_: *mut std::ffi::c_void) -> i32 {
    let (parent, memory) = SHARED.with_parent();
    sys::Sibling.wait_until_orphaned(parent);
    let intact = (memory..memory + HELD)
        .step_by(PAGE)
        .all(|page| word(page) == stamp(page));
    sys::Sibling.say_and_end(if intact { b"intact" } else { b"broken" })
}

/// The process whose memory it is, and where.
struct Shared(AtomicUsize, AtomicUsize);

static SHARED: Shared = Shared(AtomicUsize::new(0), AtomicUsize::new(0));

impl Shared {
    fn set(&self, memory: usize) {
        self.0.store(process::id() as usize, Ordering::SeqCst);
        self.1.store(memory, Ordering::SeqCst);
    }

    fn with_parent(&self) -> (i32, usize) {
        (
            self.0.load(Ordering::SeqCst) as i32,
            self.1.load(Ordering::SeqCst),
        )
    }
}

pub fn with_sibling() {
    SHARED.set(filled(HELD));
    sys::clone_sibling(false, look_at_the_memory).expect("a sibling");
    leave()
}

pub fn with_vfork() {
    SHARED.set(filled(HELD));
    thread::spawn(|| sys::clone_sibling(true, look_at_the_memory));
    // Until the child is there.
    while !threads().iter().any(|tid| {
        fs::read_to_string(format!("/proc/self/task/{tid}/children"))
            .is_ok_and(|c| !c.trim().is_empty())
    }) {
        thread::yield_now();
    }
    leave()
}

pub fn a_process_that_shares_the_memory_keeps_it() {
    for role in ["with_sibling", "with_vfork"] {
        let end = end_of(role, "parallel");
        assert_eq!(end.status.code(), Some(CODE), "{role}: {}", end.status);
        assert_eq!(String::from_utf8_lossy(&end.said), "intact", "{role}");
        assert!(end.kept(), "{role}: {} bytes are left", end.held_bytes);
    }
}
