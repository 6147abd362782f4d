//! A host of the demo: its daemon as a child process, with what it says about itself and what the kernel says of it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};

use control::{ConnectionRow, PathKind, Stat};

use super::cleanup::Cleanup;
use transport::process;
use verbs::{Wire, WirePolicy};

/// What daemons and applications log unless asked for more: warnings, without those of lanes and of daemons that have
/// ended, which the demo breaks itself.
const LOG_DEFAULT: &str = "warn,raasd::peers=error,raasd::hub::events=error,raas::returning=error";
/// How long a daemon may take until it serves, and to end in order.
const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long the resources of ended applications may take to return, and how often is looked whether they have.
const RETURN_LIMIT: Duration = Duration::from_secs(10);
const RETURN_PERIOD: Duration = Duration::from_millis(20);
/// Processor time and memory settle for this long before the idle memory is read.
const SETTLE: Duration = Duration::from_millis(300);

/// The ports of the hosts of a demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    /// UDP and, for its wire over TCP, TCP of the software NIC.
    pub(crate) nic: u16,
    /// TCP, between the daemons.
    pub(crate) peer: u16,
    /// What may carry the lane, which decides what of it is used.
    pub(crate) wire: WirePolicy,
    /// Engines of each daemon: the software NIC has as many ports.
    pub(crate) engines: u32,
}

/// How a daemon is started, and the next one in its place.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) cleanup: &'a Cleanup,
    /// Host 1 or 2.
    pub(crate) number: usize,
    pub(crate) ip: IpAddr,
    pub(crate) ports: Ports,
    pub(crate) key_file: &'a Path,
    pub(crate) log: Option<&'a str>,
}

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Host<'a> {
    start: Start<'a>,
    pid: u32,
    pub(crate) socket: PathBuf,
    /// The daemon ends when this is closed.
    stdin: ChildStdin,
    cpu_begin: Duration,
    /// What carries its lane.
    pub(crate) wire: Option<&'static str>,
    /// What it used, by its key in the report, as it says itself, and as the kernel says of its process.
    pub(crate) used: BTreeMap<&'static str, u64>,
    /// Processor time during the transfer of files.
    pub(crate) cpu: Option<Duration>,
}

/// Says what a child logs: what was asked for, else `$RUST_LOG`, else the default.
pub(crate) fn log(command: &mut Command, asked: Option<&str>) {
    let inherited = std::env::var_os("RUST_LOG").is_some();
    if let Some(filter) = asked.or((!inherited).then_some(LOG_DEFAULT)) {
        command.args(["--log", filter]);
    }
}

impl Start<'_> {
    /// Starts the daemon and waits until it serves.
    fn launch(&self, socket: &Path) -> Result<(u32, ChildStdin), String> {
        let (ip, ports) = (self.ip, self.ports);
        let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
        command.args(["daemon", "--listen", &ip.to_string(), "--peer-port", &ports.peer.to_string()]);
        command.args(["--udp-port", &ports.nic.to_string(), "--wire", ports.wire.name()]);
        // What is shown is that all connections share one queue pair.
        command.args(["--engines", &ports.engines.to_string(), "--tcp-direct", "off"]);
        command.arg("--socket").arg(socket).arg("--key-file").arg(self.key_file).arg("--until-stdin-closes");
        log(&mut command, self.log);
        let name = format!("the daemon of host {} ({ip})", self.number);
        let started = self.cleanup.spawn_lines(&mut command);
        let (pid, stdin, lines) = started.map_err(|e| format!("{name} cannot be started: {e}"))?;
        if !lines.recv_timeout(START_LIMIT).is_ok_and(|line| line.starts_with("ready ")) {
            let how = self.cleanup.wait(pid, Instant::now() + Duration::from_millis(200));
            let how = how.map_or(format!("was not ready within {START_LIMIT:?}"), |s| format!("ended with {s}"));
            return Err(format!("{name} {how}: see its messages above"));
        }
        Ok((pid, stdin))
    }
}

impl<'a> Host<'a> {
    pub(crate) fn start(start: Start<'a>) -> Result<Self, String> {
        let socket = start.cleanup.dir().join(format!("host{}.sock", start.number));
        let (pid, stdin) = start.launch(&socket)?;
        let (cpu_begin, wire, used, cpu) = (Duration::ZERO, None, BTreeMap::new(), None);
        Ok(Self { start, pid, socket, stdin, cpu_begin, wire, used, cpu })
    }

    /// Ends the daemon without a word, and starts the next one in its place.
    pub(crate) fn kill(&mut self) -> Result<(), String> {
        self.count(&self.stat()?);
        self.start.cleanup.kill(self.pid);
        (self.pid, self.stdin) = self.start.launch(&self.socket)?;
        Ok(())
    }

    /// Ends the daemon in order.
    pub(crate) fn stop(self) -> Result<(), String> {
        let Self { start, pid, stdin, .. } = self;
        drop(stdin);
        match start.cleanup.wait(pid, Instant::now() + STOP_LIMIT) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("the daemon at {} ended with {status}", start.ip)),
            None => Err(format!("the daemon at {} did not end within {STOP_LIMIT:?} and was killed", start.ip)),
        }
    }

    fn stat(&self) -> Result<Stat, String> {
        raas::inspect::stat(Some(&self.socket)).map_err(|e| format!("stat of the daemon at {}: {e}", self.start.ip))
    }

    /// A counter of the running daemon.
    pub(crate) fn counter(&self, name: &str) -> Result<u64, String> {
        let stat = self.stat()?;
        Ok(stat.counters.iter().find(|(counter, _)| counter == name).map_or(0, |(_, count)| *count))
    }

    /// Resets of its lanes.
    pub(crate) fn resets(&self) -> Result<u64, String> {
        Ok(self.stat()?.lanes.iter().map(|lane| lane.resets).sum())
    }

    /// Breaks its queue pair to `peer`.
    pub(crate) fn break_lane(&self, peer: IpAddr) -> Result<(), String> {
        let ip = self.start.ip;
        match raas::inspect::reset_lane(Some(&self.socket), peer) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("the daemon at {ip} has no lane to {peer}")),
            Err(e) => Err(format!("reset of the lane from {ip} to {peer}: {e}")),
        }
    }

    pub(crate) fn connections(&self) -> Result<Vec<ConnectionRow>, String> {
        let rows = raas::inspect::connections(Some(&self.socket));
        rows.map_err(|e| format!("ss of the daemon at {}: {e}", self.start.ip))
    }

    /// Checks that its connections of these processes, of all if none is given, go by `path`, and how many they are.
    /// Those of processes that have ended may take a while to go.
    pub(crate) fn check_paths(&self, path: PathKind, count: usize, pids: &[u32]) -> Result<(), String> {
        let give_up = Instant::now() + RETURN_LIMIT;
        loop {
            let mut rows = self.connections()?;
            rows.retain(|row| pids.is_empty() || pids.contains(&row.app_pid));
            let other = rows.iter().find(|row| row.path != path);
            if other.is_none() && rows.len() == count {
                return Ok(());
            }
            if Instant::now() >= give_up {
                let ip = self.start.ip;
                return Err(match other {
                    Some(row) => format!(
                        "connection {} of {ip} goes by {}, not {}: {}",
                        row.id,
                        row.path.as_str(),
                        path.as_str(),
                        row.reason.key()
                    ),
                    None => format!("the daemon at {ip} knows {} connections, not {count}", rows.len()),
                });
            }
            std::thread::sleep(RETURN_PERIOD);
        }
    }

    /// Reads what it uses; of queue pairs and the like, which may be replaced or joined by others, the most counts.
    pub(crate) fn read_used(&mut self) -> Result<(), String> {
        let stat = self.stat()?;
        let counts = [("rc_qps_per_host", stat.rc_qps), ("cqs_per_host", stat.cqs), ("srqs_per_host", stat.srqs)];
        for (key, count) in counts {
            self.keep_most(key, count.into());
        }
        let name = stat.lanes.first().and_then(|lane| lane.wire.as_deref());
        self.wire = [Wire::Roce, Wire::Iwarp].map(Wire::name).into_iter().find(|wire| Some(*wire) == name);
        self.sample_memory();
        Ok(())
    }

    fn keep_most(&mut self, key: &'static str, value: u64) {
        self.used.entry(key).and_modify(|most| *most = value.max(*most)).or_insert(value);
    }

    pub(crate) fn sample_memory(&mut self) {
        let most = self.used.get("daemon_rss_bytes").copied().unwrap_or(0);
        if let Some(now) = process::resident(self.pid).filter(|now| now.total_bytes > most) {
            self.used.insert("daemon_rss_bytes", now.total_bytes);
            self.used.insert("daemon_rss_shared_bytes", now.shared_bytes);
        }
    }

    /// The transfer of files begins.
    pub(crate) fn begin_transfer(&mut self) {
        self.cpu_begin = process::cpu_time(self.pid).unwrap_or_default();
    }

    /// The transfer of files is over.
    pub(crate) fn end_transfer(&mut self) -> Result<(), String> {
        self.cpu = process::cpu_time(self.pid).map(|now| now.saturating_sub(self.cpu_begin));
        self.read_used()
    }

    /// Adds what this daemon counted to what its predecessors did.
    fn count(&mut self, stat: &Stat) {
        let of = |name: &str| stat.counters.iter().find(|(n, _)| n == name).map_or(0, |(_, count)| *count);
        let counted = [
            ("retransmits_per_host", stat.retransmits),
            ("probes_per_host", of("probes")),
            ("duplicates_per_host", of("duplicates")),
            ("socket_overflows_per_host", of("rx_socket_overflow")),
        ];
        for (key, count) in counted {
            *self.used.entry(key).or_insert(0) += count;
        }
    }

    /// Waits until everything of the ended applications has returned, and reads what stays.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let give_up = Instant::now() + RETURN_LIMIT;
        let stat = loop {
            let (stat, connections) = (self.stat()?, self.connections()?.len());
            if stat.apps.is_empty() && connections == 0 {
                break stat;
            }
            if Instant::now() >= give_up {
                let (ip, apps) = (self.start.ip, stat.apps.len());
                return Err(format!(
                    "the daemon at {ip} still holds {connections} connections and {apps} applications after they ended"
                ));
            }
            std::thread::sleep(RETURN_PERIOD);
        };
        self.count(&stat);
        std::thread::sleep(SETTLE);
        self.used.insert("daemon_rss_idle_bytes", process::resident(self.pid).map_or(0, |r| r.total_bytes));
        Ok(())
    }
}
