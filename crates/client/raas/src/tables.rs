//! What the session holds beside its connections: requests under way, listeners, chunks, pairs.
//!
//! Owns these tables. It must never talk to anybody: every method is short and runs under the session's lock.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use control::{ChunkKind, Connection, Reason};
use shm::Region;

use crate::SessionError;
use crate::conn::Conn;
use crate::pair::PairLink;
use crate::park::Parker;
use crate::poller::{Poller, Waiter};

/// Connections that may wait at one listener of this library, whatever the daemon thinks.
const BACKLOG_MAX: usize = 65_536;
/// Ring chunks of one session.
pub(crate) const CHUNKS_MAX: usize = 65_536;
/// Pairs of one session.
pub(crate) const PAIRS_MAX: usize = 65_536;

/// Why a connection that the daemon announced is not there.
#[derive(Debug, Clone)]
pub(crate) enum Failed {
    /// Refused by somebody.
    Reason(Reason),
    /// The daemon's description of it cannot be.
    Protocol(String),
}

/// An answer of the daemon.
#[derive(Debug)]
pub(crate) enum Answer {
    Listening(Result<SocketAddr, Reason>),
    Connected(Result<Arc<Conn>, Failed>),
    Path(Result<u32, Reason>),
}

/// A request under way.
#[derive(Debug)]
struct Pending {
    waiters: Vec<Waiter>,
    answer: Option<Answer>,
}

/// A ring chunk.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) kind: ChunkKind,
    /// None: this process had no room for its descriptor.
    pub(crate) region: Option<Region>,
}

/// A port that this session listens on.
#[derive(Debug, Default)]
struct Port {
    backlog: VecDeque<Arc<Conn>>,
    waiters: BTreeMap<u64, Arc<Parker>>,
    poller: Option<Arc<Poller>>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pending: BTreeMap<u64, Pending>,
    ports: BTreeMap<u16, Port>,
    chunks: BTreeMap<u32, Chunk>,
    pairs: BTreeMap<u64, Arc<PairLink>>,
    lost: Option<SessionError>,
}

impl Tables {
    // ---- the end

    /// The session is over. Says whom to notify.
    pub(crate) fn lose(&mut self, error: SessionError) -> Vec<Waiter> {
        self.lost.get_or_insert(error);
        let pending = self.pending.values().flat_map(|p| p.waiters.iter().cloned());
        pending.chain(self.ports.values().flat_map(Port::everybody)).collect()
    }

    pub(crate) fn lost(&self) -> Option<SessionError> {
        self.lost.clone()
    }

    // ---- requests

    pub(crate) fn begin(&mut self, request: u64, waiters: Vec<Waiter>) {
        self.pending.insert(request, Pending { waiters, answer: None });
    }

    /// Files an answer and notifies who waits. Gives it back when nobody does any more.
    pub(crate) fn answer(&mut self, request: u64, answer: Answer) -> Option<Answer> {
        match self.pending.get_mut(&request) {
            Some(pending) if pending.answer.is_none() => {
                pending.answer = Some(answer);
                pending.waiters.iter().for_each(Waiter::notify);
                None
            }
            _ => Some(answer),
        }
    }

    pub(crate) fn is_pending(&self, request: u64) -> bool {
        self.pending.get(&request).is_some_and(|p| p.answer.is_none())
    }

    /// Ends a request; its answer, if it came.
    pub(crate) fn finish(&mut self, request: u64) -> Option<Answer> {
        self.pending.remove(&request)?.answer
    }

    // ---- listeners

    pub(crate) fn open_port(&mut self, port: u16) {
        self.ports.insert(port, Port::default());
    }

    /// Forgets a port; the connections that wait there, to be dropped by the caller.
    pub(crate) fn close_port(&mut self, port: u16) -> Vec<Arc<Conn>> {
        self.ports.remove(&port).map(|p| p.backlog.into()).unwrap_or_default()
    }

    /// A connection waits at a port. Gives it back if it cannot.
    pub(crate) fn arrive(&mut self, port: u16, conn: Arc<Conn>) -> Option<Arc<Conn>> {
        match self.ports.get_mut(&port) {
            Some(place) if place.backlog.len() < BACKLOG_MAX => {
                place.backlog.push_back(conn);
                place.notify_one();
                None
            }
            _ => Some(conn),
        }
    }

    pub(crate) fn take_arrived(&mut self, port: u16) -> Option<Arc<Conn>> {
        self.ports.get_mut(&port)?.backlog.pop_front()
    }

    pub(crate) fn has_arrived(&self, port: u16) -> bool {
        self.ports.get(&port).is_none_or(|p| !p.backlog.is_empty())
    }

    /// Somebody polls the port.
    pub(crate) fn set_poller(&mut self, port: u16, poller: Arc<Poller>) {
        if let Some(place) = self.ports.get_mut(&port) {
            place.poller = Some(poller);
        }
    }

    /// A thread waits at a port.
    pub(crate) fn wait_at(&mut self, port: u16, ticket: u64, parker: Arc<Parker>) {
        if let Some(place) = self.ports.get_mut(&port) {
            place.waiters.insert(ticket, parker);
        }
    }

    /// Who waits at a port.
    pub(crate) fn waiters_at(&self, port: u16) -> Vec<Waiter> {
        self.ports.get(&port).into_iter().flat_map(Port::everybody).collect()
    }

    /// A thread waits no more. It passes a notification on that it may have taken; true: it did.
    pub(crate) fn leave(&mut self, port: u16, ticket: u64) -> bool {
        let Some(place) = self.ports.get_mut(&port) else { return false };
        place.waiters.remove(&ticket);
        let left = !place.backlog.is_empty() && !place.waiters.is_empty();
        if left {
            place.notify_one();
        }
        left
    }

    // ---- memory

    pub(crate) fn chunks(&mut self) -> &mut BTreeMap<u32, Chunk> {
        &mut self.chunks
    }

    // ---- pairs

    pub(crate) fn pair(&self, id: u64) -> Option<Arc<PairLink>> {
        self.pairs.get(&id).cloned()
    }

    pub(crate) fn pairs(&self) -> Vec<Arc<PairLink>> {
        self.pairs.values().cloned().collect()
    }

    /// Adds a pair. False: the number is taken, or there are too many.
    pub(crate) fn add_pair(&mut self, pair: Arc<PairLink>) -> bool {
        if self.pairs.len() >= PAIRS_MAX || self.pairs.contains_key(&pair.id) {
            return false;
        }
        self.pairs.insert(pair.id, pair);
        true
    }

    /// Drops pairs whose peer is gone and which nothing uses.
    pub(crate) fn forget_pairs(&mut self) {
        self.pairs.retain(|_, pair| !pair.is_over());
    }
}

impl Port {
    fn notify_one(&self) {
        if let Some(parker) = self.waiters.values().next() {
            parker.notify();
        }
        if let Some(poller) = &self.poller {
            poller.tell();
        }
    }

    fn everybody(&self) -> impl Iterator<Item = Waiter> {
        let threads = self.waiters.values().cloned().map(Waiter::Thread);
        threads.chain(self.poller.clone().map(Waiter::Poller))
    }
}

/// How a connection looks in an error message.
pub(crate) fn describe(connection: &Connection) -> String {
    format!("connection {} from {} to {}", connection.id, connection.local, connection.peer)
}
