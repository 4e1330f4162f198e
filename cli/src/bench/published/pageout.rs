//! "mm: madvise: pageout: ignore references", 2024: one MADV_PAGEOUT of 512 MiB,
//! on a kernel that first forgets who touched the pages, and on one that does not
//! ask.

use super::super::outcome::Outcome;
use super::super::table::seconds;
use super::{Beside, records};

const TEXT: &str = include_str!("../../../reference/pageout.csv");

struct Published {
    label: &'static str,
    seconds: f64,
}

fn published() -> Vec<Published> {
    records(TEXT)
        .filter_map(|[variant, real, _user, _system]| {
            Some(Published {
                label: match variant {
                    "clear_young" => "published: old kernel, forgets references",
                    _ => "published: new kernel, ignores references",
                },
                seconds: real.parse().ok()?,
            })
        })
        .collect()
}

/// The published kernels, then our rows.
pub fn beside(outcome: &Outcome) -> Beside {
    let published = published();
    let old = published.first().map_or(f64::NAN, |row| row.seconds);
    let mut rows: Vec<Vec<String>> = published
        .iter()
        .map(|row| {
            vec![
                row.label.into(),
                seconds(row.seconds),
                format!("{:.2}", old / row.seconds),
            ]
        })
        .collect();
    rows.extend(outcome.rows.iter().map(|row| {
        vec![
            format!("ours: {}", row.label()),
            seconds(row.median_s),
            format!("{:.2}", row.ratio),
        ]
    }));
    Beside {
        title: "Beside the experiment on references",
        source: "Published: patch \"mm: madvise: pageout: ignore references\" (February 2024), one \
            MADV_PAGEOUT of 512 MiB of which each page was written; to which device is not said. \
            Another machine and another device: compare ratios, not seconds. The published ratio \
            is that of two kernels for one call, ours is to one call on this kernel.",
        head: &["variant", "time", "ratio"],
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_experiment_reads_whole() {
        let rows = published();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].seconds, rows[1].seconds), (49.634, 46.334));
    }
}
