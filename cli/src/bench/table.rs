//! A scenario's result for people.

use super::outcome::{Outcome, Row};
use super::published;
use crate::{output, size};

/// A column: its head, and a row's cell if the row has that figure.
type Column = (&'static str, fn(&Row) -> Option<String>);

const COLUMNS: &[Column] = &[
    ("variant", |row| Some(row.variant.into())),
    ("max_active", |row| {
        row.max_active.map(|width| width.to_string())
    }),
    ("folio", |row| row.folio_bytes.map(size::show)),
    ("operation", |row| row.operation.map(Into::into)),
    ("pressure", |row| row.pressure.map(Into::into)),
    ("threads", |row| {
        row.threads.map(|threads| threads.to_string())
    }),
    ("size", |row| row.size_bytes.map(size::show)),
    ("page", |row| row.page.map(|page| page.name().into())),
    ("median", |row| Some(seconds(row.median_s))),
    ("min", |row| Some(seconds(row.min_s))),
    ("max", |row| Some(seconds(row.max_s))),
    ("GiB/s", |row| {
        row.gib_per_s.map(|speed| format!("{speed:.1}"))
    }),
    ("records/s", |row| {
        row.records_per_s.map(|rate| format!("{rate:.0}"))
    }),
    ("faults", |row| {
        row.faults.map(|count| format!("{count:.1}"))
    }),
    ("gone", |row| row.purged.map(|share| format!("{share:.3}"))),
    ("killed", |row| row.killed.map(|who| who.name().into())),
    ("rss", |row| row.rss_bytes.map(size::show)),
    ("reclaimable", |row| row.reclaimable_bytes.map(size::show)),
    ("p50", |row| row.p50_s.map(seconds)),
    ("p99", |row| row.p99_s.map(seconds)),
    ("p99.9", |row| row.p999_s.map(seconds)),
    ("worst", |row| row.worst_s.map(seconds)),
    ("ratio", |row| Some(format!("{:.2}", row.ratio))),
    ("teardown ratio", |row| {
        row.teardown_ratio.map(|ratio| format!("{ratio:.2}"))
    }),
    ("system calls", |row| {
        row.syscalls.map(|calls| calls.to_string())
    }),
    ("splits", |row| row.splits.map(|splits| splits.to_string())),
    ("swapped", |row| row.swapped_bytes.map(size::show)),
    ("peak memory", |row| row.peak_bytes.map(size::show)),
];

/// Head and cells of the columns that this outcome has.
pub fn cells(outcome: &Outcome) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let used: Vec<&Column> = COLUMNS
        .iter()
        .filter(|(_, cell)| outcome.rows.iter().any(|row| cell(row).is_some()))
        .collect();
    let head = used.iter().map(|(name, _)| *name).collect();
    let rows = outcome
        .rows
        .iter()
        .map(|row| {
            used.iter()
                .map(|(_, cell)| cell(row).unwrap_or_default())
                .collect()
        })
        .collect();
    (head, rows)
}

/// The head, the table and the published experiment, where there is one.
pub fn show(outcome: &Outcome) -> String {
    let (head, rows) = cells(outcome);
    let mut table = output::table(&head);
    table.add_rows(rows);
    output::align_figures(&mut table, 1);
    let mut text = format!("{}\n{}\n{table}\n", title(outcome), machine(outcome));
    if let Some(note) = outcome.note {
        text += &format!("{note}\n");
    }
    if let Some(beside) = published::beside(outcome) {
        let mut table = output::table(beside.head);
        table.add_rows(beside.rows);
        output::align_figures(&mut table, 1);
        text += &format!("\n{}\n{table}\n", beside.source);
    }
    text
}

/// What was measured.
pub fn title(outcome: &Outcome) -> String {
    let mut text = format!("{}: ", outcome.scenario);
    if outcome.size_bytes > 0 {
        text += &size::show(outcome.size_bytes);
        text += ", ";
    }
    if let Some(page) = outcome.page {
        text += &format!("{} pages, ", page.name());
    }
    if outcome.malloc == Some(true) {
        text += "one block from malloc, ";
    }
    if let Some(mappings) = outcome.mappings {
        text += &format!("{mappings} mappings, ");
    }
    if let Some(ranges) = outcome.ranges {
        text += &format!("{ranges} ranges, ");
    }
    text + &format!("{} runs, baseline {}", outcome.runs, outcome.baseline)
}

/// Where it was measured.
pub fn machine(outcome: &Outcome) -> String {
    let machine = &outcome.machine;
    let mut text = format!(
        "Linux {}, {}, {} CPUs usable, {} cores, {} of memory, thp {}",
        machine.kernel,
        machine.cpu_model,
        machine.cpus,
        machine.physical_cores,
        size::show(machine.mem_total_bytes),
        machine.thp
    );
    if let Some(share) = outcome.stolen_share.filter(|share| *share > 0.0) {
        text += &format!(
            ", {:.1} % of the CPU time stolen by the host",
            share * 100.0
        );
    }
    text
}

/// A time with three or four significant digits.
pub fn seconds(value: f64) -> String {
    match value {
        _ if value >= 10.0 => format!("{value:.2} s"),
        _ if value >= 1.0 => format!("{value:.3} s"),
        _ if value >= 1e-3 => format!("{:.2} ms", value * 1e3),
        _ if value >= 1e-6 => format!("{:.2} µs", value * 1e6),
        _ => format!("{:.0} ns", value * 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::width::Width;

    fn outcome() -> Outcome {
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
            row("mmzap", Some(Width::Auto), 1.96),
        ];
        outcome
    }

    #[test]
    fn columns_without_figures_are_left_out() {
        let (head, rows) = cells(&outcome());
        assert!(head.contains(&"ratio") && !head.contains(&"p99.9"));
        assert!(rows.iter().all(|row| row.len() == head.len()));
    }

    #[test]
    fn times_keep_their_digits() {
        assert_eq!(seconds(10.8), "10.80 s");
        assert_eq!(seconds(0.27), "270.00 ms");
        assert_eq!(seconds(4.2e-5), "42.00 µs");
        assert_eq!(seconds(3e-8), "30 ns");
    }
}
