//! Receive credits of one lane, both directions.
//!
//! Every SEND and every WRITE_WITH_IMM takes one entry of the receiver's shared receive queue. The receiver grants each
//! lane some entries, and a sum over all lanes that never exceeds the entries posted. It gives credits by an absolute
//! total in the header of any control frame: for entries that were used and posted again, and more where the peer uses
//! many. It takes back what an idle peer holds by asking (Reclaim), and the peer answers by giving up (Yield).
//! docs/inside/wire.md, "Credits", has the rules.
//!
//! Owns these counts. It must never let a sender use an entry that it was not given, because an RNR NAK would stop every
//! connection of the lane. The size of a grant is the receiver's decision alone.
//!
//! # Why two sides that ran dry come on again
//!
//! Let G (8 or more, whatever its size at the moment) be the grant of one direction. Data and ordinary frames leave one
//! credit, the reserve; only a frame that gives back at least one credit may take it. A side *owes* the entries of the
//! grant that the peer does not have, and gives them back as soon as it owes a quarter of G, but at least four.
//!
//! Claim: when nothing is in flight and all that arrived was handled, a side that is out of ordinary credits gets some.
//! (1) At rest, the credits that a side has and those that the other owes it sum to G. A side with at most the reserve
//! is owed at least G-1, which is enough, so the other wants to give back and needs one credit for it. A grant that
//! shrinks takes only what is owed, and stops at 8: that does not change. (2) Not both sides can be at 0 at rest. The
//! last credit of each was spent by a frame that gave back at least one, for a side gives up credits only while it
//! holds 8; of the two frames let F be the one *handled* first, at side B. From then on B had a credit, so B's last
//! credit was spent after, by its own frame F', sent after F was handled. In the same way, F' being handled gave A a
//! credit, and A's last frame F was sent before F' was: so A has a credit now. Contradiction. (3) So one side has a
//! credit and, by (1), wants to give back if the other is dry: it sends, the other gets credits, and both go on.
//!
//! Nor do two idle sides answer returns with returns for ever: after a return the other owes the one entry that the
//! frame took, and gives it back only when it owes four or the sender is low, which after a return it is not. A Reclaim is sent once for each time that a grant is made smaller, and grants grow only with use.

use verbs::Time;

use crate::limits::{
    CREDITS_DUE_MIN, CREDITS_LOW, CREDITS_PERIOD, CREDITS_RESERVED, LANE_CREDITS_MAX, LANE_CREDITS_MIN,
};

/// The peer broke the credit rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CreditError {
    #[error(
        "credit total went from {from} to {to} with {available} credits unused, of which {LANE_CREDITS_MAX} are allowed"
    )]
    Total { from: u64, to: u64, available: u64 },
    #[error("message number {0} came without a credit")]
    Overrun(u64),
    #[error("{given_up} credits given up, of {unused} that the peer can have")]
    Yield { given_up: u32, unused: u64 },
    #[error("asked to hold {0} credits, but a grant is at least {LANE_CREDITS_MIN}")]
    Reclaim(u32),
}

/// Entries of the peer's queue that this side may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendCredits {
    available: u64,
    /// The last total that the peer said.
    total: u64,
    /// The peer wants back what is more than this.
    reclaim: Option<u64>,
}

impl SendCredits {
    pub(crate) fn new(initial: u32) -> Self {
        Self { available: initial.into(), total: 0, reclaim: None }
    }

    /// Entries that may be used now, the reserve included.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        self.available
    }

    /// Entries that data and ordinary frames may use now.
    #[inline]
    pub(crate) fn ordinary(&self) -> u64 {
        self.available.saturating_sub(CREDITS_RESERVED)
    }

    /// Whether a frame may leave that gives back `returning` credits.
    pub(crate) fn allow_frame(&self, returning: u64) -> bool {
        self.ordinary() > 0 || (returning > 0 && self.available > 0)
    }

    /// Uses one. The caller asked before.
    #[inline]
    pub(crate) fn take(&mut self) {
        debug_assert!(self.available > 0, "a message without a credit");
        self.available -= 1;
    }

    /// The total of a frame's header.
    pub(crate) fn on_total(&mut self, total: u64) -> Result<(), CreditError> {
        let error = CreditError::Total { from: self.total, to: total, available: self.available };
        let more = total.checked_sub(self.total).ok_or(error)?;
        if more > u64::from(LANE_CREDITS_MAX).saturating_sub(self.available) {
            return Err(error);
        }
        self.available += more;
        self.total = total;
        Ok(())
    }

    /// The peer wants this side to hold no more than `most`.
    pub(crate) fn on_reclaim(&mut self, most: u32) -> Result<(), CreditError> {
        if most < LANE_CREDITS_MIN {
            return Err(CreditError::Reclaim(most));
        }
        self.reclaim = Some(most.into());
        Ok(())
    }

    /// Whether credits are to be given up.
    pub(crate) fn has_excess(&self) -> bool {
        self.reclaim.is_some_and(|most| self.available > most)
    }

    /// Credits that a frame sent now gives up; they are gone.
    pub(crate) fn give_up(&mut self) -> Option<u32> {
        let most = self.reclaim.take().filter(|most| self.available > *most)?;
        // The frame takes one too.
        let count = (self.available - most - 1).max(1);
        self.available -= count;
        u32::try_from(count).ok()
    }
}

/// Entries of the own queue that the peer may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecvCredits {
    /// Entries that nobody else gets.
    granted: u64,
    /// What the grant is to be; what the peer has beyond that goes as it is used or given up.
    target: u64,
    /// Those of the grant that the peer may use and has not, as far as is known here.
    unused: u64,
    /// Those that were used and are not posted again.
    in_hand: u64,
    /// Given since the queue pair was made, beyond the first grant.
    given: u64,
    /// Messages that arrived.
    arrived: u64,
    /// Those of this period, and when it began.
    recent: u64,
    since: Time,
    /// The peer is to be told the target.
    is_reclaim_due: bool,
    /// When it was to be told first, if it still holds more.
    reclaimed_at: Option<Time>,
}

impl RecvCredits {
    pub(crate) fn new(grant: u32) -> Self {
        let granted = grant.into();
        Self { granted, target: granted, unused: granted, ..Self::default() }
    }

    /// A message arrived and took an entry.
    #[inline]
    pub(crate) fn on_arrival(&mut self, now: Time) -> Result<(), CreditError> {
        if self.unused == 0 {
            return Err(CreditError::Overrun(self.arrived));
        }
        if self.recent == 0 {
            self.since = now;
        }
        self.unused -= 1;
        self.in_hand += 1;
        self.arrived += 1;
        self.recent += 1;
        Ok(())
    }

    /// The entry of an arrived message is posted again. How many entries the grant gives up.
    #[inline]
    pub(crate) fn on_reposted(&mut self) -> u64 {
        debug_assert!(self.in_hand > 0, "an entry posted twice");
        self.in_hand -= 1;
        self.settle()
    }

    /// The peer gave credits up. How many entries the grant gives up.
    pub(crate) fn on_yield(&mut self, given_up: u32) -> Result<u64, CreditError> {
        let unused = self.unused;
        self.unused = unused.checked_sub(given_up.into()).ok_or(CreditError::Yield { given_up, unused })?;
        Ok(self.settle())
    }

    /// Makes the grant smaller by what the peer does not have. How many entries it gives up.
    fn settle(&mut self) -> u64 {
        let spare = self.owed().min(self.granted - self.target);
        self.granted -= spare;
        if self.unused <= self.target {
            (self.is_reclaim_due, self.reclaimed_at) = (false, None);
        }
        spare
    }

    /// Entries that a frame sent now gives back.
    #[inline]
    pub(crate) fn owed(&self) -> u64 {
        self.granted - self.unused - self.in_hand
    }

    /// Whether a frame should leave for the sake of the credits alone.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        let owed = self.owed();
        self.is_reclaim_due
            || (owed > 0 && (owed >= (self.granted / 4).max(CREDITS_DUE_MIN) || self.unused <= CREDITS_LOW))
    }

    /// The total for a frame's header. It counts as given back from now on.
    pub(crate) fn give_back(&mut self) -> u64 {
        self.given += self.owed();
        self.unused = self.granted - self.in_hand;
        self.given
    }

    /// What the peer is to hold at most, if it must be told.
    pub(crate) fn take_reclaim(&mut self) -> Option<u32> {
        if !std::mem::take(&mut self.is_reclaim_due) {
            return None;
        }
        u32::try_from(self.target).ok()
    }

    /// Entries that the peer may use and has not, as far as is known here.
    pub(crate) fn unused(&self) -> u64 {
        self.unused
    }

    /// Entries that nobody else gets.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    // ---- its size

    /// Whether the peer used half of its grant in this period, so that a larger one is of use to it.
    #[inline]
    pub(crate) fn is_short(&self, most: u64) -> bool {
        self.recent * 2 >= self.granted && self.target < most
    }

    /// How many entries more the grant should have, of which there may be `most`. The count for the next time begins.
    pub(crate) fn growth(&mut self, now: Time, most: u64) -> u64 {
        let is_recent = now.saturating_since(self.since) <= CREDITS_PERIOD;
        self.recent = 0;
        if !is_recent || self.granted >= most {
            return 0;
        }
        self.target = self.granted;
        (self.is_reclaim_due, self.reclaimed_at) = (false, None);
        self.granted.min(most.saturating_sub(self.granted))
    }

    /// The grant has so many entries more.
    pub(crate) fn grow(&mut self, by: u64) {
        self.granted += by;
        self.target = self.granted;
    }

    /// The grant is to have `target` entries, at least the fewest. How many it gives up at once.
    pub(crate) fn shrink(&mut self, now: Time, target: u64) -> u64 {
        let target = target.max(LANE_CREDITS_MIN.into());
        if target >= self.target {
            return 0;
        }
        self.target = target;
        self.is_reclaim_due = true;
        self.reclaimed_at = self.reclaimed_at.or(Some(now));
        self.settle()
    }

    /// A period is over: a grant of which little was used gets smaller. How many entries it gives up at once.
    pub(crate) fn on_period(&mut self, now: Time) -> u64 {
        let used = std::mem::take(&mut self.recent);
        self.since = now;
        if used >= self.granted / 4 { 0 } else { self.shrink(now, 2 * used.next_power_of_two()) }
    }

    /// Whether there is anything that a period's end could make smaller.
    pub(crate) fn is_raised(&self) -> bool {
        self.granted > LANE_CREDITS_MIN.into()
    }

    /// Since when the peer holds credits that it was asked to give up.
    pub(crate) fn reclaimed_at(&self) -> Option<Time> {
        self.reclaimed_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const START: Time = Time(1_000_000);
    const MOST: u64 = 512;

    fn arrive(r: &mut RecvCredits, n: u32) {
        (0..n).for_each(|_| r.on_arrival(START).unwrap());
    }

    #[test]
    fn the_reserve_is_for_returns_alone() {
        let mut c = SendCredits::new(8);
        for _ in 0..7 {
            assert!(c.allow_frame(0) && c.ordinary() > 0);
            c.take();
        }
        assert_eq!((c.available(), c.ordinary()), (1, 0));
        assert!(!c.allow_frame(0));
        assert!(c.allow_frame(1));
        c.take();
        assert!(!c.allow_frame(1));
        c.on_total(3).unwrap();
        assert_eq!(c.available(), 3);
        c.on_total(20).unwrap();
        assert_eq!(c.available(), 20, "a grant may grow");
    }

    #[test]
    fn totals_that_go_back_or_invent_credits_are_refused() {
        let mut c = SendCredits::new(8);
        c.on_total(2).unwrap();
        assert_eq!(c.on_total(1), Err(CreditError::Total { from: 2, to: 1, available: 10 }));
        let most = 2 + u64::from(LANE_CREDITS_MAX) - 10;
        for to in [most + 1, u64::MAX] {
            assert_eq!(c.on_total(to), Err(CreditError::Total { from: 2, to, available: 10 }));
        }
        c.on_total(most).unwrap();
        assert_eq!(c.available(), LANE_CREDITS_MAX.into());
    }

    #[test]
    fn what_is_held_beyond_the_peers_wish_is_given_up_once() {
        let mut c = SendCredits::new(8);
        assert_eq!(c.on_reclaim(7), Err(CreditError::Reclaim(7)));
        for (held, given_up) in [(8, None), (9, Some(1)), (10, Some(1)), (11, Some(2)), (512, Some(503))] {
            let mut c = SendCredits::new(held);
            assert!(!c.has_excess());
            c.on_reclaim(8).unwrap();
            assert_eq!(c.has_excess(), given_up.is_some());
            assert_eq!(c.give_up(), given_up);
            c.take();
            assert!(c.available() <= 8 && !c.has_excess() && c.give_up().is_none(), "{held}");
        }
        let mut c = SendCredits::new(40);
        c.on_reclaim(8).unwrap();
        (0..32).for_each(|_| c.take());
        assert!(!c.has_excess() && c.give_up().is_none(), "they were used before");
        c.on_total(32).unwrap();
        assert!(!c.has_excess(), "a wish is about what was held when it came");
    }

    #[test]
    fn what_was_posted_again_is_owed_until_it_is_given_back() {
        let mut r = RecvCredits::new(32);
        arrive(&mut r, 20);
        assert_eq!((r.owed(), r.is_due()), (0, false), "nothing is posted again");
        (0..7).for_each(|_| assert_eq!(r.on_reposted(), 0));
        assert_eq!((r.owed(), r.is_due()), (7, false), "less than a quarter");
        r.on_reposted();
        assert_eq!((r.owed(), r.is_due(), r.unused()), (8, true, 12));
        assert_eq!((r.give_back(), r.owed(), r.is_due(), r.unused()), (8, 0, false, 20));
    }

    #[test]
    fn more_messages_than_granted_are_noticed() {
        let mut r = RecvCredits::new(8);
        arrive(&mut r, 8);
        assert_eq!(r.on_arrival(START), Err(CreditError::Overrun(8)));
        r.on_reposted();
        assert_eq!(r.on_arrival(START), Err(CreditError::Overrun(8)), "posted again is not yet given back");
        assert_eq!(r.give_back(), 1);
        r.on_arrival(START).unwrap();
        assert_eq!(r.on_yield(1), Err(CreditError::Yield { given_up: 1, unused: 0 }));
    }

    #[test]
    fn a_grant_doubles_with_use_and_goes_down_with_rest() {
        let mut r = RecvCredits::new(8);
        arrive(&mut r, 3);
        assert!(!r.is_short(MOST));
        arrive(&mut r, 1);
        assert!(r.is_short(MOST) && !r.is_short(8));
        assert_eq!(r.growth(START, MOST), 8);
        assert!(!r.is_short(MOST), "each time begins anew");
        r.grow(8);
        (0..4).for_each(|_| _ = r.on_reposted());
        assert_eq!((r.granted(), r.owed()), (16, 12));
        assert_eq!((r.give_back(), r.unused()), (12, 16), "more than was used");
        arrive(&mut r, 8);
        assert_eq!(r.growth(START + CREDITS_PERIOD * 2, MOST), 0, "it took longer than a period");
        arrive(&mut r, 8);
        assert_eq!((r.growth(START, 20), r.growth(START, 16)), (4, 0), "up to the most");
        (0..16).for_each(|_| _ = r.on_reposted());

        // Little was used: the peer has nothing, so the grant goes down at once.
        assert!(r.is_raised());
        assert_eq!((r.on_period(START), r.granted(), r.owed()), (8, 8, 8));
        assert!(!r.is_raised() && r.take_reclaim().is_none() && r.reclaimed_at().is_none());
    }

    #[test]
    fn an_idle_peer_is_asked_once_for_what_it_holds() {
        let mut r = RecvCredits::new(64);
        assert_eq!(r.shrink(START, 3), 0, "the peer has it all");
        assert!(r.is_due() && r.reclaimed_at() == Some(START));
        assert_eq!((r.take_reclaim(), r.take_reclaim(), r.is_due()), (Some(8), None, false));
        assert_eq!(r.shrink(START, 8), 0);
        assert!(!r.is_due(), "it was asked");
        arrive(&mut r, 1);
        assert_eq!(r.on_yield(64), Err(CreditError::Yield { given_up: 64, unused: 63 }));
        assert_eq!((r.on_yield(55), r.on_reposted()), (Ok(55), 1));
        assert_eq!((r.granted(), r.unused(), r.owed()), (8, 8, 0));
        assert!(r.reclaimed_at().is_none());
    }

    #[test]
    fn a_grant_that_goes_down_is_never_below_what_the_peer_may_use() {
        let mut r = RecvCredits::new(64);
        arrive(&mut r, 10);
        (0..10).for_each(|_| _ = r.on_reposted());
        assert_eq!((r.shrink(START, 8), r.granted(), r.unused()), (10, 54, 54));
        arrive(&mut r, 50);
        let freed: u64 = (0..50).map(|_| r.on_reposted()).sum();
        assert_eq!((freed, r.granted(), r.unused(), r.owed()), (46, 8, 4, 4));
        assert!(r.is_due() && r.take_reclaim().is_none(), "it holds no more than the target");
    }

    #[derive(Debug, Clone, Copy)]
    enum Message {
        Data,
        Frame { total: u64, reclaim: Option<u32>, given_up: Option<u32> },
    }

    struct Side {
        tx: SendCredits,
        rx: RecvCredits,
        inbox: VecDeque<Message>,
        backlog: u32,
        /// Entries that no lane has.
        pool: u64,
    }

    impl Side {
        fn wants_frame(&self) -> bool {
            self.rx.is_due() || self.tx.has_excess()
        }

        fn take(&mut self, message: Message) {
            self.rx.on_arrival(START).expect("the sender had a credit");
            self.pool += self.rx.on_reposted();
            if let Message::Frame { total, reclaim, given_up } = message {
                self.tx.on_total(total).unwrap();
                reclaim.into_iter().for_each(|most| self.tx.on_reclaim(most).unwrap());
                self.pool += given_up.map_or(0, |n| self.rx.on_yield(n).unwrap());
            }
            if self.rx.is_short(MOST) {
                let by = self.rx.growth(START, MOST).min(self.pool);
                self.rx.grow(by);
                self.pool -= by;
            }
        }
    }

    fn step(me: &mut Side, peer: &mut Side, action: u8) -> bool {
        match action % 4 {
            0 if me.backlog > 0 && me.tx.ordinary() > 0 => {
                me.tx.take();
                me.backlog -= 1;
                peer.inbox.push_back(Message::Data);
            }
            1 if me.wants_frame() && me.tx.allow_frame(me.rx.owed()) => {
                let (reclaim, given_up) = (me.rx.take_reclaim(), me.tx.give_up());
                me.tx.take();
                let total = me.rx.give_back();
                peer.inbox.push_back(Message::Frame { total, reclaim, given_up });
            }
            2 => {
                let Some(m) = me.inbox.pop_front() else { return false };
                me.take(m);
            }
            _ => return false,
        }
        true
    }

    proptest! {
        /// Whatever the order, and however grants grow and shrink, both sides get all their messages across, then fall
        /// silent; no entry is lost, and grants come down to the fewest.
        #[test]
        fn both_sides_dry_never_deadlock(
            pools in (0u64..400, 0u64..400),
            backlogs in (0u32..800, 0u32..800),
            order in proptest::collection::vec((any::<bool>(), 0u8..5, 1usize..50), 0..60),
        ) {
            let side = |pool, backlog| Side {
                tx: SendCredits::new(8), rx: RecvCredits::new(8), inbox: VecDeque::new(), backlog, pool,
            };
            let mut a = side(pools.0, backlogs.0);
            let mut b = side(pools.1, backlogs.1);
            for (who, action, times) in order {
                let (me, peer) = if who { (&mut a, &mut b) } else { (&mut b, &mut a) };
                if action == 4 {
                    me.pool += me.rx.shrink(START, times as u64);
                }
                (0..times).for_each(|_| _ = step(me, peer, action));
            }
            for rest in [false, true] {
                if rest {
                    for side in [&mut a, &mut b] {
                        side.pool += side.rx.on_period(START);
                        side.pool += side.rx.shrink(START, 8);
                    }
                }
                let mut rounds = 0;
                loop {
                    let mut worked = false;
                    for action in 0..3 {
                        worked |= step(&mut a, &mut b, action);
                        worked |= step(&mut b, &mut a, action);
                    }
                    if !worked { break }
                    rounds += 1;
                    prop_assert!(rounds < 10_000, "returns answer returns for ever");
                }
                prop_assert_eq!((a.backlog, b.backlog), (0, 0));
                prop_assert!(a.inbox.is_empty() && b.inbox.is_empty());
                prop_assert_eq!((a.pool + a.rx.granted(), b.pool + b.rx.granted()), (pools.0 + 8, pools.1 + 8));
                prop_assert_eq!((a.tx.available(), b.tx.available()), (b.rx.unused(), a.rx.unused()));
            }
            // What the last frames took may be owed still.
            prop_assert!(a.tx.available() <= 8 && b.tx.available() <= 8);
        }
    }
}
