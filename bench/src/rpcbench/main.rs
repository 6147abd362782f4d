//! Remote procedure calls between two hosts: what do the transports of `raas-rpc` take and reach beside gRPC?
//!
//! Two daemons in this process are two hosts on loopback; gRPC is tonic over kernel TCP on the same addresses. Requests
//! and responses have 32 bytes, and the service gives back what it got. Case `1 client` is the median time of a call; the
//! others are calls a second of so many clients, each of which has one call under way. All sides of a case take turns in
//! each round, and another one begins each. Prints JSON.
#![forbid(unsafe_code)]

mod grpc;
mod load;
mod transports;

use anyhow::{Result, ensure};
use clap::Parser;
use grpc::Grpc;
use raas_rpc::Transport;
use serde_json::json;
use std::time::Duration;
use transports::Hosts;

/// Bytes of a request, and of a response.
pub(crate) const WORDS: [u8; 32] = [7; 32];
/// Clients of the cases.
const CLIENTS: [usize; 6] = [1, 10, 40, 100, 200, 400];
const TRANSPORTS: [Transport; 4] = [Transport::Messages, Transport::Rfp, Transport::Herd, Transport::Scale];

#[derive(Debug, Parser)]
#[command(name = "rpcbench")]
struct Cli {
    /// Rounds, in each of which every side of every case runs once.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of one side in one round.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// Who carries the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Raas(Transport),
    Grpc,
}

impl Side {
    fn all() -> Vec<Self> {
        TRANSPORTS.into_iter().map(Self::Raas).chain([Self::Grpc]).collect()
    }

    fn name(self) -> String {
        match self {
            Self::Raas(transport) => transport.to_string(),
            Self::Grpc => "gRPC".to_owned(),
        }
    }
}

/// Both ways to call.
struct Bench {
    hosts: Hosts,
    grpc: Grpc,
    time: Duration,
}

impl Bench {
    /// The median time of a call in microseconds, or calls a second.
    fn measure(&self, side: Side, clients: usize) -> Result<f64> {
        match (side, clients) {
            (Side::Raas(transport), 1) => self.hosts.latency_us(transport, self.time),
            (Side::Raas(transport), clients) => self.hosts.rate(transport, clients, self.time),
            (Side::Grpc, 1) => self.grpc.latency_us(self.time),
            (Side::Grpc, clients) => self.grpc.rate(clients, self.time),
        }
    }
}

fn case(clients: usize) -> String {
    format!("{clients} client{}", if clients == 1 { "" } else { "s" })
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    ensure!(cli.seconds > 0.0 && cli.seconds <= 60.0, "--seconds is more than 0 and at most 60");
    let bench = Bench { hosts: Hosts::start()?, grpc: Grpc::start()?, time: Duration::from_secs_f64(cli.seconds) };
    let wanted = |clients: &usize| cli.only.as_ref().is_none_or(|only| case(*clients).contains(only.as_str()));
    let sides = Side::all();
    let cases: Vec<usize> = CLIENTS.into_iter().filter(wanted).collect();
    let mut values = vec![vec![Vec::new(); sides.len()]; cases.len()];
    for round in 0..cli.rounds as usize {
        for (clients, values) in cases.iter().zip(&mut values) {
            for turn in 0..sides.len() {
                let number = (round + turn) % sides.len();
                let value = bench.measure(sides[number], *clients)?;
                eprintln!("round {round}, {}, {}: {value:.1}", case(*clients), sides[number].name());
                values[number].push(value);
            }
        }
    }
    let cases = cases.iter().zip(&values).map(|(clients, values)| {
        let unit = if *clients == 1 { "us" } else { "calls/s" };
        let sides = sides.iter().zip(values).map(|(side, values)| json!({ "side": side.name(), "values": values }));
        json!({ "case": case(*clients), "clients": clients, "unit": unit, "sides": sides.collect::<Vec<_>>() })
    });
    println!("{}", json!({ "rounds": cli.rounds, "cases": cases.collect::<Vec<_>>() }));
    Ok(())
}
