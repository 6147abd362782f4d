//! Lanes at rest: a lane over which nothing goes gives its queue pair up, and gets a new one when something is to be
//! sent.
//!
//! Owns when that happens. It must never let a lane rest while it has something to send, or while it is not known
//! whether everything arrived. An end does not see the peer's READs and WRITEs of regions: it asks the peer (Unused),
//! and the peer rests the lane, unless it used it. Both ends may rest and wake at the same moment: a rest is a reset in
//! which nobody asks for the next round (`reset`), so whatever crosses is told and sent again when the lane goes on.

use std::time::Duration;

use verbs::{Provider, Time};

use super::Engine;
use crate::event::Event;
use crate::ids::LaneId;
use crate::lane::Lane;
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
        let mut worked = false;
        for _ in 0..TIMERS_PER_RUN {
            let Some(id) = self.timers.due_lane_rest(self.now) else { break };
            worked = true;
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.rest.on_timer();
            }
            self.look_at_lane(nic, id);
            self.watch_lane_rest(id);
        }
        worked
    }

    /// If this end does not use the lane, the peer is asked whether it does.
    fn look_at_lane<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let (Some(after), now) = (self.config.lane_rest_after, self.now) else { return };
        let Some(lane) = self.unused_lane(id, after / LANE_REST_TICKS) else { return };
        if now.saturating_since(lane.rest.used_at()) >= after {
            lane.rest.ask(after);
            self.lanes.queue(id);
        } else if let Some((mr, bytes)) = lane.take_idle_frames() {
            // A device that pins memory keeps the pages, and says so.
            let _ = nic.try_discard(mr, 0, bytes, None);
        }
    }

    /// The lane, if it was not used for so long, has nothing to send, and all arrived. What is not known to have arrived is
    /// asked for.
    fn unused_lane(&mut self, id: LaneId, unused: Duration) -> Option<&mut Lane> {
        let is_settling = self.is_lane_settling(id);
        let (lanes, now) = (&mut self.lanes, self.now);
        let is_unused = |l: &Lane| now.saturating_since(l.rest.used_at()) >= unused;
        let is_open = |l: &Lane| l.qp.is_up() && l.is_quiet() && !is_settling && is_unused(l);
        let lane = lanes.get_mut(id).filter(|lane| is_open(lane))?;
        let must_flush = !lane.is_delivered() && lane.rest.want_flush();
        if must_flush {
            lanes.queue(id);
        }
        lanes.get_mut(id).filter(|lane| lane.is_delivered())
    }

    /// The peer has not used the lane for so long. If this end has not either, it rests.
    pub(super) fn on_lane_unused<P: Provider>(&mut self, nic: &mut P, id: LaneId, unused: Duration) {
        if self.unused_lane(id, unused).is_some() {
            self.begin_rest(nic, id);
        }
    }

    /// The queue pair of a lane broke. If the peer had been asked for a rest, and nothing else was under way, this is its
    /// answer: the lane rests. False: it was used.
    pub(super) fn rest_broken_lane<P: Provider>(&mut self, nic: &mut P, id: LaneId) -> bool {
        let is_answer = |l: &Lane| l.qp.is_up() && l.rest.is_asking() && l.is_quiet() && l.is_delivered();
        let rests = self.lanes.get(id).is_some_and(is_answer) && !self.is_lane_settling(id);
        if rests {
            self.begin_rest(nic, id);
        }
        rests
    }

    fn begin_rest<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let Some(lane) = self.lanes.get(id) else { return };
        let (peer, lane) = (lane.peer(), lane.number());
        // First, so that a wish for the next queue pair comes after it.
        self.events.push_back(Event::LaneRests { peer, lane });
        self.rest_lane(nic, id);
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
        // Credits, and what asks the peer for a rest, may be under way, and end with the queue pair.
        let stays = was_still && lane.has_nothing_to_say();
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
