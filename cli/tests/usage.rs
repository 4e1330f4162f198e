//! Wrong command lines end with status 2, and what does not fit is refused.

use assert_cmd::Command;

fn mmzap(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("mmzap"))
        .args(arguments)
        .output()
        .expect("the mmzap program starts");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn bad_command_lines_are_usage_errors() {
    let cases: &[&[&str]] = &[
        &[],
        &["no-such-command"],
        &["bench", "no-such-scenario"],
        &["bench", "free", "--size", "64m"],
        &["bench", "free", "--size", "64MB"],
        &["bench", "free", "--size", "1.5G"],
        &["bench", "free", "--size", "-1"],
        &["bench", "free", "--size", "0"],
        &["bench", "free", "--size", ""],
        &["bench", "free", "--size", "99999999999999T"],
        &["bench", "free", "--runs", "0"],
        &["bench", "free", "--runs", "many"],
        &["bench", "free", "--max-active", "0"],
        &["bench", "free", "--max-active", "1,,2"],
        &["bench", "free", "--max-active", "1000000"],
        &["bench", "free", "--max-active", "Auto"],
        &["bench", "free", "--max-active", "auto,"],
        &["bench", "free", "--zram"],
        &["bench", "free", "--all"],
        &["bench", "folio", "--page", "thp"],
        &["bench", "free", "--page", "2M"],
        &["bench", "free", "--backing", "memfd"],
        &["bench", "space", "--page", "thp"],
        &["bench", "exit", "--malloc"],
        &["bench", "small", "--ceiling"],
        &["bench", "free", "--malloc", "--page", "thp"],
        &["bench", "plan", "--size", "1G"],
        &["bench", "--no-such-option"],
        &["doctor", "extra"],
    ];
    for arguments in cases {
        let (status, out, err) = mmzap(arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {err}");
        assert!(out.is_empty(), "{arguments:?} printed {out}");
        assert!(!err.is_empty(), "{arguments:?} said nothing");
    }
}

#[test]
fn help_and_version_succeed() {
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["bench", "--help"],
        &["doctor", "--help"],
    ] {
        let (status, out, err) = mmzap(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {err}");
        assert!(out.contains("mmzap"), "{out}");
        assert!(!out.contains("bench-child"), "{out}");
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_memory_named() {
    for scenario in ["free", "scattered", "bystander", "exit", "cold"] {
        let (status, out, err) = mmzap(&["bench", scenario, "--size", "100T", "--json"]);
        assert_eq!(status, Some(1), "{scenario}: {err}");
        assert!(out.is_empty(), "{out}");
        assert!(
            err.contains(&format!("{scenario} of 100 TiB needs 100.20 TiB")),
            "{err}"
        );
        assert!(err.contains("iB is free"), "{err}");
        assert!(err.contains("smaller --size"), "{err}");
    }
}

#[test]
fn address_space_counts_its_page_tables() {
    let (status, _, err) = mmzap(&["bench", "space", "--size", "1000000T"]);
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("needs 1953.13 TiB"), "{err}");
}

#[test]
fn a_size_beyond_any_address_space_is_refused() {
    let (status, _, err) = mmzap(&["bench", "free", "--size", "18446744073709551615"]);
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("larger than any address space"), "{err}");
}

#[test]
fn a_page_that_cannot_be_written_is_said_before_measuring() {
    let (status, out, err) = mmzap(&[
        "bench",
        "free",
        "--size",
        "16M",
        "--runs",
        "1",
        "--html",
        "/no/such/place/page.html",
    ]);
    assert_eq!(status, Some(1));
    assert!(out.is_empty(), "{out}");
    assert!(err.contains("/no/such/place/page.html"), "{err}");
}
