//! Lanes: what peers say about them, what the engine answers, and what becomes of it.
//!
//! Owns the time limit for setting a lane up. It must never count time in which one of the two daemons stood still.

use std::net::IpAddr;
use std::time::Duration;

use control::{PeerMessage, Reason};
use verbs::Time;

use super::{Established, PeerAction, Peers};
use crate::lane_round::RoundAction;
use crate::{LaneAnswer, LaneCommand, LinkId};

impl Peers {
    /// A message of a link that is up.
    pub fn handle_message(&mut self, now: Time, link: LinkId, message: PeerMessage) {
        let Some(&peer) = self.links.get(&link) else { return };
        let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) else { return };
        if established.link != link {
            return;
        }
        let pause = now.saturating_since(std::mem::replace(&mut established.heard_at, now));
        if pause > self.config.heartbeat.saturating_mul(2) && established.pending_since.is_some() {
            // One of us stood still, and nothing could go on meanwhile.
            established.pending_since = Some(now);
        }
        if std::mem::take(&mut established.is_silent) {
            tracing::info!(%peer, "the peer's daemon speaks again");
            self.actions.push_back(PeerAction::Engine(LaneCommand::PeerSilent { peer, silent: None }));
        }
        let handled = match message {
            PeerMessage::LaneOffer(offer) => established.round.handle_offer(offer),
            PeerMessage::LaneReady { .. } => established.round.handle_ready(),
            PeerMessage::LaneReset { reason, resumes, rests, .. } => {
                established.round.handle_reset(reason, resumes, rests)
            }
            PeerMessage::LaneRoutes(routes) => established.round.handle_routes(routes),
            PeerMessage::LaneRoutesTaken { .. } => established.round.handle_routes_taken(),
            PeerMessage::Heartbeat => Ok(()),
            PeerMessage::Bye { reason, detail } => {
                tracing::info!(%peer, %reason, detail = %detail.escape_default(), "the peer's daemon closed its link");
                let told = if reason == Reason::ShuttingDown { reason } else { Reason::PeerLost };
                self.close(link, Reason::Closed, "goodbye");
                self.drop_established(peer, told);
                return self.forget_idle(peer);
            }
            PeerMessage::Hello { .. } | PeerMessage::Proof { .. } => {
                return self.give_up(peer, link, Reason::PeerLost, "Hello or Proof on a link that is up");
            }
        };
        match handled {
            Ok(()) => {
                self.pump(now, peer);
                self.check_setup(now, peer);
            }
            Err(error) => {
                tracing::warn!(%peer, %error, "closing the link to a daemon that breaks the protocol");
                self.give_up(peer, link, Reason::PeerLost, &error.to_string());
            }
        }
    }

    /// The peer of a link has said nothing for so long.
    pub fn handle_silent(&mut self, link: LinkId, silent: Duration) {
        let Some(&peer) = self.links.get(&link) else { return };
        let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) else { return };
        if established.link != link {
            return;
        }
        if !std::mem::replace(&mut established.is_silent, true) {
            tracing::warn!(%peer, ?silent, "the peer's daemon says nothing; its connections wait for it");
        }
        self.actions.push_back(PeerAction::Engine(LaneCommand::PeerSilent { peer, silent: Some(silent) }));
    }

    /// The engine's answer to a [`LaneCommand`].
    pub fn on_answer(&mut self, now: Time, peer: IpAddr, answer: LaneAnswer) {
        let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) else { return };
        let round = &mut established.round;
        match answer {
            LaneAnswer::Offered { round: number, result } => {
                let result = result.map_err(|error| {
                    tracing::warn!(%peer, error, "the device makes no lane");
                    Reason::LocalLimit
                });
                round.on_offer_made(number, result);
            }
            LaneAnswer::Accepted { round: number, result } => {
                let result = result.map_err(|error| {
                    tracing::warn!(%peer, error, "the peer's offer of a lane cannot be used");
                    Reason::LaneFailed
                });
                round.on_accepted(number, result);
            }
            LaneAnswer::RoutesTold { round: number, routes, done } => round.on_routes_told(number, routes, done),
            LaneAnswer::RoutesTaken { round: number, result } => {
                let result = result.map_err(|error| {
                    tracing::warn!(%peer, error, "the connections of a lane cannot go on");
                    Reason::LaneFailed
                });
                round.on_routes_taken(number, result);
            }
        }
        self.pump(now, peer);
    }

    /// The engine says that the lane's queue pair failed, and keeps the connections. Without a link they are about to
    /// end.
    pub fn on_lane_reset(&mut self, now: Time, peer: IpAddr, detail: &str) {
        if let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) {
            tracing::warn!(%peer, detail, "the lane is reset; its connections wait for a new queue pair");
            established.round.on_lane_reset();
            self.pump(now, peer);
        }
    }

    /// The engine says that the lane was not used for long: it gave the queue pair up, and keeps the connections.
    pub fn on_lane_rests(&mut self, now: Time, peer: IpAddr) {
        if let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) {
            established.round.on_lane_rests();
            self.pump(now, peer);
        }
    }

    /// The engine says that the lane failed.
    pub fn on_lane_failed(&mut self, now: Time, peer: IpAddr, reason: Reason) {
        if let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) {
            established.round.on_lane_failed(reason);
            self.pump(now, peer);
        }
    }

    /// Carries out what a round wants, and watches how long it takes.
    pub(super) fn pump(&mut self, now: Time, peer: IpAddr) {
        let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) else { return };
        let link = established.link;
        while let Some(action) = established.round.poll_action() {
            let action = match action {
                RoundAction::MakeOffer { round } => PeerAction::Engine(LaneCommand::Offer { peer, round }),
                RoundAction::Accept { round, offer } => PeerAction::Engine(LaneCommand::Accept { peer, round, offer }),
                RoundAction::TellRoutes { round } => PeerAction::Engine(LaneCommand::TellRoutes { peer, round }),
                RoundAction::TakeRoutes { round, routes } => {
                    PeerAction::Engine(LaneCommand::TakeRoutes { peer, round, routes })
                }
                RoundAction::Reset => {
                    tracing::info!(%peer, "the peer resets the lane; its connections wait for a new queue pair");
                    PeerAction::Engine(LaneCommand::Reset { peer })
                }
                RoundAction::Rest => {
                    tracing::debug!(%peer, "the lane rests");
                    PeerAction::Engine(LaneCommand::Rest { peer })
                }
                RoundAction::Ready => {
                    tracing::info!(%peer, "lane is up");
                    PeerAction::Engine(LaneCommand::Ready { peer })
                }
                RoundAction::Lost(reason) => {
                    tracing::info!(%peer, %reason, "lane is down");
                    PeerAction::Engine(LaneCommand::Lost { peer, reason })
                }
                RoundAction::Send(message) => PeerAction::Send { link, message },
            };
            self.actions.push_back(action);
        }
        if !established.round.is_pending() {
            established.pending_since = None;
        } else if established.pending_since.is_none() {
            established.pending_since = Some(now);
        }
    }

    /// Gives up a peer that leaves a lane half set up although it is not silent; called when the peer has sent
    /// something. A silent peer may stand still, and the daemon waits for it as long as its link is kept.
    fn check_setup(&mut self, now: Time, peer: IpAddr) {
        let established = self.peers.get(&peer).and_then(|p| p.established.as_ref());
        let late = |e: &&Established| e.pending_since.is_some_and(|since| since + self.config.lane_setup <= now);
        if let Some(link) = established.filter(late).map(|e| e.link) {
            tracing::warn!(%peer, "closing the link to a daemon that leaves a lane half made");
            self.give_up(peer, link, Reason::TimedOut, "the lane was not set up in time");
        }
    }
}
