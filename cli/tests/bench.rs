//! Every scenario runs on a little memory and prints what the contract says.
//! Times are never judged here: they are the machine's, not the program's.

use assert_cmd::Command;
use serde_json::Value;

fn bench(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("mmzap"))
        .arg("bench")
        .args(arguments)
        .output()
        .expect("the mmzap program starts");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

fn json(arguments: &[&str]) -> Value {
    let (status, out, err) = bench(&[arguments, &["--json"]].concat());
    assert_eq!(status, Some(0), "{arguments:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error} in {out}"))
}

/// The keys that every object and every row has; returns (variant, max_active) of the rows.
fn check(result: &Value, scenario: &str, baseline: &str) -> Vec<(String, Option<u64>)> {
    assert_eq!(result["scenario"], scenario);
    assert_eq!(result["baseline"], baseline);
    assert!(result["size_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    assert!(result["runs"].as_u64().is_some_and(|runs| runs > 0));
    for key in [
        "kernel",
        "cpus",
        "physical_cores",
        "mem_total_bytes",
        "mem_available_bytes",
    ] {
        assert!(
            !result["machine"][key].is_null(),
            "machine.{key} is missing"
        );
    }
    let rows = result["rows"].as_array().expect("rows");
    rows.iter()
        .map(|row| {
            for key in ["median_s", "min_s", "max_s", "ratio"] {
                assert!(
                    row[key].as_f64().is_some_and(f64::is_finite),
                    "{key} in {row}"
                );
            }
            let speed = row.get("gib_per_s").expect("gib_per_s, if only null");
            assert_eq!(
                speed.is_null(),
                scenario == "plan" || row["variant"] == "idle",
                "{row}"
            );
            let width = row.get("max_active").expect("max_active, if only null");
            if row["variant"] == baseline && row["teardown_ratio"].is_null() {
                assert_eq!(row["ratio"], 1.0, "{row}");
            }
            let name = row["variant"].as_str().expect("a variant").to_owned();
            (name, width.as_u64())
        })
        .collect()
}

fn named(rows: &[(&str, Option<u64>)]) -> Vec<(String, Option<u64>)> {
    rows.iter()
        .map(|(name, width)| ((*name).to_owned(), *width))
        .collect()
}

#[test]
fn free_prints_the_contract() {
    let result = json(&[
        "free",
        "--size",
        "64M",
        "--runs",
        "1",
        "--max-active",
        "1,2",
    ]);
    assert_eq!(
        check(&result, "free", "munmap"),
        named(&[
            ("munmap", None),
            ("naive", None),
            ("mmzap", Some(1)),
            ("mmzap", Some(2))
        ])
    );
    assert_eq!(result["size_bytes"], 64 << 20);
    assert_eq!(result["runs"], 1);
    assert_eq!(result["page"], "4k");
}

#[test]
fn widths_are_numbers_and_auto() {
    for (arguments, baseline) in [
        (&["free"][..], "munmap"),
        (&["free", "--malloc"], "plain"),
        (&["scattered"], "madvise"),
        (&["space"], "munmap"),
        (&["bystander"], "munmap"),
    ] {
        let common = [
            "--size",
            "32M",
            "--runs",
            "1",
            "--max-active",
            "auto,1,auto",
        ];
        let result = json(&[arguments, &common].concat());
        let rows = check(&result, arguments[0], baseline);
        let ours: Vec<&Value> = result["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .filter(|row| row["variant"] == "mmzap")
            .map(|row| &row["max_active"])
            .collect();
        assert_eq!(ours, [&Value::from("auto"), &Value::from(1)], "{rows:?}");
    }
    // Left alone, it measures one thread, this machine's default, and auto.
    let result = json(&["free", "--size", "32M", "--runs", "1"]);
    let rows = result["rows"].as_array().expect("rows");
    assert_eq!(rows.last().expect("rows")["max_active"], "auto");
    let (_, table, _) = bench(&["free", "--size", "32M", "--runs", "1"]);
    assert!(table.contains(" auto "), "{table}");
}

#[test]
fn free_of_a_block_from_malloc() {
    let arguments = [
        "free",
        "--malloc",
        "--size",
        "64M",
        "--runs",
        "2",
        "--max-active",
        "2",
    ];
    let result = json(&arguments);
    assert_eq!(
        check(&result, "free", "plain"),
        named(&[("plain", None), ("naive", None), ("mmzap", Some(2))])
    );
}

#[test]
fn free_with_the_ceiling_of_two_processes() {
    let arguments = [
        "free",
        "--ceiling",
        "--size",
        "32MiB",
        "--runs",
        "1",
        "--max-active",
        "1",
    ];
    let rows = check(&json(&arguments), "free", "munmap");
    assert_eq!(rows.last(), Some(&("processes".to_owned(), Some(2))));
}

#[test]
fn free_of_huge_pages_or_the_reason_why_not() {
    let arguments = [
        "free", "--page", "thp", "--size", "32M", "--runs", "1", "--json",
    ];
    match bench(&arguments) {
        (Some(0), out, _) => {
            let result: Value = serde_json::from_str(&out).expect("JSON");
            assert_eq!(result["page"], "thp");
        }
        (status, out, err) => {
            assert_eq!((status, out.as_str()), (Some(1), ""));
            assert!(err.contains("huge pages"), "{err}");
        }
    }
}

#[test]
fn a_size_is_rounded_up_to_whole_huge_pages() {
    let result = json(&["free", "--size", "4097", "--runs", "1", "--max-active", "1"]);
    assert_eq!(result["size_bytes"], 2 << 20);
}

#[test]
fn space_with_either_backing() {
    for backing in ["zero", "memfd"] {
        let size = if backing == "zero" { "4G" } else { "32M" };
        let arguments = [
            "space",
            "--size",
            size,
            "--runs",
            "1",
            "--max-active",
            "1,2",
            "--backing",
            backing,
        ];
        let result = json(&arguments);
        assert_eq!(
            check(&result, "space", "munmap"),
            named(&[("munmap", None), ("mmzap", Some(1)), ("mmzap", Some(2))])
        );
        assert_eq!(result["backing"], backing);
    }
}

#[test]
fn scattered_scales_its_ranges() {
    let result = json(&[
        "scattered",
        "--size",
        "64M",
        "--runs",
        "1",
        "--max-active",
        "2",
    ]);
    assert_eq!(
        check(&result, "scattered", "madvise"),
        named(&[("madvise", None), ("mmzap", Some(2))])
    );
    assert_eq!(result["ranges"], 2048);
}

#[test]
fn small_has_two_rows_a_size() {
    let result = json(&["small", "--size", "64K", "--runs", "2"]);
    check(&result, "small", "munmap");
    let sizes: Vec<u64> = result["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| row["size_bytes"].as_u64().expect("a size"))
        .collect();
    let kib = |kib: u64| kib << 10;
    assert_eq!(sizes, [kib(4), kib(4), kib(16), kib(16), kib(64), kib(64)]);
}

#[test]
fn bystander_names_its_percentiles() {
    let result = json(&[
        "bystander",
        "--size",
        "64M",
        "--runs",
        "1",
        "--max-active",
        "1",
    ]);
    assert_eq!(
        check(&result, "bystander", "munmap"),
        named(&[("munmap", None), ("idle", None), ("mmzap", Some(1))])
    );
    for row in result["rows"].as_array().expect("rows") {
        assert!(row["worst_s"].as_f64() > Some(0.0), "{row}");
        assert_eq!(
            row["teardown_ratio"].is_null(),
            row["variant"] == "idle",
            "{row}"
        );
    }
}

#[test]
fn exit_keeps_the_status() {
    let result = json(&["exit", "--size", "64M", "--runs", "1"]);
    let rows = check(&result, "exit", "plain");
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1].0, "parallel");
}

#[test]
fn plan_reports_its_peak() {
    let result = json(&["plan", "--runs", "1"]);
    check(&result, "plan", "mmzap");
    assert_eq!(result["ranges"], 1_000_000);
    assert_eq!(result["mappings"], 100_000);
    assert!(result["rows"][0]["peak_bytes"].as_u64() > Some(0));
}

#[test]
fn several_scenarios_are_an_array() {
    let arguments = [
        "scattered",
        "free",
        "--size",
        "16M",
        "--runs",
        "1",
        "--max-active",
        "1",
    ];
    let result = json(&arguments);
    let names: Vec<&Value> = result
        .as_array()
        .expect("an array")
        .iter()
        .map(|one| &one["scenario"])
        .collect();
    assert_eq!(names, ["scattered", "free"]);
}

#[test]
fn people_get_a_table_beside_the_published_one() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let page = directory.path().join("page.html");
    let path = page.to_str().expect("a path of text");
    let arguments = [
        "free",
        "--size",
        "16M",
        "--runs",
        "1",
        "--max-active",
        "2",
        "--html",
        path,
    ];
    let (status, out, err) = bench(&arguments);
    assert_eq!(status, Some(0), "{err}");
    for word in ["munmap", "naive", "ratio", "10.80 s", "4.770 s", "320 GB"] {
        assert!(out.contains(word), "no {word} in {out}");
    }
    let text = std::fs::read_to_string(page).expect("the page was written");
    assert!(text.starts_with("<!doctype html>") && text.ends_with("</html>\n"));
    assert!(text.contains("<svg") && text.contains("this run"));
    for outside in ["http:", "https:", "src=", "url(", "@import"] {
        assert!(
            !text.contains(outside),
            "the page refers to something outside: {outside}"
        );
    }
}
