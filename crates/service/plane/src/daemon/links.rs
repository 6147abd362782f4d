//! Other daemons: links coming, speaking and going, and TCP connections for streams.

use std::net::IpAddr;
use std::time::Duration;

use control::{CHALLENGE_BYTES, PeerMessage, Reason};
use verbs::Time;

use super::{Action, Daemon, Supply};
use crate::{BulkOf, DirectAction, DirectHello, Identity, LaneCommand, LinkId, LinkPath, PeerAction, Verdict};

impl<F, S> Daemon<F, S> {
    // ---- links

    /// Somebody who knows the key wants a link.
    pub fn handle_hello(&mut self, now: Time, link: LinkId, source: IpAddr, hello: Identity) -> Verdict {
        self.peers.handle_hello(now, link, source, hello)
    }

    /// A link is up, between these addresses if the driver knows them.
    pub fn handle_up(&mut self, now: Time, link: LinkId, peer: Identity, path: Option<LinkPath>) {
        self.peers.handle_up(now, link, peer, path);
    }

    /// A peer says something.
    pub fn handle_message(&mut self, now: Time, link: LinkId, message: PeerMessage) {
        self.peers.handle_message(now, link, message);
    }

    /// A peer has said nothing for so long.
    pub fn handle_silent(&mut self, now: Time, link: LinkId, silent: Duration) {
        self.peers.handle_silent(link, silent);
        self.peers.seek_path(now, link, silent);
    }

    /// A link is gone.
    pub fn handle_down(&mut self, now: Time, link: LinkId, reason: Reason) {
        self.peers.handle_down(now, link, reason);
    }

    /// A dial came to nothing.
    pub fn handle_dial_failed(&mut self, now: Time, link: LinkId, reason: Reason) {
        self.peers.handle_dial_failed(now, link, reason);
    }

    pub(super) fn on_peer_action(&mut self, now: Time, action: PeerAction) {
        match action {
            PeerAction::Link(command) => self.actions.push_back(Action::Link(command)),
            PeerAction::Direct { peer, message } => self.on_direct_message(peer, message),
            PeerAction::Meet { peer, message } => self.on_meet_message(peer, message),
            PeerAction::Region { peer, message } => self.on_region_message(now, peer, message),
            PeerAction::LinkOver { peer, reason } => self.meetings.handle_peer_gone(peer, reason),
            PeerAction::Engine { engine, lane, command } => {
                let lost = match command {
                    LaneCommand::Lost { peer, reason } => Some((peer, reason)),
                    _ => None,
                };
                self.actions.push_back(Action::Lane { engine, lane, command });
                if let Some((peer, reason)) = lost {
                    self.on_lane_gone(now, (peer, lane), reason);
                }
            }
        }
    }

    // ---- TCP connections for streams

    /// An engine tells of a stream that should have one.
    pub fn on_bulk(&mut self, of: BulkOf, supply: &mut dyn Supply<F>) {
        if self.may_be_direct(of.peer) {
            let mut token = [0; CHALLENGE_BYTES];
            token.chunks_mut(8).for_each(|part| part.copy_from_slice(&supply.word().to_ne_bytes()[..part.len()]));
            self.directs.handle_bulk(of, token);
        }
    }

    /// Whether streams to a peer may leave the lane.
    fn may_be_direct(&self, peer: IpAddr) -> bool {
        self.hosts.makes_directs && self.hosts.are_plain(peer)
    }

    fn on_direct_message(&mut self, peer: IpAddr, message: PeerMessage) {
        match message {
            PeerMessage::DirectOffer { number, .. } if !self.may_be_direct(peer) => {
                let refused = PeerMessage::DirectRefused { number, is_yours: true, reason: Reason::DirectOff };
                self.peers.tell(peer, refused);
            }
            message => self.directs.handle_message(peer, message),
        }
    }

    /// The engine of the lane says which stream a peer's offer means; none: there is none.
    pub fn on_route(&mut self, peer: IpAddr, number: u64, of: Option<BulkOf>) {
        self.directs.on_route(peer, number, of);
    }

    /// Somebody at the port of control links comes for an offer. The answer proves the token to him; none: there is no such
    /// offer, or he did not prove it.
    pub fn judge_direct(&mut self, now: Time, hello: &DirectHello) -> Option<[u8; 32]> {
        self.directs.judge(now, hello)
    }

    /// The TCP connection of somebody who was judged; none: it is gone.
    pub fn handle_direct_socket(&mut self, number: u64, socket: Option<S>) {
        self.directs.handle_socket(number, socket);
    }

    /// The answer to [`Action::DialDirect`].
    pub fn on_direct_dialed(&mut self, peer: IpAddr, number: u64, connection: u64, result: Result<S, Reason>) {
        self.directs.on_dialed(peer, number, connection, result);
    }

    pub(super) fn on_direct_action(&mut self, action: DirectAction<S>) {
        match action {
            DirectAction::Send { peer, message } => {
                // Without a link the lane is lost, and with it the stream.
                self.peers.tell(peer, message);
            }
            // A link has no lane that has no engine.
            DirectAction::AskRoute { peer, number, lane, route } => {
                self.actions.push_back(Action::AskRoute { peer, number, lane, route });
            }
            DirectAction::Dial { peer, number, token, connection } => {
                self.actions.push_back(Action::DialDirect { peer, number, token, connection });
            }
            DirectAction::Give { client, connection, slot, socket } => {
                self.actions.push_back(Action::Give { client, connection, slot, socket });
            }
        }
    }
}
