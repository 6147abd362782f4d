//! [`SoftNic`]: opening it, and the verbs calls, each handed to the protocol under the port's lock.

use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use roce::wire::SEALED_EXTRA_BYTES;
use roce::{Ipv4IdMode, Nic, NicConfig};
use rustix::fs::OFlags;
use verbs::{
    AcceptAttr, Access, AddressVector, AhId, AsyncEvent, Capabilities, Completion, Counters, CqId, DatagramAttr,
    DatagramLink, DeviceAttr, Endpoint, Gid, Link, Mr, MrId, MrInit, OfferAttr, PathMarks, PathMtu, Payload, PdId,
    PostError, Provider, QpInit, QpModify, QpStatus, Qpn, RecvWr, Region, SendWr, SrqId, SrqInit, Time, VerbsError,
    Wire, WirePolicy,
};

use crate::background::Background;
use crate::budget::rx_budget_bytes;
use crate::clock::Clock;
use crate::link::link_of;
use crate::pcap::PcapWriter;
use crate::port::sockets::{At, Sockets};
use crate::port::{Capture, Port};
use crate::shared::{Shared, Signals};
use crate::socket::{GSO_SEGMENTS_MAX, Socket};
use crate::tcp::TcpWire;
use crate::{Gso, OpenError, Progress, Share, SoftNicConfig};
use wires::Secrets;

/// Posts without a poll in between leave together: the first at once, those behind it with the next poll, or when so
/// many bytes wait, or so many calls were made.
const GATHERED_BYTES_MAX: u64 = 64 * 1024;
const GATHERED_POSTS_MAX: u32 = 64;
/// A CQ that never runs empty keeps its owner from input and output only for so many polls.
const POLLS_WITHOUT_IO_MAX: u32 = 16;
/// Labels of streams of the seed.
const TOKENS: u8 = 0xa5;
const SECRETS: u8 = 0x5a;
/// Packets are gathered before they are written to a capture.
const CAPTURE_BUFFER_BYTES: usize = 256 * 1024;

/// A software RNIC on a UDP socket.
///
/// `poll_cq` hands out completions that are there before it looks at the socket. With [`Progress::Inline`] the first
/// post after a poll leaves at once and further ones with the next poll, so that they share sends; with
/// [`Progress::Helper`] every post leaves at once. Answers to peers ride with the next post or poll. So an owner
/// without the background thread polls on, or sleeps as the trait says, which makes that progress.
#[derive(Debug)]
pub struct SoftNic {
    // Before `shared`, so that the thread ends first.
    background: Option<Background>,
    shared: Arc<Shared>,
    device: DeviceAttr,
    local: SocketAddr,
    wire: WirePolicy,
    polls_without_io: u32,
    /// A CQ was armed since the last poll, and no background thread is there.
    sleeps_next: bool,
    gathered: Gathered,
    /// Its place is its own as long as it is open.
    _share: Option<Arc<Share>>,
}

/// What was posted since the last poll that looked at the socket.
#[derive(Debug, Default)]
struct Gathered {
    posts: u32,
    bytes: u64,
}
impl SoftNic {
    /// Opens the NIC of an address.
    pub fn open(config: SoftNicConfig) -> Result<Self, OpenError> {
        let link = link_of(config.address).map_err(|e| OpenError::os("asking rtnetlink for interfaces", e))?;
        let link_bytes = link.map(|l| l.mtu_bytes);
        let mtu = path_mtu(&config, link_bytes)?;
        let sealed_mtu = link_bytes.map_or(mtu, |bytes| mtu.min(sealed_mtu(bytes)));
        let scope_id = link.map_or(0, |l| l.index);
        let socket = match lent(&config, config.address) {
            Some(lent) => lent?,
            None => Socket::bind(config.address, config.udp_port, scope_id, config.rcvbuf_bytes)?,
        };
        let local = socket.local();
        let batches = config.gso == Gso::Auto && socket.has_gso();
        let nic_config = NicConfig {
            local,
            standby: config.standby.clone(),
            mtu,
            limits: config.limits.clone(),
            rx_budget_bytes: rx_budget_bytes(socket.rcvbuf_bytes(), mtu),
            capabilities: Capabilities::SOFTWARE_NIC,
            name: "softnic".into(),
            max_gso_segments: if batches { GSO_SEGMENTS_MAX } else { 1 },
            id_mode: if batches { Ipv4IdMode::SegmentIndex } else { Ipv4IdMode::Zero },
        };
        let entropy = config.entropy.map_or_else(random_seed, Ok)?;
        let capture = config.pcap.clone().map(|path| open_capture(path, config.pcap_limit_bytes)).transpose()?;
        let standby = open_standby(&config, local.port(), mtu)?;
        let sockets = Sockets::new(socket, standby);
        let tcp = open_tcp(&config, &sockets, &entropy)?;
        let secrets = Secrets::new(stream_of(&entropy, SECRETS));
        if capture.is_some() && tcp.is_some() {
            tracing::warn!(
                port = tcp.as_ref().map(TcpWire::port),
                "the capture has UDP alone: RoCEv2 and datagrams. Lanes on TCP are not in it: capture the TCP port with \
                 tcpdump, or allow RoCEv2 alone (wire = \"roce\")"
            );
        }
        let mut nic = Nic::new(nic_config, entropy);
        nic.set_path_marks(config.marks);
        if let Some(share) = &config.share {
            nic.set_qpns(share.qpns);
        }
        let device = nic.device().clone();
        let clock = Clock::start();
        let signals =
            (config.progress == Progress::Helper).then(|| Signals::new(config.listener.clone())).transpose()?;
        let needs_thread = signals.is_some();
        let shared = Arc::new(Shared::new(
            Port::new((nic, tcp), (secrets, sealed_mtu), sockets, capture, clock),
            clock,
            signals,
        )?);
        let background = needs_thread.then(|| Background::start(Arc::clone(&shared))).transpose()?;
        let gathered = Gathered::default();
        let (wire, polls_without_io, sleeps_next) = (config.wire, 0, false);
        Ok(Self {
            background,
            shared,
            device,
            local,
            wire,
            polls_without_io,
            sleeps_next,
            gathered,
            _share: config.share,
        })
    }

    /// Address and UDP port that the NIC is bound to.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// The port for a call of the owner.
    fn port(&self) -> MutexGuard<'_, Port> {
        self.shared.lock()
    }

    /// Tells the background thread that the owner is here, and the owner of completions that this call brought.
    fn on_progress(&self, port: &mut Port, now: Time) {
        if let Some(signals) = self.shared.signals() {
            signals.on_owner_call(now);
        }
        self.on_output_only(port, now);
    }

    /// A call that may have completed work but says nothing about whether the owner polls.
    fn on_output_only(&self, port: &mut Port, now: Time) {
        let Some(signals) = self.shared.signals() else { return };
        if port.take_notify() {
            signals.signal_owner(port);
        }
        signals.on_changed(port, now);
    }
}

/// The socket of an address that is lent, if those of the NIC are.
fn lent(config: &SoftNicConfig, address: IpAddr) -> Option<Result<Socket, OpenError>> {
    let share = config.share.as_ref()?;
    let (_, fd) = share.sockets.iter().find(|(at, _)| *at == address)?;
    let adopt = |fd| Socket::adopt(fd, SocketAddr::new(address, config.udp_port), config.rcvbuf_bytes);
    Some(fd.try_clone().map_err(|e| OpenError::os("dup", e)).and_then(adopt))
}

/// The sockets of further addresses, which this host may not have at the moment. `mtu`: of the first one.
fn open_standby(config: &SoftNicConfig, port: u16, mtu: PathMtu) -> Result<Vec<At>, OpenError> {
    let open = |address: &IpAddr| {
        let link = link_of(*address).map_err(|e| OpenError::os("asking rtnetlink for interfaces", e))?;
        if link.is_none() {
            tracing::warn!(%address, "this host does not have the standby address now; datagrams there wait for it");
        }
        let scope_id = link.map_or(0, |link| link.index);
        let socket = match lent(config, *address) {
            Some(lent) => lent?,
            None => Socket::bind_standby(SocketAddr::new(*address, port), scope_id, config.rcvbuf_bytes)?,
        };
        let of = |bytes| [PathMtu::for_link(bytes).unwrap_or(PathMtu::Mtu256), sealed_mtu(bytes)];
        let narrower = link.map(|link| of(link.mtu_bytes).map(|here| here.min(mtu)));
        Ok(At::new(socket, narrower))
    };
    config.standby.iter().map(open).collect()
}

/// The wire over TCP, if the policy allows it. Where both wires are allowed, one that cannot listen is done without.
fn open_tcp(config: &SoftNicConfig, sockets: &Sockets, entropy: &[u8; 32]) -> Result<Option<TcpWire>, OpenError> {
    let (policy, may_move) = (config.wire, config.udp_port == 0);
    if !policy.allows(Wire::Iwarp) {
        return Ok(None);
    }
    let seed = stream_of(entropy, TOKENS);
    let udp: Vec<_> = sockets.all().map(Socket::as_fd).collect();
    let addresses = (sockets.first.socket.local(), may_move, &config.standby[..]);
    match TcpWire::open(addresses, config.marks, (config.kernel_tls, config.record_limit), &udp, seed) {
        Err(error) if policy == WirePolicy::Auto => {
            tracing::warn!(%error, "without the wire over TCP: all connections use RoCEv2");
            Ok(None)
        }
        other => other.map(Some),
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        self.background = None;
        // Answers that would have ridden with the next call leave now, or peers would wait for them in vain.
        let mut port = self.port();
        let now = port.now();
        port.nic.pay_acknowledgements();
        port.transmit(now);
        port.flush_capture();
    }
}

impl Gathered {
    /// Counts a post; says whether what was posted leaves now.
    fn must_leave(&mut self, wrs: &[SendWr<'_>]) -> bool {
        let bytes = |wr: &SendWr<'_>| match wr.payload {
            Payload::Sges(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
            Payload::Inline(data) => data.len() as u64,
        };
        self.posts += 1;
        self.bytes += wrs.iter().map(bytes).sum::<u64>();
        let is_full = self.bytes >= GATHERED_BYTES_MAX || self.posts > GATHERED_POSTS_MAX;
        if is_full {
            *self = Self { posts: 1, bytes: 0 };
        }
        self.posts == 1
    }
}

/// The largest path MTU that the interface allows, or the one asked for.
fn path_mtu(config: &SoftNicConfig, link_bytes: Option<usize>) -> Result<PathMtu, OpenError> {
    let address = config.address;
    match (config.mtu, link_bytes) {
        (Some(mtu), None) => Ok(mtu),
        (None, None) if address.is_unspecified() || address.is_multicast() => Err(OpenError::NotSpecific(address)),
        (None, None) => Err(OpenError::NoInterface(address)),
        (wanted, Some(mtu_bytes)) => {
            let largest = PathMtu::for_link(mtu_bytes).ok_or(OpenError::MtuTooSmall { address, mtu_bytes })?;
            match wanted {
                Some(mtu) if mtu > largest => Err(OpenError::MtuTooLarge { address, wanted: mtu.bytes(), mtu_bytes }),
                other => Ok(other.unwrap_or(largest)),
            }
        }
    }
}

/// The largest path MTU whose sealed packets fit an interface, or the smallest of all.
fn sealed_mtu(link_bytes: usize) -> PathMtu {
    PathMtu::for_link(link_bytes.saturating_sub(SEALED_EXTRA_BYTES)).unwrap_or(PathMtu::Mtu256)
}

/// Another stream of the same seed, so that tokens and secrets tell nothing of keys.
fn stream_of(entropy: &[u8; 32], label: u8) -> [u8; 32] {
    entropy.map(|byte| byte ^ label)
}

fn random_seed() -> Result<[u8; 32], OpenError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|e| OpenError::Entropy(e.to_string()))?;
    Ok(seed)
}

fn open_capture(path: PathBuf, limit_bytes: u64) -> Result<Capture, OpenError> {
    // It shows everybody's data, and its name may lie in a directory where others can put a link. The links to own
    // descriptors are nobody else's.
    let own = ["/dev/fd/", "/proc/self/fd/", "/dev/stdout"].iter().any(|own| path.starts_with(own));
    let nofollow = if own { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = nofollow.bits().cast_signed();
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).custom_flags(flags).open(&path);
    file.and_then(|file| PcapWriter::new(BufWriter::with_capacity(CAPTURE_BUFFER_BYTES, file), limit_bytes))
        .map_err(|source| OpenError::Capture { path, source })
}

impl Provider for SoftNic {
    fn device(&self) -> &DeviceAttr {
        &self.device
    }

    fn path_marks(&self) -> PathMarks {
        self.port().nic.path_marks()
    }

    fn create_cq(&mut self, cqe: u32) -> Result<CqId, VerbsError> {
        self.port().nic.create_cq(cqe)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.port().nic.destroy_cq(cq)
    }

    fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, VerbsError> {
        self.port().nic.create_srq(init)
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        self.port().nic.destroy_srq(srq)
    }

    fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        self.port().nic.arm_srq(srq, limit)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbsError> {
        self.port().nic.create_qp(init)
    }

    fn modify_qp(&mut self, qpn: Qpn, to: &QpModify) -> Result<(), VerbsError> {
        let mut port = self.port();
        // Answers of the QP as it was leave first; afterwards there may be new ones.
        let now = port.now();
        port.nic.pay_acknowledgements();
        port.transmit(now);
        port.modify_qp(qpn, to)?;
        port.transmit(now);
        self.on_output_only(&mut port, now);
        Ok(())
    }

    fn query_qp(&self, qpn: Qpn) -> Result<QpStatus, VerbsError> {
        self.port().query_qp(qpn)
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        let mut port = self.port();
        let now = port.now();
        port.nic.pay_acknowledgements();
        port.transmit(now);
        port.destroy_qp(qpn)
    }

    fn offer(&mut self, qpn: Qpn, attr: &OfferAttr) -> Result<Endpoint, VerbsError> {
        self.port().offer(qpn, attr, self.wire)
    }

    fn accept(&mut self, qpn: Qpn, own: &Endpoint, peer: &Endpoint, attr: &AcceptAttr) -> Result<Link, VerbsError> {
        let mut port = self.port();
        let link = port.accept(qpn, own, peer, attr)?;
        let now = port.now();
        port.transmit(now);
        self.on_output_only(&mut port, now);
        Ok(link)
    }

    fn accept_datagrams(
        &mut self,
        peer: &Endpoint,
        beside: Qpn,
        attr: &DatagramAttr,
    ) -> Result<Option<DatagramLink>, VerbsError> {
        self.port().accept_datagrams(peer, beside, attr)
    }

    fn is_at(&self, gid: Gid) -> bool {
        self.port().nic.is_at(gid)
    }

    fn create_ah(&mut self, av: &AddressVector) -> Result<AhId, VerbsError> {
        self.port().nic.create_ah(av)
    }

    fn destroy_ah(&mut self, ah: AhId) -> Result<(), VerbsError> {
        self.port().nic.destroy_ah(ah)
    }

    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.port().nic.alloc_pd()
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        self.port().nic.dealloc_pd(pd)
    }

    fn register(&mut self, init: &MrInit<'_>) -> Result<Mr, VerbsError> {
        self.port().nic.register(init)
    }

    fn reg_mr(&mut self, region: &Region, offset: u64, len: u64, access: Access) -> Result<Mr, VerbsError> {
        self.register(&MrInit::new(region, offset, len, access))
    }

    fn dereg_mr(&mut self, mr: MrId) -> Result<(), VerbsError> {
        self.port().nic.dereg_mr(mr)
    }

    fn pins_memory(&self) -> bool {
        false
    }

    /// Under the port's lock, so that no packet is placed meanwhile.
    fn try_discard(&mut self, mr: MrId, offset: u64, len: u64, unreported: Option<Qpn>) -> Result<bool, VerbsError> {
        self.port().try_discard(mr, offset, len, unreported)
    }

    fn post_send(&mut self, qpn: Qpn, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut port = self.shared.lock();
        let posted = port.post_send(qpn, wrs);
        let is_helped = self.shared.signals().is_some();
        if self.gathered.must_leave(wrs) || is_helped {
            let now = port.now();
            port.transmit(now);
            self.on_output_only(&mut port, now);
        }
        posted
    }

    fn post_recv(&mut self, qpn: Qpn, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.port().post_recv(qpn, wrs)
    }

    fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.port().nic.post_srq_recv(srq, wrs)
    }

    fn withdraw_srq_recv(&mut self, srq: SrqId, max: usize, out: &mut Vec<u64>) -> Result<usize, VerbsError> {
        self.port().nic.withdraw_srq_recv(srq, max, out)
    }

    fn poll_cq(&mut self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> Result<usize, VerbsError> {
        let mut port = self.shared.lock();
        let ready = port.nic.poll_cq(cq, out, max)?;
        if ready > 0 && self.polls_without_io < POLLS_WITHOUT_IO_MAX {
            self.polls_without_io += 1;
            return Ok(ready);
        }
        self.polls_without_io = 0;
        let now = port.now();
        if std::mem::take(&mut self.gathered).posts > 1 {
            port.transmit(now);
        }
        // An owner that has just armed the CQ sleeps on the descriptors next, which tell of all that came meanwhile.
        let received = !std::mem::take(&mut self.sleeps_next) && port.receive(now);
        let came = port.nic.poll_cq(cq, out, max - ready)?;
        // Answers to what just came ride with what the owner posts next, or leave with its next poll.
        if !received {
            port.transmit(now);
        }
        self.on_progress(&mut port, now);
        Ok(ready + came)
    }

    fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        self.port().nic.req_notify_cq(cq, solicited_only)?;
        match self.shared.signals() {
            Some(signals) => signals.on_armed(),
            None => self.sleeps_next = true,
        }
        Ok(())
    }

    fn poll_cq_event(&mut self) -> Option<CqId> {
        self.port().nic.poll_cq_event()
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.port().nic.poll_event()
    }

    fn progress(&mut self) -> bool {
        self.gathered = Gathered::default();
        if let Some(signals) = self.shared.signals() {
            signals.clear_owner_signal();
        }
        let mut port = self.port();
        let now = port.now();
        let worked = port.progress(now);
        if self.shared.signals().is_none() {
            // The owner looks at its CQs next, so what came needs no further wake-up.
            port.take_notify();
        }
        self.on_progress(&mut port, now);
        worked
    }

    fn wait_fds<'a>(&'a self, out: &mut Vec<BorrowedFd<'a>>) {
        out.push(self.shared.wait_fd());
    }

    fn deadline(&self) -> Option<Duration> {
        // The background thread keeps the time itself.
        if self.shared.signals().is_some() {
            return None;
        }
        let port = self.port();
        port.sleep_bound(port.now())
    }

    fn counters(&self) -> Counters {
        let port = self.port();
        let mut counters = port.nic.counters();
        port.append_counters(&mut counters);
        counters
    }
}
