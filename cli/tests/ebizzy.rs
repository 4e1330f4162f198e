//! `bench ebizzy`: every allocator at every number of threads, or a word why not.

mod support;

use support::bench;

const SHORT: [&str; 8] = [
    "ebizzy",
    "--threads",
    "1,3",
    "--seconds",
    "0.2",
    "--chunks",
    "4",
    "--json",
];

#[cfg(feature = "allocators")]
#[test]
fn every_allocator_is_measured_with_what_it_keeps() {
    let result = bench(&SHORT).json();
    assert_eq!(result["scenario"], "ebizzy");
    assert_eq!(result["baseline"], "purge");
    let rows = result["rows"].as_array().expect("rows");
    let names = [
        "purge",
        "jemalloc",
        "glibc",
        "mimalloc",
        "mmzap",
        "mmzap-jemalloc",
    ];
    let expected = [1, 3].map(|threads| names.map(|name| (name, threads)));
    let found: Vec<_> = rows
        .iter()
        .map(|row| {
            for key in ["median_s", "records_per_s", "ratio"] {
                assert!(row[key].as_f64() > Some(0.0), "{key} in {row}");
            }
            let faults = row["faults"].as_f64().expect("faults");
            // The baseline is what it is called: every page of every block.
            assert_eq!(row["variant"] == "purge", faults > 100.0, "{row}");
            let rss = row["rss_bytes"].as_u64().expect("rss_bytes");
            let lazy = row["reclaimable_bytes"]
                .as_u64()
                .expect("reclaimable_bytes");
            assert!(rss < 1 << 30 && lazy < 1 << 30, "{row}");
            let name = row["variant"].as_str().expect("a variant");
            (name, row["threads"].as_u64().expect("threads"))
        })
        .collect();
    assert_eq!(found, expected.as_flattened());
}

#[cfg(feature = "allocators")]
#[test]
fn people_see_the_published_table() {
    let mut arguments = SHORT.to_vec();
    arguments.pop();
    let ran = bench(&arguments);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.err);
    for word in ["records/s", "reclaimable", "15306", "1.99"] {
        assert!(ran.out.contains(word), "no {word} in {}", ran.out);
    }
}

#[cfg(not(feature = "allocators"))]
#[test]
fn without_the_allocators_it_says_so() {
    bench(&SHORT).refused(&["--features allocators"]);
}

#[test]
fn its_options_are_its_own() {
    for arguments in [
        ["free", "--threads", "2"],
        ["free", "--seconds", "2"],
        ["free", "--chunks", "2"],
        ["ebizzy", "--threads", "0"],
        ["ebizzy", "--threads", "many"],
        ["ebizzy", "--seconds", "nan"],
        ["ebizzy", "--seconds", "-1"],
        ["ebizzy", "--chunks", "0"],
        ["ebizzy", "--size", "1G"],
    ] {
        let ran = bench(&arguments);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {}", ran.err);
    }
}
