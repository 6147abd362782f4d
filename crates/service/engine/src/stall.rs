//! Peers that stand still: their daemon says nothing, and nothing has ended.
//!
//! Owns which connections do not wait for such a peer, and for how long the others show that they do. It must never measure
//! silence itself: the daemon does, on the control link, and leaves out the time in which it stood still itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::Reason;
use verbs::Time;

use crate::engine::Engine;
use crate::lane::LaneId;
use crate::vqp::{Phase, RouteId, Vqp};

/// A lane whose peer says nothing.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// Connections that wait for a bounded time, soonest first. Entries of connections that are over go when they are due.
    due: BTreeSet<(Duration, RouteId)>,
    patience: BTreeMap<RouteId, Duration>,
}

impl Stall {
    /// The application's wish for a connection, as it is now.
    pub(crate) fn note(&mut self, route: RouteId, patience: Option<Duration>) {
        let old = match patience {
            Some(patience) => self.patience.insert(route, patience),
            None => self.patience.remove(&route),
        };
        if old != patience {
            if let Some(old) = old {
                self.due.remove(&(old, route));
            }
            self.due.extend(patience.map(|patience| (patience, route)));
        }
    }

    /// A connection that does not wait for as long as the peer is silent.
    fn take_due(&mut self, silent: Duration) -> Option<RouteId> {
        let (patience, route) = *self.due.first().filter(|(patience, _)| *patience <= silent)?;
        self.due.remove(&(patience, route));
        self.patience.remove(&route);
        Some(route)
    }
}

impl Vqp {
    /// For how long the application waits for a silent peer, if it said so.
    pub(crate) fn peer_timeout(&self) -> Option<Duration> {
        if self.words.app_generation.load(Ordering::Acquire) != self.generation {
            return None;
        }
        match self.words.peer_timeout_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms.into())),
        }
    }
}

impl Engine {
    /// The daemon of a host has said nothing for this long, or (`None`) speaks again. Its connections wait, but for those whose
    /// applications asked for less: these end with [`Reason::PeerTimeout`]. Called again and again while the silence lasts.
    pub fn peer_silent(&mut self, now: Time, peer: IpAddr, silent: Option<Duration>) {
        self.now = self.now.max(now);
        let Some(&id) = self.peers.get(&peer.to_canonical()) else { return };
        let Some(silent) = silent else {
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.stall = None;
            }
            return;
        };
        self.begin_stall(id);
        while let Some(stall) = self.lanes.get_mut(id).and_then(|l| l.stall.as_mut())
            && let Some(route) = stall.take_due(silent)
        {
            self.give_up(route);
        }
        self.collect_wakes();
    }

    fn begin_stall(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(id).filter(|l| l.stall.is_none()) else { return };
        let mut stall = Stall::default();
        let mut next = lane.first;
        while let Some(route) = next {
            let Some(vqp) = self.vqps.get(route) else { break };
            next = vqp.next;
            stall.note(route, vqp.peer_timeout());
        }
        lane.stall = Some(stall);
    }

    /// The application does not wait any longer. The peer hears it when it listens again; until then nothing of the
    /// connection's memory is free.
    fn give_up(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        let is_over = vqp.is_complete() || vqp.close.is_reset() || vqp.close.is_app_released();
        if is_over || matches!(vqp.phase, Phase::Opening(_)) {
            return;
        }
        vqp.close.on_abort(Reason::PeerTimeout);
        vqp.publish_reset(Reason::PeerTimeout);
        let (app, slot) = (vqp.app, vqp.slot);
        self.counters.peer_timeouts += 1;
        self.notify(app, slot);
        self.update(route);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Key;

    #[test]
    fn the_last_wish_counts_and_each_is_due_once() {
        let (a, b) = (RouteId::from_bits(1), RouteId::from_bits(2));
        let ms = Duration::from_millis;
        let mut stall = Stall::default();
        stall.note(a, Some(ms(5)));
        stall.note(b, Some(ms(7)));
        stall.note(a, Some(ms(9)));
        assert_eq!(stall.take_due(ms(6)), None);
        assert_eq!(stall.take_due(ms(9)), Some(b));
        stall.note(b, Some(ms(1)));
        stall.note(b, None);
        assert_eq!(stall.take_due(ms(9)), Some(a));
        assert_eq!(stall.take_due(Duration::MAX), None);
        assert!(stall.due.is_empty() && stall.patience.is_empty());
    }
}
