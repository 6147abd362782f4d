//! Requests under way, and what the daemon answered.
//!
//! Owns which request waits for which kind of answer. It must never give an answer to another request than its own.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use control::{KernelEnd, MeetStep, MeetingPlace, Reason, RegionRefusal};

use crate::{Connection, NewRegion};

/// A request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

impl RequestId {
    /// Its number in the control protocol.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Why a connection that the daemon announced is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    /// Refused by somebody.
    Reason(Reason),
    /// The daemon's description of it cannot be.
    Protocol(String),
}

/// An answer of the daemon.
#[derive(Debug)]
pub enum Answer {
    /// The port that is open, or why none is.
    Listening(Result<SocketAddr, Reason>),
    /// The connection or datagram socket, or why there is none.
    Connected(Result<Box<Connection>, Failed>),
    /// The longest datagram to the host, in bytes, or why none can be sent there.
    Path(Result<u32, Reason>),
    /// The handle to a region, or why there is none.
    Region(Result<Box<NewRegion>, RegionRefusal>),
    /// The epoch of a region that was revoked, or why it was not.
    Revoked(Result<u64, RegionRefusal>),
    /// The number of a region as local memory, or why it has none.
    Attached(Result<u32, RegionRefusal>),
    /// By what submissions have the owner of a region told, or why not.
    Notifier(Result<u32, RegionRefusal>),
    /// Whether a kernel can be run.
    Installed(Result<(), RegionRefusal>),
    /// How a kernel at a region of this host ended, or why none began.
    Ran(Result<KernelEnd, RegionRefusal>),
    /// Where the other end of a kernel TCP connection is, or why the connection stays on TCP.
    Met(Result<MeetingPlace, Reason>),
    /// The number of a lease, or why there is none.
    Lent(Result<u64, RegionRefusal>),
}

/// What a message of the daemon changed, for the caller that waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Nothing that anybody waits for.
    None,
    /// The answer to a request is here: [`crate::Session::finish`].
    Answered(RequestId),
    /// A connection waits at a port: [`crate::Session::accept`].
    Arrived(u16),
    /// There is a pair, whose socket is to be watched: [`crate::Session::pair`].
    PairOpened(u64),
    /// Something about a handle to a region: [`crate::Session::next_region_news`].
    Region,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Listen,
    Connect,
    BindDatagram,
    Operations,
    DatagramPath,
    Region,
    Revoke,
    Notifier,
    Install,
    Run,
    Meet,
    Attach,
    Lend,
}

impl Asked {
    /// The answer of a daemon that is gone.
    fn failed(self, reason: Reason) -> Answer {
        let refusal = || RegionRefusal::Reason(reason);
        match self {
            Self::Listen => Answer::Listening(Err(reason)),
            Self::Connect | Self::BindDatagram | Self::Operations => Answer::Connected(Err(Failed::Reason(reason))),
            Self::DatagramPath => Answer::Path(Err(reason)),
            Self::Region => Answer::Region(Err(refusal())),
            Self::Revoke => Answer::Revoked(Err(refusal())),
            Self::Notifier => Answer::Notifier(Err(refusal())),
            Self::Install => Answer::Installed(Err(refusal())),
            Self::Run => Answer::Ran(Err(refusal())),
            Self::Meet => Answer::Met(Err(reason)),
            Self::Attach => Answer::Attached(Err(refusal())),
            Self::Lend => Answer::Lent(Err(refusal())),
        }
    }
}

#[derive(Debug)]
struct Pending {
    asked: Asked,
    answer: Option<Answer>,
    /// What the daemon wants of it before it answers.
    steps: VecDeque<MeetStep>,
}

/// Steps of one request that wait; a daemon has no reason to send more at once.
const STEPS_MAX: usize = 16;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    last: u64,
    pending: BTreeMap<u64, Pending>,
}

impl Requests {
    pub(crate) fn begin(&mut self, asked: Asked) -> RequestId {
        self.last += 1;
        self.pending.insert(self.last, Pending { asked, answer: None, steps: VecDeque::new() });
        RequestId(self.last)
    }

    /// What a request that waits asked for.
    pub(crate) fn asked(&self, request: u64) -> Option<Asked> {
        self.pending.get(&request).filter(|p| p.answer.is_none()).map(|p| p.asked)
    }

    /// The daemon wants something of a meeting. Nothing if nobody waits for it.
    pub(crate) fn note_step(&mut self, request: u64, step: MeetStep) {
        let pending = self.pending.get_mut(&request).filter(|p| p.asked == Asked::Meet && p.steps.len() < STEPS_MAX);
        pending.into_iter().for_each(|pending| pending.steps.push_back(step));
    }

    /// What the daemon wants next; it is taken.
    pub(crate) fn next_step(&mut self, request: u64) -> Option<MeetStep> {
        self.pending.get_mut(&request)?.steps.pop_front()
    }

    /// Files an answer. Gives it back when nobody waits for it.
    pub(crate) fn file(&mut self, request: u64, answer: Answer) -> Option<Answer> {
        match self.pending.get_mut(&request) {
            Some(pending) if pending.answer.is_none() => {
                pending.answer = Some(answer);
                None
            }
            _ => Some(answer),
        }
    }

    /// A request that no daemon has heard of waits for its answer again; what it asks for. None: its caller has ended it,
    /// or it does not stand alone, and fails as it did.
    pub(crate) fn ask_again(&mut self, request: RequestId) -> Option<Asked> {
        let pending = self.pending.get_mut(&request.0).filter(|pending| pending.asked.stands_alone())?;
        pending.answer = None;
        Some(pending.asked)
    }

    /// All that have no answer, and are not `kept`, fail with `reason`. Which.
    pub(crate) fn lose_all(&mut self, reason: Reason, kept: impl Fn(RequestId) -> bool) -> Vec<RequestId> {
        let is_lost = |(id, pending): &(&u64, &mut Pending)| pending.answer.is_none() && !kept(RequestId(**id));
        let waiting = self.pending.iter_mut().filter(is_lost);
        let lose = |(&request, pending): (&u64, &mut Pending)| {
            pending.answer = Some(pending.asked.failed(reason));
            RequestId(request)
        };
        waiting.map(lose).collect()
    }

    /// Ends a request; its answer, if it came.
    pub(crate) fn finish(&mut self, request: RequestId) -> Option<Answer> {
        self.pending.remove(&request.0)?.answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_alone_is_asked_again_and_only_while_somebody_wants_it() {
        let mut requests = Requests::default();
        let [connect, path, notify] = [Asked::Connect, Asked::DatagramPath, Asked::Notifier].map(|a| requests.begin(a));
        // The death of the daemon is noticed before it is known that nothing was sent.
        assert_eq!(requests.lose_all(Reason::DaemonLost, |id| id == path), [connect, notify]);
        assert_eq!(requests.ask_again(connect), Some(Asked::Connect));
        assert_eq!(requests.ask_again(notify), None);
        let asked = [connect, path, notify].map(|id| requests.asked(id.number()));
        assert_eq!(asked, [Some(Asked::Connect), Some(Asked::DatagramPath), None]);
        assert!(requests.finish(connect).is_none(), "it has no answer");
        assert_eq!(requests.ask_again(connect), None, "nobody wants it");
        assert!(matches!(requests.finish(notify), Some(Answer::Notifier(Err(_)))));
    }
}
