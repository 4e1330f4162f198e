//! The published figures that our own runs are put beside: one file an experiment.

pub mod ebizzy;
pub mod folios;
pub mod pageout;
pub mod parallel_free;
pub mod volatile;

use super::outcome::Outcome;

/// A table of published figures with ours in it.
pub struct Beside {
    pub title: &'static str,
    /// What was published, and how far it compares.
    pub source: &'static str,
    pub head: &'static [&'static str],
    pub rows: Vec<Vec<String>>,
}

/// The experiment that a scenario repeats, if there is one.
pub fn beside(outcome: &Outcome) -> Option<Beside> {
    match outcome.scenario {
        "free" => Some(parallel_free::beside(outcome)),
        "folio" => Some(folios::beside(outcome)),
        "ebizzy" => Some(ebizzy::beside(outcome)),
        "pageout" => Some(pageout::beside(outcome)),
        "volatile" => Some(volatile::beside(outcome)),
        _ => None,
    }
}

/// The lines of a file of comma-separated figures, without its head.
fn records<const N: usize>(text: &str) -> impl Iterator<Item = [&str; N]> {
    text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        fields.try_into().ok()
    })
}
