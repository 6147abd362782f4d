//! Which peers are dialed again later, and when.
//!
//! Only peers that wait are in it, so the look at the next of them does not depend on how many peers there are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use verbs::Time;

/// The dials that wait, each peer's once.
#[derive(Debug, Default)]
pub(super) struct Redials {
    by_peer: BTreeMap<IpAddr, Time>,
    by_time: BTreeSet<(Time, IpAddr)>,
}

impl Redials {
    /// Whether a dial to the peer waits.
    pub(super) fn has(&self, peer: IpAddr) -> bool {
        self.by_peer.contains_key(&peer)
    }

    /// The peer is dialed at that time, and at no other.
    pub(super) fn set(&mut self, peer: IpAddr, at: Time) {
        self.cancel(peer);
        self.by_peer.insert(peer, at);
        self.by_time.insert((at, peer));
    }

    /// No dial to the peer waits any more.
    pub(super) fn cancel(&mut self, peer: IpAddr) {
        if let Some(at) = self.by_peer.remove(&peer) {
            self.by_time.remove(&(at, peer));
        }
    }

    /// When the first is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes a peer whose time has come.
    pub(super) fn take_due(&mut self, now: Time) -> Option<IpAddr> {
        let &(_, peer) = self.by_time.first().filter(|(at, _)| *at <= now)?;
        self.cancel(peer);
        Some(peer)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.by_peer.len(), self.by_time.len());
        self.by_time.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_waits_once_and_the_first_is_taken_first() {
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        let mut redials = Redials::default();
        assert_eq!((redials.deadline(), redials.take_due(Time(9))), (None, None));
        redials.set(ip(1), Time(30));
        redials.set(ip(2), Time(20));
        redials.set(ip(1), Time(10));
        redials.set(ip(3), Time(40));
        redials.cancel(ip(3));
        redials.cancel(ip(4));
        assert_eq!((redials.len(), redials.has(ip(1)), redials.has(ip(3))), (2, true, false));
        assert_eq!((redials.deadline(), redials.take_due(Time(9))), (Some(Time(10)), None));
        assert_eq!([redials.take_due(Time(20)), redials.take_due(Time(20))], [Some(ip(1)), Some(ip(2))]);
        assert_eq!((redials.len(), redials.deadline()), (0, None));
    }
}
