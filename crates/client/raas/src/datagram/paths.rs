//! What a socket knows of the ways to other hosts: how long a datagram to each may be.
//!
//! Owns the questions to the daemon that are under way. It must never ask twice at a time for one host, nor wait.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use control::Request;

use super::DatagramError;
use crate::inner::Inner;
use crate::park::lock;
use crate::poller::{Poller, Waiter};
use crate::tables::Answer;
use crate::{SessionError, StreamError};

/// Hosts that one socket remembers; with one more it begins anew.
const HOSTS_MAX: usize = 1024;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    known: BTreeMap<IpAddr, usize>,
    asked: BTreeMap<IpAddr, u64>,
    /// What the engine's count of datagrams that did not fit was when `known` was last true.
    changes: u64,
}

impl Paths {
    /// Forgets what is known if the engine had to drop a datagram that was too long: a way got narrower.
    pub(crate) fn note_changes(&mut self, changes: u64) {
        if self.changes != changes {
            self.changes = changes;
            self.known.clear();
        }
    }

    /// The longest datagram to a host, if that is known.
    pub(crate) fn known(&self, host: IpAddr) -> Option<usize> {
        self.known.get(&host).copied()
    }

    pub(crate) fn learn(&mut self, host: IpAddr, max: usize) {
        if self.known.len() >= HOSTS_MAX {
            self.known.clear();
        }
        self.known.insert(host, max);
    }

    /// Whether an answer is awaited.
    pub(crate) fn is_asking(&self, inner: &Inner) -> bool {
        let tables = lock(&inner.tables);
        tables.lost().is_none() && self.asked.values().any(|request| tables.is_pending(*request))
    }

    /// Asks, and says what is known so far. `None`: no answer yet; `poller` is told of it.
    pub(crate) fn poll(
        &mut self,
        inner: &Inner,
        poller: &Arc<Poller>,
        host: IpAddr,
    ) -> Result<Option<usize>, PathFailure> {
        if let Some(max) = self.known(host) {
            return Ok(Some(max));
        }
        let Some(&request) = self.asked.get(&host) else {
            if self.asked.len() >= HOSTS_MAX {
                self.forget_asked(inner);
            }
            let request = begin(inner, host, Waiter::Poller(Arc::clone(poller)))?;
            self.asked.insert(host, request);
            return Ok(None);
        };
        let answer = {
            let mut tables = lock(&inner.tables);
            if tables.is_pending(request) && tables.lost().is_none() {
                return Ok(None);
            }
            tables.finish(request)
        };
        self.asked.remove(&host);
        let max = path_of(answer, inner)?;
        self.learn(host, max);
        Ok(Some(max))
    }

    /// Answers that still come find nobody.
    pub(crate) fn forget_asked(&mut self, inner: &Inner) {
        let mut tables = lock(&inner.tables);
        for request in std::mem::take(&mut self.asked).into_values() {
            drop(tables.finish(request));
        }
    }
}

/// Why there is no way to a host.
#[derive(Debug)]
pub(crate) enum PathFailure {
    Session(SessionError),
    Refused(control::Reason),
}

impl From<SessionError> for PathFailure {
    fn from(e: SessionError) -> Self {
        Self::Session(e)
    }
}

impl PathFailure {
    pub(crate) fn into_io(self, host: IpAddr) -> std::io::Error {
        match self {
            // As from reading and writing.
            Self::Session(SessionError::Lost { reason }) => StreamError::reset(reason),
            Self::Session(e) => e.into(),
            Self::Refused(reason) => DatagramError::Unreachable { host, reason }.into(),
        }
    }
}

/// Sends the question for a host.
pub(crate) fn begin(inner: &Inner, to: IpAddr, waiter: Waiter) -> Result<u64, SessionError> {
    inner.check_fork()?;
    let request = inner.next_request();
    lock(&inner.tables).begin(request, vec![waiter]);
    let sent = inner.send(&Request::DatagramPath { request, to }, &[]);
    if let Err(e) = sent {
        drop(lock(&inner.tables).finish(request));
        return Err(e);
    }
    Ok(request)
}

/// What an answer says.
pub(crate) fn path_of(answer: Option<Answer>, inner: &Inner) -> Result<usize, PathFailure> {
    match answer {
        Some(Answer::Path(Ok(max))) => Ok(max as usize),
        Some(Answer::Path(Err(reason))) => Err(PathFailure::Refused(reason)),
        Some(other) => Err(SessionError::Protocol(format!("the answer to DatagramPath was {other:?}")).into()),
        None => {
            let lost = lock(&inner.tables).lost();
            let gone = || SessionError::Protocol("the answer to DatagramPath is gone".into());
            Err(lost.unwrap_or_else(gone).into())
        }
    }
}
