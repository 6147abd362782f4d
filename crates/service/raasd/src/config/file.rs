//! The configuration file: what each key may hold, and errors that name the line.
//!
//! Owns the keys. It must never accept a key that it does not know: a misspelt limit would silently not hold.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use engine::IpNet;
use plane::SpreadBy;
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use verbs::{Encrypt, PathMtu, WirePolicy};

use super::cluster_table::ClusterTable;
use super::file_path::FilePath;
use super::{Config, DeviceChoice, GROUP_MODE, LogFormat, PeerConfig, RunLanes};
use crate::limits::{LIMITS, RING_BYTES, check_range};
use crate::member::check_host_address;
use crate::sandbox::{OnViolation, Sandbox};
use crate::toml_file::{Problems, text_as};

/// Where the keys are explained.
const DOCUMENTED: &str = "docs/operate/configuration.md";

/// The keys. A key that is absent keeps its default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    listen: Option<HostAddress>,
    addresses: Option<Vec<HostAddress>>,
    standby: Option<Vec<HostAddress>>,
    failover_ms: Option<Ranged<30, 3_600_000>>,
    socket: Option<FilePath>,
    socket_mode: Option<Spanned<Mode>>,
    socket_group: Option<Group>,
    user: Option<UserName>,
    group: Option<Group>,
    sandbox: Option<SandboxName>,
    sandbox_violation: Option<ViolationName>,
    peer_port: Option<Ranged<1, 65_535>>,
    device: Option<Device>,
    engines: Option<Ranged<1, { shm::ENGINES_MAX as u64 }>>,
    engines_by: Option<SpreadName>,
    wire: Option<WireName>,
    encrypt: Option<EncryptName>,
    kernel_tls: Option<AutoOrOff>,
    tcp_direct: Option<AutoOrOff>,
    run_lanes: Option<RunLanesName>,
    udp_port: Option<Ranged<1, 65_535>>,
    dscp: Option<Ranged<0, 63>>,
    hop_limit: Option<Ranged<1, 255>>,
    mtu: Option<Mtu>,
    key_file: Option<FilePath>,
    accept_key_files: Option<Vec<FilePath>>,
    pcap: Option<FilePath>,
    calibration: Option<FilePath>,
    policy: Option<FilePath>,
    log: Option<String>,
    log_format: Option<LogFormatName>,
    metrics: Option<MetricsAddress>,
    metrics_token_file: Option<FilePath>,
    ring_bytes: Option<RingBytes>,
    grown_ring_bytes: Option<RingBytes>,
    local_ring_bytes: Option<RingBytes>,
    connect_to: Option<Vec<Network>>,
    heartbeat_ms: Option<Ranged<10, 3_600_000>>,
    heartbeat_misses: Option<Ranged<1, 1000>>,
    limits: Option<Spanned<BTreeMap<Spanned<String>, Spanned<i64>>>>,
    cluster: Option<ClusterTable>,
    peer: Option<Vec<Peer>>,
}

/// The keys of `[[peer]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Peer {
    address: HostAddress,
    port: Option<Ranged<1, 65_535>>,
    #[serde(default)]
    sources: Vec<HostAddress>,
    wire: Option<WireName>,
    encrypt: Option<EncryptName>,
    #[serde(default)]
    standby: Vec<HostAddress>,
}

/// A whole number of this range.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "i64")]
struct Ranged<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> TryFrom<i64> for Ranged<MIN, MAX> {
    type Error = String;

    fn try_from(value: i64) -> Result<Self, String> {
        check_range(value, MIN, MAX).map(Self)
    }
}

impl<const MIN: u64, const MAX: u64> Ranged<MIN, MAX> {
    /// The range fits `T` wherever this is used.
    fn get<T: TryFrom<u64>>(self) -> Option<T> {
        T::try_from(self.0).ok()
    }
}

macro_rules! from_text {
    ($(#[$doc:meta])* $name:ident($inner:ty), $parse:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        struct $name($inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                text_as(deserializer, $parse).map(Self)
            }
        }
    };
}

from_text!(
    /// An address that names one host.
    HostAddress(IpAddr),
    |text| {
        let address: IpAddr = text.parse().map_err(|_| format!("\"{text}\" is no IP address"))?;
        check_host_address(address).map(|()| address.to_canonical())
    }
);
from_text!(
    /// `ADDRESS/BITS`, or one host's address.
    Network(IpNet),
    |text| network_of(&text)
);
from_text!(
    /// The name or number of a group.
    Group(String),
    |text| if text.is_empty() { Err("the name or number of a group is needed, this is empty".into()) } else { Ok(text) }
);
from_text!(
    /// The name or number of a user.
    UserName(String),
    |text| if text.is_empty() { Err("the name or number of a user is needed, this is empty".into()) } else { Ok(text) }
);
from_text!(
    /// Whether the daemon is held to what it needs.
    SandboxName(Sandbox),
    |text| text.parse()
);
from_text!(
    /// What becomes of a daemon that tries more.
    ViolationName(OnViolation),
    |text| text.parse()
);
from_text!(
    /// A file mode that its owner can use.
    Mode(u32),
    |text| {
        let mode = u32::from_str_radix(&text, 8).ok().filter(|m| *m <= 0o777 && m & 0o600 == 0o600);
        mode.ok_or_else(|| format!("\"{text}\" is not allowed, octal modes from \"0600\" to \"0777\" are"))
    }
);
from_text!(
    /// What is spread over engines.
    SpreadName(SpreadBy),
    |text| text.parse()
);
from_text!(
    /// What may carry lanes.
    WireName(WirePolicy),
    |text| text.parse()
);
from_text!(
    /// Which connections under `raas run` go over lanes.
    RunLanesName(RunLanes),
    |text| text.parse()
);
from_text!(
    /// Whether lanes are encrypted.
    EncryptName(Encrypt),
    |text| text.parse()
);
from_text!(
    /// Where it is of use, or never.
    AutoOrOff(bool),
    |text| match text.as_str() {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("\"{text}\" is not allowed; use \"auto\" or \"off\"")),
    }
);
from_text!(
    /// How lines of the log look.
    LogFormatName(LogFormat),
    |text| match text.as_str() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("\"{text}\" is not allowed; use \"text\" or \"json\"")),
    }
);
from_text!(
    /// A port of this host alone, or an address with a port.
    MetricsAddress(SocketAddr),
    |text| {
        let port = text.parse().map(|port: u16| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)).ok();
        let address = port.or_else(|| text.parse().ok()).filter(|address| address.port() != 0);
        address.ok_or_else(|| format!("\"{text}\" is no PORT and no ADDRESS:PORT, such as \"9464\" or \"[::1]:9464\""))
    }
);
from_text!(
    /// A device.
    Device(DeviceChoice),
    |text| text.parse()
);

/// A path MTU in bytes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "i64")]
struct Mtu(PathMtu);

impl TryFrom<i64> for Mtu {
    type Error = String;

    fn try_from(bytes: i64) -> Result<Self, String> {
        let mtu = usize::try_from(bytes).ok().and_then(PathMtu::from_bytes);
        mtu.map(Self).ok_or_else(|| format!("{bytes} is not allowed; 256, 512, 1024, 2048 and 4096 are"))
    }
}

/// The size of a ring.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "i64")]
struct RingBytes(u32);

impl TryFrom<i64> for RingBytes {
    type Error = String;

    fn try_from(bytes: i64) -> Result<Self, String> {
        let bytes = check_range(bytes, (*RING_BYTES.start()).into(), (*RING_BYTES.end()).into())?;
        match u32::try_from(bytes) {
            Ok(bytes) if bytes.is_power_of_two() => Ok(Self(bytes)),
            _ => Err(format!("{bytes} is not a power of two")),
        }
    }
}

/// The network of a text.
pub(crate) fn network_of(text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address.to_canonical()));
    }
    let no_network = |_| format!("\"{text}\" is no network; write ADDRESS/BITS, such as 10.1.0.0/16");
    let network: IpNet = text.parse().map_err(no_network)?;
    match network.trunc() {
        whole if whole == network => Ok(network),
        whole => Err(format!("{network} has bits behind its prefix; the network is {whole}")),
    }
}

/// Reads `text` into `config`; problems are `LINE: message`, in the order of the file. Paths are relative to `directory`.
pub(super) fn apply(config: &mut Config, text: &str, directory: &Path) -> Result<(), Vec<String>> {
    let mut problems = Problems::new(text, DOCUMENTED, misplaced);
    if let Some(file) = problems.read() {
        take(config, file, directory, &mut problems);
    }
    problems.told()
}

/// What to say of a key that is none here, and one elsewhere.
fn misplaced(key: &str) -> Option<String> {
    let is_limit = LIMITS.iter().any(|limit| limit.key == key);
    is_limit.then(|| format!("`{key}` is a limit: write it under [limits]"))
}

/// Puts what the file says over `config`.
fn take(config: &mut Config, file: File, directory: &Path, problems: &mut Problems<'_>) {
    fn set<T>(slot: &mut T, value: Option<T>) {
        if let Some(value) = value {
            *slot = value;
        }
    }
    let path = |path: FilePath| path.from(directory);
    set(&mut config.listen, file.listen.map(|a| a.0));
    set(&mut config.addresses, file.addresses.map(|list| list.into_iter().map(|a| a.0).collect()));
    set(&mut config.standby, file.standby.map(|list| list.into_iter().map(|a| a.0).collect()));
    set(&mut config.failover, file.failover_ms.map(|ms| Duration::from_millis(ms.0)));
    set(&mut config.socket, file.socket.map(path));
    if file.socket_group.is_some() {
        config.socket_mode = GROUP_MODE;
    }
    if let Some(mode) = file.socket_mode {
        if file.socket_group.is_some() && mode.get_ref().0 & 0o060 != 0o060 {
            let told =
                format!("`socket_mode`: {:04o} shuts the group of `socket_group` out; use \"0660\"", mode.get_ref().0);
            problems.add(mode.span().start, &told);
        }
        config.socket_mode = mode.into_inner().0;
    }
    config.socket_group = file.socket_group.map(|g| g.0).or(config.socket_group.take());
    config.user = file.user.map(|u| u.0).or(config.user.take());
    config.group = file.group.map(|g| g.0).or(config.group.take());
    set(&mut config.sandbox, file.sandbox.map(|s| s.0));
    set(&mut config.sandbox_violation, file.sandbox_violation.map(|v| v.0));
    set(&mut config.peer_port, file.peer_port.and_then(Ranged::get));
    set(&mut config.device, file.device.map(|d| d.0));
    set(&mut config.engines, file.engines.and_then(Ranged::get));
    set(&mut config.engines_by, file.engines_by.map(|by| by.0));
    set(&mut config.wire, file.wire.map(|w| w.0));
    set(&mut config.encrypt, file.encrypt.map(|e| e.0));
    set(&mut config.kernel_tls, file.kernel_tls.map(|on| on.0));
    set(&mut config.tcp_direct, file.tcp_direct.map(|on| on.0));
    set(&mut config.run_lanes, file.run_lanes.map(|lanes| lanes.0));
    set(&mut config.udp_port, file.udp_port.and_then(Ranged::get));
    if let Some(dscp) = file.dscp.and_then(Ranged::get) {
        config.marks = verbs::PathMarks::new(dscp, config.marks.hop_limit);
    }
    set(&mut config.marks.hop_limit, file.hop_limit.and_then(Ranged::get));
    config.mtu = file.mtu.map(|m| m.0).or(config.mtu);
    config.key_file = file.key_file.map(path).or(config.key_file.take());
    set(&mut config.accept_key_files, file.accept_key_files.map(|list| list.into_iter().map(path).collect()));
    config.pcap = file.pcap.map(path).or(config.pcap.take());
    config.calibration = file.calibration.map(path).or(config.calibration.take());
    config.policy = file.policy.map(path).or(config.policy.take());
    set(&mut config.log, file.log);
    set(&mut config.log_format, file.log_format.map(|f| f.0));
    config.metrics = file.metrics.map(|m| m.0).or(config.metrics.take());
    config.metrics_token_file = file.metrics_token_file.map(path).or(config.metrics_token_file.take());
    config.ring_bytes = file.ring_bytes.map(|b| b.0).or(config.ring_bytes);
    config.grown_ring_bytes = file.grown_ring_bytes.map(|b| b.0).or(config.grown_ring_bytes);
    config.local_ring_bytes = file.local_ring_bytes.map(|b| b.0).or(config.local_ring_bytes);
    let networks = file.connect_to.map(|list| list.into_iter().map(|n| n.0).collect());
    config.connect_to = networks.or(config.connect_to.take());
    set(&mut config.heartbeat.interval, file.heartbeat_ms.map(|ms| Duration::from_millis(ms.0)));
    set(&mut config.heartbeat.misses, file.heartbeat_misses.and_then(Ranged::get));
    if let Some(cluster) = file.cluster {
        for (at, told) in cluster.put_into(&mut config.cluster) {
            problems.add(at, &told);
        }
    }
    for peer in file.peer.unwrap_or_default() {
        let sources = peer.sources.into_iter().map(|a| a.0).collect();
        let (address, port) = (peer.address.0, peer.port.and_then(Ranged::get));
        let (wire, encrypt) = (peer.wire.map(|w| w.0), peer.encrypt.map(|e| e.0));
        let standby = peer.standby.into_iter().map(|a| a.0).collect();
        config.peers.push(PeerConfig { address, port, sources, wire, encrypt, standby });
    }
    if let Some(limits) = file.limits {
        take_limits(config, &limits, problems);
    }
}

fn take_limits(
    config: &mut Config,
    limits: &Spanned<BTreeMap<Spanned<String>, Spanned<i64>>>,
    problems: &mut Problems<'_>,
) {
    for (key, value) in limits.get_ref() {
        let name = key.get_ref().as_str();
        if !LIMITS.iter().any(|limit| limit.key == name) {
            problems.add(key.span().start, &problems.unknown(name, LIMITS.iter().map(|limit| limit.key)));
        } else {
            let number =
                u64::try_from(*value.get_ref()).map_err(|_| format!("`{name}`: {} is negative", value.get_ref()));
            if let Err(message) = number.and_then(|number| config.set_limit(name, number)) {
                problems.add(value.span().start, &message);
            }
        }
    }
    if problems.is_empty()
        && let Err(message) = config.check_limits()
    {
        // The line of a limit that the message names, else that of the table.
        let named = limits.get_ref().keys().find(|key| message.contains(key.get_ref().as_str()));
        problems.add(named.map_or(limits.span(), Spanned::span).start, &message);
    }
}

/// Every key outside of tables, for the documentation's test.
#[cfg(test)]
pub(super) fn top_level_keys() -> Vec<String> {
    let refused = toml::from_str::<File>("\"\" = 1").unwrap_err();
    refused.message().split('`').skip(3).step_by(2).map(str::to_string).collect()
}
