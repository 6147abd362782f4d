//! A figure as data: lines of points with the values of all rounds, and what is written of it beside the drawing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::stats::{Row, rounded, spread};

/// What a value axis shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Scale {
    /// From 0 on.
    Linear,
    /// By powers of ten.
    Log,
}

/// A figure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Its number in the paper, if it is one of the paper's.
    pub(crate) number: Option<u32>,
    pub(crate) title: String,
    /// What the points stand for; each has its place, one beside the other.
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) scale: Scale,
    pub(crate) lines: Vec<Line>,
    /// Bars, and rivals that are reported.
    pub(crate) rows: Vec<Row>,
    /// What else was measured.
    pub(crate) beside: Value,
}

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
}

/// A point: a value of each round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) values: Vec<f64>,
}

impl Line {
    /// The values at a point; none if it was not measured.
    pub(crate) fn at(&self, x: f64) -> Vec<f64> {
        self.points.iter().find(|point| point.x == x).map(|point| point.values.clone()).unwrap_or_default()
    }
}

impl Figure {
    /// What stands above it.
    pub(super) fn heading(&self) -> String {
        self.number.map_or(self.title.clone(), |number| format!("Figure {number}: {}", self.title))
    }

    /// The line of that name; empty if it was not measured.
    pub(crate) fn line(&self, name: &str) -> Line {
        let found = self.lines.iter().find(|line| line.name == name).cloned();
        found.unwrap_or(Line { name: name.to_owned(), points: vec![] })
    }

    /// Points of all lines, ascending.
    pub(super) fn places(&self) -> Vec<f64> {
        let mut all: Vec<f64> = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.x)).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    }

    /// The medians and what they lie between, a point a line.
    pub(super) fn to_csv(&self) -> String {
        let mut out = String::from("line,x,median,p10,p90,rounds\n");
        for (line, point) in self.lines.iter().flat_map(|line| line.points.iter().map(move |point| (line, point))) {
            if let Some(s) = spread(&point.values) {
                let [median, p10, p90] = [s.median, s.p10, s.p90].map(rounded);
                out += &format!("\"{}\",{},{median},{p10},{p90},{}\n", line.name, point.x, point.values.len());
            }
        }
        out
    }
}

/// A number as people write it: 1,000 is 1000, 65536 is 64 Ki where it counts bytes.
pub(super) fn label(x: f64, is_bytes: bool) -> String {
    const KIB: f64 = 1024.0;
    match x {
        x if is_bytes && x >= KIB * KIB && x % (KIB * KIB) == 0.0 => format!("{} Mi", x / KIB / KIB),
        x if is_bytes && x >= KIB && x % KIB == 0.0 => format!("{} Ki", x / KIB),
        _ => format!("{x}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A figure of two lines.
    pub(in crate::figures) fn example(scale: Scale) -> Figure {
        let line = |name: &str, factor: f64| Line {
            name: name.to_owned(),
            points: [64.0, 65_536.0].map(|x| Point { x, values: vec![factor * x, factor * x * 1.1] }).to_vec(),
        };
        Figure {
            number: Some(6),
            title: "An example".to_owned(),
            x: "bytes of a message".to_owned(),
            y: "Gbit/s".to_owned(),
            scale,
            lines: vec![line("RaaS", 2.0), line("native verbs", 1.0)],
            rows: vec![],
            beside: serde_json::json!({ "loss": 0 }),
        }
    }

    #[test]
    fn a_figure_is_written_with_medians_and_spread() {
        let figure = example(Scale::Linear);
        assert_eq!(figure.to_csv().lines().count(), 5);
        assert!(figure.to_csv().contains("\"RaaS\",64,134.4,129.3,139.5,2\n"), "{}", figure.to_csv());
        assert_eq!(figure.places(), [64.0, 65_536.0]);
        assert_eq!(figure.line("RaaS").at(64.0).len(), 2);
        assert!(figure.line("nobody").at(64.0).is_empty());
    }

    #[test]
    fn bytes_are_written_in_binary_units() {
        assert_eq!(label(64.0, true), "64");
        assert_eq!(label(65_536.0, true), "64 Ki");
        assert_eq!(label(1_048_576.0, true), "1 Mi");
        assert_eq!(label(4000.0, false), "4000");
    }
}
