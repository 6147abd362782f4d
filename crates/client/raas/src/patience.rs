//! How long a thread looks for itself before it sleeps: spin, then yield, then block.
//!
//! Owns the counting. It must never sleep.

use std::time::{Duration, Instant};

use shm::{YieldTurn, YieldTurns};

/// Looks with a processor pause between them. The answer of a peer that is running comes within these.
const SPINS_DEFAULT: u32 = 64;
/// Looks with a `sched_yield` between them: about 50 us on an idle core, which is two round trips through daemons.
const YIELDS_DEFAULT: u32 = 100;
/// Looks between two glances at the clock.
const LOOKS_PER_CLOCK: u32 = 16;

/// How threads of a session wait; see [`crate::SessionBuilder::spins`] and [`crate::SessionBuilder::yields`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitPolicy {
    pub(crate) spins: u32,
    pub(crate) yields: u32,
}

impl Default for WaitPolicy {
    fn default() -> Self {
        Self { spins: SPINS_DEFAULT, yields: YIELDS_DEFAULT }
    }
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look again.
    Look(Look),
    /// Sleep until something happens.
    Block,
    /// The time is over.
    GiveUp,
}

/// At which moment the look comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// One of many.
    Glance,
    /// Once, before the others may have the processor.
    BeforeYield,
    /// Before sleeping.
    BeforeSleep,
    /// When what changes from now on is told.
    Armed,
}

/// The patience of one call.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    policy: WaitPolicy,
    turns: &'a YieldTurns,
    turn: Option<YieldTurn<'a>>,
    looks: u32,
    deadline: Option<Instant>,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(policy: WaitPolicy, turns: &'a YieldTurns, timeout: Option<Duration>) -> Self {
        // A timeout too long for the clock is none.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        Self { policy, turns, turn: None, looks: 0, deadline }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Lets a moment pass.
    #[inline]
    pub(crate) fn pause(&mut self) -> Next {
        let looks = self.looks;
        if looks < self.policy.spins {
            self.looks = looks + 1;
            std::hint::spin_loop();
            return Next::Look(Look::Glance);
        }
        self.pause_long(looks)
    }

    fn pause_long(&mut self, looks: u32) -> Next {
        if looks == self.policy.spins {
            self.turn = self.turns.take();
        }
        let block = self.turn.is_none() || looks - self.policy.spins >= self.policy.yields;
        if (block || looks.is_multiple_of(LOOKS_PER_CLOCK)) && self.deadline.is_some_and(|d| Instant::now() >= d) {
            return Next::GiveUp;
        }
        if block {
            self.turn = None;
            self.looks = u32::MAX;
            return Next::Block;
        }
        self.looks = looks + 1;
        if looks == self.policy.spins {
            return Next::Look(Look::BeforeYield);
        }
        if self.turn.as_ref().is_some_and(|turn| !turn.yield_core()) {
            // The core came back late: one more look, then sleep.
            self.turn = None;
        }
        Next::Look(Look::Glance)
    }
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        // A turn that is still held means that the wait ended between yields, none of them late.
        if self.turn.is_some() && self.looks > self.policy.spins + 1 {
            self.turns.on_time();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_then_yields_then_blocks_and_gives_up_at_the_deadline() {
        let policy = WaitPolicy { spins: 3, yields: 4 };
        let turns = YieldTurns::never_late(1);
        let mut patience = Patience::new(policy, &turns, None);
        let looks: Vec<_> = (0..7).map(|_| patience.pause()).collect();
        let glance = Next::Look(Look::Glance);
        let expected = [glance, glance, glance, Next::Look(Look::BeforeYield), glance, glance, glance];
        assert_eq!(looks, expected);
        let mut second = Patience::new(policy, &turns, None);
        assert_eq!((0..3).map(|_| second.pause()).last(), Some(glance));
        assert_eq!(second.pause(), Next::Block, "the only turn is taken");
        assert_eq!(patience.pause(), Next::Block);
        assert_eq!(patience.pause(), Next::Block);
        let mut patience = Patience::new(policy, &turns, Some(Duration::ZERO));
        let end = (0..100).map(|_| patience.pause()).find(|&n| !matches!(n, Next::Look(_)));
        assert_eq!(end, Some(Next::GiveUp));
        assert!(Patience::new(policy, &turns, Some(Duration::MAX)).deadline().is_none());
    }
}
