//! The same verbs load on the software NIC and on kernel rxe, over the same link, in alternating rounds. It measures
//! and writes raw values; ratios and verdicts are made by `cargo xtask bench nic`.
//!
//! It must never change a network that is not its own: `veth` makes and removes its links, and is meant for a guest or
//! a network namespace of its own.

mod case;
mod client;
mod control;
mod end;
mod flow;
mod latency;
mod server;
mod veth;
mod waiting;

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use self::client::Measured;
use self::end::{DeviceKind, DeviceOptions};
use self::veth::Shape;

/// Port of the control connection of the first device; each further device takes the next.
const CONTROL_PORT: u16 = 18_515;

#[derive(Debug, Args)]
pub(crate) struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Both ends on this machine, on the two ends of a veth pair that is made for it, in this network namespace.
    Veth {
        #[command(flatten)]
        common: Common,
        /// The pairs to run on, one after the other, each an MTU or `MTU:steered`. What depends on nothing that changed
        /// since the pair before is left out.
        #[arg(long, value_delimiter = ',', default_value = "1500")]
        links: Vec<Shape>,
    },
    /// One end in each of two guests, as `VM_INDEX`, `VM_IP` and `VM_PEER_IP` say: guest 1 serves.
    Pair {
        #[command(flatten)]
        common: Common,
    },
    /// Makes such a pair with an rxe device on each end, prints `ready CLIENT SERVER`, and keeps it until stdin ends.
    Link {
        /// 1500 gives packets of 1024 bytes, 4200 of 4096.
        #[arg(long, default_value_t = 1500)]
        mtu: u32,
    },
    /// Serves one device until its client is done.
    Server(ServerArgs),
    /// Runs every case against servers that wait already, one for each device.
    Client {
        #[command(flatten)]
        common: Common,
        /// Address of this end.
        #[arg(long)]
        address: IpAddr,
        /// Address of the other end.
        #[arg(long)]
        peer: IpAddr,
    },
}

/// What the measuring side takes.
#[derive(Debug, Clone, Args)]
struct Common {
    /// Devices to compare, in the order of their servers' control ports.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "softnic,rxe")]
    devices: Vec<DeviceKind>,
    /// Rounds; in each every device runs once, and the first one changes.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
    /// Seconds that one device measures in one round of one case.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// File for the values, as JSON.
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceOptions,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// The device.
    #[arg(long, value_enum)]
    device: DeviceKind,
    /// Address of this end.
    #[arg(long)]
    address: IpAddr,
    /// TCP port of the control connection.
    #[arg(long, default_value_t = CONTROL_PORT)]
    control_port: u16,
    #[command(flatten)]
    options: DeviceOptions,
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    match cli.task {
        Task::Veth { common, links } => {
            let mut measured = vec![];
            let mut before = None;
            for shape in links {
                let link = veth::Link::up(&shape, common.devices.contains(&DeviceKind::Rxe))?;
                let _servers = veth::Servers::start(&common.devices, link.server_address(), &common.device)?;
                let all = before.is_none_or(|before: Shape| before.steered != shape.steered);
                let choice = if all { Choice::All } else { Choice::Throughput };
                before = Some(shape);
                let note = if shape.steered { ", steered" } else { "" };
                measured.extend(measure(&common, link.client_address(), link.server_address(), choice, note)?);
            }
            finish(&common, &measured, "veth pair in one kernel")
        }
        Task::Pair { common } => {
            let own = variable("VM_IP")?.parse()?;
            let peer = variable("VM_PEER_IP")?.parse()?;
            if variable("VM_INDEX")? == "1" {
                return veth::Servers::start(&common.devices, own, &common.device)?.wait();
            }
            finish(&common, &measure(&common, own, peer, Choice::All, "")?, "two guests")
        }
        Task::Link { mtu } => {
            let link = veth::Link::up(&Shape { mtu, steered: true }, true)?;
            println!("ready {} {}", link.client_address(), link.server_address());
            std::io::stdin().read_to_end(&mut vec![])?;
            Ok(())
        }
        Task::Server(args) => {
            server::run(args.device, args.address, SocketAddr::new(args.address, args.control_port), &args.options)
        }
        Task::Client { common, address, peer } => {
            let measured = measure(&common, address, peer, Choice::All, "")?;
            finish(&common, &measured, "as found")
        }
    }
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name)
        .with_context(|| format!("{name} is not set: run this in a guest of `cargo xtask vm --guests 2`"))
}

/// Which cases depend on what changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    All,
    Throughput,
}

fn measure(common: &Common, address: IpAddr, peer: IpAddr, choice: Choice, note: &str) -> Result<Vec<Measured>> {
    let chosen = |case: &&case::Case| choice == Choice::All || case.is_throughput();
    let cases: Vec<_> = case::CASES.iter().filter(|case| case.name.contains(&common.only)).filter(chosen).collect();
    let mut client = client::Client::connect(&common.devices, address, peer, &common.device)?;
    let mut measured = vec![];
    for case in cases {
        measured.push(client.case(case, note, common.rounds, common.seconds)?);
    }
    client.end()?;
    Ok(measured)
}

/// Writes the file. Cases that failed are in it with their error, and make the exit code 1.
fn finish(common: &Common, measured: &[Measured], link: &str) -> Result<()> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let file = serde_json::json!({
        "schema": "nicbench/1", "link": link, "kernel": kernel, "rounds": common.rounds,
        "seconds": common.seconds, "cases": measured,
    });
    if let Some(path) = &common.out {
        std::fs::write(path, format!("{file:#}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let failed: Vec<_> = measured.iter().filter_map(|m| Some((m.case.as_str(), m.error.as_ref()?))).collect();
    for (case, error) in &failed {
        println!("FAIL {case}: {error}");
    }
    anyhow::ensure!(failed.is_empty(), "{} of {} cases failed", failed.len(), measured.len());
    Ok(())
}
