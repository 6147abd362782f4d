//! The demo's sequence over one transport, the same for RaaS and for kernel TCP: small messages on one host; then,
//! between two hosts, every connection opened, small messages, files, the lane broken, an application killed, and an
//! orderly end. What was reached is kept when something fails later.

use std::time::{Duration, Instant};

use super::cleanup::Cleanup;
use super::clock::monotonic_ns;
use super::fleet::{Cast, Fleet};
use super::plan::{Link, Seat};
use super::progress::Progress;
use super::protocol::Flowed;
use super::verify::{Verified, verify};

/// The connection whose latency and message rate are measured.
const MEASURED: u32 = 0;
/// How long bytes flow before something is broken under them.
const FLOW_BEFORE: Duration = Duration::from_millis(200);
/// And after that.
const FLOW_AFTER: Duration = Duration::from_millis(300);
/// At the start of a flow some applications wait for others to begin, so it says nothing about pauses.
const FLOW_BEGIN_NS: u64 = 50_000_000;
/// Findings of a flow that are reported.
const FINDINGS_MAX: usize = 20;

/// Small messages on one connection.
#[derive(Debug, Clone)]
pub(crate) struct Small {
    /// Half round trips, sorted, in nanoseconds.
    pub(crate) half_round_trips_ns: Vec<u64>,
    /// Messages one way that were compared on arrival.
    pub(crate) messages: u64,
    /// Time that they took.
    pub(crate) messages_seconds: f64,
}

impl Small {
    /// A quantile of the half round trips in microseconds.
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        let last = self.half_round_trips_ns.len().saturating_sub(1);
        let at = (quantile * last as f64).round() as usize;
        self.half_round_trips_ns.get(at.min(last)).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
    }

    /// Messages by time.
    pub(crate) fn msgs_per_s(&self) -> f64 {
        self.messages as f64 / self.messages_seconds.max(1e-9)
    }
}

/// All connections between the hosts.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    /// Open at once.
    pub(crate) connections: usize,
    /// From the first connect to the last accept.
    pub(crate) seconds: f64,
    /// Descriptors of the application that has most.
    pub(crate) descriptors_max: Option<usize>,
}

/// The queue pair that all connections share, broken while bytes flow.
#[derive(Debug, Clone)]
pub(crate) struct Reset {
    /// Connections over which bytes flowed.
    pub(crate) connections: usize,
    /// Connections that failed.
    pub(crate) lost: usize,
    /// Bytes that arrived and were compared.
    pub(crate) bytes: u64,
    /// Resets that each daemon counted.
    pub(crate) resets: [u64; 2],
    /// Longest time without a byte for an application after the break.
    pub(crate) pause_ms: f64,
    /// And before it, in the same flow.
    pub(crate) pause_without_ms: f64,
}

/// Real files.
#[derive(Debug, Clone)]
pub(crate) struct Bulk {
    /// From the start to the last application's last byte and digest.
    pub(crate) took: Duration,
    /// What was verified.
    pub(crate) verified: Verified,
    /// Processor time of all applications during the transfer.
    pub(crate) app_cpu_seconds: f64,
}

impl Bulk {
    /// Verified file bytes per time, both directions together.
    pub(crate) fn gbit_per_s(&self) -> f64 {
        self.verified.bytes as f64 * 8.0 / 1e9 / self.took.as_secs_f64().max(1e-9)
    }
}

/// An application killed while bytes flow.
#[derive(Debug, Clone)]
pub(crate) struct Kill {
    /// Connections over which bytes flowed.
    pub(crate) connections: usize,
    /// Those of the killed application.
    pub(crate) of_killed: usize,
    /// Connections that failed.
    pub(crate) lost: usize,
    /// Bytes that arrived at the others and were compared.
    pub(crate) bytes: u64,
    /// From the kill until the last application at the other end of one of its connections knew; none if it had none.
    pub(crate) told_ms: Option<f64>,
}

/// What one transport did; none where the run did not get so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    pub(crate) one_host: Option<Small>,
    pub(crate) opened: Option<Opened>,
    pub(crate) two_hosts: Option<Small>,
    pub(crate) reset: Option<Reset>,
    pub(crate) bulk: Option<Bulk>,
    pub(crate) kill: Option<Kill>,
    /// Bytes that did not arrive as they were sent, connections that failed and must not have.
    pub(crate) findings: Vec<String>,
}

/// Watches while a transport is measured, and breaks what all its connections share, if they share anything.
pub(crate) trait Observer {
    /// All connections are open and idle; `on_one_host`: both ends are on one host.
    fn on_opened(&mut self, on_one_host: bool) -> Result<(), String>;
    /// The transfer of files begins now.
    fn on_transfer(&mut self);
    /// The transfer runs; called about ten times a second.
    fn on_tick(&mut self);
    /// The transfer is over, the connections are still there.
    fn on_transferred(&mut self) -> Result<(), String>;
    /// Whether all connections share something that can be broken.
    fn shares(&self) -> bool;
    /// Breaks it.
    fn break_shared(&mut self) -> Result<(), String>;
    /// How often each host has replaced it.
    fn resets(&mut self) -> Result<[u64; 2], String>;
}

/// What a sequence runs with.
pub(crate) struct Stage<'a> {
    /// `RaaS` or `kernel TCP`.
    pub(crate) label: &'a str,
    pub(crate) cleanup: &'a Cleanup,
    pub(crate) deadline: Instant,
    pub(crate) progress: &'a mut Progress,
    pub(crate) observer: &'a mut dyn Observer,
    pub(crate) measured: &'a mut Measured,
}

impl Stage<'_> {
    /// Small messages between two applications of one host.
    pub(crate) fn one_host(&mut self, cast: Cast<'_>) -> Result<(), String> {
        self.progress.say(&format!("{}: small messages on one host", self.label));
        let mut fleet = Fleet::start(self.cleanup, cast, self.deadline)?;
        let done = self.one_host_with(&mut fleet, cast);
        self.heed(&fleet, done)
    }

    fn one_host_with(&mut self, fleet: &mut Fleet, cast: Cast<'_>) -> Result<(), String> {
        let listeners = fleet.listening()?;
        fleet.open(&listeners)?;
        self.observer.on_opened(true)?;
        self.measured.one_host = Some(small(fleet, cast.links)?);
        fleet.finish()
    }

    /// Everything between two hosts; `victim` is killed at the end.
    pub(crate) fn two_hosts(&mut self, cast: Cast<'_>, victim: Seat) -> Result<(), String> {
        let mut fleet = Fleet::start(self.cleanup, cast, self.deadline)?;
        let done = self.two_hosts_with(&mut fleet, cast, victim);
        self.heed(&fleet, done)
    }

    fn two_hosts_with(&mut self, fleet: &mut Fleet, cast: Cast<'_>, victim: Seat) -> Result<(), String> {
        let listeners = fleet.listening()?;
        let (label, links) = (self.label, cast.links);
        let apps = cast.seats.len();
        self.progress.say(&format!("{label}: {apps} applications are ready; opening {} connections", links.len()));
        let begin = Instant::now();
        fleet.open(&listeners)?;
        let seconds = begin.elapsed().as_secs_f64();
        let opened = Opened { connections: links.len(), seconds, descriptors_max: fleet.descriptors_max() };
        self.measured.opened = Some(opened);
        self.observer.on_opened(false)?;
        self.measured.two_hosts = Some(small(fleet, links)?);
        self.transfer(fleet, cast)?;
        if self.observer.shares() {
            self.progress.say(&format!("{label}: bytes flow on every connection; breaking the queue pair"));
            self.break_under_flow(fleet, links)?;
        }
        self.progress.say(&format!("{label}: bytes flow on every connection; killing an application"));
        self.kill_under_flow(fleet, links, victim)?;
        fleet.finish()
    }

    /// An application that failed because of wrong bytes is a finding as well as a failure.
    fn heed(&mut self, fleet: &Fleet, done: Result<(), String>) -> Result<(), String> {
        if let (Err(e), true) = (&done, fleet.is_unverified()) {
            self.measured.findings.push(e.clone());
        }
        done
    }

    fn break_under_flow(&mut self, fleet: &mut Fleet, links: &[Link]) -> Result<(), String> {
        let before = self.observer.resets()?;
        let begin_ns = monotonic_ns();
        let disturb = |_: &mut Fleet| {
            let now = monotonic_ns();
            self.observer.break_shared().map(|()| now)
        };
        let (broken_ns, told) = fleet.flow(FLOW_BEFORE, disturb, FLOW_AFTER)?;
        let after = self.observer.resets()?;
        let resets = [0, 1].map(|host: usize| after[host].saturating_sub(before[host]));
        if resets.contains(&0) {
            return Err(format!("the queue pair was broken and the daemons count {resets:?} resets"));
        }
        let lost = self.judge_flow(&told, &[]);
        let longest = |from: u64, to: u64| {
            let gaps = told.iter().flat_map(|(_, f)| &f.gaps);
            let within = gaps.filter(|g| g.begin_ns >= from && g.begin_ns < to);
            within.map(|g| g.length_ns).max().unwrap_or(0) as f64 / 1e6
        };
        // A gap that the break falls into is one after it.
        let last_before = told.iter().flat_map(|(_, f)| &f.gaps).filter(|g| g.begin_ns + g.length_ns > broken_ns);
        let pause_from = last_before.map(|g| g.begin_ns).min().unwrap_or(broken_ns).min(broken_ns);
        self.measured.reset = Some(Reset {
            connections: links.len(),
            lost,
            bytes: told.iter().map(|(_, f)| f.received_bytes).sum(),
            resets,
            pause_ms: longest(pause_from, u64::MAX),
            pause_without_ms: longest(begin_ns + FLOW_BEGIN_NS, pause_from),
        });
        self.observer.on_opened(false)
    }

    fn transfer(&mut self, fleet: &mut Fleet, cast: Cast<'_>) -> Result<(), String> {
        self.progress.begin(self.label, cast.corpus.bytes);
        self.observer.on_transfer();
        let result = fleet.transfer(|bytes| {
            self.progress.at(bytes);
            self.observer.on_tick();
        });
        self.progress.end();
        let (took, records) = result?;
        self.observer.on_transferred()?;
        let verified = verify(cast.links, &records);
        self.measured.findings.extend(verified.findings.iter().cloned());
        let app_cpu_seconds = records.iter().map(|(_, t)| t.cpu_seconds).sum();
        self.measured.bulk = Some(Bulk { took, verified, app_cpu_seconds });
        Ok(())
    }

    fn kill_under_flow(&mut self, fleet: &mut Fleet, links: &[Link], victim: Seat) -> Result<(), String> {
        let before = self.observer.resets()?;
        let (killed_ns, told) = fleet.flow(FLOW_BEFORE, |fleet| fleet.kill(victim), FLOW_AFTER)?;
        if self.observer.resets()? != before {
            return Err("the killed application took the queue pair of all others with it".into());
        }
        let of_killed: Vec<u32> = (0u32..).zip(links).filter(|(_, l)| l.has(victim)).map(|(n, _)| n).collect();
        let lost = self.judge_flow(&told, &of_killed);
        let first = |flowed: &Flowed| flowed.lost.iter().map(|l| l.at_ns).min();
        let last_told = told.iter().filter_map(|(_, f)| first(f)).max();
        self.measured.kill = Some(Kill {
            connections: links.len(),
            of_killed: of_killed.len(),
            lost,
            bytes: told.iter().map(|(_, f)| f.received_bytes).sum(),
            told_ms: last_told.map(|at| at.saturating_sub(killed_ns) as f64 / 1e6),
        });
        Ok(())
    }

    /// Connections that failed in a flow; exactly `expected` must have.
    fn judge_flow(&mut self, told: &[(Seat, Flowed)], expected: &[u32]) -> usize {
        let mut findings: Vec<String> = told.iter().flat_map(|(_, f)| f.findings.iter().cloned()).collect();
        let mut lost = std::collections::BTreeMap::new();
        for failed in told.iter().flat_map(|(_, f)| &f.lost) {
            lost.insert(failed.connection, &failed.error);
        }
        for (connection, error) in lost.iter().filter(|(connection, _)| !expected.contains(connection)) {
            findings.push(format!("connection {connection} failed, and nothing was done to it: {error}"));
        }
        for connection in expected.iter().filter(|connection| !lost.contains_key(connection)) {
            findings.push(format!("connection {connection} goes on without its killed application"));
        }
        let more = findings.len().saturating_sub(FINDINGS_MAX);
        findings.truncate(FINDINGS_MAX);
        findings.extend((more > 0).then(|| format!("and {more} more")));
        self.measured.findings.extend(findings);
        lost.len()
    }
}

fn small(fleet: &mut Fleet, links: &[Link]) -> Result<Small, String> {
    let link = links.first().ok_or("no connections")?;
    let mut half_round_trips_ns = fleet.ping(MEASURED, link)?;
    half_round_trips_ns.sort_unstable();
    let (messages, took_ns) = fleet.rate(MEASURED, link)?;
    Ok(Small { half_round_trips_ns, messages, messages_seconds: took_ns as f64 / 1e9 })
}
