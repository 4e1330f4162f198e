//! A scenario's result for people.

use comfy_table::Table;

use super::outcome::{Outcome, Row};
use super::published::{self, PARALLEL_FREE_SOURCE, Setting};
use crate::{output, size};

/// A column: its head, and a row's cell if the row has that figure.
type Column = (&'static str, fn(&Row) -> Option<String>);

const COLUMNS: [Column; 16] = [
    ("variant", |row| Some(row.variant.into())),
    ("max_active", |row| {
        row.max_active.map(|width| width.to_string())
    }),
    ("size", |row| row.size_bytes.map(size::show)),
    ("page", |row| row.page.map(|page| page.name().into())),
    ("median", |row| Some(seconds(row.median_s))),
    ("min", |row| Some(seconds(row.min_s))),
    ("max", |row| Some(seconds(row.max_s))),
    ("GiB/s", |row| {
        row.gib_per_s.map(|speed| format!("{speed:.1}"))
    }),
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

/// The head, the table and, for `free`, the published experiment.
pub fn show(outcome: &Outcome) -> String {
    let (head, rows) = cells(outcome);
    let mut table = output::table(&head);
    table.add_rows(rows);
    output::align_figures(&mut table, 1);
    let mut text = format!("{}\n{}\n{table}\n", title(outcome), machine(outcome));
    if let Some(note) = outcome.note {
        text += &format!("{note}\n");
    }
    if outcome.scenario == "free" {
        text += &format!("\n{PARALLEL_FREE_SOURCE}\n{}\n", beside(outcome));
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
    format!(
        "Linux {}, {}, {} CPUs usable, {} cores, {} of memory, thp {}",
        machine.kernel,
        machine.cpu_model,
        machine.cpus,
        machine.physical_cores,
        size::show(machine.mem_total_bytes),
        machine.thp
    )
}

/// Our figures beside those of the 320 GB experiment.
fn beside(outcome: &Outcome) -> Table {
    let (head, rows) = beside_cells(outcome);
    let mut table = output::table(&head);
    table.add_rows(rows);
    output::align_figures(&mut table, 1);
    table
}

/// The same as cells: published settings first, then widths that only we measured.
pub fn beside_cells(outcome: &Outcome) -> ([&'static str; 4], Vec<[String; 4]>) {
    let published = published::parallel_free();
    let ours = |row: Option<&Row>| {
        row.map_or_else(String::new, |row| {
            format!("{:.2} ({})", row.ratio, seconds(row.median_s))
        })
    };
    let mut rows: Vec<[String; 4]> = published
        .iter()
        .map(|row| {
            [
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
        if let ("mmzap", Some(width)) = (row.variant, row.max_active)
            && !known(width)
        {
            rows.push([
                width.to_string(),
                String::new(),
                String::new(),
                ours(Some(row)),
            ]);
        }
    }
    let head = [
        "max_active",
        "published",
        "published speed-up",
        "ours: speed-up (time)",
    ];
    (head, rows)
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
            row("mmzap", Some(2), 1.96),
            row("mmzap", Some(3), 2.5),
        ];
        outcome
    }

    #[test]
    fn ours_stands_beside_the_published_setting() {
        let (_, rows) = beside_cells(&outcome());
        let of = |label: &str| {
            rows.iter()
                .find(|row| row[0] == label)
                .map(|row| row[3].clone())
        };
        assert_eq!(of("serial"), Some("1.00 (500.00 ms)".into()));
        assert_eq!(of("2"), Some("1.96 (500.00 ms)".into()));
        assert_eq!(of("3"), Some("2.50 (500.00 ms)".into()));
        assert_eq!(of("32"), Some(String::new()));
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
