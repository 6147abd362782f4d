//! Aligned text tables and numbers with units, for people. Machines get JSON.

use std::fmt::Write as _;

/// How a column is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Lines of cells under a heading.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; all-empty headings print no heading line.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty, surplus ones are dropped.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text, each line ended by a newline, two spaces between columns, none at the end of a line.
    pub(crate) fn render(&self) -> String {
        let cell = |row: &Vec<String>, c: usize| row.get(c).cloned().unwrap_or_default();
        let width = |c: usize| {
            let heading = self.columns.get(c).map_or(0, |(h, _)| h.chars().count());
            self.rows.iter().map(|r| cell(r, c).chars().count()).max().unwrap_or(0).max(heading)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut out = String::new();
        let mut line = |cells: Vec<String>| {
            let mut text = String::new();
            for ((cell, &width), &(_, align)) in cells.iter().zip(&widths).zip(&self.columns) {
                let gap = if text.is_empty() { "" } else { "  " };
                // Writing to a String cannot fail.
                let _ = match align {
                    Align::Left => write!(text, "{gap}{cell:<width$}"),
                    Align::Right => write!(text, "{gap}{cell:>width$}"),
                };
            }
            out.push_str(text.trim_end());
            out.push('\n');
        };
        if self.columns.iter().any(|(h, _)| !h.is_empty()) {
            line(self.columns.iter().map(|(h, _)| (*h).to_owned()).collect());
        }
        for row in &self.rows {
            line((0..self.columns.len()).map(|c| cell(row, c)).collect());
        }
        out
    }
}

/// Bytes with a decimal unit and three digits: `999 B`, `1.50 MB`, `12.3 GB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A whole number in groups of three: `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(d);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut t = Table::new(&[("name", Align::Left), ("n", Align::Right)]);
        t.row(vec!["a".into(), "1".into()]);
        t.row(vec!["longer".into(), "1,000".into()]);
        t.row(vec!["short row".into()]);
        assert_eq!(t.render(), "name           n\na              1\nlonger     1,000\nshort row\n");
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1500), "1.50 kB");
        assert_eq!(bytes(999_999), "1.00 MB");
        assert_eq!(bytes(12_345_678), "12.3 MB");
        assert_eq!(bytes(123_456_789_000), "123 GB");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(100), "100");
    }
}
