//! What the demo tells, part by part: what programs of one host gain, a TCP program that nobody changed, a thousand
//! connections on one queue pair, what breaks under them and what goes on, and real files. Each beside kernel TCP. What
//! was reached is kept when something fails later.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use control::PathKind;
use serde_json::{Value, json};

use super::Demo;
use super::cleanup::Cleanup;
use super::corpus::Corpus;
use super::echo;
use super::fleet::{Cast, Fleet, Flow};
use super::host::{Host, Ports, Start};
use super::plan::{self, Connection};
use super::protocol::{Lost, Seat, Via};
use super::report::Report;
use terminal::{Failure, out, table};

/// Bytes of the key that the two daemons share.
const KEY_BYTES: usize = 32;
/// How often is said how far the files are.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);
/// At the start of a flow some applications wait for others to begin, so it says nothing about pauses.
const FLOW_BEGIN_NS: u64 = 50_000_000;
/// What is measured over RaaS, and over kernel TCP: its name, and how its keys begin.
const RAAS: (&str, &str) = ("RaaS", "");
const TCP: (&str, &str) = ("kernel TCP", "tcp_");

/// A run of the demo.
pub(crate) struct Story<'a> {
    pub(crate) demo: &'a Demo,
    pub(crate) cleanup: &'a Cleanup,
    pub(crate) ports: Ports,
    pub(crate) corpus: &'a Corpus,
    /// SHA-256 of its files.
    pub(crate) digests: &'a [String],
    pub(crate) links: &'a [Connection],
    pub(crate) seats: &'a [Seat],
    pub(crate) deadline: Instant,
    pub(crate) report: &'a mut Report,
}

impl Story<'_> {
    /// Everything, in its order.
    pub(crate) fn tell(&mut self) -> Result<(), String> {
        let (demo, cleanup, ports) = (self.demo, self.cleanup, self.ports);
        let key_file = self.write_key()?;
        let start = |number: usize| {
            let (ip, log) = (demo.hosts[number], demo.log.as_deref());
            Host::start(Start { cleanup, number: number + 1, ip, ports, key_file: &key_file, log })
        };
        let mut hosts = [start(0)?, start(1)?];
        let via = hosts.each_ref().map(|host| Via::Raas(host.socket.clone()));
        let via_tcp = [Via::Tcp, Via::Tcp];
        self.one_host(RAAS, &via, Some(&hosts[0]))?;
        self.one_host(TCP, &via_tcp, None)?;
        self.unchanged(RAAS, Some(&hosts[0]))?;
        self.unchanged(TCP, None)?;
        let done = self.two_hosts(RAAS, &via, &mut hosts);
        let settled = done.and_then(|()| hosts.iter_mut().try_for_each(Host::settle));
        self.judge_hosts(&hosts);
        settled?;
        hosts.into_iter().try_for_each(Host::stop)?;
        self.two_hosts(TCP, &via_tcp, &mut [])
    }

    /// A fresh key for this run's daemons, readable by this user alone.
    fn write_key(&self) -> Result<PathBuf, String> {
        let path = self.cleanup.dir().join("key");
        let mut key = [0; KEY_BYTES];
        std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut key)).map_err(|e| e.to_string())?;
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut f| writeln!(f, "{}", super::corpus::hex(&key)))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    /// Small messages between two applications of one host.
    fn one_host(&mut self, side: (&str, &str), via: &[Via; 2], host: Option<&Host<'_>>) -> Result<(), String> {
        out::say(format_args!("one host, {}: small messages", side.0));
        let seats = [0, 1].map(|app| Seat { host: 0, app });
        let links = [Connection::new(seats[0], seats[1])];
        let cast = Cast { seats: &seats, hosts: self.demo.hosts, via, links: &links, corpus: self.corpus };
        self.with_fleet(side, cast, |story, fleet| {
            fleet.open()?;
            if let Some(host) = host {
                host.check_paths(PathKind::Shm, 2, &[])?;
            }
            story.report.set_all(&format!("{}one_host_", side.1), &json!(fleet.small()?));
            Ok(())
        })
    }

    /// A TCP program that knows nothing of RaaS: under `raas run`, and as it is.
    fn unchanged(&mut self, (label, prefix): (&str, &str), host: Option<&Host<'_>>) -> Result<(), String> {
        out::say(format_args!(
            "one host, {label}: a TCP program{}",
            if host.is_some() { " under `raas run`" } else { "" }
        ));
        let measured = echo::run_both(self.cleanup, self.demo.hosts[0], host).map_err(|failure| {
            self.report.is_unverified |= matches!(failure, Failure::Unverified(_));
            format!("{label}: {failure}")
        })?;
        self.report.set_all(&format!("{prefix}run_"), &measured);
        if host.is_some() {
            // As the daemon said it of both ends.
            self.report.set("run_path", PathKind::Shm.as_str());
        }
        Ok(())
    }

    /// Everything between two hosts, with their daemons if it is over RaaS.
    fn two_hosts(&mut self, side: (&str, &str), via: &[Via; 2], hosts: &mut [Host<'_>]) -> Result<(), String> {
        let (label, prefix) = side;
        let (seats, links) = (self.seats, self.links);
        let cast = Cast { seats, hosts: self.demo.hosts, via, links, corpus: self.corpus };
        self.with_fleet(side, cast, |story, fleet| {
            let connections = table::grouped(links.len() as u64);
            let say = |what: &str| out::say(format_args!("two hosts, {label}: {what}"));
            say(&format!("{} applications are ready; opening {connections} connections", seats.len()));
            let begin = Instant::now();
            fleet.open()?;
            story.report.set(&format!("{prefix}open_seconds"), begin.elapsed().as_secs_f64());
            story.report.set(&format!("{prefix}app_descriptors_max"), fleet.descriptors_max());
            story.all_on_lane(hosts)?;
            story.report.set_all(prefix, &json!(fleet.small()?));
            if let [host, peer] = hosts {
                say("bytes flow on every connection; breaking the queue pair");
                story.break_queue_pair(fleet, [host, peer])?;
                story.all_on_lane(hosts)?;
            }
            say("bytes flow on every connection; killing a program, and starting it again");
            story.kill_program(prefix, fleet, hosts)?;
            story.all_on_lane(hosts)?;
            if let [_, host] = hosts {
                say("bytes flow on every connection; killing a daemon, and starting the next one");
                story.kill_daemon(fleet, host)?;
                story.all_on_lane(hosts)?;
            }
            say(&format!("{} of files over {connections} connections", table::bytes(story.corpus.bytes)));
            story.transfer(prefix, fleet, hosts)
        })
    }

    fn all_on_lane(&self, hosts: &mut [Host<'_>]) -> Result<(), String> {
        hosts.iter_mut().try_for_each(|host| {
            host.check_paths(PathKind::Lane, self.links.len(), &[])?;
            host.read_used()
        })
    }

    /// Does something with applications, which end in order then. One that failed because of wrong bytes is a finding
    /// as well as a failure.
    fn with_fleet<'f>(
        &mut self,
        (label, _): (&str, &str),
        cast: Cast<'f>,
        work: impl FnOnce(&mut Self, &mut Fleet<'f>) -> Result<(), String>,
    ) -> Result<(), String>
    where
        Self: 'f,
    {
        let mut fleet = Fleet::start(self.cleanup, cast, self.deadline)?;
        let done = work(self, &mut fleet).and_then(|()| fleet.finish()).map_err(|e| format!("{label}: {e}"));
        if let (Err(e), true) = (&done, fleet.is_unverified) {
            self.report.find([e.clone()]);
        }
        done
    }

    fn break_queue_pair(&mut self, fleet: &mut Fleet<'_>, hosts: [&Host<'_>; 2]) -> Result<(), String> {
        let resets = || Ok::<_, String>([hosts[0].resets()?, hosts[1].resets()?]);
        let before = resets()?;
        let flow = fleet.flow(|_| hosts[0].break_lane(self.demo.hosts[1]))?;
        let after = resets()?;
        let resets = [0, 1].map(|host: usize| after[host].saturating_sub(before[host]));
        if resets.contains(&0) {
            return Err(format!("the queue pair was broken and the daemons count {resets:?} resets"));
        }
        let mut told = self.went_on(&flow);
        told["resets_per_host"] = json!(resets);
        self.report.set("lane_reset", told);
        Ok(())
    }

    fn kill_daemon(&mut self, fleet: &mut Fleet<'_>, host: &mut Host<'_>) -> Result<(), String> {
        let flow = fleet.flow(|_| host.kill())?;
        let mut told = self.went_on(&flow);
        // As the next daemon says.
        told["connections_adopted"] = host.counter("connections_adopted")?.into();
        self.report.set("daemon_kill", told);
        Ok(())
    }

    fn kill_program(&mut self, prefix: &str, fleet: &mut Fleet<'_>, hosts: &[Host<'_>]) -> Result<(), String> {
        let victim = *self.seats.last().ok_or("there is no application")?;
        let resets = || hosts.iter().map(Host::resets).collect::<Result<Vec<_>, _>>();
        let before = resets()?;
        let flow = fleet.flow(|fleet| {
            fleet.kill(victim);
            Ok(())
        })?;
        if resets()? != before {
            return Err("the killed program took the queue pair of all others with it".into());
        }
        let of_killed: BTreeSet<u32> =
            (0u32..).zip(self.links).filter(|(_, l)| l.has(victim)).map(|(n, _)| n).collect();
        let lost = self.judge_flow(&flow, &of_killed);
        let first = |lost: &[Lost]| lost.iter().map(|lost| lost.at_ns).min();
        let last_told = flow.told.iter().filter_map(|told| first(&told.lost)).max();
        let told = json!({
            "connections": self.links.len(),
            "connections_of_killed": of_killed.len(),
            "connections_lost": lost,
            "bytes": flow.bytes(),
            "told_ms": last_told.map(|at| at.saturating_sub(flow.broken_ns) as f64 / 1e6),
        });
        self.report.set(&format!("{prefix}kill"), told);
        fleet.replace(victim)
    }

    /// What a flow says in which nothing may fail.
    fn went_on(&mut self, flow: &Flow) -> Value {
        let lost = self.judge_flow(flow, &BTreeSet::new());
        let (pause_ms, pause_without_ms) = flow.pauses();
        json!({
            "connections": self.links.len(), "connections_lost": lost, "bytes": flow.bytes(),
            "pause_ms": pause_ms, "pause_without_ms": pause_without_ms,
        })
    }

    /// Connections that failed in a flow; exactly `expected` must have.
    fn judge_flow(&mut self, flow: &Flow, expected: &BTreeSet<u32>) -> usize {
        let all = || flow.told.iter().flat_map(|told| &told.lost);
        let lost: BTreeMap<u32, &str> = all().map(|lost| (lost.connection, &*lost.error)).collect();
        let unexpected = |(connection, error): (&u32, &&str)| {
            let is_expected = expected.contains(connection);
            (!is_expected).then(|| format!("connection {connection} failed, and nothing was done to it: {error}"))
        };
        let mut findings: Vec<String> = lost.iter().filter_map(unexpected).collect();
        let altered = all().filter(|lost| lost.is_unverified && expected.contains(&lost.connection));
        findings.extend(altered.map(|lost| format!("connection {}: {}", lost.connection, lost.error)));
        let alive = expected.iter().filter(|connection| !lost.contains_key(connection));
        findings.extend(alive.map(|connection| format!("connection {connection} goes on without its killed program")));
        self.report.find(plan::bounded(findings));
        lost.len()
    }

    fn transfer(&mut self, prefix: &str, fleet: &mut Fleet<'_>, hosts: &mut [Host<'_>]) -> Result<(), String> {
        hosts.iter_mut().for_each(Host::begin_transfer);
        let (total, begin) = (table::bytes(self.corpus.bytes), Instant::now());
        let mut said = begin;
        let done = fleet.transfer(|bytes| {
            hosts.iter_mut().for_each(Host::sample_memory);
            if said.elapsed() >= PROGRESS_PERIOD {
                said = Instant::now();
                out::say(format_args!("  {} of {total}", table::bytes(bytes)));
            }
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        hosts.iter_mut().try_for_each(Host::end_transfer)?;
        let app_cpu_seconds: f64 = done.iter().map(|(_, done)| done.cpu_seconds).sum();
        let verified = plan::verify(self.links, self.corpus, self.digests, &done);
        self.report.find(verified.findings);
        let gbit_per_s = verified.bytes as f64 * 8.0 / 1e9 / seconds;
        let figures = json!({
            "seconds": seconds, "gbit_per_s": gbit_per_s, "app_cpu_seconds": app_cpu_seconds, "bytes": verified.bytes,
        });
        self.report.set_all(prefix, &figures);
        if prefix.is_empty() {
            self.report.set("files", verified.files);
        }
        Ok(())
    }

    /// What the daemons used, and whether all connections shared what they must share.
    fn judge_hosts(&mut self, hosts: &[Host<'_>; 2]) {
        for (key, a) in &hosts[0].used {
            if let Some(b) = hosts[1].used.get(key) {
                self.report.set(key, json!([a, b]));
            }
        }
        if let [Some(a), Some(b)] = hosts.each_ref().map(|host| host.cpu) {
            self.report.set("daemon_cpu_seconds", json!([a.as_secs_f64(), b.as_secs_f64()]));
        }
        if hosts[0].wire == hosts[1].wire {
            self.report.set("wire", hosts[0].wire);
        }
        let engines = u64::from(self.demo.engines);
        for (ip, host) in self.demo.hosts.iter().zip(hosts) {
            let [Some(qps), Some(srqs)] = ["rc_qps_per_host", "srqs_per_host"].map(|key| host.used.get(key)) else {
                continue;
            };
            // Few connections may all be on fewer lanes.
            if !(1..=engines).contains(qps) || *srqs != engines {
                self.report.fail(format!(
                    "the daemon at {ip} used {qps} RC queue pairs and {srqs} shared receive queues, not {engines} of each"
                ));
            }
        }
    }
}

impl Flow {
    /// Bytes that arrived and were compared.
    fn bytes(&self) -> u64 {
        self.told.iter().map(|told| told.received_bytes).sum()
    }

    /// The longest time in milliseconds in which an application received nothing, after the break, and before it.
    fn pauses(&self) -> (f64, f64) {
        let gaps = || self.told.iter().flat_map(|told| &told.gaps);
        let longest = |from: u64, to: u64| {
            let within = gaps().filter(|gap| gap.begin_ns >= from && gap.begin_ns < to);
            within.map(|gap| gap.length_ns).max().unwrap_or(0) as f64 / 1e6
        };
        // A gap that the break falls into is one after it.
        let from = gaps().filter(|gap| gap.begin_ns + gap.length_ns > self.broken_ns).map(|gap| gap.begin_ns).min();
        let from = from.unwrap_or(self.broken_ns).min(self.broken_ns);
        (longest(from, u64::MAX), longest(self.begin_ns + FLOW_BEGIN_NS, from))
    }
}
