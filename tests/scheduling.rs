//! Few CPUs, quotas, real-time priority, a width that changes, and jobs that
//! are cancelled: everything ends and adds up.

mod support;

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use mmzap::{Cancel, MaxActive, Operation, Reason, Teardown, default_max_active};
use support::{memory::*, settings::HalfCpu, sys};

const LEN: usize = 128 * MIB;

/// Frees fresh memory and checks that; how many helpers there were.
fn freed_whole(mut job: Teardown<'_>) -> usize {
    let addr = filled(LEN);
    let report = run(&mut job, &[(addr, LEN)]);
    assert!(report.failures().is_empty(), "{:?}", report.failures());
    assert_eq!((report.bytes_done, accounted(&report)), (LEN, LEN));
    assert_eq!(present_pages(addr, LEN), 0);
    sys::unmap(addr, LEN).unwrap();
    report.helpers
}

fn real_time_on_one_cpu() {
    sys::pin_to_one_cpu().unwrap();
    if let Err(error) = sys::become_fifo() {
        support::cannot("SCHED_FIFO", &error);
    }
    for round in 0..12 {
        let mut job = Teardown::new(Operation::Discard).max_active(2 + round % 3);
        if round % 2 == 0 {
            job = job.batch_bytes(64 << 10);
        }
        freed_whole(job);
    }
}

fn a_real_time_caller_on_one_cpu_finishes_with_helpers() {
    support::play_or_skip("real_time_on_one_cpu", "");
}

fn one_cpu() {
    sys::pin_to_one_cpu().unwrap();
    assert_eq!(default_max_active(), 1);
    assert_eq!(freed_whole(Teardown::new(Operation::Discard)), 0);
    // Wider by request: it still ends.
    freed_whole(Teardown::new(Operation::Discard).max_active(3));
}

fn one_cpu_means_one_thread() {
    support::play("one_cpu", "");
}

fn half_a_cpu() {
    let door = support::case();
    if let Err(error) = fs::write(&door, std::process::id().to_string()) {
        support::cannot("joining a control group", &error);
    }
    assert_eq!(default_max_active(), 1, "a quota of half a CPU");
    assert_eq!(freed_whole(Teardown::new(Operation::Discard)), 0);
}

fn a_quota_of_half_a_cpu_means_one_thread() {
    let group = support::needs("a CPU control group", HalfCpu::make());
    support::play_or_skip("half_a_cpu", &group.door().to_string_lossy());
    let inner = support::needs("a control group inside", group.inner_door());
    support::play_or_skip("half_a_cpu", &inner.to_string_lossy());
}

/// Whether some thread of this process has the name of a helper.
fn helpers() -> Vec<String> {
    threads()
        .into_iter()
        .filter(|tid| {
            fs::read_to_string(format!("/proc/self/task/{tid}/comm"))
                .is_ok_and(|name| name.trim() == "mmzap")
        })
        .collect()
}

fn all_asleep(tids: &[String]) -> bool {
    tids.iter().all(|tid| {
        // One that is gone sleeps as well.
        fs::read_to_string(format!("/proc/self/task/{tid}/stat")).map_or(true, |stat| {
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim_start().starts_with('S'))
        })
    })
}

/// Waits until helpers have no work: asleep, for many looks in a row.
fn wait_until_helpers_rest() {
    let mut looks = 0;
    while looks < 20 {
        looks = if all_asleep(&helpers()) { looks + 1 } else { 0 };
        thread::sleep(Duration::from_millis(2));
    }
}

/// Raised, others work while the caller sits in its callback; lowered, nobody
/// does.
fn raising_and_lowering_the_width_from_the_callback_takes_effect() {
    let addr = filled(LEN);
    let width = MaxActive::new(1);
    let (mut calls, mut before) = (0, 0);
    let report = run(
        &mut Teardown::new(Operation::Discard)
            .max_active(width.clone())
            .batch_bytes(2 * MIB)
            .on_progress(|_| {
                calls += 1;
                match calls {
                    2 => {
                        assert!(helpers().is_empty(), "alone as asked");
                        width.set(2);
                    }
                    3 => before = present_pages(addr, LEN),
                    // A seat was offered before the caller's own batch.
                    4 => {
                        let own = 2 * MIB / PAGE;
                        while present_pages(addr, LEN) >= before - own {
                            thread::sleep(Duration::from_millis(1));
                        }
                        width.set(1);
                        wait_until_helpers_rest();
                    }
                    5.. => {
                        let before = present_pages(addr, LEN);
                        thread::sleep(Duration::from_millis(2));
                        assert_eq!(present_pages(addr, LEN), before, "alone again");
                    }
                    _ => {}
                }
            }),
        &[(addr, LEN)],
    );
    assert_eq!((report.bytes_done, accounted(&report)), (LEN, LEN));
    assert!(report.helpers > 0 && report.steals > 0);
    assert_eq!(present_pages(addr, LEN), 0);
    sys::unmap(addr, LEN).unwrap();
}

fn changing_the_width_from_another_thread_loses_nothing() {
    let width = MaxActive::new(1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for threads in [3, 1, 2, 0, 7].into_iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                width.set(threads);
                thread::yield_now();
            }
        });
        for _ in 0..10 {
            freed_whole(
                Teardown::new(Operation::Discard)
                    .max_active(width.clone())
                    .batch_bytes(256 << 10),
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn a_cancelled_job_adds_up_and_leaves_what_it_says() {
    for (operation, width) in [
        (Operation::Discard, 1),
        (Operation::Discard, 3),
        (Operation::DiscardLocked, 2),
        (Operation::Unmap, 2),
    ] {
        let addr = filled(LEN);
        let cancel = Cancel::default();
        let mut seen = Vec::new();
        let report = run(
            &mut Teardown::new(operation)
                .max_active(width)
                .batch_bytes(2 * MIB)
                .cancel(&cancel)
                .on_progress(|progress| {
                    seen.push(progress.done_bytes);
                    assert_eq!(progress.total_bytes, LEN);
                    if progress.done_bytes >= LEN / 4 {
                        cancel.now();
                    }
                }),
            &[(addr, LEN)],
        );
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(accounted(&report), LEN);
        assert!(report.bytes_done >= LEN / 4 && report.bytes_failed == 0);
        assert!(
            report.bytes_skipped > 0,
            "cancelled too late to see anything"
        );
        assert_eq!(kept_pages(addr, LEN) * PAGE, report.bytes_skipped);
        let mut named = 0;
        for skipped in report.skipped() {
            assert_eq!(skipped.reason, Reason::Cancelled);
            assert_eq!(kept_pages(skipped.addr, skipped.len), skipped.len / PAGE);
            named += skipped.len;
        }
        assert_eq!(named, report.bytes_skipped);
        assert!(cancel.is_cancelled());
        sys::unmap(addr, LEN).unwrap();
    }
}

fn a_job_cancelled_before_it_starts_touches_nothing() {
    for operation in [Operation::Discard, Operation::Unmap] {
        for len in [4 * PAGE, LEN] {
            let addr = filled(len);
            let cancel = Cancel::default();
            cancel.now();
            let mut job = Teardown::new(operation).cancel(&cancel);
            let report = run(&mut job, &[(addr, len)]);
            assert_eq!(accounted(&report), len);
            assert_eq!(
                report.bytes_done, 0,
                "{operation} of {len} bytes, cancelled"
            );
            assert_eq!(kept_pages(addr, len), len / PAGE);
            sys::unmap(addr, len).unwrap();
        }
    }
}

fn main() {
    support::main(
        named![
            a_real_time_caller_on_one_cpu_finishes_with_helpers,
            one_cpu_means_one_thread,
            a_quota_of_half_a_cpu_means_one_thread,
            raising_and_lowering_the_width_from_the_callback_takes_effect,
            changing_the_width_from_another_thread_loses_nothing,
            a_cancelled_job_adds_up_and_leaves_what_it_says,
            a_job_cancelled_before_it_starts_touches_nothing,
        ],
        named![real_time_on_one_cpu, one_cpu, half_a_cpu],
    );
}
