use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    thread::{self, ThreadId},
    time::Instant,
};

use super::*;
use crate::{
    crew::OwnThreads,
    error::Errno,
    gather::Batch,
    range::PageRange,
    sys::scripted::{Fake, Nodes, Scripted},
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
    let orders = orders(Width::Set(width.clone()));
    let plan = &mut Wide(plan.into_iter());
    Job::run(kernel, orders, plan, progress, &mut report);
    report
}

fn orders(width: Width) -> Orders<'static> {
    Orders {
        operation: Operation::Discard,
        width,
        cancel: Cancel::default(),
        lender: &OwnThreads,
        telling: None,
    }
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
        Orders {
            cancel: cancel.clone(),
            ..orders(Width::Set(MaxActive::new(3)))
        },
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

/// The first half of the pages on node 0, the second on node 1.
fn two_nodes(count: usize) -> Arc<Nodes> {
    Arc::new(Nodes {
        count,
        node_at: Some(|addr| usize::from(addr >= 200 * PAGE)),
        ..Nodes::default()
    })
}

#[test]
fn each_node_is_worked_on_by_its_own_and_others_come_last() {
    let watch: Arc<Watch> = Arc::default();
    let nodes = two_nodes(2);
    let kernel = Scripted {
        nodes: Arc::clone(&nodes),
        ..kernel(400, &watch, Duration::from_micros(300))
    };
    let report = run(kernel, &MaxActive::new(2), batches(400), &mut |_| {});
    assert_eq!(report.bytes_done, 400 * PAGE);
    assert_eq!(report.helpers, 1);
    let homes = nodes.homes.lock().unwrap();
    let helpers_home = homes.values().copied().collect::<Vec<_>>();
    assert_eq!(helpers_home, [1], "the caller is on node 0");
    let mut left = [200, 200];
    for (thread, range) in nodes.advised.lock().unwrap().iter() {
        let home = homes.get(thread).copied().unwrap_or(0);
        let node = usize::from(range.start() >= 200 * PAGE);
        // The caller's first batches come before anybody knows better, and
        // another thread may have taken the last ones of a node already.
        assert!(
            node == home || left[home] <= 2,
            "home {home} took from {node} with {left:?} left"
        );
        left[node] -= 1;
    }
}

#[test]
fn with_one_node_nobody_asks_where_pages_are() {
    let watch: Arc<Watch> = Arc::default();
    let nodes = two_nodes(1);
    let kernel = Scripted {
        nodes: Arc::clone(&nodes),
        ..kernel(50, &watch, Duration::ZERO)
    };
    let _ = run(kernel, &MaxActive::new(2), batches(50), &mut |_| {});
    assert_eq!(nodes.questions.load(Ordering::Relaxed), 0);
}

/// Threads at the caller's own priority: where the CPUs are busy with other
/// tests, those of the library stand back for so long that they rightly count
/// as no use.
struct Equals;

impl Lender for Equals {
    fn post(&self, work: &Arc<dyn Work>, seats: usize) -> Result<(), Errno> {
        for _ in 0..seats {
            let work = Arc::clone(work);
            thread::spawn(move || work.help());
        }
        Ok(())
    }

    fn withdraw(&self, _: &Arc<dyn Work>) {}

    fn binds(&self) -> bool {
        false
    }
}

/// Runs batches of 5 ms, and `penalty` more for each other thread in the kernel.
fn tuned(penalty: Duration) -> (Report, Tuner) {
    let inside = AtomicUsize::new(0);
    let kernel = Scripted {
        on_advise: Some(Box::new(move || {
            let others = inside.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(5) + penalty * others as u32);
            inside.fetch_sub(1, Ordering::SeqCst);
        })),
        ..Scripted::with(vec![Fake::new(0, 300 * PAGE, &[])])
    };
    let mut report = Report::new(Operation::Discard);
    let tuner = Job::run(
        kernel,
        Orders {
            lender: &Equals,
            ..orders(Width::Found(Box::new(|| Tuner::new(2, 2))))
        },
        &mut Wide(batches(200).into_iter()),
        &mut |_| {},
        &mut report,
    );
    assert_eq!(report.bytes_done, 200 * PAGE);
    (report, tuner.expect("the tuner"))
}

#[test]
fn a_job_finds_out_whether_a_second_thread_pays() {
    let (report, tuner) = tuned(Duration::ZERO);
    assert_eq!(tuner.settled(), 2, "{report:?}");
    let (report, tuner) = tuned(Duration::from_millis(15));
    assert_eq!(tuner.settled(), 1, "{report:?}");
    assert_eq!(report.max_active, 1);
}

#[cfg(feature = "rayon")]
mod pool {
    use std::sync::mpsc;

    use super::*;

    fn run_in(pool: &rayon_core::ThreadPool, count: usize, nap: Duration) -> Report {
        let watch: Arc<Watch> = Arc::default();
        let mut report = Report::new(Operation::Discard);
        Job::run(
            kernel(count, &watch, nap),
            Orders {
                lender: &crate::crew::Borrowed::new(pool),
                ..orders(Width::Set(MaxActive::new(3)))
            },
            &mut Wide(batches(count).into_iter()),
            &mut |_| {},
            &mut report,
        );
        assert!(watch.most.load(Ordering::SeqCst) <= 3);
        assert_eq!(report.bytes_done, count * PAGE);
        report
    }

    fn pool(threads: usize) -> rayon_core::ThreadPool {
        rayon_core::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("a pool")
    }

    #[test]
    fn a_borrowed_pool_helps() {
        let report = run_in(&pool(2), 300, Duration::from_micros(300));
        assert!(report.helpers > 0 && report.steals > 0, "{report:?}");
    }

    #[test]
    fn a_busy_pool_delays_nothing() {
        let pool = pool(1);
        let (free, busy) = mpsc::channel::<()>();
        pool.spawn(move || {
            let _ = busy.recv(); // until the job is over
        });
        let report = run_in(&pool, 50, Duration::ZERO);
        assert_eq!(report.helpers, 0);
        drop(free);
    }

    #[test]
    fn a_job_can_run_inside_the_pool_that_it_borrows() {
        let pool = pool(1);
        let report = pool.install(|| run_in(&pool, 50, Duration::ZERO));
        assert_eq!(report.helpers, 0);
    }
}
