//! Streams of bulk, and conversations, for which the daemons make TCP connections (docs/inside/kernel-tcp.md).
//!
//! Owns what the daemon learns of such a stream, and how long its writer is held back. It must never name a connection of another peer, or
//! one of messages that may be lost.

use std::net::IpAddr;

use control::Kind;
use verbs::{Time, Wire};

use super::Engine;
use crate::config::EngineConfig;
use crate::event::{BulkStream, Event};
use crate::ids::{LaneId, RouteId};
use crate::lane::Lane;
use crate::limits::{BULK_BYTES, HOLD_BYTES_FAR, HOLD_FOR, HOLDS_PER_RUN};
use crate::vqp::bulk::BulkFrom;
use crate::vqp::{Phase, Vqp};

/// Bytes came on a connection: whether it is to have a TCP connection of its own, from now on. Messages are if they are a
/// conversation's; many of them go over the lane.
#[inline]
pub(super) fn asks_for_own(vqp: &mut Vqp, bytes: u32, config: &EngineConfig, lane: Option<&Lane>, now: Time) -> bool {
    if vqp.bulk.is_told() {
        return false;
    }
    let is_stream = vqp.kind() == Kind::Stream;
    let turns = config.conversation_turns;
    let from = if is_stream {
        BulkFrom::of_stream(config.bulk_bytes, turns, lane.map_or(1, |lane| lane.members.count()))
    } else {
        BulkFrom::of_messages(turns)
    };
    let is_early = is_stream && lane.is_some_and(Lane::is_early_bulk);
    vqp.bulk.on_arrival(bytes, from, is_early, now, || lane.is_some_and(Lane::has_few))
}

impl Engine {
    /// Much came on a connection without a pause, or it is a conversation.
    #[cold]
    pub(super) fn on_bulk(&mut self, route: RouteId) {
        if let Some(vqp) = self.vqps.get(route)
            && self.may_be_direct(vqp)
            && let Some(stream) = vqp.as_stream()
        {
            self.events.push_back(Event::StreamIsBulk(stream));
        }
    }

    /// Bytes were written here, or read there. Over a long path the sender's engine knows of them, and of the path, before
    /// the reader's.
    #[inline]
    pub(super) fn on_sending(&mut self, route: RouteId) {
        if let Some(vqp) = self.vqps.get_mut(route)
            && !vqp.bulk.is_told()
            && vqp.kind() == Kind::Stream
            && let Some(lane) = vqp.place.lane()
            && self.lanes.get(lane).is_some_and(Lane::is_early_bulk)
        {
            vqp.bulk.forget();
            self.on_bulk(route);
        }
    }

    fn may_be_direct(&self, vqp: &Vqp) -> bool {
        let lane = vqp.place.lane().and_then(|lane| self.lanes.get(lane));
        // Where RoCEv2 carries the lane, somebody asked for that.
        self.config.tells_bulk
            && lane.and_then(|l| l.qp.wire()) == Some(Wire::Iwarp)
            && !self.tenants.has_rate(vqp.app())
    }

    /// Whether a stream wrote little, and may get a TCP connection of its own: what its ring holds at the switch still goes
    /// over the lane, and the rest waits behind it. The looks at what rests find one that stands still.
    pub(super) fn may_leave_soon(&self, vqp: &Vqp) -> bool {
        let [written, _] = vqp.put_in();
        vqp.kind() == Kind::Stream
            && written < BULK_BYTES
            && self.rests.finds_what_stands_still()
            && self.may_be_direct(vqp)
    }

    /// A connection opens. Over a path that may be long, the writer of a stream keeps little in its ring for a while.
    pub(super) fn hold_if_far(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get(route) else { return };
        if vqp.kind() == Kind::Stream
            && self.may_be_direct(vqp)
            && vqp.place.lane().and_then(|lane| self.lanes.get(lane)).is_some_and(Lane::may_be_far)
        {
            vqp.slot.hold(HOLD_BYTES_FAR);
            self.holds.push_back((self.now + HOLD_FOR, route));
        }
    }

    /// Writers are held back no longer: perhaps no connection comes, and each end waits until the other reads; or the path
    /// is not long, and only the first time seemed so, which may have been that of a loss. Whether there were any.
    pub(super) fn end_holds(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..HOLDS_PER_RUN {
            let Some(&(until, route)) = self.holds.front() else { break };
            let vqp = self.vqps.get(route);
            let lane = vqp.and_then(|vqp| self.lanes.get(vqp.place.lane()?));
            if until > self.now && lane.is_some_and(Lane::may_be_far) {
                break;
            }
            self.holds.pop_front();
            worked = true;
            if let Some(vqp) = vqp {
                vqp.slot.hold(0);
                let at = vqp.at();
                self.notify(at);
            }
        }
        worked
    }

    /// The stream that a peer names by a route of this host, if both ends know each other. None of a tenant with a rate:
    /// nobody counts what leaves on a connection of its own.
    pub fn stream_of_route(&mut self, peer: IpAddr, route: u32) -> Option<BulkStream> {
        let lane: LaneId = self.lanes.to(peer)?;
        let route = self.vqps.named(route);
        let vqp = self.vqps.on_lane(lane, route)?;
        if self.tenants.has_rate(vqp.app()) { None } else { vqp.as_stream() }
    }
}

impl Vqp {
    /// What the daemon has to know to give the stream a TCP connection. None: it is none, or is ending.
    pub(crate) fn as_stream(&self) -> Option<BulkStream> {
        let is_open = self.phase() == Phase::Open && !self.is_reset() && !self.is_app_released();
        (is_open && matches!(self.kind(), Kind::Stream | Kind::Message)).then(|| BulkStream {
            app: self.app(),
            connection: self.id(),
            slot: self.at().slot,
            peer: self.peer_ip(),
            peer_route: self.peer_route(),
        })
    }
}
