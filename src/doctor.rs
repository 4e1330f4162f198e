//! What this kernel and this sandbox allow, and what mmzap does instead.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    error::Errno,
    operation::Advice,
    sys::{
        probe::{self, Vectors},
        stop,
    },
    volatile,
};

/// One thing that a kernel may or may not offer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capability {
    /// A short name.
    pub name: &'static str,
    /// Whether it works here, by trying it on a throwaway page.
    pub available: bool,
    /// What was found.
    pub detail: String,
    /// What mmzap does where it is missing.
    pub fallback: &'static str,
}

/// All of them; see [`capabilities`].
#[derive(Clone, Debug)]
pub struct Capabilities(Vec<Capability>);

impl Capabilities {
    /// The capabilities, in the order in which `mmzap doctor` prints them.
    #[must_use]
    pub fn list(&self) -> &[Capability] {
        &self.0
    }
}

/// Tries everything that mmzap can make use of, once for the process.
///
/// A sandbox that kills for an unknown call kills here: a job itself tries
/// only what it needs.
#[must_use]
pub fn capabilities() -> &'static Capabilities {
    // No lock: a child forked meanwhile would wait for it for ever.
    static ALL: AtomicPtr<Capabilities> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: what is stored was leaked from a box and is never freed.
    if let Some(known) = unsafe { ALL.load(Ordering::Acquire).as_ref() } {
        return known;
    }
    let found: &'static Capabilities = Box::leak(Box::new(Capabilities(probe_all())));
    ALL.store(ptr::from_ref(found).cast_mut(), Ordering::Release);
    found
}

fn probe_all() -> Vec<Capability> {
    let by = |name, answer: Result<(), Errno>, fallback| Capability {
        name,
        available: answer.is_ok(),
        detail: match answer {
            Ok(()) => "works".to_owned(),
            Err(errno) => format!("{errno:?}"),
        },
        fallback,
    };
    let advice = |name, advice, fallback| by(name, probe::advice(advice), fallback);
    let vectors = probe::vectors();
    vec![
        advice(
            "madvise DONTNEED",
            Advice::DontNeed,
            "nothing can be discarded; munmap on one thread",
        ),
        Capability {
            name: "process_madvise on itself",
            available: !matches!(vectors, Vectors::No(_)),
            detail: match vectors {
                Vectors::Itself => "works, by PIDFD_SELF".to_owned(),
                Vectors::Pidfd => "works, by pidfd_open".to_owned(),
                Vectors::No(errno) => format!("{errno:?} (Linux 6.13 has it)"),
            },
            fallback: "one madvise for each range, on one thread where ranges are small",
        },
        advice(
            "madvise DONTNEED_LOCKED",
            Advice::DontNeedLocked,
            "mlocked memory is reported and stays, or goes when it is unmapped",
        ),
        advice(
            "madvise FREE",
            Advice::Free,
            "lazy freeing discards at once, and the report says so",
        ),
        advice("madvise COLD", Advice::Cold, "the hint is refused"),
        advice("madvise PAGEOUT", Advice::PageOut, "paging out is refused"),
        Capability {
            name: "PROCMAP_QUERY",
            available: probe::procmap_query(),
            detail: if probe::procmap_query() {
                "works"
            } else {
                "no answer (Linux 6.11 has it)"
            }
            .to_owned(),
            fallback: "/proc/self/maps is read once for a job",
        },
        by(
            "pidfd_open",
            probe::pidfd_open(),
            "not needed where PIDFD_SELF works; else as without process_madvise",
        ),
        by(
            "process_mrelease",
            probe::process_mrelease(),
            "a killed process frees its memory alone",
        ),
        by(
            "volatile memory that faults",
            volatile::stray_faults(),
            "purged memory reads zero; a region that is to fault cannot be made",
        ),
        Capability {
            name: "parallel exit",
            available: stop::SUPPORTED,
            detail: match (stop::SUPPORTED, stop::same_memory(stop::pid(), stop::pid())) {
                (false, _) => "needs glibc on x86-64".to_owned(),
                (true, Ok(_)) => "works".to_owned(),
                (true, Err(errno)) => {
                    format!(
                        "works; kcmp: {errno:?}, so a process of our size is taken for a sharer"
                    )
                }
            },
            fallback: "exit::parallel is a plain exit",
        },
        Capability {
            name: "transparent huge pages",
            available: probe::transparent_huge_pages().is_some_and(|mode| mode != "never"),
            detail: probe::transparent_huge_pages().unwrap_or_else(|| "not built in".to_owned()),
            fallback: "4 KiB pages: freeing costs more, and threads help more",
        },
    ]
}
