//! Notices: the way of what a writer says to the owner of a region, and of the answer back.
//!
//! Owns the answers. A record that breaks a rule fails its lane alone.

use std::net::IpAddr;

use control::{Reason, RegionAccess, RegionGrant};
use shm::{Notice, OperationStatus};
use verbs::Time;

use crate::engine::Engine;
use crate::ids::{AppId, HandleId, LaneId};
use crate::limits::OPERATIONS_PER_LANE_MAX;
use crate::operations::Outcome;
use crate::operations::answers::{Answer, Said};
use crate::operations::kernels::To;
use crate::operations::regions::Way;
use crate::table::Key;
use crate::violation::Violation;

impl Engine {
    /// A peer wrote to a region of this host, and has its owner told.
    pub(super) fn on_notify(
        &mut self,
        id: LaneId,
        (key, operation): (u32, u32),
        (offset, tag, bytes): (u64, u32, u32),
    ) -> Result<(), Violation> {
        let Some(peer) = self.lanes.get(id).map(|lane| lane.peer()) else { return Ok(()) };
        let to = To::Peer { lane: id, id: operation };
        let notice = Notice { tag, offset, bytes: bytes.into(), from: Some(peer) };
        self.ops.counters.executed += 1;
        match self.ops.owned.may_notify(peer, key, offset, bytes)? {
            Some(region) => self.ops.tell_owner(region, notice, to, self.now),
            // It is being taken from the peer, which hears of that.
            None => self.answer_notice(to, Outcome::of(OperationStatus::NotificationsFull, 0)),
        }
        self.answer_notices();
        Ok(())
    }

    /// A program of this host has a region of this host mapped, and may write it: by the handle that this is it has the
    /// owner told, until [`Engine::close_region`]. It has no epoch.
    pub fn open_notifier(&mut self, app: AppId, region: u64, bytes: u64) -> Result<u32, Reason> {
        self.apps.get_here(app).ok_or(Reason::AppFault)?;
        let (access, epoch) = (RegionAccess::WRITE, 0);
        let grant = RegionGrant { region, epoch, bytes, access, rkey: 0, addr: 0, last_term: 0 };
        let handle = self.ops.regions.open(app, self.local_address(), (Way::Mapped, false), grant);
        handle.map(HandleId::bits).ok_or(Reason::LocalLimit)
    }

    /// What writers tell the owner of a region, which the program is, goes into this operation queue of the program.
    pub fn notices_into(&mut self, now: Time, app: AppId, region: u64, queue: u64) {
        self.see(now);
        self.ops.notices_into(app, region, queue, self.now);
        self.answer_notices();
    }

    /// Refuses writers that have waited for long. Says whether there were any.
    pub(super) fn run_notices(&mut self) -> bool {
        if self.ops.notices.deadline().is_none_or(|at| at > self.now) {
            return false;
        }
        self.ops.notices.expire(self.now);
        self.answer_notices();
        true
    }

    /// The application of a queue that may be for notices rang.
    pub(super) fn fill_ring(&mut self, ring: crate::ids::QueueId) {
        self.ops.fill_ring(ring, self.now);
        self.answer_notices();
    }

    /// A region ended.
    pub(super) fn forget_notices(&mut self, region: u64) {
        self.ops.notices.forget(region);
        self.answer_notices();
    }

    /// A peer is about to lose a region.
    pub(super) fn halt_notices(&mut self, region: u64, peer: IpAddr) {
        self.ops.notices.halt(region, peer);
        self.answer_notices();
    }

    pub(super) fn answer_notices(&mut self) {
        for (to, outcome) in self.ops.notices.take_answered() {
            self.answer_notice(to, outcome);
        }
    }

    fn answer_notice(&mut self, to: To, outcome: Outcome) {
        let is_told = outcome.status == OperationStatus::Ok;
        let (id, operation) = match to {
            To::Peer { lane, id } => (lane, id),
            To::Program { request, .. } => return self.ops.on_told_here(request, outcome),
        };
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let value = if is_told { 0 } else { outcome.detail };
        let said = Said::Executed { status: outcome.status, value };
        if lane.on.operations.answers.owe(Answer { id: operation, said }).is_err() {
            self.counters.violations += 1;
            return self.lanes.fail(id, Violation::TooManyOperations(OPERATIONS_PER_LANE_MAX).to_string());
        }
        self.wake_lane(id);
        self.lanes.queue(id);
    }
}
