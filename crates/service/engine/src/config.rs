//! What an operator may set, and the check that the values make sense together.
//!
//! It must never hold state, and nothing outside [`EngineConfig::check`] may rely on a value that it did not pass.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use control::UserShare;
use ipnet::IpNet;
use verbs::{DeviceAttr, Encrypt, WirePolicy};

use crate::choice::Thresholds;
use crate::event::SetupError;
use crate::limits::{
    BULK_BYTES, CONVERSATION_TURNS, DATAGRAM_COMPLETIONS_MAX, FLIGHT_BYTES_MAX, FLIGHT_BYTES_MIN, FRAME_BYTES_MAX,
    FRAME_BYTES_MIN, LANE_CREDITS_MAX, LANE_CREDITS_MIN, PIECE_COMPLETIONS_MAX, RING_BYTES_MAX, RING_BYTES_MIN,
    SEND_QUEUE_DEPTH, SEND_QUEUE_DEPTH_MIN, SRQ_BYTES_MAX, SRQ_BYTES_MIN, TABLE_MAX,
};
use crate::pins::PinLimits;
use crate::ring_size::RingSize;
use crate::stages::Clock;

/// Giving a ring's pages back and faulting them in again costs about as much as carrying its bytes, so it is done where
/// a second passes in between.
const REST_AFTER: Duration = Duration::from_secs(1);
/// The next message over a lane that rests waits for a queue pair, so a lane rests only after a time in which nobody
/// counts on it.
const LANE_REST_AFTER: Duration = Duration::from_secs(60);

/// Shorter times would end in the middle of what goes over a slow lane, again and again.
const LANE_REST_MIN: Duration = Duration::from_millis(100);

/// Limits and tunables; every bound has its name here or in the crate's limits.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Number of this engine among those of its daemon, from 0. It is the number of its lanes, and names its range of the
    /// slots of each session. Engine 0 alone has datagrams.
    pub number: u32,
    /// Addresses that name this host; the first is used as local address of connections.
    pub addresses: Vec<IpAddr>,
    /// Ring size in bytes when the application names none (power of two, 4 KiB..=8 MiB).
    pub ring_bytes_default: u32,
    /// Size in bytes to which a ring of [`EngineConfig::ring_bytes_default`] may grow between hosts when it is
    /// full; no more than that size: rings do not grow. Over a device that pins memory they never do.
    pub ring_bytes_grown: u32,
    /// Bytes of pages in rings from which on connections rest sooner, and rings grow later.
    pub ring_held_much: u64,
    /// Largest ring in bytes that an application gets (power of two, 4 KiB..=8 MiB).
    pub ring_bytes_max: u32,
    /// Applications attached at a time, those whose memory is still in quarantine included.
    pub apps_max: u32,
    /// Connections of the host that go through lanes, and connects that wait (at most 1,048,575).
    pub connections_max: u32,
    /// What one user's applications may have of [`EngineConfig::lanes_max`], hosts that are being dialed because of them,
    /// and of [`EngineConfig::ring_memory_max`].
    pub user_share: UserShare,
    /// Networks to whose hosts applications may connect and send datagrams, in addition to this host itself.
    pub connect_to: Vec<IpNet>,
    /// The daemon's own user: like root, it has no bounded share of dials and of ring memory.
    pub owner_uid: u32,
    /// Datagram sockets.
    pub datagram_sockets_max: u32,
    /// Memory of one application's rings at most, in bytes.
    pub ring_memory_per_app_max: u64,
    /// The same of all applications.
    pub ring_memory_max: u64,
    /// Peer hosts.
    pub lanes_max: u32,
    /// Leased lanes, of programs of this host and to regions of this host together (docs/inside/lanes.md).
    pub leased_lanes_max: u32,
    /// Most SRQ entries granted to one lane (8..=65,536). A lane that is not used has 8.
    pub lane_credits: u32,
    /// Size of an SRQ entry in bytes: longest SEND (256..=65,536).
    pub send_bytes_max: u32,
    /// Bytes of all receive buffers of the SRQ, which are made as lanes need them (4 KiB..=1 TiB). Half of it is kept
    /// for the fewest entries of each lane, so it bounds the number of lanes too.
    pub srq_bytes_max: u64,
    /// Bytes posted and not completed on a lane at most; at least four quanta and 256 KiB. How many they are within
    /// that bound is measured (`window.rs`).
    pub lane_inflight_bytes_max: u64,
    /// Deficit-round-robin quantum and longest piece of one WRITE, in bytes (4 KiB..=8 MiB). The default fills one GSO
    /// batch of a software NIC; a little more would be a batch and a crumb.
    pub quantum_bytes: u32,
    /// What may be registered of the memory that programs bring.
    pub pins: PinLimits,
    /// From where on which verb carries the bytes of connections.
    pub choice: Thresholds,
    /// What may carry the lanes, of what the devices of both ends have.
    pub wire: WirePolicy,
    /// The same for single hosts, which goes over [`EngineConfig::wire`].
    pub wires: BTreeMap<IpAddr, WirePolicy>,
    /// Whether lanes are encrypted.
    pub encrypt: Encrypt,
    /// The same for single hosts, which goes over [`EngineConfig::encrypt`].
    pub encrypts: BTreeMap<IpAddr, Encrypt>,
    /// Whether streams of bulk are reported.
    pub tells_bulk: bool,
    /// Bytes of a stream that must come without a pause until it counts as bulk.
    pub bulk_bytes: u64,
    /// Turns of a stream, each a message that waits for the one before, until it counts as a conversation.
    pub conversation_turns: u32,
    /// The clock by which some messages are looked at stage by stage; none: none are.
    pub clock: Option<Clock>,
    /// Fuel of one run of a kernel.
    pub kernel_fuel_max: u64,
    /// A connect fails after this long.
    pub connect_timeout: Duration,
    /// How long connections wait for a peer whose link was lost: its daemon may be started again. Zero: they end at once.
    pub peer_return: Duration,
    /// A lane over which nothing went for so long gives its queue pair up until something is to be sent. `None`: never.
    pub lane_rest_after: Option<Duration>,
    /// A connection that was not used for so long gives the pages of its rings back to the system, if the device allows
    /// it. `None`: never.
    pub rest_after: Option<Duration>,
}

/// What a device can hold, as far as a configuration depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRoom {
    /// Its name, for messages.
    pub name: String,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Work requests of one SRQ.
    pub max_srq_wr: u32,
    /// Completions of one CQ.
    pub max_cqe: u32,
}

impl From<&DeviceAttr> for DeviceRoom {
    fn from(attr: &DeviceAttr) -> Self {
        Self { name: attr.name.clone(), max_qp_wr: attr.max_qp_wr, max_srq_wr: attr.max_srq_wr, max_cqe: attr.max_cqe }
    }
}

/// What of a configuration a device holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFit {
    /// Lanes: those configured, or as many as fit.
    pub lanes: u32,
    /// Entries of the SRQ.
    pub receives: u32,
    /// Work requests of each lane's send queue.
    pub(crate) send_queue: u32,
}

impl EngineConfig {
    /// Defaults for a host with these addresses.
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        Self {
            number: 0,
            addresses,
            ring_bytes_default: 512 << 10,
            ring_bytes_grown: 4 << 20,
            ring_held_much: 64 << 20,
            ring_bytes_max: RING_BYTES_MAX,
            apps_max: 256,
            connections_max: 65_536,
            user_share: UserShare::default(),
            connect_to: private_networks(),
            owner_uid: 0,
            datagram_sockets_max: 4096,
            ring_memory_per_app_max: 16 << 30,
            ring_memory_max: 64 << 30,
            lanes_max: 4096,
            leased_lanes_max: 32,
            lane_credits: 512,
            srq_bytes_max: 256 << 20,
            send_bytes_max: 4096,
            lane_inflight_bytes_max: 64 << 20,
            quantum_bytes: 60 << 10,
            pins: PinLimits::default(),
            choice: Thresholds::default(),
            wire: WirePolicy::Auto,
            wires: BTreeMap::new(),
            encrypt: Encrypt::Off,
            encrypts: BTreeMap::new(),
            tells_bulk: false,
            bulk_bytes: BULK_BYTES,
            conversation_turns: CONVERSATION_TURNS,
            clock: None,
            kernel_fuel_max: kernels::FUEL_MAX,
            connect_timeout: Duration::from_secs(10),
            peer_return: Duration::ZERO,
            lane_rest_after: Some(LANE_REST_AFTER),
            rest_after: Some(REST_AFTER),
        }
    }

    /// Whether the lane to that host is encrypted.
    pub(crate) fn encrypt_to(&self, peer: IpAddr) -> Encrypt {
        self.encrypts.get(&peer.to_canonical()).copied().unwrap_or(self.encrypt)
    }

    /// What may carry the lane to that host.
    pub(crate) fn wire_to(&self, peer: IpAddr) -> WirePolicy {
        self.wires.get(&peer.to_canonical()).copied().unwrap_or(self.wire)
    }

    /// Refuses values that the engine cannot work with on any device. [`crate::Engine::new`] runs this very function.
    pub fn check(&self) -> Result<(), SetupError> {
        if self.addresses.is_empty() {
            return Err(SetupError::Config("addresses is empty: name at least one address of this host".into()));
        }
        for (what, bytes) in [
            ("ring_bytes_default", self.ring_bytes_default),
            ("ring_bytes_grown", self.ring_bytes_grown),
            ("ring_bytes_max", self.ring_bytes_max),
        ] {
            if !bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) {
                return Err(SetupError::Config(format!(
                    "{what} is {bytes}: use a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX}"
                )));
            }
        }
        range("number of the engine", self.number.into(), 0, u64::from(shm::ENGINES_MAX) - 1)?;
        range("quantum_bytes", self.quantum_bytes.into(), RING_BYTES_MIN.into(), RING_BYTES_MAX.into())?;
        range("lane_credits", self.lane_credits.into(), LANE_CREDITS_MIN.into(), LANE_CREDITS_MAX.into())?;
        range("send_bytes_max", self.send_bytes_max.into(), FRAME_BYTES_MIN.into(), FRAME_BYTES_MAX.into())?;
        range("srq_bytes_max", self.srq_bytes_max, SRQ_BYTES_MIN, SRQ_BYTES_MAX)?;
        if self.lane_rest_after.is_some_and(|after| after < LANE_REST_MIN) {
            return Err(SetupError::Config(format!(
                "lane_rest_ms is {}: use 0, for never, or at least {}",
                self.lane_rest_after.unwrap_or_default().as_millis(),
                LANE_REST_MIN.as_millis()
            )));
        }
        let inflight_min = (4 * u64::from(self.quantum_bytes)).max(FLIGHT_BYTES_MIN);
        range("lane_inflight_bytes_max", self.lane_inflight_bytes_max, inflight_min, FLIGHT_BYTES_MAX)?;
        for (what, value) in [
            ("apps_max", self.apps_max),
            ("connections_max", self.connections_max),
            ("datagram_sockets_max", self.datagram_sockets_max),
            ("lanes_max", self.lanes_max),
        ] {
            range(what, value.into(), 1, TABLE_MAX.into())?;
        }
        Ok(())
    }

    /// Whether applications may connect to a host.
    pub(crate) fn allows(&self, host: IpAddr) -> bool {
        self.connect_to.iter().any(|network| network.contains(&host))
    }

    /// Refuses values that a device cannot hold, and says what it holds. [`crate::Engine::new`] runs this very
    /// function.
    pub fn check_device(&self, device: &DeviceRoom) -> Result<DeviceFit, SetupError> {
        let send_queue = SEND_QUEUE_DEPTH.min(device.max_qp_wr);
        if send_queue < SEND_QUEUE_DEPTH_MIN {
            return Err(SetupError::Config(format!(
                "device {} holds {send_queue} work requests per queue pair, {SEND_QUEUE_DEPTH_MIN} are needed",
                device.name
            )));
        }
        // As many lanes as fit the device's SRQ and CQ: neither may ever overflow. Of the receives a lane always has the
        // fewest, and as many again are for lanes that use more.
        let completions = device.max_cqe.saturating_sub(DATAGRAM_COMPLETIONS_MAX + PIECE_COMPLETIONS_MAX);
        let buffers = self.srq_bytes_max / u64::from(self.send_bytes_max);
        let receives = u32::try_from(buffers).unwrap_or(u32::MAX).min(device.max_srq_wr).min(completions / 2);
        let fit = (receives / (2 * LANE_CREDITS_MIN)).min((completions - receives) / send_queue);
        if fit == 0 {
            return Err(SetupError::Config(format!(
                "srq_bytes_max is {}: a lane takes {} receives of {} bytes, and device {} has {} SRQ entries and {} CQ \
                 entries; raise srq_bytes_max or lower send_bytes_max",
                self.srq_bytes_max,
                2 * LANE_CREDITS_MIN,
                self.send_bytes_max,
                device.name,
                device.max_srq_wr,
                device.max_cqe
            )));
        }
        Ok(DeviceFit { lanes: self.lanes_max.min(fit), receives, send_queue })
    }

    /// The rings that an application gets which asks for `asked` bytes (0: no wish).
    pub(crate) fn ring_size(&self, asked: u32) -> RingSize {
        if asked == 0 { self.growing_rings() } else { RingSize::fixed(self.ring_bytes(asked)) }
    }

    /// The rings of those who have no wish.
    pub(crate) fn growing_rings(&self) -> RingSize {
        let first = self.ring_bytes(0);
        RingSize { first, grown: self.rounded(self.ring_bytes_grown).max(first) }
    }

    /// The rings of a connection that comes to a listener, as they are allocated and as they are used. `first` is what
    /// both ends agree on, and `asked` is what the opener has.
    pub(crate) fn accepted_rings(&self, first: u32, asked: RingSize) -> (RingSize, RingSize) {
        let own = self.growing_rings();
        // Who asks for a size gets rings of that size.
        if first == asked.first && asked.grows() && own.grows() && first <= own.first {
            let grown = own.grown.min(asked.grown);
            return (own, RingSize { first, grown });
        }
        (RingSize::fixed(first), RingSize::fixed(first))
    }

    /// The ring size in bytes that an application gets which asks for `asked` bytes (0: no wish).
    pub(crate) fn ring_bytes(&self, asked: u32) -> u32 {
        self.rounded(if asked == 0 { self.ring_bytes_default } else { asked })
    }

    fn rounded(&self, wanted: u32) -> u32 {
        shm::round_ring_bytes(wanted, self.ring_bytes_max)
    }
}

/// Networks that no host of the public Internet is in: RDMA stays within a site, and a daemon that dials wherever its
/// users say would be their way around the rules for the host's own connections to the outside.
pub fn private_networks() -> Vec<IpNet> {
    let v4 = |a: [u8; 4], bits| IpNet::new_assert(IpAddr::from(a), bits);
    let v6 = |first: u16, bits| IpNet::new_assert(IpAddr::from([first, 0, 0, 0, 0, 0, 0, 0]), bits);
    vec![
        // RFC 1918 and 6598.
        v4([10, 0, 0, 0], 8),
        v4([172, 16, 0, 0], 12),
        v4([192, 168, 0, 0], 16),
        v4([100, 64, 0, 0], 10),
        // Loopback and link-local: RFC 1122 and 3927.
        v4([127, 0, 0, 0], 8),
        v4([169, 254, 0, 0], 16),
        // Unique local, link-local and loopback: RFC 4193 and 4291.
        v6(0xfc00, 7),
        v6(0xfe80, 10),
        IpNet::from(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)),
    ]
}

fn range(what: &str, value: u64, min: u64, max: u64) -> Result<(), SetupError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(SetupError::Config(format!("{what} is {value}: use {min} to {max}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EngineConfig {
        EngineConfig::new(vec!["10.0.0.1".parse().unwrap()])
    }

    #[test]
    fn defaults_pass_and_nonsense_is_refused_by_name() {
        config().check().unwrap();
        let refused = |change: fn(&mut EngineConfig), name: &str| {
            let mut c = config();
            change(&mut c);
            let text = c.check().unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        };
        refused(|c| c.addresses.clear(), "addresses");
        refused(|c| c.ring_bytes_default = 5000, "ring_bytes_default");
        refused(|c| c.lane_rest_after = Some(Duration::from_micros(99)), "lane_rest_ms");
        refused(|c| c.lane_credits = 7, "lane_credits");
        refused(|c| c.srq_bytes_max = 1000, "srq_bytes_max");
        refused(|c| c.lane_inflight_bytes_max = 65536, "lane_inflight_bytes_max");
        refused(|c| c.send_bytes_max = 100, "send_bytes_max");
        refused(|c| c.lanes_max = 0, "lanes_max");
        refused(|c| c.connections_max = 1 << 20, "connections_max");
    }

    #[test]
    fn lanes_are_as_many_as_bytes_and_device_hold() {
        let room = |max_srq_wr, max_cqe| DeviceRoom { name: "d".into(), max_qp_wr: 256, max_srq_wr, max_cqe };
        let fit = |change: fn(&mut EngineConfig), room| {
            let mut c = config();
            c.lanes_max = 4096;
            change(&mut c);
            c.check_device(&room).map(|f| (f.lanes, f.receives))
        };
        assert_eq!(fit(|_| (), room(1 << 20, 4 << 20)).unwrap(), (4096, 65_536));
        assert_eq!(fit(|c| c.srq_bytes_max = 1 << 20, room(1 << 20, 4 << 20)).unwrap(), (16, 256));
        assert_eq!(fit(|_| (), room(32_767, 4 << 20)).unwrap(), (2047, 32_767), "half is for lanes that speak");
        let (lanes, receives) = fit(|_| (), room(1 << 20, 32_768)).unwrap();
        assert!(
            lanes > 1 && lanes * 256 + receives + DATAGRAM_COMPLETIONS_MAX + PIECE_COMPLETIONS_MAX <= 32_768,
            "{lanes} {receives}"
        );
        let refused = fit(|c| c.send_bytes_max = 65_536, room(15, 4 << 20)).unwrap_err().to_string();
        assert!(refused.contains("srq_bytes_max") && refused.contains("15 SRQ entries"), "{refused}");
    }

    #[test]
    fn private_hosts_may_be_connected_to_and_others_not_unless_named() {
        let mut config = config();
        let allows = |c: &EngineConfig, host: &str| c.allows(host.parse().unwrap());
        for host in [
            "10.255.0.1",
            "172.31.0.1",
            "192.168.1.1",
            "100.127.0.1",
            "127.9.9.9",
            "169.254.1.1",
            "fd00::1",
            "fe80::1",
            "::1",
        ] {
            assert!(allows(&config, host), "{host}");
        }
        for host in ["11.0.0.1", "172.32.0.1", "192.0.2.1", "100.128.0.1", "8.8.8.8", "2001:db8::1", "::2"] {
            assert!(!allows(&config, host), "{host}");
        }
        config.connect_to = vec!["192.0.2.0/24".parse().unwrap()];
        assert!(allows(&config, "192.0.2.9") && !allows(&config, "10.0.0.1"));
    }

    #[test]
    fn ring_bytes_are_rounded_and_clamped() {
        let mut c = config();
        c.ring_bytes_max = 1 << 20;
        assert_eq!(c.ring_bytes(0), c.ring_bytes_default);
        assert_eq!(c.ring_bytes(1), 4096);
        assert_eq!(c.ring_bytes(4097), 8192);
        assert_eq!(c.ring_bytes(u32::MAX), 1 << 20);
        c.ring_bytes_default = 4 << 20;
        assert_eq!(c.ring_bytes(0), 1 << 20);
    }
}
