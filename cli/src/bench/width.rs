//! The limit on active threads that mmzap is measured with.

use std::fmt;

use mmzap::Teardown;
use serde::{Serialize, Serializer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    Threads(usize),
    /// mmzap is left alone to find its own.
    Auto,
}

/// More than this many threads no machine has use for.
const MOST: usize = 4096;

impl Width {
    /// What is measured where nothing else is asked for.
    pub fn default_list() -> Vec<Width> {
        vec![
            Width::Threads(1),
            Width::Threads(mmzap::default_max_active()),
            Width::Auto,
        ]
    }

    /// Reads `2` or `auto`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(count @ 1..=MOST) => Ok(Width::Threads(count)),
            _ if text == "auto" => Ok(Width::Auto),
            _ => Err(format!(
                "a thread limit is a whole number from 1 to {MOST}, or auto"
            )),
        }
    }

    /// The job under this limit.
    pub fn limit(self, job: Teardown<'_>) -> Teardown<'_> {
        match self {
            Width::Threads(count) => job.max_active(count),
            Width::Auto => job,
        }
    }

    pub fn threads(self) -> Option<usize> {
        match self {
            Width::Threads(count) => Some(count),
            Width::Auto => None,
        }
    }
}

impl From<usize> for Width {
    fn from(count: usize) -> Self {
        Width::Threads(count)
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Width::Threads(count) => count.fmt(f),
            Width::Auto => f.write_str("auto"),
        }
    }
}

impl Serialize for Width {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Width::Threads(count) => serializer.serialize_u64(*count as u64),
            Width::Auto => serializer.serialize_str("auto"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_auto_are_read_and_written() {
        for text in ["1", "4096", "auto"] {
            let width = Width::parse(text).expect(text);
            assert_eq!(width.to_string(), text);
            let json = serde_json::to_string(&width).expect("JSON");
            assert_eq!(json.trim_matches('"'), text);
            assert_eq!(json.starts_with('"'), text == "auto");
        }
        for text in ["", "0", "-1", "4097", "Auto", "automatic", "1.5"] {
            assert!(Width::parse(text).is_err(), "{text}");
        }
    }
}
