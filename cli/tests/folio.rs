//! `bench folio` tells the truth about folios and leaves the switches of huge
//! pages as they were, however it ends.

mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use support::{Ran, Switches, bench, bench_as_nobody, harness, interrupted, switches};

fn rows_name_folio_operation_and_splits() {
    harness::needs_root();
    let before = Switches::remember();
    let ran = bench(&[
        "folio",
        "--size",
        "64M",
        "--runs",
        "1",
        "--max-active",
        "1,auto",
        "--json",
    ]);
    assert!(before.same());
    let result = ran.json();
    assert_eq!(result["scenario"], "folio");
    assert_eq!(result["baseline"], "madvise");
    let rows = result["rows"].as_array().expect("rows");
    let mut folios = Vec::new();
    for set in rows.chunks(3) {
        let variants: Vec<_> = set
            .iter()
            .map(|row| (row["variant"].as_str(), &row["max_active"]))
            .collect();
        assert_eq!(
            variants,
            [
                (Some("madvise"), &serde_json::Value::Null),
                (Some("mmzap"), &1.into()),
                (Some("mmzap"), &"auto".into()),
            ]
        );
        assert_eq!(set[0]["ratio"], 1.0);
        for row in set {
            for key in ["folio_bytes", "operation"] {
                assert_eq!(row[key], set[0][key]);
            }
            // Whole folios go in, and nothing else on the machine is busy.
            assert_eq!(row["splits"], 0, "{row}");
            let counters = &row["split_counters"];
            let count = |key: &str| counters[key].as_u64().expect(key);
            assert_eq!(
                row["splits"].as_u64(),
                Some(count("folios") + count("pmds") + count("deferred"))
            );
        }
        folios.push((
            set[0]["folio_bytes"].as_u64().expect("a size"),
            set[0]["operation"].as_str().expect("an operation"),
        ));
    }
    assert_eq!(folios[..2], [(4096, "lazy-free"), (4096, "discard")]);
    // Every size is measured, both ways, or named as left out.
    for path in switches().keys() {
        let Some((_, rest)) = path.split_once("hugepages-") else {
            continue;
        };
        let kib: u64 = rest.split("kB").next().expect("kB").parse().expect("KiB");
        let measured = ["lazy-free", "discard"]
            .iter()
            .all(|operation| folios.contains(&(kib << 10, operation)));
        let name = match kib {
            1024.. => format!("{} MiB left out", kib >> 10),
            _ => format!("{kib} KiB left out"),
        };
        assert!(
            measured || ran.err.contains(&name),
            "{kib} KiB: {}",
            ran.err
        );
    }
}

fn people_see_the_published_folios() {
    harness::needs_root();
    let _before = Switches::remember();
    let ran = bench(&["folio", "--size", "32M", "--runs", "1", "--max-active", "1"]);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.err);
    for word in ["lazy-free", "discard", "splits", "590.25 ms", "10.78 ms"] {
        assert!(ran.out.contains(word), "no {word} in {}", ran.out);
    }
}

fn signals_put_the_switches_back() {
    harness::needs_root();
    let before = Switches::remember();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        let status = interrupted(&["folio", "--size", "64M"], signal, || !before.same());
        assert_eq!(status.signal(), Some(signal), "{status}");
        assert!(before.same(), "after signal {signal}: {:?}", switches());
    }
}

/// A limit on address space lets the switches be set, but no memory be mapped.
fn an_error_puts_the_switches_back() {
    harness::needs_root();
    let before = Switches::remember();
    let program = assert_cmd::cargo::cargo_bin!("mmzap");
    let ran: Ran = Command::new("sh")
        .args(["-c", "ulimit -v 400000; exec \"$0\" bench folio --size 1G"])
        .arg(program)
        .output()
        .expect("a shell")
        .into();
    ran.refused(&["cannot map 1 GiB"]);
    assert!(before.same(), "{:?}", switches());
}

fn root_is_asked_for() {
    harness::needs_root(); // to become somebody else
    bench_as_nobody(&["folio", "--json"]).refused(&["folio", "needs root"]);
}

fn main() {
    harness::main(
        named![
            rows_name_folio_operation_and_splits,
            people_see_the_published_folios,
            signals_put_the_switches_back,
            an_error_puts_the_switches_back,
            root_is_asked_for,
        ],
        &[],
    );
}
