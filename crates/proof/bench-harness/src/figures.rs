//! Bench `figures`: the figures of the RaaS paper that measure RDMA (1, 2, 6 to 12), with RaaS and its rivals on one
//! device in one run. Owns which figures there are, what is written, and where; docs/proof/paper.md says what they mean.

mod atomics;
pub(crate) mod data;
mod device;
mod draw;
mod guest;
mod hosts;
mod latency;
mod resources;
mod sharing;
mod sweep;
mod throughput;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use harness::repo::Repo;
use serde_json::json;

use super::report::Findings;
use super::{Args, Wire};
use data::Figure;
use device::Device;
use guest::Left;
use hosts::Hosts;

/// Rounds of a quick run.
const ROUNDS_QUICK: u32 = 1;
/// Where drawings and data lie.
pub(crate) const FOLDER: &str = "docs/figures";

/// What `figures` alone takes.
#[derive(clap::Args, Debug)]
pub(super) struct FigureArgs {
    /// Of `figures`: what RaaS and its rivals run on; `rxe` boots a guest (docs/proof/guests.md).
    #[arg(long, value_enum, default_value = "softnic")]
    device: Device,
    /// Of `figures`: points of a line, at most; the first and the last are kept, and those that a bar is about.
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=100))]
    points: Option<u32>,
    /// Of `figures`, `programs` and `remus`: where drawings and data go, instead of docs/figures.
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
    /// Points that bars are about.
    judged: &'static [f64],
}

impl Effort {
    fn of(args: &Args) -> Self {
        let points = if args.quick { 3 } else { args.figures.device.points() };
        Self {
            rounds: args.rounds.unwrap_or(if args.quick { ROUNDS_QUICK } else { args.rounds() }),
            seconds: args.seconds.unwrap_or(args.figures.device.seconds(args.quick)),
            points: args.figures.points.map_or(points, |n| n as usize),
            judged: &[],
        }
    }

    /// For lines without a bar, on which the rounds of a bar would be wasted.
    fn few_rounds(self) -> Self {
        Self { rounds: self.rounds.div_ceil(3), ..self }
    }

    /// With the points that bars are about.
    fn judging(self, judged: &'static [f64]) -> Self {
        Self { judged, ..self }
    }

    /// As many of the points as are wanted: the first, the last, those that are judged, and others spread over all.
    fn choose(self, all: &[f64]) -> Vec<f64> {
        let Some(last) = all.len().checked_sub(1) else { return vec![] };
        let mut places: Vec<usize> = (0..=last).filter(|n| self.judged.contains(&all[*n])).chain([0, last]).collect();
        places.sort_unstable();
        places.dedup();
        let steps = self.points.clamp(2, all.len().max(2)) - 1;
        for place in (0..=steps).map(|n| n * last / steps) {
            if places.len() < self.points && !places.contains(&place) {
                places.push(place);
            }
        }
        places.sort_unstable();
        places.into_iter().map(|place| all[place]).collect()
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
fn chosen(args: &Args) -> Result<Vec<(u32, Measure)>> {
    let of_device: Vec<_> = FIGURES.into_iter().filter(|(number, _)| args.figures.device.has(*number)).collect();
    let Some(only) = args.only.as_deref() else { return Ok(of_device) };
    let numbers = of_device.iter().map(|(number, _)| number.to_string()).collect::<Vec<_>>().join(", ");
    let wanted = only.split(',').map(|word| {
        let number = word.trim().parse::<u32>().ok();
        let found = of_device.iter().find(|(n, _)| Some(*n) == number).copied();
        found.with_context(|| format!("--only {word}: no such figure; there are {numbers}"))
    });
    wanted.collect()
}

/// Refuses what cannot be, before anything is built or started.
pub(super) fn check(args: &Args) -> Result<()> {
    chosen(args)?;
    if let Some(seconds) = args.seconds {
        ensure!(seconds > 0.0 && seconds <= 60.0, "--seconds {seconds}: more than 0, and at most 60");
    }
    let is_rxe = args.figures.device == Device::Rxe;
    ensure!(!is_rxe || args.wire != Some(Wire::Iwarp), "--device rxe has the wire roce alone");
    if let Some(programs) = &args.figures.programs {
        ensure!(programs.join("raas").is_file(), "--programs {}: there is no `raas`", programs.display());
    }
    Ok(())
}

/// Whether hosts are namespaces of a namespace of this command's own.
pub(super) fn has_namespaces(args: &Args) -> bool {
    args.figures.device == Device::Softnic
}

/// In a guest that was booted for figures: measures there. False: this is no such guest.
pub(super) fn run_in_guest(args: &Args) -> Result<bool> {
    match guest::results().filter(|_| args.figures.device == Device::Rxe) {
        Some(results) => guest::inside(args, &results).map(|()| true),
        None => Ok(false),
    }
}

/// Measures the figures that are wanted, and gives each away as soon as it is done. The numbers of those that failed.
fn measure(
    hosts: &mut Hosts<'_>,
    args: &Args,
    effort: Effort,
    done: &mut dyn FnMut(u32, Figure) -> Result<()>,
) -> Result<Vec<u32>> {
    let mut failed = vec![];
    for (number, of_this) in chosen(args)? {
        let begin = std::time::Instant::now();
        match of_this(hosts, effort) {
            Ok(figure) => {
                println!("figure {number}: {:.0} s", begin.elapsed().as_secs_f64());
                done(number, figure)?;
            }
            Err(e) => {
                eprintln!("figure {number}: {e:#}");
                failed.push(number);
            }
        }
    }
    Ok(failed)
}

/// Writes figures as they come.
struct Writer<'a> {
    folder: PathBuf,
    device: Device,
    findings: &'a mut Findings,
}

impl Writer<'_> {
    fn take(&mut self, number: u32, figure: &Figure) -> Result<()> {
        write(&self.folder, &self.device.name_of(number), figure, self.device.name())?;
        self.findings.rows.extend(figure.rows.iter().cloned());
        self.findings.figures.push(json!({ "case": format!("figure {number}"), "beside": figure.beside }));
        Ok(())
    }
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let (effort, device) = (Effort::of(args), args.figures.device);
    let wire = match args.wire {
        Some(Wire::Iwarp) => "iwarp",
        _ => "roce",
    };
    let mut setting = json!({
        "device": device.name(), "wire": wire, "link": "veth", "mtu": args.mtu, "seconds": effort.seconds,
        "rounds": effort.rounds,
    });
    if device == Device::Rxe {
        setting["emulation"] = json!("qemu tcg");
    }
    let mut findings = Findings { rounds: effort.rounds, setting, ..Findings::default() };
    let mut writer = Writer { folder: folder(repo, args), device, findings: &mut findings };
    let failed = match device {
        Device::Softnic => {
            let mut hosts = Hosts::new(repo, args, wire)?;
            measure(&mut hosts, args, effort, &mut |number, figure| writer.take(number, &figure))?
        }
        Device::Rxe => {
            let Left { found, missing } = guest::outside(repo, args)?;
            if let Some((_, first)) = found.first() {
                writer.findings.setting["guest"] = first.machine.clone();
            }
            found.iter().try_for_each(|(number, handed)| writer.take(*number, &handed.figure))?;
            missing
        }
    };
    findings.failed.extend(failed.iter().map(|number| format!("figure {number} could not be measured")));
    Ok(findings)
}

/// Under which name the results are kept.
pub(super) fn name(args: &Args) -> &'static str {
    match args.figures.device {
        Device::Softnic => "figures",
        Device::Rxe => "figures-rxe",
    }
}

/// The folder of drawings and data of a bench. Quick figures, and those of other settings, do not take the place of
/// others.
pub(crate) fn folder(repo: &Repo, args: &Args) -> PathBuf {
    match &args.figures.out {
        Some(out) => out.clone(),
        None if args.quick || args.lane_only => repo.target.join("figures"),
        None => repo.root.join(FOLDER),
    }
}

/// Writes a figure's drawing and medians under this name; `below` stands with the points.
pub(crate) fn write(folder: &Path, name: &str, figure: &Figure, below: &str) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let put = |extension: &str, text: String| {
        let path = folder.join(format!("{name}.{extension}"));
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    put("svg", draw::svg(figure, below))?;
    put("csv", figure.to_csv())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_points_keep_both_ends_and_what_is_judged() {
        let effort = |points| Effort { rounds: 9, seconds: 1.0, points, judged: &[] };
        let all = [1.0, 3.0, 6.0, 9.0];
        assert_eq!(effort(2).choose(&all), [1.0, 9.0]);
        assert_eq!(effort(3).choose(&all), [1.0, 3.0, 9.0]);
        assert_eq!(effort(usize::MAX).choose(&all), all);
        assert_eq!(effort(2).judging(&[6.0]).choose(&all), [1.0, 6.0, 9.0]);
        assert_eq!(effort(3).choose(&[2.0]), [2.0]);
        assert_eq!(effort(2).few_rounds().rounds, 3);
    }
}
