//! What engines say of lanes.

use std::net::IpAddr;

use control::Reason;
use verbs::Time;

use super::Daemon;
use crate::LaneAnswer;

impl<F, S> Daemon<F, S> {
    /// The answer to a [`LaneCommand`](crate::LaneCommand).
    pub fn on_answer(&mut self, now: Time, peer: IpAddr, lane: u32, answer: LaneAnswer) {
        self.peers.on_answer(now, peer, lane, answer);
    }

    /// An engine wants its lane to a host.
    pub fn handle_wanted(&mut self, now: Time, peer: IpAddr, lane: u32) {
        self.peers.handle_wanted(now, peer, lane);
    }

    /// An engine gave a lane up.
    pub fn on_lane_failed(&mut self, now: Time, peer: IpAddr, lane: u32, reason: Reason) {
        self.peers.on_lane_failed(now, peer, lane, reason);
        self.on_lane_gone(now, (peer, lane), reason);
    }

    /// An engine gave a lane's queue pair up, and keeps its connections.
    pub fn on_lane_reset(&mut self, now: Time, peer: IpAddr, lane: u32) {
        self.peers.on_lane_reset(now, peer, lane);
    }

    /// The same, because nothing used it.
    pub fn on_lane_rests(&mut self, now: Time, peer: IpAddr, lane: u32) {
        self.peers.on_lane_rests(now, peer, lane);
    }
}
