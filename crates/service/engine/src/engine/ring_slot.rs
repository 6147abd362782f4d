//! Slots without a peer, of datagram sockets and operation queues: opened, refused, and given back; and what of that
//! holds for the slots of connections too.
//!
//! Owns the way of rings out of an application's pool and back. It must never lose rings: an opening that fails gives
//! them back.

use std::net::SocketAddr;

use control::{Connection, Reason};
use genslab::GenSlab;
use shm::SlotWords;

use super::Engine;
use crate::app::{App, SlotUse};
use crate::apps::Apps;
use crate::event::Event;
use crate::ids::{AppId, SlotAt};
use crate::ring_size::RingSize;
use crate::ring_slot::{NewRingSlot, RingSlot, SlotRequest};
use crate::ringpool::{RingPair, Waiter};
use crate::table::Key;

/// A table of what has ring slots, and how something comes into it.
pub(super) struct SlotTable<K, T> {
    /// The applications, beside which the table is changed, and the table.
    pub(super) tables: fn(&mut Engine) -> (&mut Apps, &mut GenSlab<K, T>),
    /// What the slot is used for.
    pub(super) used_by: fn(K) -> SlotUse,
    pub(super) make: fn(RingSlot) -> T,
}

impl<K: Key, T> SlotTable<K, T> {
    /// Opens a slot for something new in the table.
    fn open(
        &self,
        tenant: &mut App,
        table: &mut GenSlab<K, T>,
        request: SlotRequest,
        (local, rings): (SocketAddr, RingPair),
    ) -> Result<(K, Connection), Reason> {
        let memory = |place| tenant.pool.memory(place, request.size.first).ok_or(Reason::LocalLimit);
        let (tx_memory, rx_memory) = (memory(rings.tx)?, memory(rings.rx)?);
        if !tenant.has_slot() || table.is_full() {
            return Err(Reason::LocalLimit);
        }
        let new = NewRingSlot { request, local, rings, tx_memory, rx_memory };
        let mut connection = None;
        let key = table.insert_with(|key| {
            let taken = tenant.take_slot((self.used_by)(key)).expect("a slot is free, as asked above");
            let slot = RingSlot::new(new, taken);
            connection = Some(slot.connection());
            (self.make)(slot)
        });
        key.zip(connection).ok_or(Reason::LocalLimit)
    }
}

impl Engine {
    /// The size of rings of so many bytes each, of at least `min`; 0 for the configured size.
    pub(super) fn ring_slot_size(&self, ring_bytes: u32, min: u32) -> RingSize {
        let asked = if ring_bytes == 0 { 0 } else { ring_bytes.max(min) };
        RingSize::fixed(self.config.ring_bytes(asked))
    }

    /// Opens something with a slot and with these rings, and answers with [`Event::Connected`]. On failure the rings go
    /// back, and the answer is the caller's.
    pub(super) fn open_ring_slot<K: Key, T>(
        &mut self,
        into: &SlotTable<K, T>,
        request: SlotRequest,
        rings: RingPair,
    ) -> Result<K, Reason> {
        let local = SocketAddr::new(self.local_address(), request.port);
        let (apps, table) = (into.tables)(self);
        let tenant = apps.get_mut(request.app).ok_or(Reason::AppFault)?;
        match into.open(tenant, table, request, (local, rings)) {
            Ok((key, connection)) => {
                let SlotRequest { app, request, .. } = request;
                self.events.push_back(Event::Connected { app, request, result: Ok(connection) });
                Ok(key)
            }
            Err(reason) => {
                self.put_back_rings(request.app, rings);
                Err(reason)
            }
        }
    }

    /// Rings for a request. `None`: there are none free.
    pub(super) fn take_rings(&mut self, request: SlotRequest) -> Option<RingPair> {
        self.apps.get_mut(request.app)?.pool.take(request.size)
    }

    /// A request waits for rings.
    pub(super) fn wait_for_rings(&mut self, request: SlotRequest, waiter: Waiter) {
        let SlotRequest { app, size, .. } = request;
        let Some(tenant) = self.apps.get_mut(app) else { return };
        tenant.pool.wait(size, waiter);
        self.start_waiting(app);
        self.ask_for_rings(app, size);
    }

    /// The wait of a request for rings is over: they are there, or will not be. `open` makes something of them.
    pub(super) fn end_wait(
        &mut self,
        request: SlotRequest,
        rings: Result<(), Reason>,
        open: fn(&mut Self, SlotRequest, RingPair) -> Result<(), Reason>,
    ) {
        self.stop_waiting(request.app);
        let rings = rings.and_then(|()| self.take_rings(request).ok_or(Reason::LocalLimit));
        if let Err(reason) = rings.and_then(|rings| open(self, request, rings)) {
            self.refuse_ring_slot(request.app, request.request, request.id, reason);
        }
    }

    /// Nothing comes of a request for a slot with this number.
    pub(super) fn refuse_ring_slot(&mut self, app: AppId, request: u64, id: u64, reason: Reason) {
        self.events.push_back(Event::Connected { app, request, result: Err(reason) });
        self.events.push_back(Event::SocketOver { app, socket: id });
    }

    /// What had this slot is out of its table, and no device touches the rings.
    pub(super) fn free_ring_slot(&mut self, slot: &RingSlot) {
        self.events.push_back(Event::SocketOver { app: slot.at().app, socket: slot.id() });
        self.free_slot(slot.at(), slot.words(), slot.rings(), slot.size());
    }

    /// Frees a slot and its rings, which were allocated as of this size. What waits for such rings goes on.
    pub(super) fn free_slot(&mut self, at: SlotAt, words: &SlotWords, rings: RingPair, allocated: RingSize) {
        let SlotAt { app, slot } = at;
        let Some(tenant) = self.apps.get_mut(app) else { return };
        tenant.put_back_slot(slot, words);
        self.put_back_rings(app, rings);
        self.serve_rings(app, allocated);
        self.apps.note_departure(app);
    }

    /// Rings are free: chunks that are spare go, and pages later.
    pub(super) fn put_back_rings(&mut self, app: AppId, rings: RingPair) {
        let Some(tenant) = self.apps.get_mut(app) else { return };
        let back = tenant.pool.put_back(self.now, rings);
        self.apps.retire(app, back.retired);
        for place in back.used {
            self.rests.free(app, place, self.now);
        }
    }
}
