//! A kernel for tests: an address space made up, answers made to order.
//!
//! It follows the real one in what matters: a hole lets the rest be done and
//! ends in ENOMEM, any other refusal stops there, and a vector counts only
//! whole ranges.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
};

use super::{EINVAL, ENOMEM, EPERM, Kernel, VECTOR_BYTES_MAX, affinity::Cpus};
use crate::{
    error::Errno,
    mapping::{Found, Kind, Mapping, Mappings, Trait, smaps::Hidden},
    operation::Advice,
    range::PageRange,
};

/// A mapping with what smaps would tell.
#[derive(Clone, Debug)]
pub(crate) struct Fake {
    pub(crate) mapping: Mapping,
    pub(crate) traits: Vec<Trait>,
}

impl Fake {
    pub(crate) fn new(start: usize, len: usize, traits: &[Trait]) -> Self {
        let mapping = Mapping {
            range: PageRange::new(start, len, 4096).expect("pages"),
            kind: Kind::Anonymous,
            page_bytes: 4096,
            writable: true,
        };
        Self {
            mapping,
            traits: traits.to_vec(),
        }
    }
}

/// Memory nodes, and who worked on what; one node where nothing is said.
#[derive(Default)]
pub(crate) struct Nodes {
    pub(crate) count: usize,
    pub(crate) node_at: Option<fn(usize) -> usize>,
    /// Where each thread was told to stay.
    pub(crate) homes: Mutex<HashMap<ThreadId, usize>>,
    /// How often the node of a page was asked for.
    pub(crate) questions: AtomicUsize,
    /// Thread and range of every single advice, in order.
    pub(crate) advised: Mutex<Vec<(ThreadId, PageRange)>>,
}

#[derive(Default)]
pub(crate) struct Scripted {
    pub(crate) space: Vec<Fake>,
    /// Answers that come before the simulated ones.
    pub(crate) singles: Mutex<VecDeque<Result<(), Errno>>>,
    pub(crate) vectors: Mutex<VecDeque<Option<Result<usize, Errno>>>>,
    /// Every page range that was really advised, in order.
    pub(crate) advised: Mutex<Vec<PageRange>>,
    pub(crate) unmapped: Mutex<Vec<PageRange>>,
    /// How often smaps was read.
    pub(crate) hidden_reads: AtomicUsize,
    pub(crate) blind: bool,
    pub(crate) nodes: Arc<Nodes>,
    /// Called at each single advice: where a test holds a thread in the kernel.
    pub(crate) on_advise: Option<Box<dyn Fn() + Send + Sync>>,
}

pub(crate) struct View(Vec<Mapping>, bool);

impl Mappings for View {
    fn at_or_after(&mut self, addr: usize) -> Found {
        if self.1 {
            Found::Unknown
        } else {
            self.0.as_slice().at_or_after(addr)
        }
    }
}

impl Scripted {
    pub(crate) fn with(space: Vec<Fake>) -> Self {
        Self {
            space,
            ..Self::default()
        }
    }

    pub(crate) fn advised_bytes(&self) -> usize {
        self.advised
            .lock()
            .unwrap()
            .iter()
            .map(|range| range.len())
            .sum()
    }

    fn simulate(&self, range: PageRange, advice: Advice) -> Result<(), Errno> {
        let mut at = range.start();
        let mut hole = false;
        for fake in &self.space {
            let Some(part) = fake.mapping.range.intersect(range) else {
                continue;
            };
            hole |= part.start() > at;
            if fake.traits.contains(&Trait::Locked) && advice != Advice::DontNeedLocked {
                return Err(EINVAL);
            }
            if fake.traits.contains(&Trait::Device) {
                return Err(EINVAL);
            }
            if fake.traits.contains(&Trait::Sealed) {
                return Err(EPERM);
            }
            self.advised.lock().unwrap().push(part);
            at = part.end();
        }
        if hole || at < range.end() {
            Err(ENOMEM)
        } else {
            Ok(())
        }
    }
}

impl Kernel for Scripted {
    type Mappings = View;

    fn advise(&self, range: PageRange, advice: Advice) -> Result<(), Errno> {
        if let Some(hook) = &self.on_advise {
            hook();
        }
        self.nodes
            .advised
            .lock()
            .unwrap()
            .push((thread::current().id(), range));
        let scripted = self.singles.lock().unwrap().pop_front();
        scripted.unwrap_or_else(|| self.simulate(range, advice))
    }

    fn advise_vector(&self, ranges: &[PageRange], advice: Advice) -> Option<Result<usize, Errno>> {
        if let Some(answer) = self.vectors.lock().unwrap().pop_front() {
            if let Some(Ok(bytes)) = answer {
                let mut left = bytes;
                for range in ranges {
                    if let (Some(part), _) = range.split_at(range.start() + left.min(range.len())) {
                        self.advised.lock().unwrap().push(part);
                        left -= part.len();
                    }
                }
            }
            return answer;
        }
        let mut done = 0;
        for range in ranges {
            if done + range.len() > VECTOR_BYTES_MAX {
                return Some(Ok(done));
            }
            match self.simulate(*range, advice) {
                Ok(()) => done += range.len(),
                Err(errno) if done == 0 => return Some(Err(errno)),
                Err(_) => return Some(Ok(done)),
            }
        }
        Some(Ok(done))
    }

    fn has_vectors(&self) -> bool {
        true
    }

    fn unmap(&self, range: PageRange) -> Result<(), Errno> {
        let sealed = |fake: &Fake| {
            fake.traits.contains(&Trait::Sealed) && fake.mapping.range.intersect(range).is_some()
        };
        if self.space.iter().any(sealed) {
            return Err(EPERM);
        }
        self.unmapped.lock().unwrap().push(range);
        Ok(())
    }

    fn mappings(&self) -> View {
        View(
            self.space.iter().map(|fake| fake.mapping.clone()).collect(),
            self.blind,
        )
    }

    fn hidden(&self) -> Vec<Hidden> {
        self.hidden_reads.fetch_add(1, Ordering::Relaxed);
        self.space
            .iter()
            .filter(|fake| !fake.traits.is_empty())
            .map(|fake| Hidden {
                range: fake.mapping.range,
                traits: fake.traits.clone(),
            })
            .collect()
    }

    fn nodes(&self) -> usize {
        self.nodes.count.max(1)
    }

    fn node_of(&self, ranges: &[PageRange]) -> Option<usize> {
        self.nodes.questions.fetch_add(1, Ordering::Relaxed);
        self.nodes.node_at.map(|node_at| node_at(ranges[0].start()))
    }

    fn node_here(&self) -> usize {
        let homes = self.nodes.homes.lock().unwrap();
        homes.get(&thread::current().id()).copied().unwrap_or(0)
    }

    fn stay_on(&self, node: usize, _: &Cpus) {
        let mut homes = self.nodes.homes.lock().unwrap();
        homes.insert(thread::current().id(), node);
    }
}
