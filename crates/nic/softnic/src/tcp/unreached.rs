//! Hosts to which TCP connections do not come up although RoCEv2 may: a firewall that knows one of the two ports.
//!
//! Owns the count of failures. One alone says little, because a peer's daemon may just have ended.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use verbs::Time;

/// Connections in a row that did not come up, from which on the wire over TCP is not preferred.
const FAILURES: u32 = 2;
/// How long that holds after the last of them.
const AVOIDED_FOR: Duration = Duration::from_secs(300);
/// Hosts that are remembered; the one that failed longest ago goes first.
const HOSTS_MAX: usize = 1024;

#[derive(Debug)]
struct Failed {
    host: IpAddr,
    count: u32,
    last: Time,
}

/// The hosts, the latest failure last.
#[derive(Debug, Default)]
pub(super) struct Unreached {
    hosts: VecDeque<Failed>,
}

impl Unreached {
    /// A connection did not come up.
    pub(super) fn note(&mut self, now: Time, host: IpAddr) {
        let before = self.take(host).filter(|f| now.saturating_since(f.last) < AVOIDED_FOR);
        if self.hosts.len() >= HOSTS_MAX {
            self.hosts.pop_front();
        }
        let count = before.map_or(0, |f| f.count).saturating_add(1);
        self.hosts.push_back(Failed { host, count, last: now });
    }

    /// A connection came up.
    pub(super) fn forget(&mut self, host: IpAddr) {
        self.take(host);
    }

    /// Whether another wire should be used for now.
    pub(super) fn has(&self, now: Time, host: IpAddr) -> bool {
        self.hosts.iter().any(|f| f.host == host && f.count >= FAILURES && now.saturating_since(f.last) < AVOIDED_FOR)
    }

    fn take(&mut self, host: IpAddr) -> Option<Failed> {
        let at = self.hosts.iter().position(|f| f.host == host)?;
        self.hosts.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from(n))
    }

    #[test]
    fn failures_in_a_row_count_and_not_for_ever() {
        let (mut unreached, later) = (Unreached::default(), Time(0) + AVOIDED_FOR);
        for _ in 1..FAILURES {
            unreached.note(Time(0), host(1));
            assert!(!unreached.has(Time(0), host(1)));
        }
        unreached.note(Time(0), host(1));
        assert!(unreached.has(Time(0), host(1)) && !unreached.has(Time(0), host(2)));
        assert!(!unreached.has(later, host(1)));
        // What was long ago does not count.
        unreached.note(later, host(1));
        assert!(!unreached.has(later, host(1)));
        unreached.note(later, host(1));
        assert!(unreached.has(later, host(1)));
        unreached.forget(host(1));
        unreached.note(later, host(1));
        assert!(!unreached.has(later, host(1)), "it came up in between");
    }

    #[test]
    fn so_many_hosts_are_remembered() {
        let mut unreached = Unreached::default();
        for n in 0..=HOSTS_MAX as u32 {
            unreached.note(Time(0), host(n));
            unreached.note(Time(0), host(n));
        }
        assert_eq!(unreached.hosts.len(), HOSTS_MAX);
        assert!(!unreached.has(Time(0), host(0)) && unreached.has(Time(0), host(HOSTS_MAX as u32)));
    }
}
