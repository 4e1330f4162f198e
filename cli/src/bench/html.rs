//! One self-contained page with the results, our run beside the published figures.

use std::fmt::Write;

use super::outcome::Outcome;
use super::published::{
    self,
    parallel_free::{self, Setting},
};
use super::svg::{self, Bar, Line, escape};
use super::table;
use crate::size;

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>mmzap bench</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2430; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #d8dce2; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; overflow-x: auto; }
figcaption { font-weight: 600; }
svg text { font: 12px system-ui, sans-serif; fill: #1d2430; }
svg .grid { stroke: #e3e6ea; }
</style>
<h1>mmzap bench</h1>
<p>Variants of a scenario took turns. The ratio is the median over the runs of baseline time
divided by variant time of the same run: above 1 is faster than the baseline.</p>
";

/// The page for these results.
pub fn page(outcomes: &[Outcome]) -> String {
    let mut text = HEAD.to_owned();
    if let Some(first) = outcomes.first() {
        let _ = writeln!(text, "<p>{}</p>", escape(&table::machine(first)));
    }
    for outcome in outcomes {
        section(&mut text, outcome);
    }
    text + "</html>\n"
}

fn section(text: &mut String, outcome: &Outcome) {
    let _ = writeln!(text, "<h2>{}</h2>", escape(outcome.scenario));
    let _ = writeln!(text, "<p>{}</p>", escape(&table::title(outcome)));
    let (head, rows) = table::cells(outcome);
    html_table(text, &head, &rows);
    if let Some(note) = outcome.note {
        let _ = writeln!(text, "<p>{}</p>", escape(note));
    }
    let title = format!("Ratio to {}: longer is better", outcome.baseline);
    text.push_str(&svg::bars(&title, &ratio_bars(outcome)));
    if let Some(beside) = published::beside(outcome) {
        let _ = writeln!(text, "<h3>{}</h3>", escape(beside.title));
        if outcome.scenario == "free" {
            text.push_str(&svg::lines(
                "Speed-up over the serial call",
                "max_active",
                &speed_ups(outcome),
            ));
        }
        html_table(text, beside.head, &beside.rows);
        let _ = writeln!(text, "<p>{}</p>", escape(beside.source));
    }
}

fn ratio_bars(outcome: &Outcome) -> Vec<Bar> {
    outcome
        .rows
        .iter()
        .map(|row| {
            let figure = row.worst_s.unwrap_or(row.median_s);
            let mut label = row.label();
            if let Some(bytes) = row.size_bytes {
                label += &format!(" {}", size::show(bytes));
            }
            if let (Some(bytes), Some(operation)) = (row.folio_bytes, row.operation) {
                label += &format!(" {operation} {}", size::show(bytes));
            }
            Bar {
                label,
                value: row.ratio,
                text: format!("{:.2} ({})", row.ratio, table::seconds(figure)),
                ours: matches!(row.variant, "mmzap" | "parallel"),
            }
        })
        .collect()
}

fn speed_ups(outcome: &Outcome) -> Vec<Line> {
    let published = parallel_free::parallel_free()
        .into_iter()
        .filter_map(|row| match row.setting {
            Setting::MaxActive(width) => Some((width as f64, row.speed_up)),
            _ => None,
        })
        .collect();
    let mut ours: Vec<(f64, f64)> = outcome
        .rows
        .iter()
        .filter(|row| row.variant == "mmzap")
        .filter_map(|row| Some((row.max_active?.threads()? as f64, row.ratio)))
        .collect();
    ours.sort_by(|one, other| one.0.total_cmp(&other.0));
    vec![
        Line {
            name: "published".into(),
            points: published,
            ours: false,
        },
        Line {
            name: "this run".into(),
            points: ours,
            ours: true,
        },
    ]
}

fn html_table<R: AsRef<[String]>>(text: &mut String, head: &[&str], rows: &[R]) {
    text.push_str("<table><tr>");
    for cell in head {
        let _ = write!(text, "<th>{}</th>", escape(cell));
    }
    text.push_str("</tr>\n");
    for row in rows {
        text.push_str("<tr>");
        for cell in row.as_ref() {
            let _ = write!(text, "<td>{}</td>", escape(cell));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table>\n");
}
