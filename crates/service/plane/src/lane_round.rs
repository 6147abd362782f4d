//! One lane's set-up over a control link, again and again: rounds.
//!
//! In a round each side sends exactly one offer, one ready and, at its end, one reset. A side that sent its reset takes
//! only the peer's reset; after that it may begin the next round. So a message of an old round that is still on its way
//! cannot be taken for one of the new round, and no lane is made before the peer has given the old one up.
//!
//! If the resets of both sides say `resumes`, the next round follows at once; if both say `rests` too, it follows when
//! either side needs it. In it the engines tell each other what
//! arrived, one message of each side at a time, between their offers and their readies.
//!
//! Owns that order, no I/O. It must never tell the engine about an offer that belongs to another round.

use std::collections::VecDeque;

use control::{LaneOffer, LaneRoutes, PeerMessage, Reason};

/// What the daemon does for a round.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RoundAction {
    /// Ask the engine for this side's offer.
    MakeOffer {
        round: u64,
    },
    /// Give the peer's offer to the engine.
    Accept {
        round: u64,
        offer: LaneOffer,
    },
    /// Ask the engine what arrived and was not reported yet.
    TellRoutes {
        round: u64,
    },
    /// Give the engine what arrived at the peer.
    TakeRoutes {
        round: u64,
        routes: LaneRoutes,
    },
    /// The peer gave the lane's queue pair up: so does the engine, and keeps its connections.
    Reset,
    /// As `Reset`, because the peer has nothing to send; the engine says so if it has. Also where its queue pair broke by
    /// that before.
    Rest,
    /// Both sides can use the lane.
    Ready,
    /// Tell the engine that the lane, or the wish for one, failed.
    Lost(Reason),
    Send(PeerMessage),
}

/// The peer broke the order of messages.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent {message} while the lane is {state}")]
pub(crate) struct OutOfOrder {
    message: &'static str,
    state: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// The engine makes our offer; the peer's may be here already.
    Making(Option<LaneOffer>),
    /// Ours is sent.
    Offered,
    /// The engine takes the peer's.
    Accepting {
        peer_ready: bool,
        /// What the peer has reported already.
        routes: Option<LaneRoutes>,
    },
    /// The engines tell each other what arrived.
    Resuming {
        peer_ready: bool,
        /// A message of ours is not confirmed.
        told: bool,
    },
    /// Our end is ready, the peer's not yet.
    HalfUp,
    Up,
    /// Our reset is sent, the peer's not yet here.
    Draining {
        wanted: bool,
        resumes: bool,
        rests: bool,
    },
    /// Neither side has a queue pair, and both keep the connections until one of them is used.
    Resting,
}

/// The rounds of one lane on one link.
#[derive(Debug)]
pub(crate) struct LaneRound {
    state: State,
    /// Counts rounds over all links, so that answers of the engine to older questions are recognised.
    round: u64,
    /// What names this round in our messages: lane and incarnation of our offer, else of the peer's.
    name: (u32, u32),
    /// The connections of the round before go on in this one.
    resumes: bool,
    actions: VecDeque<RoundAction>,
}

impl LaneRound {
    /// `lane`: its number. `round`: greater than any before for this peer.
    pub(crate) fn new(lane: u32, round: u64) -> Self {
        Self { state: State::Idle, round, name: (lane, 0), resumes: false, actions: VecDeque::new() }
    }

    pub(crate) fn poll_action(&mut self) -> Option<RoundAction> {
        self.actions.pop_front()
    }

    /// The number of the last round.
    pub(crate) fn number(&self) -> u64 {
        self.round
    }

    /// Whether something is under way that must end in bounded time.
    pub(crate) fn is_pending(&self) -> bool {
        !matches!(self.state, State::Idle | State::Resting | State::Up)
    }

    /// Whether nothing is under way, and neither side has a queue pair.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Idle
    }

    /// The engine wants a lane.
    pub(crate) fn want(&mut self) {
        match &mut self.state {
            State::Idle => self.begin(None, false),
            State::Resting => self.begin(None, true),
            State::Draining { wanted, .. } => *wanted = true,
            _ => {}
        }
    }

    fn begin(&mut self, peer_offer: Option<LaneOffer>, resumes: bool) {
        self.round += 1;
        self.resumes = resumes;
        self.name.1 = peer_offer.as_ref().map_or(0, |o| o.incarnation);
        self.state = State::Making(peer_offer);
        self.actions.push_back(RoundAction::MakeOffer { round: self.round });
    }

    /// The engine's answer to [`RoundAction::MakeOffer`].
    pub(crate) fn on_offer_made(&mut self, round: u64, result: Result<LaneOffer, Reason>) {
        let State::Making(peer_offer) = &mut self.state else { return };
        if round != self.round {
            return;
        }
        let peer_offer = peer_offer.take();
        match result {
            Ok(offer) => {
                self.name.1 = offer.incarnation;
                self.actions.push_back(RoundAction::Send(PeerMessage::LaneOffer(offer)));
                match peer_offer {
                    Some(offer) => self.accept(offer),
                    None => self.state = State::Offered,
                }
            }
            Err(reason) => {
                self.actions.push_back(RoundAction::Lost(reason));
                self.state = State::Idle;
                // A peer whose offer we have, or whose offer is on its way, waits for ours.
                if peer_offer.is_some() || self.resumes {
                    self.send_reset(reason, false, false);
                }
            }
        }
    }

    fn accept(&mut self, offer: LaneOffer) {
        self.actions.push_back(RoundAction::Accept { round: self.round, offer });
        self.state = State::Accepting { peer_ready: false, routes: None };
    }

    /// The engine's answer to [`RoundAction::Accept`].
    pub(crate) fn on_accepted(&mut self, round: u64, result: Result<(), Reason>) {
        let State::Accepting { peer_ready, routes } = &mut self.state else { return };
        if round != self.round {
            return;
        }
        let (peer_ready, routes) = (*peer_ready, routes.take());
        match result {
            Ok(()) if self.resumes => {
                self.state = State::Resuming { peer_ready, told: false };
                self.actions.push_back(RoundAction::TellRoutes { round });
                self.actions.extend(routes.map(|routes| RoundAction::TakeRoutes { round, routes }));
            }
            Ok(()) => self.ready(peer_ready),
            Err(reason) => {
                self.actions.push_back(RoundAction::Lost(reason));
                self.send_reset(reason, false, false);
            }
        }
    }

    fn ready(&mut self, peer_ready: bool) {
        let (lane, incarnation) = self.name;
        self.actions.push_back(RoundAction::Send(PeerMessage::LaneReady { lane, incarnation }));
        self.state = State::HalfUp;
        if peer_ready {
            self.up();
        }
    }

    /// The engine's answer to [`RoundAction::TellRoutes`]. `done`: both sides have reported everything.
    pub(crate) fn on_routes_told(&mut self, round: u64, routes: Option<LaneRoutes>, done: bool) {
        let State::Resuming { peer_ready, told } = &mut self.state else { return };
        if round != self.round {
            return;
        }
        let peer_ready = *peer_ready;
        *told = routes.is_some();
        self.actions.extend(routes.map(|r| RoundAction::Send(PeerMessage::LaneRoutes(r))));
        if done {
            self.ready(peer_ready);
        }
    }

    /// The engine's answer to [`RoundAction::TakeRoutes`].
    pub(crate) fn on_routes_taken(&mut self, round: u64, result: Result<bool, Reason>) {
        let State::Resuming { peer_ready, .. } = self.state else { return };
        if round != self.round {
            return;
        }
        match result {
            Ok(done) => {
                let (lane, incarnation) = self.name;
                self.actions.push_back(RoundAction::Send(PeerMessage::LaneRoutesTaken { lane, incarnation }));
                if done {
                    self.ready(peer_ready);
                }
            }
            Err(reason) => {
                self.actions.push_back(RoundAction::Lost(reason));
                self.send_reset(reason, false, false);
            }
        }
    }

    fn up(&mut self) {
        self.state = State::Up;
        self.actions.push_back(RoundAction::Ready);
    }

    /// The engine says that the lane failed; it has reset the connections itself.
    pub(crate) fn on_lane_failed(&mut self, reason: Reason) {
        if self.has_end() {
            self.send_reset(reason, false, false);
        }
    }

    /// The engine says that the queue pair failed; it keeps the connections.
    pub(crate) fn on_lane_reset(&mut self) {
        if self.has_end() {
            self.send_reset(Reason::LaneFailed, true, false);
        }
    }

    /// The engine says that the lane is not used; it gave the queue pair up, and keeps the connections.
    pub(crate) fn on_lane_rests(&mut self) {
        if self.has_end() {
            self.send_reset(Reason::LaneFailed, true, true);
        }
    }

    /// Whether the engine's word can be about this round: while it makes a new end, or none is connected, it is about
    /// an older lane.
    fn has_end(&self) -> bool {
        !matches!(self.state, State::Idle | State::Resting | State::Making(_) | State::Draining { .. })
    }

    fn send_reset(&mut self, reason: Reason, resumes: bool, rests: bool) {
        let (lane, incarnation) = self.name;
        self.actions.push_back(RoundAction::Send(PeerMessage::LaneReset { lane, incarnation, reason, resumes, rests }));
        self.state = State::Draining { wanted: false, resumes, rests };
    }

    /// The peer's offer.
    pub(crate) fn handle_offer(&mut self, offer: LaneOffer) -> Result<(), OutOfOrder> {
        match &mut self.state {
            State::Idle => self.begin(Some(offer), false),
            State::Resting => self.begin(Some(offer), true),
            State::Making(peer_offer @ None) => *peer_offer = Some(offer),
            State::Offered => self.accept(offer),
            State::Draining { .. } => {}
            _ => return Err(self.out_of_order("a second offer")),
        }
        Ok(())
    }

    /// The peer's end is ready.
    pub(crate) fn handle_ready(&mut self) -> Result<(), OutOfOrder> {
        match &mut self.state {
            State::Accepting { peer_ready, .. } | State::Resuming { peer_ready, .. } if !*peer_ready => {
                *peer_ready = true;
            }
            State::HalfUp => self.up(),
            State::Draining { .. } => {}
            _ => return Err(self.out_of_order("ready")),
        }
        Ok(())
    }

    /// What arrived at the peer.
    pub(crate) fn handle_routes(&mut self, told: LaneRoutes) -> Result<(), OutOfOrder> {
        match &mut self.state {
            State::Accepting { routes: routes @ None, .. } if self.resumes => *routes = Some(told),
            State::Resuming { .. } => {
                self.actions.push_back(RoundAction::TakeRoutes { round: self.round, routes: told });
            }
            State::Draining { .. } => {}
            _ => return Err(self.out_of_order("routes")),
        }
        Ok(())
    }

    /// The peer took our last report.
    pub(crate) fn handle_routes_taken(&mut self) -> Result<(), OutOfOrder> {
        match &mut self.state {
            State::Resuming { told, .. } if *told => {
                *told = false;
                self.actions.push_back(RoundAction::TellRoutes { round: self.round });
            }
            State::Draining { .. } => {}
            _ => return Err(self.out_of_order("taken")),
        }
        Ok(())
    }

    /// The peer gave the lane up, or confirms that we did.
    pub(crate) fn handle_reset(&mut self, reason: Reason, resumes: bool, rests: bool) -> Result<(), OutOfOrder> {
        // Its limit is the peer's limit here.
        let reason = if reason == Reason::LocalLimit { Reason::PeerLimit } else { reason };
        match self.state {
            State::Idle => return Err(self.out_of_order("a reset")),
            State::Resting if resumes => return Err(self.out_of_order("a reset that resumes")),
            State::Draining { resumes: true, rests: true, wanted: false } if resumes && rests => {
                self.state = State::Resting;
            }
            State::Draining { resumes: true, rests: rested, .. } if resumes => {
                if rests && !rested {
                    self.actions.push_back(RoundAction::Rest);
                }
                self.begin(None, true);
            }
            State::Draining { wanted, resumes: kept, .. } => {
                self.state = State::Idle;
                if kept {
                    self.actions.push_back(RoundAction::Lost(reason));
                }
                if wanted {
                    self.want();
                }
            }
            _ if resumes && rests => {
                self.actions.push_back(RoundAction::Rest);
                self.send_reset(reason, true, true);
                self.state = State::Resting;
            }
            _ if resumes => {
                self.actions.push_back(RoundAction::Reset);
                self.send_reset(reason, true, false);
                self.begin(None, true);
            }
            _ => {
                self.actions.push_back(RoundAction::Lost(reason));
                self.send_reset(reason, false, false);
                self.state = State::Idle;
            }
        }
        Ok(())
    }

    fn out_of_order(&self, message: &'static str) -> OutOfOrder {
        let state = match self.state {
            State::Idle => "idle",
            State::Making(_) | State::Offered => "being offered",
            State::Accepting { .. } | State::HalfUp => "being connected",
            State::Resuming { .. } => "being resumed",
            State::Up => "up",
            State::Draining { .. } => "being reset",
            State::Resting => "resting",
        };
        OutOfOrder { message, state }
    }
}

#[cfg(test)]
mod tests;
