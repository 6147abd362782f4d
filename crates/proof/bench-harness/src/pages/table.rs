//! How rows of a result file are told on a page.

use crate::kept;
use crate::stats::spread;
use serde_json::Value;
use std::fmt;

/// A case that a block names.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) case: String,
    /// All of them if none is named.
    pub(super) rival: Option<String>,
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

/// A measured case beside one rival, and its bars.
#[derive(Debug)]
pub(super) struct Told<'f> {
    pub(super) file: &'f Value,
    pub(super) bench: &'f str,
    pub(super) row: &'f Value,
    /// The row once for each bar.
    pub(super) bars: Vec<&'f Value>,
}

impl Told<'_> {
    fn word(&self, key: &str) -> &str {
        self.row[key].as_str().unwrap_or_default()
    }

    /// The ratio and its spread; none if no round has both sides.
    fn ratio(&self) -> Option<String> {
        let [median, p10, p90] = self.ratios()?;
        Some(format!("{median} ({p10}..{p90})"))
    }

    /// Median, tenth and ninetieth percentile.
    fn ratios(&self) -> Option<[String; 3]> {
        let [median, p10, p90] = ["ratio_median", "ratio_p10", "ratio_p90"].map(|key| self.row[key].as_f64());
        Some([short(median?), short(p10?), short(p90?)])
    }

    /// Bars, as `<=0.5`, or `goal <=0.5` where it binds nobody; none for a rival that is reported.
    fn bars(&self) -> Vec<(String, &str)> {
        let bars = self.bars.iter().filter_map(|row| {
            let bar = row["bar"].as_str()?.trim_start_matches("ours/rival ");
            let verdict = row["verdict"].as_str().unwrap_or("undecided");
            // A third is written with more digits than anybody reads.
            let (sign, bound) = bar.split_once(' ')?;
            let bound = bound.parse::<f64>().ok().map(|bound| format!("{}", (bound * 1000.0).round() / 1000.0))?;
            let goal = if row["kind"] == "goal" { "goal " } else { "" };
            Some((format!("{goal}{sign}{bound}"), verdict))
        });
        bars.collect()
    }
}

/// A table of values, ratios, bars and verdicts, and what measured them.
pub(super) fn figures(rows: &[Told<'_>]) -> String {
    let mut out = "| case | ours (p10..p90) | beside | ratio (p10..p90) | bar | verdict |\n\
                   |---|---|---|---|---|---|\n"
        .to_owned();
    for told in rows {
        // `gbit_per_s` is what a key of JSON is called.
        let unit = told.word("unit").replace("_per_s", "/s").replace("gbit", "Gbit");
        let ours = spread(&numbers(&told.row["ours"]));
        let ours = ours.map(|s| format!("{} {unit} ({}..{})", short(s.median), short(s.p10), short(s.p90)));
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
    format!("{out}\n{}\n", measured(rows))
}

/// Rounds, machine and load of each run, with its rows where there are several.
fn measured(rows: &[Told<'_>]) -> String {
    let mut runs: Vec<(String, Vec<String>)> = vec![];
    for (number, told) in (1..).zip(rows) {
        let run = kept::run_of(told.file, told.row);
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
    let runs = runs.iter().map(|(words, numbers)| {
        let rows = if numbers.len() == 1 { "Row" } else { "Rows" };
        format!("{rows} {}: {words}.", numbers.join(", "))
    });
    runs.collect::<Vec<_>>().join("\n")
}

/// A line for each case: what, held or missed or open beside which rival by how much, and the command.
pub(super) fn promises(rows: &[Told<'_>]) -> String {
    let mut out = "| promise | state | command |\n|---|---|---|\n".to_owned();
    let mut names: Vec<(&str, &str)> = rows.iter().map(|told| (told.bench, told.word("case"))).collect();
    names.dedup();
    for (bench, case) in names {
        let of_case: Vec<&Told<'_>> =
            rows.iter().filter(|told| (told.bench, told.word("case")) == (bench, case)).collect();
        let command = of_case.first().and_then(|told| told.file["command"].as_str()).unwrap_or_default();
        out += &format!("| {bench}: {case} | {} | `{command}` |\n", state(&of_case));
    }
    out
}

/// `held`, `missed` or `open` by the binding bars, or by the goals where there is nothing else; then each rival with the
/// ratio, its spread and its bars. A bar that came to something else than the whole says so.
fn state(rows: &[&Told<'_>]) -> String {
    let bars: Vec<(String, &str)> = rows.iter().flat_map(|told| told.bars()).collect();
    let binding: Vec<&str> =
        bars.iter().filter(|(bar, _)| !bar.starts_with("goal")).map(|(_, verdict)| *verdict).collect();
    let judged = if binding.is_empty() { bars.iter().map(|(_, verdict)| *verdict).collect() } else { binding };
    let worst = ["missed", "undecided", "met"].into_iter().find(|verdict| judged.contains(verdict));
    let beside = rows.iter().map(|told| {
        let Some([median, p10, p90]) = told.ratios() else {
            return format!("not measured beside {}", told.word("rival"));
        };
        let bars = told.bars().into_iter().map(|(bar, verdict)| match Some(verdict) == worst {
            true => format!(", {bar}"),
            false => format!(", {bar} {}", said(verdict)),
        });
        format!("{median} x {} ({p10}..{p90}{})", told.word("rival"), bars.collect::<String>())
    });
    format!("{}: {}", worst.map_or("measured", said), beside.collect::<Vec<_>>().join("; "))
}

/// What readers call a verdict.
fn said(verdict: &str) -> &'static str {
    match verdict {
        "met" => "held",
        "missed" => "missed",
        _ => "open",
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
        Told { file, bench: "b", row: &rows[0], bars: rows.iter().collect() }
    }

    #[test]
    fn a_promise_is_held_missed_or_open_by_its_binding_bars() {
        let must = |verdict| ("ours/rival <= 0.3333333333333333", "must", verdict);
        let goal = |verdict| ("ours/rival <= 0.1", "goal", verdict);
        for (rows, words) in [
            (vec![must("met")], "held: 0.56 x tcp (0.50..0.62, <=0.333)"),
            (vec![must("missed")], "missed: 0.56 x tcp (0.50..0.62, <=0.333)"),
            (vec![must("undecided")], "open: 0.56 x tcp (0.50..0.62, <=0.333)"),
            (vec![must("met"), goal("missed")], "held: 0.56 x tcp (0.50..0.62, <=0.333, goal <=0.1 missed)"),
            (vec![goal("missed")], "missed: 0.56 x tcp (0.50..0.62, goal <=0.1)"),
        ] {
            assert_eq!(state(&[&told(&with(&rows))]), words);
        }
        let (held, missed) = (with(&[must("met")]), with(&[must("missed")]));
        let words = state(&[&told(&held), &told(&missed)]);
        assert!(words.starts_with("missed: ") && words.contains("<=0.333 held); "), "{words}");
    }

    #[test]
    fn a_promise_is_a_line_with_its_command() {
        let file = with(&[("ours/rival <= 1", "must", "met")]);
        let text = promises(&[told(&file)]);
        let line = "| b: x | held: 0.56 x tcp (0.50..0.62, <=1) | `cargo xtask bench b` |\n";
        assert_eq!(text, format!("| promise | state | command |\n|---|---|---|\n{line}"));
    }

    #[test]
    fn a_missed_bar_is_seen_and_a_reported_rival_has_none() {
        let file = with(&[("ours/rival <= 0.5", "must", "missed"), ("ours/rival <= 0.1", "goal", "missed")]);
        let text = figures(&[told(&file)]);
        assert!(text.contains("| <=0.5, goal <=0.1 | **missed**, **missed** |"), "{text}");
        let mut file = file;
        file["rows"] = json!([{ "case": "x", "unit": "us", "ours": [], "rival": "tcp", "bar": null }]);
        let text = figures(&[told(&file)]);
        assert!(text.contains("| x | - | tcp | - | - | - |"), "{text}");
        file["rows"][0]["ours"] = json!([2.0]);
        file["rows"][0]["unit"] = json!("gbit_per_s");
        let text = figures(&[told(&file)]);
        assert!(text.contains("| x | 2.00 Gbit/s (2.00..2.00) |"), "{text}");
    }

    #[test]
    fn rows_of_several_runs_say_which() {
        let mut file = file("one", &["x", "y"]);
        file["rows"][1]["run"] = json!(0);
        file["runs"] = json!([{ "commit": "old", "machine": { "cpu": "Other", "cores": 4 } }]);
        let rows = file["rows"].as_array().expect("rows");
        let rows: Vec<Told<'_>> =
            rows.iter().map(|row| Told { file: &file, bench: "b", row, bars: vec![row] }).collect();
        let text = measured(&rows);
        assert_eq!(
            text,
            "Row 1: 2 rounds on CPU of the test, 2 cores, load 0.1 before.\nRow 2: 2 rounds on Other, 4 cores."
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
