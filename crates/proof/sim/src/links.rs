//! Control links between daemons, reduced to what lanes need: at most one to each peer, ordered, lost as a whole.
//!
//! Owns which ends are up and how far each end's round of a lane is. The rules of a round are those of the daemon: each side
//! sends one offer, one ready and at its end one reset, and hears nothing of a new round before both resets crossed. It must
//! never act: what is to be done is returned.

use std::collections::{BTreeMap, VecDeque};

use control::{LaneOffer, LaneRoutes, Reason};
use verbs::Time;

/// A message of a lane's set-up.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    Offer(LaneOffer),
    Ready,
    /// And whether the sender keeps the lane's connections.
    Reset(Reason, bool),
    Routes(LaneRoutes),
    RoutesTaken,
}

impl Message {
    /// For the trace.
    pub(crate) fn code(&self) -> u64 {
        match self {
            Self::Offer(_) => 1,
            Self::Ready => 2,
            Self::Reset(_, false) => 3,
            Self::Reset(_, true) => 4,
            Self::Routes(_) => 5,
            Self::RoutesTaken => 6,
        }
    }
}

/// How far one end is in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Round {
    #[default]
    Idle,
    Offered,
    /// The engines tell each other what arrived.
    Resuming,
    HalfUp,
    Up,
    /// Our reset is sent, the peer's is not yet here.
    Draining {
        wanted: bool,
        resumes: bool,
    },
}

/// What a daemon does next about a lane.
#[derive(Debug)]
pub(crate) enum Step {
    /// Make the own end, send the offer; then take the peer's if it is here.
    Begin(Option<LaneOffer>),
    Accept(LaneOffer),
    /// Both ends gave the lane up and kept its connections.
    BeginAgain,
    /// The peer gave the lane up and kept its connections.
    Reset(Reason),
    Tell,
    Take(LaneRoutes),
    Ready,
    Lost(Reason),
    /// Nothing.
    None,
    /// The peer broke the order.
    OutOfOrder,
}

/// One end of a control link.
#[derive(Debug, Default)]
pub(crate) struct LinkEnd {
    /// The link, by its number.
    pub(crate) up: Option<u64>,
    /// The peer's life at the other end of it.
    pub(crate) peer_life: u32,
    pub(crate) round: Round,
    /// The connections of the round before go on in this one.
    pub(crate) resumes: bool,
    /// Number of the dial that is on its way.
    pub(crate) dial: Option<u64>,
    pub(crate) redials: u32,
    /// A lane is wanted when the link is up.
    pub(crate) wanted: bool,
    /// Arrival of the last message to this end.
    pub(crate) last_at: Time,
    /// Messages to this end that wait for the path, with the number of their link.
    pub(crate) held: VecDeque<(u64, Message)>,
}

impl LinkEnd {
    /// The peer's message.
    pub(crate) fn handle(&mut self, message: Message) -> Step {
        match (self.round, message) {
            (Round::Idle, Message::Offer(offer)) => Step::Begin(Some(offer)),
            (Round::Offered, Message::Offer(offer)) => Step::Accept(offer),
            (Round::HalfUp, Message::Ready) => {
                self.round = Round::Up;
                Step::Ready
            }
            (Round::Resuming, Message::Routes(routes)) => Step::Take(routes),
            (Round::Resuming, Message::RoutesTaken) => Step::Tell,
            (Round::Draining { resumes: true, .. }, Message::Reset(_, true)) => Step::BeginAgain,
            (Round::Draining { wanted, resumes }, Message::Reset(reason, _)) => {
                self.round = Round::Idle;
                match (resumes, wanted) {
                    (true, _) => Step::Lost(reason),
                    (false, true) => Step::Begin(None),
                    (false, false) => Step::None,
                }
            }
            (Round::Draining { .. }, _) => Step::None,
            (Round::Offered | Round::Resuming | Round::HalfUp | Round::Up, Message::Reset(reason, true)) => {
                Step::Reset(reason)
            }
            (Round::Offered | Round::Resuming | Round::HalfUp | Round::Up, Message::Reset(reason, false)) => {
                self.round = Round::Idle;
                Step::Lost(reason)
            }
            _ => Step::OutOfOrder,
        }
    }
}

/// All ends, by the host and its peer.
#[derive(Debug, Default)]
pub(crate) struct Links {
    ends: BTreeMap<(usize, usize), LinkEnd>,
    last_number: u64,
}

impl Links {
    pub(crate) fn end(&mut self, host: usize, peer: usize) -> &mut LinkEnd {
        self.ends.entry((host, peer)).or_default()
    }

    /// A number that no link and no dial had.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// A host is dead: its ends are forgotten; links of others that led to it are returned.
    pub(crate) fn on_crash(&mut self, host: usize) -> Vec<(usize, u64)> {
        self.ends.retain(|(h, _), _| *h != host);
        self.ends.iter().filter(|((_, p), _)| *p == host).filter_map(|((h, _), e)| Some((*h, e.up?))).collect()
    }

    /// Ends between two hosts whose other end is not up by the same number.
    pub(crate) fn half_open(&self, a: usize, b: usize) -> Vec<(usize, usize, u64)> {
        let up = |h, p| self.ends.get(&(h, p)).and_then(|e: &LinkEnd| e.up);
        [(a, b), (b, a)]
            .into_iter()
            .filter_map(|(h, p)| up(h, p).filter(|n| up(p, h) != Some(*n)).map(|n| (h, p, n)))
            .collect()
    }
}
