//! Whether a leader is alive, by his beat.
//!
//! Owns the score (Mu, OSDI 2020, section 5.1): a beat that went on is worth more than one that did not, so one missed
//! look is nothing and a row of them is the end. A lost link is the end at once.

const RISE: u32 = 3;
const FALL: u32 = 1;
const MOST: u32 = 12;
/// Below this he counts as gone.
const GONE_BELOW: u32 = 3;

/// See the head of this file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Detector {
    score: u32,
    beat: Option<u64>,
    /// Misses that have not cost anything yet.
    missed: u32,
}

impl Detector {
    /// Somebody new leads.
    pub(crate) const fn fresh() -> Self {
        Self { score: MOST, beat: None, missed: 0 }
    }

    /// Nobody leads.
    pub(crate) const fn nobody() -> Self {
        Self { score: 0, beat: None, missed: 0 }
    }

    /// A look at his beat; of so many doublings of the time that he is given.
    pub(crate) fn on_beat(&mut self, beat: u64, doublings: u32) {
        if self.beat.replace(beat) == Some(beat) {
            return self.on_none(doublings);
        }
        (self.score, self.missed) = ((self.score + RISE).min(MOST), 0);
    }

    /// The look has not come back yet.
    pub(crate) fn on_none(&mut self, doublings: u32) {
        self.missed += 1;
        if self.missed >> doublings > 0 {
            (self.score, self.missed) = (self.score.saturating_sub(FALL), 0);
        }
    }

    /// He cannot be reached, or does not lead.
    pub(crate) fn on_gone(&mut self) {
        *self = Self::nobody();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.score < GONE_BELOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_misses_or_a_lost_link_is_the_end_and_one_miss_is_not() {
        let mut detector = Detector::fresh();
        (0..20).for_each(|beat| detector.on_beat(beat, 0));
        (0..9).for_each(|_| detector.on_beat(19, 0));
        assert!(!detector.is_gone());
        detector.on_none(0);
        assert!(detector.is_gone());
        detector.on_beat(20, 0);
        assert!(!detector.is_gone(), "back at once");
        detector.on_gone();
        assert!(detector.is_gone());
    }

    #[test]
    fn a_doubling_takes_twice_as_many_misses() {
        let mut detector = Detector::fresh();
        (0..79).for_each(|_| detector.on_none(3));
        assert!(!detector.is_gone());
        detector.on_none(3);
        assert!(detector.is_gone());
    }
}
