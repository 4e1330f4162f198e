//! Interleaved measuring and its summary.

use anyhow::{Context, Result};

use super::outcome::{Killed, Row};
use super::progress::Progress;
use super::width::Width;
use crate::thp::Splits;

/// What one run of one variant showed. `worst_s` and the percentiles are of
/// whatever the scenario watches beside the run itself.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    pub seconds: f64,
    pub p50_s: Option<f64>,
    pub p99_s: Option<f64>,
    pub p999_s: Option<f64>,
    pub worst_s: Option<f64>,
    pub syscalls: Option<u64>,
    pub peak_bytes: Option<u64>,
    pub swapped_bytes: Option<u64>,
    pub rss_bytes: Option<u64>,
    pub reclaimable_bytes: Option<u64>,
    /// Page faults of one unit of work.
    pub faults: Option<f64>,
    /// Of one unit of work: how much was gone and had to be made anew.
    pub purged: Option<f64>,
    pub killed: Option<Killed>,
    pub splits: Option<Splits>,
}

impl Sample {
    pub fn of(seconds: f64) -> Self {
        Sample {
            seconds,
            ..Sample::default()
        }
    }
}

/// One way of doing a scenario's work.
pub struct Variant<'a> {
    pub name: &'static str,
    pub max_active: Option<Width>,
    /// Prepares, measures and cleans up once.
    pub measure: Box<dyn FnMut() -> Result<Sample> + 'a>,
}

impl<'a> Variant<'a> {
    pub fn new(
        name: &'static str,
        max_active: Option<Width>,
        measure: impl FnMut() -> Result<Sample> + 'a,
    ) -> Self {
        Variant {
            name,
            max_active,
            measure: Box::new(measure),
        }
    }

    fn label(&self) -> String {
        match self.max_active {
            Some(width) => format!("{} max_active {width}", self.name),
            None => self.name.to_owned(),
        }
    }
}

/// The order within a round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// A B C A B C
    Same,
    /// A B C C B A: for short work, where it matters who comes first
    Alternating,
}

/// The samples of every variant, one a round; the first variant is the baseline.
pub struct Rounds<'a> {
    variants: Vec<Variant<'a>>,
    samples: Vec<Vec<Sample>>,
}

impl<'a> Rounds<'a> {
    pub fn measure(
        mut variants: Vec<Variant<'a>>,
        runs: usize,
        order: Order,
        progress: &Progress,
    ) -> Result<Self> {
        progress.expect(variants.len() * runs);
        let mut samples = vec![Vec::with_capacity(runs); variants.len()];
        for round in 0..runs {
            let mut turn: Vec<usize> = (0..variants.len()).collect();
            if order == Order::Alternating && round % 2 == 1 {
                turn.reverse();
            }
            for index in turn {
                let variant = &mut variants[index];
                let label = variant.label();
                progress.now(&label);
                let sample = (variant.measure)()
                    .with_context(|| format!("{label}, run {} of {runs}", round + 1))?;
                samples[index].push(sample);
                progress.done_one();
            }
        }
        Ok(Rounds { variants, samples })
    }

    /// One row a variant for work on `bytes`. `compared` is the figure whose ratio to
    /// the baseline is taken.
    pub fn rows(&self, bytes: u64, compared: impl Fn(&Sample) -> f64) -> Vec<Row> {
        self.variants
            .iter()
            .zip(&self.samples)
            .map(|(variant, samples)| {
                let times: Vec<f64> = samples.iter().map(|sample| sample.seconds).collect();
                let middle = median(&times);
                let figure = |get: fn(&Sample) -> Option<f64>| {
                    let values: Vec<f64> = samples.iter().filter_map(get).collect();
                    (!values.is_empty()).then(|| median(&values))
                };
                let count = |get: fn(&Sample) -> Option<u64>| {
                    let mut values: Vec<u64> = samples.iter().filter_map(get).collect();
                    values.sort_unstable();
                    values.get(values.len() / 2).copied()
                };
                // Not one of them may be lost, so all are counted.
                let splits = samples
                    .iter()
                    .filter_map(|sample| sample.splits)
                    .reduce(Splits::plus);
                let killed = samples.iter().filter_map(|sample| sample.killed).max();
                Row {
                    variant: variant.name,
                    max_active: variant.max_active,
                    median_s: middle,
                    min_s: times.iter().copied().fold(f64::INFINITY, f64::min),
                    max_s: times.iter().copied().fold(0.0, f64::max),
                    gib_per_s: Some(
                        bytes as f64 / (1_u64 << 30) as f64 / middle.max(f64::MIN_POSITIVE),
                    ),
                    ratio: self.ratio(samples, &compared),
                    p50_s: figure(|sample| sample.p50_s),
                    p99_s: figure(|sample| sample.p99_s),
                    p999_s: figure(|sample| sample.p999_s),
                    worst_s: figure(|sample| sample.worst_s),
                    syscalls: count(|sample| sample.syscalls),
                    peak_bytes: count(|sample| sample.peak_bytes),
                    swapped_bytes: count(|sample| sample.swapped_bytes),
                    rss_bytes: count(|sample| sample.rss_bytes),
                    reclaimable_bytes: count(|sample| sample.reclaimable_bytes),
                    faults: figure(|sample| sample.faults),
                    purged: figure(|sample| sample.purged),
                    killed,
                    splits: splits.map(Splits::total),
                    split_counters: splits,
                    times_s: times,
                    ..Row::default()
                }
            })
            .collect()
    }

    /// The median over the rounds of baseline ÷ variant in the same round.
    fn ratio(&self, samples: &[Sample], compared: &impl Fn(&Sample) -> f64) -> f64 {
        let ratios: Vec<f64> = self.samples[0]
            .iter()
            .zip(samples)
            .map(|(baseline, sample)| compared(baseline) / compared(sample).max(f64::MIN_POSITIVE))
            .collect();
        median(&ratios)
    }

    /// For each variant the ratio of the time itself.
    pub fn time_ratios(&self) -> Vec<f64> {
        self.samples
            .iter()
            .map(|samples| self.ratio(samples, &|sample: &Sample| sample.seconds))
            .collect()
    }
}

/// The middle value, or the mean of the two in the middle; 0 for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[half],
        _ => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

/// The smallest of the sorted values that at least `share` of them do not exceed.
pub fn percentile(sorted: &[u64], share: f64) -> Option<u64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn fixed(name: &'static str, times: &'static [f64]) -> Variant<'static> {
        let mut next = times.iter();
        Variant::new(name, None, move || {
            next.next()
                .map(|time| Sample::of(*time))
                .context("no more times")
        })
    }

    #[test]
    fn ratios_compare_within_a_round() {
        let variants = vec![fixed("a", &[2.0, 4.0, 9.0]), fixed("b", &[1.0, 4.0, 3.0])];
        let rounds = Rounds::measure(variants, 3, Order::Same, &Progress::new()).expect("times");
        let rows = rounds.rows(1 << 30, |sample| sample.seconds);
        assert_eq!((rows[0].ratio, rows[1].ratio), (1.0, 2.0));
        assert_eq!(
            (rows[1].min_s, rows[1].median_s, rows[1].max_s),
            (1.0, 3.0, 4.0)
        );
        assert_eq!(rows[0].gib_per_s, Some(0.25));
        assert_eq!(rows[0].times_s, [2.0, 4.0, 9.0]);
        assert_eq!(rounds.time_ratios(), [1.0, 2.0]);
    }

    #[test]
    fn variants_take_turns() {
        for (order, expected) in [(Order::Same, "abab"), (Order::Alternating, "abba")] {
            let log = RefCell::new(String::new());
            let note = |name: &'static str| {
                let log = &log;
                Variant::new(name, None, move || {
                    log.borrow_mut().push_str(name);
                    Ok(Sample::of(1.0))
                })
            };
            Rounds::measure(vec![note("a"), note("b")], 2, order, &Progress::new())
                .expect("nothing fails");
            assert_eq!(*log.borrow(), expected);
        }
    }

    #[test]
    fn a_failure_names_variant_and_run() {
        let variants = vec![fixed("munmap", &[1.0])];
        let error = Rounds::measure(variants, 2, Order::Same, &Progress::new())
            .err()
            .expect("the second run fails");
        assert_eq!(format!("{error:#}"), "munmap, run 2 of 2: no more times");
    }

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0]), 2.0);
        let values: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&values, 0.5), Some(500));
        assert_eq!(percentile(&values, 0.999), Some(999));
        assert_eq!(percentile(&values[..1], 0.99), Some(1));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
