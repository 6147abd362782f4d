//! Runs the conformance suite where a foreign stack is the judge: kernel rxe through libibverbs, and the software NIC
//! against rxe over a link that loses, duplicates and reorders by a seed.
//!
//! It needs root, the modules rdma_rxe and tun, and rdma-core, so it runs in the test VM:
//! `cargo xtask vm -- target/debug/interop all`. Each case is one line, `PASS run/case` or
//! `FAIL run/case: what was seen`; a case in which rxe differs as the table of differences says passes, and its line
//! says why.
//!
//! Owns the runs in a guest, and the table of differences. It must never excuse a difference that is not seen. May
//! use `conformance`, `iwarp`, `rdmacore`, `rnic`, `softnic`, `tap`, `verbs`. Order of calls: none: it is a program.
#![forbid(unsafe_code)]

mod differences;
mod link;
mod relay;
mod rigs;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use conformance::{CASES, Case, Report, Rig, Side, Verdict, run_all};

use crate::link::{Family, Link};
use crate::relay::Faults;

/// Which providers meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pairing {
    /// Two software NICs over loopback.
    Softnic,
    /// The same over TCP.
    SoftnicTcp,
    /// rxe with itself.
    Rxe,
    /// The software NIC requests, rxe responds.
    SoftnicToRxe,
    /// rxe requests, the software NIC responds.
    RxeToSoftnic,
    /// Both directions, each with every second case: one over IPv4 with short packets and faults, the other over IPv6 with
    /// long packets and none.
    All,
    /// rxe with itself, and both directions with each of these beside each other.
    Thorough,
}

#[derive(Debug, Parser)]
#[command(about = "The conformance suite with a foreign judge")]
struct Options {
    /// Which providers meet.
    pairing: Pairing,
    /// Run only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Address family of the link.
    #[arg(long, value_enum, default_value = "v4")]
    family: Family,
    /// MTU of the link's interfaces in bytes; the path MTU follows: 1500 gives 1024, 4200 gives 4096.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Per mille of packets lost, and as many duplicated and reordered.
    #[arg(long, default_value_t = 0)]
    faults: u32,
    /// Seed of the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for captures of the link, one file a run.
    #[arg(long)]
    pcap: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let runs = match options.pairing {
        Pairing::All => matrix(&options, false),
        Pairing::Thorough => matrix(&options, true),
        _ => vec![Run::of(&options)],
    };
    let mut failed = false;
    for run in runs {
        let start = Instant::now();
        let report = run.report(&options)?;
        eprintln!("{}: {:.1} s", run.title(), start.elapsed().as_secs_f64());
        tell(&run.title(), &report);
        failed |= !report.failures().is_empty();
    }
    std::process::exit(i32::from(failed));
}

fn tell(run: &str, report: &Report) {
    for (case, verdict) in &report.verdicts {
        match verdict {
            Verdict::Passed => println!("PASS {run}/{case}"),
            Verdict::Differs(reason, seen) => println!("PASS {run}/{case} (differs: {seen}; {reason})"),
            Verdict::Failed(seen) => println!("FAIL {run}/{case}: {seen}"),
            Verdict::Stale(reason) => {
                println!("FAIL {run}/{case}: passes, yet stands in the table of differences ({reason})");
            }
        }
    }
}

/// One pass over the suite, or over every second case of it.
#[derive(Debug, Clone)]
struct Run {
    pairing: Pairing,
    family: Family,
    mtu: u32,
    faults: Faults,
    half: Option<Half>,
}

/// Every second case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    First,
    Second,
}

impl Half {
    fn has(self, index: usize) -> bool {
        (self == Self::First) == index.is_multiple_of(2)
    }
}

fn matrix(options: &Options, thorough: bool) -> Vec<Run> {
    let clean = Faults::none(options.seed);
    let faulty = Faults::per_mille(options.seed, 10);
    let alone = Run { pairing: Pairing::Rxe, family: Family::V4, mtu: 1500, faults: clean, half: None };
    let mut runs = if thorough { vec![alone] } else { vec![] };
    for (pairing, chosen, half) in [
        (Pairing::SoftnicToRxe, (Family::V4, 1500, faulty), Half::First),
        (Pairing::RxeToSoftnic, (Family::V6, 4200, clean), Half::Second),
    ] {
        let half = (!thorough).then_some(half);
        let each = [Family::V4, Family::V6].into_iter().flat_map(|family| {
            [(1500, clean), (1500, faulty), (4200, clean), (4200, faulty)].map(|(m, f)| (family, m, f))
        });
        let links: Vec<_> = if thorough { each.collect() } else { vec![chosen] };
        runs.extend(links.into_iter().map(|(family, mtu, faults)| Run { pairing, family, mtu, faults, half }));
    }
    runs
}

impl Run {
    fn of(o: &Options) -> Self {
        let faults = Faults::per_mille(o.seed, o.faults);
        Self { pairing: o.pairing, family: o.family, mtu: o.mtu, faults, half: None }
    }

    fn title(&self) -> String {
        let pairing = self.pairing.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string());
        format!("{pairing}-{:?}-mtu{}-{}", self.family, self.mtu, self.faults).to_lowercase()
    }

    fn report(&self, options: &Options) -> Result<Report> {
        let only = options.only.as_deref().unwrap_or_default();
        let due = |index: usize| self.half.is_none_or(|half| half.has(index));
        let cases = CASES.iter().copied().enumerate().filter(|(index, _)| due(*index)).map(|(_, case)| case);
        let cases: Vec<Case> = cases.filter(|case| case.name.contains(only)).collect();
        if self.pairing == Pairing::Softnic {
            return Ok(run_each(&cases, rigs::softnic_pair));
        }
        if self.pairing == Pairing::SoftnicTcp {
            return Ok(run_each(&cases, rigs::softnic_pair_on_tcp));
        }
        let capture = options.pcap.as_ref().map(|folder| folder.join(format!("{}.pcap", self.title())));
        let link = Link::up(self.family, self.mtu, self.faults, capture)?;
        let report = match self.pairing {
            Pairing::Rxe => run_each(&cases, || rigs::rxe_pair(&link)),
            Pairing::RxeToSoftnic => run_each(&cases, || rigs::mixed(&link, Side::B, self.faults.any())),
            _ => run_each(&cases, || rigs::mixed(&link, Side::A, self.faults.any())),
        };
        eprintln!("{}: {}", self.title(), link.summary());
        Ok(report)
    }
}

fn run_each<R: Rig>(cases: &[Case], make: impl Fn() -> R) -> Report {
    run_all(cases, make)
}
