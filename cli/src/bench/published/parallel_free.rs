//! "mm: support parallel free of memory", 2017: the time of one free() of 320 GB.

use super::super::outcome::{Outcome, Row};
use super::super::table::seconds;
use super::super::width::Width;
use super::{Beside, records};

const TEXT: &str = include_str!("../../../reference/parallel-free.csv");

/// How that experiment was run.
const SOURCE: &str = "Published: kernel patch set \"mm: support parallel free \
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
        let mmzap = |width| {
            outcome
                .rows
                .iter()
                .find(|row| row.variant == "mmzap" && row.max_active == Some(width))
        };
        match self {
            Setting::Serial => outcome
                .rows
                .iter()
                .find(|row| row.variant == outcome.baseline),
            Setting::Default => {
                mmzap(Width::Auto).or_else(|| mmzap(Width::Threads(mmzap::default_max_active())))
            }
            Setting::MaxActive(width) => mmzap(Width::Threads(width)),
        }
    }
}

/// The experiment, slowest settings first as published.
pub fn parallel_free() -> Vec<ParallelFree> {
    let rows: Vec<(Setting, f64)> = records(TEXT)
        .filter_map(|[setting, seconds]| {
            let setting = match setting {
                "default" => Setting::Default,
                other => match other.parse() {
                    Ok(width) => Setting::MaxActive(width),
                    Err(_) => Setting::Serial,
                },
            };
            Some((setting, seconds.parse().ok()?))
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

/// The published settings first, then widths that only we measured.
pub fn beside(outcome: &Outcome) -> Beside {
    let published = parallel_free();
    let ours = |row: Option<&Row>| {
        row.map_or_else(String::new, |row| {
            format!("{:.2} ({})", row.ratio, seconds(row.median_s))
        })
    };
    let mut rows: Vec<Vec<String>> = published
        .iter()
        .map(|row| {
            vec![
                row.setting.label(),
                seconds(row.seconds),
                format!("{:.2}", row.speed_up),
                ours(row.setting.ours(outcome)),
            ]
        })
        .collect();
    for row in &outcome.rows {
        let known = |width| {
            published
                .iter()
                .any(|one| one.setting == Setting::MaxActive(width))
        };
        if let ("mmzap", Some(Width::Threads(width))) = (row.variant, row.max_active)
            && !known(width)
        {
            rows.push(vec![
                width.to_string(),
                String::new(),
                String::new(),
                ours(Some(row)),
            ]);
        }
    }
    Beside {
        title: "Beside the 320 GB experiment",
        source: SOURCE,
        head: &[
            "max_active",
            "published",
            "published speed-up",
            "ours: speed-up (time)",
        ],
        rows,
    }
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

    #[test]
    fn ours_stands_beside_the_published_setting() {
        let mut outcome = Outcome::new("free", "munmap", 1 << 30, 1).expect("/proc");
        let row = |variant, max_active, ratio| Row {
            variant,
            max_active,
            ratio,
            median_s: 0.5,
            ..Row::default()
        };
        outcome.rows = vec![
            row("munmap", None, 1.0),
            row("mmzap", Some(Width::Threads(2)), 1.96),
            row("mmzap", Some(Width::Threads(3)), 2.5),
            row("mmzap", Some(Width::Auto), 1.9),
        ];
        let rows = beside(&outcome).rows;
        let of = |label: &str| {
            rows.iter()
                .find(|row| row[0] == label)
                .map(|row| row[3].as_str())
        };
        assert_eq!(of("serial"), Some("1.00 (500.00 ms)"));
        assert_eq!(of("default"), Some("1.90 (500.00 ms)"));
        assert_eq!(of("2"), Some("1.96 (500.00 ms)"));
        assert_eq!(of("3"), Some("2.50 (500.00 ms)"));
        assert_eq!(of("32"), Some(""));
        assert_eq!(of("auto"), None);
    }
}
