//! Leased lanes: a queue pair that carries the operations of one program's handles alone (docs/inside/lanes.md).
//!
//! Owns their beginning and their end; when that is, the daemons at both ends say. It must never keep one that a daemon has
//! ended: then nothing that was posted before can reach the region any more.

use std::net::{IpAddr, SocketAddr};

use control::{ConnectionRow, ConnectionState, PathKind, Reason};
use verbs::{Provider, Time};

use super::Engine;
use crate::event::Event;
use crate::ids::{HandleId, LaneId};
use crate::lane::Lane;
use crate::lane_at::LaneAt;
use crate::operations::regions::LeasedHandle;
use crate::page::{Page, Viewer};
use crate::table::Key;

/// The first number of a handle in `raas ss`: above those of connections, below those over kernel TCP.
const FIRST_ROW: u64 = 1 << 51;

impl Engine {
    /// Announces a leased lane, at the host whose region it is for: the peer may have it made, unless it is there already
    /// for another region. False: there is no place for it, or its number is none of a leased lane.
    pub fn expect_leased_lane(&mut self, peer: IpAddr, number: u32) -> bool {
        let at = LaneAt::new(peer, number).canonical();
        let is_new = at.leased.is_some() && self.lanes.at(at).is_none();
        if is_new { self.insert_lane((at.peer, number)).is_some() } else { at.leased.is_some() }
    }

    /// Ends a leased lane at once, as its last handle is over, or the region's owner takes it back: afterwards nothing that
    /// the peer posted on it can land. [`Event::LaneFailed`] follows, with which the daemons tell the other end.
    pub fn end_leased_lane<P: Provider>(&mut self, now: Time, nic: &mut P, at: LaneAt, reason: Reason) {
        self.see(now);
        if let Some(id) = self.lanes.at(at).filter(|_| at.leased.is_some()) {
            self.lose_leased_lane(nic, id, reason);
            let (peer, lane, detail) = (at.peer.to_canonical(), at.leased.unwrap_or_default(), "its handles are over");
            self.events.push_back(Event::LaneFailed { peer, lane, reason, detail: detail.into() });
        }
    }

    /// The queue pair is destroyed, operations end, and the lane is forgotten.
    pub(super) fn lose_leased_lane<P: Provider>(&mut self, nic: &mut P, id: LaneId, reason: Reason) {
        self.handle_arrived(nic, id);
        if self.lanes.get(id).is_some_and(Lane::is_leased) {
            self.sever(nic, id, reason);
            self.free_lane(nic, id);
        }
    }

    /// Handles of this host's programs that have lanes of their own, at `looks` places of their table from `from` on.
    pub fn leased_page(&self, viewer: Viewer, from: u32, looks: u32) -> Page<ConnectionRow> {
        let (live, next) = self.ops.regions.leased_page(from, looks);
        let seen = live.filter(|(_, handle)| self.may_see(viewer, handle.app));
        Page { rows: seen.map(|(place, handle)| (place, self.leased_row(&handle))).collect(), next }
    }

    /// Ports and queues are those of connections: a handle has none.
    fn leased_row(&self, handle: &LeasedHandle) -> ConnectionRow {
        let lane = self.lanes.get(handle.lane);
        let row = lane.map(|lane| lane.row(self.now));
        let state = match lane {
            _ if handle.is_over => ConnectionState::Closing,
            Some(lane) if lane.qp.is_up() => ConnectionState::Established,
            _ => ConnectionState::Connecting,
        };
        ConnectionRow {
            id: FIRST_ROW + u64::from(handle.handle.bits()),
            local: SocketAddr::new(self.local_address(), 0),
            peer: SocketAddr::new(handle.peer, 0),
            state,
            lane: lane.map(Lane::name),
            route_id: None,
            path: PathKind::Leased,
            wire: lane.and_then(|l| l.qp.wire()).map(|wire| wire.to_string()),
            encrypted: row.as_ref().and_then(|row| row.encrypted),
            cipher: row.as_ref().and_then(|row| row.cipher.clone()),
            reason: Reason::LeasedLane,
            verb: None,
            verb_asked: None,
            verb_reason: None,
            tx_bytes: row.as_ref().map_or(0, |row| row.tx_bytes),
            rx_bytes: row.as_ref().map_or(0, |row| row.rx_bytes),
            direct_tx_bytes: 0,
            direct_rx_bytes: 0,
            tx_queued_bytes: 0,
            rx_queued_bytes: 0,
            app_pid: self.apps.pid(handle.app),
        }
    }

    /// What was not done with the handles of a severed leased lane ends: no other queue pair comes on which it could
    /// begin again, also for a handle that its program has closed.
    pub(super) fn end_leased_operations(&mut self, id: LaneId, handles: &[HandleId]) {
        self.abandon_operations(|op| handles.contains(&op.handle));
        self.ops.free_places(id);
    }
}
