//! Arenas of jemalloc that give memory back through this library.
//!
//! jemalloc lets a program replace what an arena does to its extents. With the
//! hooks of [`install`] pages are freed lazily where that is lazy, large extents
//! are discarded and unmapped by several threads, and everything else stays as
//! jemalloc does it.
//!
//! ```
//! # use std::time::Duration;
//! use mmzap::jemalloc;
//!
//! // All arenas, and pages lazily free after five milliseconds.
//! jemalloc::install_everywhere(Some(Duration::from_millis(5)))?;
//! // Even if the program goes quiet.
//! let _keeper = jemalloc::keep(Duration::from_millis(2))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    ffi::{CString, c_uint, c_void},
    fmt, io,
    mem::size_of,
    process, ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tikv_jemalloc_sys::{dallocx, extent_hooks_t, mallctl, mallocx};

use crate::{
    operation::Operation,
    range::PageRange,
    sys::{
        self,
        linux::advise,
        probe::{self, Laziness},
    },
    teardown::{PartialFolios, Teardown},
};

/// From this size on several threads work on one extent.
const PARALLEL_BYTES: usize = 64 << 20;

/// How long pages that were freed lazily are kept where that was not set. It
/// was jemalloc's own default, and costs nobody memory.
const LAZY_DECAY_MS: isize = 10_000;

/// How many arenas there can be is how all of them are named
/// (`MALLCTL_ARENAS_ALL`).
const ALL_ARENAS: &str = "arena.4096";

/// What hooks answer with.
#[allow(non_camel_case_types, reason = "as jemalloc has it")]
type c_bool = bool;

/// A hook did not do it; jemalloc then tries what comes next, or lets it be.
const LEFT: c_bool = true;

/// jemalloc did not take a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    name: String,
    errno: i32,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.errno);
        write!(f, "jemalloc refuses {}: {error}", self.name)
    }
}

impl std::error::Error for Refused {}

/// Hooks of ours, and those that were there before.
#[repr(C)]
struct Hooks {
    /// First: jemalloc passes a pointer to it, and it is a pointer to the whole.
    ours: extent_hooks_t,
    theirs: *mut extent_hooks_t,
}

/// Lets `arena` give memory back through this library, from now on and for the
/// life of the arena (`arena.<i>.extent_hooks`). An arena that does not exist
/// yet is made. Doing it again changes nothing.
///
/// Hooks that the arena has not are not added. Those that it has are taken to be
/// jemalloc's own, or others over private anonymous memory: pages of an arena over
/// shared memory or a huge-page file system are not given up by what is done here.
///
/// jemalloc frees nothing lazily where `arena.<i>.muzzy_decay_ms` is 0, which
/// is its default: then it becomes ten seconds, after which pages that nobody
/// wanted are discarded.
///
/// # Errors
/// [`Refused`] where there can be no such arena.
pub fn install(arena: u32) -> Result<(), Refused> {
    let name = format!("arena.{arena}.extent_hooks");
    let theirs: *mut extent_hooks_t = read(&name)?;
    // SAFETY: jemalloc keeps the hooks of an arena valid.
    let before = unsafe { theirs.as_ref() }.ok_or_else(|| Refused {
        name: name.clone(),
        errno: sys::EINVAL.0,
    })?;
    let ours: unsafe extern "C" fn(_, _, _, _, _) = destroy;
    if before
        .destroy
        .is_some_and(|hook| ptr::fn_addr_eq(hook, ours))
    {
        return Ok(());
    }
    let hooks = Box::leak(Box::new(Hooks {
        ours: extent_hooks_t {
            alloc: before.alloc.is_some().then_some(alloc as _),
            dalloc: before.dalloc.is_some().then_some(dalloc as _),
            destroy: before.destroy.is_some().then_some(destroy as _),
            commit: before.commit.is_some().then_some(commit as _),
            decommit: before.decommit.is_some().then_some(decommit as _),
            purge_lazy: before.purge_lazy.is_some().then_some(purge_lazy as _),
            purge_forced: before.purge_forced.is_some().then_some(purge_forced as _),
            split: before.split.is_some().then_some(split as _),
            merge: before.merge.is_some().then_some(merge as _),
        },
        theirs,
    }));
    write(&name, &raw mut hooks.ours)?;
    let decay = format!("arena.{arena}.muzzy_decay_ms");
    if read::<isize>(&decay)? == 0 {
        write(&decay, LAZY_DECAY_MS)?;
    }
    Ok(())
}

/// [`install`] for every arena that threads are given by turns
/// (`opt.narenas`) and for the one of blocks of 8 MiB and more
/// (`opt.oversize_threshold`), which jemalloc gives up as soon as they are freed,
/// and, if wanted, how long free pages stay untouched there
/// (`arena.<i>.dirty_decay_ms`).
///
/// # Errors
/// [`Refused`], with the arenas before that one done.
pub fn install_everywhere(delay: Option<Duration>) -> Result<(), Refused> {
    let arenas: c_uint = read("opt.narenas")?;
    let oversize: usize = read("opt.oversize_threshold")?;
    if oversize > 0 {
        // The arena next in number comes with the first block of that size.
        // SAFETY: a block that is freed as it was allocated, and never touched.
        unsafe {
            let block = mallocx(oversize, 0);
            if !block.is_null() {
                dallocx(block, 0);
            }
        }
    }
    for arena in 0..arenas + c_uint::from(oversize > 0) {
        install(arena)?;
        if let Some(delay) = delay {
            let millis = isize::try_from(delay.as_millis()).unwrap_or(isize::MAX);
            write(&format!("arena.{arena}.dirty_decay_ms"), millis)?;
        }
    }
    Ok(())
}

/// Lets jemalloc look at what is due in all arenas, again and again.
///
/// jemalloc looks when its functions are called, and its own background thread
/// ten times a second. With this, what was freed is given up at its time even if
/// the program goes quiet, at the price of a thread that wakes every `period`.
/// It is never a real-time one, ends when this is dropped, and is gone in the
/// child of a fork.
#[derive(Debug)]
pub struct Keeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

/// Starts a [`Keeper`].
///
/// # Errors
/// Those of starting a thread.
pub fn keep(period: Duration) -> io::Result<Keeper> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = sys::thread::spawn_quiet("mmzap-jemalloc", move || {
        sys::thread::leave_real_time();
        let decay = format!("{ALL_ARENAS}.decay");
        while !stopped.load(Ordering::Acquire) {
            let nothing = ptr::null_mut();
            // It is refused while an arena is being made or destroyed.
            let _next_time = control(&decay, nothing, ptr::null_mut(), nothing, 0);
            thread::park_timeout(period);
        }
    })?;
    Ok(Keeper {
        stop,
        thread: Some(thread),
        process: process::id(),
    })
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            if self.process == process::id() {
                thread.thread().unpark();
            }
            sys::thread::join_in(self.process, thread);
        }
    }
}

fn read<T: Copy>(name: &str) -> Result<T, Refused> {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    let mut len = size_of::<T>();
    control(
        name,
        value.as_mut_ptr().cast(),
        &raw mut len,
        ptr::null_mut(),
        0,
    )?;
    // SAFETY: jemalloc answers EINVAL where the length is another.
    Ok(unsafe { value.assume_init() })
}

fn write<T>(name: &str, mut value: T) -> Result<(), Refused> {
    let value = (&raw mut value).cast();
    control(
        name,
        ptr::null_mut(),
        ptr::null_mut(),
        value,
        size_of::<T>(),
    )
}

fn control(
    name: &str,
    old: *mut c_void,
    old_len: *mut usize,
    new: *mut c_void,
    new_len: usize,
) -> Result<(), Refused> {
    let refused = |errno| Refused {
        name: name.to_owned(),
        errno,
    };
    let text = CString::new(name).map_err(|_| refused(sys::EINVAL.0))?;
    // SAFETY: the buffers are as long as is said, and their types those of the
    // names that this file uses.
    match unsafe { mallctl(text.as_ptr(), old, old_len, new, new_len) } {
        0 => Ok(()),
        errno => Err(refused(errno)),
    }
}

/// The hooks from before, and their structure, which they are passed.
///
/// # Safety
/// `hooks` must be what jemalloc passes to a hook of ours.
unsafe fn theirs<'a>(hooks: *mut extent_hooks_t) -> (&'a extent_hooks_t, *mut extent_hooks_t) {
    // SAFETY: it is the first field of a `Hooks` that is never freed, and the
    // hooks from before are as long-lived.
    unsafe {
        let theirs = (*hooks.cast::<Hooks>()).theirs;
        (&*theirs, theirs)
    }
}

/// A part of an extent.
fn part(addr: *mut c_void, offset: usize, length: usize) -> Option<PageRange> {
    PageRange::new(addr.addr().checked_add(offset)?, length, sys::page_bytes())
}

/// Whether a job may be made of it. A job allocates, which jemalloc serves from
/// arena 0 while a hook runs, and so not while a hook of arena 0 does.
fn in_parallel(part: PageRange, arena: c_uint) -> bool {
    part.len() >= PARALLEL_BYTES && arena != 0
}

/// # Safety
/// The pages are those of an extent that jemalloc gives up.
unsafe fn job(operation: Operation, part: PageRange) -> bool {
    let pages = [(part.start() as *mut u8, part.len())];
    // SAFETY: passed on.
    let report = unsafe {
        Teardown::new(operation)
            .partial_folios(PartialFolios::Discard)
            .run_raw(pages)
    };
    report.bytes_done == part.len()
}

/// # Safety
/// jemalloc gives up what is in that part of an extent.
unsafe fn purge(operation: Operation, part: Option<PageRange>, arena: c_uint) -> c_bool {
    let done = part.is_some_and(|part| {
        if in_parallel(part, arena) {
            // SAFETY: passed on.
            unsafe { job(operation, part) }
        } else {
            advise(part, operation.advice()).is_ok()
        }
    });
    if done { !LEFT } else { LEFT }
}

unsafe extern "C" fn purge_lazy(
    _: *mut extent_hooks_t,
    addr: *mut c_void,
    _: usize,
    offset: usize,
    length: usize,
    arena: c_uint,
) -> c_bool {
    if probe::laziness() != Laziness::Lazy {
        return LEFT; // it then asks for a forced purge
    }
    // SAFETY: that is what jemalloc asks for.
    unsafe { purge(Operation::LazyFree, part(addr, offset, length), arena) }
}

unsafe extern "C" fn purge_forced(
    _: *mut extent_hooks_t,
    addr: *mut c_void,
    _: usize,
    offset: usize,
    length: usize,
    arena: c_uint,
) -> c_bool {
    // SAFETY: that is what jemalloc asks for; it counts on zeros afterwards.
    unsafe { purge(Operation::Discard, part(addr, offset, length), arena) }
}

/// Empties a large extent that jemalloc gives up, in parallel: what the hook does
/// then takes no time.
fn empty_first(addr: *mut c_void, size: usize, arena: c_uint) {
    if let Some(part) = part(addr, 0, size).filter(|part| in_parallel(*part, arena)) {
        // SAFETY: the extent is jemalloc's to give up.
        let _ = unsafe { job(Operation::Discard, part) };
    }
}

unsafe extern "C" fn dalloc(
    hooks: *mut extent_hooks_t,
    addr: *mut c_void,
    size: usize,
    committed: c_bool,
    arena: c_uint,
) -> c_bool {
    empty_first(addr, size, arena);
    // SAFETY: passed on as it came.
    unsafe {
        let (before, theirs) = theirs(hooks);
        match before.dalloc {
            // jemalloc's own keeps the addresses unless `opt.retain` is off.
            Some(hook) => hook(theirs, addr, size, committed, arena),
            None => LEFT,
        }
    }
}

unsafe extern "C" fn destroy(
    hooks: *mut extent_hooks_t,
    addr: *mut c_void,
    size: usize,
    committed: c_bool,
    arena: c_uint,
) {
    empty_first(addr, size, arena);
    // SAFETY: passed on as it came.
    unsafe {
        let (before, theirs) = theirs(hooks);
        if let Some(hook) = before.destroy {
            hook(theirs, addr, size, committed, arena);
        }
    }
}

unsafe extern "C" fn alloc(
    hooks: *mut extent_hooks_t,
    addr: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut c_bool,
    commit: *mut c_bool,
    arena: c_uint,
) -> *mut c_void {
    // SAFETY: passed on as it came.
    unsafe {
        let (before, theirs) = theirs(hooks);
        match before.alloc {
            Some(hook) => hook(theirs, addr, size, alignment, zero, commit, arena),
            None => ptr::null_mut(),
        }
    }
}

/// A hook that does what the one before did, or nothing.
macro_rules! pass_on {
    ($name:ident($($argument:ident: $kind:ty),* $(,)?)) => {
        unsafe extern "C" fn $name(hooks: *mut extent_hooks_t, $($argument: $kind),*) -> c_bool {
            // SAFETY: passed on as it came.
            unsafe {
                let (before, theirs) = theirs(hooks);
                before.$name.map_or(LEFT, |hook| hook(theirs, $($argument),*))
            }
        }
    };
}

pass_on!(commit(
    addr: *mut c_void,
    size: usize,
    offset: usize,
    length: usize,
    arena: c_uint,
));
pass_on!(decommit(
    addr: *mut c_void,
    size: usize,
    offset: usize,
    length: usize,
    arena: c_uint,
));
pass_on!(split(
    addr: *mut c_void,
    size: usize,
    first: usize,
    second: usize,
    committed: c_bool,
    arena: c_uint,
));
pass_on!(merge(
    first: *mut c_void,
    first_size: usize,
    second: *mut c_void,
    second_size: usize,
    committed: c_bool,
    arena: c_uint,
));
