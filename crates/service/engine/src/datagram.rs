//! Datagram sockets: ports that applications bind, their rings, and the one UD queue pair of the device.
//!
//! Owns the port space of datagrams, which is apart from that of listeners, and sockets from bind to release. It must never let
//! a stranger's datagrams use up what lanes rely on: receives, sends and their memory are the UD queue pair's own.
//!
//! Nothing is promised but boundaries: what cannot go on is dropped and counted (`drops`), never held for anyone. A datagram is
//! copied where streams are not, out of the sender's ring and into the receiver's: so the device touches no memory of an
//! application, and a socket's memory is free as soon as its last record is sent.

mod drops;
mod header;
mod path;
mod port;
mod socket;
mod transfer;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::{DatagramRow, Reason};
use rand::RngExt;
use shm::{RingReader, RingWriter};
use verbs::{CqId, Provider, Qkey, VerbsError};

use crate::AppId;
use crate::app::clear_slot;
use crate::engine::Engine;
use crate::event::Event;
use crate::lane::LaneId;
use crate::limits::{DATAGRAM_QUANTUM_BYTES, DATAGRAM_RING_BYTES_MIN};
use crate::ringpool::{RingPair, Waiter};
use crate::sched::Drr;
use crate::table::{Table, key};

use drops::Drops;
pub use header::check_datagram;
pub(crate) use path::DatagramPeer;
use path::PathAsk;
pub(crate) use port::UdPort;
use socket::NewSocket;
pub(crate) use socket::Socket;
pub(crate) use socket::{SocketFault, SocketId};

key!(
    /// A bind that waits for rings.
    BindId
);

/// A bind that waits for rings. Its port is taken.
#[derive(Debug, Clone, Copy)]
struct Bind {
    app: AppId,
    request: u64,
    port: u16,
    ring_bytes: u32,
}

/// Who has a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortOwner {
    Bind(BindId),
    Socket(SocketId),
}

/// The engine's part of all datagram sockets.
#[derive(Debug)]
pub(crate) struct Datagrams {
    pub(crate) port: UdPort,
    sockets: Table<SocketId, Socket>,
    binds: Table<BindId, Bind>,
    sockets_max: u32,
    ports: BTreeMap<u16, PortOwner>,
    /// Sockets with something to send.
    drr: Drr<SocketId>,
    /// Linked hosts by the number that stands in their datagrams.
    peers: BTreeMap<u64, LaneId>,
    asks: Vec<PathAsk>,
    /// The number that stands in this host's datagrams.
    pub(crate) token: u64,
    drops: Drops,
    sent: u64,
    local: u64,
    received: u64,
    scratch: Vec<u8>,
    arrived: Vec<u8>,
}

impl Datagrams {
    /// Makes the UD queue pair. Its key has the highest bit clear, as those that are sent in packets must (IBTA 10.2.5).
    pub(crate) fn new<P: Provider>(
        nic: &mut P,
        cq: CqId,
        sockets_max: u32,
        rng: &mut impl RngExt,
    ) -> Result<Self, VerbsError> {
        let qkey = Qkey(rng.random::<u32>() >> 1);
        Ok(Self {
            port: UdPort::new(nic, cq, qkey)?,
            sockets: Table::new(sockets_max),
            binds: Table::new(sockets_max),
            sockets_max,
            ports: BTreeMap::new(),
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
        self.drr.front().is_some() && (self.port.has_room(0) || self.port.has_failed())
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

    /// Sockets at `looks` places of their table from `from` on.
    pub(crate) fn sockets_page(
        &self,
        from: u32,
        looks: u32,
    ) -> (impl Iterator<Item = (u32, SocketId, &Socket)>, Option<u32>) {
        self.sockets.page(from, looks)
    }

    fn socket_at(&self, port: u16) -> Option<SocketId> {
        match self.ports.get(&port) {
            Some(PortOwner::Socket(id)) => Some(*id),
            _ => None,
        }
    }
}

impl Engine {
    // ---- bind

    /// Binds a datagram socket to a port, 0 for any free one. The answer is [`Event::Connected`] with a connection that has no
    /// peer. `ring_bytes` 0 means the default; other values are rounded to what exists.
    pub fn bind_datagram(&mut self, app: AppId, request: u64, port: u16, ring_bytes: u32) {
        if let Err(reason) = self.try_bind(app, request, port, ring_bytes) {
            self.events.push_back(Event::Connected { app, request, result: Err(reason) });
        }
    }

    fn try_bind(&mut self, app: AppId, request: u64, port: u16, ring_bytes: u32) -> Result<(), Reason> {
        let tenant = self.apps.get(app).filter(|a| !a.leaving).ok_or(Reason::AppFault)?;
        let held = tenant.connections + tenant.waiting + tenant.sockets.len() as u32;
        let datagrams = &self.datagrams;
        if held >= self.config.connections_per_app_max
            || datagrams.sockets.len() + datagrams.binds.len() >= datagrams.sockets_max
        {
            return Err(Reason::LocalLimit);
        }
        self.users.check_listener(tenant.uid)?;
        let port = if port == 0 { self.free_datagram_port().ok_or(Reason::LocalLimit)? } else { port };
        // Its owner may have closed it, and the doorbell that says so is not looked at yet.
        if let Some(id) = self.datagrams.socket_at(port)
            && let Err(fault) = self.on_socket(id)
        {
            self.on_socket_fault(id, &fault);
        }
        if self.datagrams.ports.contains_key(&port) {
            return Err(Reason::PortInUse);
        }
        let asked = if ring_bytes == 0 { 0 } else { ring_bytes.max(DATAGRAM_RING_BYTES_MIN) };
        let ring_bytes = self.config.ring_bytes(asked);
        let bind = Bind { app, request, port, ring_bytes };
        let tenant = self.apps.get_mut(app).ok_or(Reason::AppFault)?;
        if let Some(rings) = tenant.pool.take(ring_bytes) {
            return self.open_socket(bind, rings);
        }
        let id = self.datagrams.binds.insert(bind).ok_or(Reason::LocalLimit)?;
        tenant.pool.wait(ring_bytes, Waiter::Bind(id));
        self.start_waiting(app, None);
        self.take_port(app, port, PortOwner::Bind(id));
        self.ask_for_rings(app, ring_bytes);
        Ok(())
    }

    fn free_datagram_port(&mut self) -> Option<u16> {
        (0..=u16::MAX).find_map(|_| {
            let port = self.next_ephemeral();
            (!self.datagrams.ports.contains_key(&port)).then_some(port)
        })
    }

    /// A port counts as a listener in its user's share.
    fn take_port(&mut self, app: AppId, port: u16, owner: PortOwner) {
        self.datagrams.ports.insert(port, owner);
        if let Some(tenant) = self.apps.get(app) {
            self.users.add_listener(tenant.uid);
        }
    }

    /// The port is free, if it is still this owner's.
    fn give_up_port(&mut self, app: AppId, port: u16, owner: PortOwner) {
        if self.datagrams.ports.get(&port) != Some(&owner) {
            return;
        }
        self.datagrams.ports.remove(&port);
        if let Some(tenant) = self.apps.get(app) {
            self.users.drop_listener(tenant.uid);
        }
    }

    /// Rings are there for a bind that waited for them.
    pub(crate) fn serve_bind(&mut self, id: BindId) {
        let Some(bind) = self.take_bind(id) else { return };
        let rings = self.apps.get_mut(bind.app).and_then(|a| a.pool.take(bind.ring_bytes));
        let result = rings.ok_or(Reason::LocalLimit).and_then(|rings| self.open_socket(bind, rings));
        if let Err(reason) = result {
            self.events.push_back(Event::Connected { app: bind.app, request: bind.request, result: Err(reason) });
        }
    }

    /// There will be no rings for a bind.
    pub(crate) fn refuse_bind(&mut self, id: BindId, reason: Reason) {
        if let Some(Bind { app, request, .. }) = self.take_bind(id) {
            self.events.push_back(Event::Connected { app, request, result: Err(reason) });
        }
    }

    fn take_bind(&mut self, id: BindId) -> Option<Bind> {
        let bind = self.datagrams.binds.remove(id)?;
        self.give_up_port(bind.app, bind.port, PortOwner::Bind(id));
        self.stop_waiting(bind.app, None);
        Some(bind)
    }

    fn open_socket(&mut self, bind: Bind, rings: RingPair) -> Result<(), Reason> {
        let opened = self.try_open_socket(bind, rings);
        if opened.is_err()
            && let Some(tenant) = self.apps.get_mut(bind.app)
        {
            let back = tenant.pool.put_back(self.now, rings);
            self.note_put_back(bind.app, back);
        }
        opened
    }

    fn try_open_socket(&mut self, bind: Bind, rings: RingPair) -> Result<(), Reason> {
        let Bind { app, request, port, ring_bytes } = bind;
        let local = SocketAddr::new(self.local_address(), port);
        let id = self.last_connection + 1;
        let tenant = self.apps.get_mut(app).ok_or(Reason::AppFault)?;
        let memory = |place| tenant.pool.memory(place, ring_bytes).ok_or(Reason::LocalLimit);
        let (tx_memory, rx_memory) = (memory(rings.tx)?, memory(rings.rx)?);
        if !tenant.has_slot() || self.datagrams.sockets.is_full() {
            return Err(Reason::LocalLimit);
        }
        let socket = self.datagrams.sockets.insert_with(|key| {
            let (slot, generation, words) = tenant.take_socket_slot(key).expect("a slot is free, as asked above");
            clear_slot(&words, generation, 0, shm::slot_state::ESTABLISHED);
            let cursors = "the pool's places lie in their chunks, and the daemon's own mapping is writable";
            let tx = RingReader::new(tx_memory, words.tx_tail.clone(), words.tx_head.clone(), 0).expect(cursors);
            let rx = RingWriter::new(rx_memory, words.rx_tail.clone(), words.rx_head.clone(), 0).expect(cursors);
            Socket::new(NewSocket { id, app, slot, generation, words, local, rings, ring_bytes, tx, rx })
        });
        let socket = socket.ok_or(Reason::LocalLimit)?;
        tenant.sockets.insert(socket);
        self.last_connection = id;
        self.take_port(app, port, PortOwner::Socket(socket));
        let Some(made) = self.datagrams.sockets.get(socket) else { return Err(Reason::LocalLimit) };
        self.events.push_back(Event::Connected { app, request, result: Ok(made.connection()) });
        Ok(())
    }

    // ---- doorbells and ends

    /// The application rang for a socket.
    pub(crate) fn on_socket(&mut self, id: SocketId) -> Result<(), SocketFault> {
        let Some(socket) = self.datagrams.sockets.get_mut(id) else { return Ok(()) };
        if socket.on_doorbell()? {
            let (app, port) = (socket.app, socket.local.port());
            self.give_up_port(app, port, PortOwner::Socket(id));
        }
        self.queue_socket(id);
        Ok(())
    }

    /// Puts a socket into the list of those that may have something to send; it leaves it, or ends, when that is sent.
    fn queue_socket(&mut self, id: SocketId) {
        if let Some(socket) = self.datagrams.sockets.get_mut(id)
            && !socket.in_ready
        {
            socket.in_ready = true;
            socket.deficit = 0;
            self.datagrams.drr.push(socket.app, id);
        }
    }

    /// The application of a socket broke the rules. One that has left already loses what it had not sent.
    pub(crate) fn on_socket_fault(&mut self, id: SocketId, fault: &SocketFault) {
        let Some(app) = self.datagrams.sockets.get(id).map(|s| s.app) else { return };
        if self.apps.get(app).is_some_and(|a| !a.leaving) {
            self.on_app_fault(app, fault);
        }
        self.release_socket(id);
    }

    /// The application of a socket left. What it had sent goes out, but for that of one that broke the rules.
    pub(crate) fn orphan_socket(&mut self, id: SocketId, reason: Reason) {
        let Some(socket) = self.datagrams.sockets.get_mut(id) else { return };
        let (app, port) = (socket.app, socket.local.port());
        if reason == Reason::AppFault || socket.close().is_err() {
            return self.release_socket(id);
        }
        self.give_up_port(app, port, PortOwner::Socket(id));
        self.queue_socket(id);
    }

    /// Frees a socket if one of its rings lies in this chunk, which its application cannot use.
    pub(crate) fn release_socket_in(&mut self, id: SocketId, chunk: u32) {
        let rings = self.datagrams.sockets.get(id).map(|s| s.rings);
        if rings.is_some_and(|r| r.tx.chunk_number == chunk || r.rx.chunk_number == chunk) {
            self.release_socket(id);
        }
    }

    /// Frees port, slot and rings. No device touches them.
    fn release_socket(&mut self, id: SocketId) {
        let Some(socket) = self.datagrams.sockets.remove(id) else { return };
        self.give_up_port(socket.app, socket.local.port(), PortOwner::Socket(id));
        let Some(tenant) = self.apps.get_mut(socket.app) else { return };
        tenant.sockets.remove(&id);
        tenant.put_back_slot(socket.slot, &socket.words);
        let back = tenant.pool.put_back(self.now, socket.rings);
        self.note_put_back(socket.app, back);
        self.serve_rings(socket.app, socket.ring_bytes);
        self.note_departure(socket.app);
    }

    /// Nobody waits for the answers to an application's questions any more.
    pub(crate) fn forget_asks(&mut self, app: AppId) {
        self.datagrams.asks.retain(|ask| !ask.is_of(app));
    }

    /// All datagram sockets in one go, for judges.
    pub fn datagram_sockets(&self) -> Vec<DatagramRow> {
        let pid = |app| self.apps.get(app).map_or(0, |a| a.pid);
        self.datagrams.sockets.iter().map(|(_, s)| s.row(pid(s.app))).collect()
    }
}
