//! What a socket knows of the paths to other hosts: how long a datagram to each may be.
//!
//! Owns the questions to the daemon that are under way. It must never ask twice at a time for one host, and must never
//! wait.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use raas_core::{Answer, RequestId};

use crate::attachment::Attachment;
use crate::datagram_error::DatagramError;
use crate::error::{SessionError, StreamError};
use crate::park::lock;
use crate::poller::{Poller, Waiter};

/// Hosts that one socket remembers; with one more it forgets all and begins again.
const HOSTS_MAX: usize = 1024;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    known: BTreeMap<IpAddr, usize>,
    asked: BTreeMap<IpAddr, RequestId>,
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
    pub(crate) fn is_asking(&self, attachment: &Attachment) -> bool {
        let tables = lock(&attachment.tables);
        self.asked.values().any(|request| !tables.is_over(*request))
    }

    /// Asks, and says what is known so far. `None`: no answer yet; `poller` is notified when it comes.
    pub(crate) fn poll(
        &mut self,
        attachment: &Attachment,
        poller: &Arc<Poller>,
        host: IpAddr,
    ) -> Result<Option<usize>, PathFailure> {
        if let Some(max) = self.known(host) {
            return Ok(Some(max));
        }
        let Some(&request) = self.asked.get(&host) else {
            if self.asked.len() >= HOSTS_MAX {
                self.forget_asked(attachment);
            }
            let request = begin(attachment, host, Waiter::Poller(Arc::clone(poller)))?;
            self.asked.insert(host, request);
            return Ok(None);
        };
        let answer = {
            let mut tables = lock(&attachment.tables);
            if !tables.is_over(request) {
                return Ok(None);
            }
            tables.finish(request)
        };
        self.asked.remove(&host);
        let max = path_of(answer, attachment)?;
        self.learn(host, max);
        Ok(Some(max))
    }

    /// Answers that still come find nobody.
    pub(crate) fn forget_asked(&mut self, attachment: &Attachment) {
        let mut tables = lock(&attachment.tables);
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
pub(crate) fn begin(attachment: &Attachment, to: IpAddr, waiter: Waiter) -> Result<RequestId, SessionError> {
    attachment.ask(vec![waiter], |session| session.datagram_path(to))
}

/// What an answer says.
pub(crate) fn path_of(answer: Option<Answer>, attachment: &Attachment) -> Result<usize, PathFailure> {
    match answer {
        Some(Answer::Path(Ok(max))) => Ok(max as usize),
        Some(Answer::Path(Err(reason))) => Err(PathFailure::Refused(reason)),
        Some(other) => Err(SessionError::Protocol(format!("the answer to DatagramPath was {other:?}")).into()),
        None => {
            let lost = lock(&attachment.tables).lost();
            let gone = || SessionError::Protocol("the answer to DatagramPath is gone".into());
            Err(lost.unwrap_or_else(gone).into())
        }
    }
}
