//! What `raas top` shows, and what its keys change. Owns the rows: which table, filtered by which words, sorted by which
//! column. It must never let a name of a program reach the terminal with its control characters.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

use monitor::{Flow, Rates, Sample};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use terminal::table;

/// Looks whose rates are kept for the curve.
const HISTORY_MAX: usize = 240;
/// Longest filter.
const FILTER_CHARS_MAX: usize = 60;
/// Rows that a page key moves.
const PAGE_ROWS: usize = 10;

/// Whether the command goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goes {
    On,
    Away,
}

/// Which table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Applications,
    Connections,
    Lanes,
    Latency,
}

impl Tab {
    pub(super) const ALL: [Self; 4] = [Self::Applications, Self::Connections, Self::Lanes, Self::Latency];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Applications => "1 applications",
            Self::Connections => "2 connections",
            Self::Lanes => "3 lanes",
            Self::Latency => "4 latency and counters",
        }
    }
}

/// A column: its heading, whether it is a number, and how soon it is left out where there is no room (0: never).
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) heading: &'static str,
    pub(super) is_number: bool,
    pub(super) spare: u8,
}

const fn text(heading: &'static str, spare: u8) -> Column {
    Column { heading, is_number: false, spare }
}

const fn number(heading: &'static str, spare: u8) -> Column {
    Column { heading, is_number: true, spare }
}

const APPLICATIONS: &[Column] = &[
    number("PID", 0),
    text("NAME", 0),
    number("USER", 2),
    number("CONNS", 0),
    number("OUT/s", 0),
    number("IN/s", 0),
    number("SENT", 3),
    number("RECEIVED", 3),
    number("OPS", 4),
    number("REGISTERED", 5),
];
const CONNECTIONS: &[Column] = &[
    number("ID", 6),
    text("LOCAL", 3),
    text("PEER", 0),
    text("STATE", 2),
    text("PATH", 0),
    text("WHY", 5),
    number("OUT/s", 0),
    number("IN/s", 0),
    number("QUEUED", 1),
    number("PID", 4),
    text("PROGRAM", 7),
];
const LANES: &[Column] = &[
    text("LANE", 0),
    text("STATE", 0),
    text("WIRE", 3),
    number("CONNS", 0),
    number("OUT/s", 0),
    number("IN/s", 0),
    number("CREDITS", 2),
    number("RESETS", 4),
    number("SENT", 5),
    number("RECEIVED", 5),
    number("DIALS-FAILED", 6),
];
const COUNTERS: &[Column] = &[text("COUNTER", 0), number("TOTAL", 0), number("PER-SECOND", 0)];

/// A value in a row: as it is shown, and as it is sorted.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub(super) shown: String,
    by: By,
}

#[derive(Debug, Clone, PartialEq)]
enum By {
    Number(f64),
    Text(String),
}

impl Value {
    fn text(value: impl Into<String>) -> Self {
        // Names are the programs' own choice.
        let shown = control::plain(&value.into());
        Self { by: By::Text(shown.to_lowercase()), shown }
    }

    fn count(n: u64) -> Self {
        Self { shown: table::grouped(n), by: By::Number(n as f64) }
    }

    fn number(n: u64) -> Self {
        Self { shown: n.to_string(), by: By::Number(n as f64) }
    }

    fn bytes(n: u64) -> Self {
        Self { shown: table::bytes(n), by: By::Number(n as f64) }
    }

    fn rate(bytes_per_s: f64) -> Self {
        let shown = if bytes_per_s < 0.5 { "-".into() } else { table::bytes(bytes_per_s.round() as u64) };
        Self { shown, by: By::Number(bytes_per_s) }
    }

    fn order(&self, other: &Self) -> Ordering {
        match (&self.by, &other.by) {
            (By::Number(a), By::Number(b)) => a.total_cmp(b),
            (By::Text(a), By::Text(b)) => a.cmp(b),
            (By::Number(_), By::Text(_)) => Ordering::Less,
            (By::Text(_), By::Number(_)) => Ordering::Greater,
        }
    }
}

/// By which column a table is sorted, and whether the largest comes first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_descending: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct View {
    pub(super) tab: Tab,
    sorts: [Sort; 4],
    pub(super) filter: String,
    /// Keys go to the filter.
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    /// Rows that are scrolled away.
    pub(super) skipped: usize,
    pub(super) sample: Option<Sample>,
    pub(super) rates: Option<Rates>,
    pub(super) history: VecDeque<f64>,
}

impl View {
    pub(super) fn new() -> Self {
        let by = |column| Sort { column, is_descending: true };
        Self {
            tab: Tab::Applications,
            // What carries most; counters by their names.
            sorts: [by(4), by(6), by(4), Sort { column: 0, is_descending: false }],
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            skipped: 0,
            sample: None,
            rates: None,
            history: VecDeque::new(),
        }
    }

    /// Takes a look at the daemon in.
    pub(super) fn take(&mut self, sample: Sample) {
        if self.is_paused {
            return;
        }
        self.rates = self.sample.as_ref().and_then(|before| Rates::between(before, &sample));
        if let Some(rates) = &self.rates {
            self.history.push_back(rates.lanes_total.bytes_per_s());
            if self.history.len() > HISTORY_MAX {
                self.history.pop_front();
            }
        }
        self.sample = Some(sample);
    }

    /// A key was pressed.
    pub(super) fn on_key(&mut self, key: KeyEvent) -> Goes {
        if key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Goes::Away;
        }
        if self.is_typing {
            self.on_typed(key.code);
            return Goes::On;
        }
        match key.code {
            KeyCode::Char('q') => return Goes::Away,
            KeyCode::Char(n @ '1'..='4') => self.go_to(n as usize - '1' as usize),
            KeyCode::Tab | KeyCode::Right => self.go_to((self.tab as usize + 1) % Tab::ALL.len()),
            KeyCode::BackTab | KeyCode::Left => self.go_to((self.tab as usize + Tab::ALL.len() - 1) % Tab::ALL.len()),
            KeyCode::Char('s') => {
                let columns = self.columns().len();
                let sort = &mut self.sorts[self.tab as usize];
                sort.column = (sort.column + 1) % columns;
            }
            KeyCode::Char('r') => {
                let sort = &mut self.sorts[self.tab as usize];
                sort.is_descending = !sort.is_descending;
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Down | KeyCode::Char('j') => self.skipped += 1,
            KeyCode::Up | KeyCode::Char('k') => self.skipped = self.skipped.saturating_sub(1),
            KeyCode::PageDown => self.skipped += PAGE_ROWS,
            KeyCode::PageUp => self.skipped = self.skipped.saturating_sub(PAGE_ROWS),
            KeyCode::Home => self.skipped = 0,
            _ => {}
        }
        // Not past the last row, however few the filter leaves.
        self.skipped = self.skipped.min(self.rows().len().saturating_sub(1));
        Goes::On
    }

    fn go_to(&mut self, tab: usize) {
        self.tab = Tab::ALL[tab];
        self.skipped = 0;
    }

    fn on_typed(&mut self, code: KeyCode) {
        self.skipped = 0;
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_CHARS_MAX => self.filter.push(c),
            _ => {}
        }
    }

    pub(super) fn columns(&self) -> &'static [Column] {
        match self.tab {
            Tab::Applications => APPLICATIONS,
            Tab::Connections => CONNECTIONS,
            Tab::Lanes => LANES,
            Tab::Latency => COUNTERS,
        }
    }

    pub(super) fn sort(&self) -> Sort {
        self.sorts[self.tab as usize]
    }

    /// The rows that fit the filter, in order.
    pub(super) fn rows(&self) -> Vec<Vec<Value>> {
        let Some(sample) = &self.sample else { return Vec::new() };
        let none = Rates::default();
        let rates = self.rates.as_ref().unwrap_or(&none);
        let mut rows = match self.tab {
            Tab::Applications => applications(sample, rates),
            Tab::Connections => connections(sample, rates),
            Tab::Lanes => lanes(sample, rates),
            Tab::Latency => counters(sample, rates),
        };
        let wanted = self.filter.to_lowercase();
        let fits = |row: &Vec<Value>| row.iter().any(|value| value.shown.to_lowercase().contains(&wanted));
        rows.retain(|row| wanted.is_empty() || fits(row));
        let Sort { column, is_descending } = self.sort();
        let order = |a: &Vec<Value>, b: &Vec<Value>| match (a.get(column), b.get(column)) {
            (Some(a), Some(b)) if is_descending => b.order(a),
            (Some(a), Some(b)) => a.order(b),
            _ => Ordering::Equal,
        };
        rows.sort_by(order);
        rows
    }
}

fn applications(sample: &Sample, rates: &Rates) -> Vec<Vec<Value>> {
    let row = |a: &control::AppRow| {
        let flow = rates.apps.get(&a.session).copied().unwrap_or_default();
        vec![
            Value::number(a.pid.into()),
            Value::text(&a.name),
            Value::number(a.uid.into()),
            Value::count(a.connections.into()),
            Value::rate(flow.tx_bytes_per_s),
            Value::rate(flow.rx_bytes_per_s),
            Value::bytes(a.tx_bytes),
            Value::bytes(a.rx_bytes),
            Value::count(a.reads + a.writes + a.atomics + a.kernels),
            Value::bytes(a.pinned_bytes),
        ]
    };
    sample.stat.apps.iter().map(row).collect()
}

fn connections(sample: &Sample, rates: &Rates) -> Vec<Vec<Value>> {
    let names: BTreeMap<u32, &str> = sample.stat.apps.iter().map(|a| (a.pid, a.name.as_str())).collect();
    let row = |c: &control::ConnectionRow| {
        let flow = rates.connections.get(&c.id).copied().unwrap_or_default();
        vec![
            Value::number(c.id),
            Value::text(c.local.to_string()),
            Value::text(c.peer.to_string()),
            Value::text(c.state.as_str()),
            Value::text(c.path.as_str()),
            Value::text(c.reason.key()),
            Value::rate(flow.tx_bytes_per_s),
            Value::rate(flow.rx_bytes_per_s),
            Value::bytes(c.tx_queued_bytes.saturating_add(c.rx_queued_bytes)),
            Value::number(c.app_pid.into()),
            Value::text(names.get(&c.app_pid).copied().unwrap_or("-")),
        ]
    };
    sample.connections.iter().map(row).collect()
}

fn lanes(sample: &Sample, rates: &Rates) -> Vec<Vec<Value>> {
    let row = |l: &control::LaneRow| {
        let Flow { tx_bytes_per_s, rx_bytes_per_s } = rates.lanes.get(&l.name).copied().unwrap_or_default();
        vec![
            Value::text(&l.name),
            Value::text(&l.state),
            Value::text(l.wire.as_deref().unwrap_or("-")),
            Value::count(l.connections.into()),
            Value::rate(tx_bytes_per_s),
            Value::rate(rx_bytes_per_s),
            Value::count(l.credits),
            Value::count(l.resets),
            Value::bytes(l.tx_bytes),
            Value::bytes(l.rx_bytes),
            Value::count(l.dials_failed.into()),
        ]
    };
    sample.stat.lanes.iter().map(row).collect()
}

/// Drops first in name, then the other counters that are not 0.
fn counters(sample: &Sample, rates: &Rates) -> Vec<Vec<Value>> {
    let per_second = |reason: &str| rates.drops_per_s.iter().find(|(r, _)| r == reason).map_or(0.0, |(_, n)| *n);
    let shown = |n: f64| Value { shown: if n > 0.0 { format!("{n:.1}") } else { "-".into() }, by: By::Number(n) };
    let s = &sample.stat;
    let drops = s.drops.iter().map(|(r, n)| (format!("drop: {r}"), *n, per_second(r)));
    let others = s.counters.iter().map(|(name, n)| (name.clone(), *n, 0.0));
    let again = [("retransmits".to_owned(), s.retransmits, rates.retransmits as f64 / rates.seconds.max(1e-9))];
    let again = again.into_iter().map(|(name, n, rate)| (name, n, if rates.seconds > 0.0 { rate } else { 0.0 }));
    let all = drops.chain(again).chain(others).filter(|(_, n, _)| *n > 0);
    all.map(|(name, n, rate)| vec![Value::text(name), Value::count(n), shown(rate)]).collect()
}
