//! Stopping a job.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Stops a job between two batches, from any thread.
///
/// ```
/// let cancel = mmzap::Cancel::default();
/// let job = mmzap::Teardown::new(mmzap::Operation::Discard).cancel(&cancel);
/// cancel.now();
/// # drop(job);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Stops the jobs that were given this token, for good. Batches in the
    /// kernel are finished; the rest is reported as cancelled.
    pub fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`now`](Self::now) was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
