//! `bench --all` measures what can be measured here and names the rest.

mod support;

use support::{Devices, Switches, bench, devices, harness};

const SCENARIOS: [&str; 12] = [
    "free",
    "space",
    "scattered",
    "small",
    "bystander",
    "exit",
    "plan",
    "folio",
    "pageout",
    "cold",
    "ebizzy",
    "volatile",
];

/// Of ebizzy and volatile, no more than shows that it runs.
const LITTLE: [&str; 6] = ["--threads", "1", "--seconds", "0.1", "--chunks", "4"];

fn every_scenario_is_measured_or_named() {
    let switches = Switches::remember();
    let before = Devices::remember();
    let arguments = "--all --size 64M --runs 1 --max-active auto --json";
    let arguments: Vec<&str> = arguments.split(' ').chain(LITTLE).collect();
    let ran = bench(&arguments);
    assert!(switches.same());
    assert_eq!(devices(), before.0);
    let result = ran.json();
    let measured: Vec<&str> = result
        .as_array()
        .expect("an array")
        .iter()
        .map(|one| {
            let rows = one["rows"].as_array().expect("rows");
            assert!(!rows.is_empty(), "{one}");
            for row in rows.iter().filter(|row| row["variant"] == "mmzap") {
                let width = &row["max_active"];
                let without = one["scenario"] == "plan" || one["scenario"] == "ebizzy";
                assert!(width == "auto" || without, "{row}");
            }
            one["scenario"].as_str().expect("a name")
        })
        .collect();
    for name in SCENARIOS {
        let left_out = ran.err.contains(&format!("{name} left out: "));
        assert_ne!(measured.contains(&name), left_out, "{name}: {}", ran.err);
    }
    // Of 64 MiB it would not be worth the name.
    assert!(!measured.contains(&"pageout"));
    assert!(measured.contains(&"free") && measured.contains(&"cold"));
}

fn nothing_measured_is_an_empty_array() {
    let switches = Switches::remember();
    let arguments = "--all --size 1000000T --runs 1 --json";
    let arguments: Vec<&str> = arguments.split(' ').chain(LITTLE).collect();
    let ran = bench(&arguments);
    assert!(switches.same());
    // These have sizes of their own.
    let fixed = ["plan", "small", "ebizzy", "volatile"];
    let result = ran.json();
    let names: Vec<_> = result.as_array().expect("an array").iter().collect();
    assert!(
        names
            .iter()
            .all(|one| fixed.iter().any(|name| one["scenario"] == *name))
    );
    assert!(ran.err.contains("free left out: "), "{}", ran.err);
}

fn main() {
    harness::main(
        named![
            every_scenario_is_measured_or_named,
            nothing_measured_is_an_empty_array,
        ],
        &[],
    );
}
