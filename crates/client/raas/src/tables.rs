//! The session, and the waiters in it: for answers, and for connections at a port.
//!
//! Owns the lists of waiters, in addition to the core's tables. It does no I/O: every method is short and runs under
//! the session's lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use control::{Reason, Request};
use raas_core::{Answer, DaemonMessage, News, RequestId, Session, SessionFault};

use crate::error::SessionError;
use crate::park::Parker;
use crate::poller::{Poller, Waiter};

/// The waiters at a port.
#[derive(Debug, Default)]
struct PortWaiters {
    threads: BTreeMap<u64, Arc<Parker>>,
    poller: Option<Arc<Poller>>,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) session: Session,
    waiting: BTreeMap<RequestId, Vec<Waiter>>,
    ports: BTreeMap<u16, PortWaiters>,
    lost: Option<SessionError>,
}

impl Tables {
    pub(crate) fn new(session: Session) -> Self {
        Self { session, waiting: BTreeMap::new(), ports: BTreeMap::new(), lost: None }
    }

    // ---- the end

    /// The session is over. Returns which waiters to notify.
    pub(crate) fn lose(&mut self, error: SessionError) -> Vec<Waiter> {
        self.lost.get_or_insert(error);
        let pending = self.waiting.values().flatten().cloned();
        pending.chain(self.ports.values().flat_map(PortWaiters::everybody)).collect()
    }

    /// The daemon has ended, and the session waits for the next one: what was asked of it fails. Which waiters to notify.
    pub(crate) fn lose_requests(&mut self, reason: Reason) -> Vec<Waiter> {
        let lost = self.session.lose_requests(reason);
        lost.iter().filter_map(|request| self.waiting.get(request)).flatten().cloned().collect()
    }

    pub(crate) fn lost(&self) -> Option<SessionError> {
        self.lost.clone()
    }

    // ---- messages of the daemon

    /// Follows a message and notifies its waiters.
    pub(crate) fn on_message(&mut self, message: DaemonMessage) -> Result<News, SessionFault> {
        let news = self.session.on_message(message)?;
        match news {
            News::Answered(request) => self.waiting.get(&request).into_iter().flatten().for_each(Waiter::notify),
            News::Arrived(port) => self.ports.get(&port).iter().for_each(|place| place.notify_one()),
            News::None | News::PairOpened(_) | News::Region => {}
        }
        Ok(news)
    }

    // ---- requests

    /// These are to be notified of the answer to a request.
    pub(crate) fn wait_for(&mut self, request: RequestId, waiters: Vec<Waiter>) {
        self.waiting.insert(request, waiters);
    }

    /// Whether a request has its answer, or will never have one.
    pub(crate) fn is_over(&self, request: RequestId) -> bool {
        !self.session.is_pending(request) || self.lost.is_some()
    }

    /// Ends a request; its answer, if it came.
    pub(crate) fn finish(&mut self, request: RequestId) -> Option<Answer> {
        self.waiting.remove(&request);
        self.session.finish(request)
    }

    /// Gives a connect up; what is to be said to the daemon.
    pub(crate) fn cancel(&mut self, request: RequestId) -> Option<Request> {
        self.waiting.remove(&request);
        self.session.cancel(request)
    }

    // ---- listeners

    /// Forgets a port; what is to be said to the daemon.
    pub(crate) fn close_port(&mut self, port: u16) -> Request {
        self.ports.remove(&port);
        self.session.unlisten(port)
    }

    /// Somebody polls the port.
    pub(crate) fn set_poller(&mut self, port: u16, poller: Arc<Poller>) {
        self.ports.entry(port).or_default().poller = Some(poller);
    }

    /// A thread waits at a port.
    pub(crate) fn wait_at(&mut self, port: u16, ticket: u64, parker: Arc<Parker>) {
        if let Some(place) = self.ports.get_mut(&port) {
            place.threads.insert(ticket, parker);
        }
    }

    /// The waiters at a port.
    pub(crate) fn waiters_at(&self, port: u16) -> Vec<Waiter> {
        self.ports.get(&port).into_iter().flat_map(PortWaiters::everybody).collect()
    }

    /// A thread stops waiting. It passes a notification on that it may have taken; true: it did.
    pub(crate) fn leave(&mut self, port: u16, ticket: u64) -> bool {
        let Some(place) = self.ports.get_mut(&port) else { return false };
        place.threads.remove(&ticket);
        let passes_on = self.session.has_arrived(port) && !place.threads.is_empty();
        if passes_on {
            place.notify_one();
        }
        passes_on
    }
}

impl PortWaiters {
    fn notify_one(&self) {
        if let Some(parker) = self.threads.values().next() {
            parker.notify();
        }
        if let Some(poller) = &self.poller {
            poller.tell();
        }
    }

    fn everybody(&self) -> impl Iterator<Item = Waiter> {
        let threads = self.threads.values().cloned().map(Waiter::Thread);
        threads.chain(self.poller.clone().map(Waiter::Poller))
    }
}
