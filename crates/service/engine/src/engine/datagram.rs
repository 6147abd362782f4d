//! Datagram sockets: ports that applications bind, their rings, and the one UD queue pair of the device.
//!
//! Owns the port space of datagrams, which is separate from that of listeners, and sockets from bind to release. It
//! must never let a stranger's datagrams use up what lanes rely on: receives, sends and their memory are the UD queue
//! pair's own.
//!
//! Nothing is promised but boundaries: what cannot go on is dropped and counted (`drops`), never held for anyone. A
//! datagram is copied where streams are not, out of the sender's ring and into the receiver's: so the device touches no
//! memory of an application, and a socket's memory is free as soon as its last record is sent.

mod path;
mod transfer;

use std::net::SocketAddr;

use control::{DatagramRow, Reason};
use shm::{RingReader, RingWriter};

use super::Engine;
use crate::datagram::socket::{NewSocket, Socket, SocketFault};
use crate::datagram::{Bind, PortOwner};
use crate::event::{DatagramBind, Event};
use crate::ids::{AppId, BindId, SlotAt, SocketId};
use crate::limits::DATAGRAM_RING_BYTES_MIN;
use crate::ring_size::RingSize;
use crate::ringpool::{RingPair, Waiter};
use crate::slot::clear_slot;

impl Engine {
    // ---- bind

    /// Binds a datagram socket to a port, 0 for any free one. The answer is [`Event::Connected`] with a connection that
    /// has no peer.
    pub fn bind_datagram(&mut self, app: AppId, request: u64, bind: DatagramBind) {
        if let Err(reason) = self.try_bind(app, request, bind) {
            self.note_not_bound(app, request, bind.socket, reason);
        }
    }

    fn note_not_bound(&mut self, app: AppId, request: u64, socket: u64, reason: Reason) {
        self.events.push_back(Event::Connected { app, request, result: Err(reason) });
        self.events.push_back(Event::SocketOver { app, socket });
    }

    fn try_bind(&mut self, app: AppId, request: u64, bind: DatagramBind) -> Result<(), Reason> {
        let DatagramBind { socket, port, ring_bytes } = bind;
        self.apps.get_here(app).ok_or(Reason::AppFault)?;
        if self.datagrams.is_full() {
            return Err(Reason::LocalLimit);
        }
        let port = match port {
            0 => self.datagrams.free_port().ok_or(Reason::LocalLimit)?,
            port => port,
        };
        // Its owner may have closed it, and the doorbell that says so is not looked at yet.
        if let Some(id) = self.datagrams.socket_at(port)
            && let Err(fault) = self.on_socket(id)
        {
            self.on_socket_fault(id, &fault);
        }
        if self.datagrams.is_taken(port) {
            return Err(Reason::PortInUse);
        }
        let asked = if ring_bytes == 0 { 0 } else { ring_bytes.max(DATAGRAM_RING_BYTES_MIN) };
        let size = RingSize::fixed(self.config.ring_bytes(asked));
        let bind = Bind { app, request, socket, port, size };
        let tenant = self.apps.get_mut(app).ok_or(Reason::AppFault)?;
        if let Some(rings) = tenant.pool.take(size) {
            return self.open_socket(bind, rings);
        }
        let id = self.datagrams.binds.insert(bind).ok_or(Reason::LocalLimit)?;
        tenant.pool.wait(size, Waiter::Bind(id));
        self.start_waiting(app);
        self.datagrams.take_port(port, PortOwner::Bind(id));
        self.ask_for_rings(app, size);
        Ok(())
    }

    /// Rings are there for a bind that waited for them.
    pub(super) fn serve_bind(&mut self, id: BindId) {
        let Some(bind) = self.take_bind(id) else { return };
        let rings = self.apps.get_mut(bind.app).and_then(|a| a.pool.take(bind.size));
        let result = rings.ok_or(Reason::LocalLimit).and_then(|rings| self.open_socket(bind, rings));
        if let Err(reason) = result {
            self.note_not_bound(bind.app, bind.request, bind.socket, reason);
        }
    }

    /// There will be no rings for a bind.
    pub(super) fn refuse_bind(&mut self, id: BindId, reason: Reason) {
        if let Some(Bind { app, request, socket, .. }) = self.take_bind(id) {
            self.note_not_bound(app, request, socket, reason);
        }
    }

    fn take_bind(&mut self, id: BindId) -> Option<Bind> {
        let bind = self.datagrams.binds.remove(id)?;
        self.datagrams.give_up_port(bind.port, PortOwner::Bind(id));
        self.stop_waiting(bind.app);
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
        let Bind { app, request, socket: id, port, size } = bind;
        let local = SocketAddr::new(self.local_address(), port);
        let tenant = self.apps.get_mut(app).ok_or(Reason::AppFault)?;
        let memory = |place| tenant.pool.memory(place, size.first).ok_or(Reason::LocalLimit);
        let (tx_memory, rx_memory) = (memory(rings.tx)?, memory(rings.rx)?);
        if !tenant.has_slot() || self.datagrams.sockets.is_full() {
            return Err(Reason::LocalLimit);
        }
        let socket = self.datagrams.sockets.insert_with(|key| {
            let slot = tenant.take_socket_slot(key).expect("a slot is free, as asked above");
            let words = &slot.words;
            clear_slot(words, slot.generation, 0, shm::slot_state::ESTABLISHED);
            let cursors = "the pool's places lie in their chunks, and the daemon's own mapping is writable";
            let tx = RingReader::new(tx_memory, words.tx_tail.clone(), words.tx_head.clone(), 0).expect(cursors);
            let rx = RingWriter::new(rx_memory, words.rx_tail.clone(), words.rx_head.clone(), 0).expect(cursors);
            Socket::new(NewSocket { id, app, slot, local, rings, ring_bytes: size.first, tx, rx })
        });
        let socket = socket.ok_or(Reason::LocalLimit)?;
        tenant.add_socket(socket);
        self.datagrams.take_port(port, PortOwner::Socket(socket));
        let Some(made) = self.datagrams.sockets.get(socket) else { return Err(Reason::LocalLimit) };
        self.events.push_back(Event::Connected { app, request, result: Ok(made.connection()) });
        Ok(())
    }

    // ---- doorbells and ends

    /// The application rang for a socket.
    pub(super) fn on_socket(&mut self, id: SocketId) -> Result<(), SocketFault> {
        let Some(socket) = self.datagrams.sockets.get_mut(id) else { return Ok(()) };
        if socket.on_doorbell()? {
            let port = socket.port();
            self.datagrams.give_up_port(port, PortOwner::Socket(id));
        }
        self.queue_socket(id);
        Ok(())
    }

    /// Puts a socket into the list of those that may have something to send; it leaves it, or ends, when that is sent.
    fn queue_socket(&mut self, id: SocketId) {
        if let Some(socket) = self.datagrams.sockets.get_mut(id)
            && socket.enter_ready()
        {
            self.datagrams.drr.push(socket.at().app, id);
        }
    }

    /// The application of a socket broke the rules. One that has left already loses what it had not sent.
    pub(super) fn on_socket_fault(&mut self, id: SocketId, fault: &SocketFault) {
        let Some(app) = self.datagrams.sockets.get(id).map(|s| s.at().app) else { return };
        if self.apps.get_here(app).is_some() {
            self.on_app_fault(app, fault);
        }
        self.release_socket(id);
    }

    /// The application of a socket left. What it had sent goes out, unless it broke the rules.
    pub(super) fn orphan_socket(&mut self, id: SocketId, reason: Reason) {
        let Some(socket) = self.datagrams.sockets.get_mut(id) else { return };
        let port = socket.port();
        if reason == Reason::AppFault || socket.close().is_err() {
            return self.release_socket(id);
        }
        self.datagrams.give_up_port(port, PortOwner::Socket(id));
        self.queue_socket(id);
    }

    /// Frees a socket if one of its rings lies in this chunk, which its application cannot use.
    pub(super) fn release_socket_in(&mut self, id: SocketId, chunk: u32) {
        if self.datagrams.sockets.get(id).is_some_and(|s| s.rings().is_in(chunk)) {
            self.release_socket(id);
        }
    }

    /// Frees port, slot and rings. No device touches them.
    fn release_socket(&mut self, id: SocketId) {
        let Some(socket) = self.datagrams.sockets.remove(id) else { return };
        let SlotAt { app, slot } = socket.at();
        self.datagrams.give_up_port(socket.port(), PortOwner::Socket(id));
        self.events.push_back(Event::SocketOver { app, socket: socket.id() });
        let Some(tenant) = self.apps.get_mut(app) else { return };
        tenant.drop_socket(id);
        tenant.put_back_slot(slot, socket.words());
        let back = tenant.pool.put_back(self.now, socket.rings());
        self.note_put_back(app, back);
        self.serve_rings(app, RingSize::fixed(socket.ring_bytes()));
        self.apps.note_departure(app);
    }

    /// All datagram sockets in one go, for judges.
    pub fn datagram_sockets(&self) -> Vec<DatagramRow> {
        self.datagrams.sockets.iter().map(|(_, s)| s.row(self.apps.pid(s.at().app))).collect()
    }
}
