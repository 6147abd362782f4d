//! Verbs as applications use them without a service: what do the paper's rivals of RaaS reach on the same device?
//!
//! A queue pair for each connection (Figures 1, 6, 10, 11, 12), queue pairs that q threads share under a lock (Figures 2
//! and 7), and applications that each own a device context, a shared receive queue and buffers (Figures 8 and 9). It
//! measures one point and prints it as JSON; `cargo xtask bench figures` makes the figures.

mod application;
mod end;
mod flow;
mod server;
mod shared;
mod waiting;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use verbs::{QpType, WirePolicy};

#[derive(Debug, Args)]
pub(crate) struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serves one client, then ends; prints `ready ADDRESS` first.
    Server {
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Runs one load against a server and prints what it measured.
    Client {
        #[command(flatten)]
        device: DeviceArgs,
        #[command(flatten)]
        load: LoadArgs,
    },
}

/// Which device, and how.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeviceArgs {
    /// The device that carries the address.
    #[arg(long, value_enum, default_value = "softnic")]
    pub(crate) device: DeviceKind,
    /// Own address.
    #[arg(long)]
    pub(crate) address: IpAddr,
    /// What carries the connections of two software NICs.
    #[arg(long, default_value = "roce")]
    pub(crate) wire: WirePolicy,
}

/// The devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceKind {
    /// The software NIC of this project.
    Softnic,
    /// A device of rdma-core, such as kernel rxe.
    RdmaCore,
}

/// The verb that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verb {
    /// READs from random blocks, on RC.
    Read,
    /// WRITEs to random blocks, on RC.
    Write,
    /// SENDs, on RC.
    Send,
    /// WRITEs with immediate to random blocks, on UC. What is lost is lost; the server says what arrived.
    UcWrite,
    /// FETCH_AND_ADDs to random counters, on RC.
    FetchAdd,
    /// An application at rest: SENDs of 4 KiB each way on each connection first, then nothing until stdin ends.
    Hold,
}

impl Verb {
    pub(crate) fn transport(self) -> QpType {
        if self == Self::UcWrite { QpType::Uc } else { QpType::Rc }
    }

    /// Whether messages take receives of the server.
    pub(crate) fn takes_receives(self) -> bool {
        matches!(self, Self::Send | Self::UcWrite | Self::Hold)
    }
}

/// The load. Both sides know it.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct LoadArgs {
    /// The server's control address; several servers have as many connections each.
    #[arg(long, required = true, value_delimiter = ',')]
    pub(crate) to: Vec<SocketAddr>,
    #[arg(long, value_enum)]
    pub(crate) verb: Verb,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64 << 10, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) size: u32,
    /// Work requests outstanding, of all connections together; with threads, of each thread.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) depth: u32,
    /// Queue pairs to each server, one for each connection.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
    /// Threads; with more than none, each `share` of them have one queue pair, and a lock on it.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=256))]
    pub(crate) threads: u32,
    /// Threads that share a queue pair.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) share: u32,
    /// Counters of `fetch-add`.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) counters: u32,
    /// Memory of the server from which blocks are chosen.
    #[arg(long, default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(1 << 20..=1 << 32))]
    pub(crate) region_bytes: u64,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 0.3)]
    pub(crate) seconds: f64,
    /// Operations begun in a second; 0: as many as go.
    #[arg(long, default_value_t = 0)]
    pub(crate) rate: u32,
}

impl LoadArgs {
    /// What no single value shows.
    fn check(&self) -> Result<()> {
        ensure!(self.seconds > 0.0 && self.seconds <= 600.0, "--seconds is more than 0 and at most 600");
        ensure!(u64::from(self.size) <= self.region_bytes, "--size is more than --region-bytes");
        if self.threads > 0 {
            ensure!(self.threads.is_multiple_of(self.share), "--threads is a multiple of --share");
            ensure!(self.verb == Verb::Read, "threads share queue pairs for `read` alone");
            ensure!(self.rate == 0, "--rate is for one thread");
            ensure!(self.to.len() == 1, "threads share queue pairs to one server");
        }
        ensure!(self.rate == 0 || self.depth == 1, "--rate is for --depth 1");
        Ok(())
    }

    /// Queue pairs of each of the client's contexts to a server.
    pub(crate) fn contexts(&self) -> Vec<u32> {
        if self.threads == 0 { vec![self.connections] } else { vec![1; (self.threads / self.share) as usize] }
    }

    /// Sends that one queue pair takes.
    pub(crate) fn sends(&self) -> u32 {
        self.depth * self.share.min(self.threads.max(1)) + 1
    }
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    match cli.role {
        Role::Server { device } => server::run(&device),
        Role::Client { device, load } => {
            load.check()?;
            if load.verb == Verb::Hold {
                return application::hold(&device, &load);
            }
            let report = if load.threads > 0 { shared::run(&device, &load)? } else { flow::run(&device, &load)? };
            println!("{report}");
            Ok(())
        }
    }
}
