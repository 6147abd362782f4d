//! When responses are fetched, and when the server is to send them: RFP's rule.
//!
//! Owns the mode of one client and its changes. The paper (section 3.2): a call of which more than R fetches fail is
//! slow; after two slow calls in a row the server replies, and when its times are short again the client fetches.

/// Fetches of one call that may fail before it counts as slow: the paper's R.
pub(crate) const FAILED_FETCHES_MAX: u32 = 5;
/// Slow calls in a row after which the server replies.
const SLOW_CALLS: u32 = 2;
/// A call whose service takes no longer than this is short.
const SHORT_US: u32 = 50;
/// Short calls in a row after which the client fetches, the first time.
const SHORT_CALLS: u32 = 2;
/// And at most, after it went back and forth: each switch doubles the number.
const SHORT_CALLS_MAX: u32 = 1024;
/// A call of which this many fetches failed is not waited for by fetching, whatever the one before it was.
pub(crate) const FETCHES_GIVEN_UP: u32 = 8 * FAILED_FETCHES_MAX;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Rule {
    is_reply: bool,
    slow_in_row: u32,
    short_in_row: u32,
    short_wanted: u32,
    fetched: u32,
    pub(crate) to_reply: u64,
    pub(crate) to_fetch: u64,
}

impl Default for Rule {
    fn default() -> Self {
        let short_wanted = SHORT_CALLS;
        Self { is_reply: false, slow_in_row: 0, short_in_row: 0, short_wanted, fetched: 0, to_reply: 0, to_fetch: 0 }
    }
}

impl Rule {
    /// Whether the server is asked to send responses.
    pub(crate) fn is_reply(&self) -> bool {
        self.is_reply
    }

    /// A fetch failed, the `failed`th of its call. Says whether the server is to reply from this very call on.
    pub(crate) fn on_failed(&mut self, failed: u32) -> bool {
        if failed == FAILED_FETCHES_MAX + 1 {
            self.slow_in_row += 1;
        }
        let is_slow = failed > FAILED_FETCHES_MAX && self.slow_in_row >= SLOW_CALLS;
        if !self.is_reply && (is_slow || failed > FETCHES_GIVEN_UP) {
            self.is_reply = true;
            self.short_in_row = 0;
            self.to_reply += 1;
        }
        self.is_reply
    }

    /// A response was fetched after so many failed fetches.
    pub(crate) fn on_fetched(&mut self, failed: u32) {
        if failed > FAILED_FETCHES_MAX {
            return;
        }
        self.slow_in_row = 0;
        self.fetched = self.fetched.saturating_add(1);
        if self.fetched > SHORT_CALLS_MAX {
            self.short_wanted = SHORT_CALLS;
        }
    }

    /// The server sent a response; its service took `run_us`.
    pub(crate) fn on_reply(&mut self, run_us: u32) {
        self.short_in_row = if run_us <= SHORT_US { self.short_in_row + 1 } else { 0 };
        if self.is_reply && self.short_in_row >= self.short_wanted {
            self.is_reply = false;
            (self.slow_in_row, self.fetched) = (0, 0);
            self.short_wanted = (2 * self.short_wanted).min(SHORT_CALLS_MAX);
            self.to_fetch += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow_call(rule: &mut Rule) -> bool {
        (1..=FAILED_FETCHES_MAX + 1).any(|failed| rule.on_failed(failed))
    }

    #[test]
    fn two_slow_calls_in_a_row_switch_and_short_ones_switch_back() {
        let mut rule = Rule::default();
        assert!(!slow_call(&mut rule));
        rule.on_fetched(FAILED_FETCHES_MAX + 1);
        rule.on_fetched(0);
        assert!(!slow_call(&mut rule), "a quick call came between");
        rule.on_fetched(FAILED_FETCHES_MAX + 1);
        assert!(slow_call(&mut rule));
        assert!(rule.is_reply());
        rule.on_reply(SHORT_US);
        rule.on_reply(SHORT_US + 1);
        rule.on_reply(SHORT_US);
        assert!(rule.is_reply(), "a long one came between");
        rule.on_reply(0);
        assert!(!rule.is_reply());
        assert_eq!((rule.to_reply, rule.to_fetch), (1, 1));
    }

    #[test]
    fn one_very_slow_call_is_not_fetched_for_ever() {
        let mut rule = Rule::default();
        assert!((1..=FETCHES_GIVEN_UP).all(|failed| !rule.on_failed(failed)));
        assert!(rule.on_failed(FETCHES_GIVEN_UP + 1));
    }

    #[test]
    fn going_back_and_forth_gets_rarer() {
        let mut rule = Rule::default();
        let mut replies = vec![];
        for _ in 0..12 {
            while !slow_call(&mut rule) {}
            let mut count = 0;
            while rule.is_reply() {
                rule.on_reply(1);
                count += 1;
            }
            replies.push(count);
        }
        assert_eq!(replies[..4], [2, 4, 8, 16]);
        assert_eq!(replies[11], SHORT_CALLS_MAX);
    }
}
