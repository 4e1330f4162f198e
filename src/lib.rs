#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod alloc;
pub mod cgroup;
mod crew;
mod doctor;
mod error;
pub mod exit;
mod fork_lock;
pub mod gather;
#[cfg(feature = "jemalloc")]
pub mod jemalloc;
pub mod lazy;
mod map;
pub mod mapping;
mod operation;
mod owned;
mod pace;
mod pressure;
mod range;
mod report;
mod sys;
mod teardown;
mod tune;
pub mod volatile;

pub use alloc::{Alloc, LARGE_BYTES};
pub use crew::{MaxActive, default_max_active, physical_cores};
pub use doctor::{Capabilities, Capability, capabilities};
pub use error::{Errno, Error, Result};
pub use map::{Map, MapOptions};
pub use operation::Operation;
pub use owned::OwnedMap;
pub use range::{BadRange, Cut, PageRange};
pub use report::{Reason, Report, Skipped};
pub use teardown::{Cancel, PartialFolios, Progress, Teardown};
