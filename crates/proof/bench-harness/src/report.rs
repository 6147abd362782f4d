//! What a bench found, as a file and as the table on the terminal. Where files are kept, and how they look, is in `kept`.

use super::stats::{Row, Verdict, spread};
use super::{kept, machine};
use anyhow::{Context, Result};
use harness::repo::Repo;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What a bench found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) rounds: u32,
    pub(crate) rows: Vec<Row>,
    /// Values without a bar.
    pub(crate) figures: Vec<Value>,
    /// Rivals that could not be run, each with the reason.
    pub(crate) rivals_missing: Vec<String>,
    /// What should have been measured and was not, each with the reason.
    pub(crate) failed: Vec<String>,
    /// How it was measured: link, guest, devices' settings.
    pub(crate) setting: Value,
}

/// Which bench it was.
#[derive(Debug)]
pub(crate) struct Measured<'a> {
    /// The name under which results are kept.
    pub(crate) name: &'a str,
    /// The command that measures all of it.
    pub(crate) command: &'a str,
    /// Whether only some of its cases were asked for.
    pub(crate) is_part: bool,
}

/// Commit and machine, taken before the bench runs, since files and load may change while it does.
#[derive(Debug)]
pub(crate) struct Origin {
    commit: String,
    dirty: bool,
    machine: Value,
}

impl Origin {
    pub(crate) fn now(repo: &Repo) -> Result<Self> {
        let git = |args: &[&str]| -> Result<String> {
            let output = repo.command("git", args).output().context("cannot start git")?;
            anyhow::ensure!(output.status.success(), "git {}: {}", args.join(" "), output.status);
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
        Ok(Self { commit: git(&["rev-parse", "HEAD"])?, dirty: !changed.is_empty(), machine: machine::describe() })
    }

    /// Writes the file and says where. The one that is kept in the repository is replaced, unless `elsewhere` says where
    /// the file goes; what a part of a bench did not measure is kept.
    pub(crate) fn write(
        self,
        repo: &Repo,
        what: &Measured<'_>,
        findings: &Findings,
        elsewhere: Option<&Path>,
    ) -> Result<PathBuf> {
        let commit = self.commit.clone();
        let file = self.file(what, findings);
        let Some(path) = elsewhere else {
            let is_part = what.is_part || !findings.failed.is_empty() || !findings.rivals_missing.is_empty();
            return kept::write(&repo.root, what.name, &commit, file, is_part);
        };
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        std::fs::write(path, kept::text(&file)).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.to_owned())
    }

    fn file(mut self, what: &Measured<'_>, findings: &Findings) -> Value {
        self.machine["load_after"] = machine::load();
        json!({
            "schema": "raas.bench/1",
            "bench": what.name,
            "command": what.command,
            "commit": self.commit,
            "dirty": self.dirty,
            "machine": self.machine,
            "setting": findings.setting,
            "rounds": findings.rounds,
            "rows": findings.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            "figures": findings.figures,
            "rivals_missing": findings.rivals_missing,
            "failed": findings.failed,
        })
    }
}

/// The table, widest cells first measured.
pub(crate) fn table(findings: &Findings) -> String {
    let heads = ["case", "ours", "rival", "", "unit", "ours/rival (p10..p90)", "bar", "verdict"];
    let mut lines: Vec<Vec<String>> = vec![heads.map(str::to_owned).to_vec()];
    lines.extend(findings.rows.iter().map(cells));
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default())
        .collect();
    let mut out = String::new();
    for line in lines {
        let padded: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
        let _ = writeln!(out, "{}", padded.join("  ").trim_end());
    }
    for missing in &findings.rivals_missing {
        let _ = writeln!(out, "rival missing: {missing}");
    }
    for failed in &findings.failed {
        let _ = writeln!(out, "FAILED {failed}");
    }
    let count = |verdict: Verdict| findings.rows.iter().filter(|row| row.verdict() == Some(verdict)).count();
    let _ = writeln!(
        out,
        "{} met, {} missed, {} undecided",
        count(Verdict::Met),
        count(Verdict::Missed),
        count(Verdict::Undecided)
    );
    out
}

fn cells(row: &Row) -> Vec<String> {
    let median = |values: &[f64]| spread(values).map_or("-".to_owned(), |s| short(s.median));
    let ratio = spread(&row.series.ratios())
        .map_or("-".to_owned(), |s| format!("{} ({}..{})", short(s.median), short(s.p10), short(s.p90)));
    vec![
        row.series.case.clone(),
        median(&row.series.ours),
        row.series.rival.clone(),
        median(&row.series.rival_values),
        row.series.unit.clone(),
        ratio,
        row.bar.map_or("none".to_owned(), |(bar, kind)| format!("{} {}", kind.name(), bar.text())),
        row.verdict().map_or("reported", Verdict::name).to_owned(),
    ]
}

fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stats::{Bar, Better, Kind, Series};
    use super::*;

    fn findings() -> Findings {
        let series = Series {
            case: "send".to_owned(),
            unit: "us".to_owned(),
            better: Better::Lower,
            ours: vec![1.0; 9],
            rival: "rxe".to_owned(),
            rival_values: vec![2.0; 9],
        };
        Findings {
            rounds: 9,
            rows: vec![
                Row { series: series.clone(), bar: Some((Bar::RatioAtMost(1.0), Kind::Must)) },
                Row { series: Series { rival: "tcp".to_owned(), ..series }, bar: None },
            ],
            rivals_missing: vec!["ucx: not installable".to_owned()],
            ..Findings::default()
        }
    }

    #[test]
    fn the_table_shows_both_sides_and_the_verdict() {
        let text = table(&findings());
        assert!(text.contains("0.50 (0.50..0.50)") && text.contains("met"), "{text}");
        assert!(text.lines().any(|line| line.contains("tcp") && line.ends_with("reported")), "{text}");
        assert!(text.contains("rival missing: ucx"), "{text}");
        assert!(text.ends_with("1 met, 0 missed, 0 undecided\n"), "{text}");
    }

    #[test]
    fn the_file_has_the_keys_that_bind() {
        let origin = Origin { commit: "abc".to_owned(), dirty: false, machine: json!({}) };
        let what = Measured { name: "nic", command: "cargo xtask bench nic", is_part: false };
        let text = kept::text(&origin.file(&what, &findings()));
        let file: Value = serde_json::from_str(&text).expect("JSON");
        for key in ["schema", "commit", "machine", "rounds", "rows", "rivals_missing"] {
            assert!(!file[key].is_null(), "{key}");
        }
        let row = &file["rows"][0];
        for key in ["case", "unit", "ours", "rival", "rival_values", "ratio_median", "ratio_p10", "ratio_p90", "bar"] {
            assert!(!row[key].is_null(), "{key}");
        }
        assert_eq!((row["kind"].as_str(), row["verdict"].as_str()), (Some("must"), Some("met")));
    }
}
