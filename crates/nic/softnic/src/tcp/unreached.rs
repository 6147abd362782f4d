//! Hosts to which one of the two wires does not lead: a firewall that knows one of the ports, or a wire that fell silent.
//!
//! Owns which wire is avoided toward a host, and when TCP is tried again. One connection that did not come up says little,
//! because a peer's daemon may just have ended; a connection that fell silent while the peer's daemon answers elsewhere
//! says enough. A host that goes to and fro is tried again later each time.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use rand::{Rng, RngExt};
use verbs::Time;

/// Connections in a row that did not come up, from which on the wire over TCP is not preferred.
const FAILURES: u32 = 2;
/// How long that holds after the last failure, of connections or of tries.
const AVOIDED_FOR: Duration = Duration::from_secs(300);
/// First pause before TCP is tried again; it doubles.
const TRY_MIN: Duration = Duration::from_secs(2);
/// Its longest. TCP that lasted for so long makes the next pause the first one again.
const TRY_MAX: Duration = Duration::from_secs(60);
/// Pause between two tries toward a host whose RoCEv2 is silent.
const TRY_SOON: Duration = Duration::from_millis(250);
/// How long the answer to a try counts.
const ANSWERED_FOR: Duration = Duration::from_secs(1);
/// How long RoCEv2 is not offered to a host after it was left.
const ROCE_LEFT_FOR: Duration = Duration::from_secs(10);
/// Hosts that are remembered; the one that failed longest ago goes first.
const HOSTS_MAX: usize = 1024;

#[derive(Debug)]
struct Failed {
    host: IpAddr,
    /// Connections in a row that did not come up.
    count: u32,
    last: Time,
    /// Tries in a row that failed, or led to connections that did not last.
    tries: u32,
    try_at: Time,
    tried: Option<Time>,
    /// The last try that was answered, and since when TCP leads there again.
    answered: Option<Time>,
    back_since: Option<Time>,
    roce_left: Option<Time>,
}

impl Failed {
    fn new(host: IpAddr) -> Self {
        let (count, tries, last) = (0, 0, Time::ZERO);
        let (tried, answered, back_since, roce_left) = (None, None, None, None);
        Self { host, count, last, tries, try_at: last, tried, answered, back_since, roce_left }
    }

    fn is_avoided(&self, now: Time) -> bool {
        self.count >= FAILURES && now.saturating_since(self.last) < AVOIDED_FOR
    }

    fn try_later(&mut self, now: Time, rng: &mut impl Rng) {
        let whole = TRY_MIN.saturating_mul(1 << self.tries.min(16)).min(TRY_MAX).as_nanos() as u64;
        self.try_at = now + Duration::from_nanos(rng.random_range(whole / 2..=whole));
    }
}

/// The hosts, the latest failure last.
#[derive(Debug, Default)]
pub struct Unreached {
    hosts: VecDeque<Failed>,
}

impl Unreached {
    /// A connection did not come up.
    pub fn note(&mut self, now: Time, host: IpAddr, rng: &mut impl Rng) {
        let mut failed = self.take_or_new(host);
        if now.saturating_since(failed.last) >= AVOIDED_FOR {
            failed.count = 0;
        }
        failed.count = failed.count.saturating_add(1);
        self.put_failed(failed, now, rng);
    }

    /// A connection fell silent, and its owner leaves the wire.
    pub fn leave(&mut self, now: Time, host: IpAddr, rng: &mut impl Rng) {
        let mut failed = self.take_or_new(host);
        failed.count = failed.count.max(FAILURES);
        self.put_failed(failed, now, rng);
    }

    fn put_failed(&mut self, mut failed: Failed, now: Time, rng: &mut impl Rng) {
        failed.last = now;
        if let Some(since) = failed.back_since.take() {
            let lasted = now.saturating_since(since) >= TRY_MAX;
            failed.tries = if lasted { 0 } else { failed.tries.saturating_add(1) };
        }
        failed.try_later(now, rng);
        self.put(failed);
    }

    /// A connection came up.
    pub fn forget(&mut self, now: Time, host: IpAddr) {
        let Some(failed) = self.get_mut(host) else { return };
        failed.count = 0;
        failed.back_since.get_or_insert(now);
        // What lasts for so long is worth no memory.
        if failed.back_since.is_some_and(|since| now.saturating_since(since) >= TRY_MAX) {
            self.take(host);
        }
    }

    /// Whether another wire than TCP should be used for now.
    pub fn has(&self, now: Time, host: IpAddr) -> bool {
        self.get(host).is_some_and(|f| f.is_avoided(now))
    }

    // ---- tries

    /// Whether TCP is to be tried again, if it is avoided. Then [`Self::on_tried`] follows.
    pub fn is_due(&self, now: Time, host: IpAddr) -> bool {
        self.get(host).is_some_and(|f| f.is_avoided(now) && f.try_at <= now)
    }

    /// The same toward a host whose RoCEv2 is silent: whether TCP is avoided or not, and soon.
    pub fn is_due_soon(&self, now: Time, host: IpAddr) -> bool {
        let tried = self.get(host).and_then(|f| f.tried);
        tried.is_none_or(|at| now.saturating_since(at) >= TRY_SOON)
    }

    /// A try has ended: TCP was answered, or not. `in_turn`: it was due, and so the next one is later.
    pub fn on_tried(&mut self, now: Time, host: IpAddr, answered: bool, in_turn: bool, rng: &mut impl Rng) {
        let mut failed = self.take_or_new(host);
        failed.tried = Some(now);
        if answered {
            failed.count = 0;
            (failed.answered, failed.back_since) = (Some(now), Some(now));
        } else {
            (failed.last, failed.answered) = (now, None);
            if in_turn {
                failed.tries = failed.tries.saturating_add(1);
                failed.try_later(now, rng);
            }
        }
        self.put(failed);
    }

    /// Whether a try was answered just now.
    pub fn is_answered(&self, now: Time, host: IpAddr) -> bool {
        let answered = self.get(host).and_then(|f| f.answered);
        answered.is_some_and(|at| now.saturating_since(at) < ANSWERED_FOR)
    }

    // ---- RoCEv2

    /// RoCEv2 fell silent while TCP was answered, and its owner leaves it.
    pub fn leave_roce(&mut self, now: Time, host: IpAddr) {
        let mut failed = self.take_or_new(host);
        failed.roce_left = Some(now);
        self.put(failed);
    }

    /// Whether RoCEv2 was left just now, and TCP is not avoided.
    pub fn has_left_roce(&self, now: Time, host: IpAddr) -> bool {
        let left = |f: &Failed| f.roce_left.is_some_and(|at| now.saturating_since(at) < ROCE_LEFT_FOR);
        self.get(host).is_some_and(|f| left(f) && !f.is_avoided(now))
    }

    // ---- the table

    fn get(&self, host: IpAddr) -> Option<&Failed> {
        self.hosts.iter().find(|f| f.host == host)
    }

    fn get_mut(&mut self, host: IpAddr) -> Option<&mut Failed> {
        self.hosts.iter_mut().find(|f| f.host == host)
    }

    fn take(&mut self, host: IpAddr) -> Option<Failed> {
        let at = self.hosts.iter().position(|f| f.host == host)?;
        self.hosts.remove(at)
    }

    fn take_or_new(&mut self, host: IpAddr) -> Failed {
        self.take(host).unwrap_or_else(|| Failed::new(host))
    }

    fn put(&mut self, failed: Failed) {
        if self.hosts.len() >= HOSTS_MAX {
            self.hosts.pop_front();
        }
        self.hosts.push_back(failed);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn host(n: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from(n))
    }

    fn rng() -> StdRng {
        StdRng::seed_from_u64(1)
    }

    #[test]
    fn failures_in_a_row_count_and_not_for_ever() {
        let (mut unreached, mut rng, later) = (Unreached::default(), rng(), Time(0) + AVOIDED_FOR);
        for _ in 1..FAILURES {
            unreached.note(Time(0), host(1), &mut rng);
            assert!(!unreached.has(Time(0), host(1)));
        }
        unreached.note(Time(0), host(1), &mut rng);
        assert!(unreached.has(Time(0), host(1)) && !unreached.has(Time(0), host(2)));
        assert!(!unreached.has(later, host(1)));
        // What was long ago does not count.
        unreached.note(later, host(1), &mut rng);
        assert!(!unreached.has(later, host(1)));
        unreached.note(later, host(1), &mut rng);
        assert!(unreached.has(later, host(1)));
        unreached.forget(later, host(1));
        unreached.note(later, host(1), &mut rng);
        assert!(!unreached.has(later, host(1)), "it came up in between");
    }

    #[test]
    fn so_many_hosts_are_remembered() {
        let (mut unreached, mut rng) = (Unreached::default(), rng());
        for n in 0..=HOSTS_MAX as u32 {
            unreached.note(Time(0), host(n), &mut rng);
            unreached.note(Time(0), host(n), &mut rng);
        }
        assert_eq!(unreached.hosts.len(), HOSTS_MAX);
        assert!(!unreached.has(Time(0), host(0)) && unreached.has(Time(0), host(HOSTS_MAX as u32)));
    }

    #[test]
    fn silence_is_enough_and_a_try_ends_it() {
        let (mut unreached, mut rng, host) = (Unreached::default(), rng(), host(1));
        unreached.leave(Time(0), host, &mut rng);
        assert!(unreached.has(Time(0), host));
        assert!(!unreached.is_due(Time(0) + TRY_MIN / 3, host) && unreached.is_due(Time(0) + TRY_MIN, host));
        unreached.on_tried(Time(0) + TRY_MIN, host, false, true, &mut rng);
        assert!(!unreached.is_due(Time(0) + TRY_MIN + TRY_MIN / 2, host));
        let now = Time(0) + TRY_MIN * 3;
        assert!(unreached.is_due(now, host) && !unreached.is_answered(now, host));
        unreached.on_tried(now, host, true, true, &mut rng);
        assert!(!unreached.has(now, host) && !unreached.is_due(now, host) && unreached.is_answered(now, host));
        assert!(!unreached.is_answered(now + ANSWERED_FOR, host));
    }

    /// A wire that comes and goes is tried again later each time; one that lasted, soon.
    #[test]
    fn a_wire_that_comes_and_goes_is_left_alone() {
        let (mut unreached, mut rng, host, mut now) = (Unreached::default(), rng(), host(1), Time(0));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            unreached.leave(now, host, &mut rng);
            let failed = now;
            while !unreached.is_due(now, host) {
                now = now + Duration::from_millis(100);
            }
            pauses.push(now.saturating_since(failed));
            unreached.on_tried(now, host, true, true, &mut rng);
            unreached.forget(now, host);
            now = now + Duration::from_secs(1);
        }
        assert!(pauses[0] <= TRY_MIN + TRY_MIN / 10 && pauses[7] >= TRY_MAX / 2, "{pauses:?}");
        assert!(pauses.is_sorted_by(|a, b| *b * 2 >= *a) && pauses[7] <= TRY_MAX + TRY_MIN, "{pauses:?}");
        now = now + TRY_MAX;
        unreached.leave(now, host, &mut rng);
        assert!(unreached.is_due(now + TRY_MIN, host), "it had lasted");
    }

    #[test]
    fn rocev2_is_left_only_while_tcp_leads_there() {
        let (mut unreached, mut rng, host) = (Unreached::default(), rng(), host(1));
        assert!(unreached.is_due_soon(Time(0), host));
        unreached.leave_roce(Time(0), host);
        assert!(unreached.has_left_roce(Time(0), host));
        assert!(!unreached.has_left_roce(Time(0) + ROCE_LEFT_FOR, host));
        unreached.leave(Time(1), host, &mut rng);
        assert!(!unreached.has_left_roce(Time(1), host));
    }
}
