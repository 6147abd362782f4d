//! An in-process fabric for unit tests of RDMA code: hosts without sockets, threads and clocks, whose packets travel in
//! virtual time through faults that follow from one seed.
//!
//! Owns what users see. The network behind it is in `net`, one host's verbs in `host`.

mod host;
mod net;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roce::NicLimits;
use verbs::{PathMtu, ROCE_UDP_PORT, Time};

pub use host::FabricHost;
use net::Net;

/// Events of one call of [`Fabric::run_until_idle`] at most.
const EVENTS_MAX: usize = 2_000_000;

/// Hosts in one process, each a whole RDMA device ([`FabricHost`] is a [`verbs::Provider`]), and the network between
/// them.
///
/// Time stands still until [`Self::advance`], [`Self::step`] or [`Self::run_until_idle`] moves it: a test of retries
/// that last seconds takes microseconds, and the same seed gives the same packets, losses, keys and QP numbers. What is
/// posted leaves, and what is due arrives, with the next poll or move. The protocol is that of the software NIC, packet
/// for packet.
///
/// A WRITE over a link that loses every tenth packet:
///
/// ```
/// use softnic::{Fabric, Faults};
/// use verbs::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::new(42);
/// fabric.set_faults(Faults { loss_per_mille: 100, ..Faults::default() });
/// let mut ends = Vec::new();
/// for ip in ["10.0.0.1", "10.0.0.2"] {
///     let mut nic = fabric.host(ip.parse()?)?;
///     let cq = nic.create_cq(16)?;
///     let qpn = nic.create_qp(&QpInit::new(QpType::Rc, cq, 16))?;
///     let memory = Region::anonymous(1 << 20)?;
///     let mr = nic.reg_mr(&memory, 0, 1 << 20, Access::all())?;
///     ends.push((nic, cq, qpn, memory, mr));
/// }
/// for i in 0..2 {
///     let (peer, gid) = (ends[1 - i].2, ends[1 - i].0.device().gid);
///     let (nic, _, qpn, ..) = &mut ends[i];
///     nic.modify_qp(*qpn, &QpModify::Init { access: Access::all(), qkey: Qkey(0) })?;
///     nic.modify_qp(*qpn, &QpModify::Rtr(RtrAttr::new(peer, AddressVector::new(gid))))?;
///     nic.modify_qp(*qpn, &QpModify::Rts(RtsAttr::default()))?;
/// }
/// let (op, sge) = (SendOp::Write(RemoteAddr { addr: 0, rkey: ends[1].4.rkey }), ends[0].4.lkey);
/// let (payload, flags) = (Payload::Sges(&[Sge { addr: 0, len: 1 << 20, lkey: sge }]), SendFlags::SIGNALED);
/// let (nic, cq, qpn, memory, _) = &mut ends[0];
/// memory.write(0, b"hello")?;
/// nic.post_send(*qpn, &[SendWr { wr_id: 1, op, payload, flags, dest: None }])?;
/// assert!(fabric.run_until_idle());
/// let mut done = Vec::new();
/// nic.poll_cq(*cq, &mut done, 16)?;
/// assert_eq!((done.len(), done[0].status), (1, Status::Success));
/// assert!(fabric.counters().lost > 50);
/// # let mut landed = [0; 5];
/// # ends[1].3.read(0, &mut landed)?;
/// # assert_eq!(&landed, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Fabric {
    net: Arc<Mutex<Net>>,
}

/// What a link does to packets. Chances are per mille of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Packets that vanish.
    pub loss_per_mille: u32,
    /// Packets that arrive twice, the second 50 us later.
    pub duplicate_per_mille: u32,
    /// Packets that others overtake, because they arrive [`Self::late_by`] later.
    pub late_per_mille: u32,
    /// How much later.
    pub late_by: Duration,
    /// One way; at least 100 ns, so that time moves.
    pub latency: Duration,
}

impl Default for Faults {
    /// No faults, 5 us one way.
    fn default() -> Self {
        Self {
            loss_per_mille: 0,
            duplicate_per_mille: 0,
            late_per_mille: 0,
            late_by: Duration::from_micros(200),
            latency: Duration::from_micros(5),
        }
    }
}

impl Faults {
    /// This many packets of a thousand are lost, as many are repeated, and as many are overtaken.
    pub fn per_mille(n: u32) -> Self {
        Self { loss_per_mille: n, duplicate_per_mille: n, late_per_mille: n, ..Self::default() }
    }

    /// Whether any packet suffers.
    pub fn any(&self) -> bool {
        self.loss_per_mille + self.duplicate_per_mille + self.late_per_mille > 0
    }
}

/// One host of a fabric.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// IP address and UDP port. The port is 4791, unless several devices share one address.
    pub address: SocketAddr,
    /// Path MTU.
    pub mtu: PathMtu,
    /// Packets that travel together at most, as with segmentation offload.
    pub max_gso_segments: usize,
    /// Limits of the device.
    pub limits: NicLimits,
}

impl HostConfig {
    /// UDP port 4791, path MTU 4096.
    pub fn new(ip: IpAddr) -> Self {
        Self {
            address: SocketAddr::new(ip, ROCE_UDP_PORT),
            mtu: PathMtu::Mtu4096,
            max_gso_segments: 16,
            limits: NicLimits::default(),
        }
    }
}

/// What became of packets since the fabric was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FabricCounters {
    /// Arrived, repeated ones included.
    pub delivered: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Repeated.
    pub duplicated: u64,
    /// Held back so that others overtook them.
    pub late: u64,
    /// Lost between hosts that are parted.
    pub parted: u64,
    /// Sent to an address without host.
    pub to_nobody: u64,
    /// Lost because too many were on their way.
    pub overflowed: u64,
}

/// A host cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Another one has the address.
    #[error("the fabric has a host at {0} already: take another address or UDP port")]
    AddressTaken(SocketAddr),
    /// Packets name their source.
    #[error("{0} is no address of one host: take a specific unicast address")]
    NotSpecific(IpAddr),
    /// Too many.
    #[error("the fabric has {0} hosts, which is the limit")]
    TooManyHosts(usize),
}

impl Fabric {
    /// A fabric without hosts and faults. Everything random follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { net: Arc::new(Mutex::new(Net::new(seed))) }
    }

    /// A new host at an address. When it is dropped, it leaves the network without notice, like a host that crashes.
    pub fn host(&self, ip: IpAddr) -> Result<FabricHost, FabricError> {
        self.host_with(HostConfig::new(ip))
    }

    /// A new host with everything said.
    pub fn host_with(&self, config: HostConfig) -> Result<FabricHost, FabricError> {
        FabricHost::new(Arc::clone(&self.net), config)
    }

    /// What all links do from now on, except those of [`Self::set_link`].
    pub fn set_faults(&self, faults: Faults) {
        self.lock().set_faults(faults);
    }

    /// The faults of packets from one host to another from now on, whatever [`Self::set_faults`] says.
    pub fn set_link(&self, from: IpAddr, to: IpAddr, faults: Faults) {
        self.lock().set_link(from, to, faults);
    }

    /// Loses everything between two hosts, in both directions, what is on its way included.
    pub fn part(&self, a: IpAddr, b: IpAddr) {
        self.lock().part(a, b);
    }

    /// Ends [`Self::part`].
    pub fn heal(&self, a: IpAddr, b: IpAddr) {
        self.lock().heal(a, b);
    }

    /// Virtual time since the fabric was made.
    pub fn now(&self) -> Time {
        self.lock().now()
    }

    /// How long until something happens by itself: a packet arrives, a timer fires. Zero if something is to be sent;
    /// `None` if nothing will.
    pub fn next_event(&self) -> Option<Duration> {
        self.lock().next_event()
    }

    /// Lets so much time pass, with everything that happens in it.
    pub fn advance(&self, time: Duration) {
        self.lock().advance(time);
    }

    /// Moves to the next event and lets it happen; false if there is none.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Moves until nothing is on its way and no timer runs. False if that did not come within two million events: two
    /// ends keep each other busy, for example with a receive that is never posted.
    pub fn run_until_idle(&self) -> bool {
        (0..EVENTS_MAX).any(|_| !self.step())
    }

    /// What became of packets.
    pub fn counters(&self) -> FabricCounters {
        self.lock().counters()
    }

    fn lock(&self) -> MutexGuard<'_, Net> {
        self.net.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
