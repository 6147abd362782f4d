//! Rings that grow: memory for them, and what peers say about it.
//!
//! Owns the counting of a ring's further bytes. It must never let a ring grow that its application's memory has no room
//! for.

use super::Engine;
use crate::ids::{LaneId, RouteId};
use crate::violation::Violation;

impl Engine {
    /// A connection's transmit ring may be full. Where rings hold much it is to be so for a while, as is that of a stream
    /// that may soon leave the lane.
    pub(super) fn grow(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get(route) else { return };
        let full_since = (self.rests.holds_much() || self.may_leave_soon(vqp)).then_some(self.now);
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        if !vqp.is_growth_due(full_since) {
            return;
        }
        let app = vqp.app();
        let (left, _) = self.rings_left(app);
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        let Some(tenant) = self.apps.get_mut(app) else { return };
        if tenant.pool.grow(&vqp.rings().tx, left) {
            vqp.ask_to_grow();
        } else {
            vqp.stay_small();
        }
    }

    /// The peer asks for a larger receive ring.
    pub(super) fn on_grow(&mut self, id: LaneId, route: u32) -> Result<(), Violation> {
        let key = self.vqps.named(route);
        let Some(vqp) = self.open_vqp(id, route)? else { return Ok(()) };
        if vqp.on_grow()? {
            let (app, place) = (vqp.app(), vqp.rings().rx);
            let (left, _) = self.rings_left(app);
            let allowed = self.apps.get_mut(app).is_some_and(|tenant| tenant.pool.grow(&place, left));
            if let Some(vqp) = self.vqps.get_mut(key) {
                vqp.answer_growth(allowed);
            }
        }
        self.update(key);
        Ok(())
    }

    /// The peer has, or has not, a larger receive ring.
    pub(super) fn on_grow_answer(&mut self, id: LaneId, route: u32, allowed: bool) -> Result<(), Violation> {
        let key = self.vqps.named(route);
        let Some(vqp) = self.open_vqp(id, route)? else { return Ok(()) };
        let (app, place, at) = (vqp.app(), vqp.rings().tx, vqp.at());
        if vqp.on_grow_answer(allowed)? {
            self.counters.rings_grown += 1;
            // There is more room than the application knows.
            self.notify(at);
        } else if let Some(tenant) = self.apps.get_mut(app) {
            tenant.pool.shrink(&place);
        }
        self.update(key);
        Ok(())
    }
}
