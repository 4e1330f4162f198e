//! How much to hand to the kernel at once, and whether others help.
//!
//! Pure: the pace of the batches so far goes in, the next step comes out. What
//! a byte costs differs by a factor of fifty (4 KiB pages, huge pages, empty
//! address space), and nothing tells beforehand; so the first batch is a small
//! one of the caller's own, and its time says the rest.

use std::time::Duration;

use crate::operation::Operation;

/// Bytes of the first batch: long enough to be timed (0.2 ms of 4 KiB pages),
/// short enough not to matter when everybody else waits for it.
pub(crate) const FIRST_BYTES: usize = 8 << 20;

/// A batch shorter than this says little: its fixed costs may be most of it.
/// The next one is larger, and nobody is woken yet. 8 MiB of 4 KiB pages last
/// longer on any machine known.
const TELLING: Duration = Duration::from_micros(150);

/// Bytes of the smallest batch: of memory that takes longer than that, as paging
/// out does, a huge page at a time.
const BATCH_BYTES_MIN: usize = 2 << 20;

/// By how much a batch grows after one that said little.
const GROWTH: usize = 16;

/// A batch ends in a TLB flush that interrupts every CPU on which a thread of
/// the process runs: up to 45 µs in a virtual machine. Shorter batches would
/// spend more than a tenth of their time on that.
const BATCH_MIN: Duration = Duration::from_millis(1);

/// How long a change of width, a cancellation or the last straggler may keep
/// others waiting. Longer batches gain nothing (docs/measurements.md).
const BATCH_MAX: Duration = Duration::from_millis(4);

/// Batches for each thread: a straggler then keeps the others waiting for a
/// small part of the job.
const BATCHES_PER_THREAD: u32 = 4;

/// Less work than this is done before a helper is awake and has paid for the
/// interrupts that its presence causes.
const ALONE: Duration = Duration::from_millis(3);

/// The same for lazy freeing. Of folios larger than a page each takes the lock
/// of the LRU lists, for which two threads wait more than they work: 1 GiB of
/// them, 3 to 25 ms of work, took two threads 0.8 to 2 times as long as one.
/// Only 4 KiB pages, which the kernel moves in batches, take longer than this
/// for each GiB, and gain (docs/measurements.md, `folio`).
const ALONE_LAZILY: Duration = Duration::from_millis(30);

/// The kernel silently cuts a vector at 2 GiB; well below it.
pub(crate) const BATCH_BYTES_MAX: usize = 1 << 30;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Bytes of a batch.
    pub(crate) batch_bytes: usize,
    /// Whether helpers would be of use.
    pub(crate) helped: bool,
}

/// How one thread goes on alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    /// How much work it does before others are asked for help; once they are
    /// there, [`ALONE`] is enough for them to stay.
    work: Duration,
    /// How long its batches last.
    batch: Duration,
}

impl Alone {
    pub(crate) fn before_help(operation: Operation) -> Self {
        let work = match operation {
            Operation::LazyFree => ALONE_LAZILY,
            _ => ALONE,
        };
        Self {
            work,
            // Nobody to wait for; it still serves cancellation.
            batch: BATCH_MAX * BATCHES_PER_THREAD,
        }
    }

    pub(crate) fn helped(self) -> Self {
        Self {
            work: ALONE,
            ..self
        }
    }

    /// With short batches, for a thread that rests after each.
    pub(crate) fn resting(self) -> Self {
        Self {
            batch: BATCH_MAX,
            ..self
        }
    }
}

/// The step after `done_bytes` took the caller `took`, with `left_bytes` to go
/// on up to `width` threads.
pub(crate) fn next(
    done_bytes: usize,
    took: Duration,
    left_bytes: usize,
    width: usize,
    alone: Alone,
) -> Step {
    if took < TELLING && done_bytes < BATCH_BYTES_MAX {
        return Step {
            batch_bytes: done_bytes
                .saturating_mul(GROWTH)
                .clamp(FIRST_BYTES, BATCH_BYTES_MAX),
            helped: false,
        };
    }
    let nanos_per_byte = took.as_secs_f64() * 1e9 / done_bytes.max(1) as f64;
    let left_nanos = left_bytes as f64 * nanos_per_byte;
    if width <= 1 || left_nanos < alone.work.as_nanos() as f64 {
        return Step {
            batch_bytes: bytes_in(alone.batch.as_nanos() as f64, nanos_per_byte),
            helped: false,
        };
    }
    let batches = width as f64 * f64::from(BATCHES_PER_THREAD);
    let nanos =
        (left_nanos / batches).clamp(BATCH_MIN.as_nanos() as f64, BATCH_MAX.as_nanos() as f64);
    Step {
        batch_bytes: bytes_in(nanos, nanos_per_byte),
        helped: true,
    }
}

/// The time that `bytes` take if they go like others did.
pub(crate) fn time_of(bytes: usize, others: usize, took: Duration) -> Duration {
    let secs = took.as_secs_f64() * (bytes as f64 / others.max(1) as f64);
    Duration::try_from_secs_f64(secs).unwrap_or(Duration::MAX)
}

fn bytes_in(nanos: f64, nanos_per_byte: f64) -> usize {
    // A cast from f64 saturates; an infinite pace is the largest batch.
    ((nanos / nanos_per_byte.max(f64::MIN_POSITIVE)) as usize)
        .clamp(BATCH_BYTES_MIN, BATCH_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: usize = 1 << 30;

    const HELPED: Alone = Alone {
        work: ALONE,
        batch: BATCH_MAX,
    };

    /// The time that `bytes` take at a pace in GiB/s.
    fn at(gib_per_s: f64, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / GIB as f64 / gib_per_s)
    }

    #[test]
    fn four_kib_pages_go_in_batches_of_64_to_128_mib() {
        for gib_per_s in [15.0, 38.0] {
            let step = next(FIRST_BYTES, at(gib_per_s, FIRST_BYTES), 8 * GIB, 2, HELPED);
            assert!(step.helped);
            assert!(
                (56 << 20..=160 << 20).contains(&step.batch_bytes),
                "{step:?}"
            );
        }
    }

    /// The steps of a job on two threads, each batch at a pace in GiB/s.
    fn steps(gib_per_s: f64, job: usize) -> Vec<Step> {
        let (mut bytes, mut left) = (FIRST_BYTES, job);
        let mut steps = Vec::new();
        while left > 0 {
            bytes = bytes.min(left);
            left -= bytes;
            let step = next(bytes, at(gib_per_s, bytes), left, 2, HELPED);
            bytes = step.batch_bytes;
            steps.push(step);
        }
        steps
    }

    #[test]
    fn huge_pages_are_freed_alone_unless_there_are_very_many() {
        assert!(steps(390.0, GIB).iter().all(|step| !step.helped));
        let many = steps(390.0, 64 * GIB);
        assert!(many[2].helped && many[2].batch_bytes >= GIB / 2, "{many:?}");
    }

    #[test]
    fn lazy_freeing_asks_for_help_later_and_keeps_it() {
        let ten_ms = |alone| next(GIB, at(100.0, GIB), GIB, 2, alone).helped;
        assert!(!ten_ms(Alone::before_help(Operation::LazyFree)));
        assert!(ten_ms(Alone::before_help(Operation::Discard)));
        assert!(ten_ms(HELPED));
    }

    #[test]
    fn empty_space_is_no_reason_to_wake_anybody() {
        let steps = steps(30_000.0, 64 * GIB);
        assert!(steps.iter().all(|step| !step.helped));
        assert_eq!(steps[4].batch_bytes, BATCH_BYTES_MAX);
        // The first call of a kind can take as long as the whole job.
        assert!(!next(FIRST_BYTES, Duration::from_micros(40), GIB, 2, HELPED).helped);
        assert!(!next(FIRST_BYTES, Duration::ZERO, GIB, 2, HELPED).helped);
    }

    proptest! {
        #[test]
        fn every_answer_is_within_bounds(done in any::<usize>(), nanos in any::<u32>(), left in any::<usize>(), width in 0usize..1000) {
            let step = next(done, Duration::from_nanos(nanos.into()), left, width, HELPED);
            prop_assert!((BATCH_BYTES_MIN..=BATCH_BYTES_MAX).contains(&step.batch_bytes));
            prop_assert!(!step.helped || width > 1);
        }
    }
}
