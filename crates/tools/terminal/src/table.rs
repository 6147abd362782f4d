//! Tables for people, as wide as their terminal, and numbers with units. Machines get JSON.

use std::io::IsTerminal;

use comfy_table::{CellAlignment, ContentArrangement, presets};

/// Columns are this far apart.
const GAP: u16 = 2;
/// A terminal that says it is narrower than this is not believed: nothing can be read there.
const WIDTH_MIN: u16 = 20;

/// How a column is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Lines of cells under a heading.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
    spare: &'static [&'static str],
}

impl Table {
    /// A table with these headings; all-empty headings print no heading line.
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new(), spare: &[] }
    }

    /// Names the columns that are left out where there is no room for all, in the order in which they go.
    pub fn spare(mut self, headings: &'static [&'static str]) -> Self {
        self.spare = headings;
        self
    }

    /// Adds a row; missing cells are empty, surplus ones are dropped.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text for stdout: no wider than its terminal (`$COLUMNS` wins over that), of any width elsewhere.
    pub fn render(&self) -> String {
        self.render_at(width())
    }

    /// The text, each line ended by a newline, none with spaces at its end. Columns that are spare go first, then cells
    /// are broken into lines.
    pub fn render_at(&self, width: Option<u16>) -> String {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let mut left_out = Vec::new();
        if let Some(width) = width {
            let mut spare = self.spare.iter();
            while self.natural_width(&shown) > usize::from(width) {
                let Some(heading) = spare.next() else { break };
                shown.retain(|&c| self.columns[c].0 != *heading);
                left_out.push(*heading);
            }
        }
        let mut text = String::new();
        for line in self.arranged(&shown, width).lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        if !left_out.is_empty() {
            let note = format!("({} left out for want of room; --json has all)", left_out.join(", "));
            text.push_str(&paragraph_at(&note, width));
        }
        text
    }

    fn cell(row: &[String], column: usize) -> &str {
        row.get(column).map_or("", String::as_str)
    }

    /// Width of the table if no cell is broken.
    fn natural_width(&self, shown: &[usize]) -> usize {
        let width = |&c: &usize| {
            let cells = self.rows.iter().map(|row| Self::cell(row, c).chars().count());
            cells.max().unwrap_or(0).max(self.columns[c].0.chars().count())
        };
        shown.iter().map(width).sum::<usize>() + usize::from(GAP) * shown.len().saturating_sub(1)
    }

    fn arranged(&self, shown: &[usize], width: Option<u16>) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        if self.columns.iter().any(|(heading, _)| !heading.is_empty()) {
            table.set_header(shown.iter().map(|&c| self.columns[c].0));
        }
        for row in &self.rows {
            table.add_row(shown.iter().map(|&c| Self::cell(row, c)));
        }
        match width {
            Some(width) => {
                table.set_width(width.saturating_add(GAP)).set_content_arrangement(ContentArrangement::Dynamic)
            }
            None => table.set_content_arrangement(ContentArrangement::Disabled),
        };
        for (column, &c) in table.column_iter_mut().zip(shown) {
            // The gap behind the last column is cut off again.
            column.set_padding((0, GAP));
            column.set_cell_alignment(match self.columns[c].1 {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        if self.rows.is_empty() && table.header().is_none() { String::new() } else { table.to_string() }
    }
}

/// A line of text for stdout, broken between words where its terminal is narrower.
pub fn paragraph(text: &str) -> String {
    paragraph_at(text, width())
}

fn paragraph_at(text: &str, width: Option<u16>) -> String {
    let mut table = Table::new(&[("", Align::Left)]);
    table.row(vec![text.to_owned()]);
    table.render_at(width)
}

/// Room on the terminal that stdout is; none where it is something else.
fn width() -> Option<u16> {
    let given = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let stdout = std::io::stdout();
    let terminal =
        || rustix::termios::tcgetwinsize(&stdout).ok().map(|size| size.ws_col).filter(|_| stdout.is_terminal());
    given.or_else(terminal).filter(|width| *width >= WIDTH_MIN)
}

/// Bytes with a decimal unit and three digits: `999 B`, `1.50 MB`, `12.3 GB`.
pub fn bytes(n: u64) -> String {
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
pub fn grouped(n: u64) -> String {
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
        assert_eq!(t.render_at(None), "name           n\na              1\nlonger     1,000\nshort row\n");
        assert_eq!(t.render_at(Some(60)), t.render_at(None));
        assert_eq!(Table::new(&[("", Align::Left)]).render_at(Some(60)), "");
    }

    #[test]
    fn every_width_from_60_to_200_is_kept() {
        let mut t =
            Table::new(&[("ID", Align::Right), ("STATE", Align::Left), ("PEER", Align::Left), ("WHY", Align::Left)])
                .spare(&["STATE", "ID"]);
        let why = "the peer is another host, and its daemon answers over the lane";
        t.row(vec!["12".into(), "established".into(), "127.0.0.1:65535".into(), why.into()]);
        for width in 60..=200 {
            let text = t.render_at(Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{width}:\n{text}");
            assert!(text.contains("127.0.0.1:65535"), "{width}:\n{text}");
            let words: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(width < 90 || words.contains(why), "{width}:\n{text}");
        }
        let narrow = t.render_at(Some(82));
        assert!(!narrow.contains("established") && narrow.contains("(STATE, ID left out"), "{narrow}");
        assert!(t.render_at(Some(98)).contains("established"));
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
