//! Where a job is cut, no transparent huge page is: the kernel's own counter
//! of splits says so.

mod support;

use std::fs;

use mmzap::{Operation, Teardown};
use support::{memory::*, sys};

const HUGE: usize = 2 * MIB;
const LEN: usize = 64 * MIB;

/// Memory that is verified to be of huge pages, at a multiple of their size.
fn huge() -> usize {
    let at = fresh_addresses(LEN + HUGE).next_multiple_of(HUGE);
    let protection = sys::PROT_READ | sys::PROT_WRITE;
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    let addr = sys::map(Some(at), LEN, protection, flags, None, 0).expect("memory");
    support::needs(
        "transparent huge pages",
        sys::hint(addr, LEN, sys::HUGE_PAGES),
    );
    fill(addr, LEN);
    if huge_bytes(addr) < LEN {
        support::skip("needs 64 MiB in transparent huge pages, the system gave fewer");
    }
    addr
}

/// Bytes of the mapping at `addr` that huge pages hold.
fn huge_bytes(addr: usize) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut lines = smaps
        .lines()
        .skip_while(|line| !line.starts_with(&format!("{addr:x}-")));
    let value = lines
        .find_map(|line| line.strip_prefix("AnonHugePages:"))
        .expect("the line");
    let kib: usize = value
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    kib * 1024
}

fn splits() -> usize {
    let text = fs::read_to_string("/proc/vmstat").expect("vmstat");
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("thp_split_pmd "));
    value
        .unwrap_or_else(|| support::skip("needs thp_split_pmd in /proc/vmstat"))
        .parse()
        .expect("a number")
}

/// Splits while `job` runs on fresh memory. The counter is the whole
/// machine's: of several tries the one with the fewest counts.
fn splits_of(job: impl Fn(usize)) -> usize {
    (0..4)
        .map(|_| {
            let addr = huge();
            let before = splits();
            job(addr);
            let after = splits();
            sys::unmap(addr, LEN).unwrap();
            after - before
        })
        .min()
        .expect("tries")
}

fn the_counter_counts() {
    let seen = splits_of(|addr| {
        let report = run(
            &mut Teardown::new(Operation::Discard),
            &[(addr + PAGE, PAGE)],
        );
        assert_eq!(report.bytes_done, PAGE);
    });
    assert_eq!(seen, 1);
}

fn a_whole_job_splits_nothing_however_it_is_cut() {
    for batch_bytes in [None, Some(PAGE), Some(3 * MIB), Some(5 * MIB + PAGE)] {
        for width in [1, 3] {
            let seen = splits_of(|addr| {
                let mut job = Teardown::new(Operation::Discard).max_active(width);
                if let Some(bytes) = batch_bytes {
                    job = job.batch_bytes(bytes);
                }
                let report = run(&mut job, &[(addr, LEN)]);
                assert_eq!(report.bytes_done, LEN);
                assert_eq!(kept_pages(addr, LEN), 0);
            });
            assert_eq!(seen, 0, "{batch_bytes:?} {width}");
        }
    }
}

/// A range that begins and ends inside huge pages must split those two, and no
/// other.
fn unaligned_edges_split_only_the_pages_they_are_in() {
    for width in [1, 3] {
        let seen = splits_of(|addr| {
            let mut job = Teardown::new(Operation::Discard)
                .max_active(width)
                .batch_bytes(3 * MIB);
            let range = (addr + 5 * PAGE + 1, LEN - 9 * PAGE);
            let report = run(&mut job, &[range]);
            assert_eq!(report.bytes_done, LEN - 10 * PAGE);
            assert_eq!(kept_pages(addr, LEN), 10);
        });
        assert_eq!(seen, 2, "{width}");
    }
}

fn whole_huge_pages_of_a_scattered_job_are_not_split() {
    let seen = splits_of(|addr| {
        let ranges: Vec<_> = (addr..addr + LEN)
            .step_by(2 * HUGE)
            .map(|at| (at, HUGE))
            .collect();
        let report = run(
            &mut Teardown::new(Operation::Discard).max_active(2),
            &ranges,
        );
        assert_eq!(report.bytes_done, LEN / 2);
        assert_eq!(kept_pages(addr, LEN), LEN / 2 / PAGE);
        assert_eq!(huge_bytes(addr), LEN / 2);
    });
    assert_eq!(seen, 0);
}

fn unmapping_splits_nothing() {
    let seen = splits_of(|addr| {
        let mut job = Teardown::new(Operation::Unmap)
            .max_active(2)
            .batch_bytes(3 * MIB);
        assert_eq!(run(&mut job, &[(addr, LEN)]).bytes_done, LEN);
    });
    assert_eq!(seen, 0);
}

fn main() {
    support::main(
        named![
            the_counter_counts,
            a_whole_job_splits_nothing_however_it_is_cut,
            unaligned_edges_split_only_the_pages_they_are_in,
            whole_huge_pages_of_a_scattered_job_are_not_split,
            unmapping_splits_nothing,
        ],
        &[],
    );
}
