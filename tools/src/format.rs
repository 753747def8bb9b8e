//! How what a command has to say is printed, and how tables, sizes and times look.

use std::io::{self, Write};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

/// Longest cell of a table but for the last column, in characters.
const CELL: usize = 32;

/// A line on stderr. If it cannot be written there is nothing to be done.
pub(crate) fn report(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Lines on stdout. If stdout is closed at the other end that is an error, which ends the command as SIGPIPE would.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The same as JSON, for programs.
pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<()> {
    Ok(print(&format!("{}\n", serde_json::to_string_pretty(value)?))?)
}

/// Rows of cells in columns as wide as they need to be. A heading that begins with `>` stands for numbers, to the right.
pub(crate) struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        let right = headings.iter().map(|h| h.starts_with('>')).collect();
        Table { right, rows: vec![headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.right.len(), "a row has as many cells as there are headings");
        self.rows.push(cells);
    }

    pub(crate) fn text(&self) -> String {
        let last = self.right.len() - 1;
        let cut = |cell: &str, column| if column == last { cell.to_owned() } else { cell.chars().take(CELL).collect() };
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().enumerate().map(|(i, c)| cut(c, i)).collect()).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..=last).map(width).collect();
        let mut text = String::new();
        for row in &rows {
            let cells = row.iter().zip(&widths).zip(&self.right);
            let cells = cells.map(|((cell, w), right)| if *right { format!("{cell:>w$}") } else { format!("{cell:<w$}") });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// Text from elsewhere, without what could play tricks on a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A duration with its unit.
pub(crate) fn duration(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..10 => format!("{}.{} s", s, ms % 1000 / 100),
        10..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {:02} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {:02} h", s / 86_400, s / 3600 % 24),
    }
}

/// A size with its unit.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 && unit > 0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// Milliseconds since 1970 as ISO 8601 in UTC.
pub(crate) fn utc(ms: u64) -> String {
    let (s, ms) = (ms / 1000, ms % 1000);
    let (days, s) = (s / 86_400, s % 86_400);
    // Days are counted in eras of 400 years that begin on a 1st of March, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + carry;
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}.{ms:03}Z", s / 3600, s / 60 % 60, s % 60)
}

/// Flags of the commands that print something.
#[derive(Args)]
pub(crate) struct Format {
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!([0, 999, 1 << 10, 2 << 20, 99 << 30].map(bytes), ["0 B", "999 B", "1.0 KiB", "2.0 MiB", "99 GiB"]);
        let durations = [0, 1_250, 59_999, 61_000, 3_660_000, 90_000_000].map(duration);
        assert_eq!(durations, ["0.0 s", "1.2 s", "59 s", "1 min 01 s", "1 h 01 min", "1 d 01 h"]);
    }

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_827_696_789), "2000-02-29T12:34:56.789Z");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
        assert_eq!(utc(1_767_225_599_999), "2025-12-31T23:59:59.999Z");
        assert_eq!(utc(1_795_226_280_001), "2026-11-21T01:58:00.001Z");
    }
}
