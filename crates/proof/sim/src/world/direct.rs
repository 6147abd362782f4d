//! TCP connections for streams of bulk: what `plane::Directs` decides, carried out, and the bytes on their way.
//!
//! Owns how long everything takes, and what a cut, a dead daemon and a dead machine do to it.

use std::time::Duration;

use control::{CHALLENGE_BYTES, PeerMessage, Reason};
use plane::DirectProof;

use super::event::PeerOffer;
use super::{Event, World};
use crate::address::address;
use crate::check::{Carries, RecordId, Side};
use crate::direct::{EndOwner, SentOff, SimSocket};
use crate::links::Input;

/// TCP asks again for what a cut path swallowed.
const AGAIN: Duration = Duration::from_millis(200);

impl World {
    pub(super) fn dial_direct(&mut self, host: usize, offer: PeerOffer) {
        let Some(to) = self.host_at(offer.peer) else { return };
        let (from_life, nonce) = (self.life(host), self.fresh());
        // The connection, then the first message.
        let delay = self.network.link_delay() + self.network.link_delay() + self.network.link_delay();
        self.queue.push(self.now + delay, Event::DirectHello { host: to, from: (host, from_life), offer, nonce });
    }

    /// At the port of the host that offered.
    pub(super) fn on_direct_hello(
        &mut self,
        host: usize,
        (from, from_life): (usize, u32),
        offer: PeerOffer,
        nonce: [u8; CHALLENGE_BYTES],
    ) {
        let now = self.now;
        let proof = DirectProof { number: offer.number, token: offer.token, nonce };
        let hello = proof.hello();
        let is_reached = !self.network.is_control_cut(from, host, 0) && self.stalled(host).is_none();
        let answer =
            self.up(host).filter(|_| is_reached).map(|running| running.control.daemon.judge_direct(now, &hello));
        let result = match answer {
            None => Err(Reason::PeerUnreachable),
            Some(None) => Err(Reason::PeerAuth),
            Some(Some(mac)) => {
                if proof.judge(PeerMessage::DirectProof { mac }).is_err() {
                    self.checks.fail(now, "unexplained", format!("host {host} does not prove a token that it made"));
                }
                let (cut_max, chance) = (self.plan.streams.cut_max, u64::from(self.fresh()[0]) << 32 | self.steps);
                let [own, theirs] = self.directs.make([host, from], cut_max, chance);
                self.directs.made += 1;
                if let Some(running) = self.up(host) {
                    running.control.daemon.handle_direct_socket(offer.number, Some(own));
                }
                self.settle_plane(host);
                Ok(theirs)
            }
        };
        if self.life(from) == from_life && self.up(from).is_some() {
            let PeerOffer { number, connection, .. } = offer;
            self.tell_plane(from, Input::DirectDialed { peer: address(host), number, connection, result });
        }
    }

    /// A process's end of the kernel TCP connection below one of the connections that are upgraded: it was there before.
    pub(super) fn kernel_tcp(&mut self, (record, side): (RecordId, Side), owner: EndOwner) -> Option<SimSocket> {
        let Carries::Upgraded { .. } = self.checks.carries(record) else { return None };
        let own = match self.kernel_ends.remove(&record) {
            Some(own) => own,
            None => {
                let (cut_max, chance) = (self.plan.streams.cut_max, u64::from(record.0));
                let [connector, acceptor] = self.directs.make(self.checks.hosts_of(record), cut_max, chance);
                let (own, other) = if side == Side::Connector { (connector, acceptor) } else { (acceptor, connector) };
                self.kernel_ends.insert(record, other);
                own
            }
        };
        self.directs.own(&own, owner);
        self.checks.on_direct(record);
        Some(own)
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
