//! How rows of a result file are told on a page.

use crate::kept;
use crate::stats::spread;
use anyhow::{Result, ensure};
use serde_json::Value;
use std::fmt;

/// A promise has at most so many letters.
const LETTERS_MAX: usize = 200;

/// A case that a block names.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) case: String,
    /// All of them if none is named.
    pub(super) rival: Option<String>,
    /// Why it is missed or open.
    pub(super) because: Option<String>,
}

impl Wanted {
    pub(super) fn is(&self, row: &Value) -> bool {
        row["case"] == self.case.as_str() && self.rival.as_ref().is_none_or(|rival| row["rival"] == rival.as_str())
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.case)?;
        self.rival.iter().try_for_each(|rival| write!(f, " beside \"{rival}\""))
    }
}

/// A measured case, its bars, and what is said about it.
#[derive(Debug)]
pub(super) struct Told<'f> {
    pub(super) row: &'f Value,
    /// The row once for each bar.
    pub(super) bars: Vec<&'f Value>,
    pub(super) because: Option<&'f str>,
}

impl Told<'_> {
    fn word(&self, key: &str) -> &str {
        self.row[key].as_str().unwrap_or_default()
    }

    /// The ratio and its spread; none if no round has both sides.
    fn ratio(&self) -> Option<String> {
        let [median, p10, p90] = ["ratio_median", "ratio_p10", "ratio_p90"].map(|key| self.row[key].as_f64());
        Some(format!("{} ({} to {})", short(median?), short(p10?), short(p90?)))
    }

    /// Bars with their kind, as `must <= 0.5`; none for a rival that is reported.
    fn bars(&self) -> Vec<(String, &str)> {
        let bars = self.bars.iter().filter_map(|row| {
            let bar = row["bar"].as_str()?.trim_start_matches("ours/rival ");
            let verdict = row["verdict"].as_str().unwrap_or("undecided");
            // A third is written with more digits than anybody reads.
            let (sign, bound) = bar.split_once(' ')?;
            let bound = bound.parse::<f64>().ok().map(|bound| format!("{}", (bound * 1000.0).round() / 1000.0))?;
            Some((format!("{} {sign} {bound}", row["kind"].as_str()?), verdict))
        });
        bars.collect()
    }
}

/// A table of values, ratios, bars and verdicts, and what measured them.
pub(super) fn figures(file: &Value, rows: &[Told<'_>]) -> String {
    let mut out = "| case | ours, median (p10 to p90) | beside | ratio (p10 to p90) | bar | verdict |\n\
                   |---|---|---|---|---|---|\n"
        .to_owned();
    for told in rows {
        let unit = told.word("unit");
        let ours = spread(&numbers(&told.row["ours"]));
        let ours = ours.map(|s| format!("{} {unit} ({} to {})", short(s.median), short(s.p10), short(s.p90)));
        let rival = spread(&numbers(&told.row["rival_values"]));
        let rival = rival.map(|s| format!(": {} {unit}", short(s.median)));
        let bars = told.bars();
        let of = |part: fn(&(String, &str)) -> String| match bars.as_slice() {
            [] => "-".to_owned(),
            bars => bars.iter().map(part).collect::<Vec<_>>().join(", "),
        };
        let verdict = |(_, verdict): &(String, &str)| match *verdict {
            "missed" => "**missed**".to_owned(),
            other => other.to_owned(),
        };
        let (ours, ratio) = (ours.unwrap_or("-".to_owned()), told.ratio().unwrap_or("-".to_owned()));
        let rival = format!("{}{}", told.word("rival"), rival.unwrap_or_default());
        let (bar, verdict) = (of(|(bar, _)| bar.clone()), of(verdict));
        out += &format!("| {} | {ours} | {rival} | {ratio} | {bar} | {verdict} |\n", told.word("case"));
    }
    format!("{out}\n{}\n", measured(file, rows))
}

/// Rounds, machine and load of each run, with its rows where there are several.
fn measured(file: &Value, rows: &[Told<'_>]) -> String {
    let mut runs: Vec<(String, Vec<String>)> = vec![];
    for (number, told) in (1..).zip(rows) {
        let run = kept::run_of(file, told.row);
        let machine = &run["machine"];
        let load = machine["load_before"].as_f64().map(|load| format!(", load {load:.1} before")).unwrap_or_default();
        let cpu = machine["cpu"].as_str().unwrap_or("a processor that has no name");
        let rounds = match numbers(&told.row["ours"]).len() {
            1 => "1 round".to_owned(),
            rounds => format!("{rounds} rounds"),
        };
        let words = format!("{rounds} on {cpu}, {} cores{load}", machine["cores"]);
        match runs.iter_mut().find(|(known, _)| *known == words) {
            Some((_, numbers)) => numbers.push(number.to_string()),
            None => runs.push((words, vec![number.to_string()])),
        }
    }
    if let [(words, _)] = runs.as_slice() {
        return format!("{words}.");
    }
    let runs = runs.iter().map(|(words, numbers)| format!("row {}: {words}", numbers.join(", ")));
    let text = runs.collect::<Vec<_>>().join("; ");
    text[..1].to_uppercase() + &text[1..] + "."
}

/// A line for each promise: what, held or missed or open by how much, and the command.
pub(super) fn promises(file: &Value, bench: &str, rows: &[Told<'_>]) -> Result<String> {
    let command = file["command"].as_str().unwrap_or_default();
    let mut out = "| promise | state | command |\n|---|---|---|\n".to_owned();
    for told in rows {
        let line = format!(
            "| {bench}: {}, beside {} | {} | `{command}` |\n",
            told.word("case"),
            told.word("rival"),
            state(told)
        );
        let letters = line.trim_end().chars().count();
        ensure!(letters <= LETTERS_MAX, "{letters} letters, a promise has at most {LETTERS_MAX}: {line}");
        out += &line;
    }
    Ok(out)
}

/// `held`, `missed` or `open` by the first bar, which is the binding one, with the ratio; other bars say theirs.
fn state(told: &Told<'_>) -> String {
    let bars = told.bars();
    let ratio = told.ratio().map_or("not measured".to_owned(), |ratio| format!("{ratio} x"));
    let Some(((bar, verdict), others)) = bars.split_first() else { return format!("measured: {ratio}") };
    let said = |verdict: &str| match verdict {
        "met" => "held",
        "missed" => "missed",
        _ => "open",
    };
    let mut text = format!("{}: {ratio}, {bar}", said(verdict));
    for (bar, verdict) in others {
        text += &format!("; {bar} {}", said(verdict));
    }
    match told.because.filter(|_| bars.iter().any(|(_, verdict)| *verdict != "met")) {
        Some(words) => format!("{text}; {words}"),
        None => text,
    }
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// As many digits as the machine repeats.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2} M", value / 1e6),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        v => {
            let digits = usize::try_from(1 - v.log10().floor() as i64).unwrap_or(2);
            format!("{value:.digits$}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::tests::file;
    use serde_json::json;

    fn with(verdicts: &[(&str, &str, &str)]) -> Value {
        let mut file = file("one", &["x"]);
        let row = file["rows"][0].clone();
        let rows = verdicts.iter().map(|(bar, kind, verdict)| {
            let mut row = row.clone();
            (row["bar"], row["kind"], row["verdict"]) = (json!(bar), json!(kind), json!(verdict));
            row
        });
        file["rows"] = rows.collect();
        file
    }

    fn told(file: &Value) -> Told<'_> {
        let rows = file["rows"].as_array().expect("rows");
        Told { row: &rows[0], bars: rows.iter().collect(), because: Some("it is slow") }
    }

    #[test]
    fn a_promise_is_held_missed_or_open_by_its_binding_bar() {
        let must = |verdict| ("ours/rival <= 0.3333333333333333", "must", verdict);
        let goal = |verdict| ("ours/rival <= 0.1", "goal", verdict);
        for (rows, said) in [
            (vec![must("met")], "held: 0.56 (0.50 to 0.62) x, must <= 0.333"),
            (vec![must("missed")], "missed: 0.56 (0.50 to 0.62) x, must <= 0.333; it is slow"),
            (vec![must("undecided")], "open: 0.56 (0.50 to 0.62) x, must <= 0.333; it is slow"),
            (
                vec![must("met"), goal("missed")],
                "held: 0.56 (0.50 to 0.62) x, must <= 0.333; goal <= 0.1 missed; it is slow",
            ),
        ] {
            assert_eq!(state(&told(&with(&rows))), said);
        }
    }

    #[test]
    fn a_promise_that_is_too_long_is_refused() {
        let file = with(&[("ours/rival <= 1", "must", "missed")]);
        let long = "word ".repeat(30);
        let told = Told { because: Some(&long), ..told(&file) };
        let error = promises(&file, "b", &[told]).expect_err("too long").to_string();
        assert!(error.contains("a promise has at most 200"), "{error}");
    }

    #[test]
    fn a_missed_bar_is_seen_and_a_reported_rival_has_none() {
        let file = with(&[("ours/rival <= 0.5", "must", "missed"), ("ours/rival <= 0.1", "goal", "missed")]);
        let text = figures(&file, &[told(&file)]);
        assert!(text.contains("| must <= 0.5, goal <= 0.1 | **missed**, **missed** |"), "{text}");
        let mut file = file;
        file["rows"] = json!([{ "case": "x", "unit": "us", "ours": [], "rival": "tcp", "bar": null }]);
        let text = figures(&file, &[told(&file)]);
        assert!(text.contains("| x | - | tcp | - | - | - |"), "{text}");
    }

    #[test]
    fn rows_of_several_runs_say_which() {
        let mut file = file("one", &["x", "y"]);
        file["rows"][1]["run"] = json!(0);
        file["runs"] = json!([{ "commit": "old", "machine": { "cpu": "Other", "cores": 4 } }]);
        let rows = file["rows"].as_array().expect("rows");
        let rows: Vec<Told<'_>> = rows.iter().map(|row| Told { row, bars: vec![row], because: None }).collect();
        let text = measured(&file, &rows);
        assert_eq!(
            text,
            "Row 1: 2 rounds on CPU of the test, 2 cores, load 0.1 before; row 2: 2 rounds on Other, 4 cores."
        );
    }

    #[test]
    fn small_numbers_keep_two_digits() {
        assert_eq!(
            [short(0.0007), short(0.044), short(0.5), short(12.34), short(0.0)],
            ["0.00070", "0.044", "0.50", "12.3", "0.00"]
        );
        assert_eq!([short(150.4), short(5_220_000.0)], ["150", "5.22 M"]);
    }
}
