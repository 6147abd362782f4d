//! When unanswered requests are sent again, and when the requester gives up (IBTA 9.7.6.1).
//!
//! Owns the retry counters and the three clocks of a requester: the local ACK timeout, the RNR wait, and the probe. The
//! probe sends the oldest unanswered packet again after a silence of several measured round trips. Without it a lost
//! NAK, or a lost last packet, would cost a whole ACK timeout, usually 67 ms. A peer that was merely slow sees one
//! duplicate. It does not count as a retry, and [`MAX_PROBES`] bounds it.

use std::time::Duration;

use verbs::Time;

use crate::limits::{MAX_PROBES, MAX_RETRY, PROBE_FLOOR, STRETCHED_TIMEOUT_MAX};
use crate::wire::ack_timeout;

/// Counters and clocks of one requester.
#[derive(Debug, Default, Clone)]
pub(crate) struct Retry {
    timeout: Option<Duration>,
    retry_cnt: u8,
    rnr_retry: u8,
    retries_left: u8,
    rnr_left: u8,
    probes: u32,
    ack_deadline: Option<Time>,
    probe_at: Option<Time>,
    rnr_until: Option<Time>,
    rtt: Rtt,
    /// The last time of going back, and to which packet.
    went_back: Option<(u64, Time)>,
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing.
    No,
    /// The wait after an RNR NAK is over.
    RnrOver,
    /// A silence of several round trips.
    Probe,
    /// The local ACK timeout.
    Timeout,
}

impl Retry {
    pub(crate) fn configure(&mut self, timeout_code: u8, retry_cnt: u8, rnr_retry: u8) {
        self.timeout = ack_timeout(timeout_code);
        if self.timeout.is_none() {
            (self.ack_deadline, self.probe_at) = (None, None);
        }
        (self.retry_cnt, self.rnr_retry) = (retry_cnt, rnr_retry);
        (self.retries_left, self.rnr_left) = (retry_cnt, rnr_retry);
    }

    /// Whether an RNR wait forbids sending.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// The next instant at which [`Self::take_due`] may say something.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.rnr_until.is_some() {
            return self.rnr_until;
        }
        match (self.ack_deadline, self.probe_at) {
            (Some(a), Some(p)) => Some(a.min(p)),
            (a, p) => a.or(p),
        }
    }

    pub(crate) fn take_due(&mut self, now: Time) -> Due {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if self.rnr_until.is_some() {
            if is_due(self.rnr_until) {
                self.rnr_until = None;
                return Due::RnrOver;
            }
            return Due::No;
        }
        if is_due(self.ack_deadline) {
            (self.ack_deadline, self.probe_at) = (None, None);
            return Due::Timeout;
        }
        if is_due(self.probe_at) {
            self.probe_at = None;
            self.probes += 1;
            return Due::Probe;
        }
        Due::No
    }

    /// Something was sent: its answer is awaited.
    pub(crate) fn on_sent(&mut self, now: Time) {
        let Some(timeout) = self.timeout else { return };
        // A timeout that is shorter than the way there and back says nothing.
        let timeout = timeout.max(self.rtt.patience().min(STRETCHED_TIMEOUT_MAX));
        let ack_deadline = *self.ack_deadline.get_or_insert(now + timeout);
        if self.probe_at.is_none() && self.probes < MAX_PROBES {
            let at = now + self.rtt.silence().saturating_mul(1 << self.probes);
            self.probe_at = (at < ack_deadline).then_some(at);
        }
    }

    /// A packet was answered so long after it was first sent. Where it was sent again meanwhile that is too long, and
    /// the timers that follow from it are too patient; of two copies the later would make them too hasty.
    pub(crate) fn learn(&mut self, rtt: Duration) {
        self.rtt.add(rtt);
    }

    /// Some packets are answered; `waiting` says whether others are not. An RNR wait is over: it was for the oldest
    /// packet, which the peer has taken after all.
    pub(crate) fn on_progress(&mut self, waiting: bool, now: Time) {
        (self.retries_left, self.rnr_left, self.probes) = (self.retry_cnt, self.rnr_retry, 0);
        (self.ack_deadline, self.probe_at, self.rnr_until) = (None, None, None);
        if waiting {
            self.on_sent(now);
        }
    }

    /// Counts a retry; false if none is left.
    pub(crate) fn try_retry(&mut self) -> bool {
        let left = self.retries_left > 0;
        self.retries_left = self.retries_left.saturating_sub(1);
        left
    }

    /// Counts an RNR retry and waits; false if none is left. The peer has answered, so other retries begin anew: a long wait
    /// on a path that loses packets does not use them up.
    pub(crate) fn try_rnr_wait(&mut self, delay: Duration, now: Time) -> bool {
        if self.rnr_retry != MAX_RETRY {
            if self.rnr_left == 0 {
                return false;
            }
            self.rnr_left -= 1;
        }
        self.rnr_until = Some(now + delay);
        (self.ack_deadline, self.probe_at) = (None, None);
        (self.retries_left, self.probes) = (self.retry_cnt, 0);
        true
    }

    /// Whether going back to `una` for a missing packet is not a repetition within one round trip.
    pub(crate) fn may_go_back(&self, una: u64, now: Time) -> bool {
        self.went_back.is_none_or(|(to, at)| to != una || now.saturating_since(at) >= self.rtt.least())
    }

    pub(crate) fn on_went_back(&mut self, una: u64, now: Time) {
        self.went_back = Some((una, now));
    }
}

/// Smoothed round-trip time and its deviation, as TCP keeps them (RFC 6298).
#[derive(Debug, Default, Clone)]
struct Rtt {
    smoothed: Duration,
    deviation: Duration,
}

impl Rtt {
    fn add(&mut self, rtt: Duration) {
        if self.smoothed.is_zero() {
            (self.smoothed, self.deviation) = (rtt, rtt / 2);
        } else {
            self.deviation = (self.deviation * 3 + rtt.abs_diff(self.smoothed)) / 4;
            self.smoothed = (self.smoothed * 7 + rtt) / 8;
        }
    }

    /// After this an answer is overdue; nothing before there is a measurement.
    fn patience(&self) -> Duration {
        self.smoothed * 2 + self.deviation * 4
    }

    /// Before this an answer cannot be to what was just sent. A queue pair that has measured nothing yet is given a
    /// guess: packets that overtake each other bring several NAKs for one gap at once, and each would else count as a
    /// retry.
    fn least(&self) -> Duration {
        if self.smoothed.is_zero() { PROBE_FLOOR } else { self.smoothed }
    }

    /// How long no answer is plausible.
    fn silence(&self) -> Duration {
        if self.smoothed.is_zero() {
            return PROBE_FLOOR * 4;
        }
        self.patience().max(PROBE_FLOOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn retry() -> Retry {
        let mut retry = Retry::default();
        retry.configure(14, 2, 1);
        retry
    }

    #[test]
    fn probes_then_timeouts_then_none_left() {
        let mut retry = retry();
        retry.on_sent(Time(0));
        assert_eq!(retry.deadline(), Some(Time(4 * MS)));
        assert_eq!(retry.take_due(Time(4 * MS - 1)), Due::No);
        for at in [4, 12, 28, 60] {
            assert_eq!(retry.take_due(Time(at * MS)), Due::Probe);
            retry.on_sent(Time(at * MS));
        }
        assert_eq!(retry.deadline(), Some(Time(67_108_864)), "no probes are left");
        assert_eq!(retry.take_due(Time(67_108_864)), Due::Timeout);
        assert_eq!(retry.deadline(), None);
        assert!(retry.try_retry() && retry.try_retry() && !retry.try_retry());
        retry.on_progress(false, Time(70 * MS));
        assert!(retry.try_retry(), "progress fills the counter");
    }

    #[test]
    fn rnr_waits_and_counts() {
        let mut retry = retry();
        retry.on_sent(Time(0));
        assert!(retry.try_rnr_wait(Duration::from_millis(1), Time(5)));
        assert!(retry.is_waiting());
        assert_eq!(retry.deadline(), Some(Time(MS + 5)));
        assert_eq!((retry.take_due(Time(MS)), retry.take_due(Time(MS + 5))), (Due::No, Due::RnrOver));
        assert!(!retry.is_waiting());
        assert!(!retry.try_rnr_wait(Duration::from_millis(1), Time(MS)));
        retry.configure(14, 2, 7);
        for _ in 0..1000 {
            assert!(retry.try_rnr_wait(Duration::from_millis(1), Time(MS)));
            assert!(retry.try_retry(), "a packet is lost between two of them");
        }
    }

    #[test]
    fn measured_round_trips_shape_the_probe() {
        let mut retry = retry();
        retry.learn(Duration::from_millis(10));
        retry.on_sent(Time(20 * MS));
        assert_eq!(retry.deadline(), Some(Time((20 + 20 + 20) * MS)));
        let mut quick = Retry::default();
        quick.configure(0, 2, 1);
        quick.on_sent(Time(0));
        assert_eq!(quick.deadline(), None, "no ACK timeout, no clock");
    }

    #[test]
    fn a_round_trip_longer_than_the_timeout_stretches_it() {
        let mut retry = retry();
        retry.learn(Duration::from_millis(100));
        (retry.probes, retry.probe_at) = (MAX_PROBES, None);
        retry.on_sent(Time(0));
        assert_eq!(retry.deadline(), Some(Time(400 * MS)));
        retry.on_progress(false, Time(1));
        retry.learn(Duration::from_secs(100));
        retry.probes = MAX_PROBES;
        retry.on_sent(Time(0));
        assert_eq!(retry.deadline(), Some(Time(2_000 * MS)), "not for ever");
    }

    #[test]
    fn going_back_twice_within_a_round_trip_is_once() {
        let mut retry = retry();
        retry.learn(Duration::from_nanos(10));
        retry.on_progress(true, Time(10));
        retry.on_went_back(1, Time(100));
        assert!(!retry.may_go_back(1, Time(109)));
        assert!(retry.may_go_back(1, Time(110)) && retry.may_go_back(2, Time(101)));
    }

    #[test]
    fn several_naks_at_once_count_once_before_anything_is_measured() {
        let mut retry = retry();
        assert!(retry.may_go_back(1, Time(100)));
        retry.on_went_back(1, Time(100));
        assert!(!retry.may_go_back(1, Time(100)) && !retry.may_go_back(1, Time(50_000)));
        assert!(retry.may_go_back(2, Time(100)), "another gap");
        assert!(retry.may_go_back(1, Time(100 + MS)), "the packet sent again was lost too");
    }
}
