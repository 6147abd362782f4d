//! `peersbench`: one daemon with many others, each a process with an address of its own on the loopback of a network
//! namespace. How much goes through it with few and with many peers, what an idle lane costs it, and how long a lane
//! that rests takes to wake. One JSON object on stdout.

mod cluster;
mod cost;
mod flow;
mod idle;
mod star;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use cluster::{Cluster, loopback_of_an_own_namespace};
use flow::{Flow, Turn};
use star::Star;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the rings of connections whose throughput is measured.
const RING_BYTES: u64 = 64 << 10;
/// Most daemons of a run: each is a process.
const DAEMONS_MAX: usize = 400;

#[derive(Debug, Args)]
pub(crate) struct Cli {
    /// The `raas` binary, for the daemons.
    #[arg(long)]
    raas: PathBuf,
    /// Numbers of peers that are compared; each has its own daemons, all of which run at the same time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 200])]
    peers: Vec<usize>,
    /// Peers where idle lanes are looked at.
    #[arg(long, default_value_t = 64)]
    idle_peers: usize,
    /// Connections of each comparison, shared out to its peers.
    #[arg(long, default_value_t = 400)]
    connections: usize,
    /// Bytes of a message.
    #[arg(long, default_value_t = 16 << 10)]
    size: usize,
    /// Rounds, in each of which each number of peers has its turn.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of a turn.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    let daemons: usize = cli.peers.iter().map(|peers| peers + 1).sum::<usize>() + cli.idle_peers + 1;
    ensure!(daemons <= DAEMONS_MAX, "{daemons} daemons, of which {DAEMONS_MAX} are allowed");
    ensure!(cli.peers.iter().all(|peers| (1..=cli.connections).contains(peers)), "each peer needs a connection");
    ensure!(cli.idle_peers >= 2, "the first lane is what others are compared with: give at least 2 idle peers");
    loopback_of_an_own_namespace()?;
    let idle = idle::measure(&cli.raas, cli.idle_peers, cli.rounds).context("idle lanes")?;
    eprintln!("idle lanes: done");
    let mut sides = Vec::new();
    for (place, peers) in cli.peers.iter().enumerate() {
        let cluster = Cluster::start(&cli.raas, place + 1, *peers, &format!("ring_bytes = {RING_BYTES}\n"))?;
        let flow = Flow::start(cluster, cli.connections, cli.size).with_context(|| format!("{peers} peers"))?;
        let star = Star::start(place, *peers, cli.size, (cli.connections, RING_BYTES)).context("bare relays")?;
        sides.push((flow, star));
        eprintln!("{peers} peers: {} connections", cli.connections);
    }
    let mut values: Vec<(Vec<Turn>, Vec<BareTurn>)> = vec![Default::default(); sides.len()];
    let turn = Duration::from_secs_f64(cli.seconds);
    for round in 0..cli.rounds {
        for step in 0..sides.len() {
            // Each begins as often as the others.
            let place = (step + round as usize) % sides.len();
            let (flow, star) = sides.get_mut(place).context("a place of the list")?;
            flow.run(Duration::ZERO)?;
            values[place].0.push(flow.run(turn)?);
            star.run(Duration::ZERO, cli.connections)?;
            values[place].1.push(star.run(turn, cli.connections)?);
        }
        eprintln!("round {round}: done");
    }
    let cases: Vec<_> = cli.peers.iter().zip(&values).map(|(peers, (ours, bare))| case(*peers, ours, bare)).collect();
    println!("{}", json!({ "rounds": cli.rounds, "connections": cli.connections, "cases": cases, "idle": idle }));
    Ok(())
}

/// Gigabits a second of bare relays, and processor seconds a gigabyte of the one in the middle.
type BareTurn = (f64, f64);

fn case(peers: usize, ours: &[Turn], bare: &[BareTurn]) -> Value {
    let each = |of: fn(&Turn) -> f64| ours.iter().map(of).collect::<Vec<f64>>();
    json!({
        "peers": peers,
        "gbit_per_s": each(|turn| turn.gbit_per_s),
        "bare_gbit_per_s": bare.iter().map(|turn| turn.0).collect::<Vec<f64>>(),
        "bare_center_seconds_per_gb": bare.iter().map(|turn| turn.1).collect::<Vec<f64>>(),
        "center_seconds_per_gb": each(|turn| turn.center.seconds / turn.gigabytes),
        "peers_seconds_per_gb": each(|turn| turn.peers.seconds / turn.gigabytes),
        "center_runs_per_message": each(|turn| turn.center.runs / turn.messages),
        "peers_runs_per_message": each(|turn| turn.peers.runs / turn.messages),
    })
}
