//! What the control planes ask the engines about lanes, and what the engines say of them.

use control::Reason;
use engine::{LaneAt, LanePath};
use plane::{LaneAnswer, LaneCommand, LinkPath, Refusal};
use verbs::VerbsError;

use super::World;
use crate::address::{At, address, is_shared};
use crate::links::Input;

impl World {
    /// The engine takes a command about a lane.
    pub(super) fn execute_for_lane(&mut self, at: At, lane: u32, command: LaneCommand) {
        let (now, host) = (self.now, at.host);
        let named = |peer| LaneAt::new(peer, lane);
        let Some(driven) = self.driven(at) else { return };
        let (engine, tap) = (&mut driven.engine, &mut driven.tap);
        let answer = match command {
            LaneCommand::Offer { peer, round, path } => {
                driven.given_up.remove(&named(peer));
                let path = path.map(|LinkPath { own, peer }| LanePath { own, peer });
                let result = engine.lane_offer_over(tap, named(peer), path);
                let result = result.map_err(|error| self.refusal(at, named(peer), &error, Reason::LocalLimit));
                Some((peer, LaneAnswer::Offered { round, result }))
            }
            LaneCommand::Accept { peer, round, offer } => {
                let result = engine.lane_accept(tap, named(peer), &offer);
                let result = result.map_err(|error| self.refusal(at, named(peer), &error, Reason::LaneFailed));
                Some((peer, LaneAnswer::Accepted { round, result }))
            }
            LaneCommand::TellRoutes { peer, round } => {
                let routes = engine.lane_routes(named(peer));
                let done = routes.is_none() && engine.lane_goes_on(named(peer));
                Some((peer, LaneAnswer::RoutesTold { round, routes, done }))
            }
            LaneCommand::TakeRoutes { peer, round, routes } => {
                let result = engine.lane_take_routes(now, tap, named(peer), &routes);
                let result = result.map(|()| engine.lane_goes_on(named(peer)));
                if let Err(detail) = &result
                    && !driven.given_up.contains(&named(peer))
                {
                    self.checks.fail(now, "unexplained", format!("host {host} cannot go on with {peer}: {detail}"));
                }
                Some((peer, LaneAnswer::RoutesTaken { round, result }))
            }
            LaneCommand::Reset { peer } => {
                engine.lane_reset(now, tap, named(peer));
                if let Some(other) = self.host_of_shared(named(peer)) {
                    self.checks.causes.on_lane_reset(now, host, other);
                }
                self.on_lane_waits(at, named(peer));
                None
            }
            LaneCommand::Rest { peer } => {
                engine.lane_rest(now, tap, named(peer));
                if let Some(other) = self.host_of_shared(named(peer)) {
                    self.checks.causes.on_lane_reset(now, host, other);
                }
                None
            }
            LaneCommand::Ready { peer } => {
                engine.lane_ready(now, tap, named(peer));
                self.trace.note(now, "lane {} to {} is up", &[host as u64, u64::from(last_byte(peer))]);
                self.on_lane_settled(at, named(peer));
                None
            }
            LaneCommand::Lost { peer, reason } => {
                engine.lane_lost(now, tap, named(peer), reason);
                self.on_lane_lost(at, named(peer), reason);
                None
            }
            LaneCommand::PeerSilent { peer, silent } => {
                engine.peer_silent(now, peer, silent);
                None
            }
        };
        if let Some((peer, answer)) = answer {
            self.after_engine(at);
            self.tell_plane(host, Input::Answer { peer, lane, answer });
        }
    }

    /// An engine refuses a lane only if its table of lanes is full, or if it gave the lane up while the command came;
    /// and a leased one whose handle is over.
    fn refusal(&mut self, at: At, lane: LaneAt, error: &VerbsError, otherwise: Reason) -> Refusal {
        let (host, crossed) = (at.host, self.driven(at).is_some_and(|driven| driven.given_up.contains(&lane)));
        let is_over = lane.leased.is_some() && matches!(error, VerbsError::NoSuch(_));
        if !crossed && !is_over && !matches!(error, VerbsError::Full { what: "table of lanes", .. }) {
            self.checks.fail(self.now, "unexplained", format!("host {host} refuses a lane: {error}"));
        }
        Refusal::of_lane(error, otherwise)
    }

    // ---- what the engine says

    /// The engine wants a lane.
    pub(super) fn on_lane_wanted(&mut self, at: At, peer: std::net::IpAddr, lane: u32) {
        let host = at.host;
        if self.host_at(peer).is_none() {
            return self.checks.fail(self.now, "set-up", format!("host {host} wants {peer}"));
        }
        self.on_lane_waits(at, LaneAt::new(peer, lane));
        self.tell_plane(host, Input::Wanted { peer, lane });
    }

    /// The engine gave a lane up by itself.
    pub(super) fn on_lane_failed(
        &mut self,
        at: At,
        (peer, lane): (std::net::IpAddr, u32),
        reason: Reason,
        detail: &str,
    ) {
        let (now, host) = (self.now, at.host);
        self.trace.text(now, || format!("lane {host} to {peer} failed: {detail}"));
        self.on_given_up(at, LaneAt::new(peer, lane));
        self.tell_plane(host, Input::LaneFailed { peer, lane, reason });
        let Some(other) = self.host_at(peer) else { return };
        let ends = [Reason::Closed, Reason::LaneRevoked, Reason::PeerLost];
        let is_leased = lane >= control::LEASED_LANE_FIRST;
        let is_explained = if is_leased && ends.contains(&reason) {
            true
        } else if reason == Reason::Closed {
            self.explains_room(at, other)
        } else {
            detail.contains("after too many resets") && self.checks.causes.explains_lane_failure(now, host, other)
        };
        if !is_explained {
            let detail = format!("lane of {host} to {other} failed: {detail}");
            self.checks.fail(now, "unexplained", detail);
        }
        if is_leased {
            return;
        }
        self.checks.causes.on_lane_lost(now, host, other, reason);
        self.checks.links.on_settled(at, other);
    }

    /// Whether a lane could make room for another host's: there are fewer than hosts, and another one has its place.
    /// That nothing used it is judged by the checkers of streams and connects: neither takes `closed` for a cause.
    fn explains_room(&mut self, at: At, peer: usize) -> bool {
        let lanes_max = self.plan.hosts[at.host].lanes_max as usize;
        let is_short = lanes_max < self.plan.hosts.len() - 1;
        let Some(driven) = self.driven(at) else { return false };
        let lanes: Vec<_> = driven.engine.lanes().into_iter().filter(is_shared).collect();
        let has_other = lanes.len() == lanes_max && lanes.iter().all(|lane| lane.peer.ip() != address(peer));
        is_short && has_other
    }

    /// The engine gave a lane's queue pair up by itself, and keeps its connections.
    pub(super) fn on_lane_reset(&mut self, at: At, (peer, lane): (std::net::IpAddr, u32), detail: String) {
        let (now, host) = (self.now, at.host);
        self.trace.text(now, || format!("lane {host} to {peer} is reset: {detail}"));
        let named = LaneAt::new(peer, lane);
        // The owner of a leased one ends it without a word to the device at this end.
        if let Some(other) = self.host_of_shared(named) {
            if !self.checks.causes.explains_lane_reset(now, host, other, &detail) {
                let detail = format!("lane of {host} to {other} was reset: {detail}");
                self.checks.fail(now, "unexplained", detail);
            }
            self.checks.causes.on_lane_reset(now, host, other);
        }
        self.on_given_up(at, named);
        self.on_lane_waits(at, named);
        self.tell_plane(host, Input::LaneReset { peer, lane });
    }

    /// The engine gave a lane's queue pair up because nothing used it.
    pub(super) fn on_lane_rests(&mut self, at: At, peer: std::net::IpAddr) {
        let (now, host) = (self.now, at.host);
        self.trace.text(now, || format!("lane {host} to {peer} rests"));
        let Some(other) = self.host_at(peer) else { return };
        self.checks.causes.on_lane_reset(now, host, other);
        self.on_given_up(at, peer.into());
        self.tell_plane(host, Input::LaneRests { peer, lane: at.engine });
    }

    /// The engine has no queue pair for a lane until the control plane asks for the next one.
    fn on_given_up(&mut self, at: At, lane: LaneAt) {
        if let Some(driven) = self.driven(at) {
            driven.given_up.insert(lane);
        }
    }

    /// The host that a shared lane goes to. Connections depend on no other lane.
    fn host_of_shared(&self, lane: LaneAt) -> Option<usize> {
        lane.leased.is_none().then(|| self.host_at(lane.peer)).flatten()
    }

    // ---- what the checkers hear

    fn on_lane_waits(&mut self, at: At, lane: LaneAt) {
        let Some(other) = self.host_of_shared(lane) else { return };
        self.checks.links.on_waits(self.now, at, other);
    }

    fn on_lane_settled(&mut self, at: At, lane: LaneAt) {
        let Some(other) = self.host_of_shared(lane) else { return };
        self.checks.links.on_settled(at, other);
    }

    fn on_lane_lost(&mut self, at: At, lane: LaneAt, reason: Reason) {
        let (now, host) = (self.now, at.host);
        let Some(other) = self.host_of_shared(lane) else { return };
        self.trace.note(now, "lane {} to {} is lost, {}", &[host as u64, other as u64, reason.code().into()]);
        self.checks.on_lane_lost(now, (host, other), reason);
        self.checks.links.on_settled(at, other);
    }
}

fn last_byte(ip: std::net::IpAddr) -> u8 {
    match ip {
        std::net::IpAddr::V4(v4) => v4.octets()[3],
        std::net::IpAddr::V6(v6) => v6.octets()[15],
    }
}
