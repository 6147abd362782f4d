//! Bench `figures`: the figures of the RaaS paper that measure RDMA (1, 2, 6 to 12), with RaaS and its rivals on one
//! device in one run. Owns which figures there are, what is written, and where; docs/figures.md says what they mean.

mod atomics;
pub(crate) mod data;
mod draw;
mod hosts;
mod latency;
mod page;
mod resources;
mod sharing;
mod sweep;
mod throughput;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use harness::repo::Repo;
use serde_json::{Value, json};

use super::report::{Findings, Origin};
use super::{Args, Wire};
use data::Figure;
use hosts::Hosts;

/// Seconds of one side at one point in one round.
const SECONDS: f64 = 0.25;
/// The same of a quick run.
const SECONDS_QUICK: f64 = 0.1;
/// Rounds of a quick run.
const ROUNDS_QUICK: u32 = 1;
/// The device under RaaS and under its rivals.
const DEVICE: &str = "softnic";
/// Where drawings and data lie, and the page about them.
const FOLDER: &str = "docs/figures";
const PAGE: &str = "docs/figures.md";

/// What `figures` alone takes.
#[derive(clap::Args, Debug)]
pub(super) struct FigureArgs {
    /// Of `figures`: points of a line, at most; the first and the last are kept.
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=100))]
    points: Option<u32>,
    /// Of `figures`: where drawings and data go, instead of docs/figures; then docs/figures.md stays as it is.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Of `figures`: where the measured programs lie, built already.
    #[arg(long)]
    programs: Option<PathBuf>,
}

/// How long, how often, and at how many points.
#[derive(Debug, Clone, Copy)]
struct Effort {
    rounds: u32,
    seconds: f64,
    points: usize,
}

impl Effort {
    fn of(args: &Args) -> Self {
        let quick = if args.quick { SECONDS_QUICK } else { SECONDS };
        Self {
            rounds: args.rounds.unwrap_or(if args.quick { ROUNDS_QUICK } else { args.rounds() }),
            seconds: args.seconds.unwrap_or(quick),
            points: args.figures.points.map_or(if args.quick { 3 } else { usize::MAX }, |n| n as usize),
        }
    }

    /// For lines without a bar, on which the rounds of a bar would be wasted.
    fn few_rounds(self) -> Self {
        Self { rounds: self.rounds.div_ceil(3), ..self }
    }

    /// As many of the points as are wanted: spread over all, the first and the last among them.
    fn choose(self, all: &[f64]) -> Vec<f64> {
        if all.len() <= self.points {
            return all.to_vec();
        }
        let last = self.points.max(2) - 1;
        (0..=last).map(|n| all[n * (all.len() - 1) / last]).collect()
    }
}

/// A figure's number, and what measures it.
type Measure = fn(&mut Hosts, Effort) -> Result<Figure>;
const FIGURES: [(u32, Measure); 9] = [
    (1, throughput::operations),
    (2, sharing::small_reads),
    (6, throughput::connections),
    (7, sharing::large_reads),
    (8, resources::memory),
    (9, resources::processor),
    (10, throughput::cluster),
    (11, latency::by_size),
    (12, atomics::by_counters),
];
/// The figures that are wanted.
fn chosen(only: Option<&str>) -> Result<Vec<(u32, Measure)>> {
    let Some(only) = only else { return Ok(FIGURES.to_vec()) };
    let numbers = FIGURES.map(|(number, _)| number.to_string()).join(", ");
    let wanted = only.split(',').map(|word| {
        let number = word.trim().parse::<u32>().ok();
        let found = FIGURES.iter().find(|(n, _)| Some(*n) == number).copied();
        found.with_context(|| format!("--only {word}: no such figure; there are {numbers}"))
    });
    wanted.collect()
}

/// Refuses what cannot be, before anything is built or started.
pub(super) fn check(args: &Args) -> Result<()> {
    chosen(args.only.as_deref())?;
    if let Some(seconds) = args.seconds {
        ensure!(seconds > 0.0 && seconds <= 60.0, "--seconds {seconds}: more than 0, and at most 60");
    }
    if let Some(programs) = &args.figures.programs {
        ensure!(programs.join("raas").is_file(), "--programs {}: there is no `raas`", programs.display());
    }
    Ok(())
}

pub(super) fn run(repo: &Repo, args: &Args, origin: &Origin) -> Result<Findings> {
    let effort = Effort::of(args);
    let wire = match args.wire {
        Some(Wire::Iwarp) => "iwarp",
        _ => "roce",
    };
    let setting = json!({
        "device": DEVICE, "wire": wire, "link": "veth", "mtu": args.mtu, "seconds": effort.seconds,
        "rounds": effort.rounds,
    });
    let context = json!({ "setting": setting, "machine": origin.machine(), "commit": origin.commit() });
    let mut findings = Findings { rounds: effort.rounds, setting, ..Findings::default() };
    let mut hosts = Hosts::new(repo, args, wire)?;
    let mut failed = vec![];
    let mut figures = vec![];
    for (number, measure) in chosen(args.only.as_deref())? {
        let begin = std::time::Instant::now();
        match measure(&mut hosts, effort) {
            Ok(figure) => {
                println!("figure {number}: {:.0} s", begin.elapsed().as_secs_f64());
                write(&folder(repo, args), &page::name(number), &figure, DEVICE, &context)?;
                findings.rows.extend(figure.rows.iter().cloned());
                findings.figures.push(json!({ "figure": number, "beside": figure.beside }));
                figures.push((page::name(number), figure));
            }
            Err(e) => {
                eprintln!("figure {number}: {e:#}");
                failed.push(number);
            }
        }
    }
    if args.figures.out.is_none() && !args.quick {
        let blocks = figures.iter().map(|(name, figure)| (name.clone(), page::block(figure, name, &context)));
        page::update(&repo.root.join(PAGE), &blocks.collect::<BTreeMap<_, _>>())?;
    }
    ensure!(failed.is_empty(), "figures {failed:?} could not be measured; the others are written");
    Ok(findings)
}

/// The folder of drawings and data of a bench. Quick figures do not take the place of others.
pub(crate) fn folder(repo: &Repo, args: &Args) -> PathBuf {
    match &args.figures.out {
        Some(out) => out.clone(),
        None if args.quick => repo.target.join("figures"),
        None => repo.root.join(FOLDER),
    }
}

/// Writes a figure's drawing, values and medians under this name; `below` stands with the points.
pub(crate) fn write(folder: &Path, name: &str, figure: &Figure, below: &str, context: &Value) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let put = |extension: &str, text: String| {
        let path = folder.join(format!("{name}.{extension}"));
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    put("svg", draw::svg(figure, below)?)?;
    put("csv", figure.to_csv())?;
    put("json", format!("{:#}\n", figure.to_json(context)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_chosen_by_number_and_others_are_refused() {
        let numbers = |only| -> Result<Vec<u32>> { Ok(chosen(only)?.into_iter().map(|(number, _)| number).collect()) };
        assert_eq!(numbers(None).expect("all"), [1, 2, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(numbers(Some("12, 6")).expect("two"), [12, 6]);
        for only in ["5", "x", ""] {
            let told = numbers(Some(only)).expect_err("it is refused").to_string();
            assert!(told.contains("there are 1, 2, 6, 7"), "{told}");
        }
    }

    #[test]
    fn fewer_points_keep_both_ends() {
        let effort = |points| Effort { rounds: 9, seconds: 1.0, points };
        let all = [1.0, 3.0, 6.0, 9.0];
        assert_eq!(effort(2).choose(&all), [1.0, 9.0]);
        assert_eq!(effort(3).choose(&all), [1.0, 3.0, 9.0]);
        assert_eq!(effort(usize::MAX).choose(&all), all);
        assert_eq!(effort(2).few_rounds().rounds, 3);
    }
}
