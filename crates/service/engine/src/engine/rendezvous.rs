//! Ring data that comes by other verbs than WRITE: copied out of a receive, or fetched by a READ.
//!
//! Owns the way of such bytes into a receive ring, and the registrations by which peers may read transmit rings. It must
//! never let a peer read a ring whose connection did not choose that.

use shm::waiting;
use verbs::{Access, Provider, RemoteAddr};

use super::Engine;
use super::direct::asks_for_own;
use crate::choice::Load;
use crate::ids::{LaneId, RouteId};
use crate::immediate::Immediate;
use crate::violation::Violation;
use crate::vqp::rendezvous::LendKey;

impl Engine {
    /// How busy this host is, for the choice of verbs here and at the peers. To be said now and then.
    pub fn set_load(&mut self, load: Load) {
        self.load = load;
    }

    /// Ring data arrived by SEND.
    pub(super) fn on_sent_data(&mut self, id: LaneId, imm: u32, entry: u32, bytes: u32) -> Result<(), Violation> {
        let immediate = Immediate::from_bits(imm).ok_or(Violation::Operation(imm))?;
        if immediate.bytes_before != 0 {
            return Err(Violation::SendUnits(imm));
        }
        let route = self.vqps.named(immediate.route);
        let vqp = self.vqps.on_lane(id, route).ok_or(Violation::DataRoute(imm))?;
        let at = match vqp.on_send(bytes) {
            Err(_) if vqp.is_spoiled() => return Ok(()),
            other => other?,
        };
        let data = &mut self.scratch.frame_in;
        if !self.recv.read(entry, bytes, data) {
            return Err(Violation::FrameLength(bytes));
        }
        let is_written = self.apps.get(vqp.app()).is_some_and(|app| app.pool.write(&vqp.rings().rx, at, data));
        if !is_written {
            // The ring is there as long as its connection; its pages may not be.
            let app = vqp.app();
            self.on_app_fault(app, &"a page of its receive ring cannot be had");
            return Ok(());
        }
        vqp.on_copied(bytes);
        self.counters.sends_received += 1;
        self.note_arrival(id, route, bytes);
        Ok(())
    }

    /// Bytes are in a receive ring: the application has news.
    fn note_arrival(&mut self, id: LaneId, route: RouteId, bytes: u32) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        self.rests.touch(vqp, route, self.now);
        let (at, awaited) = (vqp.at(), vqp.slot.is_awaited(waiting::READABLE));
        if asks_for_own(vqp, bytes, &self.config, self.lanes.get(id), self.now) {
            self.on_bulk(route);
        }
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.on_received(bytes, self.now);
        }
        self.counters.data_bytes += u64::from(bytes);
        self.apps.mark(at, awaited);
    }

    // ---- READs

    /// The peer lends its transmit ring.
    pub(super) fn on_ready(&mut self, id: LaneId, route: u32, end: u64, ring: RemoteAddr) -> Result<(), Violation> {
        let Some(vqp) = self.open_vqp(id, route)? else { return Ok(()) };
        vqp.on_ready(end, ring)?;
        let key = self.vqps.named(route);
        let takes_none = self.lanes.get(id).is_none_or(|lane| lane.one_sided.takes_no_reads());
        if takes_none {
            // The peer knows it from the offer.
            return Err(Violation::NoReads);
        }
        self.update(key);
        Ok(())
    }

    /// The peer reads no more.
    pub(super) fn on_pulled(&mut self, id: LaneId, route: u32, end: u64) -> Result<(), Violation> {
        let Some(vqp) = self.open_vqp(id, route)? else { return Ok(()) };
        vqp.on_pulled(end)?;
        let key = self.vqps.named(route);
        self.update(key);
        Ok(())
    }

    /// Work requests of a lane are done: READs among them have brought their bytes, and others may be posted.
    pub(super) fn on_pulls_sent(&mut self, id: LaneId, seq: u64) {
        while let Some((route, bytes)) =
            self.lanes.get_mut(id).and_then(|lane| lane.on.connections.pulls.take_done(seq))
        {
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            if vqp.on_pull_done(bytes) {
                self.note_arrival(id, route, bytes);
            }
            self.update(route);
        }
        let lane = self.lanes.get_mut(id).filter(|lane| lane.one_sided.may_read());
        let waiting = lane.map(|lane| lane.on.connections.pulls.take_waiting()).unwrap_or_default();
        for route in waiting {
            if let Some(vqp) = self.vqps.get_mut(route) {
                vqp.wait_to_pull(false);
            }
            self.update(route);
        }
    }

    // ---- registrations

    /// Registers the rings that are to be lent. Says whether there were any.
    pub(super) fn run_lendings<P: Provider>(&mut self, nic: &mut P) -> bool {
        if self.lend_wanted.is_empty() {
            return false;
        }
        for route in std::mem::take(&mut self.lend_wanted) {
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            let place = vqp.rings().tx;
            let Some(tenant) = self.apps.get_mut(vqp.app()) else { continue };
            let mut key = tenant.pool.lend_key(&place);
            if key.is_none()
                && let Some(region) = tenant.pool.region_of(&place)
                && let Ok(mr) = nic.reg_mr(&region, 0, region.len(), Access::REMOTE_READ)
            {
                self.ring_memory.chunks += 1;
                self.ring_memory.bytes += region.len();
                self.ring_memory.lent += 1;
                self.ring_memory.lent_bytes += region.len();
                tenant.pool.set_lent(&place, mr);
                key = Some(mr.rkey);
            }
            vqp.set_lend_key(key.map_or(LendKey::Refused, LendKey::Has));
            self.update(route);
        }
        true
    }
}
