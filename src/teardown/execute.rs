//! One batch to the kernel, and what its answer means.
//!
//! An answer that is short or bad is resumed at exactly the rest; what cannot
//! be done is explained range by range, and the remaining ranges are still
//! done.

use super::job::Tally;
use crate::{
    error::{Errno, Error},
    gather::Batch,
    mapping::{Found, Kind, Mappings as _, Trait, smaps::HiddenTraits},
    operation::{Advice, Operation},
    range::PageRange,
    report::Reason,
    sys::{EACCES, EAGAIN, EINVAL, ENOMEM, EPERM, Kernel},
};

/// How often `EAGAIN` is tried again: the kernel gives it when a resource is
/// short for a moment, and each try scans what is short.
const TRIES: usize = 5;

/// A vector call that fails where the single call works may be a sandbox that
/// forbids it, or one odd answer. After this many in one batch the rest of
/// that batch goes by single calls; the next batch tries again.
const STRIKES: usize = 3;

pub(super) fn batch<K: Kernel>(
    kernel: &K,
    operation: Operation,
    batch: &Batch,
    hidden: &HiddenTraits,
    tally: &mut Tally,
) {
    let mut call = Call {
        kernel,
        operation,
        tally,
        hidden,
    };
    match batch {
        Batch::Span(range) => call.span(*range),
        Batch::Vector(ranges) => call.vector(ranges),
    }
}

struct Call<'a, K: Kernel> {
    kernel: &'a K,
    operation: Operation,
    tally: &'a mut Tally,
    hidden: &'a HiddenTraits,
}

impl<K: Kernel> Call<'_, K> {
    fn vector(&mut self, ranges: &[PageRange]) {
        let mut rest = ranges;
        let mut strikes = 0;
        while let [front, behind @ ..] = rest {
            if strikes == STRIKES {
                rest.iter().for_each(|range| self.span(*range));
                return;
            }
            self.tally.system_calls += 1;
            match self.kernel.advise_vector(rest, self.operation.advice()) {
                Some(Ok(bytes)) => {
                    let (done, stopped) = resume(rest, bytes);
                    self.tally.done_bytes += bytes.min(rest.iter().map(|r| r.len()).sum());
                    rest = rest.get(done..).unwrap_or_default();
                    if let (Some(stopped), [_, after @ ..]) = (stopped, rest) {
                        self.span(stopped);
                        rest = after;
                    }
                }
                // Nothing counts as done: the first range alone tells why.
                Some(Err(_)) => {
                    let before = self.tally.done_bytes;
                    self.span(*front);
                    rest = behind;
                    if self.tally.done_bytes - before == front.len() {
                        strikes += 1;
                    }
                }
                None => strikes = STRIKES,
            }
        }
    }

    fn span(&mut self, range: PageRange) {
        match self.ask(range, self.operation.advice()) {
            Ok(()) => self.tally.done_bytes += range.len(),
            Err(errno) => self.by_mapping(range, errno),
        }
    }

    fn ask(&mut self, range: PageRange, advice: Advice) -> Result<(), Errno> {
        let mut tries = 0;
        loop {
            self.tally.system_calls += 1;
            match self.kernel.advise(range, advice) {
                Err(EAGAIN) if tries < TRIES => tries += 1,
                answer => return answer,
            }
        }
    }

    /// Goes through the mappings of a range that was refused as a whole.
    ///
    /// With a hole the kernel has done the rest and says ENOMEM at the end;
    /// with anything else it stopped at the mapping that it refused.
    fn by_mapping(&mut self, range: PageRange, errno: Errno) {
        let mut mappings = self.kernel.mappings();
        let mut rest = Some(range);
        while let Some(now) = rest {
            let mapping = match mappings.at_or_after(now.start()) {
                Found::Mapping(mapping) => mapping,
                Found::Nothing => {
                    self.skip(now, Reason::Unmapped);
                    return;
                }
                Found::Unknown => {
                    self.refuse(
                        now,
                        errno,
                        "without /proc there is no telling which part was refused",
                    );
                    return;
                }
            };
            let (hole, mapped) = now.split_at(mapping.range.start());
            if let Some(hole) = hole {
                self.skip(hole, Reason::Unmapped);
            }
            let Some((Some(piece), after)) = mapped.map(|m| m.split_at(mapping.range.end())) else {
                return;
            };
            rest = after;
            if errno == ENOMEM && piece != range {
                self.tally.done_bytes += piece.len();
            } else if let Some(why) = self.operation.refuses(&mapping) {
                self.skip(piece, Reason::Kind(why));
            } else {
                let again = if piece == range && errno != ENOMEM {
                    Err(errno)
                } else {
                    self.ask(piece, self.operation.advice())
                };
                match again.or_else(|errno| self.otherwise(piece, errno)) {
                    Ok(()) => self.tally.done_bytes += piece.len(),
                    Err(errno) => self.explain(piece, mapping.kind, errno),
                }
            }
        }
    }

    /// Another advice to the same end, where there is one.
    fn otherwise(&mut self, piece: PageRange, errno: Errno) -> Result<(), Errno> {
        match (self.operation, errno) {
            // Locked memory that is about to be unmapped may go.
            (Operation::Unmap, EINVAL) => self.ask(piece, Advice::DontNeedLocked),
            // Before Linux 5.18, and for memory that is not locked.
            (Operation::DiscardLocked, EINVAL) => self.ask(piece, Advice::DontNeed),
            _ => Err(errno),
        }
    }

    /// Says why one mapping refused.
    fn explain(&mut self, piece: PageRange, kind: Kind, errno: Errno) {
        if self.operation == Operation::Unmap {
            return; // munmap(2) takes it without being emptied first
        }
        let reason = match errno {
            EINVAL => match self.traits(piece) {
                traits if traits.contains(&Trait::Locked) => Some(Reason::Locked),
                traits if traits.contains(&Trait::Device) => Some(Reason::Device),
                _ => None,
            },
            EPERM if self.traits(piece).contains(&Trait::Sealed) => Some(Reason::Sealed),
            EACCES if self.operation == Operation::Punch => Some(Reason::ReadOnlyFile),
            _ => None,
        };
        match reason {
            Some(reason) => self.skip(piece, reason),
            None => self.refuse(piece, errno, what_to_do(errno, kind)),
        }
    }

    fn traits(&self, piece: PageRange) -> &[Trait] {
        self.hidden.at(piece.start(), || self.kernel.hidden())
    }

    fn skip(&mut self, range: PageRange, reason: Reason) {
        self.tally.problems.skip(range.start(), range.len(), reason);
    }

    fn refuse(&mut self, range: PageRange, errno: Errno, advice: &'static str) {
        if self.operation == Operation::Unmap {
            return; // as in `explain`
        }
        let error = Error::new(self.operation, Some(range), 0, errno, advice);
        self.tally.problems.fail(error, range.len());
    }
}

/// Splits a vector after `bytes`: how many ranges are whole, and the rest of
/// the one that is not.
fn resume(ranges: &[PageRange], mut bytes: usize) -> (usize, Option<PageRange>) {
    for (index, range) in ranges.iter().enumerate() {
        if bytes < range.len() {
            return (index, range.split_at(range.start() + bytes).1);
        }
        bytes -= range.len();
    }
    (ranges.len(), None)
}

pub(super) fn what_to_do(errno: Errno, kind: Kind) -> &'static str {
    match errno {
        EINVAL if kind == Kind::HugeTlb => "discarding a huge-page file system needs Linux 5.18",
        EINVAL => "this kernel does not know the advice; see `mmzap doctor`",
        EPERM => "a sandbox (seccomp) forbids it; allow madvise, or unmap instead",
        ENOMEM => {
            "the kernel had no memory to split the mapping; raise vm.max_map_count or free larger ranges"
        }
        EAGAIN => "the kernel is short of a resource; try again later",
        _ => "the remaining ranges were worked on all the same",
    }
}

#[cfg(test)]
mod tests;
