//! How many receives each lane's peer may use: more where many are used, fewer where not.
//!
//! Owns who gets entries when there are not enough for all: lanes that use them share them, and what a lane has beyond
//! its share is asked back. It must never take an entry that a peer may still use: the peer gives it up, or its queue
//! pair goes. A peer that does neither loses its queue pair alone.

use verbs::{Provider, Time};

use super::Engine;
use crate::ids::LaneId;
use crate::limits::{CREDITS_PERIOD, RECLAIM_PACE, RECLAIM_WITHIN, TIMERS_PER_RUN};
use crate::violation::Violation;

/// Entries that are short.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// When lanes were asked last, and what each may have since.
    last: Option<(Time, u64)>,
    /// Lanes whose peers used half of their grant, to be looked at in this round.
    hungry: Vec<LaneId>,
}

impl Shortage {
    /// What a lane may have now, of `most` where there is plenty.
    fn most(&self, now: Time, most: u64) -> u64 {
        match self.last {
            Some((at, share)) if now.saturating_since(at) <= CREDITS_PERIOD => share.min(most),
            _ => most,
        }
    }
}

impl Engine {
    /// Posts consumed receives again; from then on they may be given back as credits. Grants of lanes that need more
    /// get larger.
    pub(super) fn repost<P: Provider>(&mut self, nic: &mut P) {
        let (lanes, hungry) = (&mut self.lanes, &mut self.shortage.hungry);
        let most = self.config.lane_credits.into();
        self.recv.repost(nic, |id, incarnation| {
            let Some(lane) = lanes.get_mut(id) else { return 0 };
            let given_up = lane.on_reposted(incarnation);
            if lane.credits.grant_mut().is_short(most) && hungry.last() != Some(&id) {
                hungry.push(id);
            }
            if lane.credits.grant().is_due() {
                lanes.queue(id);
            }
            given_up
        });
        while let Some(id) = self.shortage.hungry.pop() {
            self.grow_credits(nic, id);
        }
    }

    fn grow_credits<P: Provider>(&mut self, nic: &mut P, id: LaneId) {
        let now = self.now;
        let most = self.shortage.most(now, self.config.lane_credits.into());
        // A queue pair that is being taken down grows no more.
        let Some(lane) = self.lanes.get_mut(id).filter(|l| l.qp.can_receive() && !l.qp.is_failing()) else { return };
        let wanted = lane.credits.grant_mut().growth(now, most);
        let by = self.recv.grow(nic, wanted);
        lane.credits.grant_mut().grow(by);
        if lane.credits.watch() {
            self.timers.start_credits(now + CREDITS_PERIOD, id);
        }
        if lane.credits.grant().is_due() {
            self.lanes.queue(id);
        }
        if by < wanted {
            self.reclaim_credits();
        }
    }

    /// There are not enough entries for all that want more: each that has more than its share is asked for the rest.
    fn reclaim_credits(&mut self) {
        let now = self.now;
        if self.shortage.last.is_some_and(|(at, _)| now.saturating_since(at) < RECLAIM_PACE) {
            return;
        }
        // Each of them is watched, and no other.
        let is_raised = |id: &LaneId| self.lanes.get(*id).is_some_and(|l| l.credits.grant().is_raised());
        let raised: Vec<LaneId> = self.timers.watched_credits().filter(is_raised).collect();
        // The lane that wants more may be one of them or not.
        let share = self.recv.share(raised.len() as u64 + 1);
        self.shortage.last = Some((now, share));
        self.counters.credit_shortages += 1;
        for id in raised {
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            let granted = lane.credits.grant().granted();
            if lane.credits.grant().reclaimed_at().is_some_and(|at| now.saturating_since(at) >= RECLAIM_WITHIN) {
                let detail =
                    format!("the peer keeps {granted} receive credits for which it was asked, and others want them");
                self.lanes.fail(id, detail);
            } else if granted > share {
                self.recv.release(lane.credits.grant_mut().shrink(now, share));
                self.lanes.queue(id);
            }
        }
    }

    /// Grants of which little was used in a period get smaller. Says whether there were any to look at.
    pub(super) fn run_credit_periods(&mut self) -> bool {
        let now = self.now;
        let mut worked = false;
        for _ in 0..TIMERS_PER_RUN {
            let Some(id) = self.timers.due_credits(now) else { break };
            worked = true;
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            self.recv.release(lane.credits.on_timer(now));
            if lane.credits.watch() {
                self.timers.start_credits(now + CREDITS_PERIOD, id);
            }
            self.lanes.queue(id);
        }
        worked
    }

    /// The peer gave credits up.
    pub(super) fn on_yield(&mut self, id: LaneId, count: u32) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        self.recv.release(lane.credits.grant_mut().on_yield(count)?);
        Ok(())
    }

    /// The peer wants credits back.
    pub(super) fn on_reclaim(&mut self, id: LaneId, most: u32) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        Ok(lane.credits.on_reclaim(most)?)
    }
}
