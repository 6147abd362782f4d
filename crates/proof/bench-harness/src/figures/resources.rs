//! Figures 8 and 9: memory and processor time of 1 to 64 applications at one host. Counted are the applications, and of
//! RaaS the daemon too. A native application has a context of the device, a completion queue, a shared receive queue
//! with buffers, and a queue pair for each connection.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use super::Effort;
use super::data::{Figure, Line, Scale};
use super::hosts::{BLOCKS, Cluster, Hosts, Words, words};
use super::sweep::{Compared, sweep};
use super::throughput::{NATIVE, RAAS};
use crate::idle::cpu_seconds;
use crate::loads;
use crate::memory;
use crate::place::End;
use crate::process::Beside;
use crate::rivals::any_port;
use crate::stats::{Bar, Better, Kind};

const APPLICATIONS: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
/// Connections of each.
const CONNECTIONS: u32 = 16;
/// A native application's messages and receive buffers.
const MESSAGE_BYTES: u32 = 4096;
/// READs of each application in a second, in Figure 9: so few that two processors are enough for all applications.
const RATE: u32 = 50;
/// Longest start of an application.
const START: Duration = Duration::from_secs(60);
/// Applications of Figure 9 run until they are ended. This is beyond the start of all of them; a tenth of it is their
/// warm-up, for which each point waits.
const RUN_SECONDS: f64 = 90.0;
/// How long applications rest before their memory is counted.
const REST: Duration = Duration::from_millis(300);
/// Of native's.
const SHARE_MAX: f64 = 0.25;
const MIB: f64 = 1024.0 * 1024.0;

/// Applications, and their peers at the other host. They end with it.
struct Running {
    applications: Vec<Beside>,
    peers: Vec<Beside>,
}

impl Running {
    /// Starts so many; each says `said` when it is where it is to be looked at.
    fn start(
        cluster: &Cluster,
        count: f64,
        said: &str,
        command: &dyn Fn() -> Result<(Option<Beside>, Words)>,
    ) -> Result<Self> {
        let (mut applications, mut peers) = (vec![], vec![]);
        for _ in 0..count as u32 {
            let (peer, words) = command()?;
            let all: Vec<&str> = words.iter().map(String::as_str).collect();
            applications.push(Beside::start(&mut loads::command(&cluster.place, End::Client, &all))?);
            peers.extend(peer);
        }
        applications.iter_mut().try_for_each(|one| one.wait_line(said, START).map(drop))?;
        Ok(Self { applications, peers })
    }

    fn pids(&self) -> Vec<u32> {
        self.applications.iter().map(Beside::pid).collect()
    }
}

/// The daemon of the applications' host, and that of the other one.
fn daemons(cluster: &Cluster) -> Vec<u32> {
    cluster.place.daemon_pids()
}

/// Figure 8: memory by applications at rest.
pub(super) fn memory(hosts: &mut Hosts<'_>, effort: Effort) -> Result<Figure> {
    let cluster = hosts.cluster(2)?;
    let hold = |line: &str| -> Result<(Option<Beside>, Words)> {
        let load = [("connections", CONNECTIONS.to_string()), ("size", MESSAGE_BYTES.to_string())];
        if line == RAAS {
            let (server, to) = loads::stream_server(&cluster.place, "raas", &any_port(&cluster.place))?;
            let fixed = ["sockbench", "client", "--transport", "raas", "--to", &to, "--test", "hold"];
            return Ok((Some(server), words(&[&fixed[..], &["--seconds", "1"]].concat(), &load)));
        }
        let (server, to) = cluster.native_server(End::Server)?;
        let verb = [("verb", "hold".to_owned())];
        Ok((Some(server), cluster.native_words(&to, &[&load[..], &verb].concat())))
    };
    let lines = sweep(effort.few_rounds(), &APPLICATIONS, &[RAAS, NATIVE], &mut |line, count| {
        let running = Running::start(cluster, count, "holding ", &|| hold(line))?;
        std::thread::sleep(REST);
        let mut pids = running.pids();
        pids.extend(daemons(cluster).first().filter(|_| line == RAAS));
        let bytes = pids.into_iter().map(|pid| Ok(memory::of(pid)?.bytes())).sum::<Result<f64>>()?;
        Ok(bytes / MIB)
    })?;
    let further = |line: &Line| -> Vec<f64> {
        let (Some(first), Some(last)) = (line.points.first(), line.points.last()) else { return vec![] };
        let of = |(first_value, last_value): (&f64, &f64)| (last_value - first_value) / (last.x - first.x);
        first.values.iter().zip(&last.values).map(of).collect()
    };
    let mut figure = Figure {
        number: Some(8),
        title: "memory of applications with 16 connections each".to_owned(),
        x: "applications".to_owned(),
        y: "MiB, daemon included".to_owned(),
        scale: Scale::Log,
        lines,
        rows: vec![],
        beside: json!({ "connections": CONNECTIONS, "native_receive_buffer_bytes": MESSAGE_BYTES }),
    };
    let compared = Compared {
        case: "figure 8: memory of a further application".to_owned(),
        unit: "MiB",
        better: Better::Lower,
        ours: further(&figure.line(RAAS)),
        rival: NATIVE.to_owned(),
        rival_values: further(&figure.line(NATIVE)),
    };
    figure.rows.extend(compared.row(Some((Bar::RatioAtMost(SHARE_MAX), Kind::Must))));
    Ok(figure)
}

/// Figure 9: processor time by applications that each read a few blocks of 4 KiB in a second. Both hosts count.
pub(super) fn processor(hosts: &mut Hosts<'_>, effort: Effort) -> Result<Figure> {
    let cluster = hosts.cluster(2)?;
    let load = [
        ("verb", "read".to_owned()),
        ("connections", CONNECTIONS.to_string()),
        ("size", MESSAGE_BYTES.to_string()),
        ("rate", RATE.to_string()),
        ("seconds", RUN_SECONDS.to_string()),
    ];
    let command = |line: &str| -> Result<(Option<Beside>, Words)> {
        if line == RAAS {
            return Ok((None, cluster.region_words(BLOCKS, false, &load)));
        }
        let (server, to) = cluster.native_server(End::Server)?;
        let depth = [("depth", "1".to_owned())];
        Ok((Some(server), cluster.native_words(&to, &[&load[..], &depth].concat())))
    };
    let lines = sweep(effort.few_rounds(), &APPLICATIONS, &[RAAS, NATIVE], &mut |line, count| {
        let running = Running::start(cluster, count, "counting", &|| command(line))?;
        let mut pids = running.pids();
        pids.extend(running.peers.iter().map(Beside::pid));
        if line == RAAS {
            pids.extend(daemons(cluster));
        }
        let (begin, before) = (Instant::now(), used(&pids)?);
        std::thread::sleep(Duration::from_secs_f64(effort.seconds * 2.0));
        Ok((used(&pids)? - before) / begin.elapsed().as_secs_f64())
    })?;
    let mut figure = Figure {
        number: Some(9),
        title: format!("processor time of applications that read {RATE} times a second"),
        x: "applications".to_owned(),
        y: "processors in use, both hosts".to_owned(),
        scale: Scale::Linear,
        lines,
        rows: vec![],
        beside: json!({ "reads_per_second_each": RATE, "size_bytes": MESSAGE_BYTES }),
    };
    let last = figure.places().last().copied().unwrap_or_default();
    let compared = Compared {
        case: format!("figure 9: processors of {last} applications"),
        unit: "cores",
        better: Better::Lower,
        ours: figure.line(RAAS).at(last),
        rival: NATIVE.to_owned(),
        rival_values: figure.line(NATIVE).at(last),
    };
    figure.rows.extend(compared.row(None));
    Ok(figure)
}

/// Processor time of these processes so far, in seconds.
fn used(pids: &[u32]) -> Result<f64> {
    pids.iter().map(|pid| cpu_seconds(*pid)).sum()
}
