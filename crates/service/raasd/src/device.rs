//! The device of the daemon: which one, why, and opening it.
//!
//! Owns the choice behind `device = "auto"` and what to say where a device cannot be opened. It must never take a
//! device that the kernel does in software, unless it was named: the software NIC does the same work without root or a
//! module, and faster.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use engine::DeviceRoom;
use rdmacore::{DeviceInfo, OpenConfig, RdmaCore, RdmaDevice};
use shm::Region;
use softnic::{KernelTls, Progress, SoftNic, SoftNicConfig, SoftNicDevice};
use verbs::{Access, Device as _, Provider};

use crate::config::DeviceChoice;
use crate::neighbours::{self, Protocol};
use crate::{Config, ConfigError, DaemonError};

/// Bytes that hardware must register to count as usable: a daemon that may lock no memory is better off without it.
const PROBE_BYTES: usize = 1 << 20;

/// Open contexts of the device, one for each engine.
#[derive(Debug)]
pub(crate) enum Contexts {
    /// Of the built-in software NIC.
    SoftNic(Vec<SoftNic>),
    /// Of a device of rdma-core.
    RdmaCore(Vec<RdmaCore>),
}

/// Which device, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The device; never [`DeviceChoice::Auto`].
    pub device: DeviceChoice,
    /// Why this one.
    pub reason: String,
    /// What else there is, and why not.
    pub alternatives: Vec<String>,
}

/// What a configuration leads to, as far as it can be known without serving.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) decision: Decision,
    pub(crate) room: DeviceRoom,
    /// Contexts of hardware: opened for a look, and then the engines'. Empty for the software NIC.
    opened: Vec<RdmaCore>,
}

fn failed(device: &DeviceChoice, what: String) -> DaemonError {
    DaemonError::Device { device: device.to_string(), what }
}

/// What `wanted` leads to on a machine with these devices, and with libibverbs or without (then, why not). Named
/// devices are taken as they are. Hardware still has to prove itself by being opened.
pub fn decide(
    wanted: &DeviceChoice,
    listen: IpAddr,
    devices: &[DeviceInfo],
    library: impl FnOnce() -> Result<(), String>,
) -> Decision {
    if *wanted != DeviceChoice::Auto {
        return Decision {
            device: wanted.clone(),
            reason: "named in the configuration".into(),
            alternatives: Vec::new(),
        };
    }
    let softnic = |reason: String, alternatives| Decision { device: DeviceChoice::SoftNic, reason, alternatives };
    let (software, hardware): (Vec<_>, Vec<_>) = devices.iter().cloned().partition(|device| device.software);
    let mut others: Vec<String> = software
        .iter()
        .map(|d| format!("{} is the kernel's software, which the software NIC outdoes; name it to have it", d.name))
        .collect();
    if hardware.is_empty() {
        return softnic("this machine has no RDMA hardware".into(), others);
    }
    match rdmacore::choose(&hardware, None, listen) {
        Err(e) => softnic(format!("RDMA hardware does not carry {listen}"), [others, vec![e.to_string()]].concat()),
        Ok(choice) => {
            if let Err(missing) = library() {
                return softnic(format!("{} would carry {listen}, but {missing}", choice.device), others);
            }
            others.extend(choice.rejected);
            let device = DeviceChoice::RdmaCore(Some(choice.device));
            Decision { device, reason: choice.why, alternatives: others }
        }
    }
}

/// Decides, and opens hardware.
pub(crate) fn find(config: &Config) -> Result<Found, DaemonError> {
    let library = || rdmacore::library_present().map_err(|e| e.to_string());
    let is_auto = config.device == DeviceChoice::Auto;
    let mut decision = match (&config.device, &config.pcap) {
        // Only the software NIC can write captures, so a configuration with a capture means the software NIC.
        (DeviceChoice::Auto, Some(_)) => Decision {
            device: DeviceChoice::SoftNic,
            reason: "pcap captures the software NIC alone".into(),
            alternatives: Vec::new(),
        },
        (DeviceChoice::Auto, None) if config.needs_tcp_wire().is_some() => Decision {
            device: DeviceChoice::SoftNic,
            reason: "the software NIC alone has the wire over TCP (wire = \"iwarp\")".into(),
            alternatives: Vec::new(),
        },
        (DeviceChoice::Auto, None) if !config.standby.is_empty() => Decision {
            device: DeviceChoice::SoftNic,
            reason: "the software NIC alone is at more than one address (standby)".into(),
            alternatives: Vec::new(),
        },
        (wanted, _) => decide(wanted, config.listen, &rdmacore::list_devices(), library),
    };
    if let (DeviceChoice::RdmaCore(_), Some(entry)) = (&decision.device, config.needs_tcp_wire()) {
        let what =
            format!("{entry} is spoken by the software NIC alone: set device = \"softnic\", or leave the wire out");
        return Err(failed(&decision.device, what));
    }
    let opened = match &decision.device {
        DeviceChoice::RdmaCore(name) => match open_rdma_core(config, &decision.device, name.clone()) {
            Ok(contexts) => contexts,
            Err(e) if is_auto => {
                decision.alternatives.insert(0, e.to_string());
                decision.device = DeviceChoice::SoftNic;
                decision.reason = "RDMA hardware carries the address, but cannot be used".into();
                Vec::new()
            }
            Err(e) => return Err(e),
        },
        _ => Vec::new(),
    };
    let room = match opened.first() {
        Some(context) => DeviceRoom::from(context.device()),
        None => {
            check_softnic_ports(config)?;
            softnic_room(config)
        }
    };
    Ok(Found { decision, room, opened })
}

fn softnic_room(config: &Config) -> DeviceRoom {
    let limits = SoftNicConfig::new(config.listen).limits;
    let (max_qp_wr, max_srq_wr, max_cqe) = (limits.max_qp_wr, limits.max_srq_wr, limits.max_cqe);
    DeviceRoom { name: DeviceChoice::SoftNic.to_string(), max_qp_wr, max_srq_wr, max_cqe }
}

impl Found {
    /// The engines' contexts of the device.
    pub(crate) fn open(self, config: &Config, entropy: [u8; 32]) -> Result<Contexts, DaemonError> {
        let Decision { device, reason, alternatives } = &self.decision;
        tracing::info!(%device, why = %reason, "device");
        for other in alternatives {
            tracing::debug!(%other, "another device");
        }
        match self.opened {
            opened if opened.is_empty() => open_softnic(config, entropy).map(Contexts::SoftNic),
            opened => Ok(Contexts::RdmaCore(opened)),
        }
    }
}

/// Each engine has a port of its own, from `udp_port` on.
fn check_softnic_ports(config: &Config) -> Result<(), DaemonError> {
    let (first, engines) = (config.udp_port, config.engines);
    let last = u32::from(first) + engines.saturating_sub(1);
    if first != 0 && last > u32::from(u16::MAX) {
        let most = u32::from(u16::MAX) - (engines - 1);
        let what =
            format!("udp_port is {first}: {engines} engines have as many ports from there on, so use {most} or less");
        return Err(ConfigError::one(what).into());
    }
    Ok(())
}

/// An engine thread polls its NIC or waits for it at all times, so the NIC needs no thread of its own.
fn open_softnic(config: &Config, entropy: [u8; 32]) -> Result<Vec<SoftNic>, DaemonError> {
    let nic = SoftNicConfig {
        udp_port: config.udp_port,
        standby: config.standby.clone(),
        mtu: config.mtu,
        wire: config.device_wire(),
        kernel_tls: if config.kernel_tls { KernelTls::Auto } else { KernelTls::Off },
        record_limit: config.record_limit,
        marks: config.marks,
        progress: Progress::Inline,
        pcap: config.pcap.clone(),
        entropy: Some(entropy),
        ..SoftNicConfig::new(config.listen)
    };
    let mut device = SoftNicDevice::new(nic);
    let open = |engine| {
        device.open().map_err(|e| {
            let port = config.udp_port.saturating_add(u16::try_from(engine).unwrap_or(0));
            failed(&DeviceChoice::SoftNic, format!("{e}{}", who_has_port(SocketAddr::new(config.listen, port))))
        })
    };
    (0..config.engines).map(open).collect()
}

/// What to say besides of a software NIC that cannot be opened, if that is for its port.
fn who_has_port(address: SocketAddr) -> String {
    let tried = |result: io::Result<()>, protocol| {
        let error = result.err().filter(|e| e.kind() == io::ErrorKind::AddrInUse)?;
        Some(format!(": {}", neighbours::who_has(protocol, address, &error)))
    };
    let udp = tried(UdpSocket::bind(address).map(drop), Protocol::Udp);
    udp.or_else(|| tried(TcpListener::bind(address).map(drop), Protocol::Tcp)).unwrap_or_default()
}

fn open_rdma_core(config: &Config, shown: &DeviceChoice, name: Option<String>) -> Result<Vec<RdmaCore>, DaemonError> {
    if config.pcap.is_some() {
        let what = "pcap captures the software NIC alone; leave it out, or capture with tcpdump";
        return Err(failed(shown, what.into()));
    }
    let open = OpenConfig { name, address: config.listen };
    let opened = RdmaDevice::choose(&open)
        .and_then(|mut device| (0..config.engines).map(|_| device.open()).collect::<Result<Vec<_>, _>>());
    let mut contexts = opened.map_err(|e| failed(shown, e.to_string()))?;
    for context in &mut contexts {
        context.set_path_marks(config.marks);
        probe(context).map_err(|what| failed(shown, what))?;
    }
    if let Some(choice) = contexts.first().map(RdmaCore::choice) {
        let (port, gid_index) = (choice.port, choice.gid.index);
        tracing::info!(device = %choice.device, port, gid_index, why = %choice.why, "opened");
    }
    Ok(contexts)
}

/// Registers some memory, and gives it back.
fn probe(device: &mut RdmaCore) -> Result<(), String> {
    let region = Region::anonymous(PROBE_BYTES).map_err(|e| format!("no memory to try it with: {e}"))?;
    let hint = "it registers no memory; is RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=) high enough?";
    let registered = device.reg_mr(&region, 0, PROBE_BYTES as u64, Access::empty());
    let mr = registered.map_err(|e| format!("{e}: {hint}"))?;
    device.dereg_mr(mr.id).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmacore::{GidInfo, GidType, PortInfo};
    use verbs::Gid;

    const LISTEN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn device(name: &str, software: bool, state: &str) -> DeviceInfo {
        let gid = GidInfo { index: 3, gid: Gid::from(LISTEN), gid_type: GidType::RoceV2, netdev: Some("eth0".into()) };
        let port = PortInfo { number: 1, state: state.into(), link_layer: "Ethernet".into(), gids: vec![gid] };
        DeviceInfo { name: name.into(), software, ports: vec![port] }
    }

    fn auto(devices: &[DeviceInfo], library: Result<(), String>) -> Decision {
        decide(&DeviceChoice::Auto, LISTEN, devices, || library)
    }

    #[test]
    fn hardware_with_the_address_is_taken() {
        let d = auto(&[device("rxe0", true, "ACTIVE"), device("mlx5_0", false, "ACTIVE")], Ok(()));
        assert_eq!(d.device, DeviceChoice::RdmaCore(Some("mlx5_0".into())));
        assert!(d.reason.contains("mlx5_0 port 1 GID 3"), "{d:?}");
        assert!(d.alternatives.iter().any(|a| a.starts_with("rxe0 is the kernel's software")), "{d:?}");
    }

    #[test]
    fn without_usable_hardware_it_is_the_software_nic_and_the_reason_says_why() {
        let softnic = |devices: &[DeviceInfo], library, reason: &str| {
            let d = auto(devices, library);
            assert_eq!(d.device, DeviceChoice::SoftNic);
            assert!(d.reason.contains(reason), "{d:?}");
            d
        };
        softnic(&[], Ok(()), "no RDMA hardware");
        softnic(&[device("rxe0", true, "ACTIVE")], Ok(()), "no RDMA hardware");
        let down = softnic(&[device("mlx5_0", false, "DOWN")], Ok(()), "does not carry 10.0.0.1");
        assert!(down.alternatives[0].contains("mlx5_0 port 1 is DOWN"), "{down:?}");
        softnic(&[device("mlx5_0", false, "ACTIVE")], Err("libibverbs is missing".into()), "libibverbs is missing");
        let elsewhere =
            decide(&DeviceChoice::Auto, [10, 0, 0, 2].into(), &[device("mlx5_0", false, "ACTIVE")], || Ok(()));
        assert_eq!(elsewhere.device, DeviceChoice::SoftNic);
    }

    #[test]
    fn a_named_device_is_taken_as_it_is() {
        let named = DeviceChoice::RdmaCore(Some("rxe0".into()));
        let d = decide(&named, LISTEN, &[device("rxe0", true, "DOWN")], || Err("not asked".into()));
        assert_eq!((d.device, d.reason.as_str()), (named, "named in the configuration"));
    }

    #[test]
    fn a_machine_without_the_address_on_hardware_serves_with_the_software_nic() {
        let config = Config::new([127, 0, 0, 1].into());
        let found = find(&config).unwrap();
        assert_eq!(found.decision.device, DeviceChoice::SoftNic);
        assert!(!found.decision.reason.is_empty());
        let captured = Config { pcap: Some("/dev/null".into()), ..config };
        assert!(find(&captured).unwrap().decision.reason.contains("pcap"));
    }
}
