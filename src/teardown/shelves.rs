//! The batches that lie ready: a deque for each memory node.

use crossbeam_deque::{Steal, Stealer, Worker};

use crate::gather::Batch;

/// Where there are several nodes, the plan runs ahead of the work until each
/// has this many batches, so that its threads need none of the others': memory is often a node's for gigabytes on end, and only what
/// lies ready can be chosen from.
const READY_PER_NODE: usize = 16;

/// But not further than this: what is planned later is planned better, and
/// vectors are 16 KiB each.
const AHEAD_MAX: usize = 1024;

/// The caller's side: it alone puts batches in.
pub(super) struct Shelves(Vec<Worker<Batch>>);

/// Everybody's side.
pub(super) struct Takers(Vec<Stealer<Batch>>);

impl Shelves {
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes.max(1)).map(|_| Worker::new_fifo()).collect())
    }

    pub(super) fn takers(&self) -> Takers {
        Takers(self.0.iter().map(Worker::stealer).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(Worker::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Worker::is_empty)
    }

    /// Whether one of several nodes has too little, and more should be planned.
    pub(super) fn lack(&self) -> bool {
        self.0.len() > 1
            && self.len() < AHEAD_MAX
            && self.0.iter().any(|node| node.len() < READY_PER_NODE)
    }

    pub(super) fn push(&self, node: usize, batch: Batch) {
        self.0[node % self.0.len()].push(batch);
    }

    /// The oldest batch of a node, or of the next ones.
    pub(super) fn pop(&self, home: usize) -> Option<Batch> {
        from(home, &self.0).find_map(Worker::pop)
    }
}

impl Takers {
    /// The oldest batch of a node; those of other nodes last.
    ///
    /// `Retry` means that another thread has just taken one: somebody made
    /// progress, so the loop is bounded by the number of batches.
    pub(super) fn take(&self, home: usize) -> Option<Batch> {
        from(home, &self.0).find_map(|deque| {
            loop {
                match deque.steal() {
                    Steal::Success(batch) => return Some(batch),
                    Steal::Retry => {}
                    Steal::Empty => return None,
                }
            }
        })
    }
}

/// All of them once, beginning with one.
fn from<T>(home: usize, all: &[T]) -> impl Iterator<Item = &T> {
    let home = home % all.len();
    all[home..].iter().chain(&all[..home])
}
