//! The path MTU of a lane, and how it gets narrower and wider.
//!
//! Owns what is offered next. A router's word may be anybody's, and an outage is taken for a narrow way, so it must never
//! hold for ever that the way is narrow.

use std::time::Duration;

use verbs::{PathMtu, Time};

use super::queue_pair::QueuePair;
use crate::limits::{LANE_SPENT_MAX, LANE_SUSPECT_WITHIN, LANE_WIDEN_FIRST, LANE_WIDEN_LAST};

/// See the module.
#[derive(Debug)]
pub(crate) struct LaneMtu {
    current: PathMtu,
    /// Largest that is offered: less than the device's after the way got narrower.
    max: PathMtu,
    /// When that was lowered, and how long it holds.
    narrowed: Option<Time>,
    widen_after: Duration,
    /// What this incarnation's offer says.
    offered: PathMtu,
    /// Queue pairs in a row whose retries were spent, each soon after it came up.
    spent: u32,
}

impl LaneMtu {
    /// Nothing is known of the way.
    pub(super) fn new() -> Self {
        Self {
            current: PathMtu::Mtu256,
            max: PathMtu::Mtu4096,
            narrowed: None,
            widen_after: LANE_WIDEN_FIRST,
            offered: PathMtu::Mtu256,
            spent: 0,
        }
    }

    /// The one that both ends take.
    pub(crate) fn current(&self) -> PathMtu {
        self.current
    }

    /// That of the offer that is made next.
    pub(crate) fn offer(&mut self, device: PathMtu) -> PathMtu {
        self.offered = device.min(self.max);
        self.offered
    }

    /// Both ends agreed on one.
    pub(super) fn on_accepted(&mut self, mtu: PathMtu) {
        self.current = mtu;
    }

    /// The way to the peer takes this one at most. True: the queue pair has a larger one, and must be replaced.
    pub(crate) fn narrow(&mut self, qp: &QueuePair, now: Time, mtu: PathMtu) -> bool {
        if mtu < self.max {
            self.lower(now, mtu);
        }
        let current = if qp.can_receive() { self.current } else { self.offered };
        qp.exists() && current > mtu
    }

    /// All retries of a send were spent. A way that swallows long packets without a word looks like that, again and
    /// again, while the control link goes on: the next incarnation tries shorter ones, each a step. An outage that is
    /// as long looks the same, so this does not hold for ever (`widen`). Says the path MTU if it is lowered now.
    pub(crate) fn on_retries_spent(&mut self, qp: &QueuePair, now: Time) -> Option<PathMtu> {
        if qp.is_up() && now.saturating_since(qp.up_since()) >= LANE_SUSPECT_WITHIN {
            self.spent = 0;
        }
        self.spent += 1;
        let lower = if self.current > PathMtu::Mtu1024 { PathMtu::Mtu1024 } else { PathMtu::Mtu256 };
        if self.spent < LANE_SPENT_MAX || self.current <= lower {
            return None;
        }
        self.lower(now, lower);
        Some(lower)
    }

    fn lower(&mut self, now: Time, to: PathMtu) {
        (self.max, self.narrowed) = (to, Some(now));
    }

    /// Whether to try one of up to `device`'s again, since the way may be wide again, or never was narrow. Each time the
    /// next one is further off, and the first failure ends it.
    pub(crate) fn widen(&mut self, qp: &QueuePair, now: Time, device: PathMtu) -> bool {
        let is_due = self.narrowed.is_some_and(|at| now.saturating_since(at) >= self.widen_after);
        if !is_due || !qp.is_up() || self.offered >= device {
            return false;
        }
        (self.max, self.narrowed) = (PathMtu::Mtu4096, None);
        self.widen_after = (self.widen_after * 2).min(LANE_WIDEN_LAST);
        self.spent = LANE_SPENT_MAX - 1;
        true
    }

    /// Whether shorter packets are tried because of what was found on the way.
    pub(crate) fn is_narrowed(&self) -> bool {
        self.narrowed.is_some()
    }

    /// The way to the peer may be another one: the device's path MTU is tried again.
    pub(crate) fn forget_way(&mut self) {
        (self.max, self.narrowed) = (PathMtu::Mtu4096, None);
        self.widen_after = LANE_WIDEN_FIRST;
        self.spent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_that_spend_their_retries_step_down_and_a_while_later_the_way_is_tried_again() {
        let (qp, now) = (QueuePair::none(), Time::ZERO);
        let mut mtu = LaneMtu::new();
        assert_eq!(mtu.offer(PathMtu::Mtu4096), PathMtu::Mtu4096);
        mtu.on_accepted(PathMtu::Mtu4096);
        for _ in 1..LANE_SPENT_MAX {
            assert_eq!(mtu.on_retries_spent(&qp, now), None);
        }
        assert_eq!(mtu.on_retries_spent(&qp, now), Some(PathMtu::Mtu1024));
        assert!(mtu.is_narrowed());
        assert_eq!(mtu.offer(PathMtu::Mtu4096), PathMtu::Mtu1024);
        // Only a lane that is up is widened, since that costs it its queue pair.
        assert!(!mtu.widen(&qp, now + LANE_WIDEN_FIRST, PathMtu::Mtu4096));
        mtu.forget_way();
        assert!(!mtu.is_narrowed());
        assert_eq!(mtu.offer(PathMtu::Mtu4096), PathMtu::Mtu4096);
    }

    #[test]
    fn what_a_router_says_holds_for_offers_and_never_widens() {
        let (qp, mut mtu) = (QueuePair::none(), LaneMtu::new());
        assert!(!mtu.narrow(&qp, Time::ZERO, PathMtu::Mtu1024), "there is no queue pair to replace");
        assert!(!mtu.narrow(&qp, Time::ZERO, PathMtu::Mtu2048));
        assert_eq!(mtu.offer(PathMtu::Mtu4096), PathMtu::Mtu1024);
        assert_eq!(mtu.offer(PathMtu::Mtu512), PathMtu::Mtu512);
    }
}
