//! Decides whether the daemon dials another host.
//!
//! Owns the only place where a dial begins. It must never dial a host for an application that the operator does not
//! allow, and never more hosts at a time for a user than its share.

use std::net::IpAddr;

use control::Reason;

use super::Engine;
use crate::event::Event;
use crate::ids::{AppId, LaneId};

impl Engine {
    /// Whether an application may have a way to another host: the operator allows the host, to it and at all, and if the
    /// daemon has to dial, that is within its user's share.
    pub(super) fn check_way(&mut self, app: AppId, host: IpAddr) -> Result<(), Reason> {
        let Some(asker) = self.apps.get(app) else { return Err(Reason::AppFault) };
        let uid = asker.uid();
        if !self.config.allows(host) || !asker.may_reach(host) {
            return Err(Reason::Policy);
        }
        let known = self.lanes.to(host).and_then(|id| self.lanes.get(id));
        if known.is_some_and(|lane| lane.qp.exists() || lane.dialing.is_wanted() || lane.rest.is_resting()) {
            return Ok(());
        }
        let lanes = &self.lanes;
        self.dials.check(uid, |id| lanes.get(id).is_some_and(|l| l.dialing.is_wanted()))
    }

    /// The daemon dials the host for a datagram, unless it did so in vain a short while ago.
    pub(super) fn want_link_in_passing(&mut self, id: LaneId, uid: u32) {
        if self.lanes.get(id).is_some_and(|lane| lane.dialing.may_redial(self.now)) {
            self.want_link(id, uid);
        }
    }

    /// The daemon dials the host for an application of this user, unless it does or has already.
    pub(super) fn want_link(&mut self, id: LaneId, uid: u32) {
        if let Some(lane) = self.lanes.get_mut(id)
            && lane.want()
        {
            self.dials.add(uid, id);
            self.events.push_back(Event::PeerWanted { peer: lane.peer(), lane: lane.number() });
        }
    }
}
