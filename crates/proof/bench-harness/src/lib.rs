//! `cargo xtask bench`: measures against rivals in alternating rounds, writes a file with values, ratios and verdicts,
//! and prints a table. Owns the command line; each bench lives in its own module, and what figures mean stands in
//! docs/proof/benchmarks.md.
//!
//! It must never compare what was not measured in the same run. May use `harness`, `netmodel`. Order of calls: sides
//! in turn, round by round; then the verdict, then the file.

#![forbid(unsafe_code)]

mod agree;
mod connections;
mod fairness;
mod faults;
mod figures;
mod handovers;
mod idle;
mod instructions;
mod kept;
mod kernels;
mod link;
mod loads;
mod loss;
mod machine;
mod matrix;
mod measured;
mod memory;
mod nic;
mod opens;
pub mod pages;
mod peers;
mod perf;
mod place;
mod process;
mod processor;
mod programs;
mod relay;
mod remus;
mod report;
mod rivals;
mod rpc;
mod same_host;
mod sockets;
mod stats;
mod tensor;
mod threads;
mod two_hosts;

use anyhow::Result;
use clap::ValueEnum;
use harness::repo::Repo;
use std::path::PathBuf;
use std::process::ExitCode;

/// What `cargo xtask bench` takes.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to measure.
    #[arg(value_enum)]
    name: Name,
    /// Where the results go, instead of bench/results/NAME/COMMIT.json (with --quick: target/bench/NAME.json).
    #[arg(long)]
    json: Option<PathBuf>,
    /// Rounds, in each of which every side runs once; bars are judged from 9 on [default: 9, with --quick 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// A short run that shows whether all works; decides nothing.
    #[arg(long)]
    quick: bool,
    /// Seconds of one side in one round of one case.
    #[arg(long)]
    seconds: Option<f64>,
    /// Only cases whose name contains this; of `figures`, numbers such as `6` or `2,7`.
    #[arg(long)]
    only: Option<String>,
    /// Of `nic`: 1 has both ends on a veth pair in one guest, 2 has them in two guests.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    guests: u32,
    /// Of `loss`: megabits a second of the link.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate_mbit: u32,
    /// The wire of the lanes. Of `two-hosts`, by default the one that daemons take for themselves, `iwarp`; of
    /// `figures`, by default the paper's, `roce`. Of `loss`, by default both.
    #[arg(long, value_enum)]
    wire: Option<Wire>,
    /// Of `two-hosts` and `fairness`: engines of each daemon; those of `fairness` are spread by program. With more than
    /// one the results go to a folder of their own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    engines: u32,
    /// Of `two-hosts`: streams of bulk stay on the lane, and get no TCP connection of their own (docs/inside/kernel-tcp.md). Of
    /// `programs`: connections between the two hosts go over the lane (docs/use/run.md).
    #[arg(long)]
    lane_only: bool,
    /// Of `two-hosts`: the lanes are encrypted (docs/operate/encryption.md), and so are all streams, beside other daemons
    /// whose streams go over lanes in the clear.
    #[arg(long)]
    encrypt: bool,
    /// Of `two-hosts`, `connections` and `loss`: MTU of the link; 1500 gives packets of 1024 bytes, 4200 of 4096.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=9000))]
    mtu: u32,
    #[command(flatten)]
    figures: figures::FigureArgs,
    #[command(flatten)]
    programs: programs::ProgramArgs,
}

/// What carries the lanes of two software NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wire {
    /// RoCEv2 over UDP.
    Roce,
    /// iWARP over TCP.
    Iwarp,
}

/// Rounds of a full and of a quick run.
const ROUNDS: [u32; 2] = [9, 3];
/// Seconds of one side in one round, unless a bench has its own.
const SECONDS: f64 = 0.6;
/// The same of a quick run.
const SECONDS_QUICK: f64 = 0.2;

impl Args {
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(ROUNDS[usize::from(self.quick)])
    }

    fn seconds(&self, full: f64) -> f64 {
        self.seconds.unwrap_or(if self.quick { SECONDS_QUICK } else { full })
    }

    fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|only| case.contains(only.as_str()))
    }
}

/// The benches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Replicated groups beside openraft and etcd.
    Agree,
    /// The software NIC against kernel rxe, in a guest.
    Nic,
    /// What applications wait when something fails.
    Faults,
    /// Two processes of one host against kernel sockets, UCX and libfabric.
    SameHost,
    /// Two network namespaces against kernel TCP, UCX and libfabric.
    TwoHosts,
    /// Many connections beside a few, beside a queue pair for each, and what a resting one costs.
    Connections,
    /// Sleeps, yields and wakes of a transfer: who switches, and who wakes whom.
    Handovers,
    /// A program with one connection beside one that floods 1,000.
    Fairness,
    /// Processor time of daemons that nobody uses.
    Idle,
    /// One daemon with up to 200 others.
    Peers,
    /// Streams over a link that loses and delays packets, beside kernel TCP with cubic and with bbr.
    Loss,
    /// Instructions for a message and for a packet, by callgrind.
    Instructions,
    /// Programs that nobody changed, under `raas run` and on kernel TCP.
    Programs,
    /// Structures and locks in the memory of two hosts, beside simpler ones.
    Remus,
    /// A lookup in a chain by a kernel, beside READs.
    Kernels,
    /// A tensor of another program of the host, by reference and with a copy.
    Tensor,
    /// Calls over each transport of `raas-rpc`, beside gRPC.
    Rpc,
    /// The figures of the RaaS paper, beside native verbs.
    Figures,
}

/// Runs the bench. The exit code says whether it was measured, not whether bars were met.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !place::is_in_namespace() {
        // Here is a network, from which packages come.
        match args.name {
            Name::Agree => agree::install(),
            Name::Programs => programs::install(args),
            Name::SameHost | Name::TwoHosts => rivals::install(),
            _ => {}
        }
    }
    if args.name == Name::Figures {
        figures::check(args)?;
    }
    if args.name == Name::Figures && figures::run_in_guest(args)? {
        return Ok(ExitCode::SUCCESS);
    }
    let has_namespace = matches!(
        args.name,
        Name::Agree
            | Name::Programs
            | Name::TwoHosts
            | Name::Connections
            | Name::Fairness
            | Name::Idle
            | Name::Loss
            | Name::Handovers
    ) || (args.name == Name::Figures && figures::has_namespaces(args));
    if has_namespace && let Some(status) = place::enter_namespace()? {
        return Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)));
    }
    let repo = Repo::open()?;
    let origin = report::Origin::now(&repo)?;
    let _first = SessionFirst::begin();
    let (name, findings) = match args.name {
        Name::Agree => ("agree".to_owned(), agree::run(&repo, args)?),
        Name::Nic => (if args.guests == 2 { "nic-two-guests" } else { "nic" }.to_owned(), nic::run(&repo, args)?),
        Name::Faults => ("faults".to_owned(), faults::run(&repo, args)?),
        Name::SameHost => ("same-host".to_owned(), same_host::run(&repo, args)?),
        Name::TwoHosts => (two_hosts_name(args), two_hosts::run(&repo, args)?),
        Name::Connections => ("connections".to_owned(), connections::run(&repo, args)?),
        Name::Fairness => (format!("fairness{}", engines_name(args)), fairness::run(&repo, args)?),
        Name::Idle => ("idle".to_owned(), idle::run(&repo, args)?),
        Name::Handovers => ("handovers".to_owned(), handovers::run(&repo, args)?),
        Name::Peers => ("peers".to_owned(), peers::run(&repo, args)?),
        Name::Loss => ("loss".to_owned(), loss::run(&repo, args)?),
        Name::Programs => (programs_name(args).to_owned(), programs::run(&repo, args)?),
        Name::Instructions => ("instructions".to_owned(), instructions::run(&repo, args)?),
        Name::Kernels => ("kernels".to_owned(), kernels::run(&repo, args)?),
        Name::Remus => ("remus".to_owned(), remus::run(&repo, args)?),
        Name::Tensor => ("tensor".to_owned(), tensor::run(&repo, args)?),
        Name::Rpc => ("rpc".to_owned(), rpc::run(&repo, args)?),
        Name::Figures => (figures::name(args).to_owned(), figures::run(&repo, args)?),
    };
    let quick = repo.target.join("bench").join(format!("{name}.json"));
    let elsewhere = args.json.as_deref().or(args.quick.then_some(&quick));
    let what = report::Measured { name: &name, command: &command(args), is_part: is_part(args) };
    let path = origin.write(&repo, &what, &findings, elsewhere)?;
    print!("\n{}", report::table(&findings));
    println!("{}", repo.relative(&path).display());
    Ok(if findings.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether only some of the cases are wanted.
fn is_part(args: &Args) -> bool {
    args.only.is_some() || (args.name == Name::Loss && args.wire.is_some())
}

/// The command that measures what is kept under one name.
fn command(args: &Args) -> String {
    let name = args.name.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let is_wire = args.name == Name::TwoHosts && args.wire == Some(Wire::Roce);
    let is_rxe = args.name == Name::Figures && figures::name(args) != name;
    let words = [
        (is_wire, " --wire roce".to_owned()),
        (args.lane_only && !is_wire, " --lane-only".to_owned()),
        (args.encrypt, " --encrypt".to_owned()),
        (args.engines > 1, format!(" --engines {}", args.engines)),
        (args.name == Name::Nic && args.guests == 2, " --guests 2".to_owned()),
        (is_rxe, " --device rxe".to_owned()),
    ];
    let words: String = words.into_iter().filter(|(is_said, _)| *is_said).map(|(_, word)| word).collect();
    format!("cargo xtask bench {name}{words}")
}

/// Connections of `raas run` that go over the lane are measured apart.
fn programs_name(args: &Args) -> &'static str {
    if args.lane_only { "programs-lane" } else { "programs" }
}

/// Under which name the results of `two-hosts` are kept.
fn two_hosts_name(args: &Args) -> String {
    let wire = if args.wire == Some(Wire::Roce) { "-roce" } else { "" };
    let direct = match (args.encrypt, args.lane_only && args.wire != Some(Wire::Roce)) {
        (true, _) => "-encrypted",
        (false, true) => "-lane",
        (false, false) => "",
    };
    format!("two-hosts{wire}{direct}{}", engines_name(args))
}

/// Results with several engines are kept apart.
fn engines_name(args: &Args) -> String {
    if args.engines > 1 { format!("-engines-{}", args.engines) } else { String::new() }
}

/// How far ahead of other work a measured program runs where that is allowed.
const PRIORITY: &str = "-20";

/// The command with priority over other work of this machine, because a side that waits for a processor measures that
/// work. Without the right to do so, the command as it is.
fn with_priority<'w>(words: &[&'w str]) -> Vec<&'w str> {
    let mut all = vec![];
    if rustix::process::geteuid().is_root() {
        all.extend(["nice", "-n", PRIORITY]);
    }
    all.extend(words);
    all
}

/// A command that [`with_priority`] starts, and that takes the priority back: of what is to be measured as other work of
/// the machine is.
fn without_priority(words: Vec<String>) -> Vec<String> {
    let back = if rustix::process::geteuid().is_root() { &["nice", "-n", "20"][..] } else { &[] };
    back.iter().map(|word| (*word).to_owned()).chain(words).collect()
}

/// While it lives, this session's processes together go before those of other sessions; where the kernel groups
/// processes by session, their own priorities do not reach beyond it.
#[derive(Debug)]
struct SessionFirst {
    /// The session's priority before, if it was changed.
    before: Option<String>,
}

/// The session's priority.
const AUTOGROUP: &str = "/proc/self/autogroup";

impl SessionFirst {
    fn begin() -> Self {
        let text = std::fs::read_to_string(AUTOGROUP).unwrap_or_default();
        // The line reads `/autogroup-N nice P`.
        let before = text.split_whitespace().last().map(str::to_owned);
        let changed = before.is_some() && std::fs::write(AUTOGROUP, PRIORITY).is_ok();
        Self { before: before.filter(|_| changed) }
    }
}

impl Drop for SessionFirst {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // What was allowed a moment ago, or else the session stays ahead, which spoils nothing but fairness.
            let _ = std::fs::write(AUTOGROUP, before);
        }
    }
}
