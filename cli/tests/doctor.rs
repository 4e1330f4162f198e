//! `mmzap doctor` says what it found, for people and as JSON.

use assert_cmd::Command;
use serde_json::Value;

fn doctor(arguments: &[&str]) -> String {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("mmzap"))
        .arg("doctor")
        .args(arguments)
        .output()
        .expect("the mmzap program starts");
    assert_eq!(output.status.code(), Some(0));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn json_names_capabilities_and_limits() {
    let found: Value = serde_json::from_str(&doctor(&["--json"])).expect("JSON");
    let capabilities = found["capabilities"].as_array().expect("capabilities");
    assert!(!capabilities.is_empty());
    for one in capabilities {
        assert!(
            one["name"].is_string() && one["available"].is_boolean(),
            "{one}"
        );
        assert!(
            one["detail"].is_string() && one["fallback"].is_string(),
            "{one}"
        );
    }
    let limits = &found["limits"];
    assert!(limits["default_max_active"].as_u64() > Some(0));
    for key in [
        "default_max_active_why",
        "max_map_count",
        "overcommit_memory",
    ] {
        assert!(!limits[key].is_null(), "limits.{key} is missing");
    }
    assert!(found["machine"]["page_size"].as_u64() > Some(0));
}

#[test]
fn people_get_tables() {
    let text = doctor(&[]);
    for word in [
        "capability",
        "otherwise",
        "default max_active",
        "swap",
        "overcommit",
    ] {
        assert!(text.contains(word), "no {word} in {text}");
    }
}
