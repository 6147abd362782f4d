//! Making way for another daemon that serves the same socket (docs/operate/restart.md).
//!
//! Owns who may ask for it, and whether programs and peers could go on with the other one. It must never end this daemon for
//! one with which they could not.

use control::{HandOverRefusal, InspectAnswer, Reason, Reply, Successor};
use plane::ClientId;

use super::Hub;

impl Hub {
    /// An operator starts a daemon that is to take this one's place.
    pub(super) fn on_hand_over(&mut self, id: ClientId, request: u64, successor: &Successor) {
        let Some(client) = self.clients.get(&id) else { return };
        let (pid, uid, own) = (client.who.pid, client.who.uid, self.owner_uid);
        if !self.is_operator(uid) {
            let words = format!("only root and user {own} may replace this daemon");
            tracing::warn!(pid, uid, "a program of another user asked this daemon to make way");
            return self.detach(id, Reason::Policy, &words);
        }
        let result = self.check_successor(successor);
        match &result {
            Ok(()) => tracing::info!(pid, "making way for another daemon; programs and peers wait for it"),
            Err(refusal) => tracing::warn!(pid, ?successor, ?refusal, "not making way for another daemon"),
        }
        self.hands_over |= result.is_ok();
        let answer = InspectAnswer::HandsOver(result);
        self.send(id, Reply::Inspected { request, answer, next: None }, Vec::new());
    }

    fn check_successor(&self, successor: &Successor) -> Result<(), HandOverRefusal> {
        let config = &self.link_context.config;
        if config.given_socket.is_some() {
            return Err(HandOverRefusal::ServiceManager);
        }
        let (slots, engines) = (self.shape.slots, self.shape.engines);
        if (successor.slots, successor.engines) != (slots, engines) {
            return Err(HandOverRefusal::Sessions { slots, engines });
        }
        let own = config.own_peer_address();
        if successor.peer_address == own { Ok(()) } else { Err(HandOverRefusal::PeerAddress(own)) }
    }
}
