//! A rayon pool of the caller's that lends its threads.

use std::sync::Arc;

use rayon_core::ThreadPool;

use super::{Lender, Work};
use crate::error::Errno;

/// Each seat is a task of the pool. A busy pool comes to it late, one whose
/// threads are not there (after a fork) never: such a task holds on to nothing
/// and finds nothing to do, since the caller has done everything meanwhile.
impl Lender for ThreadPool {
    fn post(&self, work: &Arc<dyn Work>, seats: usize) -> Result<(), Errno> {
        for _ in 0..seats {
            let work = Arc::downgrade(work);
            self.spawn(move || {
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
