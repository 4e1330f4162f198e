//! The allocators that are compared.

use std::alloc::System;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Job;
use super::workload::{self, Measured};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocator {
    /// jemalloc that gives everything back at once, by MADV_DONTNEED.
    Purge,
    /// jemalloc as it comes.
    Jemalloc,
    /// The C library's.
    Glibc,
    /// mimalloc as it comes.
    Mimalloc,
    /// `mmzap::Alloc` around the C library's.
    Mmzap,
    /// jemalloc with mmzap's hooks.
    MmzapJemalloc,
}

pub const ALL: [Allocator; 6] = [
    Allocator::Purge,
    Allocator::Jemalloc,
    Allocator::Glibc,
    Allocator::Mimalloc,
    Allocator::Mmzap,
    Allocator::MmzapJemalloc,
];

impl Allocator {
    pub fn name(self) -> &'static str {
        match self {
            Allocator::Purge => "purge",
            Allocator::Jemalloc => "jemalloc",
            Allocator::Glibc => "glibc",
            Allocator::Mimalloc => "mimalloc",
            Allocator::Mmzap => "mmzap",
            Allocator::MmzapJemalloc => "mmzap-jemalloc",
        }
    }

    /// What its process finds in the environment. jemalloc has an arena for each
    /// thread: where two threads share one, it purges nothing while the other
    /// is at it, and the block is reused.
    pub fn environment(self, threads: usize) -> Option<(&'static str, String)> {
        let decay = match self {
            Allocator::Purge => ",dirty_decay_ms:0,muzzy_decay_ms:0",
            Allocator::Jemalloc | Allocator::MmzapJemalloc => "",
            _ => return None,
        };
        Some((
            "_RJEM_MALLOC_CONF",
            format!("narenas:{}{decay}", threads + 1),
        ))
    }

    /// Does the work with it.
    pub fn run(self, job: &Job) -> Result<Measured> {
        match self {
            Allocator::Glibc => workload::run(&System, job),
            Allocator::Mmzap => {
                static MMZAP: mmzap::Alloc<System> = mmzap::Alloc::new(System);
                let _keeper = MMZAP.cache().keep().context("cannot start a thread")?;
                workload::run(&MMZAP, job)
            }
            #[cfg(feature = "allocators")]
            Allocator::Mimalloc => workload::run(&mimalloc::MiMalloc, job),
            #[cfg(feature = "allocators")]
            Allocator::Purge | Allocator::Jemalloc => {
                workload::run(&tikv_jemallocator::Jemalloc, job)
            }
            #[cfg(feature = "allocators")]
            Allocator::MmzapJemalloc => {
                use std::time::Duration;
                mmzap::jemalloc::install_everywhere(Some(Duration::from_millis(5)))?;
                let keeper = mmzap::jemalloc::keep(Duration::from_millis(2));
                let _keeper = keeper.context("cannot start a thread")?;
                workload::run(&tikv_jemallocator::Jemalloc, job)
            }
            #[cfg(not(feature = "allocators"))]
            _ => Err(super::unavailable()),
        }
    }
}
