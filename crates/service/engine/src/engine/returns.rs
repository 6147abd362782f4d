//! Applications that come back with what a daemon before this one made for them (docs/operate/restart.md).
//!
//! Owns which of their slots and rings go on. It must never take memory, cursors or names for good that were not checked:
//! the memory is a program's, and has been since the daemon that wrote to it died.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;

use control::{ChunkKind, LaneTicket, Reason, SocketTicket, Ticket};
use shm::{Region, app_flag, engine_flag, slot_state};
use verbs::{Provider, Time};

use super::Engine;
use crate::event::Event;
use crate::frame::check_route;
use crate::ids::{AppId, SlotAt};
use crate::limits::{CHUNK_BYTES_TARGET, RETURN_CHUNK, RETURN_TICKET, RETURN_TURN};
use crate::ring_size::RingSize;
use crate::ringpool::RingPair;
use crate::slot_set::SlotSet;
use crate::vqp::{NewVqp, Phase};

/// A chunk of rings that an application brings along, checked and mapped.
#[derive(Debug, Clone)]
pub struct ReturnedChunk {
    /// Its number.
    pub chunk: u32,
    /// Direction.
    pub kind: ChunkKind,
    /// Its memory.
    pub region: Region,
}

/// What an application brings along beside its session segment.
#[derive(Debug, Clone, Default)]
pub struct Returned {
    /// Slots that it uses, of any engine.
    pub used: SlotSet,
    /// Its chunks.
    pub chunks: Vec<ReturnedChunk>,
    /// Its connections through lanes. The daemon has made sure that it gave these tickets to this application's user, and
    /// counts each: [`Event::ConnectionOver`] comes for each once.
    pub connections: Vec<LaneTicket>,
    /// Its datagram sockets, in the same way: [`Event::SocketOver`] comes for each once.
    pub sockets: Vec<SocketTicket>,
    /// Tickets of what the daemon does not admit: it ends, and nothing of it is used before the application has given
    /// it back. No event comes for them.
    pub refused: Vec<Ticket>,
}

impl Returned {
    /// Everything for which it has a ticket.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let connections = self.connections.iter().copied().map(Ticket::Lane);
        let sockets = self.sockets.iter().copied().map(Ticket::Socket);
        connections.chain(sockets).chain(self.refused.iter().copied())
    }
}

/// An application that comes back, and what of it is left to do: step by step, with others' work between.
#[derive(Debug)]
pub(super) struct Returning {
    app: AppId,
    used: SlotSet,
    /// Slots that are still to be named.
    unnamed: Range<u32>,
    chunks: VecDeque<ReturnedChunk>,
    /// Of the rings in each chunk, as the tickets say.
    sizes: BTreeMap<u32, RingSize>,
    connections: VecDeque<LaneTicket>,
    sockets: VecDeque<SocketTicket>,
    refused: VecDeque<Ticket>,
    failed: BTreeMap<u32, Reason>,
    /// Slots of which what stays is still to be ended.
    unended: Range<u32>,
    /// Chunks that were taken.
    taken: Vec<u32>,
}

impl Engine {
    /// Takes over what an application used with a daemon before this one. What cannot go on ends with
    /// [`Reason::DaemonLost`], or with [`Reason::AppFault`] if its words say what cannot be. To be called before anything
    /// else is done with the application, of which nothing is heard before [`Event::TakenBack`].
    pub fn take_back<P: Provider>(&mut self, now: Time, nic: &mut P, app: AppId, returned: Returned) {
        self.see(now);
        let Some(tenant) = self.apps.get(app) else { return };
        let mut sizes = BTreeMap::new();
        let mut used = returned.used.clone();
        for ticket in returned.tickets() {
            let (first, grown) = ticket.allocated();
            used.insert(ticket.slot());
            for ring in ticket.rings() {
                sizes.entry(ring.chunk).or_insert(RingSize { first, grown });
            }
        }
        let slots = tenant.slots_up_to_last(&used);
        let Returned { chunks, connections, sockets, refused, .. } = returned;
        self.returns.push_back(Returning {
            app,
            used,
            unnamed: slots.clone(),
            chunks: chunks.into(),
            sizes,
            connections: connections.into(),
            sockets: sockets.into(),
            refused: refused.into(),
            failed: BTreeMap::new(),
            unended: slots,
            taken: Vec::new(),
        });
        self.apps.hush(app);
        self.start_waiting(app);
        self.run_returns(nic);
        self.apps.collect_wakes();
    }

    /// Whether an application that came back waits for its turn.
    pub fn has_returns(&self) -> bool {
        !self.returns.is_empty()
    }

    /// Gives the next application that comes back a turn. Says whether there was any.
    pub fn run_returns<P: Provider>(&mut self, nic: &mut P) -> bool {
        let Some(mut returning) = self.returns.pop_front() else { return false };
        let mut spent = 0;
        while spent < RETURN_TURN {
            let Some(cost) = self.return_step(nic, &mut returning) else {
                let app = returning.app;
                self.apps.hear(app);
                self.events.push_back(Event::TakenBack { app });
                self.stop_waiting(app);
                return true;
            };
            spent += cost;
        }
        self.returns.push_back(returning);
        true
    }

    /// The next step, and what it cost. `None`: there is none.
    fn return_step<P: Provider>(&mut self, nic: &mut P, returning: &mut Returning) -> Option<u32> {
        let app = returning.app;
        // One that left meanwhile: only what was counted for it is still said.
        let mut here = self.apps.get_here_mut(app);
        if let Some(tenant) = &mut here {
            if let Some(slot) = returning.unnamed.next() {
                tenant.leave_next_slot(slot, returning.used.contains(slot));
                return Some(1);
            }
            if let Some(chunk) = returning.chunks.pop_front() {
                self.take_chunk(nic, returning, chunk);
                return Some(RETURN_CHUNK);
            }
        }
        if let Some(ticket) = returning.connections.pop_front() {
            if let Err(reason) = self.take_connection(nic, app, &ticket) {
                let peer = ticket.peer.ip();
                let port = (!ticket.is_outgoing).then_some(ticket.local.port());
                self.events.push_back(Event::ConnectionOver { app, connection: ticket.id, peer, port });
                returning.failed.insert(ticket.slot, reason);
            }
            return Some(RETURN_TICKET);
        }
        if let Some(ticket) = returning.sockets.pop_front() {
            if let Err(reason) = self.take_socket(app, &ticket) {
                self.events.push_back(Event::SocketOver { app, socket: ticket.id });
                returning.failed.insert(ticket.slot, reason);
            }
            return Some(RETURN_TICKET);
        }
        self.apps.get_here(app)?;
        if let Some(ticket) = returning.refused.pop_front() {
            if let Some(rings) = self.rings_of(app, &ticket) {
                self.keep_left_rings(app, ticket.slot(), rings);
            }
            return Some(RETURN_TICKET);
        }
        if let Some(slot) = returning.unended.next() {
            self.end_left(SlotAt { app, slot }, returning.failed.get(&slot).copied());
            return Some(1);
        }
        let chunk = returning.taken.pop()?;
        let mut retired = Vec::new();
        self.apps.get_mut(app)?.pool.list(chunk, &mut retired);
        self.apps.retire(app, retired);
        Some(RETURN_CHUNK)
    }

    /// Registers a chunk in which connections lie that go on. The size of its rings is in the tickets.
    fn take_chunk<P: Provider>(&mut self, nic: &mut P, returning: &mut Returning, chunk: ReturnedChunk) {
        let (app, ReturnedChunk { chunk, kind, region }) = (returning.app, chunk);
        // No more rings than a daemon puts into one: each is work.
        let fits = |size: &RingSize| {
            is_ring_size(*size) && {
                let rings = region.len() / u64::from(size.grown);
                rings <= 1 || rings * u64::from(size.first) <= CHUNK_BYTES_TARGET
            }
        };
        let size = returning.sizes.get(&chunk).copied().filter(fits);
        let taken = size.is_some_and(|size| self.add_chunk_as(nic, (app, chunk), kind, size, region, true).is_ok());
        if taken {
            returning.taken.push(chunk);
        } else {
            self.events.push_back(Event::ChunkGone { app, chunk });
        }
    }

    /// The rings that a ticket names, as any that are in use.
    pub(super) fn rings_of(&mut self, app: AppId, ticket: &Ticket) -> Option<RingPair> {
        let (first, grown) = ticket.allocated();
        let [tx, rx] = ticket.rings().map(|ring| (ring.chunk, ring.offset));
        self.apps.get_mut(app)?.pool.take_again(tx, rx, RingSize { first, grown })
    }

    /// Rings of what does not go on: the application may still read in them.
    pub(super) fn keep_left_rings(&mut self, app: AppId, slot: u32, rings: RingPair) {
        match self.apps.get_mut(app) {
            Some(tenant) if tenant.is_left(slot) => tenant.keep_left_rings(slot, rings),
            _ => self.put_back_rings(app, rings),
        }
    }

    fn take_connection<P: Provider>(&mut self, nic: &mut P, app: AppId, ticket: &LaneTicket) -> Result<(), Reason> {
        self.apps.get_here(app).ok_or(Reason::DaemonLost)?;
        let rings = self.rings_of(app, &Ticket::Lane(*ticket)).ok_or(Reason::DaemonLost)?;
        let taken = self.take_with_rings(nic, app, ticket, rings);
        if taken.is_err() {
            self.keep_left_rings(app, ticket.slot, rings);
        }
        taken
    }

    fn take_with_rings<P: Provider>(
        &mut self,
        nic: &mut P,
        app: AppId,
        ticket: &LaneTicket,
        rings: RingPair,
    ) -> Result<(), Reason> {
        let size = |(first, grown)| RingSize { first, grown };
        let (used, allocated) = (size(ticket.size), size(ticket.allocated));
        let fits = is_ring_size(used) && is_ring_size(allocated) && used.grown <= allocated.grown;
        if !fits || check_route(ticket.peer_route).is_err() {
            return Err(Reason::DaemonLost);
        }
        let lane = self.lane_to(nic, ticket.peer.ip()).ok_or(Reason::LocalLimit)?;
        let tenant = self.apps.get_mut(app).ok_or(Reason::DaemonLost)?;
        let new = NewVqp {
            id: ticket.id,
            app,
            lane,
            phase: Phase::Open,
            rings,
            size: used,
            allocated,
            local: ticket.local,
            peer: ticket.peer,
            kind: ticket.kind,
        };
        let route = self.vqps.adopt(new, ticket, tenant, self.now).ok_or(Reason::DaemonLost)?;
        let until = self.now + self.config.peer_return;
        if self.vqps.get_mut(route).is_none_or(|vqp| vqp.adopt(ticket, until).is_err()) {
            self.vqps.remove(route);
            if let Some(tenant) = self.apps.get_mut(app) {
                tenant.leave_slot(ticket.slot);
            }
            return Err(Reason::AppFault);
        }
        if let Some(lane) = self.lanes.get_mut(lane) {
            self.vqps.link(&mut lane.members, route);
        }
        if let Some(vqp) = self.vqps.get_mut(route) {
            self.rests.touch(vqp, route, self.now);
        }
        if let Some(tenant) = self.apps.get_mut(app) {
            for (place, grown) in [(rings.tx, ticket.size.1), (rings.rx, ticket.size.1)] {
                // Its bytes are there already; only the count may be beyond the bound.
                let _ = grown > ticket.size.0 && tenant.pool.grow(&place, u64::MAX);
            }
        }
        self.counters.connections_adopted += 1;
        // What it wrote and asked for meanwhile.
        if self.on_doorbell(SlotAt { app, slot: ticket.slot }).is_err() {
            self.on_app_fault(app, &"words of a connection that it brought back cannot be");
            return Ok(());
        }
        self.seek_peer(lane);
        if self.lanes.get(lane).is_some_and(|l| l.qp.is_up()) {
            self.update(route);
        }
        Ok(())
    }

    /// Ends what stays in a slot of a daemon before this one.
    fn end_left(&mut self, at: SlotAt, failed: Option<Reason>) {
        let Some(tenant) = self.apps.get(at.app).filter(|tenant| tenant.is_left(at.slot)) else { return };
        let Some(words) = tenant.words(at.slot) else { return };
        let reason = match failed {
            Some(reason @ (Reason::AppFault | Reason::PortInUse)) => reason,
            _ => Reason::DaemonLost,
        };
        if words.engine_flags.load(Ordering::Acquire) & engine_flag::RESET == 0 {
            words.reason.store(reason.code(), Ordering::Relaxed);
        }
        words.state.store(slot_state::CLOSED, Ordering::Relaxed);
        words.engine_flags.fetch_or(engine_flag::RESET, Ordering::Release);
        self.notify(at);
        self.free_left_slot(at);
    }

    /// The application gave a slot back that a daemon before this one had used.
    pub(super) fn free_left_slot(&mut self, at: SlotAt) {
        let Some(tenant) = self.apps.get_mut(at.app) else { return };
        let Some(words) = tenant.words(at.slot) else { return };
        if words.app_flags.load(Ordering::Acquire) & app_flag::CLOSED != 0 {
            tenant.put_back_slot(at.slot, &words);
            if let Some(rings) = tenant.take_left_rings(at.slot) {
                self.put_back_rings(at.app, rings);
            }
        }
    }
}

/// Whether rings of this size may be.
fn is_ring_size(size: RingSize) -> bool {
    use crate::limits::{RING_BYTES_MAX, RING_BYTES_MIN};
    let is = |bytes: u32| bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes);
    is(size.first) && is(size.grown) && size.first <= size.grown
}
