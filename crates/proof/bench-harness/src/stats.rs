//! The statistics of alternating rounds: ratios of pairs, percentiles, bars and verdicts. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A bar is judged only with so many rounds.
pub(crate) const ROUNDS_MIN: usize = 9;

/// Whether a smaller value is the better one; for readers of the file alone, since bars say which side they want.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// One case, measured on both sides in the same rounds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) case: String,
    pub(crate) unit: String,
    pub(crate) better: Better,
    /// One value a round.
    pub(crate) ours: Vec<f64>,
    pub(crate) rival: String,
    /// One value a round, in the same order.
    pub(crate) rival_values: Vec<f64>,
}

/// Which side of the bound reaches a bar.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Bar {
    /// `ours / rival` must be at most this: for times.
    RatioAtMost(f64),
    /// `ours / rival` must be at least this: for rates.
    RatioAtLeast(f64),
}

/// How binding a bar is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Must,
    Goal,
}

/// What a bar came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// The rounds disagree, or there are too few.
    Undecided,
}

/// A series against one bar, or a rival that is reported without one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) series: Series,
    pub(crate) bar: Option<(Bar, Kind)>,
}

/// Median and the spread of what a bar is about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) p10: f64,
    pub(crate) p90: f64,
}

impl Series {
    /// `ours / rival` of each round. Whatever the unit, so a time that is half the rival's has the ratio 0.5, and a
    /// rate twice the rival's the ratio 2. Rounds without two positive values have none.
    pub(crate) fn ratios(&self) -> Vec<f64> {
        let pairs = self.ours.iter().zip(&self.rival_values);
        pairs.filter(|(a, b)| is_measured(**a) && is_measured(**b)).map(|(a, b)| a / b).collect()
    }
}

fn is_measured(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

impl Bar {
    fn reached_by(self, value: f64) -> bool {
        match self {
            Self::RatioAtMost(bound) => value <= bound,
            Self::RatioAtLeast(bound) => value >= bound,
        }
    }

    /// As it stands in the file.
    pub(crate) fn text(self) -> String {
        match self {
            Self::RatioAtMost(bound) => format!("ours/rival <= {bound}"),
            Self::RatioAtLeast(bound) => format!("ours/rival >= {bound}"),
        }
    }
}

impl Row {
    /// Met or missed where the tenth and the ninetieth percentile agree, else undecided. A row without a bar has none.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let (bar, _) = self.bar?;
        let judged = self.series.ratios();
        let Some(spread) = spread(&judged).filter(|_| judged.len() >= ROUNDS_MIN) else {
            return Some(Verdict::Undecided);
        };
        Some(match (bar.reached_by(spread.p10), bar.reached_by(spread.p90)) {
            (true, true) => Verdict::Met,
            (false, false) => Verdict::Missed,
            _ => Verdict::Undecided,
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let series = &self.series;
        let ratio = spread(&series.ratios());
        let of = |part: fn(Spread) -> f64| ratio.map(|s| rounded(part(s)));
        json!({
            "case": series.case,
            "unit": series.unit,
            "better": match series.better { Better::Lower => "lower", Better::Higher => "higher" },
            "ours": series.ours.iter().copied().map(rounded).collect::<Vec<_>>(),
            "rival": series.rival,
            "rival_values": series.rival_values.iter().copied().map(rounded).collect::<Vec<_>>(),
            "ratio_median": of(|s| s.median),
            "ratio_p10": of(|s| s.p10),
            "ratio_p90": of(|s| s.p90),
            "bar": self.bar.map(|(bar, _)| bar.text()),
            "kind": self.bar.map(|(_, kind)| kind.name()),
            "verdict": self.verdict().map(Verdict::name),
        })
    }
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Must => "must",
            Self::Goal => "goal",
        }
    }
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Undecided => "undecided",
        }
    }
}

/// Median and percentiles, between neighbours in proportion; `None` of nothing.
pub(crate) fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * (sorted.len().checked_sub(1)?) as f64;
        let below = *sorted.get(place.floor() as usize)?;
        let above = *sorted.get(place.ceil() as usize)?;
        Some(below + (above - below) * place.fract())
    };
    Some(Spread { median: at(0.5)?, p10: at(0.1)?, p90: at(0.9)? })
}

/// Four significant digits are more than the machine repeats.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    let scaled = (value * scale).round() / scale;
    if scaled.is_finite() { scaled } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: &[f64], rival: &[f64], bar: Bar) -> Row {
        let series = Series {
            case: "case".to_owned(),
            unit: "us".to_owned(),
            better: Better::Lower,
            ours: ours.to_vec(),
            rival: "rival".to_owned(),
            rival_values: rival.to_vec(),
        };
        Row { series, bar: Some((bar, Kind::Must)) }
    }

    #[test]
    fn percentiles_lie_between_neighbours() {
        let nine: Vec<f64> = (1..=9).rev().map(f64::from).collect();
        let found = spread(&nine).expect("nine values");
        assert_eq!(found.median, 5.0);
        assert!((found.p10 - 1.8).abs() < 1e-9 && (found.p90 - 8.2).abs() < 1e-9, "{found:?}");
        assert_eq!(spread(&[1.0, 3.0]).expect("two values").median, 2.0);
        assert_eq!(spread(&[7.0]).expect("one value"), Spread { median: 7.0, p10: 7.0, p90: 7.0 });
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn ratios_pair_the_rounds_and_leave_out_what_was_not_measured() {
        let ours = [1.0, 4.0, 0.0, f64::NAN, 6.0];
        let rival = [2.0, 2.0, 2.0, 2.0, 0.0];
        assert_eq!(row(&ours, &rival, Bar::RatioAtMost(1.0)).series.ratios(), [0.5, 2.0]);
    }

    #[test]
    fn a_time_reaches_its_bar_from_below_and_a_rate_from_above() {
        let (half, one) = ([0.5; 9], [1.0; 9]);
        assert_eq!(row(&half, &one, Bar::RatioAtMost(0.5)).verdict(), Some(Verdict::Met));
        assert_eq!(row(&half, &one, Bar::RatioAtMost(0.4)).verdict(), Some(Verdict::Missed));
        assert_eq!(row(&half, &one, Bar::RatioAtLeast(0.5)).verdict(), Some(Verdict::Met));
        assert_eq!(row(&half, &one, Bar::RatioAtLeast(0.6)).verdict(), Some(Verdict::Missed));
    }

    #[test]
    fn rounds_that_disagree_decide_nothing() {
        let mixed = [0.8, 0.8, 0.8, 0.8, 0.9, 0.9, 0.9, 1.2, 1.2];
        assert_eq!(row(&mixed, &[1.0; 9], Bar::RatioAtMost(1.0)).verdict(), Some(Verdict::Undecided));
        // One outlier of nine lies beyond the ninetieth percentile only in part, and still counts.
        let outlier = [0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 1.5];
        assert_eq!(row(&outlier, &[1.0; 9], Bar::RatioAtMost(1.0)).verdict(), Some(Verdict::Met));
    }

    #[test]
    fn too_few_rounds_decide_nothing() {
        assert_eq!(row(&[0.1; 8], &[1.0; 8], Bar::RatioAtMost(1.0)).verdict(), Some(Verdict::Undecided));
        assert_eq!(row(&[0.1; 9], &[1.0; 8], Bar::RatioAtMost(1.0)).verdict(), Some(Verdict::Undecided));
    }

    #[test]
    fn the_file_has_every_key() {
        let json = row(&[12.34567; 9], &[24.69134; 9], Bar::RatioAtMost(0.5)).to_json();
        for key in ["case", "unit", "ours", "rival", "rival_values", "ratio_median", "ratio_p10", "ratio_p90"] {
            assert!(!json[key].is_null(), "{key}");
        }
        assert_eq!(
            (&json["bar"], &json["kind"], &json["verdict"]),
            (&json!("ours/rival <= 0.5"), &json!("must"), &json!("met"))
        );
        assert_eq!(json["ours"][0], 12.35);
    }

    #[test]
    fn a_reported_rival_has_ratios_and_no_verdict() {
        let reported = Row { bar: None, ..row(&[2.0; 9], &[4.0; 9], Bar::RatioAtMost(1.0)) };
        let json = reported.to_json();
        assert_eq!(json["ratio_median"], 0.5);
        for key in ["bar", "kind", "verdict"] {
            assert!(json.get(key).is_some_and(Value::is_null), "{key}: {json}");
        }
    }

    #[test]
    fn rounding_keeps_four_digits_of_any_size() {
        assert_eq!(rounded(123_456.0), 123_500.0);
        assert_eq!(rounded(0.001_234_56), 0.001_235);
        assert_eq!(rounded(0.0), 0.0);
    }
}
