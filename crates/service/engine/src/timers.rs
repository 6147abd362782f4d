//! Deadlines.
//!
//! Each kind has one fixed delay, so each is a queue in order of time: starting and firing cost O(1). Entries are not
//! taken out when what they guard is done; their keys show that they are stale. It must never hold much more than live
//! entries.

use std::collections::VecDeque;

use verbs::Time;

use crate::ids::{AppId, ConnectId, LaneId};

/// Stale entries of connects that may stay before they are swept out.
const STALE_MAX: usize = 1024;

/// The queues.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    connects: VecDeque<(Time, ConnectId)>,
    /// After the last sweep.
    connects_kept: usize,
    heads: VecDeque<(Time, LaneId)>,
    credits: VecDeque<(Time, LaneId)>,
    lane_rests: VecDeque<(Time, LaneId)>,
    orphans: VecDeque<(Time, AppId)>,
    away: VecDeque<(Time, LaneId)>,
}

fn due<K: Copy>(queue: &mut VecDeque<(Time, K)>, now: Time) -> Option<K> {
    let &(at, key) = queue.front()?;
    if at > now {
        return None;
    }
    queue.pop_front();
    Some(key)
}

impl Timers {
    /// Starts a connect's deadline. `is_live` says which entries still guard something.
    pub(crate) fn start_connect(&mut self, at: Time, id: ConnectId, is_live: impl Fn(ConnectId) -> bool) {
        if self.connects.len() >= 2 * self.connects_kept + STALE_MAX {
            self.connects.retain(|&(_, id)| is_live(id));
            self.connects_kept = self.connects.len();
        }
        self.connects.push_back((at, id));
    }

    pub(crate) fn start_heads(&mut self, at: Time, lane: LaneId) {
        self.heads.push_back((at, lane));
    }

    pub(crate) fn start_credits(&mut self, at: Time, lane: LaneId) {
        self.credits.push_back((at, lane));
    }

    /// The lanes whose grants are looked at when a period ends.
    pub(crate) fn watched_credits(&self) -> impl Iterator<Item = LaneId> {
        self.credits.iter().map(|(_, lane)| *lane)
    }

    pub(crate) fn start_lane_rest(&mut self, at: Time, lane: LaneId) {
        self.lane_rests.push_back((at, lane));
    }

    pub(crate) fn start_orphan(&mut self, at: Time, app: AppId) {
        self.orphans.push_back((at, app));
    }

    pub(crate) fn start_away(&mut self, at: Time, lane: LaneId) {
        self.away.push_back((at, lane));
    }

    pub(crate) fn due_away(&mut self, now: Time) -> Option<LaneId> {
        due(&mut self.away, now)
    }

    pub(crate) fn due_connect(&mut self, now: Time) -> Option<ConnectId> {
        due(&mut self.connects, now)
    }

    pub(crate) fn due_heads(&mut self, now: Time) -> Option<LaneId> {
        due(&mut self.heads, now)
    }

    pub(crate) fn due_credits(&mut self, now: Time) -> Option<LaneId> {
        due(&mut self.credits, now)
    }

    pub(crate) fn due_lane_rest(&mut self, now: Time) -> Option<LaneId> {
        due(&mut self.lane_rests, now)
    }

    pub(crate) fn due_orphan(&mut self, now: Time) -> Option<AppId> {
        due(&mut self.orphans, now)
    }

    /// Drops stale connects at the front, so that [`Self::deadline`] is not of a connect that is long answered.
    pub(crate) fn skip_stale(&mut self, is_live: impl Fn(ConnectId) -> bool) {
        while self.connects.front().is_some_and(|&(_, id)| !is_live(id)) {
            self.connects.pop_front();
        }
    }

    /// The earliest.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let connect = self.connects.front().map(|e| e.0);
        let heads = self.heads.front().map(|e| e.0);
        let credits = self.credits.front().map(|e| e.0);
        let orphan = self.orphans.front().map(|e| e.0);
        let away = self.away.front().map(|e| e.0);
        let rest = self.lane_rests.front().map(|e| e.0);
        [connect, heads, credits, rest, orphan, away].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Key;

    #[test]
    fn deadlines_fire_in_order_and_stale_ones_do_not_pile_up() {
        let mut t = Timers::default();
        assert_eq!(t.deadline(), None);
        for i in 0..100_000 {
            t.start_connect(Time(i), ConnectId::from_bits(i as u32), |id| id.bits() % 1000 == 0);
        }
        assert!(t.connects.len() < 3 * STALE_MAX, "{}", t.connects.len());
        t.skip_stale(|id| id.bits() == 99_999);
        assert_eq!(t.deadline(), Some(Time(99_999)));
        t.start_heads(Time(5), LaneId::from_bits(1));
        t.start_orphan(Time(7), AppId(1));
        assert_eq!(t.deadline(), Some(Time(5)));
        t.start_credits(Time(4), LaneId::from_bits(2));
        assert_eq!((t.deadline(), t.due_credits(Time(3))), (Some(Time(4)), None));
        assert_eq!(t.due_credits(Time(4)), Some(LaneId::from_bits(2)));
        assert_eq!(t.due_heads(Time(4)), None);
        assert_eq!(t.due_heads(Time(5)), Some(LaneId::from_bits(1)));
        assert_eq!(t.due_orphan(Time(9)), Some(AppId(1)));
        assert_eq!(t.due_connect(Time(99_999)), Some(ConnectId::from_bits(99_999)));
        assert_eq!(t.deadline(), None);
    }
}
