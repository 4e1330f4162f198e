//! A process whose main thread has left lives on, and /proc/self shows no
//! memory any more: jobs do what they do elsewhere.

mod support;

use std::{fs, process, thread};

use mmzap::{Map, Operation, Teardown};
use support::{memory::*, sys};

fn wait_until_main_is_dead() {
    let path = format!("/proc/self/task/{}/stat", process::id());
    loop {
        let stat = fs::read_to_string(&path).expect("the main thread is listed");
        if stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('Z'))
        {
            return;
        }
        thread::yield_now();
    }
}

fn jobs_after_main() {
    thread::spawn(|| {
        wait_until_main_is_dead();
        let done = std::panic::catch_unwind(|| {
            for len in [MIB, 64 * MIB] {
                for operation in [Operation::Discard, Operation::Unmap] {
                    let addr = filled(len);
                    let mut job = Teardown::new(operation).max_active(3);
                    let report = run(&mut job, &[(addr, len)]);
                    assert_eq!(report.bytes_done, len, "{operation} {report:?}");
                }
            }
            let addr = filled(64 * MIB);
            let ranges: Vec<_> = (addr..addr + 64 * MIB)
                .step_by(4 * PAGE)
                .map(|at| (at, 2 * PAGE))
                .collect();
            let report = run(
                &mut Teardown::new(Operation::Discard).max_active(3),
                &ranges,
            );
            assert_eq!(report.bytes_done, 32 * MIB, "{report:?}");
            assert_eq!(kept_pages(addr, 64 * MIB), 32 * MIB / PAGE);
            let map = Map::options().populate(true).map(64 * MIB).unwrap();
            let report = Teardown::new(Operation::Unmap).max_active(3).unmap(map);
            assert_eq!(report.freed_bytes(), 64 * MIB);
        });
        sys::leave_now(if done.is_ok() { 0 } else { 101 });
    });
    sys::end_this_thread()
}

fn jobs_work_after_the_main_thread_has_left() {
    support::play("jobs_after_main", "");
}

fn main() {
    support::main(
        named![jobs_work_after_the_main_thread_has_left],
        named![jobs_after_main],
    );
}
