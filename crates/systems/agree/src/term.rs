//! Terms of leaders, and fences of their writers.
//!
//! Owns how a term says whose it is, and how a leader comes back to a memory within its term.

use std::fmt;

const MEMBER_BITS: u32 = 8;
const ATTEMPT_BITS: u32 = 24;
/// Attempts of a leader to get one memory within one term, at most.
pub(crate) const ATTEMPTS_MAX: u32 = (1 << ATTEMPT_BITS) - 1;

/// The last round that anybody can have.
pub(crate) const ROUND_MAX: u64 = (1 << 31) - 1;
/// Rounds between the terms of two memories, at most: those of so many campaigns, of which nobody else saw anything.
const ROUNDS_APART_MAX: u64 = 1 << 16;

/// The term of one leader: a round, and the member that leads in it. No two members ever have the same one. 0 is none.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(u64);

impl Term {
    /// Nobody's.
    pub const NONE: Self = Self(0);

    /// The term of `member` in `round` (from 1, below 2^32).
    #[must_use]
    pub const fn new(round: u64, member: u8) -> Self {
        Self(round << MEMBER_BITS | member as u64)
    }

    /// As it stands in memory.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// As it stands in memory.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Its round.
    #[must_use]
    pub const fn round(self) -> u64 {
        self.0 >> MEMBER_BITS
    }

    /// Who leads in it.
    #[must_use]
    pub const fn member(self) -> u8 {
        self.0 as u8
    }

    /// Whether somebody can have it.
    pub(crate) const fn is_possible(self) -> bool {
        self.0 == 0 || self.round() > 0 && self.round() <= ROUND_MAX
    }

    /// Whether it is believed by one who knows of a term as great as `known`. Of what nobody of the group's can have
    /// written nothing is taken, or one memory's bytes could end the rounds of all.
    pub(crate) const fn is_believed(self, known: Self) -> bool {
        self.is_possible() && self.round() <= known.round() + ROUNDS_APART_MAX
    }

    /// What a memory's daemon is asked to grant. A daemon grants strictly higher ones only, and a leader that lost its
    /// writer at one memory must be able to come back to it: so a fence has the attempt (below 2^24) behind the term.
    #[must_use]
    pub const fn fence(self, attempt: u32) -> u64 {
        self.0 << ATTEMPT_BITS | (attempt & ATTEMPTS_MAX) as u64
    }

    /// The term of a fence.
    #[must_use]
    pub const fn of_fence(fence: u64) -> Self {
        Self(fence >> ATTEMPT_BITS)
    }

    /// The attempt of a fence.
    pub(crate) const fn attempt_of(fence: u64) -> u32 {
        fence as u32 & ATTEMPTS_MAX
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.round(), self.member())
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_round_is_above_every_attempt_of_an_earlier_one() {
        let (first, second) = (Term::new(7, 200), Term::new(8, 1));
        assert!(first < second && first.fence(ATTEMPTS_MAX) < second.fence(0));
        assert!(first.fence(1) > first.fence(0) && Term::of_fence(first.fence(3)) == first);
        assert_eq!(Term::attempt_of(first.fence(3)), 3);
        assert!(first.is_possible() && Term::NONE.is_possible() && Term::new(ROUND_MAX, 255).is_possible());
        assert!(!Term::new(ROUND_MAX + 1, 0).is_possible() && !Term::new(0, 7).is_possible());
        assert!(Term::new(1 << 16, 1).is_believed(Term::NONE) && !Term::new((1 << 16) + 1, 1).is_believed(Term::NONE));
        assert_eq!((first.round(), first.member(), format!("{first}")), (7, 200, "7/200".to_owned()));
    }
}
