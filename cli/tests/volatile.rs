//! `bench volatile`: every way with and without pressure, or a word why not.

mod support;

use support::bench;

const SHORT: [&str; 8] = [
    "volatile",
    "--threads",
    "1",
    "--seconds",
    "0.3",
    "--chunks",
    "16",
    "--json",
];

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

#[test]
fn every_way_is_measured() {
    if !is_root() {
        bench(&SHORT).refused(&["control group"]);
        return println!("skipped: a control group with a limit on memory needs root");
    }
    let result = bench(&SHORT).json();
    assert_eq!(result["scenario"], "volatile");
    assert_eq!(result["baseline"], "dontneed");
    let rows = result["rows"].as_array().expect("rows");
    for work in ["ebizzy", "cache"] {
        for pressure in ["none", "background"] {
            for variant in ["dontneed", "plain", "volatile"] {
                let row = rows
                    .iter()
                    .find(|row| {
                        row["operation"] == work
                            && row["pressure"] == pressure
                            && row["variant"] == variant
                    })
                    .unwrap_or_else(|| panic!("no {variant} for {work}, {pressure}"));
                if row["killed"] == "itself" {
                    assert_eq!((variant, pressure), ("plain", "background"), "{row}");
                    continue;
                }
                for key in ["records_per_s", "ratio"] {
                    assert!(row[key].as_f64() > Some(0.0), "{key} in {row}");
                }
                let gone = row["purged"].as_f64().expect("purged");
                match variant {
                    "dontneed" => assert!((gone - 1.0).abs() < 1e-9, "{row}"),
                    _ => assert!((0.0..1.0).contains(&gone), "{row}"),
                }
            }
        }
    }
    let pins: Vec<_> = rows
        .iter()
        .filter(|row| row["operation"] == "pin")
        .collect();
    assert_eq!(pins.len(), 16);
    assert!(pins.iter().all(|row| row["median_s"].as_f64() > Some(0.0)));
    let left = std::fs::read_dir("/sys/fs/cgroup/memory")
        .or_else(|_| std::fs::read_dir("/sys/fs/cgroup"))
        .expect("control groups")
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("mmzap-bench-")
        })
        .count();
    assert_eq!(left, 0, "no group is left");
}

#[test]
fn its_options_are_its_own() {
    for arguments in [["volatile", "--size", "1G"], ["volatile", "--page", "thp"]] {
        let ran = bench(&arguments);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {}", ran.err);
    }
    bench(&["volatile", "--threads", "1,2"]).refused(&["--threads N"]);
}
