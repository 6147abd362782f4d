//! What operators ask for: that a lane is made anew, and that this daemon makes way for another one that serves the same
//! socket (docs/operate/restart.md).
//!
//! Owns who is an operator, which engines have not answered one, and whether programs and peers could go on with the other
//! daemon. It must never end this daemon for one with which they could not.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use control::{HandOverRefusal, InspectAnswer, Reason, Reply, Request, Successor};
use shm::SessionShape;

use super::{Action, Daemon};
use crate::{ClientId, Party};

/// Where a daemon serves, and so another one in its place.
#[derive(Debug, Clone, Copy)]
pub struct OwnPlace {
    /// Where peers' daemons reach it.
    pub peer_address: SocketAddr,
    /// Its socket is the service manager's.
    pub is_managers: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Operators {
    owner_uid: u32,
    pub(super) place: OwnPlace,
    /// Lanes that are being reset, by program and request: engines that have not answered, and whether one had it.
    resets: BTreeMap<(ClientId, u64), (u32, bool)>,
    hands_over: bool,
}

impl Operators {
    pub(super) fn new(owner_uid: u32, place: OwnPlace) -> Self {
        Self { owner_uid, place, resets: BTreeMap::new(), hands_over: false }
    }

    fn check(&self, shape: SessionShape, successor: &Successor) -> Result<(), HandOverRefusal> {
        let SessionShape { slots, engines } = shape;
        if self.place.is_managers {
            return Err(HandOverRefusal::ServiceManager);
        }
        if (successor.slots, successor.engines) != (slots, engines) {
            return Err(HandOverRefusal::Sessions { slots, engines });
        }
        let own = self.place.peer_address;
        if successor.peer_address == own { Ok(()) } else { Err(HandOverRefusal::PeerAddress(own)) }
    }
}

impl<F, S> Daemon<F, S> {
    /// Whether a user sees what everybody does, and has no shares: root, and the daemon's own.
    pub fn is_operator(&self, uid: u32) -> bool {
        uid == 0 || uid == self.operators.owner_uid
    }

    /// A program, with a session or without one, asks for what operators alone may have. What else it asks for comes back.
    pub fn handle_operator(&mut self, party: Party, request: Request) -> Option<Request> {
        match request {
            Request::ResetLane { request, peer } if self.may_operate(party, "reset a lane") => {
                self.reset_lane(party, request, peer);
            }
            Request::HandOver { request, successor } if self.may_operate(party, "replace this daemon") => {
                self.hand_over(party, request, &successor);
            }
            Request::ResetLane { .. } | Request::HandOver { .. } => {}
            other => return Some(other),
        }
        None
    }

    fn may_operate(&mut self, Party { client, pid, uid }: Party, what: &str) -> bool {
        let may = self.is_operator(uid);
        if !may {
            tracing::warn!(pid, uid, "a program of another user asked this daemon to {what}");
            let words = format!("only root and user {} may {what}", self.operators.owner_uid);
            self.actions.push_back(Action::Detach { client, reason: Reason::Policy, words });
        }
        may
    }

    /// The lanes to a host are one at each engine.
    fn reset_lane(&mut self, Party { client, pid, .. }: Party, request: u64, peer: IpAddr) {
        tracing::info!(pid, %peer, "an operator resets a lane");
        self.operators.resets.insert((client, request), (self.engines, false));
        (0..self.engines).for_each(|engine| {
            self.actions.push_back(Action::ResetLane { engine, client, request, peer });
        });
    }

    /// An engine's answer to [`Action::ResetLane`].
    pub fn on_lane_was_reset(&mut self, client: ClientId, request: u64, found: bool) {
        let Some((unanswered, any)) = self.operators.resets.get_mut(&(client, request)) else { return };
        *unanswered = unanswered.saturating_sub(1);
        *any |= found;
        if *unanswered == 0 {
            let answer = InspectAnswer::LaneReset(*any);
            self.operators.resets.remove(&(client, request));
            self.reply(client, Reply::Inspected { request, answer, next: None });
        }
    }

    fn hand_over(&mut self, Party { client, pid, .. }: Party, request: u64, successor: &Successor) {
        let result = self.operators.check(self.shape, successor);
        match &result {
            Ok(()) => tracing::info!(pid, "making way for another daemon; programs and peers wait for it"),
            Err(refusal) => tracing::warn!(pid, ?successor, ?refusal, "not making way for another daemon"),
        }
        self.operators.hands_over |= result.is_ok();
        let answer = InspectAnswer::HandsOver(result);
        self.reply(client, Reply::Inspected { request, answer, next: None });
    }

    /// Another daemon takes this one's place.
    pub fn hands_over(&self) -> bool {
        self.operators.hands_over
    }
}
