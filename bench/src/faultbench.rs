//! `faultbench`: how long applications wait when something fails. Two daemons as two hosts on loopback, in a network
//! namespace of their own, since the partition takes loopback down. One JSON object on stdout.

mod cluster;
mod many;
mod paths;
mod stream;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use raas::{Session, Stream};
use serde_json::json;

use cluster::{Cluster, Loopback};
use paths::Networks;
use stream::Flow;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// A partition that daemons do not notice: less than five heartbeats.
const SHORT: Duration = Duration::from_secs(1);
/// One after which both daemons have given the other up: five heartbeats, then `peer_return_ms`.
const LONG: Duration = Duration::from_secs(12);
/// Time of a flow before and after what is done to it.
const AROUND: Duration = Duration::from_millis(300);

#[derive(Debug, Args)]
pub(crate) struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Measures.
    Run {
        /// The `raas` binary, for the daemons.
        #[arg(long)]
        raas: PathBuf,
        /// Rounds of each case.
        #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
        /// Only cases whose name contains this.
        #[arg(long)]
        only: Option<String>,
    },
    /// Connects, says a word, and waits to be killed.
    Victim { socket: PathBuf, to: SocketAddr },
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    match cli.what {
        What::Victim { socket, to } => victim(&socket, to),
        What::Run { raas, rounds, only } => run(&raas, rounds, only.as_deref()),
    }
}

type Case = fn(&Cluster) -> Result<f64>;

fn run(raas: &std::path::Path, rounds: u32, only: Option<&str>) -> Result<()> {
    let loopback = Loopback::of_an_own_namespace()?;
    let cluster = Cluster::start(raas, loopback)?;
    let cases: [(&str, Case); 7] = [
        ("application-death", application_death),
        ("stream-gap", stream_gap),
        ("lane-reset-pause", lane_reset_pause),
        ("heal-short-partition", heal_short),
        ("heal-long-partition", heal_long),
        ("daemon-death", |cluster| p90(cluster, &[1])),
        ("both-daemons-death", |cluster| p90(cluster, &[0, 1])),
    ];
    let mut values = vec![Vec::new(); cases.len()];
    let mut pairs = Pairs::new(raas, only)?;
    for round in 0..rounds {
        pairs.run(round)?;
        for (i, (name, case)) in cases.iter().enumerate() {
            if only.is_some_and(|o| !name.contains(o)) {
                continue;
            }
            let ms = case(&cluster).with_context(|| format!("{name}, round {round}"))?;
            eprintln!("round {round} {name}: {ms:.3} ms");
            values[i].push(ms);
        }
    }
    let cases: Vec<_> = cases
        .iter()
        .zip(values)
        .filter(|(_, v)| !v.is_empty())
        .map(|((name, _), v)| (*name, v))
        .chain(pairs.values)
        .map(|(name, v)| json!({ "case": name, "unit": "ms", "values": v }))
        .collect();
    println!("{}", json!({ "rounds": rounds, "cases": cases }));
    Ok(())
}

/// Cases of two pauses each, on hosts with two networks: of a failure, and of what heals.
struct Pairs {
    networks: Option<Networks>,
    cases: Vec<(Pair, [&'static str; 2])>,
    values: Vec<(&'static str, Vec<f64>)>,
}

type Pair = fn(&Networks) -> Result<[f64; 2]>;

impl Pairs {
    fn new(raas: &std::path::Path, only: Option<&str>) -> Result<Self> {
        let all: [(Pair, [&str; 2]); 2] = [
            (Networks::interface, ["interface-down", "interface-up"]),
            (Networks::interface_with_roce, ["roce-interface-down", "roce-interface-up"]),
        ];
        let is_asked = |names: &[&str; 2]| only.is_none_or(|only| names.iter().any(|name| name.contains(only)));
        let cases: Vec<_> = all.into_iter().filter(|(_, names)| is_asked(names)).collect();
        let networks = if cases.is_empty() { None } else { Some(Networks::join(raas)?) };
        let values = cases.iter().flat_map(|(_, names)| names.map(|name| (name, Vec::new()))).collect();
        Ok(Self { networks, cases, values })
    }

    fn run(&mut self, round: u32) -> Result<()> {
        let Some(networks) = &self.networks else { return Ok(()) };
        for (at, (pair, names)) in self.cases.iter().enumerate() {
            let pauses = pair(networks).with_context(|| format!("{}, round {round}", names[0]))?;
            for (n, pause) in pauses.into_iter().enumerate() {
                eprintln!("round {round} {}: {pause:.3} ms", names[n]);
                self.values[2 * at + n].1.push(pause);
            }
        }
        Ok(())
    }
}

/// The pause that nine of ten connections do not exceed when the daemons of these hosts are killed.
fn p90(cluster: &Cluster, hosts: &[usize]) -> Result<f64> {
    let pauses = many::pauses(cluster, hosts)?;
    cluster.settle()?;
    let at = |part: usize| pauses.get(pauses.len() * part / 100).or(pauses.last()).copied().map_or(f64::NAN, ms);
    eprintln!(
        "{} connections stood still: p50 {:.0} ms, p90 {:.0}, longest {:.0}",
        pauses.len(),
        at(50),
        at(90),
        at(100)
    );
    Ok(at(90))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn victim(socket: &std::path::Path, to: SocketAddr) -> Result<()> {
    let session = Session::connect(socket)?;
    let mut stream = Stream::connect_with(&session, to)?;
    stream.write_all(b"alive")?;
    std::thread::sleep(PATIENCE);
    bail!("nobody killed the victim")
}

/// From the SIGKILL of an application to the error that its remote peer reads.
fn application_death(cluster: &Cluster) -> Result<f64> {
    let (listener, to) = cluster.listener()?;
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["faultbench", "victim"])
        .args([cluster.socket(0), std::path::Path::new(&to.to_string())])
        .stdin(Stdio::null())
        .spawn()?;
    let killed = (|| {
        let (mut stream, _) = listener.accept_timeout(PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read_exact(&mut [0; 5])?;
        // Both sides have gone to sleep.
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        victim.kill()?;
        match stream.read(&mut [0; 16]) {
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Ok(ms(start.elapsed())),
            other => bail!("the peer of a killed application read {other:?}"),
        }
    })();
    let _ = victim.kill();
    victim.wait()?;
    killed
}

/// The longest time between two reads of a flow that nothing happens to: what the machine does by itself.
fn stream_gap(cluster: &Cluster) -> Result<f64> {
    let flow = Flow::start(cluster)?;
    let from = Instant::now();
    std::thread::sleep(2 * AROUND);
    Ok(ms(flow.finish()?.longest_gap(from, 2 * AROUND)))
}

/// The longest time between two reads of a flow over whose lane a reset comes.
fn lane_reset_pause(cluster: &Cluster) -> Result<f64> {
    let flow = Flow::start(cluster)?;
    let before = cluster.resets(0)?;
    std::thread::sleep(AROUND);
    let from = Instant::now();
    ensure!(cluster.reset_lane()?, "there is no lane to reset");
    std::thread::sleep(2 * AROUND);
    let gap = flow.finish()?.longest_gap(from, 2 * AROUND);
    ensure!(cluster.resets(0)? == before + 1, "{} resets instead of one", cluster.resets(0)? - before);
    Ok(ms(gap))
}

/// From the end of a partition that connections survive to the next read of a flow.
fn heal_short(cluster: &Cluster) -> Result<f64> {
    let flow = Flow::start(cluster)?;
    std::thread::sleep(AROUND);
    cluster.loopback.set(false)?;
    std::thread::sleep(SHORT);
    let healed = Instant::now();
    cluster.loopback.set(true)?;
    let next = flow.next_read_after(healed, PATIENCE);
    flow.finish()?;
    Ok(ms(next.context("the flow never went on")?))
}

/// From the end of a partition that ended all connections to the first byte over a new one.
fn heal_long(cluster: &Cluster) -> Result<f64> {
    let (listener, to) = cluster.listener()?;
    let old = Stream::connect_with(&cluster.sessions[0], to)?;
    let (mut accepted, _) = listener.accept_timeout(PATIENCE)?;
    cluster.loopback.set(false)?;
    let start = Instant::now();
    std::thread::sleep(LONG);
    accepted.set_read_timeout(Some(PATIENCE))?;
    ensure!(accepted.read(&mut [0; 1]).is_err(), "a connection survived {:?}", start.elapsed());
    drop((old, accepted));
    let healed = Instant::now();
    cluster.loopback.set(true)?;
    while healed.elapsed() < PATIENCE {
        let Ok(mut stream) = Stream::connect_with(&cluster.sessions[0], to) else { continue };
        let (mut accepted, _) = listener.accept_timeout(PATIENCE)?;
        stream.write_all(b"!")?;
        accepted.set_read_timeout(Some(PATIENCE))?;
        accepted.read_exact(&mut [0; 1])?;
        return Ok(ms(healed.elapsed()));
    }
    bail!("no connection {PATIENCE:?} after the partition")
}
