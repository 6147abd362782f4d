//! Runs the conformance suite where a foreign stack is the judge: kernel rxe through libibverbs, and the software NIC
//! against rxe over a link that loses, duplicates and reorders by a seed.
//!
//! It needs root, the modules rdma_rxe and tun, and rdma-core, so it runs in the test VM:
//! `cargo xtask vm -- target/debug/interop all`. Each case is one line, the last line is `N passed, N failed, N skipped`.
#![forbid(unsafe_code)]

mod link;
mod relay;
mod rigs;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use conformance::{CASES, Case, Report, Rig, Side, run_all};

use crate::link::{Family, Link};
use crate::relay::Faults;

/// Which providers meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Who {
    /// Two software NICs over loopback.
    Softnic,
    /// rxe with itself.
    Rxe,
    /// The software NIC requests, rxe responds.
    SoftnicToRxe,
    /// rxe requests, the software NIC responds.
    RxeToSoftnic,
    /// Everything, over both address families and both MTUs, without and with faults.
    All,
}

#[derive(Debug, Parser)]
#[command(about = "The conformance suite with a foreign judge")]
struct Options {
    /// Which providers meet.
    who: Who,
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
    let runs = match options.who {
        Who::All => matrix(&options),
        _ => vec![Run::of(&options)],
    };
    let (mut passed, mut failed, mut differs) = (0, 0, 0);
    for run in runs {
        println!("# {}", run.title());
        let report = run.report(&options)?;
        for line in report.to_string().lines() {
            println!("{line}");
        }
        let counts = report.counts();
        (passed, failed, differs) = (passed + counts.0, failed + counts.1, differs + counts.2);
    }
    println!("{differs} cases differ as documented");
    println!("{passed} passed, {failed} failed, 0 skipped");
    std::process::exit(i32::from(failed > 0));
}

/// One pass over the suite.
#[derive(Debug, Clone)]
struct Run {
    who: Who,
    family: Family,
    mtu: u32,
    faults: Faults,
}

fn matrix(options: &Options) -> Vec<Run> {
    let clean = Faults::none(options.seed);
    let faulty = Faults::per_mille(options.seed, 10);
    let mut runs = vec![Run { who: Who::Rxe, family: Family::V4, mtu: 1500, faults: clean }];
    for who in [Who::SoftnicToRxe, Who::RxeToSoftnic] {
        for (family, mtu, faults) in [
            (Family::V4, 1500, clean),
            (Family::V6, 4200, clean),
            (Family::V4, 4200, faulty),
            (Family::V6, 1500, faulty),
        ] {
            runs.push(Run { who, family, mtu, faults });
        }
    }
    runs
}

impl Run {
    fn of(o: &Options) -> Self {
        Self { who: o.who, family: o.family, mtu: o.mtu, faults: Faults::per_mille(o.seed, o.faults) }
    }

    fn title(&self) -> String {
        format!("{:?} {:?} mtu {} {}", self.who, self.family, self.mtu, self.faults)
    }

    fn report(&self, options: &Options) -> Result<Report> {
        let only = options.only.as_deref().unwrap_or_default();
        let cases: Vec<Case> = CASES.iter().copied().filter(|c| c.name.contains(only)).collect();
        if self.who == Who::Softnic {
            return Ok(run_each(&cases, rigs::softnic_pair));
        }
        let capture = options.pcap.as_ref().map(|folder| {
            folder.join(format!("{:?}-{:?}-{}-{}.pcap", self.who, self.family, self.mtu, self.faults.loss_per_mille))
        });
        let link = Link::up(self.family, self.mtu, self.faults, capture)?;
        let report = match self.who {
            Who::Rxe => run_each(&cases, || rigs::rxe_pair(&link)),
            Who::RxeToSoftnic => run_each(&cases, || rigs::mixed(&link, Side::B, self.faults.any())),
            _ => run_each(&cases, || rigs::mixed(&link, Side::A, self.faults.any())),
        };
        println!("# link: {}", link.summary());
        Ok(report)
    }
}

fn run_each<R: Rig>(cases: &[Case], make: impl Fn() -> R) -> Report {
    run_all(cases, make)
}
