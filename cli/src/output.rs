//! What goes to the terminal: results on stdout, remarks and errors on stderr.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Prints a result. A reader that went away (`mmzap … | head`) has all it wants.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write the result to stdout"),
    }
}

/// Prints a value as indented JSON.
pub fn print_json<T: serde::Serialize>(value: &T) -> Result<()> {
    print(&serde_json::to_string_pretty(value).context("cannot write the result as JSON")?)
}

/// Prints a remark or an error. There is nobody to tell if stderr is closed.
pub fn complain(message: &str) {
    let _ = writeln!(io::stderr().lock(), "mmzap: {message}");
}

/// A table in the style that all commands share.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header.iter().copied());
    table
}

/// Breaks long cells so that the table fits a common terminal.
pub fn wrap(table: &mut Table) {
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(110);
}

/// Aligns every column but the first `left` ones to the right, as figures are read.
pub fn align_figures(table: &mut Table, left: usize) {
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
