//! The daemons' work for lanes: control links that come and go, and the messages on them.

use std::time::Duration;

use control::{LaneOffer, LaneRoutes, Reason};
use verbs::{Time, VerbsError};

use super::{Event, World};
use crate::host::address;
use crate::links::{Message, Round, Step};

/// A dial to which nobody answers is given up.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before one dials again whom the peer told that a link exists or comes from its side.
const REDIAL: Duration = Duration::from_millis(100);
/// Such dials in a row.
const REDIALS_MAX: u32 = 20;
/// How far ends of a link differ in when they notice a silence.
const SILENCE_JITTER: Duration = Duration::from_secs(1);

impl World {
    // ---- links come

    /// The engine wants a lane.
    pub(super) fn want_lane(&mut self, host: usize, peer: usize) {
        let end = self.links.end(host, peer);
        if end.up.is_some() {
            return self.want_round(host, peer);
        }
        end.wanted = true;
        self.dial(host, peer);
    }

    fn dial(&mut self, host: usize, peer: usize) {
        let number = self.links.number();
        let end = self.links.end(host, peer);
        if end.dial.is_some() || end.up.is_some() {
            return;
        }
        end.dial = Some(number);
        let life = self.life(host);
        self.trace.note(self.now, "host {} dials {}", &[host as u64, peer as u64]);
        if self.network.is_control_cut(host, peer) {
            return self
                .queue
                .push(self.after(DIAL_TIMEOUT), Event::DialFailed { host, life, peer, number, again: false });
        }
        let at = self.now + self.network.link_delay();
        self.queue.push(at, Event::Dial { host, life, peer, number });
    }

    /// A dial of `host` arrives at `peer`.
    pub(super) fn on_dial(&mut self, host: usize, life: u32, peer: usize, number: u64) {
        if self.postpone(peer, Event::Dial { host, life, peer, number }) {
            return;
        }
        let delay = self.network.link_delay();
        let back = self.now + delay;
        let refused = |again| Event::DialFailed { host, life, peer, number, again };
        if self.life(host) != life || self.links.end(host, peer).dial != Some(number) {
            return;
        }
        if self.up(peer).is_none() {
            return self.queue.push(back, refused(false));
        }
        let end = self.links.end(peer, host);
        let known = end.up.is_some();
        // Both dialed: the dial of the host with the lower number goes on.
        if (known && end.peer_life == life) || (end.dial.is_some() && peer < host) {
            return self.queue.push(back, refused(true));
        }
        end.dial = None;
        if known {
            self.end_lost(peer, host, Reason::PeerLost);
        }
        self.link_up(peer, host, life, number);
        let peer_life = self.life(peer);
        self.links.end(host, peer).last_at = back;
        self.queue.push(back, Event::LinkUp { host, life, peer, peer_life, number });
        self.on_end_up(peer, host);
    }

    fn link_up(&mut self, host: usize, peer: usize, peer_life: u32, number: u64) {
        self.trace.note(self.now, "link {} to {} is up, number {}", &[host as u64, peer as u64, number]);
        let end = self.links.end(host, peer);
        (end.up, end.peer_life, end.dial, end.redials) = (Some(number), peer_life, None, 0);
        (end.round, end.resumes) = (Round::Idle, false);
        // The other end was up before and may have spoken already.
        end.held.retain(|(n, _)| *n == number);
    }

    fn on_end_up(&mut self, host: usize, peer: usize) {
        if self.network.is_control_cut(host, peer) {
            self.watch_silence(host, peer);
        }
        if std::mem::take(&mut self.links.end(host, peer).wanted) {
            self.want_round(host, peer);
        }
    }

    pub(super) fn on_link_up(&mut self, host: usize, life: u32, peer: usize, peer_life: u32, number: u64) {
        if self.life(host) == life && self.postpone(host, Event::LinkUp { host, life, peer, peer_life, number }) {
            return;
        }
        if self.life(host) != life || self.links.end(host, peer).dial != Some(number) {
            // Nobody waits for it: the peer learns that by a reset.
            let at = self.now + self.network.link_delay();
            let life = self.life(peer);
            return self.queue.push(at, Event::LinkGone { host: peer, life, peer: host, number, only_if_cut: false });
        }
        if self.life(peer) != peer_life || self.links.end(peer, host).up != Some(number) {
            return self.on_dial_failed(host, life, peer, number, false);
        }
        self.link_up(host, peer, peer_life, number);
        self.on_end_up(host, peer);
    }

    pub(super) fn on_dial_failed(&mut self, host: usize, life: u32, peer: usize, number: u64, again: bool) {
        if self.life(host) != life || self.postpone(host, Event::DialFailed { host, life, peer, number, again }) {
            return;
        }
        let end = self.links.end(host, peer);
        if end.dial.take_if(|d| *d == number).is_none() {
            return;
        }
        if again && end.redials < REDIALS_MAX {
            end.redials += 1;
            let at = self.after(REDIAL);
            return self.queue.push(at, Event::Redial { host, life, peer });
        }
        (end.wanted, end.redials) = (false, 0);
        self.lane_lost(host, peer, Reason::PeerUnreachable);
    }

    pub(super) fn on_redial(&mut self, host: usize, life: u32, peer: usize) {
        if self.life(host) == life && self.links.end(host, peer).wanted {
            self.dial(host, peer);
        }
    }

    // ---- links go

    /// The end of a link hears nothing any more: it gives it up unless the path works again in time.
    pub(super) fn watch_silence(&mut self, host: usize, peer: usize) {
        let Some(number) = self.links.end(host, peer).up else { return };
        let at = self.now + self.plan.link_timeout + self.some(SILENCE_JITTER);
        let life = self.life(host);
        self.queue.push(at, Event::LinkGone { host, life, peer, number, only_if_cut: true });
    }

    /// The end of a link is told that the other end is gone.
    pub(super) fn tell_gone(&mut self, host: usize, peer: usize, number: u64, delay: Duration) {
        let life = self.life(host);
        self.queue.push(self.after(delay), Event::LinkGone { host, life, peer, number, only_if_cut: false });
    }

    pub(super) fn on_link_gone(&mut self, host: usize, life: u32, peer: usize, number: u64, only_if_cut: bool) {
        if self.life(host) != life || self.postpone(host, Event::LinkGone { host, life, peer, number, only_if_cut }) {
            return;
        }
        if self.links.end(host, peer).up != Some(number) {
            return;
        }
        // A silence that ended was none; that it was another cut meanwhile is as good as the first going on.
        if only_if_cut && !self.network.is_control_cut(host, peer) {
            return;
        }
        self.end_lost(host, peer, Reason::PeerLost);
        if self.links.end(peer, host).up == Some(number) && !self.network.is_control_cut(host, peer) {
            let delay = self.network.link_delay();
            self.tell_gone(peer, host, number, delay);
        }
    }

    fn end_lost(&mut self, host: usize, peer: usize, reason: Reason) {
        self.trace.note(self.now, "link {} to {} is lost", &[host as u64, peer as u64]);
        let end = self.links.end(host, peer);
        (end.up, end.round, end.resumes) = (None, Round::Idle, false);
        end.held.clear();
        self.lane_lost(host, peer, reason);
    }

    fn lane_lost(&mut self, host: usize, peer: usize, reason: Reason) {
        let now = self.now;
        self.trace.note(now, "lane {} to {} is lost, {}", &[host as u64, peer as u64, reason.code().into()]);
        self.checks.causes.on_lane_lost(now, host, peer, reason);
        let Some(running) = self.up(host) else { return };
        running.engine.lane_lost(now, &mut running.tap, address(peer), reason);
        self.after_command(host);
    }

    // ---- messages

    fn send(&mut self, host: usize, peer: usize, message: Message) {
        let Some(number) = self.links.end(host, peer).up else { return };
        self.trace.note(self.now, "link {} to {}: message {}", &[host as u64, peer as u64, message.code()]);
        if self.network.is_control_cut(host, peer) {
            return self.links.end(peer, host).held.push_back((number, message));
        }
        let delay = self.network.link_delay();
        self.send_after(host, peer, number, message, delay);
    }

    fn send_after(&mut self, host: usize, peer: usize, number: u64, message: Message, delay: Duration) {
        let at = self.now + delay;
        let other = self.links.end(peer, host);
        other.last_at = other.last_at.max(at);
        let at = other.last_at;
        let life = self.life(peer);
        self.queue.push(at, Event::Link { host: peer, life, peer: host, number, message: Box::new(message) });
    }

    /// The path works again: what was held is sent again, and ends that were given up meanwhile are told so.
    pub(super) fn on_path_back(&mut self, a: usize, b: usize) {
        for (host, peer) in [(a, b), (b, a)] {
            for (number, message) in std::mem::take(&mut self.links.end(host, peer).held) {
                let delay = self.some(Duration::from_millis(200));
                self.send_after(peer, host, number, message, delay);
            }
        }
        for (host, peer, number) in self.links.half_open(a, b) {
            let delay = self.some(SILENCE_JITTER);
            self.tell_gone(host, peer, number, delay);
        }
    }

    pub(super) fn on_link(&mut self, host: usize, life: u32, peer: usize, number: u64, message: Box<Message>) {
        if self.life(host) != life {
            return;
        }
        // Before anything else: the link's coming up may have been put off in the same way.
        if let Some(paused) = self.paused(host) {
            // Those behind it arrive during the pause too, or after it, and so keep their order.
            return self.queue.push(paused, Event::Link { host, life, peer, number, message });
        }
        if self.links.end(host, peer).up != Some(number) {
            let code = message.code();
            return self.trace.note(self.now, "link {} to {}: message {} is late", &[host as u64, peer as u64, code]);
        }
        let was_draining = matches!(self.links.end(host, peer).round, Round::Draining { .. });
        match self.links.end(host, peer).handle(*message) {
            Step::None => {}
            Step::Begin(offer) => self.begin(host, peer, offer, false),
            Step::BeginAgain => self.begin(host, peer, None, true),
            Step::Reset(reason) => {
                let now = self.now;
                let Some(running) = self.up(host) else { return };
                running.engine.lane_reset(now, &mut running.tap, address(peer));
                self.checks.causes.on_lane_reset(now, host, peer);
                self.give_round_up(host, peer, reason, true);
                self.begin(host, peer, None, true);
            }
            Step::Tell => self.tell_routes(host, peer),
            Step::Take(routes) => self.take_routes(host, peer, &routes),
            Step::Accept(offer) => self.accept(host, peer, &offer),
            Step::Ready => {
                let now = self.now;
                let Some(running) = self.up(host) else { return };
                running.engine.lane_ready(now, &mut running.tap, address(peer));
                self.trace.note(now, "lane {} to {} is up", &[host as u64, peer as u64]);
                self.after_command(host);
            }
            Step::Lost(reason) => {
                let reason = if reason == Reason::LocalLimit { Reason::PeerLimit } else { reason };
                // The engine's answer to the loss may be the wish for a new lane: the reset goes first.
                if !was_draining {
                    self.send(host, peer, Message::Reset(reason, false));
                }
                self.lane_lost(host, peer, reason);
            }
            Step::OutOfOrder => {
                let round = self.links.end(host, peer).round;
                let detail = format!("host {host}: a message of {peer} out of order in {round:?}");
                self.checks.fail(self.now, "set-up", detail);
            }
        }
    }

    // ---- rounds

    fn want_round(&mut self, host: usize, peer: usize) {
        let end = self.links.end(host, peer);
        match &mut end.round {
            Round::Idle => self.begin(host, peer, None, false),
            Round::Draining { wanted, .. } => *wanted = true,
            _ => {}
        }
    }

    fn begin(&mut self, host: usize, peer: usize, offer: Option<LaneOffer>, resumes: bool) {
        self.links.end(host, peer).resumes = resumes;
        let Some(running) = self.up(host) else { return };
        match running.engine.lane_offer(&mut running.tap, address(peer)) {
            Ok(own) => {
                self.links.end(host, peer).round = Round::Offered;
                self.send(host, peer, Message::Offer(own));
                self.after_command(host);
                if let Some(offer) = offer {
                    self.accept(host, peer, &offer);
                }
            }
            Err(error) => {
                let reason = self.refusal(host, peer, &error);
                if offer.is_some() || resumes {
                    self.give_round_up(host, peer, reason, false);
                } else {
                    self.links.end(host, peer).round = Round::Idle;
                }
                self.lane_lost(host, peer, reason);
            }
        }
    }

    fn accept(&mut self, host: usize, peer: usize, offer: &LaneOffer) {
        let Some(running) = self.up(host) else { return };
        match running.engine.lane_accept(&mut running.tap, address(peer), offer) {
            Ok(()) if self.links.end(host, peer).resumes => {
                self.links.end(host, peer).round = Round::Resuming;
                self.tell_routes(host, peer);
            }
            Ok(()) => self.half_up(host, peer),
            Err(error) => {
                let reason = self.refusal(host, peer, &error);
                self.give_round_up(host, peer, reason, false);
                self.lane_lost(host, peer, reason);
            }
        }
    }

    fn half_up(&mut self, host: usize, peer: usize) {
        self.links.end(host, peer).round = Round::HalfUp;
        self.send(host, peer, Message::Ready);
        self.after_command(host);
    }

    fn tell_routes(&mut self, host: usize, peer: usize) {
        let Some(running) = self.up(host) else { return };
        match running.engine.lane_routes(address(peer)) {
            Some(routes) => {
                self.send(host, peer, Message::Routes(routes));
                self.after_command(host);
            }
            None => self.try_half_up(host, peer),
        }
    }

    fn take_routes(&mut self, host: usize, peer: usize, routes: &LaneRoutes) {
        let now = self.now;
        let Some(running) = self.up(host) else { return };
        if let Err(detail) = running.engine.lane_take_routes(now, &mut running.tap, address(peer), routes) {
            let detail = format!("host {host} cannot go on with {peer}: {detail}");
            return self.checks.fail(now, "unexplained", detail);
        }
        self.send(host, peer, Message::RoutesTaken);
        self.try_half_up(host, peer);
    }

    fn try_half_up(&mut self, host: usize, peer: usize) {
        let Some(running) = self.up(host) else { return };
        if running.engine.lane_goes_on(address(peer)) {
            self.half_up(host, peer);
        } else {
            self.after_command(host);
        }
    }

    fn give_round_up(&mut self, host: usize, peer: usize, reason: Reason, resumes: bool) {
        self.links.end(host, peer).round = Round::Draining { wanted: false, resumes };
        self.send(host, peer, Message::Reset(reason, resumes));
    }

    /// An engine refuses a lane only if its table of lanes is full.
    fn refusal(&mut self, host: usize, peer: usize, error: &VerbsError) -> Reason {
        if !matches!(error, VerbsError::Full { what: "table of lanes", .. }) {
            self.checks.fail(self.now, "unexplained", format!("host {host} refuses a lane to {peer}: {error}"));
        }
        Reason::LocalLimit
    }

    /// The engine gave a lane up by itself.
    pub(super) fn on_lane_failed(&mut self, host: usize, peer: usize, reason: Reason, detail: &str) {
        let now = self.now;
        self.trace.text(now, || format!("lane {host} to {peer} failed: {detail}"));
        let is_explained = if reason == Reason::Closed {
            self.explains_room(host, peer)
        } else {
            detail.contains("after too many resets") && self.checks.causes.explains_lane_failure(now, host, peer)
        };
        if !is_explained {
            let detail = format!("lane of {host} to {peer} failed: {detail}");
            self.checks.fail(now, "unexplained", detail);
        }
        self.checks.causes.on_lane_lost(now, host, peer, reason);
        self.leave_round(host, peer, reason, false);
    }

    /// Whether a lane could make room for another host's: there are fewer than hosts, and another one has its place. That
    /// nothing used it is judged by the checkers of streams and connects: neither takes `closed` for a cause.
    fn explains_room(&mut self, host: usize, peer: usize) -> bool {
        let lanes_max = self.plan.hosts[host].lanes_max as usize;
        let is_short = lanes_max < self.plan.hosts.len() - 1;
        let Some(running) = self.up(host) else { return false };
        let lanes = running.engine.lanes();
        let has_other = lanes.len() == lanes_max && lanes.iter().all(|lane| lane.peer.ip() != address(peer));
        is_short && has_other
    }

    /// The engine gave a lane's queue pair up by itself, and keeps its connections.
    pub(super) fn on_lane_reset(&mut self, host: usize, peer: usize, detail: &str) {
        let now = self.now;
        self.trace.text(now, || format!("lane {host} to {peer} is reset: {detail}"));
        if !self.checks.causes.explains_lane_reset(now, host, peer, detail) {
            let detail = format!("lane of {host} to {peer} was reset: {detail}");
            self.checks.fail(now, "unexplained", detail);
        }
        self.checks.causes.on_lane_reset(now, host, peer);
        self.leave_round(host, peer, Reason::LaneFailed, true);
    }

    fn leave_round(&mut self, host: usize, peer: usize, reason: Reason, resumes: bool) {
        if !matches!(self.links.end(host, peer).round, Round::Idle | Round::Draining { .. }) {
            self.give_round_up(host, peer, reason, resumes);
        }
    }

    /// A daemon that does not run hears later. True: the event was put off.
    fn postpone(&mut self, host: usize, event: Event) -> bool {
        let paused = self.paused(host);
        if let Some(until) = paused {
            self.queue.push(until, event);
        }
        paused.is_some()
    }

    /// Until when the daemon of a host does not run, if it does not now.
    pub(super) fn paused(&mut self, host: usize) -> Option<Time> {
        let now = self.now;
        let running = self.up(host)?;
        Some(running.engine_paused_until.max(running.stalled_until)).filter(|until| *until > now)
    }
}
