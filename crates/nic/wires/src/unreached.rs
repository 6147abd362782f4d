//! Hosts to which TCP does not lead: a firewall that knows the other port alone.
//!
//! Owns toward which hosts the wire over TCP is avoided. One connection that did not come up says little, because a peer's
//! daemon may just have ended.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use verbs::Time;

/// Connections in a row that did not come up, or were given up, from which on the wire over TCP is not preferred.
const FAILURES: u32 = 2;
/// How long that holds after the last failure.
const AVOIDED_FOR: Duration = Duration::from_secs(300);
/// Hosts that are remembered; the one that failed longest ago goes first.
const HOSTS_MAX: usize = 1024;

#[derive(Debug)]
struct Failed {
    host: IpAddr,
    /// In a row.
    count: u32,
    last: Time,
}

/// The hosts, the latest failure last.
#[derive(Debug, Default)]
pub struct Unreached {
    hosts: VecDeque<Failed>,
}

impl Unreached {
    /// A connection did not come up, or the kernel gave it up because nothing came back.
    pub fn note(&mut self, now: Time, host: IpAddr) {
        let before = self.take(host).filter(|failed| now.saturating_since(failed.last) < AVOIDED_FOR);
        let count = before.map_or(0, |failed| failed.count).saturating_add(1);
        if self.hosts.len() >= HOSTS_MAX {
            self.hosts.pop_front();
        }
        self.hosts.push_back(Failed { host, count, last: now });
    }

    /// A connection came up.
    pub fn forget(&mut self, host: IpAddr) {
        self.take(host);
    }

    /// Whether another wire than TCP should be used for now.
    pub fn has(&self, now: Time, host: IpAddr) -> bool {
        let is_avoided = |f: &Failed| f.count >= FAILURES && now.saturating_since(f.last) < AVOIDED_FOR;
        self.hosts.iter().any(|f| f.host == host && is_avoided(f))
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
