//! Remote procedure calls on one host and between two: what do the transports of `raas-rpc` take and reach beside gRPC?
//!
//! Two daemons in this process are two hosts on loopback; gRPC is tonic over kernel TCP on the same addresses. Requests
//! and responses have 32 bytes, and the service gives back what it got. Case `1 client` is the median time of a call; the
//! others are calls a second of so many clients, each of which has one call under way. All sides of a case take turns in
//! each round, and another one begins each. Prints JSON.

mod grpc;
mod transports;

use anyhow::{Result, ensure};
use clap::Args;
use grpc::Grpc;
use raas_rpc::Transport;
use serde_json::json;
use std::time::Duration;
use transports::Hosts;

/// Bytes of a request, and of a response.
pub(crate) const WORDS: [u8; 32] = [7; 32];
/// Clients of the cases between two hosts. Before them comes one on the server's own host.
const CLIENTS: [usize; 6] = [1, 10, 40, 100, 200, 400];
const TRANSPORTS: [Transport; 4] = [Transport::Messages, Transport::Rfp, Transport::Herd, Transport::Scale];

#[derive(Debug, Args)]
pub(crate) struct Cli {
    /// Rounds, in each of which every side of every case runs once.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of one side in one round.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Only the side of this name.
    #[arg(long)]
    side: Option<String>,
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
    fn measure(&self, side: Side, case: Case) -> Result<f64> {
        match (side, case.clients) {
            (Side::Raas(transport), 1) => self.hosts.latency_us(transport, case.is_one_host, self.time),
            (Side::Raas(transport), clients) => self.hosts.rate(transport, clients, self.time),
            (Side::Grpc, 1) => self.grpc.latency_us(self.time),
            (Side::Grpc, clients) => self.grpc.rate(clients, self.time),
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
struct Case {
    clients: usize,
    is_one_host: bool,
}

impl Case {
    fn name(self) -> String {
        let (s, host) = (if self.clients == 1 { "" } else { "s" }, if self.is_one_host { " on one host" } else { "" });
        format!("{} client{s}{host}", self.clients)
    }
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    ensure!(cli.seconds > 0.0 && cli.seconds <= 60.0, "--seconds is more than 0 and at most 60");
    let bench = Bench { hosts: Hosts::start()?, grpc: Grpc::start()?, time: Duration::from_secs_f64(cli.seconds) };
    let wanted = |case: &Case| cli.only.as_ref().is_none_or(|only| case.name().contains(only.as_str()));
    let is_wanted = |side: &Side| cli.side.as_ref().is_none_or(|name| side.name() == *name);
    let sides: Vec<Side> = Side::all().into_iter().filter(is_wanted).collect();
    ensure!(!sides.is_empty(), "--side is messages, rfp, herd, scale or gRPC");
    let far = CLIENTS.map(|clients| Case { clients, is_one_host: false });
    let all = [Case { clients: 1, is_one_host: true }].into_iter().chain(far);
    let cases: Vec<Case> = all.filter(wanted).collect();
    let mut values = vec![vec![Vec::new(); sides.len()]; cases.len()];
    for round in 0..cli.rounds as usize {
        for (case, values) in cases.iter().zip(&mut values) {
            for turn in 0..sides.len() {
                let number = (round + turn) % sides.len();
                let value = bench.measure(sides[number], *case)?;
                eprintln!("round {round}, {}, {}: {value:.1}", case.name(), sides[number].name());
                values[number].push(value);
            }
        }
    }
    let cases = cases.iter().zip(&values).map(|(case, values)| {
        let Case { clients, is_one_host } = *case;
        let unit = if clients == 1 { "us" } else { "calls/s" };
        let sides = sides.iter().zip(values).map(|(side, values)| json!({ "side": side.name(), "values": values }));
        let sides: Vec<_> = sides.collect();
        json!({ "case": case.name(), "clients": clients, "one_host": is_one_host, "unit": unit, "sides": sides })
    });
    println!("{}", json!({ "rounds": cli.rounds, "cases": cases.collect::<Vec<_>>() }));
    Ok(())
}
