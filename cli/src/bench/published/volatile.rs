//! "Support vrange for anonymous page", 2013: ebizzy with a jemalloc that purges
//! by MADV_DONTNEED, and one that makes its free memory volatile, without and
//! with others that want memory.

use super::super::outcome::Outcome;
use super::{Beside, records};

const TEXT: &str = include_str!("../../../reference/vrange-ebizzy.csv");

/// Pressure, and records a second by MADV_DONTNEED and by vrange(2).
fn published() -> Vec<(&'static str, f64, f64)> {
    records(TEXT)
        .filter_map(|[pressure, discard, vrange]| {
            Some((pressure, discard.parse().ok()?, vrange.parse().ok()?))
        })
        .collect()
}

/// One line for each kind of pressure.
pub fn beside(outcome: &Outcome) -> Beside {
    let rows = published()
        .into_iter()
        .map(|(pressure, discard, vrange)| {
            let ours = |variant: &str| {
                outcome.rows.iter().find(|row| {
                    row.variant == variant
                        && row.operation == Some("ebizzy")
                        && row.pressure == Some(pressure)
                })
            };
            let rate = |variant| {
                let rate = ours(variant).and_then(|row| row.records_per_s);
                rate.map_or_else(String::new, |rate| format!("{rate:.0}"))
            };
            vec![
                pressure.into(),
                format!("{discard:.0}"),
                format!("{vrange:.0}"),
                format!("{:.2}", vrange / discard),
                rate("dontneed"),
                rate("volatile"),
                ours("volatile").map_or_else(String::new, |row| format!("{:.2}", row.ratio)),
            ]
        })
        .collect();
    Beside {
        title: "Beside the experiment on volatile ranges",
        source: "Published: RFC \"Support vrange for anonymous page\", v7 (March 2013), ebizzy \
            -S 20, jemalloc, records a second on 12 CPUs and 2 GB. Another machine, and another \
            kind of pressure: compare ratios.",
        head: &[
            "pressure",
            "published DONTNEED",
            "published vrange",
            "published ratio",
            "ours: dontneed",
            "ours: volatile",
            "ours: ratio",
        ],
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
        assert_eq!(rows[0], ("none", 52389.0, 203_414.0));
        assert_eq!(rows[1].0, "background");
    }
}
