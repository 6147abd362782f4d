//! The parameter server of crates/systems/parameter-server: pairs pushed and pulled (Figures 15 and 16), and a training
//! with it (Figure 17). One program over kernel TCP, under `raas run`, and over the library. It checks the sums itself.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::child::{self, Stream};
use serde_json::{Value, json};

use super::compare::{By, Compared, Side, a_second, compare, same, words};
use super::grpc::PYTHON;
use super::serving::Ready;
use super::{At, Measured, NATIVE, RUN, TCP, json_lines, json_points};
use crate::figures::data::{Figure, Line, Scale};
use crate::stats::{Bar, Better, Kind};

/// Pairs of a push and of a pull.
const PAIRS: [u32; 4] = [1, 10, 100, 1000];
/// Rounds of a push and a pull: the paper's 1,000; of a quick run.
const ROUNDS: u32 = 1000;
const ROUNDS_QUICK: u32 = 200;
/// The paper's number of pairs, about which the goals are: so many times TCP's rounds a second.
const JUDGED: u32 = 1000;
const GOALS: [(&str, f64); 2] = [(RUN, 2.0), (NATIVE, 4.0)];
/// Nothing that works is to be slower than this.
const LEAST: f64 = 0.9;
const SLOWEST: f64 = 1.11;
/// Images between a pull and its push.
const BATCHES: [u32; 7] = [8, 16, 32, 64, 128, 256, 512];
/// How often each image is used.
const EPOCHS: u32 = 20;
/// What a training must reach, whatever carries it: with the largest batches it takes the fewest steps.
const ACCURACY_MIN: f64 = 0.9;
const EXPORT_LIMIT: Duration = Duration::from_secs(120);
/// Makes the file of digits: 64 numbers from 0 to 16 and the digit a line.
const EXPORT: &str = "import sys
from sklearn.datasets import load_digits
digits = load_digits()
with open(sys.argv[1], 'w') as file:
    for pixels, digit in zip(digits.data, digits.target):
        file.write(','.join(str(int(pixel)) for pixel in pixels) + f',{digit}\\n')";

fn sides(at: &At<'_>, servers: u16, client: &[String]) -> Vec<Side> {
    let program = at.place.program("parameter-server");
    let side = |(number, (line, by, over)): (u16, (&'static str, By, &str))| {
        let server = format!("{}:{}", at.place.server(), at.port(number * servers));
        let count = servers.to_string();
        let common = words(&["--over", over, "--servers", &count]);
        let serve = words(&[&program, "serve", "--at", &server]);
        let (role, rest) = client.split_first().map_or(("", &[][..]), |(role, rest)| (role.as_str(), rest));
        let work = words(&[&program, role, "--to", &server]);
        Side {
            line,
            by,
            server: [&serve[..], &common].concat(),
            ready: Ready::Says("ready"),
            client: [&work[..], &common, rest].concat(),
        }
    };
    (0..).zip([(TCP, By::Tcp, "tcp"), (RUN, By::Run, "tcp"), (NATIVE, By::Native, "raas")]).map(side).collect()
}

/// Figure 15.
pub(super) fn one_and_one(at: &At<'_>) -> Result<Measured> {
    exchange(at, 15, 1)
}

/// Figure 16.
pub(super) fn four_and_four(at: &At<'_>) -> Result<Measured> {
    exchange(at, 16, 4)
}

fn exchange(at: &At<'_>, number: u32, count: u16) -> Result<Measured> {
    let rounds = if at.is_quick { ROUNDS_QUICK } else { ROUNDS };
    let pairs = PAIRS.map(|pairs| pairs.to_string()).join(",");
    let client = ["exchange", "--workers", &count.to_string(), "--pairs", &pairs, "--rounds", &rounds.to_string()];
    let sides = sides(at, count, &words(&client));
    let lines = compare(at.place, at.rounds, &sides, &|text| json_points(text, "pairs", "us_per_round"))?;
    let mut rows = vec![];
    for (ours, goal) in GOALS {
        for pairs in PAIRS {
            let bar = if pairs == JUDGED { (goal, Kind::Goal) } else { (LEAST, Kind::Must) };
            let compared = Compared {
                case: at.case(&format!("parameter server {count}x{count}, {pairs} pairs, {ours}")),
                unit: "rounds/s",
                better: Better::Higher,
                ours,
                rival: TCP,
                at: f64::from(pairs),
                value: a_second,
                bar: at.is_one_host().then_some((Bar::RatioAtLeast(bar.0), bar.1)),
            };
            rows.push(compared.row(&lines));
        }
    }
    let workers = if count == 1 { "1 worker, 1 server" } else { "4 workers, 4 servers" };
    let figure = figure(at, number, workers, ("pairs of a push and of a pull", "us for a push and a pull"), lines);
    let beside = json!({ "rounds_each": rounds });
    Ok(Measured { figures: vec![Figure { rows: rows.clone(), beside, ..figure }], rows, missing: vec![] })
}

/// Figure 17.
pub(super) fn training(at: &At<'_>) -> Result<Measured> {
    let digits = export(at)?.display().to_string();
    let batches = BATCHES.map(|batch| batch.to_string()).join(",");
    let client = ["train", "--digits", &digits, "--batches", &batches, "--epochs", &EPOCHS.to_string()];
    let sides = sides(at, 1, &words(&client));
    let lines = compare(at.place, at.rounds, &sides, &|text| {
        for line in json_lines(text)? {
            let accuracy = line["accuracy"].as_f64().context("no accuracy")?;
            ensure!(accuracy >= ACCURACY_MIN, "it names {accuracy} of the images rightly, not {ACCURACY_MIN}: {line}");
        }
        json_points(text, "batch", "seconds")
    })?;
    let mut rows = vec![];
    for (ours, _) in GOALS {
        for batch in BATCHES {
            // Small batches are where the paper's RaaS is faster.
            let bar = if batch == BATCHES[0] { (1.0, Kind::Goal) } else { (SLOWEST, Kind::Must) };
            let compared = Compared {
                case: at.case(&format!("training, batches of {batch}, {ours}")),
                unit: "s",
                better: Better::Lower,
                ours,
                rival: TCP,
                at: f64::from(batch),
                value: same,
                bar: at.is_one_host().then_some((Bar::RatioAtMost(bar.0), bar.1)),
            };
            rows.push(compared.row(&lines));
        }
    }
    let title = format!("training on digits, {EPOCHS} epochs");
    let figure = figure(at, 17, &title, ("images of a batch", "s"), lines);
    let beside = json!({ "epochs": EPOCHS, "accuracy_at_least": ACCURACY_MIN });
    Ok(Measured { figures: vec![Figure { rows: rows.clone(), beside, ..figure }], rows, missing: vec![] })
}

/// The images that scikit-learn brings, as a file.
fn export(at: &At<'_>) -> Result<PathBuf> {
    let file = at.place.file("digits.csv");
    let path = file.display().to_string();
    let ended = child::run_quiet(&mut at.repo.command(PYTHON, &["-c", EXPORT, &path]), EXPORT_LIMIT)?;
    ensure!(ended.success(), "exporting digits: {}\n{}", ended.describe(), ended.text(Stream::Err));
    Ok(file)
}

fn figure(at: &At<'_>, number: u32, title: &str, (x, y): (&str, &str), lines: Vec<Line>) -> Figure {
    Figure {
        number: Some(number),
        title: format!("{title}, {}", at.host()),
        x: x.to_owned(),
        y: y.to_owned(),
        scale: Scale::Log,
        lines,
        rows: vec![],
        beside: Value::Null,
    }
}
