//! Queue pairs on RoCEv2 that could be on TCP: when that is tried, and what their owner is told.
//!
//! Owns who they are. While TCP is avoided toward a peer it is tried now and then; while their RoCEv2 is silent, at once.
//! Nobody is told to leave a wire before the other one was seen to lead there.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use iwarp::mpa::{FrameKind, Revision, Startup};
use verbs::{AsyncEvent, Qpn, Time};

use super::endpoint::HELLO_BYTES;
use super::unreached::Unreached;

/// Silence of RoCEv2 for which TCP is tried. The peer's device answers by its processor, which may be busy for as long.
const QUIET: Duration = Duration::from_millis(350);
/// Pause between two looks while something waits for an answer, and while nothing does.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
const IDLE_PAUSE: Duration = Duration::from_millis(250);

/// A queue pair on RoCEv2.
#[derive(Debug, Clone, Copy)]
struct OnRoce {
    /// Where a connection to its peer would be, and the peer's listener.
    way: (SocketAddr, SocketAddr),
    /// It is on RoCEv2 because this end avoided TCP.
    avoids_tcp: bool,
    told_at: Option<Time>,
}

/// A try that should begin: from where to where, and whether it was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Where a connection would be, and the peer's listener.
    pub way: (SocketAddr, SocketAddr),
    /// It was due; else the other wire is silent.
    pub in_turn: bool,
}

/// What a try sends: a start of MPA that means the number of no queue pair, and a token that nobody has. Whoever answers, by
/// a word or by closing, has read it.
pub fn question() -> Vec<u8> {
    let request = Startup {
        kind: FrameKind::Request,
        revision: Revision::One,
        wants_markers: false,
        wants_crc: false,
        is_rejected: false,
        enhanced: None,
        private_data: vec![0; HELLO_BYTES],
    };
    request.to_bytes()
}

/// The queue pairs.
#[derive(Debug, Default)]
pub struct Elsewhere {
    qps: BTreeMap<Qpn, OnRoce>,
    look_at: Option<Time>,
}

impl Elsewhere {
    /// One more, that is watched from now on.
    pub fn add(&mut self, now: Time, qpn: Qpn, way: (SocketAddr, SocketAddr), avoids_tcp: bool) {
        self.qps.insert(qpn, OnRoce { way, avoids_tcp, told_at: None });
        self.look_at = Some(now + LOOK_PAUSE);
    }

    /// It is not on RoCEv2 any more.
    pub fn remove(&mut self, qpn: Qpn) {
        self.qps.remove(&qpn);
    }

    /// The peer's host of a queue pair.
    pub fn host_of(&self, qpn: Qpn) -> Option<IpAddr> {
        self.qps.get(&qpn).map(|qp| qp.way.1.ip())
    }

    /// When [`Self::look`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        self.look_at.filter(|_| !self.qps.is_empty())
    }

    /// Looks at them, if it is time. `silent_since`: since when nothing came back over RoCEv2.
    pub fn look(
        &mut self,
        now: Time,
        unreached: &Unreached,
        silent_since: impl Fn(Qpn) -> Option<Time>,
        wanted: &mut Vec<Wanted>,
        events: &mut Vec<AsyncEvent>,
    ) {
        if self.deadline().is_none_or(|at| at > now) {
            return;
        }
        let mut waits = false;
        for (&qpn, qp) in &mut self.qps {
            let (host, since) = (qp.way.1.ip(), silent_since(qpn));
            waits |= since.is_some();
            let is_silent = since.is_some_and(|since| now.saturating_since(since) >= QUIET);
            let event = if qp.avoids_tcp && !unreached.has(now, host) {
                Some(AsyncEvent::WireReturned(qpn))
            } else if is_silent && unreached.is_answered(now, host) {
                Some(AsyncEvent::WireSilent(qpn))
            } else {
                None
            };
            if let Some(event) = event {
                if qp.told_at.is_none_or(|at| now.saturating_since(at) >= IDLE_PAUSE) {
                    qp.told_at = Some(now);
                    events.push(event);
                }
            } else if qp.avoids_tcp && unreached.is_due(now, host) {
                wanted.push(Wanted { way: qp.way, in_turn: true });
            } else if is_silent && unreached.is_due_soon(now, host) {
                wanted.push(Wanted { way: qp.way, in_turn: false });
            }
        }
        self.look_at = Some(now + if waits { LOOK_PAUSE } else { IDLE_PAUSE });
    }
}
