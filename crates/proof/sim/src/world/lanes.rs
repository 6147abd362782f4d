//! What the control planes ask the engines about lanes, and what the engines say of them.

use std::net::IpAddr;

use control::Reason;
use dispatch::Report;
use engine::LaneAt;
use plane::{LaneAnswer, LaneCommand, Refusal};

use super::World;
use crate::address::{At, address, is_shared};

impl World {
    /// An engine has taken a command about a lane, and says this.
    pub(super) fn on_lane_command(&mut self, (at, lane): (At, u32), command: &LaneCommand, report: Option<&Report>) {
        let (now, host) = (self.now, at.host);
        let named = |peer: &IpAddr| LaneAt::new(*peer, lane);
        if let Some(Report::Lane { peer, answer, .. }) = report {
            self.judge_answer(at, named(peer), answer);
        }
        match command {
            LaneCommand::Reset { peer } | LaneCommand::Rest { peer } => {
                if let Some(other) = self.host_of_shared(named(peer)) {
                    self.checks.causes.on_lane_reset(now, host, other);
                }
                if let LaneCommand::Reset { .. } = command {
                    self.on_lane_waits(at, named(peer));
                }
            }
            LaneCommand::Ready { peer } => {
                self.trace.note(now, "lane {} to {} is up", &[host as u64, u64::from(last_byte(*peer))]);
                self.on_lane_settled(at, named(peer));
            }
            LaneCommand::Lost { peer, reason } => self.on_lane_lost(at, named(peer), *reason),
            _ => {}
        }
    }

    /// An engine refuses a lane only if its table of lanes is full, or if it gave the lane up while the command came;
    /// and a leased one whose handle is over.
    fn judge_answer(&mut self, at: At, lane: LaneAt, answer: &LaneAnswer) {
        let host = at.host;
        let crossed = self.driven(at).is_some_and(|driven| driven.given_up.contains(&lane));
        match answer {
            LaneAnswer::Offered { result: Err(Refusal { detail, .. }), .. }
            | LaneAnswer::Accepted { result: Err(Refusal { detail, .. }), .. } => {
                let is_over = lane.leased.is_some() && detail.starts_with("no such");
                if !crossed && !is_over && !detail.contains("table of lanes") {
                    self.checks.fail(self.now, "unexplained", format!("host {host} refuses a lane: {detail}"));
                }
            }
            LaneAnswer::RoutesTaken { result: Err(detail), .. } if !crossed => {
                let detail = format!("host {host} cannot go on with {}: {detail}", lane.peer);
                self.checks.fail(self.now, "unexplained", detail);
            }
            _ => {}
        }
    }

    // ---- what the engine says

    /// The engine wants a lane.
    pub(super) fn on_lane_wanted(&mut self, at: At, peer: IpAddr, lane: u32) {
        if self.host_at(peer).is_none() {
            self.checks.fail(self.now, "set-up", format!("host {} wants {peer}", at.host));
        }
        self.on_lane_waits(at, LaneAt::new(peer, lane));
    }

    /// The engine gave a lane up by itself.
    pub(super) fn on_lane_failed(&mut self, at: At, (peer, lane): (IpAddr, u32), reason: Reason, detail: &str) {
        let (now, host) = (self.now, at.host);
        self.trace.text(now, || format!("lane {host} to {peer} failed: {detail}"));
        self.on_given_up(at, LaneAt::new(peer, lane));
        let Some(other) = self.host_at(peer) else { return };
        let ends = [Reason::Closed, Reason::LaneRevoked, Reason::Superseded, Reason::PeerLost];
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
    pub(super) fn on_lane_reset(&mut self, at: At, (peer, lane): (IpAddr, u32), detail: &str) {
        let (now, host) = (self.now, at.host);
        self.trace.text(now, || format!("lane {host} to {peer} is reset: {detail}"));
        let named = LaneAt::new(peer, lane);
        // The owner of a leased one ends it without a word to the device at this end.
        if let Some(other) = self.host_of_shared(named) {
            if !self.checks.causes.explains_lane_reset(now, host, other, detail) {
                let detail = format!("lane of {host} to {other} was reset: {detail}");
                self.checks.fail(now, "unexplained", detail);
            }
            self.checks.causes.on_lane_reset(now, host, other);
        }
        self.on_given_up(at, named);
        self.on_lane_waits(at, named);
    }

    /// The engine gave a lane's queue pair up because nothing used it.
    pub(super) fn on_lane_rests(&mut self, at: At, peer: IpAddr) {
        let (now, host) = (self.now, at.host);
        self.trace.text(now, || format!("lane {host} to {peer} rests"));
        let Some(other) = self.host_at(peer) else { return };
        self.checks.causes.on_lane_reset(now, host, other);
        self.on_given_up(at, peer.into());
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

fn last_byte(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    }
}
