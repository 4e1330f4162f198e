//! Helper threads that cannot be had: the caller frees everything, the report
//! says why, and nobody prints a warning.

mod support;

use mmzap::{Operation, Report, Teardown};
use support::{memory::*, sys};

const LEN: usize = 64 * MIB;

/// Frees `LEN` in one range and as many in small ones.
fn both_kinds_of_job() -> [Report; 2] {
    let large = filled(LEN);
    let scattered = filled(LEN);
    both_kinds_over(large, scattered)
}

fn both_kinds_over(large: usize, scattered: usize) -> [Report; 2] {
    let ranges: Vec<_> = (scattered..scattered + LEN)
        .step_by(4 * PAGE)
        .map(|at| (at, 2 * PAGE))
        .collect();
    let mut job = Teardown::new(Operation::Discard)
        .max_active(4)
        .batch_bytes(2 * MIB);
    let reports = [run(&mut job, &[(large, LEN)]), run(&mut job, &ranges)];
    for (report, bytes) in reports.iter().zip([LEN, LEN / 2]) {
        assert!(report.failures().is_empty(), "{:?}", report.failures());
        assert_eq!((report.bytes_done, accounted(report)), (bytes, bytes));
    }
    assert_eq!(kept_pages(large, LEN), 0);
    assert_eq!(kept_pages(scattered, LEN), LEN / 2 / PAGE);
    sys::unmap(large, LEN).unwrap();
    sys::unmap(scattered, LEN).unwrap();
    reports
}

fn without_helpers(reports: &[Report]) {
    for report in reports {
        assert_eq!((report.helpers, report.steals), (0, 0));
        let why = report.helpers_refused.expect("the reason");
        assert!([sys::EAGAIN, sys::ENOMEM].contains(&why.0), "{why:?}");
    }
    assert_eq!(threads().len(), 1, "nobody is left behind");
}

fn no_processes_left() {
    if let Err(error) = sys::become_nobody() {
        support::cannot("another user", &error);
    }
    sys::set_limit(sys::RLIMIT_NPROC, 0).unwrap();
    without_helpers(&both_kinds_of_job());
    without_helpers(&both_kinds_of_job());
    let map = mmzap::Map::options().populate(true).map(LEN).unwrap();
    let report = Teardown::new(Operation::Unmap)
        .max_active(4)
        .batch_bytes(2 * MIB)
        .unmap(map);
    assert_eq!(report.freed_bytes(), LEN);
    without_helpers(&[report]);
    // One refusal is no reason to work alone for ever.
    sys::set_limit(sys::RLIMIT_NPROC, u64::MAX).unwrap();
    for report in both_kinds_of_job() {
        assert!(report.helpers_refused.is_none());
    }
}

fn no_address_space_left() {
    let (large, scattered) = (filled(LEN), filled(LEN));
    // What a stack of 256 KiB does not fit into, and small needs do.
    let room = 192 << 10;
    let size = status_kib("self", "VmSize").expect("VmSize") * 1024;
    sys::set_limit(sys::RLIMIT_AS, (size + room) as u64).unwrap();
    let reports = both_kinds_over(large, scattered);
    sys::set_limit(sys::RLIMIT_AS, u64::MAX).unwrap();
    without_helpers(&reports);
    for report in both_kinds_of_job() {
        assert!(report.helpers_refused.is_none());
    }
}

/// The stack limit that a thread gets by default; helpers have their own size.
fn stacks_of_any_size() {
    for report in both_kinds_of_job() {
        assert!(
            report.helpers_refused.is_none(),
            "{:?}",
            report.helpers_refused
        );
    }
}

/// Plays a role and sees that nothing is printed.
fn plays_in_silence(mut child: std::process::Command) {
    let output = child.output().expect("a child");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) {
        support::skip(said);
    }
    assert!(output.status.success(), "{}: {said}", output.status);
    assert!(said.is_empty() && output.stdout.is_empty(), "{said}");
}

fn a_user_out_of_processes_frees_alone() {
    support::needs_root();
    plays_in_silence(support::child("no_processes_left", ""));
}

fn a_process_out_of_address_space_frees_alone() {
    plays_in_silence(support::child("no_address_space_left", ""));
}

fn a_huge_stack_limit_does_no_harm() {
    for bytes in [u64::MAX, 1 << 46, 1 << 20] {
        let mut child = support::child("stacks_of_any_size", "");
        sys::limit_from_the_start(&mut child, sys::RLIMIT_STACK, bytes);
        plays_in_silence(child);
    }
}

fn main() {
    support::main(
        named![
            a_user_out_of_processes_frees_alone,
            a_process_out_of_address_space_frees_alone,
            a_huge_stack_limit_does_no_harm,
        ],
        named![no_processes_left, no_address_space_left, stacks_of_any_size],
    );
}
