//! The closing table of the test command: where the seconds of each stage went, which cases were slowest, and which
//! failed. Owns the clock of the stages.
//!
//! *Compiling* is the wall time of builds and of clippy, *installing* that of apt. *Waiting* is the time in which the
//! processors had nothing to do, on the average of all; what is left is *running*.

use harness::ledger::{self, Kind};
use harness::tally::Tally;
use std::time::{Duration, Instant};

/// Cases that are named as the slowest.
const SLOWEST: usize = 12;
/// Letters of what a failed case said; the rest stands where it ran.
const SAID_MAX: usize = 300;

struct Row {
    name: &'static str,
    seconds: f64,
    compiling: f64,
    installing: f64,
    waiting: f64,
    tally: Tally,
}

impl Row {
    fn running(&self) -> f64 {
        (self.seconds - self.compiling - self.installing - self.waiting).max(0.0)
    }
}

/// The stages so far.
pub(super) struct Closing {
    rows: Vec<Row>,
    begun: Instant,
    idle: Option<Duration>,
    processors: f64,
}

impl Closing {
    pub(super) fn begin() -> Self {
        let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        Self { rows: vec![], begun: Instant::now(), idle: ledger::idle(), processors }
    }

    /// A stage ended; what it says of itself.
    pub(super) fn end_of(&mut self, name: &'static str, tally: Tally) -> String {
        let (now, idle) = (Instant::now(), ledger::idle());
        let seconds = now.duration_since(self.begun).as_secs_f64();
        let compiling = ledger::take(Kind::Compiling).as_secs_f64().min(seconds);
        let installing = ledger::take(Kind::Installing).as_secs_f64().min(seconds - compiling);
        let idle_for = idle.zip(self.idle).map_or(0.0, |(now, then)| now.saturating_sub(then).as_secs_f64());
        let waiting = (idle_for / self.processors).min(seconds - compiling - installing);
        (self.begun, self.idle) = (now, idle);
        let row = Row { name, seconds, compiling, installing, waiting, tally };
        let said = format!("{name}: {tally} in {seconds:.1} seconds ({compiling:.0} compiling)");
        self.rows.push(row);
        said
    }

    /// Prints the table; returns the sum of all stages.
    pub(super) fn print(&self) -> Tally {
        let mut total = Tally::default();
        self.rows.iter().for_each(|row| total.add(row.tally));
        println!("slowest cases:");
        for (name, took) in ledger::slowest(SLOWEST) {
            println!("{:>9.1} s  {name}", took.as_secs_f64());
        }
        println!();
        table(&self.rows).iter().for_each(|line| println!("{line}"));
        println!();
        for said in ledger::failures() {
            println!("failed: {}", said.replace('\n', " ").chars().take(SAID_MAX).collect::<String>());
        }
        total
    }
}

fn table(rows: &[Row]) -> Vec<String> {
    let line = |name: &str, cells: [f64; 5], tally: Tally| {
        let [seconds, compiling, installing, running, waiting] = cells;
        format!("{name:12} {seconds:>8.1} {compiling:>10.1} {installing:>11.1} {running:>8.1} {waiting:>8.1}  {tally}")
    };
    let head = ["seconds", "compiling", "installing", "running", "waiting"];
    let mut lines =
        vec![format!("{:12} {:>8} {:>10} {:>11} {:>8} {:>8}", "stage", head[0], head[1], head[2], head[3], head[4])];
    let mut sums = [0.0; 5];
    let mut total = Tally::default();
    for row in rows {
        let cells = [row.seconds, row.compiling, row.installing, row.running(), row.waiting];
        sums.iter_mut().zip(cells).for_each(|(sum, cell)| *sum += cell);
        total.add(row.tally);
        lines.push(line(row.name, cells, row.tally));
    }
    lines.push(line("all", sums, total));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_compiling_nor_waiting_is_running() {
        let passed = Tally { passed: 7, ..Tally::default() };
        let row = |name, seconds, compiling, waiting| Row {
            name,
            seconds,
            compiling,
            installing: 1.0,
            waiting,
            tally: passed,
        };
        let lines = table(&[row("lint", 30.0, 20.0, 4.0), row("unit", 12.0, 12.0, 4.0)]);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines[1])[..6], ["lint", "30.0", "20.0", "1.0", "5.0", "4.0"]);
        assert_eq!(words(&lines[2])[..6], ["unit", "12.0", "12.0", "1.0", "0.0", "4.0"]);
        assert_eq!(words(&lines[3])[..2], ["all", "42.0"]);
        assert!(lines[3].ends_with("14 passed, 0 failed, 0 skipped"), "{}", lines[3]);
    }
}
