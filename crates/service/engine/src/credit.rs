//! Receive credits of one lane, both directions.
//!
//! Every SEND and every WRITE_WITH_IMM takes one entry of the receiver's shared receive queue. The receiver grants each
//! lane a fixed number of entries, of which the sum over all lanes never exceeds the entries posted; a used entry is
//! posted again, then given back by an absolute total in the header of any control frame. Owns these counts. It must
//! never let a sender use an entry that it was not given, because an RNR NAK would stop every connection of the lane.
//!
//! # Why two sides that ran dry come on again
//!
//! Let G (8 or more) be the grant of one direction. Data and ordinary frames leave one credit, the reserve; only a
//! frame that gives back at least one credit may take it. A side *owes* the entries that it used up and posted again
//! and has not given back, and gives back as soon as it owes G/4.
//!
//! Claim: when nothing is in flight and all that arrived was handled, a side that is out of ordinary credits gets some.
//! (1) At rest, the credits that a side has and those that the other owes it sum to G. A side with at most the reserve
//! is owed at least G-1, more than G/4, so the other wants to give back and needs one credit for it. (2) Not both sides
//! can be at 0 at rest. The last credit of each was spent by a frame that gave back at least one; of the two frames let
//! F be the one *handled* first, at side B. From then on B had a credit, so B's last credit was spent after, by its own
//! frame F', sent after F was handled. In the same way, F' being handled gave A a credit, and A's last frame F was sent
//! before F' was: so A has a credit now. Contradiction. (3) So one side has a credit and, by (1), wants to give back if
//! the other is dry: it sends, the other gets at least G/4 credits, and both go on.
//!
//! Nor do two idle sides answer returns with returns for ever: after a return the other owes the one entry that the
//! frame took, and gives it back only when it owes G/4 (at least 2) or the sender is low, which after a return it is
//! not.

use crate::limits::{CREDITS_LOW, CREDITS_RESERVED};

/// The peer broke the credit rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CreditError {
    #[error("credit total went from {from} to {to}, of {used} used")]
    Total { from: u64, to: u64, used: u64 },
    #[error("message number {0} came without a credit")]
    Overrun(u64),
}

/// Entries of the peer's queue that this side may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendCredits {
    initial: u64,
    returned: u64,
    used: u64,
}

impl SendCredits {
    pub(crate) fn new(initial: u32) -> Self {
        Self { initial: initial.into(), returned: 0, used: 0 }
    }

    /// Entries that may be used now, the reserve included.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        self.initial + self.returned - self.used
    }

    /// Entries that data and ordinary frames may use now.
    #[inline]
    pub(crate) fn ordinary(&self) -> u64 {
        self.available().saturating_sub(CREDITS_RESERVED)
    }

    /// Whether a frame may leave that gives back `returning` credits.
    pub(crate) fn allow_frame(&self, returning: u64) -> bool {
        self.ordinary() > 0 || (returning > 0 && self.available() > 0)
    }

    /// Uses one. The caller asked before.
    #[inline]
    pub(crate) fn take(&mut self) {
        debug_assert!(self.available() > 0, "a message without a credit");
        self.used += 1;
    }

    /// The total of a frame's header.
    pub(crate) fn on_total(&mut self, total: u64) -> Result<(), CreditError> {
        if total < self.returned || total > self.used {
            return Err(CreditError::Total { from: self.returned, to: total, used: self.used });
        }
        self.returned = total;
        Ok(())
    }
}

/// Entries of the own queue that the peer may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecvCredits {
    grant: u64,
    arrived: u64,
    reposted: u64,
    returned: u64,
}

impl RecvCredits {
    pub(crate) fn new(grant: u32) -> Self {
        Self { grant: grant.into(), ..Self::default() }
    }

    /// A message arrived and took an entry.
    #[inline]
    pub(crate) fn on_arrival(&mut self) -> Result<(), CreditError> {
        if self.arrived - self.returned >= self.grant {
            return Err(CreditError::Overrun(self.arrived));
        }
        self.arrived += 1;
        Ok(())
    }

    /// The entry of an arrived message is posted again.
    #[inline]
    pub(crate) fn on_reposted(&mut self) {
        debug_assert!(self.reposted < self.arrived, "an entry posted twice");
        self.reposted += 1;
    }

    /// Entries that a frame sent now gives back.
    #[inline]
    pub(crate) fn owed(&self) -> u64 {
        self.reposted - self.returned
    }

    /// Whether a frame should leave for the sake of the credits alone.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        let owed = self.owed();
        owed > 0 && (owed >= self.grant / 4 || self.unused() <= CREDITS_LOW)
    }

    /// The total for a frame's header. It counts as given back from now on.
    pub(crate) fn give_back(&mut self) -> u64 {
        self.returned = self.reposted;
        self.returned
    }

    /// Entries that the peer may use and has not, as far as is known here.
    pub(crate) fn unused(&self) -> u64 {
        self.grant + self.returned - self.arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

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
    }

    #[test]
    fn totals_that_go_back_or_invent_credits_are_refused() {
        let mut c = SendCredits::new(8);
        c.take();
        c.take();
        c.on_total(2).unwrap();
        assert_eq!(c.on_total(1), Err(CreditError::Total { from: 2, to: 1, used: 2 }));
        assert_eq!(c.on_total(3), Err(CreditError::Total { from: 2, to: 3, used: 2 }));
        assert_eq!(c.on_total(u64::MAX), Err(CreditError::Total { from: 2, to: u64::MAX, used: 2 }));
    }

    #[test]
    fn what_was_posted_again_is_owed_until_it_is_given_back() {
        let mut r = RecvCredits::new(32);
        (0..20).for_each(|_| r.on_arrival().unwrap());
        assert_eq!((r.owed(), r.is_due()), (0, false), "nothing is posted again");
        (0..7).for_each(|_| r.on_reposted());
        assert_eq!((r.owed(), r.is_due()), (7, false), "less than a quarter");
        r.on_reposted();
        assert_eq!((r.owed(), r.is_due(), r.unused()), (8, true, 12));
        assert_eq!((r.give_back(), r.owed(), r.is_due(), r.unused()), (8, 0, false, 20));
    }

    #[test]
    fn more_messages_than_granted_are_noticed() {
        let mut r = RecvCredits::new(8);
        for _ in 0..8 {
            r.on_arrival().unwrap();
        }
        assert_eq!(r.on_arrival(), Err(CreditError::Overrun(8)));
        r.on_reposted();
        assert_eq!(r.on_arrival(), Err(CreditError::Overrun(8)), "posted again is not yet given back");
        assert_eq!(r.give_back(), 1);
        r.on_arrival().unwrap();
    }

    #[derive(Debug, Clone, Copy)]
    enum Message {
        Data,
        Frame(u64),
    }

    struct Side {
        tx: SendCredits,
        rx: RecvCredits,
        inbox: VecDeque<Message>,
        backlog: u32,
    }

    fn step(me: &mut Side, peer: &mut Side, action: u8) -> bool {
        match action % 3 {
            0 if me.backlog > 0 && me.tx.ordinary() > 0 => {
                me.tx.take();
                me.backlog -= 1;
                peer.inbox.push_back(Message::Data);
            }
            1 if me.rx.is_due() && me.tx.allow_frame(me.rx.owed()) => {
                me.tx.take();
                let total = me.rx.give_back();
                peer.inbox.push_back(Message::Frame(total));
            }
            2 => {
                let Some(m) = me.inbox.pop_front() else { return false };
                me.rx.on_arrival().expect("the sender had a credit");
                me.rx.on_reposted();
                if let Message::Frame(total) = m {
                    me.tx.on_total(total).unwrap();
                }
            }
            _ => return false,
        }
        true
    }

    proptest! {
        /// Whatever the order, both sides get all their messages across, and then fall silent.
        #[test]
        fn both_sides_dry_never_deadlock(
            grants in (8u32..40, 8u32..40),
            backlogs in (0u32..400, 0u32..400),
            order in proptest::collection::vec((any::<bool>(), 0u8..3, 1usize..50), 0..60),
        ) {
            let side = |mine, theirs, backlog| Side {
                tx: SendCredits::new(theirs), rx: RecvCredits::new(mine), inbox: VecDeque::new(), backlog,
            };
            let mut a = side(grants.0, grants.1, backlogs.0);
            let mut b = side(grants.1, grants.0, backlogs.1);
            for (who, action, times) in order {
                let (me, peer) = if who { (&mut a, &mut b) } else { (&mut b, &mut a) };
                (0..times).for_each(|_| _ = step(me, peer, action));
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
        }
    }
}
