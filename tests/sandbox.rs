//! Sandboxes that refuse system calls: everything is still freed by other
//! means, and where there are none, the refusal is reported.

mod support;

use mmzap::{Map, Operation, Teardown};
use support::{memory::*, sys};

const VECTOR_CALLS: [i64; 3] = [
    sys::SYS_pidfd_open,
    sys::SYS_process_madvise,
    sys::SYS_process_mrelease,
];

fn errno(name: &str) -> i32 {
    match name {
        "EPERM" => sys::EPERM,
        "ENOSYS" => sys::ENOSYS,
        "EINVAL" => sys::EINVAL,
        other => panic!("no errno {other}"),
    }
}

fn refuse(calls: &[i64], errno: i32) {
    if let Err(error) = sys::refuse_calls(calls, errno) {
        support::cannot("seccomp filters", &error);
    }
}

fn capability(name: &str) -> &'static mmzap::Capability {
    let all = mmzap::capabilities().list();
    all.iter()
        .find(|c| c.name == name)
        .expect("a capability of that name")
}

/// Scattered, large and small jobs, all freed whole.
fn everything_is_freed() {
    const SCATTERED: usize = 64 * MIB;
    for width in [1, 3] {
        let addr = filled(SCATTERED);
        let ranges: Vec<_> = (addr..addr + SCATTERED)
            .step_by(4 * PAGE)
            .map(|at| (at, 2 * PAGE))
            .collect();
        let report = run(
            &mut Teardown::new(Operation::Discard).max_active(width),
            &ranges,
        );
        assert!(report.failures().is_empty(), "{:?}", report.failures());
        assert_eq!(
            (report.bytes_done, accounted(&report)),
            (SCATTERED / 2, SCATTERED / 2)
        );
        assert_eq!(kept_pages(addr, SCATTERED), SCATTERED / 2 / PAGE);
        sys::unmap(addr, SCATTERED).unwrap();

        for len in [PAGE, MIB, 64 * MIB] {
            for operation in [Operation::Discard, Operation::Unmap, Operation::LazyFree] {
                let addr = filled(len);
                let report = run(
                    &mut Teardown::new(operation).max_active(width),
                    &[(addr, len)],
                );
                assert!(report.failures().is_empty(), "{:?}", report.failures());
                assert_eq!((report.bytes_done, accounted(&report)), (len, len));
                match operation {
                    Operation::Unmap => assert!(peek(addr, 1).is_err()),
                    Operation::Discard => assert_eq!(kept_pages(addr, len), 0),
                    _ => {}
                }
                let _ = sys::unmap(addr, len);
            }
        }
        let map = Map::options().populate(true).map(64 * MIB).unwrap();
        let report = Teardown::new(Operation::Unmap).max_active(width).unmap(map);
        assert_eq!(report.freed_bytes(), 64 * MIB);
        assert!(report.failures().is_empty());
    }
}

fn vectors_refused() {
    refuse(&VECTOR_CALLS, errno(&support::case()));
    everything_is_freed();
    for name in [
        "process_madvise on itself",
        "pidfd_open",
        "process_mrelease",
    ] {
        let missing = capability(name);
        assert!(!missing.available, "{name} is said to work");
        assert!(!missing.fallback.is_empty() && missing.detail != "works");
    }
    assert!(capability("madvise DONTNEED").available);
}

fn vectors_refused_after_they_were_used() {
    everything_is_freed();
    refuse(&VECTOR_CALLS, errno(&support::case()));
    everything_is_freed();
}

fn descriptors_refused() {
    refuse(&[sys::SYS_pidfd_open], errno(&support::case()));
    everything_is_freed();
    assert!(!capability("pidfd_open").available);
}

/// Nothing is claimed that did not happen, whatever the sandbox lets through.
fn madvise_refused() {
    let errno = errno(&support::case());
    const LEN: usize = 32 * MIB;
    let small = filled(4 * PAGE);
    let large = filled(LEN);
    let scattered = filled(LEN);
    let mut map = Map::options().huge_pages(false).map(LEN).unwrap();
    map.fill(7);
    refuse(&[sys::SYS_madvise], errno);

    for (addr, len) in [(small, 4 * PAGE), (large, LEN)] {
        let report = run(
            &mut Teardown::new(Operation::Discard).max_active(2),
            &[(addr, len)],
        );
        assert_eq!(
            (report.bytes_done, report.freed_bytes(), report.bytes_failed),
            (0, 0, len)
        );
        assert_eq!(kept_pages(addr, len), len / PAGE);
        let named: usize = report
            .failures()
            .iter()
            .map(|e| e.range().expect("a place").len())
            .sum();
        assert_eq!(named, len);
        for error in report.failures() {
            let range = error.range().expect("a place");
            assert!(addr <= range.start() && range.end() <= addr + len);
            assert_eq!(error.errno().0, errno);
        }
    }
    let text = run(&mut Teardown::new(Operation::Discard), &[(small, 4 * PAGE)])
        .into_result()
        .expect_err("refused")
        .to_string();
    assert!(
        text.contains(&format!("{small:#x}")) && text.contains("16384 bytes"),
        "{text}"
    );

    let report = Teardown::new(Operation::Discard).run(&mut map);
    assert_eq!((report.bytes_done, report.bytes_failed), (0, LEN));
    assert!(map.iter().all(|&byte| byte == 7));

    let ranges: Vec<_> = (scattered..scattered + LEN)
        .step_by(4 * PAGE)
        .map(|at| (at, 2 * PAGE))
        .collect();
    let report = run(
        &mut Teardown::new(Operation::Discard).max_active(2),
        &ranges,
    );
    assert_eq!(accounted(&report), LEN / 2);
    assert_eq!(report.bytes_done, LEN - kept_pages(scattered, LEN) * PAGE);

    // Addresses still go, by munmap.
    for (addr, len) in [(small, 4 * PAGE), (large, LEN)] {
        let report = run(
            &mut Teardown::new(Operation::Unmap).max_active(2),
            &[(addr, len)],
        );
        assert_eq!((report.bytes_done, accounted(&report)), (len, len));
        assert!(report.failures().is_empty() && peek(addr, 1).is_err());
    }
    let report = Teardown::new(Operation::Unmap).unmap(map);
    assert_eq!(report.freed_bytes(), LEN);
    assert!(!capability("madvise DONTNEED").available);
}

/// A root directory without /proc: the kernel alone says what is mapped.
fn no_proc() {
    let empty = tempfile::tempdir().expect("a directory");
    if let Err(error) = std::os::unix::fs::chroot(empty.path()) {
        support::cannot("chroot", &error);
    }
    const LEN: usize = 32 * MIB;
    for operation in [Operation::Discard, Operation::Unmap] {
        let addr = filled(LEN);
        let good = filled(LEN);
        sys::lock(addr + 8 * MIB, PAGE).unwrap();
        let mut job = Teardown::new(operation).max_active(2);
        let report = run(&mut job, &[(addr, LEN), (good, LEN)]);
        assert_eq!(accounted(&report), 2 * LEN);
        if operation == Operation::Discard {
            assert_eq!(kept_pages(good, LEN), 0);
            // Not more is claimed than is gone.
            assert!(report.bytes_done <= 2 * LEN - kept_pages(addr, LEN) * PAGE);
            assert!(!report.failures().is_empty());
        } else {
            assert_eq!(report.bytes_done, 2 * LEN);
        }
    }
    everything_is_freed_without_looking();
    let local = 0u8;
    assert!(mmzap::mapping::of(&raw const local, 1).is_empty());
}

fn everything_is_freed_without_looking() {
    for len in [PAGE, 64 * MIB] {
        let addr = filled(len);
        let report = run(
            &mut Teardown::new(Operation::Discard).max_active(2),
            &[(addr, len)],
        );
        assert_eq!((report.bytes_done, accounted(&report)), (len, len));
        assert_eq!(kept_pages(addr, len), 0);
    }
}

fn refused_vectors_fall_back_to_single_calls() {
    for errno in ["EPERM", "ENOSYS", "EINVAL"] {
        support::play_or_skip("vectors_refused", errno);
    }
}

fn vectors_refused_in_the_middle_of_a_life_fall_back_too() {
    for errno in ["EPERM", "ENOSYS"] {
        support::play_or_skip("vectors_refused_after_they_were_used", errno);
    }
}

fn refused_descriptors_do_no_harm() {
    for errno in ["EPERM", "ENOSYS"] {
        support::play_or_skip("descriptors_refused", errno);
    }
}

fn a_refused_madvise_is_reported_and_nothing_is_claimed() {
    for errno in ["EPERM", "ENOSYS"] {
        support::play_or_skip("madvise_refused", errno);
    }
}

fn a_process_without_proc_frees_and_claims_no_more() {
    support::play_or_skip("no_proc", "");
}

fn main() {
    support::main(
        named![
            refused_vectors_fall_back_to_single_calls,
            vectors_refused_in_the_middle_of_a_life_fall_back_too,
            refused_descriptors_do_no_harm,
            a_refused_madvise_is_reported_and_nothing_is_claimed,
            a_process_without_proc_frees_and_claims_no_more,
        ],
        named![
            vectors_refused,
            vectors_refused_after_they_were_used,
            descriptors_refused,
            madvise_refused,
            no_proc,
        ],
    );
}
