//! How patient a member is.
//!
//! Owns the doublings of all times after which somebody is replaced or gives up. On machines or links so slow that no
//! campaign ends in its time, and no leader is heard of in time, members with fixed times would replace each other for
//! ever. So with each term that comes before the one before it has done anything, and each look at the memories that is
//! not over in time, all who see it wait twice as long. It must never make a group slow for ever: terms that do
//! something, and leaders that last, take it back.

use crate::term::Term;

/// Doublings, at most: with the period of 5 ms a leader is given 3 s to be heard of then, and a campaign 6 s.
const DOUBLINGS_MAX: u32 = 6;
/// Periods with one leader for which a doubling is taken back.
const STEADY_PERIODS: u32 = 64;

/// See the head of this file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    /// The greatest term that was seen.
    term: Term,
    /// Terms that came, less those that did something.
    changes: u32,
    /// Its leader has committed a command.
    has_commanded: bool,
    /// Periods in which it had an entry.
    steady: u32,
}

impl Pace {
    /// Somebody, maybe this member, campaigns in this term.
    pub(crate) fn on_term(&mut self, term: Term) {
        if term > self.term {
            let changes = (self.changes + 1).min(DOUBLINGS_MAX + 1);
            *self = Self { term, changes, has_commanded: false, steady: 0 };
        }
    }

    /// A look at the memories came to its time before a majority had answered.
    pub(crate) fn on_late(&mut self) {
        self.changes = (self.changes + 1).min(DOUBLINGS_MAX + 1);
    }

    /// A period has passed in which somebody was taken for alive: the term of the last entry that was applied, and that
    /// of the last command.
    pub(crate) fn on_period(&mut self, applied: Term, commanded: Term) {
        if applied != self.term {
            return;
        }
        self.steady += 1;
        let is_first = commanded == self.term && !self.has_commanded;
        self.has_commanded |= is_first;
        if is_first || self.steady.is_multiple_of(STEADY_PERIODS) {
            self.changes = self.changes.saturating_sub(1);
        }
    }

    /// How often times are doubled. The first change is none.
    pub(crate) fn doublings(&self) -> u32 {
        self.changes.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_that_do_nothing_double_times_and_others_take_it_back() {
        let (mut pace, term) = (Pace::default(), |round| Term::new(round, 1));
        let after = |pace: &mut Pace, round: u64| {
            pace.on_term(term(round));
            pace.on_term(term(round - 1));
            pace.doublings()
        };
        assert_eq!((1..10).map(|round| after(&mut pace, round)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 6, 6]);
        (0..1000).for_each(|_| pace.on_period(term(8), term(8)));
        assert_eq!(pace.doublings(), 6, "the last one has done nothing");
        (0..10).for_each(|_| pace.on_period(term(9), term(9)));
        assert_eq!(pace.doublings(), 5, "commands count once");
        (0..6 * STEADY_PERIODS).for_each(|_| pace.on_period(term(9), term(2)));
        assert_eq!((pace.doublings(), pace.changes), (0, 0));
        (0..4).for_each(|_| pace.on_late());
        assert_eq!(pace.doublings(), 3, "memories that do not answer in time");
        (0..4 * STEADY_PERIODS).for_each(|_| pace.on_period(term(9), term(9)));
        for round in 10..20 {
            assert_eq!(after(&mut pace, round), 0, "a term that follows one which did something");
            pace.on_period(term(round), term(round));
        }
    }
}
