//! Lanes: what peers say about them, what the engine answers, and what becomes of it.
//!
//! Owns the time limit for setting a lane up. It must never count time in which one of the two daemons stood still.

use std::net::IpAddr;
use std::time::Duration;

use control::{LEASED_LANE_FIRST, PeerMessage, Reason};
use verbs::Time;

use super::{Established, LEASED_PER_LINK_MAX, LaneSetUp, PeerAction, Peers, engine_of};
use crate::lane_round::{LaneRound, RoundAction};
use crate::{LaneAnswer, LaneCommand, LinkCommand, LinkId, LinkPath};

/// Numbers of leased lanes that a daemon gives on a link before it begins again.
const LEASES_PER_LINK_MAX: u32 = 1 << 29;

impl Peers {
    /// Lanes to a peer whose link is up: as many as the daemon with fewer engines has.
    pub(crate) fn lanes_to(&self, peer: IpAddr) -> Option<u32> {
        let established = self.peers.get(&peer.to_canonical())?.established.as_ref()?;
        Some(u32::try_from(established.lanes.len()).unwrap_or(u32::MAX))
    }

    /// A number for one more leased lane to a peer, that neither daemon gave before on this link; none if there is no
    /// link. Daemons give even and odd numbers.
    pub(crate) fn lane_number(&mut self, peer: IpAddr) -> Option<u32> {
        let own = self.config.instance;
        let established = self.peers.get_mut(&peer.to_canonical())?.established.as_mut()?;
        let number = LEASED_LANE_FIRST + 2 * established.leases + u32::from(own < established.instance);
        established.leases = (established.leases + 1) % LEASES_PER_LINK_MAX;
        (!established.leased.contains_key(&number)).then_some(number)
    }

    /// A message of a link that is up.
    pub(crate) fn handle_message(&mut self, now: Time, link: LinkId, message: PeerMessage) {
        let Some(&peer) = self.links.get(&link) else { return };
        let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) else { return };
        if established.link != link {
            return;
        }
        let pause = now.saturating_since(std::mem::replace(&mut established.heard_at, now));
        if pause > self.config.heartbeat.saturating_mul(2) {
            // One of us stood still, and nothing could go on meanwhile.
            let pending = established.all_mut().filter_map(|(_, lane)| lane.pending_since.as_mut());
            pending.for_each(|since| *since = now);
        }
        if std::mem::take(&mut established.is_silent) {
            tracing::info!(%peer, "the peer's daemon speaks again");
            let lanes = established.lanes.len();
            self.tell_silence(peer, lanes, None);
            self.stop_seeking(peer);
        }
        let message = match message {
            PeerMessage::Region(message) => return self.actions.push_back(PeerAction::Region { peer, message }),
            PeerMessage::Meet(message) => return self.actions.push_back(PeerAction::Meet { peer, message }),
            other => other,
        };
        let number = lane_of(&message);
        if matches!(message, PeerMessage::LaneOffer(_)) {
            self.take_leased_offer(peer, number);
        }
        let Some(lane) = self.round_mut(peer, number) else {
            return self.give_up(
                peer,
                link,
                Reason::PeerLost,
                &format!("a message about lane {number}, which is not there"),
            );
        };
        let handled = match message {
            PeerMessage::LaneOffer(offer) => lane.handle_offer(offer),
            PeerMessage::LaneReady { .. } => lane.handle_ready(),
            PeerMessage::LaneReset { reason, resumes, rests, .. } => lane.handle_reset(reason, resumes, rests),
            PeerMessage::LaneRoutes(routes) => lane.handle_routes(routes),
            PeerMessage::LaneRoutesTaken { .. } => lane.handle_routes_taken(),
            // Heard above.
            PeerMessage::Heartbeat | PeerMessage::Region(_) | PeerMessage::Meet(_) => Ok(()),
            message @ (PeerMessage::DirectOffer { .. } | PeerMessage::DirectRefused { .. }) => {
                self.actions.push_back(PeerAction::Direct { peer, message });
                Ok(())
            }
            PeerMessage::Bye { reason, detail } => {
                tracing::info!(%peer, %reason, detail = %detail.escape_default(), "the peer's daemon closed its link");
                let told = if reason == Reason::ShuttingDown { reason } else { Reason::PeerLost };
                self.close(link, Reason::Closed, "goodbye");
                self.drop_established(peer, told);
                return self.forget_idle(peer);
            }
            PeerMessage::Hello { .. }
            | PeerMessage::Noise { .. }
            | PeerMessage::DirectHello { .. }
            | PeerMessage::DirectProof { .. } => {
                return self.give_up(peer, link, Reason::PeerLost, "Hello or Noise on a link that is up");
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
    pub(crate) fn handle_silent(&mut self, link: LinkId, silent: Duration) {
        let Some(&peer) = self.links.get(&link) else { return };
        let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) else { return };
        if established.link != link {
            return;
        }
        if !std::mem::replace(&mut established.is_silent, true) {
            tracing::warn!(%peer, ?silent, "the peer's daemon says nothing; its connections wait for it");
        }
        let lanes = established.lanes.len();
        self.tell_silence(peer, lanes, Some(silent));
    }

    fn tell_silence(&mut self, peer: IpAddr, lanes: usize, silent: Option<Duration>) {
        for (engine, _) in (0..).zip(0..lanes) {
            let command = LaneCommand::PeerSilent { peer, silent };
            self.actions.push_back(PeerAction::Engine { engine, lane: engine, command });
        }
    }

    /// The peer offers its end of a leased lane that it wants. The engine refuses one that it does not expect.
    fn take_leased_offer(&mut self, peer: IpAddr, number: u32) {
        let rounds = self.rounds;
        let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) else { return };
        if number >= LEASED_LANE_FIRST && established.leased.len() < LEASED_PER_LINK_MAX {
            established.leased.entry(number).or_insert_with(|| LaneSetUp::new(number, rounds));
        }
    }

    /// The rounds of a lane of a link that is up.
    fn round_mut(&mut self, peer: IpAddr, lane: u32) -> Option<&mut LaneRound> {
        let established = self.peers.get_mut(&peer)?.established.as_mut()?;
        Some(&mut established.lane_mut(lane)?.round)
    }

    /// An engine's answer to a [`LaneCommand`], about its lane.
    pub(crate) fn on_answer(&mut self, now: Time, peer: IpAddr, lane: u32, answer: LaneAnswer) {
        let Some(round) = self.round_mut(peer, lane) else { return };
        match answer {
            LaneAnswer::Offered { round: number, result } => {
                let result = result.map_err(|refusal| {
                    tracing::warn!(%peer, lane, error = refusal.detail, "the device makes no lane");
                    // A leased one is not expected any more: its handle is over.
                    let is_over = lane >= LEASED_LANE_FIRST && refusal.reason == Reason::LocalLimit;
                    if is_over { Reason::LaneRevoked } else { refusal.reason }
                });
                round.on_offer_made(number, result);
            }
            LaneAnswer::Accepted { round: number, result } => {
                let result = result.map_err(|refusal| {
                    tracing::warn!(%peer, lane, error = refusal.detail, "the peer's offer of a lane cannot be used");
                    refusal.reason
                });
                round.on_accepted(number, result);
            }
            LaneAnswer::RoutesTold { round: number, routes, done } => round.on_routes_told(number, routes, done),
            LaneAnswer::RoutesTaken { round: number, result } => {
                let result = result.map_err(|error| {
                    tracing::warn!(%peer, lane, error, "the connections of a lane cannot go on");
                    Reason::LaneFailed
                });
                round.on_routes_taken(number, result);
            }
        }
        self.pump(now, peer);
    }

    /// An engine says that its lane's queue pair is gone, and keeps the connections. Without a link they are about to
    /// end.
    pub(crate) fn on_lane_reset(&mut self, now: Time, peer: IpAddr, lane: u32) {
        if let Some(round) = self.round_mut(peer, lane) {
            round.on_lane_reset();
            self.pump(now, peer);
        }
    }

    /// An engine says that its lane was not used for long: it gave the queue pair up, and keeps the connections.
    pub(crate) fn on_lane_rests(&mut self, now: Time, peer: IpAddr, lane: u32) {
        if let Some(round) = self.round_mut(peer, lane) {
            round.on_lane_rests();
            self.pump(now, peer);
        }
    }

    /// An engine says that its lane failed.
    pub(crate) fn on_lane_failed(&mut self, now: Time, peer: IpAddr, lane: u32, reason: Reason) {
        if let Some(round) = self.round_mut(peer, lane) {
            round.on_lane_failed(reason);
            self.pump(now, peer);
        }
    }

    /// Carries out what the rounds want, and watches how long each takes.
    pub(super) fn pump(&mut self, now: Time, peer: IpAddr) {
        let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) else { return };
        let (link, path) = (established.link, established.lane_path);
        let mut rounds = self.rounds;
        for (number, lane) in established.all_mut() {
            while let Some(action) = lane.round.poll_action() {
                self.actions.push_back(match command_of(peer, number, path, action) {
                    Ok(command) => PeerAction::Engine { engine: engine_of(number), lane: number, command },
                    Err(message) => PeerAction::Link(LinkCommand::Send { link, message }),
                });
            }
            if !lane.round.is_pending() {
                lane.pending_since = None;
            } else if lane.pending_since.is_none() {
                lane.pending_since = Some(now);
            }
        }
        established.leased.retain(|_, lane| {
            // Later answers of the engine are about no round that is still to come.
            rounds = rounds.max(lane.round.number());
            !lane.round.is_over()
        });
        self.rounds = rounds;
    }

    /// Gives up a peer that leaves a lane half set up although it is not silent; called when the peer has sent
    /// something. A silent peer may stand still, and the daemon waits for it as long as its link is kept.
    fn check_setup(&mut self, now: Time, peer: IpAddr) {
        let established = self.peers.get(&peer).and_then(|p| p.established.as_ref());
        let is_late = |lane: &LaneSetUp| lane.pending_since.is_some_and(|since| since + self.config.lane_setup <= now);
        let late = |e: &&Established| e.all().any(|(_, lane)| is_late(lane));
        if let Some(link) = established.filter(late).map(|e| e.link) {
            tracing::warn!(%peer, "closing the link to a daemon that leaves a lane half made");
            self.give_up(peer, link, Reason::TimedOut, "the lane was not set up in time");
        }
    }
}

/// The lane that a message is about; 0 for one about no lane.
pub(super) fn lane_of(message: &PeerMessage) -> u32 {
    match message {
        PeerMessage::LaneOffer(offer) => offer.lane,
        PeerMessage::LaneRoutes(routes) => routes.lane,
        PeerMessage::LaneReady { lane, .. }
        | PeerMessage::LaneReset { lane, .. }
        | PeerMessage::LaneRoutesTaken { lane, .. }
        | PeerMessage::DirectOffer { lane, .. } => *lane,
        PeerMessage::Hello { .. }
        | PeerMessage::Noise { .. }
        | PeerMessage::Heartbeat
        | PeerMessage::Bye { .. }
        | PeerMessage::Region(_)
        | PeerMessage::Meet(_)
        | PeerMessage::DirectRefused { .. }
        | PeerMessage::DirectHello { .. }
        | PeerMessage::DirectProof { .. } => 0,
    }
}

/// What a round wants: of its engine, or (an error) of the peer.
fn command_of(
    peer: IpAddr,
    lane: u32,
    path: Option<LinkPath>,
    action: RoundAction,
) -> Result<LaneCommand, PeerMessage> {
    Ok(match action {
        RoundAction::MakeOffer { round } => LaneCommand::Offer { peer, round, path },
        RoundAction::Accept { round, offer } => LaneCommand::Accept { peer, round, offer },
        RoundAction::TellRoutes { round } => LaneCommand::TellRoutes { peer, round },
        RoundAction::TakeRoutes { round, routes } => LaneCommand::TakeRoutes { peer, round, routes },
        RoundAction::Reset => {
            tracing::info!(%peer, lane, "the peer resets the lane; its connections wait for a new queue pair");
            LaneCommand::Reset { peer }
        }
        RoundAction::Rest => {
            tracing::debug!(%peer, lane, "the lane rests");
            LaneCommand::Rest { peer }
        }
        RoundAction::Ready => {
            tracing::info!(%peer, lane, "lane is up");
            LaneCommand::Ready { peer }
        }
        RoundAction::Lost(reason) => {
            tracing::info!(%peer, lane, %reason, "lane is down");
            LaneCommand::Lost { peer, reason }
        }
        RoundAction::Send(message) => return Err(message),
    })
}
