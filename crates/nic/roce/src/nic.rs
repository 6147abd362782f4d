//! The NIC: from datagrams to QPs, from QPs to datagrams, and timers in between.
//!
//! Owns the table of QPs and the order in which they send. It does no I/O and reads no clock.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, SocketAddr};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use records::PacketKeys;
use rnic::{MAX_MR, NumberHasher, Timers};
use verbs::{
    AddressVector, AhId, AsyncEvent, Capabilities, DeviceAttr, Gid, PathMarks, PathMtu, Provider as _, QpState, Qpn,
    Time, VerbsError,
};

use crate::batch::{Batch, BatchLimits, Ipv4IdMode, Transmit};
use crate::counters::NicCounters;
use crate::device::Device;
use crate::limits::{MAX_MESSAGE_BYTES, MAX_WINDOW_PACKETS, NicLimits, RECENT_QPNS};
use crate::path::Source;
use crate::peer::NotForUs;
use crate::qp::LentQp;
use crate::qpn_range::QpnRange;
use crate::queue_pair::QueuePair;
use crate::seals::{DatagramSeal, QpSeal};
use crate::ud::Arrival;
use crate::wire::{Body, Bth, Checked, ICRC_BYTES, Unchecked, sealed_bth};

/// How to make a [`Nic`].
#[derive(Debug, Clone)]
pub struct NicConfig {
    /// The port's address: IP address (a specific one, because the ICRC covers it) and UDP port, normally 4791.
    pub local: SocketAddr,
    /// Further addresses of the port, at the same UDP port ([`verbs::AddressVector::source`]).
    pub standby: Vec<IpAddr>,
    /// Largest path MTU of the port.
    pub mtu: PathMtu,
    /// What the NIC can hold.
    pub limits: NicLimits,
    /// Bytes in flight that the receive buffer takes. Peers of our own get this number.
    pub rx_budget_bytes: u32,
    /// What it does beyond the least, as peers get it ([`verbs::DeviceAttr::capabilities`]).
    pub capabilities: Capabilities,
    /// Device name.
    pub name: String,
    /// Segments of one send at most; 1 for a socket without GSO.
    pub max_gso_segments: usize,
    /// What the IPv4 identification of sent segments will be.
    pub id_mode: Ipv4IdMode,
}

/// Bytes that the packet would have had in the clear.
fn inner_bytes(opened: &[u8]) -> usize {
    opened.len() + ICRC_BYTES
}

/// How a datagram came, or several that were received in one call.
#[derive(Debug, Clone, Copy)]
pub struct Arrived {
    /// Whence.
    pub from: SocketAddr,
    /// The address of the NIC that it came to.
    pub to: IpAddr,
    /// The place of the first in what was received at once ([`Nic::handle_datagram`]).
    pub place: u16,
    /// Their IP headers are marked with Congestion Experienced.
    pub is_marked: bool,
}

/// What is known of a received packet beside its bytes.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The address of the NIC that it came to.
    at: Source,
    /// Its place in what was received at once.
    place: u16,
    /// A switch on the way was congested.
    is_marked: bool,
}

/// Where a NIC is.
fn addresses_of(config: &NicConfig) -> Vec<Source> {
    let port = config.local.port();
    let further = config.standby.iter().map(|ip| SocketAddr::new(*ip, port));
    let all = std::iter::once(config.local).chain(further).enumerate();
    all.map(|(index, address)| Source { index, address }).collect()
}

/// A RoCEv2 NIC as a state machine. It implements [`verbs::Provider`]; posting and polling only touch its state.
///
/// The owner feeds datagrams and time in and takes sends out: after each [`Self::handle_datagram`],
/// [`Self::handle_timeout`] or post it calls [`Self::poll_transmit`] until that says `None`, and before
/// [`Self::deadline`] it calls [`Self::handle_timeout`].
#[derive(Debug)]
pub struct Nic {
    /// What numbers of queue pairs it draws.
    qpns: QpnRange,
    pub(crate) config: NicConfig,
    pub(crate) dev: Device,
    pub(crate) qps: HashMap<Qpn, QueuePair, BuildHasherDefault<NumberHasher>>,
    pub(crate) entropy: StdRng,
    batch_limits: BatchLimits,
    ready: VecDeque<Qpn>,
    timers: Timers,
    /// Latest time seen.
    pub(crate) now: Time,
    recent_qpns: VecDeque<Qpn>,
    /// QPs that came to owe an acknowledgement since all was paid.
    debtors: Vec<Qpn>,
    /// Overflows of CQs that QPs were told of.
    overflows_seen: u64,
    marks: PathMarks,
    /// Those of `config`, the first one first.
    addresses: Vec<Source>,
    /// What the last sealed packet had in it.
    opened: Vec<u8>,
}

impl Nic {
    /// A NIC with nothing in it. `entropy` decides QP numbers and memory keys: secret randomness in production, a seed
    /// in a simulation.
    pub fn new(mut config: NicConfig, entropy: [u8; 32]) -> Self {
        let limits = &mut config.limits;
        limits.max_mr = limits.max_mr.min(MAX_MR);
        limits.max_msg_bytes = limits.max_msg_bytes.min(MAX_MESSAGE_BYTES);
        limits.window_packets = limits.window_packets.clamp(1, MAX_WINDOW_PACKETS);
        let attr = DeviceAttr {
            name: config.name.clone(),
            gid: Gid::from(config.local.ip()),
            udp_port: config.local.port(),
            mtu: config.mtu,
            max_msg_bytes: limits.max_msg_bytes,
            max_inline_bytes: limits.max_inline_bytes,
            max_qp_wr: limits.max_qp_wr,
            max_srq_wr: limits.max_srq_wr,
            max_cqe: limits.max_cqe,
            max_sge: limits.max_sge,
            max_rd_atomic: limits.max_rd_atomic,
            max_qp: limits.max_qp,
            max_mr: limits.max_mr,
            rx_budget_bytes: config.rx_budget_bytes,
            capabilities: config.capabilities,
        };
        Self {
            qpns: QpnRange::default(),
            dev: Device::new(attr, limits),
            qps: HashMap::default(),
            entropy: StdRng::from_seed(entropy),
            batch_limits: BatchLimits::new(config.max_gso_segments, config.id_mode),
            ready: VecDeque::new(),
            timers: Timers::default(),
            now: Time::ZERO,
            recent_qpns: VecDeque::new(),
            debtors: Vec::new(),
            overflows_seen: 0,
            marks: PathMarks::default(),
            addresses: addresses_of(&config),
            opened: Vec::new(),
            config,
        }
    }

    /// From here on its queue pairs get numbers of that range: for one of several NICs that share an address and a port.
    pub fn set_qpns(&mut self, qpns: QpnRange) {
        self.qpns = qpns;
    }

    /// How packets of connections that are set up by endpoints, and of datagrams, are marked from here on.
    pub fn set_path_marks(&mut self, marks: PathMarks) {
        self.marks = marks;
    }

    pub(crate) fn marks(&self) -> PathMarks {
        self.marks
    }

    /// [`NicConfig::local`].
    pub(crate) const fn first(&self) -> Source {
        Source { index: 0, address: self.config.local }
    }

    /// The address of the NIC with this IP address.
    pub(crate) fn at(&self, ip: IpAddr) -> Option<Source> {
        let ip = ip.to_canonical();
        self.addresses.iter().find(|at| at.address.ip().to_canonical() == ip).copied()
    }

    /// Takes one received UDP payload that came to [`NicConfig::local`], BTH to ICRC. `place`: that of a segment in what
    /// was received at once, 0 for a packet that came alone. Its IPv4 identification is guessed from it and from those
    /// before; a wrong guess costs time and 16 of 32 check bits.
    pub fn handle_datagram(&mut self, now: Time, from: SocketAddr, payload: &[u8], place: u16) {
        let mut touched = None;
        let seen = Seen { at: self.first(), place, is_marked: false };
        self.take_segment(now, from, payload, seen, &mut touched);
        if let Some(qpn) = touched {
            self.after_event(qpn);
        }
    }

    /// Takes several segments that came to [`NicConfig::local`] in one call: each `stride` bytes long, the last perhaps
    /// shorter. They were probably sent together and numbered from 0.
    pub fn handle_batch(&mut self, now: Time, from: SocketAddr, payload: &[u8], stride: usize) {
        self.take_batch(now, from, payload, stride, Seen { at: self.first(), place: 0, is_marked: false });
    }

    /// The same for segments, or one alone, whose IP headers are marked with Congestion Experienced: their senders are
    /// notified.
    pub fn handle_marked(&mut self, now: Time, from: SocketAddr, payload: &[u8], stride: usize) {
        self.take_batch(now, from, payload, stride, Seen { at: self.first(), place: 0, is_marked: true });
    }

    /// Takes segments, or one alone, of whose way more is known. Those to an address that is not the NIC's are dropped.
    pub fn handle_arrived(&mut self, now: Time, arrived: &Arrived, payload: &[u8], stride: usize) {
        let Arrived { from, to, place, is_marked } = *arrived;
        let Some(at) = self.at(to) else {
            let packets = payload.chunks(stride.max(1)).len() as u64;
            self.dev.counters.rx_packets += packets;
            self.dev.counters.rx_bytes += payload.len() as u64;
            self.dev.counters.drop_wrong_destination += packets;
            return;
        };
        self.take_batch(now, from, payload, stride, Seen { at, place, is_marked });
    }

    fn take_batch(&mut self, now: Time, from: SocketAddr, payload: &[u8], stride: usize, mut seen: Seen) {
        let mut touched = None;
        let mut segments = payload.chunks(stride.max(1)).peekable();
        while let Some(segment) = segments.next() {
            // The header of the next one is on its way into the cache while the CRC of this one is computed.
            std::hint::black_box(segments.peek().and_then(|next| next.first()).copied());
            self.take_segment(now, from, segment, seen, &mut touched);
            seen.place = seen.place.wrapping_add(1);
        }
        if let Some(qpn) = touched {
            self.after_event(qpn);
        }
    }

    /// Takes one segment. `touched` is the QP that is still to be brought in line, before another one is.
    fn take_segment(&mut self, now: Time, from: SocketAddr, payload: &[u8], seen: Seen, touched: &mut Option<Qpn>) {
        self.now = self.now.max(now);
        self.dev.counters.rx_packets += 1;
        self.dev.counters.rx_bytes += payload.len() as u64;
        let taken = match sealed_bth(payload) {
            Some(head) => self.take_sealed(now, from, payload, &head, seen),
            None => self.take_clear(now, from, payload, seen),
        };
        let Some(qpn) = taken else { return };
        if *touched != Some(qpn)
            && let Some(before) = touched.replace(qpn)
        {
            self.after_event(before);
        }
    }

    /// Takes a packet that ends with an ICRC; says which QP it reached.
    fn take_clear(&mut self, now: Time, from: SocketAddr, payload: &[u8], seen: Seen) -> Option<Qpn> {
        let Self { dev, qps, .. } = self;
        let unchecked = Unchecked::parse(payload).map_err(|fault| dev.counters.on_fault(fault)).ok()?;
        let qpn = unchecked.bth.dest_qpn;
        let Some(qp) = qps.get_mut(&qpn) else {
            dev.counters.drop_unknown_qp += 1;
            return None;
        };
        if qp.is_sealed() {
            dev.counters.drop_in_the_clear += 1;
            return None;
        }
        if !qp.takes(unchecked.opcode) {
            dev.counters.drop_wrong_service += 1;
            return None;
        }
        let inbound = match qp.inbound_from(from, seen.at) {
            Ok(inbound) => inbound,
            Err(why) => return self.drop_not_for_us(qpn, from, why),
        };
        let likely = inbound.ids.likely(seen.place);
        let Some(checked) = dev.icrc.check(&inbound.route, unchecked.covered, unchecked.icrc, likely) else {
            dev.counters.drop_bad_icrc += 1;
            return None;
        };
        inbound.ids.found(seen.place, checked.id());
        if let Checked::WithId(_) = checked {
            dev.counters.icrc_id_recovered += 1;
        }
        let packet = unchecked.into_packet().map_err(|fault| dev.counters.on_fault(fault)).ok()?;
        if let Body::Datagram(datagram) = &packet.body
            && dev.seals.has_source(from.ip(), datagram.deth.src_qpn)
        {
            dev.counters.drop_in_the_clear += 1;
            return None;
        }
        let arrival = Arrival { from, to: seen.at.address, udp_payload_bytes: payload.len() };
        qp.handle_packet(&packet, arrival, dev, now);
        if seen.is_marked {
            qp.on_mark(now);
        }
        Some(qpn)
    }

    /// Takes a sealed packet; says which QP it reached. One that is not authentic has no effect but a count.
    fn take_sealed(&mut self, now: Time, from: SocketAddr, payload: &[u8], head: &Bth, seen: Seen) -> Option<Qpn> {
        let Self { dev, qps, opened, .. } = self;
        let qpn = head.dest_qpn;
        let Some(qp) = qps.get_mut(&qpn) else {
            dev.counters.drop_unknown_qp += 1;
            return None;
        };
        if let Err(why) = qp.inbound_from(from, seen.at) {
            return self.drop_not_for_us(qpn, from, why);
        }
        let is_connected = qp.init().qp_type.is_connected();
        let opener = match qp.seal_mut() {
            Some(seal) => Some(&mut seal.keys.opener),
            None if is_connected => None,
            None => dev.seals.get_mut(head.psn).map(|peer| &mut peer.seal.keys.opener),
        };
        let Some(opener) = opener else {
            dev.counters.drop_no_key += 1;
            return None;
        };
        opener.open(payload, opened).map_err(|refused| dev.counters.on_refused(refused)).ok()?;
        dev.counters.rx_sealed += 1;
        // The peer made it, and may have made anything.
        let inner = Unchecked::parse_opened(opened).map_err(|fault| dev.counters.on_fault(fault)).ok()?;
        if inner.bth.dest_qpn != qpn || !qp.takes(inner.opcode) {
            dev.counters.drop_wrong_service += 1;
            return None;
        }
        let packet = inner.into_packet().map_err(|fault| dev.counters.on_fault(fault)).ok()?;
        if let Body::Datagram(datagram) = &packet.body {
            let of_key = dev.seals.get_mut(head.psn);
            let is_from_there = of_key.as_ref().is_some_and(|peer| peer.is_of(from.ip(), datagram.deth.src_qpn));
            if !is_from_there {
                dev.counters.drop_wrong_source += 1;
                return None;
            }
            if !of_key.is_some_and(|peer| peer.is_at(seen.at)) {
                dev.counters.drop_wrong_destination += 1;
                return None;
            }
        }
        let arrival = Arrival { from, to: seen.at.address, udp_payload_bytes: inner_bytes(opened) };
        qp.handle_packet(&packet, arrival, dev, now);
        if seen.is_marked {
            qp.on_mark(now);
        }
        Some(qpn)
    }

    fn drop_not_for_us(&mut self, qpn: Qpn, from: SocketAddr, why: NotForUs) -> Option<Qpn> {
        match why {
            NotForUs::Destination => self.dev.counters.drop_wrong_destination += 1,
            NotForUs::Source => self.dev.counters.drop_wrong_source += 1,
            NotForUs::Port { is_first } => self.drop_strange_port(qpn, from.port(), is_first),
            NotForUs::State => self.dev.counters.drop_wrong_state += 1,
        }
        None
    }

    /// Seals all packets of a connected QP from here on, with keys that only its peer has. It must be in state Init,
    /// and have none. `to` is the peer's QP. The keys go with Reset. What comes in the clear is dropped, and so is what
    /// the peer did not send, or sent before.
    pub fn seal_qp(&mut self, qpn: Qpn, keys: PacketKeys, to: Qpn) -> Result<(), VerbsError> {
        self.qps.get_mut(&qpn).ok_or(VerbsError::NoSuch("QP"))?.seal(QpSeal { keys, to })
    }

    /// Takes [`Self::seal_qp`] back for a QP that is still in Init.
    pub fn unseal_qp(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.unseal();
        }
    }

    /// An address handle to a peer with which datagrams are sealed, in both directions: those of the peer's QP that
    /// come in the clear are dropped. The keys go with the handle.
    pub fn create_sealed_ah(&mut self, av: &AddressVector, seal: DatagramSeal) -> Result<AhId, VerbsError> {
        let key = seal.own_key;
        let at = self.source_of(av)?;
        if !self.dev.seals.insert(seal, av.gid.ip(), at) {
            return Err(VerbsError::NoSuch("free name for the keys of datagrams: make a new offer"));
        }
        let made = self.create_ah(av);
        match &made {
            Ok(ah) => {
                if let Some(path) = self.dev.ahs.get_mut(ah.0) {
                    path.seal = Some(key);
                }
            }
            Err(_) => self.dev.seals.remove(key),
        }
        made
    }

    /// The kernel refused a packet to that address as too long, and the owner learned what fits. The consumer gets
    /// [`AsyncEvent::PathMtu`]. QPs stay as they are, because both ends of one must agree on its path MTU.
    pub fn path_shrank(&mut self, peer: IpAddr, mtu: PathMtu) {
        self.dev.raise(AsyncEvent::PathMtu { peer, mtu });
    }

    fn drop_strange_port(&mut self, qpn: Qpn, found: u16, is_first: bool) {
        self.dev.counters.drop_wrong_port += 1;
        // The event comes once, because the sender of such packets decides how many there are.
        if is_first {
            self.dev.raise(AsyncEvent::StrangePort { qpn, found });
        }
    }

    /// Builds the next send into `buf`: one UDP payload, or a GSO batch of equal segments plus at most one shorter last
    /// one. `None`: nothing to send now.
    ///
    /// Whatever `buf` holds is overwritten. A caller that does not clear it between calls saves zeroing it again.
    ///
    /// Requests stop at the window, but nothing limits how fast the answer to a long READ of a foreign peer leaves: the
    /// caller bounds its loop, and looks for input in between.
    pub fn poll_transmit(&mut self, now: Time, buf: &mut Vec<u8>) -> Option<Transmit> {
        self.now = self.now.max(now);
        while let Some(qpn) = self.ready.pop_front() {
            let Some(qp) = self.qps.get_mut(&qpn) else { continue };
            qp.scheduled = false;
            let batch = Batch::new(buf, self.batch_limits);
            let sent = qp.fill(batch, &mut self.dev, now).map(|(finished, transmit)| {
                let counters = &mut self.dev.counters;
                counters.tx_batches += 1;
                counters.tx_packets += finished.packets as u64;
                counters.tx_bytes += finished.bytes as u64;
                transmit
            });
            self.after_event(qpn);
            if sent.is_some() {
                return sent;
            }
        }
        None
    }

    /// Whether [`Self::poll_transmit`] would build a send.
    pub fn has_transmit(&self) -> bool {
        // Nearly always the first one has; a QP that went into error meanwhile may not.
        self.ready.iter().any(|qpn| self.qps.get(qpn).is_some_and(|qp| qp.has_work()))
    }

    /// When [`Self::handle_timeout`] has to be called; it may turn out that nothing was due yet.
    pub fn deadline(&self) -> Option<Time> {
        self.timers.first()
    }

    /// Fires everything that is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = self.now.max(now);
        // Each QP is looked at once: one whose next deadline is due again waits for the next call.
        for _ in 0..self.qps.len() {
            let Some(qpn) = self.timers.pop_due(now) else { return };
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.timer_at = None;
                qp.handle_timeout(&mut self.dev, now);
                self.after_event(qpn);
            }
        }
    }

    /// Acknowledges everything that is owed to requesters which did not ask. The owner calls it when it is about to take
    /// a QP down, or ends, and then transmits.
    pub fn pay_acknowledgements(&mut self) {
        self.settle_debts(QueuePair::pay);
    }

    /// The owner is about to sleep. What is owed is acknowledged, so that it is not woken for that alone; but a QP for
    /// which that was done a moment ago keeps its debt until it is due.
    pub(crate) fn pay_before_sleep(&mut self) {
        let now = self.now;
        self.settle_debts(|qp| qp.pay_before_sleep(now));
    }

    /// QPs that still owe something afterwards stay debtors.
    fn settle_debts(&mut self, pay: impl Fn(&mut QueuePair)) {
        for qpn in std::mem::take(&mut self.debtors) {
            let Some(qp) = self.qps.get_mut(&qpn) else { continue };
            qp.is_debtor = false;
            pay(qp);
            self.after_event(qpn);
        }
    }

    /// Whether a CQ armed by `req_notify_cq` got its completion, or an asynchronous event came, since the last call.
    pub fn take_notify(&mut self) -> bool {
        self.dev.take_notify()
    }

    /// Lends a connected QP that was offered (state Init) to the transport of another wire: how it was made, what peers may
    /// do through it, and the receives that wait. Its number and its places in CQs and SRQ stay taken here, and no packet
    /// reaches it. When the other transport has ended, it goes to Reset or is destroyed here as any other QP.
    pub fn lend_qp(&mut self, qpn: Qpn) -> Result<LentQp, VerbsError> {
        self.qps.get_mut(&qpn).ok_or(VerbsError::NoSuch("QP"))?.lend()
    }

    /// Takes down QPs of a CQ that overflowed through another transport.
    pub fn settle_overflows(&mut self) {
        if self.overflows_seen != self.dev.overflows() {
            self.fail_overflowed();
        }
    }

    /// What does not depend on the wire: QPs of other transports may use the same memory, CQs and SRQs.
    pub fn device_mut(&mut self) -> &mut rnic::Device {
        &mut self.dev.base
    }

    /// As [`Self::device_mut`], to look at.
    pub fn base(&self) -> &rnic::Device {
        &self.dev.base
    }

    /// Counters since the NIC was made.
    pub fn counters_detail(&self) -> NicCounters {
        NicCounters { device: self.dev.base.counters.clone(), ..self.dev.counters.clone() }
    }

    /// Brings the list of senders, the timers and overflowed CQs in line with what just happened to a QP.
    pub(crate) fn after_event(&mut self, qpn: Qpn) {
        self.settle_overflows();
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        if !qp.scheduled && qp.has_work() {
            qp.scheduled = true;
            self.ready.push_back(qpn);
        }
        if !qp.is_debtor && qp.owes() {
            qp.is_debtor = true;
            self.debtors.push(qpn);
        }
        if let Some(deadline) = qp.deadline() {
            self.timers.arm(qpn, &mut qp.timer_at, deadline);
        }
    }

    /// A CQ that overflowed takes all its QPs down. Their flushes may overflow other CQs.
    fn fail_overflowed(&mut self) {
        while self.overflows_seen != self.dev.overflows() {
            self.overflows_seen = self.dev.overflows();
            let mut users: Vec<Qpn> =
                self.qps.iter().filter(|(_, qp)| self.dev.has_failed_cq(qp.init())).map(|(qpn, _)| *qpn).collect();
            users.sort_unstable();
            for qpn in users {
                if let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.status().state != QpState::Reset) {
                    qp.on_fatal(&mut self.dev);
                }
            }
        }
    }

    /// A random QP number that is not special, not in use, and not destroyed recently.
    pub(crate) fn fresh_qpn(&mut self) -> Qpn {
        const MULTICAST: u32 = 0xff_ffff;
        loop {
            let qpn = self.qpns.draw(self.entropy.next_u32() >> 8);
            let special = qpn.0 < 2 || qpn.0 == MULTICAST;
            if !special && !self.qps.contains_key(&qpn) && !self.recent_qpns.contains(&qpn) {
                return qpn;
            }
        }
    }

    /// Forgets a QP.
    pub(crate) fn remove_qp(&mut self, qpn: Qpn) -> Option<QueuePair> {
        let qp = self.qps.remove(&qpn)?;
        self.timers.cancel(qpn, qp.timer_at);
        self.ready.retain(|q| *q != qpn);
        if self.recent_qpns.len() >= RECENT_QPNS {
            self.recent_qpns.pop_front();
        }
        self.recent_qpns.push_back(qpn);
        Some(qp)
    }
}
