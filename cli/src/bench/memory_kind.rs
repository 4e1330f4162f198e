//! The kinds of memory that a bench can ask for.

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use crate::machine;
use crate::unavailable::Unavailable;

/// The page size of private memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Page {
    /// 4 KiB pages
    #[value(name = "4k")]
    #[serde(rename = "4k")]
    Small,
    /// transparent huge pages
    #[value(name = "thp")]
    #[serde(rename = "thp")]
    Thp,
}

impl Page {
    /// Fails where the machine has no such pages.
    pub fn check(self) -> Result<()> {
        if self == Page::Small {
            return Ok(());
        }
        match machine::thp().as_deref() {
            None => Err(Unavailable::because(
                "this kernel has no transparent huge pages",
            )),
            Some("never") => Err(Unavailable::because(
                "transparent huge pages are set to never: \
                 `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` as root allows them",
            )),
            Some(_) => Ok(()),
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Page::Small => "4k",
            Page::Thp => "thp",
        }
    }
}

/// What stands behind address space that holds little memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backing {
    /// the kernel's page of zeros
    Zero,
    /// one file in memory, mapped again and again
    Memfd,
}
