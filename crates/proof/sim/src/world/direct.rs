//! TCP connections for streams of bulk: what `plane::Directs` decides, carried out, and the bytes on their way.
//!
//! Owns how long everything takes, and what a cut, a dead daemon and a dead machine do to it.

use std::net::IpAddr;
use std::time::Duration;

use control::{CHALLENGE_BYTES, Reason};
use engine::BulkStream;
use plane::{BulkOf, DirectAction, DirectHello, DirectProof, Side};

use super::event::{DirectStep, PeerOffer};
use super::{Event, World};
use crate::address::{At, address};
use crate::app::Reply;
use crate::direct::{EndOwner, SentOff};
use crate::links::Input;

/// TCP asks again for what a cut path swallowed.
const AGAIN: Duration = Duration::from_millis(200);

impl World {
    /// An engine tells of a stream of bulk.
    pub(super) fn on_bulk(&mut self, at: At, stream: BulkStream) {
        self.tell_plane(at.host, Input::Bulk { engine: at.engine, stream });
    }

    fn bulk_of(&mut self, host: usize, engine: u32, stream: BulkStream) -> Option<BulkOf> {
        let client = *self.up(host)?.control.names.get(&(engine, stream.app))?;
        let BulkStream { connection, slot, peer, peer_route, .. } = stream;
        Some(BulkOf { client, uid: 1, connection, slot, peer, lane: engine, peer_route })
    }

    pub(super) fn on_bulk_input(&mut self, host: usize, engine: u32, stream: BulkStream) {
        let token = self.fresh();
        if let (Some(of), Some(running)) = (self.bulk_of(host, engine, stream), self.up(host)) {
            running.control.directs.handle_bulk(of, token);
        }
    }

    pub(super) fn on_route_input(
        &mut self,
        host: usize,
        engine: u32,
        (peer, number): (IpAddr, u64),
        stream: Option<BulkStream>,
    ) {
        let of = stream.and_then(|stream| self.bulk_of(host, engine, stream));
        if let Some(running) = self.up(host) {
            running.control.directs.on_route(peer, number, of);
        }
    }

    pub(super) fn settle_directs(&mut self, host: usize) {
        let now = self.now;
        while let Some(action) = self.up(host).and_then(|running| running.control.directs.poll_action(now)) {
            let is_bound = matches!(action, DirectAction::Dial { .. } | DirectAction::Give { .. });
            if is_bound && self.plan.has_standby {
                let detail = format!("host {host} binds a stream to one of two paths: {action:?}");
                self.checks.fail(now, "paths", detail);
            }
            match action {
                DirectAction::Send { peer, message } => {
                    // Without a link the lane is lost, and with it the stream.
                    if let Some(link) = self.up(host).and_then(|running| running.control.peers.link_to(peer)) {
                        self.say(host, link, message);
                    }
                }
                DirectAction::AskRoute { peer, number, lane, route } => {
                    let delay = self.some(self.plan.queue_delay_max);
                    self.direct_step(host, delay, DirectStep::AskRoute { peer, number, lane, route });
                }
                DirectAction::Dial { peer, number, token, connection } => {
                    let offer = PeerOffer { peer, number, token, connection };
                    self.dial_direct(host, offer);
                }
                DirectAction::Give { client, connection, slot, socket } => {
                    let uid = client.0 as u32;
                    self.directs.own(&socket, EndOwner { host, uid, slot });
                    self.reply_to(host, uid, Reply::Direct { connection, slot, socket });
                }
            }
        }
    }

    fn direct_step(&mut self, host: usize, delay: Duration, step: DirectStep) {
        let life = self.life(host);
        self.queue.push(self.now + delay, Event::DirectStep { host, life, step: Box::new(step) });
    }

    fn dial_direct(&mut self, host: usize, offer: PeerOffer) {
        let Some(to) = self.host_at(offer.peer) else { return };
        let (from_life, nonce) = (self.life(host), self.fresh());
        // The connection, then the first message.
        let delay = self.network.link_delay() + self.network.link_delay() + self.network.link_delay();
        self.direct_step(to, delay, DirectStep::Hello { from: host, from_life, offer, nonce });
    }

    pub(super) fn on_direct_step(&mut self, host: usize, life: u32, step: Box<DirectStep>) {
        if let DirectStep::Hello { from, from_life, offer, nonce } = *step {
            return self.on_direct_hello(host, (from, from_life), offer, nonce);
        }
        if self.life(host) != life {
            return;
        }
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::DirectStep { host, life, step });
        }
        let Some(running) = self.up(host) else { return };
        match *step {
            DirectStep::AskRoute { peer, number, lane, route } => {
                let stream = running.engine(lane).and_then(|driven| driven.engine.stream_of_route(peer, route));
                self.tell_plane(host, Input::StreamOfRoute { engine: lane, peer, number, stream });
            }
            DirectStep::Hello { .. } => {}
        }
    }

    /// At the port of the host that offered.
    fn on_direct_hello(
        &mut self,
        host: usize,
        (from, from_life): (usize, u32),
        offer: PeerOffer,
        nonce: [u8; CHALLENGE_BYTES],
    ) {
        let now = self.now;
        let proof = DirectProof { number: offer.number, token: offer.token, nonce };
        let hello = DirectHello { number: offer.number, nonce, mac: proof.mac(Side::Dialer) };
        let is_reached = !self.network.is_control_cut(from, host, 0) && self.stalled(host).is_none();
        let answer = self.up(host).filter(|_| is_reached).map(|running| running.control.directs.judge(now, &hello));
        let result = match answer {
            None => Err(Reason::PeerUnreachable),
            Some(None) => Err(Reason::PeerAuth),
            Some(Some(mac)) => {
                if !proof.is_proven(Side::Acceptor, &mac) {
                    self.checks.fail(now, "unexplained", format!("host {host} does not prove a token that it made"));
                }
                let (cut_max, chance) = (self.plan.streams.cut_max, u64::from(self.fresh()[0]) << 32 | self.steps);
                let [own, theirs] = self.directs.make([host, from], cut_max, chance);
                if let Some(running) = self.up(host) {
                    running.control.directs.handle_socket(offer.number, Some(own));
                }
                self.settle_directs(host);
                self.arm_plane(host);
                Ok(theirs)
            }
        };
        if self.life(from) == from_life && self.up(from).is_some() {
            let PeerOffer { number, connection, .. } = offer;
            self.tell_plane(from, Input::DirectDialed { peer: address(host), number, connection, result });
        }
    }

    // ---- bytes

    /// What processes did to their connections travels.
    pub(super) fn run_directs(&mut self) {
        for SentOff { to, hosts, carried } in self.directs.send_off() {
            // Nobody speaks for a machine that is off.
            if !self.hosts[hosts.0].is_off {
                let delay = self.network.link_delay();
                self.queue.push(self.now + delay, Event::Direct { to, hosts, carried });
            }
        }
    }

    pub(super) fn on_direct(&mut self, sent: SentOff) {
        let SentOff { to, hosts: (from, host), carried } = sent;
        if self.hosts[host].is_off {
            return;
        }
        if self.network.is_data_cut(from, host, 0) || self.network.is_data_cut(host, from, 0) {
            return self.queue.push(self.now + AGAIN, Event::Direct { to, hosts: (from, host), carried });
        }
        if self.directs.arrive(to, carried) {
            self.look_at_direct(to);
        }
    }

    /// Whoever has this end looks at it.
    fn look_at_direct(&mut self, end: (u64, usize)) {
        let Some(EndOwner { host, uid, slot }) = self.directs.owner(end) else { return };
        if let Some(app) = self.hosts[host].app_mut(uid) {
            app.on_direct_event(slot);
            self.wake_app(host, uid);
        }
    }

    /// Something on the way breaks the connections between two hosts.
    pub(super) fn break_directs(&mut self, a: usize, b: usize) {
        self.checks.causes.on_directs_broken(self.now, a, b);
        for end in self.directs.break_between(a, b) {
            self.look_at_direct(end);
        }
    }
}
