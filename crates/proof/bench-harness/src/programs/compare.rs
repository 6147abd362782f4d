//! Sides of a comparison that take turns: each has a server that lives through all rounds, and a client that is started
//! in each. Makes lines of a figure and rows of a table of what the clients printed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::child::{self, Stream};

use super::serving::{Ready, Serving, over_raas};
use crate::figures::data::{Line, Point};
use crate::place::{End, Place};
use crate::stats::{Bar, Better, Kind, Row, Series};

/// One client, on a machine that is busy too.
const CLIENT_LIMIT: Duration = Duration::from_secs(120);

/// What carries the connections of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// Kernel TCP.
    Tcp,
    /// `raas run`.
    Run,
    /// The library.
    Native,
}

/// One side.
#[derive(Debug)]
pub(super) struct Side {
    /// Its line in the figure.
    pub(super) line: &'static str,
    pub(super) by: By,
    pub(super) server: Vec<String>,
    pub(super) ready: Ready,
    pub(super) client: Vec<String>,
}

/// Points of what a client printed: place and value.
pub(super) type Reader<'r> = &'r dyn Fn(&str) -> Result<Vec<(f64, f64)>>;

/// Runs all sides in turn and gives the line of each. Each side has runs before that do not count: those under `raas run`
/// must be seen over RaaS there.
pub(super) fn compare(place: &Place, rounds: u32, sides: &[Side], read: Reader<'_>) -> Result<Vec<Line>> {
    let mut servers = vec![];
    for side in sides {
        let named = || format!("the server of {}", side.line);
        servers.push(Serving::start(place, &with_run(place, side, &side.server), &side.ready).with_context(named)?);
        match side.by {
            // The library never takes TCP unless a program asks for it.
            By::Tcp | By::Native => drop(run(place, side, read)?),
            By::Run => drop(over_raas(place, || run(place, side, read)).with_context(|| side.line)?),
        }
    }
    take_turns(rounds, &sides.iter().map(|side| side.line).collect::<Vec<_>>(), &mut |number| {
        run(place, &sides[number], read)
    })
}

/// In each round each side once; the one that begins changes from round to round.
pub(super) fn take_turns(
    rounds: u32,
    sides: &[&'static str],
    run: &mut dyn FnMut(usize) -> Result<Vec<(f64, f64)>>,
) -> Result<Vec<Line>> {
    let mut lines: Vec<Line> = sides.iter().map(|name| Line { name: (*name).to_owned(), points: vec![] }).collect();
    for round in 0..rounds as usize {
        for step in 0..sides.len() {
            let number = (round + step) % sides.len();
            for (x, value) in run(number).with_context(|| sides[number])? {
                let points = &mut lines[number].points;
                match points.iter_mut().find(|point| point.x == x) {
                    Some(point) => point.values.push(value),
                    None => points.push(Point { x, values: vec![value] }),
                }
            }
        }
    }
    Ok(lines)
}

/// One client of one side.
fn run(place: &Place, side: &Side, read: Reader<'_>) -> Result<Vec<(f64, f64)>> {
    let words = with_run(place, side, &side.client);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = child::run_quiet(&mut place.command(End::Client, &words), CLIENT_LIMIT)?;
    ensure!(
        ended.success(),
        "{}: {}\n{}\n{}",
        words.join(" "),
        ended.describe(),
        ended.text(Stream::Err),
        ended.text(Stream::Out)
    );
    let points = read(&ended.text(Stream::Out))?;
    ensure!(!points.is_empty(), "{}: nothing measured in: {}", words.join(" "), ended.text(Stream::Out));
    Ok(points)
}

fn with_run(place: &Place, side: &Side, words: &[String]) -> Vec<String> {
    let run = [place.program("raas"), "run".to_owned()];
    let run = if side.by == By::Run { &run[..] } else { &[] };
    [run, words].concat()
}

/// What of two lines becomes a row.
#[derive(Debug)]
pub(super) struct Compared<'c> {
    pub(super) case: String,
    pub(super) unit: &'c str,
    pub(super) better: Better,
    /// Lines.
    pub(super) ours: &'c str,
    pub(super) rival: &'c str,
    pub(super) at: f64,
    /// Makes the row's value of a point's.
    pub(super) value: fn(f64) -> f64,
    pub(super) bar: Option<(Bar, Kind)>,
}

impl Compared<'_> {
    pub(super) fn row(&self, lines: &[Line]) -> Row {
        let values = |name: &str| -> Vec<f64> {
            let line = lines.iter().find(|line| line.name == name);
            let values = line.map(|line| line.at(self.at)).unwrap_or_default();
            values.into_iter().map(self.value).collect()
        };
        let series = Series {
            case: self.case.clone(),
            unit: self.unit.to_owned(),
            better: self.better,
            ours: values(self.ours),
            rival: self.rival.to_owned(),
            rival_values: values(self.rival),
        };
        Row { series, bar: self.bar }
    }
}

/// As it is.
pub(super) fn same(value: f64) -> f64 {
    value
}

/// How many a second, of microseconds for one.
pub(super) fn a_second(us: f64) -> f64 {
    1e6 / us
}

/// Words as a command has them.
pub(super) fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns_and_become_rows() -> Result<()> {
        let mut order = vec![];
        let lines = take_turns(3, &["TCP", "raas run"], &mut |side| {
            order.push(side);
            Ok(vec![(8.0, if side == 0 { 20.0 } else { 10.0 }), (64.0, 1.0)])
        })?;
        assert_eq!(order, [0, 1, 1, 0, 0, 1]);
        let compared = Compared {
            case: "a call".to_owned(),
            unit: "calls/s",
            better: Better::Higher,
            ours: "raas run",
            rival: "TCP",
            at: 8.0,
            value: a_second,
            bar: None,
        };
        let row = compared.row(&lines);
        assert_eq!((row.series.ours.len(), row.series.ratios()), (3, vec![2.0; 3]));
        assert!(Compared { at: 9.0, ..compared }.row(&lines).series.ratios().is_empty());
        Ok(())
    }
}
