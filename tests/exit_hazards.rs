//! `exit::parallel` where something stands in its way: signal stacks in large
//! memory, handlers that close everything, two threads with two codes.

mod support;

use std::{process, thread};

use support::{memory::*, sys};

const HELD: usize = 256 * MIB;
const CODE: i32 = 42;

#[track_caller]
fn ends_with(code: i32, role: &str, rounds: usize) {
    for round in 0..rounds {
        let status = support::child(role, "").status().expect("a child");
        assert_eq!(status.code(), Some(code), "{role}, round {round}: {status}");
    }
}

/// Threads whose signal handlers run on memory that the exit gives back.
fn signal_stacks() {
    let memory = filled(HELD);
    let ready = std::sync::Arc::new(std::sync::Barrier::new(9));
    for index in 0..8 {
        let ready = ready.clone();
        thread::spawn(move || {
            // Far from each other and from any thread's own stack.
            sys::use_signal_stack(memory + (16 + 30 * index) * MIB, 64 << 10).expect("a stack");
            ready.wait();
            loop {
                std::hint::spin_loop();
            }
        });
    }
    ready.wait();
    mmzap::exit::parallel(CODE)
}

fn a_signal_stack_in_large_memory_holds_its_handler() {
    ends_with(CODE, "signal_stacks", 30);
}

extern "C" fn close_everything() {
    sys::c_close_all();
}

extern "C" fn say_goodbye() {
    sys::leave_now(CODE + 1);
}

fn closing_handler() {
    filled(HELD);
    sys::at_exit(say_goodbye);
    sys::at_exit(close_everything);
    mmzap::exit::parallel(CODE)
}

/// The handler registered first still runs: it is the one that leaves.
fn a_handler_that_closes_all_streams_does_not_end_the_process() {
    ends_with(CODE + 1, "closing_handler", 3);
}

extern "C" fn wait_for_the_other() {
    thread::sleep(std::time::Duration::from_millis(200));
}

fn another_code() {
    filled(HELD);
    sys::at_exit(wait_for_the_other);
    // Leaves first, by its own code; the other has prepared by then.
    thread::spawn(|| {
        thread::sleep(std::time::Duration::from_millis(50));
        mmzap::exit::parallel(CODE + 1)
    });
    process::exit(CODE)
}

fn the_code_is_that_of_the_thread_that_exits() {
    ends_with(CODE, "another_code", 5);
}

fn main() {
    support::main(
        named![
            a_signal_stack_in_large_memory_holds_its_handler,
            a_handler_that_closes_all_streams_does_not_end_the_process,
            the_code_is_that_of_the_thread_that_exits,
        ],
        named![signal_stacks, closing_handler, another_code],
    );
}
