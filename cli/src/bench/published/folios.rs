//! "mm/madvise: enhance lazyfreeing with mTHP", 2024: MADV_FREE of 1 GiB made of
//! folios of one size. A kernel that takes folios to pieces before it frees them
//! lazily (old) against one that does not (new).

use super::super::outcome::{Outcome, Row};
use super::super::table::seconds;
use super::{Beside, records};
use crate::size;

const TEXT: &str = include_str!("../../../reference/lazyfree-folios.csv");

struct Published {
    folio_bytes: u64,
    old_s: f64,
    new_s: f64,
}

fn published() -> Vec<Published> {
    records(TEXT)
        .filter_map(|[folio_kib, old, new]| {
            Some(Published {
                folio_bytes: folio_kib.parse::<u64>().ok()? * size::KIB,
                old_s: old.parse().ok()?,
                new_s: new.parse().ok()?,
            })
        })
        .collect()
}

/// Published sizes first, then those that only we measured.
pub fn beside(outcome: &Outcome) -> Beside {
    let published = published();
    let mut sizes: Vec<u64> = published.iter().map(|row| row.folio_bytes).collect();
    sizes.extend(outcome.rows.iter().filter_map(|row| row.folio_bytes));
    sizes.sort_unstable();
    sizes.dedup();
    let smallest = published.first().map_or(f64::NAN, |row| row.new_s);
    let plain = |bytes| lazily(outcome, bytes).find(|row| row.variant == outcome.baseline);
    let plain_smallest = sizes.first().and_then(|bytes| plain(*bytes));
    let rows = sizes
        .iter()
        .map(|&bytes| {
            let theirs = published.iter().find(|row| row.folio_bytes == bytes);
            let best = lazily(outcome, bytes)
                .filter(|row| row.variant == "mmzap")
                .max_by(|one, other| one.ratio.total_cmp(&other.ratio));
            let text = |value: Option<String>| value.unwrap_or_default();
            vec![
                size::show(bytes),
                text(theirs.map(|row| seconds(row.old_s))),
                text(theirs.map(|row| seconds(row.new_s))),
                text(theirs.map(|row| format!("{:.2}", smallest / row.new_s))),
                text(plain(bytes).map(|row| seconds(row.median_s))),
                text(
                    plain(bytes)
                        .zip(plain_smallest)
                        .map(|(row, first)| format!("{:.2}", first.median_s / row.median_s)),
                ),
                text(best.map(|row| {
                    let time = seconds(row.median_s);
                    format!("{:.2} ({time}, {})", row.ratio, row.label())
                })),
            ]
        })
        .collect();
    Beside {
        title: "Beside the experiment on folios",
        source: "Published: patch set \"mm/madvise: enhance lazyfreeing with mTHP\" (April 2024), \
            MADV_FREE of 1 GiB made of folios of one size, before and after folios were left \
            whole. Another machine: compare ratios, not seconds. Ours is lazy-free; one call is \
            the plain madvise on this kernel, the last column the best mmzap row against it.",
        head: &[
            "folio",
            "published old",
            "published new",
            "new: against the smallest",
            "ours: one call",
            "ours: against the smallest",
            "ours: mmzap",
        ],
        rows,
    }
}

fn lazily(outcome: &Outcome, bytes: u64) -> impl Iterator<Item = &Row> {
    outcome
        .rows
        .iter()
        .filter(move |row| row.folio_bytes == Some(bytes) && row.operation == Some("lazy-free"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_experiment_reads_whole() {
        let rows = published();
        assert_eq!(rows.len(), 9);
        assert_eq!((rows[0].folio_bytes, rows[0].old_s), (4096, 0.590_251));
        assert_eq!((rows[8].folio_bytes, rows[8].new_s), (2 << 20, 0.002_804));
    }

    #[test]
    fn ours_stands_beside_the_same_size() {
        let mut outcome = Outcome::new("folio", "madvise", 1 << 30, 1).expect("/proc");
        let row = |variant, folio: u64, median_s, ratio| Row {
            variant,
            folio_bytes: Some(folio),
            operation: Some("lazy-free"),
            median_s,
            ratio,
            ..Row::default()
        };
        outcome.rows = vec![
            row("madvise", 4096, 0.2, 1.0),
            row("madvise", 8 << 10, 0.05, 1.0),
            row("mmzap", 8 << 10, 0.025, 2.0),
        ];
        let rows = beside(&outcome).rows;
        assert_eq!(rows.len(), 10);
        let of = |label: &str| rows.iter().find(|row| row[0] == label).expect("the size");
        assert_eq!(of("4 KiB")[4], "200.00 ms");
        assert_eq!(of("8 KiB")[1..4], ["", "", ""]);
        assert_eq!(
            of("8 KiB")[4..],
            ["50.00 ms", "4.00", "2.00 (25.00 ms, mmzap)"]
        );
        assert_eq!(of("16 KiB")[4..], ["", "", ""]);
    }
}
