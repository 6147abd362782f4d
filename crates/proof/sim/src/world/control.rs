//! The daemons' control planes: what they hear, and their links, driven as the daemon's tasks drive them.

use std::net::IpAddr;
use std::time::Duration;

use control::{PeerMessage, Reason, decode, encode};
use plane::{
    AfterAttempt, Dialing, Identity, LinkId, LinkPath, Opening, OpeningAction, Refusal, Verdict, Watch, WatchAction,
    Ways,
};
use rand::RngExt;
use verbs::Time;

use super::{Event, World};
use crate::address::{At, address, address_on, path_of};
use crate::links::{ControlPlane, DIAL_ATTEMPTS_MAX, HANDSHAKE, HANDSHAKE_OF_SEVERAL, Input, Link, STAGGER, Stage};
use crate::plan::DaemonPlan;
use crate::tcp::Segment;

impl World {
    fn plane(&mut self, host: usize) -> Option<&mut ControlPlane> {
        self.up(host).map(|running| &mut running.control)
    }

    pub(super) fn link(&mut self, host: usize, link: LinkId) -> Option<&mut Link> {
        self.plane(host)?.links.get_mut(&link)
    }

    // ---- the centre

    /// Something is sent to the control plane, which gets it soon.
    pub(super) fn tell_plane(&mut self, host: usize, input: Input) {
        let delay = self.some(self.plan.queue_delay_max);
        let (at, life, queue) = (self.now + delay, self.life(host), usize::from(input.is_engines()));
        let Some(plane) = self.plane(host) else { return };
        plane.heard_at[queue] = plane.heard_at[queue].max(at);
        let at = plane.heard_at[queue];
        self.queue.push(at, Event::Plane { host, life, input: Box::new(input) });
    }

    pub(super) fn on_plane(&mut self, host: usize, life: u32, input: Box<Input>) {
        if self.life(host) != life {
            return;
        }
        if let Some(until) = self.stalled(host) {
            return self.queue.push(until, Event::Plane { host, life, input });
        }
        let now = self.now;
        let Some(plane) = self.plane(host) else { return };
        let daemon = &mut plane.daemon;
        match *input {
            Input::Hello { link, source, hello } => {
                let verdict = daemon.handle_hello(now, link, source, hello);
                self.on_verdict(host, link, verdict);
            }
            Input::Up { link, peer } => {
                self.on_up(host, link, peer);
            }
            Input::Message { link, message } => daemon.handle_message(now, link, message),
            Input::Silent { link, silent } => daemon.handle_silent(now, link, silent),
            Input::Down { link, reason } => daemon.handle_down(now, link, reason),
            Input::DialFailed { link, reason } => daemon.handle_dial_failed(now, link, reason),
            Input::Engine { engine, report } => self.hear(At { host, engine }, report),
            Input::DirectDialed { peer, number, connection, result } => {
                daemon.on_direct_dialed(peer, number, connection, result);
            }
        }
        self.settle_plane(host);
    }

    /// A link has proven the key.
    fn on_up(&mut self, host: usize, id: LinkId, identity: Identity) {
        let now = self.now;
        let Some(link) = self.link(host, id) else { return self.tell_up(host, id, identity, None) };
        link.is_known = true;
        let (peer, end) = (link.peer, link.end);
        let path = end.map(|(connection, _)| self.tcp.path(connection));
        let path = path.map(|path| LinkPath { own: address_on(host, path), peer: address_on(peer, path) });
        let moves = |world: &mut Self| world.plane(host).map_or(0, |plane| plane.daemon.peers().path_changes());
        let before = moves(self);
        self.tell_up(host, id, identity, path);
        if moves(self) > before {
            self.trace.note(now, "host {} reaches {} over another path", &[host as u64, peer as u64]);
            self.checks.causes.on_moved(now, host, peer);
        }
    }

    fn tell_up(&mut self, host: usize, id: LinkId, identity: Identity, path: Option<LinkPath>) {
        let now = self.now;
        if let Some(plane) = self.plane(host) {
            plane.daemon.handle_up(now, id, identity, path);
        }
    }

    pub(super) fn arm_plane(&mut self, host: usize) {
        let life = self.life(host);
        let Some(plane) = self.plane(host) else { return };
        if let Some(at) = plane.daemon.deadline().filter(|at| plane.timer_at.is_none_or(|t| *at < t)) {
            plane.timer_at = Some(at);
            self.queue.push(at, Event::PlaneTimer { host, life });
        }
    }

    pub(super) fn on_plane_timer(&mut self, host: usize, life: u32) {
        let (now, stalled) = (self.now, self.stalled(host));
        let Some(running) = self.up_in(host, life) else { return };
        if running.control.timer_at.is_none_or(|at| at > now) {
            return;
        }
        if let Some(until) = stalled {
            return self.queue.push(until, Event::PlaneTimer { host, life });
        }
        running.control.timer_at = None;
        running.control.daemon.handle_timeout(now);
        self.settle_plane(host);
    }

    // ---- dials

    pub(super) fn start_dial(&mut self, host: usize, link: LinkId, (peer, ways): (IpAddr, Ways), deadline: Time) {
        let now = self.now;
        let Some(to) = self.host_at(peer) else {
            return self.checks.fail(now, "set-up", format!("host {host} dials {peer}"));
        };
        self.trace.note(now, "host {} dials {}", &[host as u64, to as u64]);
        let Some(plane) = self.plane(host) else { return };
        let dialing = Some(Dialing::new(deadline, DIAL_ATTEMPTS_MAX));
        let paths = if ways.paths.is_empty() { vec![0] } else { ways.paths.iter().map(|p| path_of(p.own)).collect() };
        let replaces = ways.replaces;
        plane.links.insert(link, Link { dialing, paths, replaces, ..Link::new(to, Stage::Pausing(now)) });
        self.attempt(host, link);
    }

    fn attempt(&mut self, host: usize, id: LinkId) {
        let (life, now) = (self.life(host), self.now);
        let Some(link) = self.link(host, id) else { return };
        let Some(path) = link.paths.get(link.tried).copied() else { return };
        let peer = link.peer;
        let connection = self.tcp.connect(host, life, peer, path);
        let Some(plane) = self.plane(host) else { return };
        let Some(link) = plane.links.get_mut(&id) else { return };
        let Some(dialing) = &link.dialing else { return };
        let connect_by = dialing.connect_by(now);
        let is_last = link.tried + 1 == link.paths.len();
        let by = if is_last { connect_by } else { connect_by.min(now + STAGGER) };
        (link.stage, link.end) = (Stage::Connecting(by), Some((connection, 0)));
        plane.by_connection.insert(connection, id);
        self.send_segment((connection, 0), Segment::Syn);
        self.arm(host, id);
    }

    /// `reason`: none if the connection was not there in time.
    fn attempt_failed(&mut self, host: usize, id: LinkId, reason: Option<Reason>) {
        let now = self.now;
        let Some(plane) = self.plane(host) else { return };
        let Some(link) = plane.links.get_mut(&id) else { return };
        let end = link.end.take();
        let was_connecting = matches!(link.stage, Stage::Connecting(_));
        let Some(dialing) = &mut link.dialing else { return };
        let next = if was_connecting && link.tried + 1 < link.paths.len() && now < dialing.deadline() {
            link.tried += 1;
            AfterAttempt::Again(now)
        } else {
            if !was_connecting {
                // It goes wrong there, so the others are tried first.
                link.paths[link.tried..].rotate_left(1);
            }
            link.tried = 0;
            match reason {
                Some(reason) => dialing.handle_failed(now, reason),
                None => dialing.handle_late(now),
            }
        };
        if let AfterAttempt::Again(at) = next {
            link.stage = Stage::Pausing(at);
        }
        if let Some((connection, _)) = end {
            plane.by_connection.remove(&connection);
        }
        if let Some(end) = end {
            self.close_end(end);
        }
        match next {
            AfterAttempt::Again(_) => self.arm(host, id),
            AfterAttempt::GiveUp(reason) => {
                self.end_link(host, id);
                self.tell_plane(host, Input::DialFailed { link: id, reason });
            }
        }
    }

    // ---- links

    /// The daemon learns of a connection that its kernel accepted.
    pub(super) fn on_accept(&mut self, host: usize, life: u32, peer: usize, connection: u64) {
        if self.life(host) != life {
            return;
        }
        if let Some(until) = self.stalled(host) {
            return self.queue.push(until, Event::Accept { host, life, peer, connection });
        }
        let source = address_on(peer, self.tcp.path(connection));
        let (now, challenge, secret) = (self.now, self.fresh(), self.fresh());
        let Some(plane) = self.plane(host) else { return };
        let id = plane.next_accepted();
        let entered = plane.strangers.enter(source);
        let crowded_out = entered.evicted.and_then(|number| {
            let holds = |link: &Link| link.place.as_ref().is_some_and(|place| place.number() == number);
            plane.links.iter().find(|(_, link)| holds(link)).map(|(id, _)| *id)
        });
        let opening = Opening::accept(now, plane.introduction(challenge, 0), plane.keys(), secret, HANDSHAKE);
        let stage = Stage::Opening(Box::new(opening));
        let (end, place) = (Some((connection, 1)), Some(entered.place));
        plane.links.insert(id, Link { end, place, ..Link::new(peer, stage) });
        plane.by_connection.insert(connection, id);
        if let Some(id) = crowded_out {
            self.refuse(host, id, &Refusal::new(Reason::PeerBusy, "too many others want a link"), true);
        }
        self.arm(host, id);
    }

    pub(super) fn fresh(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.rng.fill(&mut bytes[..]);
        bytes
    }

    pub(super) fn on_link_segment(&mut self, host: usize, id: LinkId, segment: Segment) {
        let now = self.now;
        let Some(link) = self.link(host, id) else { return };
        match (&mut link.stage, segment) {
            (Stage::Connecting(_), Segment::SynAck) => self.start_opening(host, id),
            (Stage::Connecting(_), _) => self.attempt_failed(host, id, Some(Reason::PeerUnreachable)),
            (Stage::Opening(opening), segment) if opening.awaits_verdict() => link.waiting.push_back(segment),
            (Stage::Opening(opening), Segment::Message(message)) => {
                opening.handle_message(message);
                self.drive_opening(host, id);
            }
            (Stage::Opening(opening), _) => {
                opening.handle_lost(Refusal::new(Reason::PeerLost, "the peer closed the link"));
                self.drive_opening(host, id);
            }
            (Stage::Up(watch), Segment::Sealed(frame, _)) => {
                watch.on_heard(now);
                let opened = link.seal.as_mut().map(|seal| seal.open(&frame));
                match opened.and_then(Result::ok).and_then(|message| decode(&message).ok()) {
                    Some(message) => self.tell_plane(host, Input::Message { link: id, message }),
                    None => {
                        let detail =
                            format!("host {host} cannot open a frame of its link {id:?}, which nobody changed");
                        self.checks.fail(now, "unexplained", detail);
                        self.link_lost(host, id);
                    }
                }
            }
            // Words of a handshake that the other end gave up are no frame of a link.
            (Stage::Up(_), _) => self.link_lost(host, id),
            (Stage::Pausing(_), _) => {}
        }
    }

    fn start_opening(&mut self, host: usize, id: LinkId) {
        let (now, challenge, secret) = (self.now, self.fresh(), self.fresh());
        let Some(plane) = self.plane(host) else { return };
        let Some(replaces) = plane.links.get(&id).map(|link| link.replaces) else { return };
        let (introduction, keys) = (plane.introduction(challenge, replaces), plane.keys());
        let Some(link) = plane.links.get_mut(&id) else { return };
        let limit = if link.paths.len() > 1 { HANDSHAKE_OF_SEVERAL } else { HANDSHAKE };
        let left = link.dialing.as_ref().map_or(HANDSHAKE, |dialing| dialing.deadline().saturating_since(now));
        let opening = Opening::dial(now, introduction, keys, secret, address(link.peer), limit.min(left));
        link.stage = Stage::Opening(Box::new(opening));
        self.drive_opening(host, id);
    }

    fn on_verdict(&mut self, host: usize, id: LinkId, verdict: Verdict) {
        let Some(link) = self.link(host, id) else { return };
        let Stage::Opening(opening) = &mut link.stage else { return };
        opening.on_verdict(verdict);
        let waiting = std::mem::take(&mut link.waiting);
        self.drive_opening(host, id);
        for segment in waiting {
            self.on_link_segment(host, id, segment);
        }
    }

    fn drive_opening(&mut self, host: usize, id: LinkId) {
        let now = self.now;
        loop {
            let Some(link) = self.link(host, id) else { return };
            let Stage::Opening(opening) = &mut link.stage else { break };
            match opening.poll_action() {
                None => break,
                Some(OpeningAction::Send(message)) => {
                    if let Some(end) = link.end {
                        self.send_segment(end, Segment::Message(message));
                        if self.count_down(host) {
                            return;
                        }
                    }
                }
                Some(OpeningAction::Judge(hello)) => {
                    link.said_hello = true;
                    let (peer, end) = (link.peer, link.end);
                    let path = end.map_or(0, |(connection, _)| self.tcp.path(connection));
                    let source = address_on(peer, path);
                    self.tell_plane(host, Input::Hello { link: id, source, hello });
                }
                Some(OpeningAction::Up(peer)) => {
                    link.seal = opening.take_seal();
                    let place = link.place.take();
                    let (other, end) = (link.peer, link.end);
                    let Some(plane) = self.plane(host) else { return };
                    let watch = Watch::new(now, plane.heartbeat);
                    if let Some(place) = place {
                        plane.strangers.leave(&place);
                    }
                    if let Some(link) = plane.links.get_mut(&id) {
                        link.stage = Stage::Up(watch);
                    }
                    let number = end.map_or(0, |(connection, _)| connection);
                    self.trace.note(now, "link {} of {} to {} is up", &[number, host as u64, other as u64]);
                    if let Some(daemons) = end.and_then(|end| self.daemons_of(end)) {
                        self.checks.on_link_up(now, (host, other), &daemons);
                    }
                    self.tell_plane(host, Input::Up { link: id, peer });
                }
                Some(OpeningAction::Refuse(refusal)) => return self.refuse(host, id, &refusal, true),
                Some(OpeningAction::GiveUp(refusal)) => return self.refuse(host, id, &refusal, false),
            }
        }
        self.arm(host, id);
    }

    /// The daemons at an end of a connection and at the other one.
    fn daemons_of(&mut self, (connection, side): (u64, usize)) -> Option<[DaemonPlan; 2]> {
        let mut at = |side| {
            let end = self.tcp.end((connection, side))?;
            self.hosts[end.host].daemons.get(&end.life?).cloned()
        };
        Some([at(side)?, at(1 - side)?])
    }

    /// A link does not come up.
    fn refuse(&mut self, host: usize, id: LinkId, refusal: &Refusal, says_why: bool) {
        let Some(link) = self.link(host, id) else { return };
        let (is_dial, said_hello, end, peer) = (link.dialing.is_some(), link.said_hello, link.end, link.peer);
        self.trace.text(self.now, || format!("host {host} refuses a link with {peer}: {refusal}"));
        if let Some(end) = end.filter(|_| says_why) {
            let Refusal { reason, detail } = refusal.clone();
            self.send_segment(end, Segment::Message(PeerMessage::Bye { reason, detail }));
        }
        if is_dial {
            return self.attempt_failed(host, id, Some(refusal.reason));
        }
        self.end_link(host, id);
        if said_hello {
            self.tell_plane(host, Input::Down { link: id, reason: Reason::PeerUnreachable });
        }
    }

    /// A link that was up ended without our doing.
    fn link_lost(&mut self, host: usize, id: LinkId) {
        let peer = self.link(host, id).map_or(host, |link| link.peer);
        self.trace.note(self.now, "link {} to {} is lost", &[host as u64, peer as u64]);
        self.end_link(host, id);
        self.tell_plane(host, Input::Down { link: id, reason: Reason::PeerLost });
    }

    pub(super) fn end_link(&mut self, host: usize, id: LinkId) {
        let Some(link) = self.plane(host).and_then(|plane| plane.remove(id)) else { return };
        if let Some(end) = link.end {
            self.close_end(end);
        }
    }

    /// Sends a message on a link that is up.
    pub(super) fn say(&mut self, host: usize, id: LinkId, message: PeerMessage) {
        let now = self.now;
        let Some(link) = self.link(host, id) else { return };
        let Stage::Up(watch) = &mut link.stage else { return };
        watch.on_spoken(now);
        let sealed = encode(&message).ok().and_then(|frame| link.seal.as_mut()?.seal(&frame).ok());
        let end = link.end;
        let Some(frame) = sealed else {
            return self.checks.fail(now, "unexplained", format!("host {host} cannot seal {message:?}"));
        };
        if let Some(end) = end {
            let code = Segment::Message(message).code();
            self.send_segment(end, Segment::Sealed(frame, code));
            self.count_down(host);
        }
    }

    // ---- time

    fn arm(&mut self, host: usize, id: LinkId) {
        let (life, now) = (self.life(host), self.now);
        let Some(link) = self.link(host, id) else { return };
        // What passed while the host stood still is due now.
        if let Some(at) = link.deadline().map(|at| at.max(now)).filter(|at| link.timer_at.is_none_or(|t| *at < t)) {
            link.timer_at = Some(at);
            self.queue.push(at, Event::LinkTimer { host, life, link: id });
        }
    }

    pub(super) fn on_link_timer(&mut self, host: usize, life: u32, id: LinkId) {
        let now = self.now;
        if self.life(host) != life {
            return;
        }
        if let Some(until) = self.stalled(host) {
            // What was said meanwhile is heard before.
            let later = until + Duration::from_nanos(1);
            if let Some(link) = self.link(host, id) {
                link.timer_at = Some(later);
                self.queue.push(later, Event::LinkTimer { host, life, link: id });
            }
            return;
        }
        let Some(link) = self.link(host, id).filter(|link| link.timer_at == Some(now)) else { return };
        link.timer_at = None;
        if link.deadline().is_some_and(|at| at <= now) {
            match &mut link.stage {
                Stage::Pausing(_) => self.attempt(host, id),
                Stage::Connecting(_) => self.attempt_failed(host, id, None),
                Stage::Opening(opening) => {
                    opening.handle_timeout(now);
                    self.drive_opening(host, id);
                }
                Stage::Up(watch) => {
                    for action in watch.handle_timeout(now) {
                        match action {
                            WatchAction::GiveUp => self.link_lost(host, id),
                            WatchAction::TellSilence(silent) => {
                                self.tell_plane(host, Input::Silent { link: id, silent });
                            }
                            WatchAction::Beat => self.say(host, id, PeerMessage::Heartbeat),
                        }
                    }
                }
            }
        }
        self.arm(host, id);
    }

    // ---- hosts that do not run

    /// A daemon that does not run gets it later: until when.
    pub(super) fn stalled(&mut self, host: usize) -> Option<Time> {
        let now = self.now;
        Some(self.up(host)?.stalled_until).filter(|until| *until > now)
    }

    /// Until when the engine of a host does not run, if it does not now.
    pub(super) fn paused(&mut self, host: usize) -> Option<Time> {
        let now = self.now;
        let running = self.up(host)?;
        Some(running.engine_paused_until.max(running.stalled_until)).filter(|until| *until > now)
    }

    /// A control message passed a host that may be meant to die of it. True: it did.
    pub(super) fn count_down(&mut self, host: usize) -> bool {
        let Some((left, told)) = self.fuses.get_mut(&host) else { return false };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return false;
        }
        let told = *told;
        self.fuses.remove(&host);
        self.crash(host, told);
        true
    }
}
