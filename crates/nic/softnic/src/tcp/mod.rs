//! The second wire: streams over TCP (iWARP), on the same memory, CQs and SRQs as RoCEv2.
//!
//! Owns the listener, the table of queue pairs that are on TCP, and the epoll set that both wires are waited on with.
//! Bytes of strangers reach a queue pair only after they have shown its token; until then they cost a place in
//! [`strangers`], which is bounded.

pub(crate) mod congestion;
mod counters;
pub(crate) mod crowd;
mod in_kernel;
mod link;
pub(crate) mod socket;
mod strangers;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use iwarp::mpa::{FrameKind, Parsed, Startup};
use iwarp::{Gather, Qp, Scatter, WireCounters};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use records::{Keys, RecordLimit};
use rnic::{Device, NumberHasher, Timers};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use verbs::{AcceptAttr, Counters, PathMarks, QpState, Qpn, Time};
use wires::{HELLO_BYTES, TOKEN_BYTES, Token, Unreached};

use crate::{KernelTls, OpenError};
use counters::TcpCounters;
use in_kernel::KernelState;
use link::Link;
use strangers::Strangers;

use socket::SocketOptions;
pub(crate) use socket::silence_max;
pub(crate) use wires::{Choice, FPDU_BYTES, TcpPart, Wires, choose};

/// Connections taken from the listener in one round of progress.
const ACCEPTS_PER_ROUND: usize = 16;
/// Events of one look at the epoll set.
const EVENTS_PER_LOOK: usize = 64;
/// Longest MPA request that can be one of ours: what is longer is not read to its end.
const REQUEST_BYTES_MAX: usize = 256;
/// Pieces and bytes of one gathered send; one frame more may be in it.
const GATHER_PIECES: usize = 40;
const GATHER_BYTES: u64 = 1 << 20;

/// What the epoll set tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    Udp,
    /// By its place.
    Listener(u32),
    Stranger(u32),
    Link(Qpn),
}

impl Watched {
    fn to_u64(self) -> u64 {
        match self {
            Self::Udp => 0,
            Self::Listener(place) => 1 << 32 | u64::from(place),
            Self::Stranger(number) => 2 << 32 | u64::from(number),
            Self::Link(qpn) => 3 << 32 | u64::from(qpn.0),
        }
    }

    fn from_u64(word: u64) -> Self {
        let low = word as u32;
        match word >> 32 {
            1 => Self::Listener(low),
            2 => Self::Stranger(low),
            3 => Self::Link(Qpn(low)),
            _ => Self::Udp,
        }
    }
}

/// A queue pair that was offered and has no wire yet.
#[derive(Debug)]
struct Offer {
    token: Token,
    /// A connection that has shown the token before the consumer brought the peer's endpoint.
    early: Option<(OwnedFd, Startup)>,
}

/// The wire.
#[derive(Debug)]
pub(crate) struct TcpWire {
    /// At the addresses of this host, the device's own first.
    listeners: Vec<(OwnedFd, SocketAddr)>,
    marks: PathMarks,
    kernel_tls: KernelState,
    record_limit: RecordLimit,
    epoll: OwnedFd,
    entropy: StdRng,
    offers: HashMap<Qpn, Offer, BuildHasherDefault<NumberHasher>>,
    links: HashMap<Qpn, Link, BuildHasherDefault<NumberHasher>>,
    /// Links with something to send.
    sending: VecDeque<Qpn>,
    strangers: Strangers,
    unreached: Unreached,
    /// Deadlines of links: a look at them does not depend on how many links there are.
    timers: Timers,
    overflows_seen: u64,
    gather: Gather,
    scatter: Scatter,
    buffer: Vec<u8>,
    pub(crate) counters: TcpCounters,
    /// Of the machines, those that are gone included.
    past: WireCounters,
}

/// What a look at the epoll set found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Looked {
    /// Something was done.
    pub(crate) any: bool,
    /// Datagrams wait.
    pub(crate) udp: bool,
}

macro_rules! shared {
    ($self:ident, $now:expr) => {
        link::Shared {
            epoll: &$self.epoll,
            gather: &mut $self.gather,
            scatter: &mut $self.scatter,
            buffer: &mut $self.buffer,
            counters: &mut $self.counters,
            kernel_tls: &mut $self.kernel_tls,
            unreached: &mut $self.unreached,
            now: $now,
        }
    };
}

impl TcpWire {
    /// Listens at the address and port of a NIC, and at the same port of further addresses. `may_move`: the system chose
    /// the port, so another one will do.
    pub(crate) fn open(
        (local, may_move, standby): (SocketAddr, bool, &[IpAddr]),
        marks: PathMarks,
        (kernel_tls, record_limit): (KernelTls, RecordLimit),
        udp: &[BorrowedFd<'_>],
        entropy: [u8; 32],
    ) -> Result<Self, OpenError> {
        let mut listeners = vec![socket::listen(local, may_move)?];
        for address in standby {
            listeners.push(socket::listen_standby(SocketAddr::new(*address, listeners[0].1.port()))?);
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|e| OpenError::os("epoll_create1", e))?;
        let watch = |fd: BorrowedFd<'_>, what: Watched| {
            epoll::add(&epoll, fd, EventData::new_u64(what.to_u64()), EventFlags::IN)
                .map_err(|e| OpenError::os("epoll_ctl", e))
        };
        for socket in udp {
            watch(*socket, Watched::Udp)?;
        }
        for (place, (listener, _)) in (0..).zip(&listeners) {
            watch(listener.as_fd(), Watched::Listener(place))?;
        }
        Ok(Self {
            listeners,
            marks,
            kernel_tls: KernelState::new(kernel_tls),
            record_limit,
            epoll,
            entropy: StdRng::from_seed(entropy),
            offers: HashMap::default(),
            links: HashMap::default(),
            sending: VecDeque::new(),
            strangers: Strangers::default(),
            unreached: Unreached::default(),
            timers: Timers::default(),
            overflows_seen: 0,
            gather: Gather::new(GATHER_PIECES, GATHER_BYTES),
            scatter: Scatter::new(),
            buffer: Vec::new(),
            counters: TcpCounters::default(),
            past: WireCounters::default(),
        })
    }

    /// Readable when this wire or the UDP socket has something.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(crate) fn port(&self) -> u16 {
        self.listeners.first().map_or(0, |(_, local)| local.port())
    }

    /// Where connections of an address of this host are: that of its listener.
    pub(crate) fn local_of(&self, address: IpAddr) -> Option<SocketAddr> {
        self.listeners.iter().map(|(_, local)| *local).find(|local| local.ip() == address)
    }

    /// Whether a connection is there or may come, so that each round of progress looks.
    pub(crate) fn is_active(&self) -> bool {
        !(self.links.is_empty() && self.offers.is_empty() && self.strangers.is_empty())
    }

    /// The queue pair, if it is on this wire.
    pub(crate) fn qp(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        self.links.get_mut(&qpn).map(|link| &mut link.qp)
    }

    pub(crate) fn qp_ref(&self, qpn: Qpn) -> Option<&Qp> {
        self.links.get(&qpn).map(|link| &link.qp)
    }

    // ---- from offer to link

    /// Whether connections to a host did not come up lately.
    pub(crate) fn is_unreached(&self, now: Time, host: IpAddr) -> bool {
        self.unreached.has(now, host)
    }

    /// A token for the endpoint of a queue pair.
    pub(crate) fn offer(&mut self, qpn: Qpn) -> Token {
        let mut token = [0; TOKEN_BYTES];
        self.entropy.fill_bytes(&mut token);
        let token = Token(token);
        self.offers.insert(qpn, Offer { token, early: None });
        token
    }

    /// The queue pair goes to another wire, or nowhere.
    pub(crate) fn forget_offer(&mut self, qpn: Qpn) {
        self.offers.remove(&qpn);
    }

    /// Who encrypts connections at this end, in a clause for people.
    pub(crate) fn encryption_reason(&self) -> &'static str {
        self.kernel_tls.reason()
    }

    /// Puts a queue pair on this wire.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        dev: &mut Device,
        qp: Qp,
        (own, peer): (TcpPart, TcpPart),
        attr: &AcceptAttr,
        keys: Option<Keys>,
    ) {
        self.counters.tcp_encrypted += u64::from(keys.is_some());
        let early = self.offers.remove(&own.qpn).and_then(|offer| offer.early);
        let options = SocketOptions { silence: silence_max(attr), marks: self.marks };
        let local = self.local_of(own.gid.ip()).unwrap_or_else(|| own.address());
        let mut link = Link::new(qp, own, peer, local, options, now);
        link.encrypt(keys, self.record_limit);
        let mut shared = shared!(self, now);
        match early {
            Some((fd, request)) if link.is_meant_by(&request.private_data) => {
                link.adopt(fd, &request, dev, &mut shared);
            }
            early => {
                shared.counters.tcp_refused += u64::from(early.is_some());
                link.begin(dev, &mut shared);
            }
        }
        self.links.insert(own.qpn, link);
        self.after_event(own.qpn);
    }

    /// Takes a queue pair off the wire. What it sent last still goes to the peer.
    pub(crate) fn remove(&mut self, qpn: Qpn, dev: &mut Device, now: Time) {
        self.offers.remove(&qpn);
        let Some(mut link) = self.links.remove(&qpn) else { return };
        self.timers.cancel(qpn, link.timer_at);
        link.transmit(dev, &mut shared!(self, now));
        link.qp.release(dev);
        self.past.add(&link.qp.take_counters());
        self.sending.retain(|q| *q != qpn);
    }

    // ---- progress

    /// One bounded round of input: connections, bytes, timers.
    pub(crate) fn receive(&mut self, now: Time, dev: &mut Device) -> Looked {
        let mut looked = Looked::default();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut slots = [const { MaybeUninit::<Event>::uninit() }; EVENTS_PER_LOOK];
        // An interrupted look only means that the next one finds it.
        let events = epoll::wait(&self.epoll, &mut slots, Some(&zero)).map_or(&mut [][..], |(events, _)| events);
        for event in events.iter() {
            let (data, flags) = (event.data, event.flags);
            match Watched::from_u64(data.u64()) {
                Watched::Udp => looked.udp = true,
                Watched::Listener(place) => self.take_connections(now, place),
                Watched::Stranger(number) => self.hear_stranger(now, number, dev),
                Watched::Link(qpn) => {
                    if let Some(link) = self.links.get_mut(&qpn) {
                        link.on_ready(flags, dev, &mut shared!(self, now));
                        self.after_event(qpn);
                    }
                }
            }
            looked.any |= Watched::from_u64(data.u64()) != Watched::Udp;
        }
        looked.any |= self.fire(now, dev);
        self.fail_overflowed(dev, now);
        looked
    }

    /// Sends what waits, up to a bound for each link. Says whether anything left.
    pub(crate) fn transmit(&mut self, now: Time, dev: &mut Device) -> bool {
        let mut any = false;
        for _ in 0..self.sending.len() {
            let Some(qpn) = self.sending.pop_front() else { break };
            let Some(link) = self.links.get_mut(&qpn) else { continue };
            link.is_scheduled = false;
            any |= link.transmit(dev, &mut shared!(self, now));
            self.after_event(qpn);
        }
        any
    }

    /// Whether [`Self::transmit`] would send something.
    pub(crate) fn has_output(&self) -> bool {
        self.sending.iter().any(|qpn| self.links.get(qpn).is_some_and(Link::has_output))
    }

    /// When [`Self::receive`] has to be called for a timer; perhaps nothing is due yet.
    pub(crate) fn deadline(&self) -> Option<Time> {
        [self.timers.first(), self.strangers.deadline()].into_iter().flatten().min()
    }

    fn fire(&mut self, now: Time, dev: &mut Device) -> bool {
        if self.deadline().is_none_or(|due| due > now) {
            return false;
        }
        self.counters.tcp_strangers_dropped += self.strangers.expire(now);
        // Each link is looked at once: one whose next deadline is due again waits for the next call.
        for _ in 0..self.links.len() {
            let Some(qpn) = self.timers.pop_due(now) else { break };
            let Some(link) = self.links.get_mut(&qpn) else { continue };
            link.timer_at = None;
            self.counters.tcp_timers_fired += 1;
            if link.deadline().is_some_and(|at| at <= now) {
                link.handle_timeout(dev, &mut shared!(self, now));
            }
            self.after_event(qpn);
        }
        true
    }

    /// Brings the lists, and the next look at timers, in line with what happened to a link.
    pub(crate) fn after_event(&mut self, qpn: Qpn) {
        let Some(link) = self.links.get_mut(&qpn) else { return };
        self.past.add(&link.qp.take_counters());
        if !link.is_scheduled && link.has_output() {
            link.is_scheduled = true;
            self.sending.push_back(qpn);
        }
        if let Some(at) = link.deadline() {
            self.timers.arm(qpn, &mut link.timer_at, at);
        }
    }

    /// A verbs call changed a queue pair on this wire.
    pub(crate) fn on_call(&mut self, qpn: Qpn, dev: &mut Device, now: Time) {
        if let Some(link) = self.links.get_mut(&qpn) {
            link.on_call(dev, &mut shared!(self, now));
            self.after_event(qpn);
            self.fail_overflowed(dev, now);
        }
    }

    /// A CQ that overflowed takes its queue pairs down.
    pub(crate) fn fail_overflowed(&mut self, dev: &mut Device, now: Time) {
        while self.overflows_seen != dev.overflows() {
            self.overflows_seen = dev.overflows();
            let mut users: Vec<Qpn> =
                self.links.iter().filter(|(_, l)| dev.has_failed_cq(l.qp.init())).map(|(qpn, _)| *qpn).collect();
            users.sort_unstable();
            for qpn in users {
                let Some(link) = self.links.get_mut(&qpn) else { continue };
                if link.qp.status().state != QpState::Err {
                    link.qp.fatal(dev);
                    link.on_call(dev, &mut shared!(self, now));
                    self.after_event(qpn);
                }
            }
        }
    }

    // ---- strangers

    fn take_connections(&mut self, now: Time, place: u32) {
        let Some((listener, _)) = self.listeners.get(place as usize) else { return };
        for _ in 0..ACCEPTS_PER_ROUND {
            let Some((fd, from)) = socket::accept(listener) else { break };
            let (number, gone) = self.strangers.add(now, fd, from);
            self.counters.tcp_strangers_dropped += gone;
            let data = EventData::new_u64(Watched::Stranger(number).to_u64());
            let Some(stranger) = self.strangers.get_mut(number) else { continue };
            if epoll::add(&self.epoll, &stranger.fd, data, EventFlags::IN).is_err() {
                self.strangers.take(number);
                self.counters.tcp_strangers_dropped += 1;
            }
        }
    }

    /// Reads of a stranger's MPA request what is there; the last byte decides whose it is.
    fn hear_stranger(&mut self, now: Time, number: u32, dev: &mut Device) {
        let Some(stranger) = self.strangers.get_mut(number) else { return };
        loop {
            let missing = match Startup::parse(FrameKind::Request, &stranger.received) {
                Ok(Parsed::Whole(request, _)) => return self.admit(now, number, request, dev),
                Ok(Parsed::More(bytes)) if bytes <= REQUEST_BYTES_MAX => bytes - stranger.received.len(),
                _ => break,
            };
            // Never more than the request, so that what follows belongs to the queue pair.
            let mut bytes = [0; REQUEST_BYTES_MAX];
            match rustix::net::recv(&stranger.fd, &mut bytes[..missing], rustix::net::RecvFlags::DONTWAIT) {
                Ok((got, _)) if got > 0 => stranger.received.extend_from_slice(&bytes[..got]),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => return,
                _ => break,
            }
        }
        self.refuse(number);
    }

    fn refuse(&mut self, number: u32) {
        self.counters.tcp_refused += 1;
        if let Some(stranger) = self.strangers.take(number) {
            tracing::debug!(from = %stranger.from, "a TCP connection that belongs to no queue pair");
        }
    }

    /// Gives a stranger that shows a token to the queue pair.
    fn admit(&mut self, now: Time, number: u32, request: Startup, dev: &mut Device) {
        let Some(qpn) = self.meant(&request) else { return self.refuse(number) };
        let Some(stranger) = self.strangers.take(number) else { return };
        // The link watches it under its own name.
        let _ = epoll::delete(&self.epoll, &stranger.fd);
        if let Some(link) = self.links.get_mut(&qpn) {
            link.adopt(stranger.fd, &request, dev, &mut shared!(self, now));
            return self.after_event(qpn);
        }
        if let Some(offer) = self.offers.get_mut(&qpn) {
            offer.early = Some((stranger.fd, request));
        }
    }

    /// The queue pair that a request shows the token of.
    fn meant(&self, request: &Startup) -> Option<Qpn> {
        let hello = request.private_data.as_slice();
        let (number, rest) = hello.split_first_chunk::<4>()?;
        let qpn = Qpn(u32::from_be_bytes(*number));
        if hello.len() != HELLO_BYTES {
            return None;
        }
        if let Some(link) = self.links.get(&qpn) {
            return link.is_meant_by(hello).then_some(qpn);
        }
        let shown = Token(*rest.first_chunk::<TOKEN_BYTES>()?);
        self.offers.get(&qpn).filter(|offer| offer.token == shown).map(|_| qpn)
    }

    pub(crate) fn append_counters(&self, out: &mut Counters) {
        self.counters.append(out);
        out.extend(self.past.list());
        out.push(("tcp_links", self.links.len() as u64));
    }
}
