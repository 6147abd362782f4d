//! All lines at all points, round after round: in each round every line has its turn at every point, and the line that
//! begins changes.

use anyhow::{Context, Result};

use super::Effort;
use super::data::{Line, Point};
use crate::stats::{Bar, Better, Kind, Row, Series};

/// Measures `lines` at the chosen ones of `places`.
pub(super) fn sweep(
    effort: Effort,
    places: &[f64],
    lines: &[&str],
    measure: &mut dyn FnMut(&str, f64) -> Result<f64>,
) -> Result<Vec<Line>> {
    let places = effort.choose(places);
    let point = |x: &f64| Point { x: *x, values: vec![] };
    let line = |name: &&str| Line { name: (*name).to_owned(), points: places.iter().map(point).collect() };
    let mut found: Vec<Line> = lines.iter().map(line).collect();
    for round in 0..effort.rounds as usize {
        for (place, x) in places.iter().enumerate() {
            for step in 0..lines.len() {
                let which = (round + place + step) % lines.len();
                let value = measure(lines[which], *x).with_context(|| format!("{} at {x}", lines[which]))?;
                found[which].points[place].values.push(value);
            }
        }
    }
    Ok(found)
}

/// A comparison of two series of values of the same rounds.
pub(super) struct Compared {
    pub(super) case: String,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    pub(super) ours: Vec<f64>,
    pub(super) rival: String,
    pub(super) rival_values: Vec<f64>,
}

impl Compared {
    /// The row with its bar. None where one of the two was not measured.
    pub(super) fn row(self, bar: Option<(Bar, Kind)>) -> Option<Row> {
        let Self { case, unit, better, ours, rival, rival_values } = self;
        if ours.is_empty() || rival_values.is_empty() {
            return None;
        }
        let series = Series { case, unit: unit.to_owned(), better, ours, rival, rival_values };
        Some(Row { series, bar })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_take_turns_and_every_point_has_a_value_of_each_round() -> Result<()> {
        let mut order = vec![];
        let effort = Effort { rounds: 2, seconds: 1.0, points: 2, judged: &[] };
        let lines = sweep(effort, &[1.0, 2.0, 3.0], &["a", "b"], &mut |line, x| {
            order.push(format!("{line}{x}"));
            Ok(x)
        })?;
        assert_eq!(order, ["a1", "b1", "b3", "a3", "b1", "a1", "a3", "b3"]);
        assert_eq!(lines[1].at(3.0), [3.0, 3.0]);
        let failed = sweep(effort, &[1.0], &["a"], &mut |_, _| anyhow::bail!("gone"));
        assert!(format!("{:#}", failed.expect_err("it failed")).contains("a at 1: gone"));
        Ok(())
    }

    #[test]
    fn a_comparison_without_values_is_no_row() {
        let compared = |ours: Vec<f64>| Compared {
            case: "c".to_owned(),
            unit: "us",
            better: Better::Lower,
            ours,
            rival: "r".to_owned(),
            rival_values: vec![1.0],
        };
        assert!(compared(vec![]).row(None).is_none());
        assert!(compared(vec![1.0]).row(Some((Bar::RatioAtMost(1.0), Kind::Must))).is_some());
    }
}
