//! The daemon's configuration: a TOML file, flags over it, defaults under it.
//!
//! Owns what each key means when it is absent. Reading the file is `config/file.rs`. It must never start anything: a
//! `Config` is only values, and [`crate::check()`] looks without changing.

mod cluster_table;
mod file;
mod file_path;
mod run_lanes;
mod standby;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::{EngineConfig, IpNet};
use plane::{AdmissionConfig, Heartbeat, PeerSources, SpreadBy};
use verbs::{Encrypt, PathMarks, PathMtu, Wire, WirePolicy};

use crate::calibration::Calibration;
use crate::config_error::ConfigError;
use crate::kept::Kept;
use crate::limits::{DaemonLimits, DataPath, LIMITS, Limit, Target, check_range};
use crate::machine::{Fit, Machine};
use crate::member::{ClusterConfig, check_host_address};
use crate::sandbox::{Confinement, OnViolation, Sandbox};

pub use run_lanes::RunLanes;

pub(crate) use file::network_of;

/// How long connections wait for a peer's daemon that is started again, unless the configuration says otherwise.
const PEER_RETURN: Duration = Duration::from_secs(5);

/// Silence of a peer after which another path to it is tried, unless the configuration says otherwise.
const FAILOVER: Duration = Duration::from_millis(500);

/// TCP port on which daemons reach each other.
pub const PEER_PORT: u16 = 4790;

/// Which device the daemon uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceChoice {
    /// RDMA hardware that carries the listen address, if it is there and usable, else the software NIC.
    Auto,
    /// The built-in software NIC.
    SoftNic,
    /// A device of rdma-core: this one, or the first.
    RdmaCore(Option<String>),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::SoftNic => f.write_str("softnic"),
            Self::RdmaCore(None) => f.write_str("rdma-core"),
            Self::RdmaCore(Some(name)) => write!(f, "rdma-core:{name}"),
        }
    }
}

impl std::str::FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "softnic" => Ok(Self::SoftNic),
            None if text == "rdma-core" => Ok(Self::RdmaCore(None)),
            Some(("rdma-core", name)) if !name.is_empty() => Ok(Self::RdmaCore(Some(name.into()))),
            _ => Err(format!("`{text}` is no device; use auto, softnic, rdma-core or rdma-core:NAME")),
        }
    }
}

/// How lines of the log look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Mode of the control socket if `socket_group` is set and no other mode.
const GROUP_MODE: u32 = 0o660;

/// Another host whose daemon does not simply have its one address and our port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    /// The address by which applications name the host, and by which its daemon names itself.
    pub address: IpAddr,
    /// TCP port of its daemon; none means our own `peer_port`.
    pub port: Option<u16>,
    /// Addresses from which its control link may come, in addition to `address`.
    pub sources: Vec<IpAddr>,
    /// What may carry the lane to it; none means the daemon's own `wire`.
    pub wire: Option<WirePolicy>,
    /// Whether the lane to it is encrypted; none means the daemon's own `encrypt`.
    pub encrypt: Option<Encrypt>,
    /// Further addresses of the host, in order of preference, by which it is reached if `address` fails
    /// (docs/operate/failover.md).
    pub standby: Vec<IpAddr>,
}

impl PeerConfig {
    /// A host of which nothing more is to be said.
    pub fn new(address: IpAddr) -> Self {
        Self { address, port: None, sources: Vec::new(), wire: None, encrypt: None, standby: Vec::new() }
    }
}

/// The configuration of a daemon.
#[derive(Debug, Clone)]
pub struct Config {
    /// The host's address: of the device, of the control link, and of connections.
    pub listen: IpAddr,
    /// Further addresses that name this host.
    pub addresses: Vec<IpAddr>,
    /// Further addresses at which other hosts reach this one, in order of preference (docs/operate/failover.md).
    pub standby: Vec<IpAddr>,
    /// Silence of a peer with standby addresses after which another path to it is tried.
    pub failover: Duration,
    /// The control socket.
    pub socket: PathBuf,
    /// Its mode; more than 0600 lets other users attach.
    pub socket_mode: u32,
    /// The user that `raas daemon` becomes before it does anything, by name or number; none stays as it is. A daemon
    /// inside another program does not look at it, nor at the next three.
    pub user: Option<String>,
    /// The group that it becomes with `user`; none is that of the user.
    pub group: Option<String>,
    /// Whether `raas daemon` is held to the system calls and files that it needs.
    pub sandbox: Sandbox,
    /// What becomes of it when it tries another call.
    pub sandbox_violation: OnViolation,
    /// What holds this process, once it does.
    pub confinement: Confinement,
    /// Group to which socket and directory are given, by name or number; none leaves them with the daemon's own.
    pub socket_group: Option<String>,
    /// The control socket, where the service manager has opened it: it listens at `socket`, with the owner and the mode
    /// that the manager gave it, and stays when the daemon ends.
    pub given_socket: Option<Arc<OwnedFd>>,
    /// Who keeps regions that nobody owns over the end of this daemon, and what was kept for it (docs/operate/restart.md). None:
    /// they end with it.
    pub kept: Option<Arc<Kept>>,
    /// How long a start waits for a daemon that serves the socket and was told to end. Zero: it does not.
    pub place_wait: Duration,
    /// TCP port for other daemons, here and, unless [`PeerConfig::port`] says otherwise, there. 0: any free one, for
    /// tests.
    pub peer_port: u16,
    /// The device.
    pub device: DeviceChoice,
    /// Engines: threads that move data, each with a context of the device, 1 to 16 (docs/inside/engine.md).
    pub engines: u32,
    /// What is spread over them (docs/inside/engine.md).
    pub engines_by: SpreadBy,
    /// Why this device, once it is chosen.
    pub(crate) device_reason: String,
    /// What may carry lanes, unless [`PeerConfig::wire`] says otherwise.
    pub wire: WirePolicy,
    /// Whether lanes are encrypted, unless [`PeerConfig::encrypt`] says otherwise.
    pub encrypt: Encrypt,
    /// Whether the kernel encrypts lanes on TCP of the software NIC, where it has TLS.
    pub kernel_tls: bool,
    /// How many records one key of a lane on TCP of the software NIC protects: fewer than the default's are for tests.
    pub record_limit: softnic::RecordLimit,
    /// Whether streams of bulk get a TCP connection of their own, where a lane between two software NICs is on TCP.
    pub tcp_direct: bool,
    /// Which connections of programs under `raas run` go over lanes.
    pub run_lanes: RunLanes,
    /// UDP port of the software NIC, and TCP port of its other wire.
    pub udp_port: u16,
    /// DSCP (0 to 63) and hop limit of the device's packets.
    pub marks: PathMarks,
    /// Largest path MTU; none takes what the interface allows.
    pub mtu: Option<PathMtu>,
    /// The cluster key's file; none means `cluster.key` beside the socket, made at the first start.
    pub key_file: Option<PathBuf>,
    /// Files of further keys that other daemons may dial this one with.
    pub accept_key_files: Vec<PathBuf>,
    /// What the files of keys are named by, so that they can be read again.
    pub(crate) source: Option<(PathBuf, Flags)>,
    /// Where to capture the device's packets.
    pub pcap: Option<PathBuf>,
    /// What `raas calibrate` measured on this machine; none leaves the defaults.
    pub calibration: Option<PathBuf>,
    /// What that file says.
    pub(crate) calibrated: Option<Calibration>,
    /// The file that says which programs may do what (docs/operate/policy.md); none: all may do everything.
    pub policy: Option<PathBuf>,
    /// What to log, in the syntax of `RUST_LOG`. The daemon itself does not use it: the program that runs the daemon
    /// sets the logger up.
    pub log: String,
    /// How lines of the log look. As `log`, for the program that runs the daemon.
    pub log_format: LogFormat,
    /// Where metrics are served, if anywhere. As `log`, for the program that runs the daemon.
    pub metrics: Option<SocketAddr>,
    /// File with the token that a scraper has to say; none asks for none.
    pub metrics_token_file: Option<PathBuf>,
    /// Ring size of connections that ask for none; none means the engine's default.
    pub ring_bytes: Option<u32>,
    /// Size to which rings of connections between hosts that ask for none may grow; none means the engine's default.
    pub grown_ring_bytes: Option<u32>,
    /// Size to which rings of same-host connections that ask for none may grow; none means the engine's default.
    pub local_ring_bytes: Option<u32>,
    /// Signs of life on control links.
    pub heartbeat: Heartbeat,
    /// Networks to whose hosts programs may connect, in addition to this host and those of `peers`. None means private
    /// networks.
    pub connect_to: Option<Vec<IpNet>>,
    /// Where the hosts of the cluster are found; nowhere by default.
    pub cluster: ClusterConfig,
    /// Hosts that need more words.
    pub peers: Vec<PeerConfig>,
    /// Bounds of the control plane.
    pub limits: DaemonLimits,
    /// Bounds of the data path that differ from their defaults, by their names in [`LIMITS`].
    pub(crate) path_limits: BTreeMap<&'static str, u64>,
}

/// Bytes of its own memory that one program may have registered in any case; else a quarter of all.
const PINNED_OF_PROGRAM_MIN: u64 = 16 << 30;

/// Bytes of rings for which a control group should have room.
const RINGS_USUAL: u64 = 256 << 20;

impl Config {
    /// The configuration of a host with this address, all else at its default.
    pub fn new(listen: IpAddr) -> Self {
        Self {
            listen,
            addresses: Vec::new(),
            standby: Vec::new(),
            failover: FAILOVER,
            socket: control::socket_path(None),
            socket_mode: 0o600,
            user: None,
            group: None,
            sandbox: Sandbox::Auto,
            sandbox_violation: OnViolation::Refuse,
            confinement: Confinement::default(),
            socket_group: None,
            given_socket: None,
            kept: None,
            place_wait: Duration::ZERO,
            peer_port: PEER_PORT,
            device: DeviceChoice::Auto,
            engines: 1,
            engines_by: SpreadBy::default(),
            device_reason: String::new(),
            wire: WirePolicy::Auto,
            encrypt: Encrypt::Off,
            kernel_tls: true,
            record_limit: softnic::RecordLimit::default(),
            tcp_direct: true,
            run_lanes: RunLanes::Auto,
            udp_port: verbs::ROCE_UDP_PORT,
            marks: PathMarks::default(),
            mtu: None,
            key_file: None,
            accept_key_files: Vec::new(),
            source: None,
            pcap: None,
            calibration: None,
            calibrated: None,
            policy: None,
            log: "info".into(),
            log_format: LogFormat::Text,
            metrics: None,
            metrics_token_file: None,
            ring_bytes: None,
            grown_ring_bytes: None,
            local_ring_bytes: None,
            heartbeat: Heartbeat { interval: Duration::from_secs(1), misses: 40 },
            connect_to: None,
            cluster: ClusterConfig::default(),
            peers: Vec::new(),
            limits: DaemonLimits::default(),
            path_limits: BTreeMap::new(),
        }
    }

    /// Reads `file`, if any; paths in it are relative to its directory. `flags` take precedence over it.
    pub fn load(file: Option<&Path>, flags: &Flags) -> Result<Self, ConfigError> {
        let mut config = Self::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
        if let Some(path) = file {
            let text =
                std::fs::read_to_string(path).map_err(|e| ConfigError::one(format!("{}: {e}", path.display())))?;
            let directory = path.parent().unwrap_or(Path::new(""));
            file::apply(&mut config, &text, directory).map_err(|mut problems| {
                for problem in &mut problems {
                    problem.insert_str(0, &format!("{}:", path.display()));
                }
                ConfigError { problems }
            })?;
        }
        flags.apply(&mut config)?;
        config.source = file.map(|path| (path.to_path_buf(), flags.clone()));
        config.calibrated = config.calibration.as_deref().map(Calibration::load).transpose()?;
        Ok(config)
    }

    /// The configuration that the text of a file says, over the defaults. A problem names its line: `LINE: message`.
    pub fn from_text(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
        file::apply(&mut config, text, Path::new("")).map_err(|problems| ConfigError { problems })?;
        Ok(config)
    }

    /// Sets a limit by its name; refuses unknown names and values out of range, with the reason.
    pub fn set_limit(&mut self, key: &str, value: u64) -> Result<(), String> {
        let Some(limit) = LIMITS.iter().find(|l| l.key == key) else {
            return Err(format!("`{key}` is no limit; see docs/operate/configuration.md"));
        };
        check_range(value, limit.min, limit.max).map_err(|e| format!("`{key}`: {e}"))?;
        if limit.power_of_two && !value.is_power_of_two() {
            return Err(format!("`{key}`: {value} is not a power of two"));
        }
        match limit.target {
            Target::DataPath { .. } => {
                self.path_limits.insert(limit.key, value);
            }
            Target::Daemon(field) => *field(&mut self.limits) = value,
        }
        Ok(())
    }

    /// All limits, each and together, as the start of the daemon checks them: by the checks of those who
    /// work with them.
    pub(crate) fn check_limits(&self) -> Result<(), String> {
        let (fitted, _) = self.clone().fitted(Machine::here());
        let DataPath { admission, engine } = fitted.data_path();
        admission.check().map_err(|e| e.to_string())?;
        engine.check().map_err(|e| match e {
            engine::SetupError::Config(what) => what,
            other => other.to_string(),
        })
    }

    /// Gives numbers to the limits that are to fit the machine. Returns which, and why.
    pub fn fitted(mut self, machine: Machine) -> (Self, Fit) {
        let set = |key| self.path_limits.get(key).copied().filter(|n| *n > 0);
        let given = (set("apps_max"), self.limits.clients_max, set("srq_bytes_max"));
        let DaemonLimits { kernel_bytes_max, client_queue_bytes_max, .. } = self.limits;
        // Rings are full at once where nobody reads; without a bound of the operator's a usual part of that is reckoned with.
        let rings = set("ring_memory_max").unwrap_or(RINGS_USUAL);
        let held = [rings, kernel_bytes_max, client_queue_bytes_max].into_iter().fold(0, u64::saturating_add);
        let fit = Fit::new(machine, self.engines, given, held);
        self.path_limits.insert("apps_max", fit.apps_max);
        self.path_limits.insert("srq_bytes_max", fit.srq_bytes_max);
        self.limits.clients_max = fit.clients_max;
        (self, fit)
    }

    /// Where other daemons reach this one.
    pub(crate) fn own_peer_address(&self) -> SocketAddr {
        SocketAddr::new(self.listen, self.peer_port)
    }

    /// What was measured on this machine, if the configuration names a file of that.
    pub fn calibrated(&self) -> Option<&Calibration> {
        self.calibrated.as_ref()
    }

    /// Every address that names this host, the one of connections first. A host that others reach is also reached by
    /// its own programs at the loopback addresses.
    pub fn host_addresses(&self) -> Vec<IpAddr> {
        let mut all = vec![self.listen];
        all.extend(&self.addresses);
        all.extend(&self.standby);
        if !self.listen.is_loopback() {
            all.extend([IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]);
        }
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|a| seen.insert(*a));
        all
    }

    /// The parts of control plane and engine in connections; of limits that are to fit the machine, and were not yet
    /// [`Self::fitted`], 0.
    pub fn data_path(&self) -> DataPath {
        let addresses = self.host_addresses();
        let admission = AdmissionConfig { apps_max: 0, ..AdmissionConfig::new(addresses.clone()) };
        let engine =
            EngineConfig { apps_max: 0, srq_bytes_max: 0, peer_return: PEER_RETURN, ..EngineConfig::new(addresses) };
        let mut path = DataPath { admission, engine };
        // Limits that are set go over what was measured.
        if let Some(calibrated) = &self.calibrated {
            calibrated.apply(&mut path.engine.choice);
        }
        for limit in LIMITS {
            if let (Target::DataPath { set, .. }, Some(&value)) = (limit.target, self.path_limits.get(limit.key)) {
                set(&mut path, value);
            }
        }
        let DataPath { admission, engine } = &mut path;
        if let Some(bytes) = self.ring_bytes {
            engine.ring_bytes_default = bytes;
        }
        if let Some(bytes) = self.grown_ring_bytes {
            engine.ring_bytes_grown = bytes;
        }
        if let Some(bytes) = self.local_ring_bytes {
            admission.local_ring_bytes_default = bytes;
        }
        engine.ring_bytes_default = engine.ring_bytes_default.min(engine.ring_bytes_max);
        engine.ring_bytes_grown = engine.ring_bytes_grown.min(engine.ring_bytes_max);
        admission.local_ring_bytes_default = admission.local_ring_bytes_default.min(admission.ring_bytes_max);
        if let Some(networks) = &self.connect_to {
            engine.connect_to.clone_from(networks);
        }
        engine.connect_to.extend(self.peers.iter().map(|peer| IpNet::from(peer.address)));
        engine.wire = self.wire;
        engine.encrypt = self.encrypt;
        engine.encrypts = self.peers.iter().filter_map(|p| Some((p.address.to_canonical(), p.encrypt?))).collect();
        // Those of this host's programs, and those to its regions.
        engine.leased_lanes_max = u32::try_from(2 * self.limits.leased_lanes_max).unwrap_or(u32::MAX);
        engine.wires = self.peers.iter().filter_map(|p| Some((p.address.to_canonical(), p.wire?))).collect();
        (admission.engines, admission.spread) = (self.engines, self.engines_by);
        engine.pins.app_bytes_max = (engine.pins.bytes_max / 4).max(PINNED_OF_PROGRAM_MIN);
        engine.datagram_sockets_max = admission.listeners_max;
        let owner_uid = rustix::process::geteuid().as_raw();
        (admission.owner_uid, engine.owner_uid) = (owner_uid, owner_uid);
        (admission.user_share, engine.user_share) = (self.limits.user_share(), self.limits.user_share());
        path
    }

    /// What may carry the lane to `peer`.
    pub fn wire_to(&self, peer: IpAddr) -> WirePolicy {
        self.peers.iter().find(|p| p.address == peer).and_then(|p| p.wire).unwrap_or(self.wire)
    }

    /// What the device has to have so that each lane finds its wire.
    pub(crate) fn device_wire(&self) -> WirePolicy {
        let differs = self.peers.iter().any(|peer| peer.wire.is_some_and(|wire| wire != self.wire));
        if differs { WirePolicy::Auto } else { self.wire }
    }

    /// The entry that needs the wire over TCP, which the software NIC alone has: `wire`, or that of a host.
    pub(crate) fn needs_tcp_wire(&self) -> Option<String> {
        let tcp = WirePolicy::Only(Wire::Iwarp);
        let peer = self.peers.iter().find(|peer| peer.wire == Some(tcp));
        let of_peer = || peer.map(|peer| format!("wire = \"iwarp\" of peer {}", peer.address));
        if self.wire == tcp { Some("wire = \"iwarp\"".into()) } else { of_peer() }
    }

    /// Where the daemon of `peer` listens.
    pub(crate) fn peer_address(&self, peer: IpAddr) -> SocketAddr {
        let port = self.peers.iter().find(|p| p.address == peer).and_then(|p| p.port);
        SocketAddr::new(peer, port.unwrap_or(self.peer_port))
    }

    /// The hosts that the configuration names, by each address from which their control links may come.
    pub(crate) fn peer_sources(&self) -> BTreeMap<IpAddr, IpAddr> {
        let of = |p: &PeerConfig| {
            let address = p.address;
            let sources = [&p.sources[..], &p.standby].concat();
            std::iter::once(address).chain(sources).map(move |source| (source.to_canonical(), address))
        };
        self.peers.iter().flat_map(of).collect()
    }

    /// Addresses from which control links may come beside the hosts' own.
    pub(crate) fn further_sources(&self) -> PeerSources {
        let of = |(p, source): (&PeerConfig, &IpAddr)| (source.to_canonical(), p.address);
        self.peers
            .iter()
            .flat_map(|p| p.sources.iter().chain(&p.standby).map(move |source| (p, source)))
            .map(of)
            .collect()
    }
}

/// What the command line may set; it goes over the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--listen`
    pub listen: Option<IpAddr>,
    /// `--socket`
    pub socket: Option<PathBuf>,
    /// `--device`
    pub device: Option<String>,
    /// `--wire`
    pub wire: Option<String>,
    /// `--encrypt`
    pub encrypt: Option<String>,
    /// `--tcp-direct`
    pub tcp_direct: Option<bool>,
    /// `--run-lanes`
    pub run_lanes: Option<String>,
    /// `--engines`
    pub engines: Option<u32>,
    /// `--pcap`
    pub pcap: Option<PathBuf>,
    /// `--peer-port`
    pub peer_port: Option<u16>,
    /// `--udp-port`
    pub udp_port: Option<u16>,
    /// `--key-file`
    pub key_file: Option<PathBuf>,
    /// `--sandbox`
    pub sandbox: Option<Sandbox>,
    /// `--log`
    pub log: Option<String>,
}

impl Flags {
    fn apply(&self, config: &mut Config) -> Result<(), ConfigError> {
        if let Some(listen) = self.listen {
            check_host_address(listen).map_err(|e| ConfigError::one(format!("--listen: {e}")))?;
            config.listen = listen.to_canonical();
        }
        if let Some(device) = &self.device {
            config.device = device.parse().map_err(|e| ConfigError::one(format!("--device: {e}")))?;
        }
        if let Some(wire) = &self.wire {
            config.wire = wire.parse().map_err(|e| ConfigError::one(format!("--wire: {e}")))?;
        }
        if let Some(encrypt) = &self.encrypt {
            config.encrypt = encrypt.parse().map_err(|e| ConfigError::one(format!("--encrypt: {e}")))?;
        }
        if let Some(lanes) = &self.run_lanes {
            config.run_lanes = lanes.parse().map_err(|e| ConfigError::one(format!("--run-lanes: {e}")))?;
        }
        if let Some(socket) = &self.socket {
            config.socket.clone_from(socket);
        }
        if let Some(pcap) = &self.pcap {
            config.pcap = Some(pcap.clone());
        }
        if let Some(key_file) = &self.key_file {
            config.key_file = Some(key_file.clone());
        }
        if let Some(log) = &self.log {
            config.log.clone_from(log);
        }
        config.tcp_direct = self.tcp_direct.unwrap_or(config.tcp_direct);
        config.engines = self.engines.unwrap_or(config.engines);
        config.sandbox = self.sandbox.unwrap_or(config.sandbox);
        config.peer_port = self.peer_port.unwrap_or(config.peer_port);
        config.udp_port = self.udp_port.unwrap_or(config.udp_port);
        Ok(())
    }
}

impl Limit {
    /// Its value in a configuration.
    pub fn value(&self, config: &Config) -> u64 {
        match self.target {
            Target::DataPath { value, .. } => value(&config.data_path()),
            Target::Daemon(field) => *field(&mut config.limits.clone()),
        }
    }
}

#[cfg(test)]
mod tests;
