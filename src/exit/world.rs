//! Stopping the world: every other thread sleeps in a signal handler.

use std::{
    ffi::{CStr, c_int, c_void},
    sync::atomic::Ordering,
    time::Duration,
};

use super::island::{Island, Slot};
use crate::sys::{
    ENOENT, ESRCH, futex,
    stop::{self, Raw},
};

/// How long threads have to stop. A thread that runs stops within a tick; one
/// in a long system call (a large write) when that is done. Past this a plain
/// exit is sooner.
const LIMIT: Duration = Duration::from_millis(100);

/// How long to sleep before looking at the threads again.
const NAP: Duration = Duration::from_millis(1);

/// Stops all threads but this one and the workers. False if one would not.
///
/// A thread that was not seen yet can start another one until it is stopped
/// itself, so the list is read until it holds nobody new.
pub(super) fn stop(island: &Island) -> bool {
    if stop::on_stop(on_stop).is_err() {
        return false;
    }
    let deadline = stop::now() + LIMIT;
    loop {
        let stops = island.stops.load(Ordering::Acquire);
        match pass(island) {
            None => return false,
            Some(Pass {
                running: 0,
                moved: false,
            }) if all_told_are_still(island) => return true,
            Some(_) if stop::now() > deadline => return false,
            Some(Pass { running: 0, .. }) => {}
            Some(_) => futex::wait(&island.stops, stops, Some(NAP)),
        }
    }
}

/// What one reading of the list of threads showed.
#[derive(Default)]
struct Pass {
    /// Threads that run.
    running: usize,
    /// Somebody came or went meanwhile. The kernel goes on in its list by
    /// counting, so such a reading can have missed somebody.
    moved: bool,
}

/// Whether every thread that was ever told has stopped or is dead.
fn all_told_are_still(island: &Island) -> bool {
    island.slots.iter().all(|slot| {
        slot.told.load(Ordering::Relaxed) == 0
            || slot.stopped.load(Ordering::Acquire) == 1
            || is_dead(slot.tid.load(Ordering::Relaxed))
    })
}

/// Tells every thread that is not told yet. `None` if there is no telling.
fn pass(island: &Island) -> Option<Pass> {
    let me = stop::tid();
    let mut seen = Pass::default();
    let mut lost = false;
    let tasks = Raw::open(c"/proc/self/task").ok()?;
    // SAFETY: this is the leaving thread, and no other borrow is alive.
    let text = unsafe { island.text() };
    let listed = tasks.entries(text, |name| {
        let Some(tid) = number(name).filter(|&tid| tid != me) else {
            return true;
        };
        let Some(slot) = island.slot(tid) else {
            lost = true;
            return false;
        };
        if slot.stopped.load(Ordering::Acquire) == 0 {
            match tell(island, slot, tid) {
                State::Running => seen.running += 1,
                State::Gone => seen.moved = true,
                State::Dead => {}
            }
        }
        true
    });
    (listed.is_ok() && !lost).then_some(seen)
}

/// How a listed thread is that has not stopped.
#[derive(PartialEq, Eq)]
enum State {
    Running,
    /// It has ended, and stays listed: a main thread that left before others.
    Dead,
    /// It is listed no more.
    Gone,
}

/// Tells a thread once to stop.
fn tell(island: &Island, slot: &Slot, tid: u32) -> State {
    if slot.told.swap(1, Ordering::Relaxed) == 1 {
        return state_of(tid);
    }
    match stop::signal(island.pid(), tid) {
        Ok(()) => State::Running,
        Err(ESRCH) => State::Gone,
        // No room for a queued signal: try again in the next pass.
        Err(_) => {
            slot.told.store(0, Ordering::Relaxed);
            State::Running
        }
    }
}

fn is_dead(tid: u32) -> bool {
    state_of(tid) != State::Running
}

/// From a thread's stat: Z or X is dead.
fn state_of(tid: u32) -> State {
    let mut path = *b"/proc/self/task/\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut stat = [0u8; 128];
    let name_at = 16;
    let digits = write_number(tid, &mut path[name_at..]);
    path[name_at + digits..][..5].copy_from_slice(b"/stat");
    let Ok(path) = CStr::from_bytes_until_nul(&path) else {
        return State::Running;
    };
    let read = match Raw::open(path) {
        Ok(file) => file.read(&mut stat),
        Err(ENOENT) => return State::Gone,
        Err(_) => return State::Running, // there is no telling
    };
    let Ok(read) = read else {
        return State::Gone; // ESRCH: ended between the two calls
    };
    // "tid (name) S …": a name may hold anything, so look from its end.
    let after = stat[..read].iter().rposition(|&b| b == b')');
    match after.and_then(|at| stat.get(at + 2)) {
        Some(b'Z' | b'X') => State::Dead,
        _ => State::Running,
    }
}

/// Runs on each thread that is told to stop.
extern "C" fn on_stop(_: c_int, _: *mut c_void, context: *mut c_void) {
    if let Some(island) = super::island()
        && let Some(slot) = island.slot(stop::tid())
    {
        slot.stack
            .store(stop::interrupted_stack(context), Ordering::Relaxed);
        slot.storage
            .store(stop::thread_pointer(), Ordering::Relaxed);
        // What is left to do here stands on this stack, until `park`.
        let here = 0u8;
        slot.handler
            .store((&raw const here).addr(), Ordering::Relaxed);
        slot.stopped.store(1, Ordering::Release);
        island.stops.fetch_add(1, Ordering::Release);
        futex::wake(&island.stops);
    }
    stop::park();
}

pub(super) fn number(name: &[u8]) -> Option<u32> {
    if name.is_empty() {
        return None;
    }
    name.iter().try_fold(0u32, |value, &b| match b {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u32::from(b - b'0')),
        _ => None,
    })
}

/// Writes a number in decimal; how many digits.
pub(super) fn write_number(mut number: u32, to: &mut [u8]) -> usize {
    let mut reversed = [0u8; 10];
    let mut digits = 0;
    loop {
        reversed[digits] = b'0' + (number % 10) as u8;
        digits += 1;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    for (place, digit) in to.iter_mut().zip(reversed[..digits].iter().rev()) {
        *place = *digit;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_way_there_and_back() {
        for n in [0, 7, 10, 4_194_304, u32::MAX] {
            let mut text = [0u8; 10];
            let digits = write_number(n, &mut text);
            assert_eq!(number(&text[..digits]), Some(n));
        }
        assert_eq!(number(b""), None);
        assert_eq!(number(b".."), None);
        assert_eq!(number(b"4294967296"), None);
    }
}
