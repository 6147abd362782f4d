//! `peersbench`: one daemon with many others, each a process with an address of its own on the loopback of a network
//! namespace. How much goes through it with few and with many peers, what an idle lane costs it, and how long a lane
//! that rests takes to wake. One JSON object on stdout.
#![forbid(unsafe_code)]

mod cluster;
mod flow;
mod idle;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::json;

use cluster::{Cluster, loopback_of_an_own_namespace};
use flow::Flow;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most daemons of a run: each is a process.
const DAEMONS_MAX: usize = 400;

#[derive(Parser, Debug)]
struct Args {
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

fn main() -> Result<()> {
    let args = Args::parse();
    let daemons: usize = args.peers.iter().map(|peers| peers + 1).sum::<usize>() + args.idle_peers + 1;
    ensure!(daemons <= DAEMONS_MAX, "{daemons} daemons, of which {DAEMONS_MAX} are allowed");
    ensure!(args.peers.iter().all(|peers| (1..=args.connections).contains(peers)), "each peer needs a connection");
    ensure!(args.idle_peers >= 2, "the first lane is what others are compared with: give at least 2 idle peers");
    loopback_of_an_own_namespace()?;
    let idle = idle::measure(&args.raas, args.idle_peers, args.rounds).context("idle lanes")?;
    eprintln!("idle lanes: done");
    let mut flows = Vec::new();
    for (place, peers) in args.peers.iter().enumerate() {
        let cluster = Cluster::start(&args.raas, place + 1, *peers, "ring_bytes = 65536\n")?;
        flows.push(Flow::start(cluster, args.connections, args.size).with_context(|| format!("{peers} peers"))?);
        eprintln!("{peers} peers: {} connections", args.connections);
    }
    let mut values = vec![Vec::new(); flows.len()];
    let turn = Duration::from_secs_f64(args.seconds);
    for round in 0..args.rounds {
        for step in 0..flows.len() {
            // Each begins as often as the others.
            let place = (step + round as usize) % flows.len();
            let flow = flows.get_mut(place).context("a place of the list")?;
            flow.run(Duration::ZERO)?;
            values[place].push(flow.run(turn)?);
        }
        eprintln!("round {round}: done");
    }
    let cases: Vec<_> =
        args.peers.iter().zip(values).map(|(peers, v)| json!({ "peers": peers, "gbit_per_s": v })).collect();
    println!("{}", json!({ "rounds": args.rounds, "connections": args.connections, "cases": cases, "idle": idle }));
    Ok(())
}
