//! The TCP wire of a host: the queue pairs that are on it, as the software NIC has them, over streams of the world.
//!
//! The endpoints, the choice of the wire and the machine of each queue pair are the shipped ones (`wires`,
//! `iwarp::Qp`), and so are the records of encrypted streams. What stands here in place of the software NIC's sockets must
//! do what they do and no more.
//!
//! Over 600 lines because one queue pair has one life here, from its offer to its end.

mod sealed;

use std::collections::BTreeMap;
use std::time::Duration;

use iwarp::mpa::{FrameKind, Parsed, Startup};
use iwarp::terminate::Cause;
use iwarp::{Ending, Gather, GatherPiece, Qp, QpEvent, Scatter};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use records::RecordLimit;
use roce::Nic;
use verbs::Provider as _;
use verbs::{
    AcceptAttr, AsyncEvent, Endpoint, Gid, Link as Connected, OfferAttr, Psn, QpModify, QpState, QpStatus, QpType, Qpn,
    RecvWr, Rkey, RoceEndpoint, SendWr, Time, VerbsError, Wire, WirePolicy,
};
use wires::{
    Choice, FPDU_BYTES, HELLO_BYTES, KeyUse, Sealed, Secrets, TOKEN_BYTES, TcpPart, Telling, Token, Unreached, Wires,
    accept_roce, choose,
};

use crate::address::{UDP_PORT, host_of, path_of};
use crate::streams::{EndId, Standing, Streams};

/// The exchange at the start is over by then.
const ESTABLISH: Duration = Duration::from_secs(5);
/// How long a stream may take to show a token.
const STRANGER_PATIENCE: Duration = Duration::from_secs(2);
/// Longest MPA request that can be one of ours.
const REQUEST_BYTES_MAX: usize = 256;
/// Pieces and bytes of one send.
const GATHER_PIECES: usize = 40;
const GATHER_BYTES: u64 = 1 << 20;
/// Calls in each direction of one queue pair in one go.
const CALLS: usize = 16;

/// Where the stream of a queue pair is.
#[derive(Debug)]
enum Stage {
    /// It is to be dialed.
    Dial,
    /// The peer dials.
    Waiting,
    Connecting(EndId),
    Open(EndId),
    Over,
}

#[derive(Debug)]
struct Link {
    qp: Qp,
    /// Of one that is encrypted.
    sealed: Option<Sealed>,
    key_use: KeyUse,
    own: TcpPart,
    peer: TcpPart,
    stage: Stage,
    establish_by: Option<Time>,
    has_told_end: bool,
}

#[derive(Debug)]
struct Offer {
    token: Token,
    /// A stream that showed the token before the peer's endpoint was known.
    early: Option<(EndId, Startup)>,
}

/// The wire.
#[derive(Debug)]
pub(crate) struct TcpSide {
    policy: WirePolicy,
    rng: StdRng,
    /// Of one key of a stream.
    record_limit: RecordLimit,
    /// Of endpoints that encrypt.
    secrets: Secrets,
    /// Longest piece that one call reads or writes.
    cut_max: usize,
    offers: BTreeMap<Qpn, Offer>,
    links: BTreeMap<Qpn, Link>,
    /// What they said so far, and until when they must have said all.
    strangers: BTreeMap<EndId, (Vec<u8>, Time)>,
    /// Ends of queue pairs that were taken off the wire.
    orphans: Vec<EndId>,
    /// Which wire is avoided toward whom.
    unreached: Unreached,
    gather: Gather,
    scatter: Scatter,
    /// Streams that ended because a rule was broken, with the peer's host.
    pub(crate) broken_rules: Vec<(std::net::IpAddr, String)>,
}

/// Who works with the streams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Here {
    pub(crate) now: Time,
    pub(crate) host: usize,
    pub(crate) life: u32,
}

impl TcpSide {
    pub(crate) fn new(policy: WirePolicy, record_limit: RecordLimit, cut_max: usize, entropy: [u8; 32]) -> Self {
        Self {
            policy,
            record_limit,
            rng: StdRng::from_seed(entropy),
            secrets: Secrets::new(entropy.map(|byte| byte ^ 0x5a)),
            cut_max,
            offers: BTreeMap::new(),
            links: BTreeMap::new(),
            strangers: BTreeMap::new(),
            orphans: Vec::new(),
            unreached: Unreached::default(),
            gather: Gather::new(GATHER_PIECES, GATHER_BYTES),
            scatter: Scatter::new(),
            broken_rules: Vec::new(),
        }
    }

    /// Whether strangers may connect.
    pub(crate) fn listens(&self) -> bool {
        self.policy.allows(Wire::Iwarp)
    }

    // ---- verbs

    pub(crate) fn offer(
        &mut self,
        nic: &mut Nic,
        qpn: Qpn,
        attr: &OfferAttr,
        now: Time,
    ) -> Result<Endpoint, VerbsError> {
        let qp_type = nic.query_qp(qpn)?.qp_type;
        let device = nic.device();
        let mtu = device.mtu.min(attr.mtu_max);
        let gid = attr.local.map_or(device.gid, Gid::from);
        let roce = RoceEndpoint {
            qp_type,
            qpn,
            psn: Psn::new(attr.entropy),
            gid,
            udp_port: device.udp_port,
            mtu,
            max_rd_atomic: device.max_rd_atomic,
            rx_budget_bytes: device.rx_budget_bytes,
        };
        let max_rd_atomic = device.max_rd_atomic;
        verbs::Provider::modify_qp(nic, qpn, &QpModify::Init { access: attr.access, qkey: verbs::Qkey(0) })?;
        let mut token = [0; TOKEN_BYTES];
        self.rng.fill_bytes(&mut token);
        let token = Token(token);
        let encryption = self.secrets.offer(qpn, attr.encrypt);
        let is_reliable = qp_type == QpType::Rc;
        is_reliable.then(|| self.offers.insert(qpn, Offer { token, early: None }));
        let tcp = is_reliable.then_some(TcpPart {
            qpn,
            gid,
            port: UDP_PORT,
            token,
            is_preferred: !attr.peer.is_some_and(|peer| self.unreached.has(now, peer)),
            wants_crc: false,
            is_extended: true,
            confirms: true,
            fpdu_bytes: FPDU_BYTES,
            max_rd_atomic,
            mtu,
            encryption,
            seals_packets: true,
        });
        let sealed = encryption.filter(|_| tcp.is_none());
        let wires = Wires { roce: Some(roce), tcp, sealed }.allowed(self.policy).allowed(attr.wire);
        let none = VerbsError::NoCommonWire { own: self.policy.to_string(), peer: attr.wire.to_string() };
        wires.to_endpoint().unwrap_or(Err(none))
    }

    pub(crate) fn accept(
        &mut self,
        nic: &mut Nic,
        qpn: Qpn,
        own: &Endpoint,
        peer: &Endpoint,
        attr: &AcceptAttr,
        now: Time,
    ) -> Result<Connected, VerbsError> {
        let (own_wires, peer_wires) = (Wires::parse(own)?, Wires::parse(peer)?);
        let (choice, wire_reason) = choose(&own_wires, &peer_wires)?;
        let (own_part, peer_part) = match choice {
            Choice::Roce(..) => {
                let link = accept_roce(nic, &mut self.secrets, qpn, (own, peer), attr)?;
                self.forget_offer(qpn);
                return Ok(Connected { wire_reason, ..link });
            }
            Choice::Tcp(own, peer) => (own, peer),
        };
        self.secrets.check(qpn, &own_wires)?;
        let (keys, encryption_reason) = own_part.keys_with(&peer_part)?;
        let cipher = keys.as_ref().map(|_| records::CIPHER);
        let max_msg_bytes = nic.device().max_msg_bytes;
        let lent = nic.lend_qp(qpn)?;
        self.secrets.on_connected(qpn, &own_wires, &peer_wires);
        let made = own_part.qp_attr(&peer_part, &lent, max_msg_bytes);
        let early = self.offers.remove(&qpn).and_then(|offer| offer.early);
        let stage = if own_part.connects_to(&peer_part) { Stage::Dial } else { Stage::Waiting };
        let mut link = Link {
            qp: Qp::new(made, lent.receives),
            sealed: keys.map(|keys| Sealed::new(keys.limited(self.record_limit), !own_part.connects_to(&peer_part))),
            key_use: KeyUse::new(self.record_limit),
            own: own_part,
            peer: peer_part,
            stage,
            establish_by: Some(now + ESTABLISH),
            has_told_end: false,
        };
        match early {
            Some((end, request)) if link.is_meant_by(&request.private_data) => self.adopt(&mut link, end, &request),
            Some((end, _)) => self.orphans.push(end),
            None => {}
        }
        self.links.insert(qpn, link);
        let mtu = own_part.mtu.min(peer_part.mtu);
        let reads_max = own_part.max_rd_atomic.min(peer_part.max_rd_atomic);
        let (peer, peer_qpn) = (peer_part.address(), peer_part.qpn.0);
        let wire = Wire::Iwarp;
        Ok(Connected { peer, peer_qpn, mtu, reads_max, wire, wire_reason, cipher, encryption_reason })
    }

    fn forget_offer(&mut self, qpn: Qpn) {
        if let Some((end, _)) = self.offers.remove(&qpn).and_then(|offer| offer.early) {
            self.orphans.push(end);
        }
    }

    /// `None`: the queue pair is not on this wire.
    pub(crate) fn modify(&mut self, nic: &mut Nic, qpn: Qpn, to: &QpModify) -> Option<Result<(), VerbsError>> {
        if matches!(to, QpModify::Reset) {
            self.remove(nic, qpn);
            return None;
        }
        let Some(link) = self.links.get_mut(&qpn) else {
            if matches!(to, QpModify::Rtr(_) | QpModify::Err) {
                self.forget_offer(qpn);
            }
            return None;
        };
        Some(match to {
            QpModify::Err => {
                link.qp.abort(nic.device_mut());
                nic.settle_overflows();
                Ok(())
            }
            _ => Err(VerbsError::WrongState { state: link.qp.status().state, what: "this transition on TCP" }),
        })
    }

    /// Takes a queue pair off the wire.
    pub(crate) fn remove(&mut self, nic: &mut Nic, qpn: Qpn) {
        self.secrets.forget(qpn);
        self.forget_offer(qpn);
        let Some(mut link) = self.links.remove(&qpn) else { return };
        link.qp.release(nic.device_mut());
        if let Stage::Connecting(end) | Stage::Open(end) = link.stage {
            self.orphans.push(end);
        }
    }

    pub(crate) fn status(&self, qpn: Qpn) -> Option<QpStatus> {
        self.links.get(&qpn).map(|link| link.qp.status())
    }

    pub(crate) fn post_send(&mut self, nic: &mut Nic, qpn: Qpn, wr: &SendWr<'_>) -> Option<Result<(), VerbsError>> {
        let posted = self.links.get_mut(&qpn)?.qp.post_send(wr, nic.device_mut());
        nic.settle_overflows();
        Some(posted)
    }

    pub(crate) fn post_recv(&mut self, nic: &mut Nic, qpn: Qpn, wr: &RecvWr<'_>) -> Option<Result<(), VerbsError>> {
        let posted = self.links.get_mut(&qpn)?.qp.post_recv(wr, nic.device_mut());
        nic.settle_overflows();
        Some(posted)
    }

    /// Whether bytes of a queue pair on this wire lie in the range that no completion has reported.
    pub(crate) fn has_unreported(&self, nic: &Nic, qpn: Qpn, rkey: Rkey, addr: u64, len: u64) -> Option<bool> {
        let link = self.links.get(&qpn)?;
        let cq = nic.base().cqs.get(link.qp.init().recv_cq.0)?;
        Some(!cq.is_empty() || link.qp.has_unreported(rkey, addr, len))
    }

    // ---- bytes

    pub(crate) fn deadline(&self) -> Option<Time> {
        let of = |link: &Link| [link.establish_by, link.qp.deadline()].into_iter().flatten().min();
        let strangers = self.strangers.values().map(|(_, until)| *until);
        self.links.values().filter_map(of).chain(strangers).min()
    }

    /// A process's kernel has taken a connection.
    pub(crate) fn on_stranger(&mut self, end: EndId, now: Time) {
        self.strangers.insert(end, (Vec::new(), now + STRANGER_PATIENCE));
    }

    /// One go: timers, bytes in, bytes out. Says whether anything moved.
    pub(crate) fn run(&mut self, here: Here, nic: &mut Nic, streams: &mut Streams) -> bool {
        let mut moved = self.hear_strangers(here.now, nic, streams);
        let numbers: Vec<Qpn> = self.links.keys().copied().collect();
        for qpn in numbers {
            let Some(mut link) = self.links.remove(&qpn) else { continue };
            moved |= self.run_link(&mut link, here, nic, streams);
            self.links.insert(qpn, link);
        }
        for end in std::mem::take(&mut self.orphans) {
            streams.close(end);
        }
        nic.settle_overflows();
        moved
    }

    fn run_link(&mut self, link: &mut Link, here: Here, nic: &mut Nic, streams: &mut Streams) -> bool {
        if link.establish_by.is_some_and(|by| by <= here.now) {
            self.unreached.note(here.now, link.peer.gid.ip());
            link.fail(nic, streams);
            return true;
        }
        if link.qp.deadline().is_some_and(|at| at <= here.now) {
            link.qp.handle_timeout(nic.device_mut(), here.now);
        }
        let mut moved = false;
        match link.stage {
            Stage::Dial => {
                let (peer, path) = (host_of(link.peer.gid.ip()), path_of(link.own.gid.ip()));
                link.stage = Stage::Connecting(streams.connect(here.host, here.life, peer, path));
                moved = true;
            }
            Stage::Connecting(end) => match streams.standing(end) {
                Standing::Dialing => {}
                Standing::Broken => {
                    self.unreached.note(here.now, link.peer.gid.ip());
                    link.fail(nic, streams);
                    moved = true;
                }
                Standing::Open | Standing::AtEnd => {
                    link.stage = Stage::Open(end);
                    if link.qp.connect(&link.own.hello_to(&link.peer)).is_err() {
                        link.fail(nic, streams);
                    }
                    moved = true;
                }
            },
            Stage::Open(end) => {
                if streams.was_given_up(end) {
                    self.unreached.note(here.now, link.peer.gid.ip());
                }
                moved |= self.receive(link, end, nic, streams);
                // What came may have ended the stream, or MPA's startup, behind which the end that connects seals.
                self.settle(link, nic, streams);
                if matches!(link.stage, Stage::Open(_)) {
                    moved |= self.transmit(link, end, nic, streams);
                }
            }
            Stage::Waiting | Stage::Over => {}
        }
        self.settle(link, nic, streams);
        moved
    }

    fn cut(&mut self) -> usize {
        self.rng.random_range(1..=self.cut_max)
    }

    fn receive(&mut self, link: &mut Link, end: EndId, nic: &mut Nic, streams: &mut Streams) -> bool {
        if link.sealed.is_some() {
            return self.receive_records(link, end, nic, streams);
        }
        let mut moved = false;
        for _ in 0..CALLS {
            if link.qp.is_over() {
                break;
            }
            link.qp.want(nic.device_mut(), &mut self.scatter);
            if self.scatter.is_empty() {
                break;
            }
            match streams.standing(end) {
                Standing::Broken => {
                    link.fail(nic, streams);
                    return true;
                }
                Standing::AtEnd if !link.has_told_end => {
                    link.has_told_end = true;
                    link.qp.on_eof(nic.device_mut());
                    return true;
                }
                _ => {}
            }
            let memory = self.scatter.memory_bytes() as usize;
            let most = self.cut().min(memory + self.scatter.buffer_bytes);
            let bytes = streams.read(end, most);
            if bytes.is_empty() {
                break;
            }
            let placed = bytes.len().min(memory);
            let mut at = 0;
            for piece in &self.scatter.pieces {
                let len = (placed - at).min(piece.len as usize);
                let written = piece.region.write(piece.offset, &bytes[at..at + len]);
                written.expect("a range that the device checked");
                at += len;
            }
            link.qp.received(nic.device_mut(), placed as u64, &bytes[placed..]);
            moved = true;
        }
        moved
    }

    fn transmit(&mut self, link: &mut Link, end: EndId, nic: &mut Nic, streams: &mut Streams) -> bool {
        if link.sealed.is_some() {
            return self.transmit_records(link, end, nic, streams);
        }
        let mut moved = false;
        for _ in 0..CALLS {
            if streams.standing(end) == Standing::Broken {
                moved |= link.break_off(nic, streams);
                break;
            }
            link.qp.poll_transmit(nic.device_mut(), &mut self.gather);
            if self.gather.is_empty() {
                break;
            }
            let mut left = streams.room(end).min(self.cut());
            let mut bytes = Vec::new();
            for piece in self.gather.pieces() {
                let taken = left.min(piece.len() as usize);
                match piece {
                    GatherPiece::Own(range) => bytes.extend_from_slice(&self.gather.own_bytes(range)[..taken]),
                    GatherPiece::Memory(range) => {
                        let start = bytes.len();
                        bytes.resize(start + taken, 0);
                        let read = range.region.read(range.offset, &mut bytes[start..]);
                        read.expect("a range that the device checked");
                    }
                }
                left -= taken;
            }
            if bytes.is_empty() {
                break;
            }
            let (rng, cut_max) = (&mut self.rng, self.cut_max);
            streams.send(end, &bytes, || rng.random_range(1..=cut_max));
            link.qp.sent(nic.device_mut(), bytes.len() as u64);
            moved = true;
        }
        moved
    }

    /// Brings the stream in line with what the machine says.
    fn settle(&mut self, link: &mut Link, nic: &mut Nic, streams: &mut Streams) {
        if let Some(telling) = link.sealed.as_ref().and_then(|sealed| link.key_use.telling(Some(sealed))) {
            let (qpn, is_due) = (link.own.qpn, telling == Telling::Due);
            nic.device_mut().raise(AsyncEvent::KeysWorn { qpn, is_due });
        }
        while let Some(event) = link.qp.poll_event() {
            match event {
                QpEvent::Established { private_data, .. } => {
                    link.establish_by = None;
                    link.sealed.iter_mut().for_each(Sealed::begin_sealing);
                    if link.own.connects_to(&link.peer) && private_data != link.peer.hello_to(&link.own) {
                        self.broken_rules.push((link.peer.gid.ip(), "another queue pair answered".into()));
                        link.fail(nic, streams);
                    } else {
                        self.unreached.forget(link.peer.gid.ip());
                    }
                }
                QpEvent::Ended(ending) => {
                    link.establish_by = None;
                    // A peer that gives its queue pair up says so by a local error.
                    let is_fault = match &ending {
                        Ending::Violated(_) | Ending::Local => true,
                        Ending::TerminatedByPeer(terminate) => terminate.code != Cause::RdmapLocal.code(),
                        _ => false,
                    };
                    if is_fault {
                        self.broken_rules.push((link.peer.gid.ip(), ending.to_string()));
                    }
                }
                _ => {}
            }
        }
        let Stage::Open(end) = link.stage else { return };
        // What waits leaves first: the machine took it for sent.
        let has_unsent = link.sealed.as_ref().is_some_and(|sealed| !sealed.unsent().is_empty());
        if link.qp.is_over() && !has_unsent {
            streams.close(end);
            link.stage = Stage::Over;
        } else if link.qp.is_shutdown_due() && !has_unsent {
            streams.shut_down(end);
        }
    }

    // ---- strangers

    fn hear_strangers(&mut self, now: Time, nic: &mut Nic, streams: &mut Streams) -> bool {
        let mut moved = false;
        for (end, (mut received, until)) in std::mem::take(&mut self.strangers) {
            let request = loop {
                match Startup::parse(FrameKind::Request, &received) {
                    Ok(Parsed::Whole(request, _)) => break Ok(Some(request)),
                    Ok(Parsed::More(bytes)) if bytes <= REQUEST_BYTES_MAX => {
                        let most = self.cut().min(bytes - received.len());
                        let more = streams.read(end, most);
                        moved |= !more.is_empty();
                        match streams.standing(end) {
                            _ if !more.is_empty() => received.extend(more),
                            Standing::Open => break Ok(None),
                            _ => break Err(()),
                        }
                    }
                    _ => break Err(()),
                }
            };
            match request {
                Ok(None) if until > now => _ = self.strangers.insert(end, (received, until)),
                Ok(Some(request)) => self.admit(end, request, nic, streams),
                Ok(None) | Err(()) => streams.close(end),
            }
        }
        moved
    }

    fn admit(&mut self, end: EndId, request: Startup, nic: &mut Nic, streams: &mut Streams) {
        let hello = request.private_data.as_slice();
        let qpn = hello.first_chunk::<4>().map(|number| Qpn(u32::from_be_bytes(*number)));
        let Some(qpn) = qpn.filter(|_| hello.len() == HELLO_BYTES) else { return streams.close(end) };
        if let Some(mut link) = self.links.remove(&qpn) {
            if link.is_meant_by(hello) {
                self.adopt(&mut link, end, &request);
                self.settle(&mut link, nic, streams);
            } else {
                streams.close(end);
            }
            self.links.insert(qpn, link);
            return;
        }
        match self.offers.get_mut(&qpn) {
            Some(offer) if hello[4..4 + TOKEN_BYTES] == offer.token.0 => {
                if let Some((before, _)) = offer.early.replace((end, request)) {
                    streams.close(before);
                }
            }
            _ => streams.close(end),
        }
    }

    fn adopt(&mut self, link: &mut Link, end: EndId, request: &Startup) {
        if !matches!(link.stage, Stage::Waiting) {
            return self.orphans.push(end);
        }
        link.stage = Stage::Open(end);
        if let Err(fault) = link.qp.accept(request, &link.own.hello_to(&link.peer)) {
            self.broken_rules.push((link.peer.gid.ip(), fault.to_string()));
        }
    }
}

impl Link {
    fn is_meant_by(&self, private_data: &[u8]) -> bool {
        *private_data == self.peer.hello_to(&self.own)
    }

    /// The stream broke. Says whether that was news.
    fn break_off(&mut self, nic: &mut Nic, streams: &mut Streams) -> bool {
        let is_news = !self.qp.is_over() && !matches!(self.stage, Stage::Over);
        if is_news {
            self.fail(nic, streams);
        }
        is_news
    }

    fn fail(&mut self, nic: &mut Nic, streams: &mut Streams) {
        self.establish_by = None;
        if self.qp.status().state != QpState::Err || !self.qp.is_over() {
            self.qp.broke(nic.device_mut());
        }
        self.sealed = None;
        if let Stage::Connecting(end) | Stage::Open(end) = std::mem::replace(&mut self.stage, Stage::Over) {
            streams.close(end);
        }
    }
}
