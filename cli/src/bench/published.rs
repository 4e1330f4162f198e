//! The published figures that our own run is put beside.

use super::outcome::{Outcome, Row};

/// "mm: support parallel free of memory", 2017: the time of one free() of 320 GB.
const PARALLEL_FREE: &str = include_str!("../../reference/parallel-free.csv");

/// How that experiment was run.
pub const PARALLEL_FREE_SOURCE: &str = "Published: kernel patch set \"mm: support parallel free \
    of memory\" (v1, February 2017), one free() of 320 GB of 4 KiB pages on 4 nodes, 72 cores, \
    512 GB. Another machine: compare ratios, not seconds.";

/// One row of the 320 GB experiment.
#[derive(Debug, PartialEq)]
pub struct ParallelFree {
    pub setting: Setting,
    pub seconds: f64,
    pub speed_up: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// The kernel as it was
    Serial,
    /// The patched kernel, left alone
    Default,
    MaxActive(usize),
}

impl Setting {
    pub fn label(self) -> String {
        match self {
            Setting::Serial => "serial".into(),
            Setting::Default => "default".into(),
            Setting::MaxActive(width) => width.to_string(),
        }
    }

    /// Our row for the same setting, where it was measured.
    pub fn ours(self, outcome: &Outcome) -> Option<&Row> {
        outcome.rows.iter().find(|row| match self {
            Setting::Serial => row.variant == outcome.baseline,
            Setting::Default => {
                row.variant == "mmzap" && row.max_active == Some(mmzap::default_max_active())
            }
            Setting::MaxActive(width) => row.variant == "mmzap" && row.max_active == Some(width),
        })
    }
}

/// The experiment, slowest settings first as published.
pub fn parallel_free() -> Vec<ParallelFree> {
    let rows: Vec<(Setting, f64)> = PARALLEL_FREE
        .lines()
        .skip(1)
        .filter_map(|line| {
            let (setting, seconds) = line.split_once(',')?;
            let setting = match setting {
                "default" => Setting::Default,
                other => match other.parse() {
                    Ok(width) => Setting::MaxActive(width),
                    Err(_) => Setting::Serial,
                },
            };
            Some((setting, seconds.trim().parse().ok()?))
        })
        .collect();
    let serial = rows
        .iter()
        .find(|(setting, _)| *setting == Setting::Serial)
        .map_or(f64::NAN, |(_, seconds)| *seconds);
    rows.into_iter()
        .map(|(setting, seconds)| ParallelFree {
            setting,
            seconds,
            speed_up: serial / seconds,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_experiment_reads_whole() {
        let rows = parallel_free();
        assert_eq!(rows.len(), 8);
        assert_eq!((rows[0].setting, rows[0].seconds), (Setting::Serial, 10.8));
        let best = rows
            .iter()
            .find(|row| row.setting == Setting::MaxActive(8))
            .expect("a row for 8");
        assert!((best.speed_up - 10.8 / 4.77).abs() < 1e-9);
    }
}
