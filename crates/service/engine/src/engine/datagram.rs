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

use control::{DatagramRow, Reason, SocketTicket, Ticket};
use verbs::{Completion, Provider, Qpn, Time};

use super::Engine;
use super::mechanism::{Counter, Mechanism, NoRecord};
use super::ring_slot::SlotTable;
use crate::app::SlotUse;
use crate::datagram::socket::{Socket, SocketFault};
use crate::datagram::{Datagrams, PortOwner};
use crate::event::DatagramBind;
use crate::ids::{AppId, LaneId, SocketId};
use crate::limits::DATAGRAM_RING_BYTES_MIN;
use crate::ring_size::RingSize;
use crate::ring_slot::{NewRingSlot, RingSlot, SlotRequest};
use crate::ringpool::{RingPair, Waiter};
use crate::slot::TakenSlot;
use crate::tenants::{TenantPlace, Waits};
use crate::violation::Violation;

const SOCKETS: SlotTable<SocketId, Socket> = SlotTable {
    tables: |engine| (&mut engine.apps, &mut engine.datagrams.sockets),
    used_by: SlotUse::Socket,
    make: Socket::new,
};

impl Mechanism for Datagrams {
    type Record = NoRecord;

    fn on_record<P: Provider>(
        _engine: &mut Engine,
        _nic: &mut P,
        _lane: LaneId,
        record: NoRecord,
    ) -> Result<(), Violation> {
        match record {}
    }

    #[inline]
    fn on_completion(engine: &mut Engine, lane: Option<LaneId>, completion: &Completion) -> bool {
        let is_own = lane.is_none() && engine.datagrams.is_port(completion.qpn);
        if is_own {
            engine.on_datagram_completion(completion);
        }
        is_own
    }

    fn repost<P: Provider>(engine: &mut Engine, nic: &mut P) {
        if let Some(port) = &mut engine.datagrams.port {
            // What fails is tried again when the queue pair was revived.
            let _ = port.repost(nic);
        }
    }

    fn on_qp_failed(engine: &mut Engine, qpn: Qpn) -> bool {
        engine.datagrams.on_port_failed(qpn)
    }

    fn bring_back(engine: &mut Engine, tenant: TenantPlace, waits: Waits) {
        if waits == Waits::Datagrams {
            engine.datagrams.drr.bring_back(tenant);
        }
    }

    fn run_behind_lanes<P: Provider>(engine: &mut Engine, nic: &mut P) -> bool {
        engine.run_datagrams(nic)
    }

    fn has_work(engine: &Engine) -> bool {
        engine.datagrams.has_work()
    }

    fn deadline(engine: &Engine) -> Option<Time> {
        engine.datagrams.deadline()
    }

    fn on_lane_up(engine: &mut Engine, lane: LaneId) {
        engine.on_datagram_peer_ready(lane);
    }

    fn on_link_lost<P: Provider>(engine: &mut Engine, nic: &mut P, lane: LaneId, reason: Reason) {
        engine.forget_datagram_peer(nic, lane, reason);
    }

    fn on_rings(engine: &mut Engine, waiter: Waiter, rings: Result<(), Reason>) -> bool {
        let Waiter::Bind(id) = waiter else { return false };
        if let Some(bind) = engine.datagrams.binds.remove(id) {
            engine.datagrams.give_up_port(bind.port, PortOwner::Bind(id));
            engine.end_wait(bind, rings, Engine::open_socket);
        }
        true
    }

    fn on_chunk_not_taken(engine: &mut Engine, app: AppId, chunk: u32) {
        for socket in engine.apps.get(app).map(|app| app.sockets()).unwrap_or_default() {
            engine.release_socket_in(socket, chunk);
        }
    }

    fn on_departure(engine: &mut Engine, app: AppId, reason: Reason) {
        for socket in engine.apps.get(app).map(|app| app.sockets()).unwrap_or_default() {
            engine.orphan_socket(socket, reason);
        }
        engine.datagrams.forget_asks(app);
    }

    fn memory(engine: &Engine) -> (u32, u64) {
        engine.datagrams.port.as_ref().map_or((0, 0), |port| port.registered())
    }

    fn counters(engine: &Engine, out: &mut Vec<Counter>) {
        out.extend(engine.datagrams.counters());
    }
}

impl Engine {
    // ---- bind

    /// Binds a datagram socket to a port, 0 for any free one. The answer is [`crate::Event::Connected`] with a connection that
    /// has no peer.
    pub fn bind_datagram(&mut self, app: AppId, request: u64, bind: DatagramBind) {
        if let Err(reason) = self.try_bind(app, request, bind) {
            self.refuse_ring_slot(app, request, bind.socket, reason);
        }
    }

    fn try_bind(&mut self, app: AppId, request: u64, bind: DatagramBind) -> Result<(), Reason> {
        let DatagramBind { socket, port, ring_bytes } = bind;
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
        // That fault may have been this application's own.
        self.apps.get_here(app).ok_or(Reason::AppFault)?;
        if self.datagrams.is_taken(port) {
            return Err(Reason::PortInUse);
        }
        let size = self.ring_slot_size(ring_bytes, DATAGRAM_RING_BYTES_MIN);
        let bind = SlotRequest { app, request, id: socket, port, size };
        if let Some(rings) = self.take_rings(bind) {
            return self.open_socket(bind, rings);
        }
        let id = self.datagrams.binds.insert(bind).ok_or(Reason::LocalLimit)?;
        self.datagrams.take_port(port, PortOwner::Bind(id));
        self.wait_for_rings(bind, Waiter::Bind(id));
        Ok(())
    }

    fn open_socket(&mut self, bind: SlotRequest, rings: RingPair) -> Result<(), Reason> {
        let socket = self.open_ring_slot(&SOCKETS, bind, rings)?;
        self.datagrams.take_port(bind.port, PortOwner::Socket(socket));
        Ok(())
    }

    /// Takes over a socket that a daemon before this one had bound.
    pub(super) fn take_socket(&mut self, app: AppId, ticket: &SocketTicket) -> Result<(), Reason> {
        self.apps.get_here(app).ok_or(Reason::DaemonLost)?;
        let rings = self.rings_of(app, &Ticket::Socket(*ticket)).ok_or(Reason::DaemonLost)?;
        let taken = self.take_socket_with(app, ticket, rings);
        if taken.is_err() {
            self.keep_left_rings(app, ticket.slot, rings);
        }
        taken
    }

    fn take_socket_with(&mut self, app: AppId, ticket: &SocketTicket, rings: RingPair) -> Result<(), Reason> {
        let &SocketTicket { id, local, slot, generation, ring_bytes, .. } = ticket;
        let port = local.port();
        if self.datagrams.is_full() {
            return Err(Reason::LocalLimit);
        }
        if self.datagrams.is_taken(port) {
            return Err(Reason::PortInUse);
        }
        let tenant = self.apps.get_mut(app).ok_or(Reason::AppFault)?;
        let memory = |place| tenant.pool.memory(place, ring_bytes).ok_or(Reason::LocalLimit);
        let (tx_memory, rx_memory) = (memory(rings.tx)?, memory(rings.rx)?);
        let request = SlotRequest { app, request: 0, id, port, size: RingSize::fixed(ring_bytes) };
        let new = NewRingSlot { request, local, rings, tx_memory, rx_memory };
        let words = Box::new(tenant.words(slot).ok_or(Reason::DaemonLost)?);
        let taken = TakenSlot { number: slot, generation, words };
        let resumed = RingSlot::resume(new, taken).ok_or(Reason::AppFault)?;
        let socket = self.datagrams.sockets.insert(Socket::new(resumed)).ok_or(Reason::LocalLimit)?;
        if tenant.adopt_slot((slot, generation), SlotUse::Socket(socket)).is_none() {
            self.datagrams.sockets.remove(socket);
            return Err(Reason::DaemonLost);
        }
        self.datagrams.take_port(port, PortOwner::Socket(socket));
        if let Some(socket) = self.datagrams.sockets.get_mut(socket) {
            socket.on_paths_changed();
        }
        // What it sent and asked for meanwhile.
        if let Err(fault) = self.on_socket(socket) {
            self.on_socket_fault(socket, &fault);
        }
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
            self.datagrams.drr.push(socket.at().app, id, &self.tenants);
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
    fn orphan_socket(&mut self, id: SocketId, reason: Reason) {
        let Some(socket) = self.datagrams.sockets.get_mut(id) else { return };
        let port = socket.port();
        if reason == Reason::AppFault || socket.close().is_err() {
            return self.release_socket(id);
        }
        self.datagrams.give_up_port(port, PortOwner::Socket(id));
        self.queue_socket(id);
    }

    /// Frees a socket if one of its rings lies in this chunk, which its application cannot use.
    fn release_socket_in(&mut self, id: SocketId, chunk: u32) {
        if self.datagrams.sockets.get(id).is_some_and(|s| s.slot().rings().is_in(chunk)) {
            self.release_socket(id);
        }
    }

    /// Frees port, slot and rings. No device touches them.
    fn release_socket(&mut self, id: SocketId) {
        let Some(socket) = self.datagrams.sockets.remove(id) else { return };
        self.datagrams.give_up_port(socket.port(), PortOwner::Socket(id));
        self.free_ring_slot(socket.slot());
    }

    /// All datagram sockets in one go, for judges.
    pub fn datagram_sockets(&self) -> Vec<DatagramRow> {
        self.datagrams.sockets.iter().map(|(_, s)| s.row(self.apps.pid(s.at().app))).collect()
    }
}
