use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    thread::{self, ThreadId},
    time::Instant,
};

use super::*;
use crate::{
    gather::Batch,
    range::PageRange,
    sys::scripted::{Fake, Scripted},
};

const PAGE: usize = 4096;

/// A plan for which helpers are always of use.
struct Wide<I>(I);

impl<I: Iterator<Item = Planned>> Iterator for Wide<I> {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        self.0.next()
    }
}

impl<I: Iterator<Item = Planned>> Plan for Wide<I> {
    fn pace(&mut self, _: usize, _: Duration, width: usize) -> bool {
        width > 1
    }
}

fn batches(count: usize) -> Vec<Planned> {
    (0..count)
        .map(|i| Planned::Batch(Batch::Span(PageRange::new(i * PAGE, PAGE, PAGE).unwrap())))
        .collect()
}

/// How many threads are in the kernel at once, and which.
#[derive(Default)]
struct Watch {
    inside: AtomicUsize,
    most: AtomicUsize,
    seen: Mutex<BTreeSet<String>>,
}

impl Watch {
    fn pass(&self, nap: Duration) {
        let now = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.seen
            .lock()
            .unwrap()
            .insert(format!("{:?}", thread::current().id()));
        thread::sleep(nap);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

fn kernel(pages: usize, watch: &Arc<Watch>, nap: Duration) -> Scripted {
    let watch = Arc::clone(watch);
    Scripted {
        on_advise: Some(Box::new(move || watch.pass(nap))),
        ..Scripted::with(vec![Fake::new(0, pages * PAGE, &[])])
    }
}

fn run(
    kernel: Scripted,
    width: &MaxActive,
    plan: Vec<Planned>,
    progress: &mut dyn FnMut(usize),
) -> Report {
    let mut report = Report::new(Operation::Discard);
    Job::run(
        kernel,
        Operation::Discard,
        width.clone(),
        Cancel::default(),
        &mut Wide(plan.into_iter()),
        progress,
        &mut report,
    );
    report
}

#[test]
fn every_batch_is_done_once_and_never_by_more_threads_than_allowed() {
    for width in [1, 2, 3, 7] {
        let watch = Arc::default();
        let kernel = kernel(300, &watch, Duration::from_micros(200));
        let report = run(kernel, &MaxActive::new(width), batches(300), &mut |_| {});
        assert_eq!((report.bytes_done, report.batches), (300 * PAGE, 300));
        let most = watch.most.load(Ordering::SeqCst);
        assert!(most <= width, "{most} threads at once, {width} allowed");
        assert_eq!(report.helpers > 0, width > 1);
        assert_eq!(report.helpers > 0, report.steals > 0);
    }
}

#[test]
fn a_lowered_bound_sends_helpers_away_and_a_raised_one_brings_them() {
    let watch: Arc<Watch> = Arc::default();
    let kernel = kernel(400, &watch, Duration::from_millis(1));
    let width = MaxActive::new(1);
    let mut step = 0;
    let report = run(kernel, &width, batches(400), &mut |_| {
        step += 1;
        match step {
            20 => {
                assert_eq!(watch.most.load(Ordering::SeqCst), 1, "alone so far");
                width.set(4);
            }
            60 => width.set(1),
            // A helper may finish the batch it is in; after that it is gone.
            100 => watch.most.store(0, Ordering::SeqCst),
            _ => {}
        }
    });
    assert_eq!(report.bytes_done, 400 * PAGE);
    assert!(report.helpers >= 1, "nobody came");
    assert_eq!(watch.most.load(Ordering::SeqCst), 1, "somebody stayed");
}

#[test]
fn a_cancelled_job_accounts_for_every_byte() {
    let watch = Arc::default();
    let cancel = Cancel::default();
    let mut report = Report::new(Operation::Discard);
    Job::run(
        kernel(200, &watch, Duration::from_micros(100)),
        Operation::Discard,
        MaxActive::new(3),
        cancel.clone(),
        &mut Wide(batches(200).into_iter()),
        &mut |done| {
            if done >= 50 * PAGE {
                cancel.now();
            }
        },
        &mut report,
    );
    assert!(report.bytes_done >= 50 * PAGE);
    let left = report.problems.skipped_bytes;
    assert!(left > 0);
    assert_eq!(report.bytes_done + left, 200 * PAGE);
    assert!(
        report
            .skipped()
            .iter()
            .all(|skipped| skipped.reason == Reason::Cancelled)
    );
}

#[test]
fn a_panicking_callback_leaves_nobody_in_the_kernel() {
    let watch: Arc<Watch> = Arc::default();
    let kernel = kernel(200, &watch, Duration::from_millis(1));
    let torn = catch_unwind(AssertUnwindSafe(|| {
        run(kernel, &MaxActive::new(4), batches(200), &mut |_| {
            panic!("a user's mistake")
        })
    }));
    assert!(torn.is_err());
    assert_eq!(watch.inside.load(Ordering::SeqCst), 0);
}

#[test]
fn helpers_keep_off_the_callers_parking_token() {
    let me: ThreadId = thread::current().id();
    thread::current().unpark();
    let watch = Arc::default();
    let kernel = kernel(50, &watch, Duration::from_micros(100));
    let _ = run(kernel, &MaxActive::new(3), batches(50), &mut |_| {});
    // The token that the program put there is still there.
    let start = Instant::now();
    thread::park_timeout(Duration::from_secs(60));
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{me:?} lost its token"
    );
}

#[test]
fn jobs_at_once_from_many_threads_stress() {
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for round in 0..50 {
                    let watch = Arc::default();
                    let kernel = kernel(40, &watch, Duration::ZERO);
                    let report = run(
                        kernel,
                        &MaxActive::new(1 + round % 4),
                        batches(40),
                        &mut |_| {},
                    );
                    assert_eq!(report.bytes_done, 40 * PAGE);
                }
            });
        }
    });
}
