//! Memory that the kernel may take back, with a definite answer whether it did.
//!
//! A cache in memory is worth keeping until somebody needs the memory for more.
//! Only the kernel knows when that is, and it has no call for this: swapping a
//! cache out costs more than computing it again, and a process that frees its
//! cache by itself does so too early or too late. Here a program *unpins* what
//! it can do without, and the kernel takes it under pressure, page by page, for
//! nothing; a *pin* makes it solid again and says whether it is all there.
//!
//! ```
//! use mmzap::volatile::{Answer, VolatileRegion};
//!
//! let region = VolatileRegion::new(1 << 20)?;
//! let mut page = region.pin_mut(0..4096)?;
//! page.fill(7);
//! drop(page); // from here on the kernel may have it
//!
//! let page = region.pin(0..4096)?;
//! match page.answer() {
//!     Answer::Kept => assert_eq!(page[100], 7),
//!     Answer::Purged(_) => assert_eq!(page[100], 0),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The counterparts elsewhere: vrange(2), which Linux never took; pinning and
//! unpinning of Android's ashmem; purgeable memory of macOS; Chromium's
//! discardable memory.
//!
//! **How.** Unpinned pages are freed lazily (`MADV_FREE`, Linux 4.12 without
//! swap), with a tag in the first word of each that tells whether a page is the
//! old one or a new one of zeros. What can happen at which moment is checked in
//! all orders by a model (tests in `tagged.rs`).
//!
//! **Why not `MAP_DROPPABLE`** (Linux 6.11): the kernel drops such pages whether
//! or not they are in use. A page can go between the look at it and its use, and
//! writing to it does not keep it, so that there is no way to pin, and no definite
//! answer.
//!
//! **Order.** The kernel takes lazily freed pages from its list of inactive file
//! pages, roughly in the order in which they were *first* freed: pinning a page and
//! unpinning it again does not renew its place, unless reclaim has met it meanwhile,
//! and there is no call to do so (`MADV_COLD` does nothing to such pages). So under
//! pressure of the kernel's what is used often can go first.
//! [`VolatileRegion::purge_now`] takes what was unpinned longest ago, exactly.
//!
//! **Not volatile** is memory that is locked (mlockall(2)): unpinning it is
//! allowed, and every answer is that it was kept;
//! [`VolatileRegion::refused_bytes`] says so.
//!
//! **Fork.** A child has a copy of the region, volatile as it was: each of the two
//! gets its own answers. What other threads had pinned at that moment stays pinned
//! in the child for good.

mod answer;
mod cache;
mod faults;
mod guards;
mod options;
mod order;
mod pins;
mod pressure;
mod region;
mod tagged;
mod wide;

pub use answer::{Answer, PinError, PurgePolicy, Stray};
pub use cache::{CacheStats, Guard, VolatileCache};
pub(crate) use faults::stray_faults;
pub use guards::{Pinned, PinnedMut};
pub use options::VolatileOptions;
pub use pressure::PurgeOnPressure;
pub use region::VolatileRegion;
