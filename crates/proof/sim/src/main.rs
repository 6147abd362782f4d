//! `sim`: runs seeds. Exit code 0 if every promise held, 5 if one did not, 2 for a wrong command line.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use serde::Serialize;
use sim::{Outcome, Trace, run_crowd, run_seed, trace_crowd, trace_seed};

/// A promise did not hold.
const BROKEN: u8 = 5;

/// Whole hosts in virtual time, from a seed.
#[derive(Parser, Debug)]
#[command(name = "sim")]
struct Args {
    /// The seed, or the first of several.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds to run, one after the other; the first that breaks a promise ends it.
    #[arg(long)]
    count: Option<u64>,
    /// Start no further seed after so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Stop each run after so many events.
    #[arg(long)]
    steps: Option<u64>,
    /// Seeds run at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: u64,
    /// Runs of so many hosts, in place of plans of a few hosts with all kinds of faults.
    #[arg(long, value_parser = clap::value_parser!(u64).range(8..=100_000))]
    hosts: Option<u64>,
    /// Write the trace even if every promise holds.
    #[arg(long)]
    trace: bool,
    /// One JSON object in place of words.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn run(&self, seed: u64) -> Outcome {
        match self.hosts {
            Some(hosts) => run_crowd(seed, hosts as usize, self.steps),
            None => run_seed(seed, self.steps),
        }
    }
}

/// What several seeds came to.
#[derive(Debug, Serialize)]
struct Sweep {
    #[serde(flatten)]
    outcome: Outcome,
    first_seed: u64,
    count: u64,
    seconds: f64,
    seeds_per_second: f64,
    virtual_seconds: f64,
    total_steps: u64,
    total_connections: u64,
    total_bytes_checked: u64,
    total_failures: BTreeMap<&'static str, u64>,
    total_datagrams_sent: u64,
    total_datagrams_taken: u64,
    total_datagram_drops: BTreeMap<&'static str, u64>,
    total_sockets_returned: u64,
    total_datagrams_taken_after_return: u64,
    /// Operations on regions that ended with what they did, those of which nobody knows, and those that did nothing.
    total_operations: u64,
    total_operations_unknown: u64,
    total_operations_refused: u64,
    total_words_undecided: u64,
    /// Regions that went on with the next daemon, and handles that went on by another one.
    total_regions_returned: u64,
    total_handles_reopened: u64,
    total_ends_met: u64,
    total_ends_on_tcp: u64,
    /// Messages that could be lost: sent, and received.
    total_messages_sent: u64,
    total_messages_received: u64,
    /// How often what seeds draw came to pass.
    total_drawn: BTreeMap<&'static str, u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(BROKEN),
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<bool> {
    if args.count.is_some() || args.seconds.is_some() {
        return sweep(args);
    }
    let mut outcome = args.run(args.seed);
    write_trace(args, &mut outcome)?;
    print(args, &outcome, &outcome)?;
    Ok(outcome.violations.is_empty())
}

/// Runs the seed again with its trace, if that is wanted.
fn write_trace(args: &Args, outcome: &mut Outcome) -> anyhow::Result<()> {
    if outcome.violations.is_empty() && !args.trace {
        return Ok(());
    }
    let path = Trace::path(outcome.seed);
    let again = match args.hosts {
        Some(hosts) => trace_crowd(outcome.seed, hosts as usize, args.steps, &path),
        None => trace_seed(outcome.seed, args.steps, &path),
    };
    let again = again.with_context(|| format!("cannot write the trace {}", path.display()))?;
    if again.trace_hash != outcome.trace_hash {
        eprintln!("sim: seed {} did something else the second time: the simulation is not deterministic", outcome.seed);
    }
    outcome.trace_file = again.trace_file;
    Ok(())
}

fn sweep(args: &Args) -> anyhow::Result<bool> {
    let start = Instant::now();
    let count = args.count.unwrap_or(u64::MAX);
    let end = args.seconds.map(|s| start + Duration::from_secs(s));
    let next = AtomicU64::new(0);
    let lowest_bad = AtomicU64::new(u64::MAX);
    let outcomes: Vec<Totals> = std::thread::scope(|scope| {
        let work = || {
            let mut totals = Totals::default();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                // Lower seeds than a bad one are still run, so that the first bad one is the same with any `jobs`.
                let late = end.is_some_and(|end| Instant::now() >= end);
                if index >= count || index > lowest_bad.load(Ordering::Relaxed) || (late && index > 0) {
                    return totals;
                }
                let outcome = args.run(args.seed.wrapping_add(index));
                if !outcome.violations.is_empty() {
                    lowest_bad.fetch_min(index, Ordering::Relaxed);
                }
                totals.add(outcome);
            }
        };
        let threads: Vec<_> = (0..args.jobs).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    let mut totals = Totals::default();
    outcomes.into_iter().for_each(|t| totals.merge(t));
    let mut outcome = totals.worst.or(totals.last).context("no seed was run")?;
    write_trace(args, &mut outcome)?;
    let seconds = start.elapsed().as_secs_f64();
    let sweep = Sweep {
        first_seed: args.seed,
        count: totals.count,
        seconds,
        seeds_per_second: totals.count as f64 / seconds,
        virtual_seconds: totals.virtual_ns as f64 / 1e9,
        total_steps: totals.steps,
        total_connections: totals.connections,
        total_bytes_checked: totals.bytes_checked,
        total_failures: totals.failures,
        total_datagrams_sent: totals.datagrams.0,
        total_datagrams_taken: totals.datagrams.1,
        total_datagram_drops: totals.datagram_drops,
        total_sockets_returned: totals.returned.0,
        total_datagrams_taken_after_return: totals.returned.1,
        total_operations: totals.operations[0],
        total_operations_unknown: totals.operations[1],
        total_operations_refused: totals.operations[2],
        total_words_undecided: totals.operations[3],
        total_regions_returned: totals.operations[4],
        total_handles_reopened: totals.operations[5],
        total_ends_met: totals.operations[6],
        total_ends_on_tcp: totals.operations[7],
        total_messages_sent: totals.operations[8],
        total_messages_received: totals.operations[9],
        total_drawn: totals.drawn,
        outcome,
    };
    print(args, &sweep, &sweep.outcome)?;
    if !args.json {
        println!(
            "{} seeds from {} in {:.1} s, {:.1} a second: {:.0} virtual seconds, {} events, {} connections, {} bytes \
             checked; failures, each with a cause: {:?}; {} datagrams sent, {} taken, drops: {:?}; \
             {} sockets came back, and took {} datagrams afterwards; {} operations on regions, and {} of which nobody knows, \
             {} refused, {} words undecided; {} regions came back, and {} handles went on; {} ends of TCP connections met, \
             and {} stayed; {} messages that could be lost were sent, and {} came; {:?}",
            sweep.count,
            sweep.first_seed,
            sweep.seconds,
            sweep.seeds_per_second,
            sweep.virtual_seconds,
            sweep.total_steps,
            sweep.total_connections,
            sweep.total_bytes_checked,
            sweep.total_failures,
            sweep.total_datagrams_sent,
            sweep.total_datagrams_taken,
            sweep.total_datagram_drops,
            sweep.total_sockets_returned,
            sweep.total_datagrams_taken_after_return,
            sweep.total_operations,
            sweep.total_operations_unknown,
            sweep.total_operations_refused,
            sweep.total_words_undecided,
            sweep.total_regions_returned,
            sweep.total_handles_reopened,
            sweep.total_ends_met,
            sweep.total_ends_on_tcp,
            sweep.total_messages_sent,
            sweep.total_messages_received,
            sweep.total_drawn,
        );
    }
    Ok(sweep.outcome.violations.is_empty())
}

#[derive(Debug, Default)]
struct Totals {
    count: u64,
    steps: u64,
    virtual_ns: u64,
    connections: u64,
    bytes_checked: u64,
    failures: BTreeMap<&'static str, u64>,
    /// Sent and taken.
    datagrams: (u64, u64),
    datagram_drops: BTreeMap<&'static str, u64>,
    /// Datagram sockets that went on with the next daemon, and what they took of it.
    returned: (u64, u64),
    /// Operations on regions: done, not known, refused; words of which the judge does not know; regions and handles that
    /// went on; ends of TCP connections; messages that could be lost.
    operations: [u64; 10],
    drawn: BTreeMap<&'static str, u64>,
    /// The lowest seed with a violation.
    worst: Option<Outcome>,
    last: Option<Outcome>,
}

impl Totals {
    fn add(&mut self, outcome: Outcome) {
        self.count += 1;
        self.steps += outcome.steps;
        self.virtual_ns += outcome.virtual_ns;
        self.connections += outcome.connections;
        self.bytes_checked += outcome.bytes_checked;
        outcome.failures.iter().for_each(|(k, n)| *self.failures.entry(k).or_default() += n);
        self.datagrams.0 += outcome.datagrams_sent;
        self.datagrams.1 += outcome.datagrams_taken;
        self.returned.0 += outcome.sockets_returned;
        self.returned.1 += outcome.datagrams_taken_after_return;
        self.add_operations([
            outcome.operations,
            outcome.operations_unknown,
            outcome.operations_refused,
            outcome.words_undecided,
            outcome.regions_returned,
            outcome.handles_reopened,
            outcome.ends_met,
            outcome.ends_on_tcp,
            outcome.messages_sent,
            outcome.messages_received,
        ]);
        outcome.datagram_drops.iter().for_each(|(k, n)| *self.datagram_drops.entry(k).or_default() += n);
        outcome.drawn.iter().for_each(|(k, n)| *self.drawn.entry(k).or_default() += n);
        self.keep(outcome);
    }

    fn add_operations(&mut self, operations: [u64; 10]) {
        self.operations.iter_mut().zip(operations).for_each(|(sum, more)| *sum += more);
    }

    fn keep(&mut self, outcome: Outcome) {
        if outcome.violations.is_empty() {
            if self.last.as_ref().is_none_or(|l| l.seed < outcome.seed) {
                self.last = Some(outcome);
            }
        } else if self.worst.as_ref().is_none_or(|w| outcome.seed < w.seed) {
            self.worst = Some(outcome);
        }
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.steps += other.steps;
        self.virtual_ns += other.virtual_ns;
        self.connections += other.connections;
        self.bytes_checked += other.bytes_checked;
        other.failures.iter().for_each(|(k, n)| *self.failures.entry(k).or_default() += n);
        self.datagrams.0 += other.datagrams.0;
        self.datagrams.1 += other.datagrams.1;
        self.returned.0 += other.returned.0;
        self.returned.1 += other.returned.1;
        self.add_operations(other.operations);
        other.drawn.iter().for_each(|(k, n)| *self.drawn.entry(k).or_default() += n);
        other.datagram_drops.iter().for_each(|(k, n)| *self.datagram_drops.entry(k).or_default() += n);
        other.worst.into_iter().chain(other.last).for_each(|o| self.keep(o));
    }
}

fn print(args: &Args, json: &impl Serialize, outcome: &Outcome) -> anyhow::Result<()> {
    if args.json {
        println!("{}", serde_json::to_string(json)?);
        return Ok(());
    }
    if args.count.is_none() && args.seconds.is_none() || !outcome.violations.is_empty() {
        let verdict = if outcome.violations.is_empty() { "every promise held" } else { "BROKEN" };
        println!(
            "seed {}: {verdict}; {} events, {:.3} virtual seconds, {} connections, {} bytes checked, {} packets ({} lost), \
             trace hash {}",
            outcome.seed,
            outcome.steps,
            outcome.virtual_ns as f64 / 1e9,
            outcome.connections,
            outcome.bytes_checked,
            outcome.packets,
            outcome.packets_lost,
            outcome.trace_hash,
        );
    }
    for violation in &outcome.violations {
        println!("  {} at {:.9} s: {}", violation.kind, violation.at_ns as f64 / 1e9, violation.detail);
    }
    if let Some(path) = &outcome.trace_file {
        println!("  trace: {}", path.display());
    }
    if !outcome.violations.is_empty() {
        let hosts = args.hosts.map_or_else(String::new, |hosts| format!(" --hosts {hosts}"));
        println!("  again: cargo run --release -p sim -- --seed {}{hosts}", outcome.seed);
    }
    Ok(())
}
