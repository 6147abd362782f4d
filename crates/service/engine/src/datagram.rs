//! What the engine holds for datagram sockets: ports, binds, sockets, the one UD queue pair of the device, and linked
//! hosts.
//!
//! Owns the port space of datagrams, which is separate from that of listeners. It must never hold more sockets than its
//! limit.

pub(crate) mod drops;
pub(crate) mod header;
pub(crate) mod peer;
pub(crate) mod port;
pub(crate) mod socket;

use std::collections::BTreeMap;

use control::{DatagramOffer, EPHEMERAL_PORT_FIRST};
use genslab::GenSlab;
use rand::RngExt;
use verbs::{CqId, DatagramAttr, Provider, Qkey, Qpn, Time, VerbsError};

use crate::ids::{AppId, BindId, LaneId, SocketId};
use crate::limits::{DATAGRAM_QUANTUM_BYTES, PATH_ASKS_PER_APP_MAX};
use crate::ring_slot::SlotRequest;
use crate::sched::Drr;

use drops::Drops;
use peer::PathAsk;
use port::UdPort;
use socket::Socket;

/// Who has a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortOwner {
    Bind(BindId),
    Socket(SocketId),
}

/// The engine's part of all datagram sockets.
#[derive(Debug)]
pub(crate) struct Datagrams {
    /// None on a device without datagrams: sockets reach this host alone.
    pub(crate) port: Option<UdPort>,
    pub(crate) sockets: GenSlab<SocketId, Socket>,
    /// Binds that wait for rings. Their ports are taken.
    pub(crate) binds: GenSlab<BindId, SlotRequest>,
    sockets_max: u32,
    ports: BTreeMap<u16, PortOwner>,
    /// Where the search for a port that nobody chose begins.
    next_free: u16,
    /// Sockets with something to send.
    pub(crate) drr: Drr<SocketId>,
    /// Linked hosts by the number that stands in their datagrams.
    peers: BTreeMap<u64, LaneId>,
    asks: Vec<PathAsk>,
    /// The number that stands in this host's datagrams.
    token: u64,
    pub(crate) drops: Drops,
    sent: u64,
    local: u64,
    received: u64,
    scratch: Vec<u8>,
    arrived: Vec<u8>,
}

impl Datagrams {
    /// Makes the UD queue pair, unless there is no completion queue for one. Its key has the highest bit clear, as those that are sent in packets must (IBTA
    /// 10.2.5).
    pub(crate) fn new<P: Provider>(
        nic: &mut P,
        cq: Option<CqId>,
        sockets_max: u32,
        rng: &mut impl RngExt,
    ) -> Result<Self, VerbsError> {
        let qkey = Qkey(rng.random::<u32>() >> 1);
        Ok(Self {
            port: cq.map(|cq| UdPort::new(nic, cq, qkey)).transpose()?,
            sockets: GenSlab::new(sockets_max),
            binds: GenSlab::new(sockets_max),
            sockets_max,
            ports: BTreeMap::new(),
            next_free: rng.random_range(EPHEMERAL_PORT_FIRST..=u16::MAX),
            drr: Drr::new(DATAGRAM_QUANTUM_BYTES),
            peers: BTreeMap::new(),
            asks: Vec::new(),
            token: rng.random(),
            drops: Drops::default(),
            sent: 0,
            local: 0,
            received: 0,
            scratch: Vec::new(),
            arrived: Vec::new(),
        })
    }

    /// Whether a round would send something now.
    pub(crate) fn has_work(&self) -> bool {
        // A completion, which wakes the engine, ends the wait for room.
        self.drr.front().is_some() && self.port.as_ref().is_none_or(|port| port.has_room(0) || port.has_failed())
    }

    /// Counters for [`crate::EngineTotals`].
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("datagrams_sent", self.sent),
            ("datagrams_received", self.received),
            ("datagrams_local", self.local),
            ("datagram_sockets", self.sockets.len().into()),
        ];
        own.into_iter().chain(self.drops.counters())
    }

    /// The number that stands in this host's datagrams.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    // ---- the device's port

    /// Whether the device has datagrams.
    pub(crate) fn has_port(&self) -> bool {
        self.port.is_some()
    }

    /// Whether it is this queue pair.
    pub(crate) fn is_port(&self, qpn: Qpn) -> bool {
        self.port.as_ref().is_some_and(|port| port.qpn() == qpn)
    }

    /// As peers are told.
    pub(crate) fn offer<P: Provider>(&self, nic: &P, attr: &DatagramAttr) -> Result<Option<DatagramOffer>, VerbsError> {
        let Some(port) = self.port.as_ref() else { return Ok(None) };
        let endpoint = nic.offer_datagrams(port.qpn(), port.qkey(), attr)?.into_bytes();
        Ok(Some(DatagramOffer { endpoint, token: self.token }))
    }

    /// The device says that a queue pair failed. Whether it is this one.
    pub(crate) fn on_port_failed(&mut self, qpn: Qpn) -> bool {
        let own = self.port.as_mut().filter(|port| port.qpn() == qpn);
        own.map(|port| port.fail()).is_some()
    }

    /// When a failed one is to be started again.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.port.as_ref()?.deadline()
    }

    /// Whether there is room for one more socket.
    pub(crate) fn is_full(&self) -> bool {
        self.sockets.len() + self.binds.len() >= self.sockets_max
    }

    // ---- ports

    pub(crate) fn socket_at(&self, port: u16) -> Option<SocketId> {
        match self.ports.get(&port) {
            Some(PortOwner::Socket(id)) => Some(*id),
            _ => None,
        }
    }

    pub(crate) fn is_taken(&self, port: u16) -> bool {
        self.ports.contains_key(&port)
    }

    pub(crate) fn take_port(&mut self, port: u16, owner: PortOwner) {
        self.ports.insert(port, owner);
    }

    /// The next port that nobody chose and that is not taken, if there is one: one that was given up lately stays
    /// unused for as long as possible.
    pub(crate) fn free_port(&mut self) -> Option<u16> {
        let first = self.next_free;
        let port = (first..=u16::MAX).chain(EPHEMERAL_PORT_FIRST..first).find(|port| !self.is_taken(*port))?;
        self.next_free = port.checked_add(1).unwrap_or(EPHEMERAL_PORT_FIRST);
        Some(port)
    }

    /// Frees a port, if it is still this owner's.
    pub(crate) fn give_up_port(&mut self, port: u16, owner: PortOwner) {
        if self.ports.get(&port) == Some(&owner) {
            self.ports.remove(&port);
        }
    }

    // ---- linked hosts

    /// The lane of the host in whose datagrams this number stands.
    pub(crate) fn lane_of(&self, token: u64) -> Option<LaneId> {
        self.peers.get(&token).copied()
    }

    /// Takes the number of a host. The first host keeps it; two daemons practically never choose the same one.
    pub(crate) fn add_peer(&mut self, token: u64, lane: LaneId) {
        self.peers.entry(token).or_insert(lane);
    }

    pub(crate) fn drop_peer(&mut self, token: u64, lane: LaneId) {
        if self.peers.get(&token) == Some(&lane) {
            self.peers.remove(&token);
        }
    }

    // ---- questions for a path

    /// Remembers a question that waits for a link. False: the application has asked too many.
    pub(crate) fn add_ask(&mut self, ask: PathAsk) -> bool {
        let fits = self.asks.iter().filter(|a| a.app == ask.app).count() < PATH_ASKS_PER_APP_MAX;
        if fits {
            self.asks.push(ask);
        }
        fits
    }

    /// The questions for the host of a lane.
    pub(crate) fn take_asks(&mut self, lane: LaneId) -> Vec<PathAsk> {
        let (taken, waiting) = std::mem::take(&mut self.asks).into_iter().partition(|a| a.lane == lane);
        self.asks = waiting;
        taken
    }

    /// The application does not wait for the answers to its questions any more.
    pub(crate) fn forget_asks(&mut self, app: AppId) {
        self.asks.retain(|ask| ask.app != app);
    }

    // ---- what went and came

    /// A datagram was sent, to this host or another.
    pub(crate) fn count_sent(&mut self, is_local: bool) {
        self.sent += u64::from(!is_local);
        self.local += u64::from(is_local);
    }

    /// A datagram of another host was delivered.
    pub(crate) fn count_received(&mut self) {
        self.received += 1;
    }

    /// A buffer for one datagram to send; [`Self::put_back_scratch`] is next.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.scratch)
    }

    pub(crate) fn put_back_scratch(&mut self, scratch: Vec<u8>) {
        self.scratch = scratch;
    }

    /// A buffer for one datagram that arrived; [`Self::put_back_arrived`] is next.
    pub(crate) fn take_arrived(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.arrived)
    }

    pub(crate) fn put_back_arrived(&mut self, arrived: Vec<u8>) {
        self.arrived = arrived;
    }
}
