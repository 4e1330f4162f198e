//! A rayon pool of the caller's that lends its threads.

use std::{process, sync::Arc};

use rayon_core::ThreadPool;

use super::{Lender, Work};
use crate::error::Errno;

/// A pool and the process in which its threads live.
///
/// In the child of a fork they are not there, and a lock of rayon's that one of
/// them held is held for ever: nothing is asked of such a pool. (For a pool that
/// is first named in the child this cannot be known.)
pub(crate) struct Borrowed<'a> {
    pool: &'a ThreadPool,
    process: u32,
}

impl<'a> Borrowed<'a> {
    pub(crate) fn new(pool: &'a ThreadPool) -> Self {
        Self {
            pool,
            process: process::id(),
        }
    }
}

/// Each seat is a task of the pool. A busy pool comes to it late: it then holds
/// on to nothing and finds nothing to do, since the caller has done everything
/// meanwhile.
impl Lender for Borrowed<'_> {
    fn post(&self, work: &Arc<dyn Work>, seats: usize) -> Result<(), Errno> {
        if process::id() != self.process {
            return Ok(()); // seats need never be taken
        }
        for _ in 0..seats {
            let work = Arc::downgrade(work);
            self.pool.spawn(move || {
                if let Some(work) = work.upgrade() {
                    work.help();
                }
            });
        }
        Ok(())
    }

    fn withdraw(&self, _: &Arc<dyn Work>) {}

    fn binds(&self) -> bool {
        false
    }
}
