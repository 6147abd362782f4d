//! Applications come, ring and go.
//!
//! Owns the way from a doorbell to a connection, and the quarantine of a departed application's memory. It must never
//! deregister memory that a peer may still write or the device may still read, and must never let one application's
//! misbehaviour reach further than its own connections.

use control::{ChunkKind, Reason};
use verbs::{Access, Provider, Region, Time, VerbsError};

use crate::AppId;
use crate::app::App;
use crate::datagram::SocketFault;
use crate::engine::Engine;
use crate::event::{Attach, Event};
use crate::limits::{
    CHUNKS_PER_APP_MAX, DOORBELLS_PER_APP, ORPHAN_LINGER, REST_SLICE_BYTES, RING_BYTES_MAX, RING_BYTES_MIN,
};
use crate::ringpool::{ChunkError, Retired, Waiter};
use crate::users::Far;
use crate::vqp::{Phase, RouteId};

impl Engine {
    /// Takes an application in. [`Reason::LocalLimit`] if the table is full, [`Reason::UserPrograms`] if the user's share is.
    pub fn attach(&mut self, app: Attach) -> Result<AppId, Reason> {
        let uid = app.uid;
        self.users.check_app(uid)?;
        let id = self.apps.insert(App::new(app, self.config.ring_memory_per_app_max)).ok_or(Reason::LocalLimit)?;
        self.users.add_app(uid);
        self.attached.push(id);
        Ok(id)
    }

    /// The application died, left, or is thrown out. Connections that it had closed in order deliver their last bytes; all
    /// others are reset. Its memory is quarantined until [`Event::AppGone`].
    pub fn detach<P: Provider>(&mut self, now: Time, _nic: &mut P, app: AppId, reason: Reason) {
        self.now = now;
        self.depart(app, reason);
    }

    fn depart(&mut self, app: AppId, reason: Reason) {
        let Some(tenant) = self.apps.get_mut(app).filter(|a| !a.leaving) else { return };
        tenant.leaving = true;
        let routes: Vec<RouteId> = tenant.routes().collect();
        let connects: Vec<_> = tenant.connects.values().copied().collect();
        let listeners: Vec<u16> = tenant.listeners.iter().copied().collect();
        let sockets: Vec<_> = tenant.sockets.iter().copied().collect();
        self.attached.retain(|id| *id != app);
        for connect in connects {
            self.abandon_connect(connect);
        }
        if let Some(tenant) = self.apps.get_mut(app) {
            for waiter in tenant.pool.refuse_all() {
                self.refuse_waiter(waiter, Reason::NoListener);
            }
        }
        // Connections before listeners: one that the application took and closed in order may still stand in the
        // backlog, since the word that it was taken comes by another way.
        for route in routes {
            self.orphan(route, reason);
        }
        for port in listeners {
            self.close_listener(app, port);
        }
        for socket in sockets {
            self.orphan_socket(socket, reason);
        }
        self.forget_asks(app);
        self.timers.start_orphan(self.now + ORPHAN_LINGER, app);
        self.note_departure(app);
    }

    /// One connection of an application that left. If it was closed in order it may linger.
    fn orphan(&mut self, route: RouteId, reason: Reason) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        if reason == Reason::AppFault {
            // Nothing that it wrote counts any more.
        } else if vqp.on_doorbell().is_err() {
            vqp.close.on_abort(Reason::PeerAppDied);
        }
        if !vqp.close.is_app_released() || reason == Reason::AppFault {
            vqp.close.on_abort(App::reason_for_peers(reason));
        }
        vqp.close.on_app_released();
        if let Phase::Opening(_) = vqp.phase {
            vqp.phase = Phase::Opening(None);
        }
        self.update(route);
    }

    /// An application broke the rules.
    pub(crate) fn on_app_fault(&mut self, app: AppId, fault: &dyn std::fmt::Display) {
        self.counters.app_faults += 1;
        self.depart(app, Reason::AppFault);
        self.events.push_back(Event::AppFault { app, detail: fault.to_string() });
    }

    /// What still lingers after [`ORPHAN_LINGER`] is reset. A peer that does not confirm that within the same time again
    /// loses its lane: memory must not stay in quarantine for ever.
    pub(crate) fn on_orphan_timeout<P: Provider>(&mut self, nic: &mut P, app: AppId) {
        let Some(tenant) = self.apps.get_mut(app) else { return };
        let was_overdue = std::mem::replace(&mut tenant.is_overdue, true);
        self.timers.start_orphan(self.now + ORPHAN_LINGER, app);
        for route in tenant.routes().collect::<Vec<_>>() {
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            vqp.close.on_abort(Reason::PeerAppDied);
            match vqp.lane {
                Some(lane) if was_overdue => {
                    self.fail_lane(nic, lane, "the peer did not confirm the end of a connection".into());
                }
                _ => self.update(route),
            }
        }
    }

    // ---- doorbells

    /// Looks at what the applications marked. Says whether anything was.
    pub(crate) fn run_doorbells(&mut self) -> bool {
        let mut worked = false;
        let mut at = 0;
        while let Some(&app) = self.attached.get(at) {
            let mut dirty = std::mem::take(&mut self.dirty);
            dirty.clear();
            if let Some(tenant) = self.apps.get_mut(app) {
                tenant.a2e.take(&mut dirty, DOORBELLS_PER_APP);
            }
            worked |= !dirty.is_empty();
            let mut fault = None;
            for &slot in &dirty {
                if let Err(e) = self.on_doorbell(app, slot) {
                    fault = Some(e);
                    break;
                }
            }
            self.dirty = dirty;
            match fault {
                // It is taken out of the list, and the next one is in its place.
                Some(fault) => self.on_app_fault(app, &fault),
                None => at += 1,
            }
        }
        worked
    }

    pub(crate) fn on_doorbell(&mut self, app: AppId, slot: u32) -> Result<(), SocketFault> {
        let Some(tenant) = self.apps.get(app) else { return Ok(()) };
        let Some(route) = tenant.route_at(slot) else {
            // In a slot without either, the doorbell is of something that is over.
            return tenant.socket_at(slot).map_or(Ok(()), |socket| self.on_socket(socket));
        };
        let Some(vqp) = self.vqps.get_mut(route) else { return Ok(()) };
        vqp.on_doorbell()?;
        self.rests.touch(vqp, route, self.now);
        self.update(route);
        Ok(())
    }

    // ---- rings

    /// Adds a ring chunk and registers it with the device: rx chunks may be written by peers, tx chunks only read by the
    /// device. Chunk numbers are the daemon's, unique in the session.
    pub fn add_chunk<P: Provider>(
        &mut self,
        nic: &mut P,
        app: AppId,
        chunk: u32,
        kind: ChunkKind,
        ring_bytes: u32,
        region: Region,
    ) -> Result<(), VerbsError> {
        let tenant = self.apps.get_mut(app).filter(|a| !a.leaving).ok_or(VerbsError::NoSuch("application"))?;
        tenant.pool.check_chunk(chunk, ring_bytes, &region).map_err(|e| chunk_error(e, ring_bytes, &region))?;
        let access = match kind {
            ChunkKind::Tx => Access::empty(),
            ChunkKind::Rx => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        };
        let mr = nic.reg_mr(&region, 0, region.len(), access)?;
        self.ring_mrs += 1;
        self.ring_mr_bytes += region.len();
        tenant.pool.add_chunk(chunk, kind, ring_bytes, region, mr);
        self.serve_rings(app, ring_bytes);
        Ok(())
    }

    /// The chunks of [`Event::ChunksWanted`] cannot be had: who waits for them is refused with `reason`.
    pub fn chunks_refused(&mut self, app: AppId, ring_bytes: u32, reason: Reason) {
        let Some(tenant) = self.apps.get_mut(app) else { return };
        for waiter in tenant.pool.refuse(ring_bytes) {
            self.refuse_waiter(waiter, reason);
        }
    }

    /// The application could not take a chunk, since it may open no more descriptors. Connections and sockets in it
    /// end, for this one and their peers to hear why; the chunk is used for no other. What it says of a chunk that it
    /// has costs it its own connections.
    pub fn chunk_not_taken<P: Provider>(&mut self, now: Time, _nic: &mut P, app: AppId, chunk: u32) {
        self.now = now;
        let Some(tenant) = self.apps.get_mut(app).filter(|a| !a.leaving) else { return };
        let mut retired = Vec::new();
        tenant.pool.close_chunk(chunk, &mut retired);
        self.retired.extend(retired.into_iter().map(|r| (app, r)));
        let routes: Vec<RouteId> = tenant.routes().collect();
        let sockets: Vec<_> = tenant.sockets.iter().copied().collect();
        for route in routes {
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            if vqp.tx_place.chunk_number != chunk && vqp.rx_place.chunk_number != chunk {
                continue;
            }
            if let Phase::Opening(Some(connect)) = vqp.phase {
                self.fail_opening(connect, Reason::AppDescriptors);
                continue;
            }
            vqp.close.on_abort(Reason::PeerAppDescriptors);
            vqp.close.on_app_released();
            self.update(route);
        }
        for socket in sockets {
            self.release_socket_in(socket, chunk);
        }
    }

    fn refuse_waiter(&mut self, waiter: Waiter, reason: Reason) {
        match waiter {
            Waiter::Connect(id) => self.finish_connect(id, Err(reason)),
            Waiter::Open(id) => self.refuse_parked(id, reason),
            Waiter::Bind(id) => self.refuse_bind(id, reason),
        }
    }

    /// Asks the daemon for rings if somebody waits and nothing was asked; refuses all if there can be none.
    pub(crate) fn ask_for_rings(&mut self, app: AppId, ring_bytes: u32) {
        let Some(tenant) = self.apps.get_mut(app) else { return };
        match tenant.pool.ask(ring_bytes) {
            Ok(Some(rings)) => self.events.push_back(Event::ChunksWanted { app, ring_bytes, rings }),
            Ok(None) => {}
            Err(()) => self.chunks_refused(app, ring_bytes, Reason::LocalLimit),
        }
    }

    /// Rings became free: who waited goes on, in order.
    pub(crate) fn serve_rings(&mut self, app: AppId, ring_bytes: u32) {
        while let Some(waiter) = self.apps.get_mut(app).and_then(|a| a.pool.next_served(ring_bytes)) {
            match waiter {
                Waiter::Connect(id) => self.serve_connect(id),
                Waiter::Open(id) => self.serve_open(id),
                Waiter::Bind(id) => self.serve_bind(id),
            }
        }
        self.ask_for_rings(app, ring_bytes);
    }

    // ---- departures

    /// A connect, parked open or bind of an application waits, the first two for a connection with a far end.
    pub(crate) fn start_waiting(&mut self, app: AppId, far: Option<Far>) {
        self.waiting += 1;
        if let Some(tenant) = self.apps.get_mut(app) {
            tenant.waiting += 1;
            self.users.add_connection(tenant.uid, far);
        }
    }

    /// One of them waits no more.
    pub(crate) fn stop_waiting(&mut self, app: AppId, far: Option<Far>) {
        self.waiting -= 1;
        if let Some(tenant) = self.apps.get_mut(app) {
            tenant.waiting -= 1;
            self.users.drop_connection(tenant.uid, far);
        }
        self.note_departure(app);
    }

    /// Remembers an application of which nothing is in use any more.
    pub(crate) fn note_departure(&mut self, app: AppId) {
        if self.apps.get(app).is_some_and(App::is_gone) {
            self.gone.push(app);
        }
    }

    fn dereg_chunk<P: Provider>(&mut self, nic: &mut P, retired: &Retired) {
        self.ring_mrs = self.ring_mrs.saturating_sub(1);
        self.ring_mr_bytes = self.ring_mr_bytes.saturating_sub(retired.bytes);
        self.dereg(nic, retired.mr);
    }

    /// Deregisters what nobody uses any more. Says whether there was anything.
    pub(crate) fn run_departures<P: Provider>(&mut self, nic: &mut P) -> bool {
        let worked = !self.retired.is_empty() || !self.gone.is_empty();
        while let Some((app, retired)) = self.retired.front_mut() {
            let app = *app;
            // An application that is in no call of the library unmaps the chunk at its next one; its pages go now.
            let stays = self.apps.get(app).is_some_and(|a| !a.leaving);
            let left = retired.bytes - retired.emptied;
            if stays && left > 0 && self.rests.is_on() {
                let len = REST_SLICE_BYTES.min(left);
                if nic.try_discard(retired.mr, retired.emptied, len, None).is_err() {
                    self.counters.device_refusals += 1;
                }
                retired.emptied += len;
                break;
            }
            let Some((_, retired)) = self.retired.pop_front() else { break };
            self.dereg_chunk(nic, &retired);
            if stays {
                self.events.push_back(Event::ChunkGone { app, chunk: retired.number });
            }
        }
        for app in std::mem::take(&mut self.gone) {
            if !self.apps.get(app).is_some_and(App::is_gone) {
                continue;
            }
            let Some(mut tenant) = self.apps.remove(app) else { continue };
            self.users.drop_app(tenant.uid);
            for retired in tenant.pool.retire_all() {
                self.dereg_chunk(nic, &retired);
            }
            self.events.push_back(Event::AppGone { app });
        }
        worked
    }
}

fn chunk_error(e: ChunkError, ring_bytes: u32, region: &Region) -> VerbsError {
    match e {
        ChunkError::RingBytes => VerbsError::OutOfRange {
            what: "ring size of the chunk",
            value: ring_bytes.into(),
            min: RING_BYTES_MIN.into(),
            max: RING_BYTES_MAX.into(),
        },
        ChunkError::Length => VerbsError::OutOfRange {
            what: "length of the chunk",
            value: region.len(),
            min: ring_bytes.into(),
            max: u64::from(u32::MAX) * u64::from(ring_bytes),
        },
        ChunkError::Duplicate => VerbsError::Busy("number of the chunk"),
        ChunkError::Full => VerbsError::Full { what: "list of chunks", limit: CHUNKS_PER_APP_MAX as u64 },
    }
}
