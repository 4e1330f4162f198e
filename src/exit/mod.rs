//! Leaving with a lot of memory.
//!
//! The kernel tears a process down on one CPU. [`parallel`] gives the memory
//! back on all of them first, at the last moment at which this process can.

mod island;
mod sweep;
mod world;

use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{
    crew::default_max_active,
    sys::{stop, thread},
};
use island::Island;

/// Where the last steps find what they stand on.
static ISLAND: AtomicPtr<Island> = AtomicPtr::new(std::ptr::null_mut());

/// A process with less private memory than this is gone before its threads are
/// stopped: 64 MiB of 4 KiB pages are 2 to 4 ms of the kernel's work.
const WORTH_BYTES: usize = 64 << 20;

/// Ends the process as `std::process::exit` does, but gives large private
/// memory back on several CPUs.
///
/// In this order:
/// 1. Exit handlers (`atexit`, destructors of libraries, thread-local
///    destructors of the calling thread) run and streams are flushed, all by
///    exit(3) itself.
/// 2. The other threads are stopped, as a garbage collector stops the world:
///    each sleeps in a signal handler, after its system call in progress. None
///    runs on over memory that is gone, none writes its zeros anywhere.
/// 3. Every private anonymous mapping of at least 1 MiB is discarded
///    (`MADV_DONTNEED`) by [`default_max_active`]
///    threads, except the stacks, thread-local storage, and what the last
///    steps themselves stand on. Nothing is allocated any more.
/// 4. exit_group(2) with `code`.
///
/// **It is a plain exit** whenever step 2 or 3 cannot be had: a thread that is
/// not stopped within a tenth of a second (uninterruptible sleep, a vfork
/// child not yet gone), memory shared with another process by `CLONE_VM`, an
/// io_uring, vhost device or userfaultfd (the kernel would read emptied
/// buffers, or wait for an answer that never comes), no /proc, a C library other than glibc, a CPU
/// other than x86-64, helper threads refused, or less than 64 MiB to free. The
/// process ends with the same code either way.
///
/// Of two threads that leave at once the first decides the code, and the other
/// sleeps until the process is gone, as with `std::process::exit`.
///
/// ```no_run
/// let cache = vec![1u8; 1 << 30];
/// println!("done with {} bytes", cache.len());
/// mmzap::exit::parallel(0)
/// ```
pub fn parallel(code: i32) -> ! {
    prepare(code);
    std::process::exit(code)
}

/// Makes what the last steps need, while there is still an allocator. If
/// anything is missing, nothing is armed and exit(3) stays what it is.
fn prepare(code: i32) {
    if !stop::SUPPORTED || private_bytes() < WORTH_BYTES {
        return;
    }
    let Some(island) = Island::make(code) else {
        return;
    };
    let new = std::ptr::from_ref(island).cast_mut();
    if ISLAND
        .compare_exchange(
            std::ptr::null_mut(),
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        )
        .is_err()
    {
        return;
    }
    island.leave_by_this_thread();
    for _ in 0..default_max_active() {
        if thread::spawn_quiet("mmzap-exit", work).is_ok() {
            island.workers_started();
        }
    }
    if island.has_workers() {
        // Refused: exit(3) stays plain.
        let _ = stop::run_last(last);
    }
}

fn island() -> Option<&'static Island> {
    // SAFETY: what is stored is an island that is never unmapped.
    unsafe { ISLAND.load(Ordering::Acquire).as_ref() }
}

/// A worker: waits, sweeps, sleeps for ever.
fn work() {
    if let Some(island) = island() {
        island.note_worker();
        island.wait_for_go();
        sweep::work(island);
    }
    stop::park();
}

/// Inside exit(3), after the handlers and the flush. Returning means a plain
/// exit.
extern "C" fn last() {
    let Some(island) = island() else { return };
    // A child forked by an exit handler inherits the hook but not the workers.
    // And another thread's exit(3) may have come first, with another code.
    if stop::pid() != island.pid() || !island.is_leaver() {
        return;
    }
    // Our stream comes before older ones: let those have their turn first.
    if !stop::handlers_done() || !stop::settle_streams() || !island.workers_ready() {
        return;
    }
    stop::block_everything();
    // Looked at last, when nobody can open or share anything any more.
    if world::stop(island) && sweep::is_safe(island) && sweep::is_alone(island) {
        sweep::all(island);
    }
    stop::exit_group(island.code());
}

/// Resident memory of this process that no file backs, in bytes.
fn private_bytes() -> usize {
    let Ok(text) = std::fs::read_to_string("/proc/thread-self/statm") else {
        return 0;
    };
    let mut fields = text.split_ascii_whitespace().skip(1);
    let mut next = || fields.next()?.parse::<usize>().ok();
    let (Some(resident), Some(shared)) = (next(), next()) else {
        return 0;
    };
    resident
        .saturating_sub(shared)
        .saturating_mul(crate::sys::page_bytes())
}
