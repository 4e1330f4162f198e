//! `bench pageout` and `bench cold`: what went out is proven, and no swap device
//! of theirs outlives them.

mod support;

use std::os::unix::process::ExitStatusExt;

use support::{Devices, Ran, bench, bench_as_nobody, devices, harness, interrupted};

/// Skips where the kernel has no zram; anything else is for the test to judge.
fn zram(ran: Ran) -> Ran {
    if ran.err.contains("this kernel has no zram") {
        harness::skip(ran.err.trim());
    }
    ran
}

fn names(result: &serde_json::Value) -> Vec<(&str, String)> {
    let rows = result["rows"].as_array().expect("rows");
    rows.iter()
        .map(|row| {
            for key in ["median_s", "gib_per_s", "ratio"] {
                assert!(row[key].as_f64() > Some(0.0), "{key} in {row}");
            }
            let name = row["variant"].as_str().expect("a variant");
            (name, row["max_active"].to_string())
        })
        .collect()
}

fn expected(widths: &[&str]) -> Vec<(&'static str, String)> {
    let mut rows = vec![("madvise", "null".into()), ("naive", "null".into())];
    rows.extend(widths.iter().map(|width| ("mmzap", (*width).to_owned())));
    rows
}

fn pageout_proves_what_went_out() {
    harness::needs_root();
    let before = Devices::remember();
    let result = zram(bench(&[
        "pageout",
        "--zram",
        "--size",
        "512M",
        "--runs",
        "1",
        "--max-active",
        "1,auto",
        "--json",
    ]))
    .json();
    assert_eq!(devices(), before.0);
    assert_eq!(names(&result), expected(&["1", "\"auto\""]));
    assert_eq!(result["baseline"], "madvise");
    for row in result["rows"].as_array().expect("rows") {
        let out = row["swapped_bytes"].as_u64().expect("swapped_bytes");
        assert!(out >= (512 << 20) / 10 * 9, "{row}");
        let threads = (row["variant"] == "naive").then_some(2);
        assert_eq!(row["threads"].as_u64(), threads, "{row}");
    }
}

fn signals_leave_no_swap_behind() {
    harness::needs_root();
    if !std::path::Path::new("/sys/class/zram-control").exists() {
        harness::skip("needs zram");
    }
    let before = Devices::remember();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        let swapping = || devices().iter().filter(|one| one.starts_with('/')).count();
        let count = swapping();
        let status = interrupted(&["pageout", "--zram", "--size", "512M"], signal, || {
            swapping() > count
        });
        assert_eq!(status.signal(), Some(signal), "{status}");
        assert_eq!(devices(), before.0, "after signal {signal}");
    }
}

fn pageout_without_swap_says_so() {
    if devices().iter().any(|one| one.starts_with('/')) {
        harness::skip("needs a machine without swap");
    }
    bench(&["pageout", "--json"]).refused(&["needs swap", "--zram"]);
}

fn too_little_is_refused() {
    bench(&["pageout", "--size", "511M"]).refused(&["511 MiB", "at least 512 MiB"]);
}

fn only_root_sets_up_swap() {
    harness::needs_root(); // to become somebody else
    let before = Devices::remember();
    let ran = bench_as_nobody(&["pageout", "--zram", "--size", "512M"]);
    ran.refused(&["--zram", "needs root"]);
    assert_eq!(devices(), before.0);
}

fn cold_needs_no_swap() {
    let before = Devices::remember();
    let arguments = [
        "cold",
        "--size",
        "64M",
        "--runs",
        "2",
        "--max-active",
        "2",
        "--json",
    ];
    let result = bench(&arguments).json();
    assert_eq!(names(&result), expected(&["2"]));
    assert_eq!(devices(), before.0);
}

fn main() {
    harness::main(
        named![
            pageout_proves_what_went_out,
            signals_leave_no_swap_behind,
            pageout_without_swap_says_so,
            too_little_is_refused,
            only_root_sets_up_swap,
            cold_needs_no_swap,
        ],
        &[],
    );
}
