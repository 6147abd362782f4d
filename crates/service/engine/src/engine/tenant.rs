//! Applications come, ring and go.
//!
//! Owns the way from a doorbell to a connection, and the quarantine of a departed application's memory. It must never
//! deregister memory that a peer may still write or the device may still read, and must never let one application's
//! misbehaviour reach further than its own connections.

use std::sync::Arc;

use control::{ChunkKind, Reason};
use ipnet::IpNet;
use verbs::{Access, Provider, Region, Time, VerbsError};

use super::Engine;
use super::endings::Why;
use super::mechanism::Mechanism;
use super::mechanisms::Mechanisms;
use crate::app::{App, SlotUse};
use crate::datagram::socket::SocketFault;
use crate::event::{Attach, Event};
use crate::ids::{AppId, RouteId, SlotAt};
use crate::limits::{
    CHUNKS_PER_APP_MAX, DOORBELLS_PER_APP, DOORBELLS_PER_RUN, ORPHAN_LINGER, REST_SLICE_BYTES, RING_BYTES_MAX,
    RING_BYTES_MIN,
};
use crate::ring_size::RingSize;
use crate::ringpool::{ChunkError, Retired, Slice};
use crate::tenants::{TenantPlace, TenantTerms};

impl Engine {
    /// Takes an application in. [`Reason::LocalLimit`] if the table is full.
    pub fn attach(&mut self, app: Attach) -> Result<AppId, Reason> {
        let place = app.tenant;
        let app = App::new(app, self.config.number, self.config.ring_memory_per_app_max, self.config.growing_rings());
        let id = self.apps.attach(app).ok_or(Reason::LocalLimit)?;
        self.tenants.join(id, place);
        Ok(id)
    }

    /// The operator's policy changed: the networks to whose hosts an application may send from here on; none: to all that
    /// the configuration allows. Its connections go on.
    pub fn set_connect_to(&mut self, app: AppId, networks: Option<Arc<[IpNet]>>) {
        if let Some(app) = self.apps.get_mut(app) {
            app.set_connect_to(networks);
        }
    }

    /// The operator's policy has these tenants, by place, with this engine's part of their rates. Those that were stopped
    /// by a rate go on. Applications that are there stay at their places until [`Self::set_tenant`] says otherwise.
    pub fn set_tenants(&mut self, terms: Vec<TenantTerms>) {
        for (place, waits) in self.tenants.set_terms(terms) {
            self.bring_back(place, waits);
        }
    }

    /// An application is this tenant's from here on.
    pub fn set_tenant(&mut self, app: AppId, place: TenantPlace) {
        if self.apps.get(app).is_some() {
            self.tenants.join(app, place);
        }
    }

    /// The application died, left, or is thrown out. Connections that it had closed in order deliver their last bytes;
    /// all others are reset. Its memory is quarantined until [`Event::AppGone`].
    pub fn detach<P: Provider>(&mut self, now: Time, _nic: &mut P, app: AppId, reason: Reason) {
        self.see(now);
        self.depart(app, reason);
    }

    fn depart(&mut self, app: AppId, reason: Reason) {
        let Some(tenant) = self.apps.leave(app) else { return };
        let (routes, connects) = (tenant.routes(), tenant.connects());
        for connect in connects {
            self.abandon_connect(connect);
        }
        if let Some(tenant) = self.apps.get_mut(app) {
            for waiter in tenant.pool.refuse_all() {
                Mechanisms::on_rings(self, waiter, Err(Reason::NoListener));
            }
        }
        // One that the application took and closed in order may still stand in a backlog, since the word that it was
        // taken comes by another way. So how it ends is decided as for all others.
        for route in self.apps.get_mut(app).map(App::take_backlogs).unwrap_or_default() {
            if let Some(vqp) = self.vqps.get_mut(route) {
                vqp.leave_backlog();
            }
        }
        self.end_all(app, Why::Left(reason), routes);
        Mechanisms::on_departure(self, app, reason);
        self.timers.start_orphan(self.now + ORPHAN_LINGER, app);
        self.apps.note_departure(app);
    }

    /// One connection of an application that left. If it was closed in order it may linger.
    pub(super) fn orphan(&mut self, route: RouteId, reason: Reason) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        if reason == Reason::AppFault {
            // From now on nothing that it wrote counts.
        } else if vqp.on_doorbell().is_err() {
            vqp.abort(Reason::PeerAppDied);
        }
        if !vqp.is_app_released() || reason == Reason::AppFault {
            vqp.abort(App::reason_for_peers(reason));
        }
        vqp.abandon();
        self.update(route);
    }

    /// An application broke the rules.
    pub(super) fn on_app_fault(&mut self, app: AppId, fault: &dyn std::fmt::Display) {
        self.counters.app_faults += 1;
        self.depart(app, Reason::AppFault);
        self.events.push_back(Event::AppFault { app, detail: fault.to_string() });
    }

    /// Ends the applications whose memory has faulted ([`shm::Region::has_faulted`]): the engine no longer sees there
    /// what they see. Says how many. Call it when [`shm::survived_faults`] has grown.
    pub fn check_memory(&mut self) -> usize {
        let faulty: Vec<_> =
            self.apps.iter().filter(|(_, a)| !a.is_leaving() && a.has_faulted()).map(|(id, _)| id).collect();
        for &app in &faulty {
            self.on_app_fault(app, &"a page of its memory cannot be had: it gave pages back (punched a hole)");
        }
        faulty.len()
    }

    /// What still lingers after [`ORPHAN_LINGER`] is reset. A peer that does not confirm that within the same time
    /// again, or does not answer an operation, loses its lane: memory must not stay in quarantine for ever.
    pub(super) fn on_orphan_timeout<P: Provider>(&mut self, nic: &mut P, app: AppId) {
        let Some(tenant) = self.apps.get_mut(app) else { return };
        let (was_overdue, routes) = (tenant.on_overdue(), tenant.routes());
        self.timers.start_orphan(self.now + ORPHAN_LINGER, app);
        if was_overdue {
            Mechanisms::on_overdue(self, nic, app);
        }
        self.end_all(app, Why::Overdue { again: was_overdue }, routes);
    }

    // ---- doorbells

    /// Looks at what the applications marked. Says whether anything was.
    pub(super) fn run_doorbells(&mut self) -> bool {
        let mut left = DOORBELLS_PER_RUN;
        for _ in 0..self.apps.attached() {
            let Some(app) = self.apps.next_attached() else { break };
            let mut dirty = std::mem::take(&mut self.scratch.dirty);
            dirty.clear();
            if let Some(tenant) = self.apps.get_mut(app) {
                tenant.take_doorbells(&mut dirty, DOORBELLS_PER_APP.min(left));
            }
            left -= dirty.len();
            let mut fault = None;
            for &slot in &dirty {
                if let Err(e) = self.on_doorbell(SlotAt { app, slot }) {
                    fault = Some(e);
                    break;
                }
            }
            self.scratch.dirty = dirty;
            if let Some(fault) = fault {
                self.on_app_fault(app, &fault);
            }
            if left == 0 {
                break;
            }
        }
        left < DOORBELLS_PER_RUN
    }

    pub(super) fn on_doorbell(&mut self, at: SlotAt) -> Result<(), SocketFault> {
        let route = match self.apps.get(at.app).and_then(|tenant| tenant.use_of(at.slot)) {
            Some(SlotUse::Connection(route)) => route,
            Some(SlotUse::Socket(socket)) => return self.on_socket(socket),
            Some(SlotUse::Queue(queue)) => {
                self.on_queue(queue);
                return Ok(());
            }
            Some(SlotUse::Left) => {
                self.free_left_slot(at);
                return Ok(());
            }
            // The doorbell is of something that is over.
            None => return Ok(()),
        };
        let Some(vqp) = self.vqps.get_mut(route) else { return Ok(()) };
        let (tail, head) = vqp.app_cursors();
        vqp.on_doorbell()?;
        let (tail_now, head_now) = vqp.app_cursors();
        if let Some(taken) = self.stages.take(tail, tail_now, || vqp.slot.written_word()) {
            self.stages.on_taken(vqp.whose(route), taken);
        }
        if head != head_now && self.stages.has_open() {
            self.stages.on_read_here(route, head_now);
        }
        self.rests.touch(vqp, route, self.now);
        if tail != tail_now {
            vqp.bulk.on_sent();
        }
        if vqp.wants_growth() {
            self.grow(route);
        }
        if tail != tail_now {
            self.on_sending(route);
        }
        self.update(route);
        Ok(())
    }

    // ---- rings

    /// Adds a ring chunk and registers it with the device: rx chunks may be written by peers, tx chunks only read by
    /// the device. Chunk numbers are the daemon's, unique in the session.
    pub fn add_chunk<P: Provider>(
        &mut self,
        nic: &mut P,
        app: AppId,
        chunk: u32,
        kind: ChunkKind,
        size: RingSize,
        region: Region,
    ) -> Result<(), VerbsError> {
        self.add_chunk_as(nic, (app, chunk), kind, size, region, false)?;
        self.serve_rings(app, size);
        Ok(())
    }

    /// The same, for one that an application may have brought along.
    pub(super) fn add_chunk_as<P: Provider>(
        &mut self,
        nic: &mut P,
        (app, chunk): (AppId, u32),
        kind: ChunkKind,
        size: RingSize,
        region: Region,
        is_brought: bool,
    ) -> Result<(), VerbsError> {
        let tenant = self.apps.get_here_mut(app).ok_or(VerbsError::NoSuch("application"))?;
        tenant.pool.check_chunk(chunk, size, &region).map_err(|e| chunk_error(e, size, &region))?;
        let access = match kind {
            ChunkKind::Tx => Access::empty(),
            ChunkKind::Rx => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        };
        let mr = nic.reg_mr(&region, 0, region.len(), access)?;
        self.ring_memory.chunks += 1;
        self.ring_memory.bytes += region.len();
        match is_brought {
            true => tenant.pool.add_brought(chunk, kind, size, region, mr),
            false => tenant.pool.add_chunk(chunk, kind, size, region, mr),
        }
        Ok(())
    }

    /// The chunks of [`Event::ChunksWanted`] cannot be made: everything that waits for them is refused with `reason`.
    pub fn chunks_refused(&mut self, app: AppId, size: RingSize, reason: Reason) {
        let Some(tenant) = self.apps.get_mut(app) else { return };
        for waiter in tenant.pool.refuse(size) {
            Mechanisms::on_rings(self, waiter, Err(reason));
        }
    }

    /// The application could not take a chunk, because it may open no more descriptors. Connections and sockets in the
    /// chunk end, with a reason for the application and the peers. The chunk is used for no other connection. If the
    /// application claims this of a chunk that it has, it loses only its own connections.
    pub fn chunk_not_taken<P: Provider>(&mut self, now: Time, _nic: &mut P, app: AppId, chunk: u32) {
        self.see(now);
        let Some(tenant) = self.apps.get_here_mut(app) else { return };
        let mut retired = Vec::new();
        tenant.pool.close_chunk(chunk, &mut retired);
        let routes = tenant.routes();
        self.apps.retire(app, retired);
        self.end_all(app, Why::NotTaken { chunk }, routes);
        Mechanisms::on_chunk_not_taken(self, app, chunk);
    }

    /// Asks the daemon for rings if somebody waits and nothing was asked; refuses all if there can be none.
    pub(super) fn ask_for_rings(&mut self, app: AppId, size: RingSize) {
        let (left, is_tenants) = self.rings_left(app);
        let Some(tenant) = self.apps.get_mut(app) else { return };
        match tenant.pool.ask(size, left) {
            Ok(Some(rings)) => self.events.push_back(Event::ChunksWanted { app, size, rings }),
            Ok(None) => {}
            Err(()) => {
                let is_tenants = is_tenants && left < tenant.pool.left();
                self.chunks_refused(app, size, if is_tenants { Reason::TenantLimit } else { Reason::LocalLimit });
            }
        }
    }

    /// Rings became free: the waiters go on, in order. Those of an application that left are refused by its departure;
    /// served, an open would make a connection that the departure does not know of.
    pub(super) fn serve_rings(&mut self, app: AppId, size: RingSize) {
        if self.apps.get_here(app).is_none() {
            return;
        }
        while let Some(waiter) = self.apps.get_mut(app).and_then(|a| a.pool.next_served(size)) {
            Mechanisms::on_rings(self, waiter, Ok(()));
        }
        self.ask_for_rings(app, size);
    }

    // ---- departures

    /// A connect, parked open or bind of an application waits: its memory is kept meanwhile.
    pub(super) fn start_waiting(&mut self, app: AppId) {
        self.apps.start_waiting(app);
    }

    /// One of them stops waiting.
    pub(super) fn stop_waiting(&mut self, app: AppId) {
        self.apps.stop_waiting(app);
        self.apps.note_departure(app);
    }

    fn dereg_chunk<P: Provider>(&mut self, nic: &mut P, retired: &Retired) {
        self.ring_memory.chunks = self.ring_memory.chunks.saturating_sub(1);
        self.ring_memory.bytes = self.ring_memory.bytes.saturating_sub(retired.bytes);
        self.dereg(nic, retired.mr);
        if let Some(lent) = retired.lent {
            self.ring_memory.chunks = self.ring_memory.chunks.saturating_sub(1);
            self.ring_memory.bytes = self.ring_memory.bytes.saturating_sub(retired.bytes);
            self.ring_memory.lent = self.ring_memory.lent.saturating_sub(1);
            self.ring_memory.lent_bytes = self.ring_memory.lent_bytes.saturating_sub(retired.bytes);
            self.dereg(nic, lent);
        }
    }

    /// Deregisters memory that is not used any more. Says whether there was any.
    pub(super) fn run_departures<P: Provider>(&mut self, nic: &mut P) -> bool {
        let worked = self.apps.has_departures();
        while let Some((app, chunk)) = self.apps.first_retired() {
            // An application that is in no call of the library unmaps the chunk at its next one; its pages go now.
            let slice = chunk.next_slice(REST_SLICE_BYTES).filter(|_| self.rests.is_on());
            if let Some(Slice { mr, offset, bytes }) = slice
                && self.apps.get_here(app).is_some()
            {
                if nic.try_discard(mr, offset, bytes, None).is_err() {
                    self.counters.device_refusals += 1;
                }
                if let Some((_, chunk)) = self.apps.first_retired() {
                    chunk.on_emptied(bytes);
                }
                break;
            }
            let Some((app, chunk)) = self.apps.take_retired() else { break };
            self.dereg_chunk(nic, &chunk);
            if self.apps.get_here(app).is_some() {
                self.events.push_back(Event::ChunkGone { app, chunk: chunk.number });
            }
        }
        for (app, mut tenant) in self.apps.take_gone() {
            if self.apps.iter().all(|(_, other)| other.uid() != tenant.uid()) {
                self.dials.forget(tenant.uid());
            }
            for chunk in tenant.pool.retire_all() {
                self.dereg_chunk(nic, &chunk);
            }
            Mechanisms::on_app_gone(self, app);
            self.events.push_back(Event::AppGone { app });
        }
        worked
    }
}

fn chunk_error(e: ChunkError, size: RingSize, region: &Region) -> VerbsError {
    match e {
        ChunkError::RingBytes => VerbsError::OutOfRange {
            what: "ring size of the chunk",
            value: size.grown.into(),
            min: RING_BYTES_MIN.into(),
            max: RING_BYTES_MAX.into(),
        },
        ChunkError::Length => VerbsError::OutOfRange {
            what: "length of the chunk",
            value: region.len(),
            min: size.grown.into(),
            max: u64::from(u32::MAX) * u64::from(size.grown),
        },
        ChunkError::Duplicate => VerbsError::Busy("number of the chunk"),
        ChunkError::Full => VerbsError::Full { what: "list of chunks", limit: CHUNKS_PER_APP_MAX as u64 },
    }
}
