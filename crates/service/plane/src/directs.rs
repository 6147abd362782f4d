//! TCP connections for streams of bulk, from the engine's report to both applications (docs/inside/kernel-tcp.md).
//!
//! Decides which streams get one, who connects, and who may have the socket; no I/O. It must never give a socket to a
//! program before its other end has proven the token, and never keep a token longer than [`OFFER_TIME`].
//!
//! `F` is the driver's socket.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use control::{CHALLENGE_BYTES, PeerMessage, Reason};
use verbs::Time;

use crate::direct_proof::{DirectHello, DirectProof};
use crate::user_places::give_back;
use crate::{ClientId, Side};

/// Such connections of a host at most.
pub(crate) const DIRECT_MAX: usize = 1024;
/// Of one user's programs.
pub(crate) const DIRECT_PER_USER_MAX: usize = 256;
/// Those of them that are being made, and offers of peers that are looked at, each.
pub(crate) const DIRECT_MAKING_MAX: usize = 64;
/// Of them those that this host has offered to one peer. They come to the peer's port as links without proof do, of which
/// it has places for 32 from one address unless configured otherwise. Further streams wait for their turn.
pub(crate) const OFFERS_PER_PEER_MAX: usize = 24;
/// From an offer until its connection must be there.
pub const OFFER_TIME: Duration = Duration::from_secs(5);

/// A stream of bulk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkOf {
    /// Whose.
    pub client: ClientId,
    /// The user of the program.
    pub uid: u32,
    /// Its number on this host.
    pub connection: u64,
    /// Its slot in the session segment.
    pub slot: u32,
    /// The other host.
    pub peer: IpAddr,
    /// The lane that carries it, and at both ends the engine.
    pub lane: u32,
    /// How the other host names it there.
    pub peer_route: u32,
}

/// What the daemon does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DirectAction<F> {
    /// Send a message on the link to a peer.
    Send { peer: IpAddr, message: PeerMessage },
    /// Ask the engine which stream a peer means. Answered by [`Directs::on_route`].
    AskRoute { peer: IpAddr, number: u64, lane: u32, route: u32 },
    /// Connect to the peer's daemon and prove the token. Answered by [`Directs::on_dialed`].
    Dial { peer: IpAddr, number: u64, token: [u8; CHALLENGE_BYTES], connection: u64 },
    /// Pass the socket to the program.
    Give { client: ClientId, connection: u64, slot: u32, socket: F },
}

/// Counts for `raas stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectCounters {
    /// Streams that have one now, or get one.
    pub open: u64,
    /// Sockets that were passed to programs.
    pub made: u64,
    /// Streams of bulk that stayed on the lane.
    pub refused: u64,
}

/// By which offer a stream has, or gets, its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offer {
    number: u64,
    is_ours: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its offer waits until there are fewer.
    Waiting,
    Making,
    Given,
    Refused(Reason),
}

#[derive(Debug)]
struct Stream {
    of: BulkOf,
    offer: Offer,
    state: State,
}

/// An offer of this host whose connection has not come.
#[derive(Debug)]
struct OwnOffer {
    peer: IpAddr,
    connection: u64,
    token: [u8; CHALLENGE_BYTES],
    deadline: Time,
    /// Somebody has proven the token: nobody else may.
    is_met: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Directs<F> {
    own: IpAddr,
    streams: BTreeMap<u64, Stream>,
    offers: BTreeMap<u64, OwnOffer>,
    /// Streams whose offers wait, and their tokens. Those that ended are still here.
    waiting: VecDeque<(u64, [u8; CHALLENGE_BYTES])>,
    /// Offers of peers about which the engine was asked.
    asked: BTreeMap<(IpAddr, u64), [u8; CHALLENGE_BYTES]>,
    /// Streams of each user that have one or get one.
    users: BTreeMap<u32, usize>,
    next: u64,
    counters: DirectCounters,
    actions: VecDeque<DirectAction<F>>,
}

impl<F> Directs<F> {
    /// `own`: the host's address.
    pub(crate) fn new(own: IpAddr) -> Self {
        Self {
            own,
            streams: BTreeMap::new(),
            offers: BTreeMap::new(),
            waiting: VecDeque::new(),
            asked: BTreeMap::new(),
            users: BTreeMap::new(),
            next: 1,
            counters: DirectCounters::default(),
            actions: VecDeque::new(),
        }
    }

    /// What to do next.
    pub(crate) fn poll_action(&mut self, now: Time) -> Option<DirectAction<F>> {
        if self.actions.is_empty() {
            self.offer_next(now);
        }
        self.actions.pop_front()
    }

    fn send(&mut self, peer: IpAddr, message: PeerMessage) {
        self.actions.push_back(DirectAction::Send { peer, message });
    }

    fn refuse(&mut self, peer: IpAddr, number: u64, is_yours: bool, reason: Reason) {
        self.send(peer, PeerMessage::DirectRefused { number, is_yours, reason });
    }

    // ---- limits

    fn making(&self) -> usize {
        self.streams.values().filter(|s| s.state == State::Making).count()
    }

    /// Takes the stream in; an error is the limit that does not allow it.
    fn enter(&mut self, of: BulkOf, offer: Offer, state: State) -> Result<(), Reason> {
        let live: usize = self.users.values().sum();
        let own = self.users.get(&of.uid).copied().unwrap_or(0);
        let is_crowded = state == State::Making && self.making() >= DIRECT_MAKING_MAX;
        let is_full = live >= DIRECT_MAX || own >= DIRECT_PER_USER_MAX || is_crowded;
        let state = if is_full { State::Refused(Reason::LocalLimit) } else { state };
        if is_full {
            self.counters.refused += 1;
        } else {
            *self.users.entry(of.uid).or_default() += 1;
        }
        self.streams.insert(of.connection, Stream { of, offer, state });
        if is_full { Err(Reason::LocalLimit) } else { Ok(()) }
    }

    fn set_refused(&mut self, connection: u64, reason: Reason) {
        let Some(stream) = self.streams.get_mut(&connection) else { return };
        if let State::Refused(_) = stream.state {
            return;
        }
        stream.state = State::Refused(reason);
        let (uid, offer) = (stream.of.uid, stream.offer);
        self.counters.refused += 1;
        give_back(&mut self.users, uid);
        if offer.is_ours {
            self.offers.remove(&offer.number);
        }
    }

    // ---- offers

    /// The engine reports a stream of bulk. `token` is random.
    pub(crate) fn handle_bulk(&mut self, of: BulkOf, token: [u8; CHALLENGE_BYTES]) {
        // An offer has no number until its turn.
        if !self.streams.contains_key(&of.connection)
            && self.enter(of, Offer { number: 0, is_ours: true }, State::Waiting).is_ok()
        {
            self.waiting.push_back((of.connection, token));
        }
    }

    /// Offers the streams whose turn it is.
    fn offer_next(&mut self, now: Time) {
        if self.waiting.is_empty() {
            return;
        }
        let (streams, offers) = (&self.streams, &self.offers);
        self.waiting.retain(|(connection, _)| streams.get(connection).is_some_and(|s| s.state == State::Waiting));
        let mut of_peers: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for offer in offers.values() {
            *of_peers.entry(offer.peer).or_default() += 1;
        }
        let mut making = self.making();
        for _ in 0..self.waiting.len() {
            let Some((connection, token)) = self.waiting.pop_front() else { return };
            let Some(stream) = self.streams.get_mut(&connection) else { continue };
            let of_peer = of_peers.entry(stream.of.peer).or_default();
            if making >= DIRECT_MAKING_MAX || *of_peer >= OFFERS_PER_PEER_MAX {
                self.waiting.push_back((connection, token));
                continue;
            }
            (making, *of_peer) = (making + 1, *of_peer + 1);
            let (number, of) = (self.next, stream.of);
            self.next += 1;
            stream.offer.number = number;
            stream.state = State::Making;
            let offer = OwnOffer { peer: of.peer, connection, token, deadline: now + OFFER_TIME, is_met: false };
            self.offers.insert(number, offer);
            self.send(of.peer, PeerMessage::DirectOffer { number, lane: of.lane, route: of.peer_route, token });
        }
    }

    /// A peer says something about such connections.
    pub(crate) fn handle_message(&mut self, peer: IpAddr, message: PeerMessage) {
        match message {
            PeerMessage::DirectOffer { number, lane, route, token } => {
                if self.asked.len() >= DIRECT_MAKING_MAX {
                    return self.refuse(peer, number, true, Reason::PeerLimit);
                }
                if self.asked.insert((peer, number), token).is_none() {
                    self.actions.push_back(DirectAction::AskRoute { peer, number, lane, route });
                }
            }
            PeerMessage::DirectRefused { number, is_yours, reason } => {
                let offer = Offer { number, is_ours: is_yours };
                let mut meant = self.streams.values().filter(|s| s.offer == offer && s.of.peer == peer);
                if let Some(connection) = meant.next().map(|s| s.of.connection) {
                    self.set_refused(connection, reason);
                }
            }
            _ => {}
        }
    }

    /// The engine's answer: the stream that the peer means, if there is one.
    pub(crate) fn on_route(&mut self, peer: IpAddr, number: u64, of: Option<BulkOf>) {
        let Some(token) = self.asked.remove(&(peer, number)) else { return };
        let Some(of) = of else { return self.refuse(peer, number, true, Reason::Closed) };
        match self.streams.get(&of.connection).map(|s| (s.state, s.offer)) {
            None => {}
            // Both hosts offer at once: that of the lower address stands, and both decide so.
            Some((State::Making, offer)) if offer.is_ours && self.own > peer => {
                self.offers.remove(&offer.number);
                self.streams.remove(&of.connection);
                give_back(&mut self.users, of.uid);
            }
            // This host has not offered yet.
            Some((State::Waiting, _)) => {
                self.streams.remove(&of.connection);
                give_back(&mut self.users, of.uid);
            }
            Some((State::Making | State::Given, _)) => return,
            Some((State::Refused(_), _)) => return self.refuse(peer, number, true, Reason::PeerLimit),
        }
        if self.enter(of, Offer { number, is_ours: false }, State::Making).is_err() {
            return self.refuse(peer, number, true, Reason::PeerLimit);
        }
        self.actions.push_back(DirectAction::Dial { peer, number, token, connection: of.connection });
    }

    // ---- sockets

    /// The socket to the peer that made an offer, or why there is none.
    pub(crate) fn on_dialed(&mut self, peer: IpAddr, number: u64, connection: u64, result: Result<F, Reason>) {
        let offer = Offer { number, is_ours: false };
        let is_meant = |s: &Stream| s.state == State::Making && s.offer == offer && s.of.peer == peer;
        if !self.streams.get(&connection).is_some_and(is_meant) {
            return;
        }
        match result {
            Ok(socket) => self.give(connection, socket),
            Err(reason) => {
                self.set_refused(connection, reason);
                self.refuse(peer, number, true, reason);
            }
        }
    }

    /// Somebody at the port says that it comes for an offer: this side's proof if it has proven its own, once.
    pub(crate) fn judge(&mut self, now: Time, hello: &DirectHello) -> Option<[u8; 32]> {
        let offer = self.offers.get_mut(&hello.number).filter(|offer| !offer.is_met && now < offer.deadline)?;
        let proof = DirectProof { number: hello.number, token: offer.token, nonce: hello.nonce };
        if !proof.is_proven(Side::Dialer, &hello.mac) {
            return None;
        }
        offer.is_met = true;
        Some(proof.mac(Side::Acceptor))
    }

    /// The socket of one that [`Directs::judge`] let in; `None`: it broke.
    pub(crate) fn handle_socket(&mut self, number: u64, socket: Option<F>) {
        let Some(offer) = self.offers.get(&number).filter(|offer| offer.is_met) else { return };
        let connection = offer.connection;
        match socket {
            Some(socket) => {
                self.offers.remove(&number);
                self.give(connection, socket);
            }
            None => self.set_refused(connection, Reason::PeerLost),
        }
    }

    fn give(&mut self, connection: u64, socket: F) {
        let Some(stream) = self.streams.get_mut(&connection) else { return };
        stream.state = State::Given;
        self.counters.made += 1;
        let BulkOf { client, slot, .. } = stream.of;
        self.actions.push_back(DirectAction::Give { client, connection, slot, socket });
    }

    /// The program had no descriptor for it. An error is what it did wrong.
    pub(crate) fn handle_not_taken(&mut self, client: ClientId, connection: u64) -> Result<(), String> {
        let Some(stream) = self.streams.get(&connection) else { return Ok(()) };
        if stream.of.client != client || matches!(stream.state, State::Waiting | State::Making) {
            return Err(format!("connection {connection} got no socket"));
        }
        if let State::Refused(_) = stream.state {
            // The peer knows.
            return Ok(());
        }
        let (peer, Offer { number, is_ours }) = (stream.of.peer, stream.offer);
        self.set_refused(connection, Reason::AppDescriptors);
        self.refuse(peer, number, !is_ours, Reason::PeerAppDescriptors);
        Ok(())
    }

    // ---- ends

    /// Nothing of a connection is in use any more.
    pub(crate) fn handle_over(&mut self, connection: u64) {
        let Some(stream) = self.streams.remove(&connection) else { return };
        if !matches!(stream.state, State::Refused(_)) {
            give_back(&mut self.users, stream.of.uid);
        }
        if stream.offer.is_ours {
            self.offers.remove(&stream.offer.number);
        }
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.offers.values().map(|offer| offer.deadline).min()
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        let late = self.offers.values().filter(|offer| offer.deadline <= now).map(|offer| offer.connection);
        for connection in late.collect::<Vec<_>>() {
            self.set_refused(connection, Reason::TimedOut);
        }
    }

    // ---- to be shown

    /// Whether the stream has a socket.
    pub fn is_given(&self, connection: u64) -> bool {
        self.given_to(connection).is_some()
    }

    /// The other host of a stream that has a socket.
    pub fn given_to(&self, connection: u64) -> Option<IpAddr> {
        self.streams.get(&connection).filter(|s| s.state == State::Given).map(|s| s.of.peer)
    }

    /// Why a stream of bulk is on the lane, if it stayed there.
    pub fn refusal(&self, connection: u64) -> Option<Reason> {
        match self.streams.get(&connection)?.state {
            State::Refused(reason) => Some(reason),
            State::Waiting | State::Making | State::Given => None,
        }
    }

    /// Counts for `raas stat`.
    pub fn counters(&self) -> DirectCounters {
        DirectCounters { open: self.users.values().sum::<usize>() as u64, ..self.counters }
    }
}

#[cfg(test)]
mod liar_tests;
#[cfg(test)]
mod tests;
