//! A forked child is clean: it waits for no thread and no lock of its parent.

mod support;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use mmzap::{Operation, Teardown};
use support::{forked, memory::*, sys};

const LEN: usize = 32 * MIB;

/// A job with helpers; `check` is called while it runs.
fn job(mut check: impl FnMut()) {
    let addr = filled(LEN);
    let report = run(
        &mut Teardown::new(Operation::Discard)
            .max_active(3)
            .batch_bytes(MIB)
            .on_progress(|_| check()),
        &[(addr, LEN)],
    );
    assert_eq!((report.bytes_done, accounted(&report)), (LEN, LEN));
    assert_eq!(present_pages(addr, LEN), 0);
    sys::unmap(addr, LEN).unwrap();
}

fn a_child_has_helpers_of_its_own() {
    for _ in 0..20 {
        job(|| {});
        forked(|| {
            assert_eq!(threads().len(), 1);
            let mut most = 1;
            job(|| most = most.max(threads().len()));
            assert!(most > 1, "no helper in the child");
            job(|| {});
        });
        job(|| {});
    }
}

fn a_child_of_a_child_works_as_well() {
    job(|| {});
    forked(|| {
        job(|| {});
        forked(|| job(|| {}));
        job(|| {});
    });
}

/// The pool's threads stay with the parent, and perhaps a lock that one of them
/// holds: the child must ask nothing of it.
#[cfg(feature = "rayon")]
fn a_borrowed_pool_stays_with_the_parent() {
    let pool = rayon_core::ThreadPoolBuilder::new()
        .num_threads(2)
        .build()
        .expect("a pool");
    let addr = filled(LEN);
    let mut teardown = Teardown::new(Operation::Discard)
        .max_active(3)
        .batch_bytes(MIB)
        .pool(&pool);
    for round in 0..50 {
        // The pool is busy going to sleep and waking up.
        pool.spawn(|| {});
        match sys::fork().expect("a fork") {
            Some(child) => {
                let report = run(&mut teardown, &[(addr, LEN)]);
                assert_eq!(report.bytes_done, LEN);
                let status = sys::wait_for(child).expect("the child");
                assert!(status.success(), "round {round}, the child: {status}");
            }
            None => {
                sys::alarm(60);
                let report = run(&mut teardown, &[(addr, LEN)]);
                let alone = report.bytes_done == LEN && report.helpers == 0;
                sys::leave_now(if alone { 0 } else { 101 });
            }
        }
        fill(addr, LEN);
    }
    sys::unmap(addr, LEN).unwrap();
}

fn two_hundred_forks_in_the_middle_of_jobs() {
    support::play("forks_amid_jobs", "");
}

fn forks_amid_jobs() {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    job(|| {});
                }
            });
        }
        for _ in 0..200 {
            forked(|| job(|| {}));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The parent forks while another of its threads finds out for the first time
/// what the kernel offers: the child must find out for itself.
fn a_fork_amid_the_first_probe() {
    support::play_or_skip("forks_amid_the_first_probe", "");
}

fn forks_amid_the_first_probe() {
    let (tx, rx) = std::sync::mpsc::channel();
    let other = thread::spawn(move || {
        // Only this thread's calls are held, and only its own children's.
        match sys::hold_call(sys::SYS_process_madvise) {
            Ok(held) => tx.send(held).expect("the main thread"),
            Err(error) => support::cannot("seccomp notifications", &error),
        }
        let addr = filled(LEN);
        run(
            &mut Teardown::new(Operation::Discard).max_active(1),
            &[(addr, LEN)],
        )
        .bytes_done
    });
    let held = rx.recv().expect("the other thread");
    let call = held.next().expect("the probe");
    let child = match sys::fork().expect("a fork") {
        Some(child) => child,
        None => {
            sys::alarm(20);
            let done = std::panic::catch_unwind(|| job(|| {}));
            sys::leave_now(if done.is_ok() { 0 } else { 101 });
        }
    };
    let status = sys::wait_for(child).expect("the child");
    held.let_go(call).expect("let go");
    let rest = thread::spawn(move || {
        while let Ok(call) = held.next() {
            let _ = held.let_go(call);
        }
    });
    assert_eq!(other.join().expect("the other thread"), LEN);
    drop(rest);
    thread::sleep(Duration::from_millis(1));
    assert!(status.success(), "the child: {status}");
}

fn main() {
    support::main(
        named![
            a_child_has_helpers_of_its_own,
            a_child_of_a_child_works_as_well,
            #[cfg(feature = "rayon")]
            a_borrowed_pool_stays_with_the_parent,
            two_hundred_forks_in_the_middle_of_jobs,
            a_fork_amid_the_first_probe,
        ],
        named![forks_amid_jobs, forks_amid_the_first_probe],
    );
}
