//! A host of the demo: its daemon as a child process, with what it says about itself and what the kernel says of it.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::cleanup::Cleanup;
use super::measure::Observer;
use transport::process;
use verbs::{Wire, WirePolicy};

/// What daemons log unless asked for more: warnings, without those of lanes, which the demo breaks itself.
const LOG_DEFAULT: &str = "warn,raasd::peers=error";
/// How long a daemon may take until it serves.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a daemon may take to end in order.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long the resources of ended applications may take to return.
const RETURN_LIMIT: Duration = Duration::from_secs(10);
/// How often is looked whether they have.
const RETURN_PERIOD: Duration = Duration::from_millis(20);
/// Processor time and memory settle for this long before the idle memory is read.
const SETTLE: Duration = Duration::from_millis(300);

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Host {
    cleanup: Cleanup,
    pid: u32,
    ip: IpAddr,
    socket: PathBuf,
    /// The daemon ends when this is closed.
    stdin: ChildStdin,
    used: HostUse,
    cpu_begin: Duration,
}

/// What one daemon used, as it says itself, and what the kernel says of its process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct HostUse {
    /// RC queue pairs while all connections were open.
    pub(crate) rc_qps: u32,
    /// Completion queues.
    pub(crate) cqs: u32,
    /// Shared receive queues.
    pub(crate) srqs: u32,
    /// Connections while all were open.
    pub(crate) connections: usize,
    /// What carried their lane.
    pub(crate) wire: Option<Wire>,
    /// Packets sent again over the whole run, probes among them.
    pub(crate) retransmits: u64,
    /// Packets sent again only to ask a silent peer whether it has all.
    pub(crate) probes: u64,
    /// Packets that came although they had come before.
    pub(crate) duplicates: u64,
    /// Packets that the kernel dropped because the receive buffer was full.
    pub(crate) socket_overflows: u64,
    /// Largest resident memory seen during the transfer.
    pub(crate) rss_bytes: u64,
    /// The part of it that is shared memory (rings).
    pub(crate) rss_shared_bytes: u64,
    /// Resident memory after all applications had ended.
    pub(crate) rss_idle_bytes: u64,
    /// Processor seconds during the transfer.
    pub(crate) cpu_seconds: f64,
}

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

/// Checks that nobody uses the ports of a host.
pub(crate) fn check_ports(ip: IpAddr, ports: Ports) -> Result<(), String> {
    let other = if ports.nic == 5791 { 5891 } else { 5791 };
    let advice = format!(
        "another demo or daemon may run there: `--listen-port {other}` takes other ports, `--hosts A,B` other addresses (all \
         of 127.0.0.0/8 is local)"
    );
    for nic in (ports.nic..=u16::MAX).zip(0..ports.engines).map(|(port, _)| port) {
        UdpSocket::bind(SocketAddr::new(ip, nic))
            .map_err(|e| format!("UDP port {nic} (RoCEv2) of {ip} cannot be used: {e}; {advice}"))?;
        if ports.wire.allows(Wire::Iwarp) {
            TcpListener::bind(SocketAddr::new(ip, nic))
                .map_err(|e| format!("TCP port {nic} (iWARP) of {ip} cannot be used: {e}; {advice}"))?;
        }
    }
    TcpListener::bind(SocketAddr::new(ip, ports.peer))
        .map_err(|e| format!("TCP port {} (daemon to daemon) of {ip} cannot be used: {e}; {advice}", ports.peer))?;
    Ok(())
}

impl Host {
    /// Starts the daemon of host `number` at `ip` and waits until it serves.
    pub(crate) fn start(
        cleanup: &Cleanup,
        number: usize,
        ip: IpAddr,
        ports: Ports,
        key_file: &Path,
        log: Option<&str>,
    ) -> Result<Self, String> {
        let socket = cleanup.dir().join(format!("host{}.sock", number + 1));
        let exe = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(exe);
        command.args(["daemon", "--listen", &ip.to_string(), "--peer-port", &ports.peer.to_string()]);
        command.args(["--udp-port", &ports.nic.to_string(), "--wire", ports.wire.name()]);
        // What is shown is that all connections share one queue pair.
        command.args(["--engines", &ports.engines.to_string(), "--tcp-direct", "off"]);
        command.arg("--socket").arg(&socket).arg("--key-file").arg(key_file).arg("--until-stdin-closes");
        let inherited = std::env::var_os("RUST_LOG").is_some();
        if let Some(filter) = log.or((!inherited).then_some(LOG_DEFAULT)) {
            command.args(["--log", filter]);
        }
        // Ctrl-C on the terminal is for this process, which ends its children quietly.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let name = format!("the daemon of host {} ({ip})", number + 1);
        let (pid, pipes) = cleanup
            .spawn(&mut command, |c| c.stdin.take().zip(c.stdout.take()))
            .map_err(|e| format!("{name} cannot be started: {e}"))?;
        let (stdin, stdout) = pipes.ok_or("no pipes to the daemon")?;
        let (sender, ready) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The rest is read too, so that the daemon never blocks on a full pipe.
                if line.starts_with("ready ") {
                    let _ = sender.send(());
                }
            }
        });
        if ready.recv_timeout(START_LIMIT).is_err() {
            let how = cleanup.wait(pid, Instant::now() + Duration::from_millis(200));
            let how = how.map_or(format!("was not ready within {START_LIMIT:?}"), |s| format!("ended with {s}"));
            return Err(format!("{name} {how}: see its messages above"));
        }
        let used = HostUse::default();
        Ok(Self { cleanup: cleanup.clone(), pid, ip, socket, stdin, used, cpu_begin: Duration::ZERO })
    }

    /// Its control socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it used so far.
    pub(crate) fn used(&self) -> HostUse {
        self.used
    }

    fn stat(&self) -> Result<control::Stat, String> {
        raas::inspect::stat(Some(&self.socket)).map_err(|e| format!("stat of the daemon at {}: {e}", self.ip))
    }

    fn connections(&self) -> Result<Vec<control::ConnectionRow>, String> {
        raas::inspect::connections(Some(&self.socket)).map_err(|e| format!("ss of the daemon at {}: {e}", self.ip))
    }

    /// Its connections, once those of ended applications of one host are gone.
    fn connections_to_others(&self) -> Result<Vec<control::ConnectionRow>, String> {
        let give_up = Instant::now() + RETURN_LIMIT;
        loop {
            let rows = self.connections()?;
            if Instant::now() >= give_up || rows.iter().all(|row| row.path != control::PathKind::Shm) {
                return Ok(rows);
            }
            std::thread::sleep(RETURN_PERIOD);
        }
    }

    /// Checks that all of its connections are between two applications of the host.
    fn check_one_host(&self) -> Result<(), String> {
        let rows = self.connections()?;
        match rows.iter().find(|row| row.path != control::PathKind::Shm) {
            Some(row) => Err(format!("connection {} within {} goes by another path: {:?}", row.id, self.ip, row.path)),
            None if rows.is_empty() => Err(format!("the daemon at {} knows no connection", self.ip)),
            None => Ok(()),
        }
    }

    /// Resets of its lanes.
    fn resets(&self) -> Result<u64, String> {
        Ok(self.stat()?.lanes.iter().map(|lane| lane.resets).sum())
    }

    /// Reads what it uses while `expected` connections are open, none of them by the same-host path.
    fn read_opened(&mut self, expected: usize) -> Result<(), String> {
        let stat = self.stat()?;
        let rows = self.connections_to_others()?;
        self.used.rc_qps = stat.rc_qps;
        self.used.cqs = stat.cqs;
        self.used.srqs = stat.srqs;
        self.used.connections = rows.len();
        let name = stat.lanes.first().and_then(|lane| lane.wire.as_deref());
        self.used.wire = [Wire::Roce, Wire::Iwarp].into_iter().find(|wire| Some(wire.name()) == name);
        if let Some(row) = rows.iter().find(|r| r.path != control::PathKind::Lane) {
            return Err(format!("connection {} of {} does not use the lane: {:?}", row.id, self.ip, row.path));
        }
        if rows.len() != expected {
            return Err(format!("the daemon at {} knows {} connections, not {expected}", self.ip, rows.len()));
        }
        Ok(())
    }

    fn sample_memory(&mut self) {
        if let Some(now) = process::resident(self.pid).filter(|r| r.total_bytes > self.used.rss_bytes) {
            self.used.rss_bytes = now.total_bytes;
            self.used.rss_shared_bytes = now.shared_bytes;
        }
    }

    /// Waits until everything of the ended applications has returned, and reads what stays.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let give_up = Instant::now() + RETURN_LIMIT;
        loop {
            let stat = self.stat()?;
            let counted = |name: &str| stat.counters.iter().find(|(n, _)| n == name).map_or(0, |(_, count)| *count);
            self.used.retransmits = stat.retransmits;
            self.used.probes = counted("probes");
            self.used.duplicates = counted("duplicates");
            self.used.socket_overflows = counted("rx_socket_overflow");
            let connections = self.connections()?.len();
            if stat.apps.is_empty() && connections == 0 {
                break;
            }
            if Instant::now() >= give_up {
                return Err(format!(
                    "the daemon at {} still holds {connections} connections and {} applications after they ended",
                    self.ip,
                    stat.apps.len()
                ));
            }
            std::thread::sleep(RETURN_PERIOD);
        }
        std::thread::sleep(SETTLE);
        self.used.rss_idle_bytes = process::resident(self.pid).map_or(0, |r| r.total_bytes);
        Ok(())
    }

    /// Ends the daemon in order.
    pub(crate) fn stop(self) -> Result<(), String> {
        drop(self.stdin);
        match self.cleanup.wait(self.pid, Instant::now() + STOP_LIMIT) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("the daemon at {} ended with {status}", self.ip)),
            None => Err(format!("the daemon at {} did not end within {STOP_LIMIT:?} and was killed", self.ip)),
        }
    }
}

/// Both daemons as the observer of a measurement.
#[derive(Debug)]
pub(crate) struct Watched<'a> {
    /// The daemons.
    pub(crate) hosts: &'a mut [Host; 2],
    /// Connections that must be open.
    pub(crate) connections: usize,
}

impl Observer for Watched<'_> {
    fn on_opened(&mut self, on_one_host: bool) -> Result<(), String> {
        if on_one_host {
            return self.hosts[0].check_one_host();
        }
        self.hosts.iter_mut().try_for_each(|h| h.read_opened(self.connections))
    }

    fn on_transfer(&mut self) {
        for host in self.hosts.iter_mut() {
            host.cpu_begin = process::cpu_time(host.pid).unwrap_or_default();
            host.sample_memory();
        }
    }

    fn on_tick(&mut self) {
        self.hosts.iter_mut().for_each(Host::sample_memory);
    }

    fn on_transferred(&mut self) -> Result<(), String> {
        for host in self.hosts.iter_mut() {
            let now = process::cpu_time(host.pid).unwrap_or_default();
            host.used.cpu_seconds = now.saturating_sub(host.cpu_begin).as_secs_f64();
            host.sample_memory();
            // The shared queue pair may have been replaced or joined by others meanwhile: the larger number counts.
            let stat = host.stat()?;
            host.used.rc_qps = host.used.rc_qps.max(stat.rc_qps);
            host.used.cqs = host.used.cqs.max(stat.cqs);
            host.used.srqs = host.used.srqs.max(stat.srqs);
        }
        Ok(())
    }

    fn shares(&self) -> bool {
        true
    }

    fn break_shared(&mut self) -> Result<(), String> {
        let [host, peer] = &*self.hosts;
        match raas::inspect::reset_lane(Some(&host.socket), peer.ip) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("the daemon at {} has no lane to {}", host.ip, peer.ip)),
            Err(e) => Err(format!("reset of the lane from {} to {}: {e}", host.ip, peer.ip)),
        }
    }

    fn resets(&mut self) -> Result<[u64; 2], String> {
        Ok([self.hosts[0].resets()?, self.hosts[1].resets()?])
    }
}

/// For a transport without daemons.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Observer for Nobody {
    fn on_opened(&mut self, _on_one_host: bool) -> Result<(), String> {
        Ok(())
    }
    fn shares(&self) -> bool {
        false
    }
    fn break_shared(&mut self) -> Result<(), String> {
        Err("connections of this transport share nothing".into())
    }
    fn resets(&mut self) -> Result<[u64; 2], String> {
        Ok([0, 0])
    }
    fn on_transfer(&mut self) {}
    fn on_tick(&mut self) {}
    fn on_transferred(&mut self) -> Result<(), String> {
        Ok(())
    }
}
