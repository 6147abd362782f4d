//! Reads that a leader answers by itself, for a time.
//!
//! Owns that time, at both ends. A majority of heads without a greater term says that nobody had come to lead when the
//! first of them was read: whoever does later writes his term into one of those heads after that. He commits nothing for as
//! long as such an answer is believed, and a share more. So until then all that is committed is this leader's.
//!
//! No two clocks are compared, only their rates: in the time in which one host's clock goes on by [`RATE_SHARE`], that of
//! another goes on by one less or one more at most. Linux steers a clock by 500 parts in a million at most, so two run
//! apart by a thousandth; a clock that stands still while its machine sleeps does not hold it.

/// See the head of this file.
pub(crate) const RATE_SHARE: u64 = 64;
/// Looks at the heads in the time of a lease.
const LOOKS: u64 = 4;

/// See the head of this file. Moments are microseconds of the own clock.
#[derive(Debug)]
pub(crate) struct Lease {
    us: u64,
    until: u64,
    /// Nothing is committed before. It is not known yet: it counts from the first moment after the heads were written.
    commits_from: Option<u64>,
}

impl Lease {
    /// Of a leader that has just written its term into a majority of heads. 0 microseconds: there are no leases.
    pub(crate) fn new(us: u64) -> Self {
        Self { us, until: 0, commits_from: (us == 0).then_some(0) }
    }

    /// The clock was asked.
    pub(crate) fn on_time(&mut self, now: u64) {
        self.commits_from.get_or_insert(now + self.us + self.us.div_ceil(RATE_SHARE));
    }

    pub(crate) fn may_commit(&self, now: u64) -> bool {
        self.commits_from.is_some_and(|from| now >= from)
    }

    /// A majority of heads, the first of which was read after `begun`, have no greater term.
    pub(crate) fn extend(&mut self, begun: u64) {
        if self.us > 0 {
            self.until = self.until.max(begun + self.us);
        }
    }

    /// Whether a read that was asked for before `now` needs nobody else.
    pub(crate) fn holds(&self, now: u64) -> bool {
        now < self.until
    }

    /// How long after one look at the heads the next one is due: `at_most`, or sooner for the lease's sake.
    pub(crate) fn look_again_in(&self, at_most: u64) -> u64 {
        if self.us > 0 { at_most.min(self.us / LOOKS) } else { at_most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_leader_waits_longer_than_an_old_one_believes() {
        let mut new = Lease::new(6400);
        assert!(!new.may_commit(u64::MAX), "the clock was not asked");
        new.on_time(1000);
        new.on_time(5000);
        assert!(!new.may_commit(7499) && new.may_commit(7500));
        let mut old = Lease::new(6400);
        assert!(!old.holds(0));
        old.extend(1000);
        old.extend(500);
        assert!(old.holds(7399) && !old.holds(7400));
        assert_eq!((old.look_again_in(5000), old.look_again_in(10)), (1600, 10));
    }

    #[test]
    fn without_leases_nobody_waits_and_none_holds() {
        let mut lease = Lease::new(0);
        assert!(lease.may_commit(0));
        lease.extend(100);
        assert!(!lease.holds(50));
        assert_eq!(lease.look_again_in(5000), 5000);
    }
}
