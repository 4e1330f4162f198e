//! "Lazy freeing of pages", 2014: ebizzy with a jemalloc that purges by
//! MADV_DONTNEED, and by MADV_FREE.

use super::super::outcome::Outcome;
use super::{Beside, records};

const TEXT: &str = include_str!("../../../reference/lazyfree-ebizzy.csv");

/// Threads, records a second by MADV_DONTNEED, and by MADV_FREE.
fn published() -> Vec<(usize, f64, f64)> {
    records(TEXT)
        .filter_map(|[threads, discard, free]| {
            let figures = (
                threads.parse().ok()?,
                discard.parse().ok()?,
                free.parse().ok()?,
            );
            Some(figures)
        })
        .collect()
}

/// One line for each number of threads.
pub fn beside(outcome: &Outcome) -> Beside {
    let published = published();
    let mut counts: Vec<usize> = published.iter().map(|(threads, ..)| *threads).collect();
    counts.extend(outcome.rows.iter().filter_map(|row| row.threads));
    counts.sort_unstable();
    counts.dedup();
    let rows = counts
        .into_iter()
        .map(|threads| {
            let known = published.iter().find(|(count, ..)| *count == threads);
            let of = |get: fn(&(usize, f64, f64)) -> f64, digits: usize| {
                known.map_or_else(String::new, |known| format!("{:.digits$}", get(known)))
            };
            let ours = |variant: &str| {
                let row = outcome
                    .rows
                    .iter()
                    .find(|row| row.threads == Some(threads) && row.variant == variant);
                row.map_or_else(String::new, |row| format!("{:.2}", row.ratio))
            };
            vec![
                threads.to_string(),
                of(|known| known.1, 0),
                of(|known| known.2, 0),
                of(|known| known.2 / known.1, 2),
                ours("mmzap"),
                ours("mmzap-jemalloc"),
            ]
        })
        .collect();
    Beside {
        title: "Beside the experiment on lazy freeing",
        source: "Published: kernel patch set that added MADV_FREE, v7 (May 2014), ebizzy -S 10 \
            -n 512, jemalloc, records a second, mean of 10 runs on 4 CPUs. Another machine: \
            compare ratios.",
        head: &[
            "threads",
            "published DONTNEED",
            "published FREE",
            "published ratio",
            "ours: mmzap",
            "ours: mmzap-jemalloc",
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
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[0], (1, 7682.10, 15306.10));
        assert_eq!(rows[5].0, 32);
    }
}
