//! `cargo xtask bench figures` runs, on two points of two figures, and refuses what cannot be. What it measures here is
//! nobody's claim.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use harness::repo::Repo;
use serde_json::Value;

fn xtask(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(["bench", "figures"]).args(words).output().expect("it starts")
}

/// The measured programs, as the stages of the test command have them.
fn programs() -> PathBuf {
    harness::programs::build(&Repo::open().expect("this repository")).expect("they are built");
    Path::new(env!("CARGO_BIN_EXE_xtask")).parent().expect("it lies in a directory").to_owned()
}

fn check(folder: &Path, name: &str, lines: usize) {
    let text = |extension: &str| {
        let path = folder.join(format!("{name}.{extension}"));
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let svg = text("svg");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    // Each element ends: in itself, or by a tag of its name.
    let closed = svg.matches("/>").count() + svg.matches("</").count();
    assert_eq!(svg.matches('<').count() - svg.matches("</").count(), closed, "{svg}");
    let csv = text("csv");
    assert_eq!(csv.lines().count(), 1 + 2 * lines, "{csv}");
    for point in csv.lines().skip(1) {
        // "NAME",x,median,p10,p90,rounds
        let numbers = point.rsplit_once('"').map(|(_, rest)| rest.trim_start_matches(','));
        let numbers: Vec<f64> = numbers.expect("a name").split(',').map(|v| v.parse().expect("a number")).collect();
        assert!(matches!(numbers[..], [_, median, _, _, rounds] if median > 0.0 && rounds == 1.0), "{point}");
    }
}

#[test]
fn two_points_of_two_figures_are_measured_and_drawn() {
    let folder = tempfile::tempdir().expect("a directory");
    let (out, programs) = (folder.path().display().to_string(), programs().display().to_string());
    let results = folder.path().join("rows.json").display().to_string();
    let words = ["--quick", "--points", "2", "--only", "2,12", "--out", &out, "--json", &results];
    let ended = xtask(&[&words[..], &["--programs", &programs]].concat());
    let said = [ended.stdout.as_slice(), ended.stderr.as_slice()].concat();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&said));
    check(folder.path(), "fig02", 2);
    check(folder.path(), "fig12", 3);
    let rows: Value = serde_json::from_slice(&std::fs::read(&results).expect("results")).expect("JSON");
    assert!(rows["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{rows:#}");
}

#[test]
fn bad_arguments_are_refused_before_anything_runs() {
    for (words, told) in [
        (&["--only", "5"][..], "no such figure; there are 1, 2, 6"),
        (&["--only", "six"], "no such figure"),
        (&["--points", "1"], "--points"),
        (&["--seconds", "0"], "more than 0"),
        (&["--wire", "abacus"], "possible values: roce, iwarp"),
        (&["--programs", "/nowhere"], "there is no `raas`"),
        (&["--device", "rxe", "--only", "8"], "there are 1, 2, 6, 7, 11, 12"),
        (&["--device", "rxe", "--wire", "iwarp"], "the wire roce alone"),
        (&["--device", "mlx5"], "possible values: softnic, rxe"),
    ] {
        let ended = xtask(words);
        let err = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && err.contains(told), "{words:?}: {err}");
    }
}
