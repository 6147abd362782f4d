//! `raas demo`: small messages on one host and a TCP program that nobody changed; two hosts on this machine with a
//! thousand connections, a broken queue pair, a killed program, a killed daemon, and real files. Every byte is
//! verified, and the same runs over kernel TCP beside it.
//!
//! This process starts and judges; it carries no data itself. It makes up no figure: what the daemons use is what they
//! and the kernel say, and what arrived is what receivers say, compared with the files and the plan.
//!
//! Owns the story of the demo, its daemons and its report. It must never carry data itself, or say a figure that
//! nobody counted. May use `control`, `raas`, `terminal`, `transport`, `verbs`. Order of calls: [`run`] once in a
//! process; it starts others, which call [`run_app`] or [`run_echo`].

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // see `terminal::out`

mod app;
mod cleanup;
mod corpus;
mod echo;
mod fleet;
mod host;
mod links;
mod plan;
mod preflight;
mod protocol;
mod report;
mod story;
mod text;
mod traffic;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

pub use app::run_app;
pub use echo::{Echo, run_echo};

use cleanup::{Cleanup, Owner};
use host::Ports;
use protocol::Seat;
use report::Report;
use story::Story;
use terminal::{Failure, out, table};
use verbs::WirePolicy;

/// How long after the time limit the watchdog waits for the orderly end.
const WATCHDOG_GRACE: Duration = Duration::from_secs(15);
/// Bytes of a small message.
const MESSAGE_BYTES: usize = 64;
/// Why a run ends that reached its bound.
const TIME_IS_UP: &str = "the time limit (--seconds-max) is reached";

/// What the demo is asked to do.
#[derive(Debug, Clone)]
pub struct Demo {
    /// Directory with the files to send; by default real files of this machine.
    pub path: Option<PathBuf>,
    /// Connections between the hosts.
    pub connections: u32,
    /// Application processes of each host.
    pub apps: u32,
    /// Addresses of the hosts.
    pub hosts: [IpAddr; 2],
    /// UDP and TCP port of the software NICs, and TCP port on which the daemons reach each other.
    pub ports: (u16, u16),
    /// What may carry the lane between the hosts.
    pub wire: WirePolicy,
    /// Engines of each daemon.
    pub engines: u32,
    /// Bound of the whole run.
    pub seconds_max: u64,
    /// One JSON object on stdout.
    pub json: bool,
    /// What the demo's daemons log; else `$RUST_LOG` says it, else warnings.
    pub log: Option<String>,
}

/// Runs the demo and prints its result.
pub fn run(demo: &Demo) -> Result<(), Failure> {
    let begin = Instant::now();
    let deadline = begin + Duration::from_secs(demo.seconds_max);
    if demo.hosts[0] == demo.hosts[1] {
        return Err(Failure::Usage("--hosts: the two hosts need different addresses".into()));
    }
    let cleanup = Cleanup::new().map_err(|e| Failure::failed("no temporary directory (see TMPDIR)", e))?;
    let owner = Owner(cleanup.clone());
    guard(&cleanup, demo.seconds_max)?;
    let corpus = corpus::choose(demo.path.as_deref(), demo.connections as usize * 2, deadline)?;
    let links = plan::plan(demo.connections, demo.apps, &corpus);
    let seats: Vec<Seat> = (0..2).flat_map(|host| (0..demo.apps).map(move |app| Seat { host, app })).collect();
    let ports = Ports { nic: demo.ports.0, peer: demo.ports.1, wire: demo.wire, engines: demo.engines };
    let facts = json!({
        "hosts": demo.hosts, "listen_port": ports.nic, "peer_port": ports.peer, "connections": demo.connections,
        "application_processes": seats.len(), "distinct_files": corpus.files.len(),
        "message_bytes": MESSAGE_BYTES,
    });
    let mut report = Report::new(facts, corpus.notes.iter().cloned().chain(busy()).collect());
    let outcome = preflight::check(demo.hosts, ports, &seats, &links).and_then(|()| {
        let (files, bytes) = (table::grouped(corpus.files.len() as u64), table::bytes(corpus.bytes));
        out::say(format_args!("{files} files, {bytes}: computing their digests"));
        let (digests, report) = (corpus::digests(&corpus.files, deadline)?, &mut report);
        report.set("tcp_congestion", transport::tcp_congestion().map_err(|e| e.to_string())?);
        let (cleanup, corpus, links, seats) = (&cleanup, &corpus, &links, &seats);
        Story { demo, cleanup, ports, corpus, digests: &digests, links, seats, deadline, report }.tell()
    });
    // If a signal ends the run, it goes no further than here.
    drop(owner);
    if let Err(e) = outcome {
        report.fail(e);
    }
    report.set("total_seconds", begin.elapsed().as_secs_f64());
    if demo.json {
        out::line(report.to_json())?;
    } else {
        out::print(text::of(&report))?;
    }
    match report.errors.first() {
        _ if report.is_good() => Ok(()),
        Some(e) if report.is_unverified => Err(Failure::Unverified(e.clone())),
        first => Err(Failure::Failed(first.cloned().unwrap_or_else(|| "the demo was not completed".into()))),
    }
}

/// Says that others need the processors: a waiting program is not woken at once then, over RaaS and over TCP.
fn busy() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    let processors = std::thread::available_parallelism().ok()?.get();
    (load > processors as f64)
        .then(|| format!("this machine is busy (load {load:.0} on {processors} processors), so times are longer"))
}

/// Cleans up and ends the process on signals, and if the run hangs beyond its time limit.
fn guard(cleanup: &Cleanup, seconds_max: u64) -> Result<(), Failure> {
    let on_signal = cleanup.clone();
    terminal::signals::watch(move |_| on_signal.exit(|| {})).map_err(|e| Failure::failed("signal handling", e))?;
    let watched = cleanup.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(seconds_max) + WATCHDOG_GRACE);
        watched.exit(|| out::say("raas: the demo hung beyond --seconds-max and was ended"));
    });
    Ok(())
}
