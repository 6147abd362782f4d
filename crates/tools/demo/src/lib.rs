//! `raas demo`: two hosts on this machine, many applications, a thousand connections; small messages, a broken queue
//! pair, a killed application and real files, every byte verified, and the same over kernel TCP beside it.
//!
//! This process starts and judges; it carries no data itself. It makes up no figure: what the daemons use is what they
//! and the kernel say, and what arrived is what senders and receivers say independently of each other.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // see `terminal::out`

mod app;
mod cleanup;
mod clock;
mod corpus;
mod fleet;
mod flow;
mod host;
mod links;
mod measure;
mod ping;
mod plan;
mod preflight;
mod progress;
mod protocol;
mod rate;
mod report;
mod stream;
mod text;
mod transfer;
mod verify;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use app::run as run_app;

use cleanup::{Cleanup, CleanupOwner};
use corpus::Corpus;
use fleet::Cast;
use host::{Host, Nobody, Ports, Watched};
use measure::{Measured, Observer, Stage};
use plan::{Link, Seat};
use progress::Progress;
use protocol::Via;
use report::Report;
use terminal::Failure;
use terminal::out;
use terminal::table;
use transport::tcp_congestion;
use verbs::WirePolicy;

/// How long after the time limit the watchdog waits for the orderly end.
const WATCHDOG_GRACE: Duration = Duration::from_secs(15);
/// Bytes of the key that the two daemons share.
const KEY_BYTES: usize = 32;

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
    let cleanup = CleanupOwner::new().map_err(|e| Failure::failed("no temporary directory (see TMPDIR)", e))?;
    guard(&cleanup, demo.seconds_max)?;
    let mut progress = Progress::new();
    let channels = demo.connections as usize * 2;
    let corpus = corpus::choose(demo.path.as_deref(), channels, deadline)?;
    let links = plan::plan(demo.connections, demo.apps, &corpus);
    let seats: Vec<Seat> = (0..2).flat_map(|host| (0..demo.apps).map(move |app| Seat { host, app })).collect();
    let ports = Ports { nic: demo.ports.0, peer: demo.ports.1, wire: demo.wire, engines: demo.engines };
    let mut report = Report {
        hosts: demo.hosts.to_vec(),
        ports: Some(ports),
        connections: demo.connections,
        application_processes: demo.apps * 2,
        distinct_files: corpus.files.len(),
        notes: corpus.notes.clone(),
        ..Report::default()
    };
    let mut run = Run {
        demo,
        cleanup: &cleanup,
        corpus: &corpus,
        links: &links,
        seats: &seats,
        ports,
        deadline,
        progress: &mut progress,
    };
    let outcome = preflight::check(demo.hosts, ports, &seats, &links).and_then(|()| run.all(&mut report));
    cleanup.now();
    if cleanup.is_interrupted() {
        // The thread that took the signal ends the process.
        loop {
            std::thread::park();
        }
    }
    report.judge();
    if let Err(e) = outcome
        && !report.errors.contains(&e)
    {
        report.errors.push(e);
    }
    report.total_seconds = begin.elapsed().as_secs_f64();
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

/// Cleans up and ends the process on signals, and if the run hangs beyond its time limit.
fn guard(cleanup: &Cleanup, seconds_max: u64) -> Result<(), Failure> {
    let on_signal = Cleanup::clone(cleanup);
    terminal::signals::watch(move |_| {
        on_signal.interrupt();
        Progress::clear();
        std::process::exit(1);
    })
    .map_err(|e| Failure::failed("signal handling", e))?;
    let watched = Cleanup::clone(cleanup);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(seconds_max) + WATCHDOG_GRACE);
        watched.now();
        out::say("raas: the demo hung beyond --seconds-max and was ended");
        std::process::exit(1);
    });
    Ok(())
}

struct Run<'a> {
    demo: &'a Demo,
    cleanup: &'a Cleanup,
    corpus: &'a Corpus,
    links: &'a [Link],
    seats: &'a [Seat],
    ports: Ports,
    deadline: Instant,
    progress: &'a mut Progress,
}

impl Run<'_> {
    fn all(&mut self, report: &mut Report) -> Result<(), String> {
        let (bytes, connections) = (table::bytes(self.corpus.bytes), table::grouped(self.links.len() as u64));
        let (files, apps) = (table::grouped(self.corpus.files.len() as u64), self.demo.apps);
        self.progress.say(&format!("{files} files, {bytes}; {connections} connections, {apps} + {apps} applications"));
        self.over_raas(report)?;
        self.over_tcp(report)
    }

    fn over_raas(&mut self, report: &mut Report) -> Result<(), String> {
        let demo = self.demo;
        let key_file = self.write_key()?;
        let start = |number: usize| {
            let log = demo.log.as_deref();
            Host::start(self.cleanup, number, demo.hosts[number], self.ports, &key_file, log)
        };
        let mut hosts = [start(0)?, start(1)?];
        let via = [0, 1].map(|i: usize| Via::Raas { socket: hosts[i].socket().to_path_buf() });
        let connections = self.links.len();
        let mut watched = Watched { hosts: &mut hosts, connections };
        let done = self.measure("RaaS", [&via[0], &via[1]], &mut watched, &mut report.raas);
        report.daemons = report.raas.opened.is_some().then(|| [hosts[0].used(), hosts[1].used()]);
        done?;
        hosts.iter_mut().try_for_each(Host::settle)?;
        let used = [hosts[0].used(), hosts[1].used()];
        report.daemons = Some(used);
        for (ip, used) in demo.hosts.iter().zip(used) {
            let engines = demo.engines;
            // Few connections may all be on fewer lanes.
            if !(1..=engines).contains(&used.rc_qps) || used.srqs != engines {
                report.errors.push(format!(
                    "the daemon at {ip} used {} RC queue pairs and {} shared receive queues, not {engines} of each",
                    used.rc_qps, used.srqs
                ));
            }
        }
        for host in hosts {
            host.stop()?;
        }
        Ok(())
    }

    fn over_tcp(&mut self, report: &mut Report) -> Result<(), String> {
        report.tcp_congestion = Some(tcp_congestion().map_err(|e| e.to_string())?);
        self.measure("kernel TCP", [&Via::Tcp, &Via::Tcp], &mut Nobody, &mut report.tcp)
    }

    /// Everything over one transport.
    fn measure(
        &mut self,
        label: &str,
        via: [&Via; 2],
        observer: &mut dyn Observer,
        measured: &mut Measured,
    ) -> Result<(), String> {
        let neighbours = [0, 1].map(|app| Seat { host: 0, app });
        let [from, to] = neighbours;
        let near = [Link { from, to, files_from: Vec::new(), files_to: Vec::new() }];
        let victim = Seat { host: 1, app: self.demo.apps.saturating_sub(1) };
        let cast = |seats, links| Cast { seats, hosts: self.demo.hosts, via, links, corpus: self.corpus };
        let (small, whole) = (cast(&neighbours, &near), cast(self.seats, self.links));
        let (cleanup, deadline) = (self.cleanup, self.deadline);
        let mut stage = Stage { label, cleanup, deadline, progress: &mut *self.progress, observer, measured };
        let done = stage.one_host(small).and_then(|()| stage.two_hosts(whole, victim));
        done.map_err(|e| format!("{label}: {e}"))
    }

    /// A fresh key for this run's daemons, readable by this user alone.
    fn write_key(&self) -> Result<PathBuf, String> {
        use std::io::{Read, Write};
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.cleanup.dir().join("key");
        let mut key = [0; KEY_BYTES];
        std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut key)).map_err(|e| e.to_string())?;
        let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut f| writeln!(f, "{hex}"))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }
}
