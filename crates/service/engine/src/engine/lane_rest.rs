//! Lanes at rest: a lane over which nothing goes gives its queue pair up, and gets a new one when something is to be
//! sent.
//!
//! Owns when that happens. It must never let a lane rest while it has something to send, or while it is not known
//! whether everything arrived. Both ends may rest and wake at the same moment: a rest is a reset in which nobody asks
//! for the next round (`reset`), so whatever crosses is told and sent again when the lane goes on.

use verbs::{Provider, Time};

use super::Engine;
use crate::event::Event;
use crate::ids::LaneId;
use crate::lane_at::LaneAt;
use crate::limits::{LANE_REST_TICKS, TIMERS_PER_RUN};

impl Engine {
    /// A lane came up: it is looked at now and then.
    pub(super) fn watch_lane_rest(&mut self, id: LaneId) {
        let Some(after) = self.config.lane_rest_after else { return };
        if self.lanes.get_mut(id).is_some_and(|lane| lane.watch_rest()) {
            self.timers.start_lane_rest(self.now + after / LANE_REST_TICKS, id);
        }
    }

    /// Lanes that nothing uses rest. Says whether there were any to look at.
    pub(super) fn run_lane_rests<P: Provider>(&mut self, nic: &mut P) -> bool {
        let (Some(after), now) = (self.config.lane_rest_after, self.now) else { return false };
        let mut worked = false;
        for _ in 0..TIMERS_PER_RUN {
            let Some(id) = self.timers.due_lane_rest(now) else { break };
            worked = true;
            let is_settling = self.is_lane_settling(id);
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            lane.rest.on_timer();
            let unused = now.saturating_since(lane.rest.used_at());
            if lane.qp.is_up() && lane.is_quiet() && !is_settling && unused >= after / LANE_REST_TICKS {
                if !lane.is_delivered() {
                    if lane.rest.want_flush() {
                        self.lanes.queue(id);
                    }
                } else if unused >= after {
                    let (peer, lane) = (lane.peer(), lane.number());
                    // First, so that a wish for the next queue pair comes after it.
                    self.events.push_back(Event::LaneRests { peer, lane });
                    self.rest_lane(nic, id);
                } else if let Some((mr, bytes)) = lane.take_idle_frames() {
                    // A device that pins memory keeps the pages, and says so.
                    let _ = nic.try_discard(mr, 0, bytes, None);
                }
            }
            self.watch_lane_rest(id);
        }
        worked
    }

    /// The peer gave the lane's queue pair up because it has nothing to send; so does this end. If this end has something
    /// to send, [`Event::PeerWanted`] follows.
    pub fn lane_rest<P: Provider>(&mut self, now: Time, nic: &mut P, at: impl Into<LaneAt>) {
        self.see(now);
        if let Some(id) = self.lanes.at(at) {
            self.rest_lane(nic, id);
        }
    }

    fn rest_lane<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let is_still = |engine: &Self| engine.lanes.get(id).is_some_and(|l| l.is_quiet() && l.is_delivered());
        let was_still = is_still(self);
        self.handle_arrived(nic, id);
        // What had arrived may have made the lane fail, or may want an answer.
        let Some(lane) = self.lanes.get_mut(id) else { return };
        if !lane.qp.exists() {
            if !lane.rest.is_resting() {
                lane.forgive_reset();
            }
            // It was reset here at the same moment. The daemon may take that word for one of an older round, since for
            // it the lane rests already: the wish for the next round is said again.
            if lane.dialing.is_wanted() {
                self.events.push_back(Event::PeerWanted { peer: lane.peer(), lane: lane.number() });
            }
            return;
        }
        let stays = was_still && lane.is_quiet();
        self.counters.lane_rests += 1;
        self.destroy_lane_qp(nic, id);
        self.keep_connections(id, true);
        if !stays {
            self.wake_lane(id);
        }
        let frames = self.lanes.get_mut(id).and_then(|lane| lane.take_frames());
        if let Some(frames) = frames {
            self.dereg(nic, frames.mr);
        }
        for mr in self.lanes.get_mut(id).map(|lane| lane.on.take_idle_memory()).into_iter().flatten() {
            self.dereg(nic, mr);
        }
    }

    /// Something is to be sent over a lane: if it rests, the daemons make its next queue pair.
    pub(super) fn wake_lane(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(id).filter(|lane| lane.rest.is_resting()) else { return };
        if lane.want() {
            self.events.push_back(Event::PeerWanted { peer: lane.peer(), lane: lane.number() });
        }
    }
}
