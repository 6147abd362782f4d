//! TCP connections for streams of bulk: what `plane::Directs` decides, carried out.
//!
//! Owns the way of reports, offers and sockets between the engine, the links and the programs.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use control::{CHALLENGE_BYTES, ConnectionRow, PathKind, PeerMessage, Reason, Reply};
use engine::BulkStream;
use plane::{BulkOf, DirectAction, DirectHello};
use tokio::sync::oneshot;
use verbs::Encrypt;

use super::Hub;
use crate::command::Command;
use crate::direct_socket::{PeerOffer, dial_direct};

impl Hub {
    /// The stream, with the program that has it; `None`: the program is gone.
    fn bulk_of(&self, engine: u32, stream: BulkStream) -> Option<BulkOf> {
        let client = self.names.program(engine, stream.app)?;
        let uid = self.clients.get(&client)?.who.uid;
        let BulkStream { connection, slot, peer, peer_route, .. } = stream;
        Some(BulkOf { client, uid, connection, slot, peer, lane: engine, peer_route })
    }

    /// An engine reports a stream of bulk.
    pub(super) fn on_bulk(&mut self, engine: u32, stream: BulkStream) {
        let mut token = [0; CHALLENGE_BYTES];
        if !self.may_be_direct(stream.peer) {
            return;
        }
        if let (Some(of), Ok(())) = (self.bulk_of(engine, stream), getrandom::fill(&mut token)) {
            self.directs.handle_bulk(of, token);
        }
    }

    /// Whether streams to a peer may leave the lane as far as encryption goes: what is between the applications then is in
    /// the clear. `plane` knows which peers have more than one path.
    fn may_be_direct(&self, peer: IpAddr) -> bool {
        self.link_context.config.encrypt_to(peer) == Encrypt::Off
    }

    /// A peer speaks of such connections.
    pub(super) fn on_direct_message(&mut self, peer: IpAddr, message: PeerMessage) {
        match message {
            PeerMessage::DirectOffer { number, .. } if !self.may_be_direct(peer) => {
                let refused = PeerMessage::DirectRefused { number, is_yours: true, reason: Reason::DirectOff };
                self.peers.tell(peer, refused);
            }
            message => self.directs.handle_message(peer, message),
        }
    }

    /// The engine of the lane says which stream a peer's offer means.
    pub(super) fn on_stream_of_route(&mut self, engine: u32, peer: IpAddr, number: u64, stream: Option<BulkStream>) {
        let of = stream.and_then(|stream| self.bulk_of(engine, stream));
        self.directs.on_route(peer, number, of);
    }

    /// Somebody at the port of control links comes for an offer.
    pub(super) fn on_direct_hello(&mut self, hello: &DirectHello, verdict: oneshot::Sender<Option<[u8; 32]>>) {
        let now = self.now();
        // One that is gone by now says so by its socket.
        let _ = verdict.send(self.directs.judge(now, hello));
    }

    pub(super) fn settle_directs(&mut self) {
        let now = self.now();
        while let Some(action) = self.directs.poll_action(now) {
            match action {
                DirectAction::Send { peer, message } => {
                    // Without a link the lane is lost, and with it the stream.
                    if let Some(link) = self.peers.link_to(peer) {
                        self.send_to_peer(link, message);
                    }
                }
                // A link has no lane that has no engine.
                DirectAction::AskRoute { peer, number, lane, route } => {
                    self.command(lane, Command::StreamOfRoute { peer, number, route });
                }
                DirectAction::Dial { peer, number, token, connection } => {
                    let offer = PeerOffer { peer, number, token, connection };
                    self.dial_tasks.spawn(dial_direct(Arc::clone(&self.link_context), offer));
                }
                DirectAction::Give { client, connection, slot, socket } => {
                    self.give_direct(client, connection, slot, socket);
                }
            }
        }
    }

    fn give_direct(&mut self, client: plane::ClientId, connection: u64, slot: u32, socket: OwnedFd) {
        tracing::debug!(connection, "a stream of bulk gets a TCP connection of its own");
        if let Some(peer) = self.directs.given_to(connection) {
            self.crowds.add(peer, connection, &socket, self.now());
        }
        self.send(client, Reply::Direct { connection, slot }, vec![socket]);
    }

    /// Rows as the control plane knows them: an application's word alone makes no path, except of a connection that a
    /// daemon before this one made, of whose sockets nobody else knows.
    pub(super) fn with_directs(&self, mut rows: Vec<ConnectionRow>) -> Vec<ConnectionRow> {
        for row in &mut rows {
            if row.path == PathKind::TcpDirect && self.incarnation.gave(row.id) && !self.directs.is_given(row.id) {
                (row.path, row.reason) = (PathKind::Lane, Reason::OtherHost);
            }
            if row.path == PathKind::Lane
                && row.reason == Reason::OtherHost
                && let Some(reason) = self.directs.refusal(row.id)
            {
                row.reason = reason;
            }
        }
        self.own_ends.put_into(&mut rows);
        rows
    }
}
