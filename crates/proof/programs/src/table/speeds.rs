//! Speeds that a program told of itself, in rounds: each way of RaaS beside kernel TCP of the same round.

use std::collections::BTreeMap;

use super::Way;

/// Each way of RaaS, and the way on kernel TCP that stands beside it.
const PAIRS: [(Way, Way); 3] =
    [(Way::SameHost, Way::Tcp), (Way::TwoHosts, Way::TcpTwoHosts), (Way::Polled, Way::TcpTwoHosts)];

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Speeds {
    of_ways: BTreeMap<&'static str, Vec<f64>>,
    unit: String,
}

impl Speeds {
    pub(super) fn add(&mut self, way: Way, (speed, unit): (f64, String)) {
        self.of_ways.entry(way.name()).or_default().push(speed);
        self.unit = unit;
    }

    /// For each way of RaaS the medians, and the ratio to TCP with its spread.
    pub(super) fn lines(&self) -> Vec<String> {
        PAIRS.iter().filter_map(|(raas, tcp)| self.line(raas.name(), tcp.name())).collect()
    }

    /// A round in which one of both failed has no ratio, and the rounds behind it would be compared with others.
    fn line(&self, raas: &str, tcp: &str) -> Option<String> {
        let (ours, theirs) = (self.of_ways.get(raas)?, self.of_ways.get(tcp)?);
        if ours.len() != theirs.len() {
            return Some(format!("{raas}: {} rounds, TCP {}: not compared", ours.len(), theirs.len()));
        }
        let ratios = sorted(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect());
        let (ours, theirs, unit) = (median(&sorted(ours.clone())), median(&sorted(theirs.clone())), &self.unit);
        let spread = match ratios[..] {
            [least, .., most] => format!(" ({least:.2} to {most:.2} in {} rounds)", ratios.len()),
            _ => String::new(),
        };
        Some(format!("{raas}: {ours:.1} {unit}, TCP {theirs:.1}, {:.2} x{spread}", median(&ratios)))
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Of sorted values, which are some.
fn median(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds(ours: &[f64], theirs: &[f64]) -> Speeds {
        let mut speeds = Speeds::default();
        let unit = || "gets/s".to_owned();
        ours.iter().for_each(|speed| speeds.add(Way::SameHost, (*speed, unit())));
        theirs.iter().for_each(|speed| speeds.add(Way::Tcp, (*speed, unit())));
        speeds
    }

    #[test]
    fn rounds_are_compared_each_with_its_own() {
        let one = speeds(&[30.0], &[10.0]).lines();
        assert_eq!(one, ["same-host: 30.0 gets/s, TCP 10.0, 3.00 x"]);
        let three = speeds(&[30.0, 10.0, 20.0], &[10.0, 10.0, 10.0]).lines();
        assert_eq!(three, ["same-host: 20.0 gets/s, TCP 10.0, 2.00 x (1.00 to 3.00 in 3 rounds)"]);
    }

    #[test]
    fn a_round_that_failed_is_not_compared_with_another() {
        assert_eq!(speeds(&[30.0], &[10.0, 11.0]).lines(), ["same-host: 1 rounds, TCP 2: not compared"]);
        assert!(speeds(&[], &[10.0]).lines().is_empty());
    }
}
