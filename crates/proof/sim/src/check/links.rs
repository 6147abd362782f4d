//! Promises about control links and lanes: a wish for a lane ends in a lane or a reason, at most one link is left
//! between two daemons, daemons that do not fit together never speak, and nothing of a handshake is left behind.

use std::collections::BTreeMap;

use control::Reason;
use verbs::Time;

use super::Checks;
use crate::address::At;
use crate::plan::DaemonPlan;

/// What the control planes owe.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Since when an engine waits for a lane, by engine and peer.
    waits: BTreeMap<(At, usize), Time>,
}

impl Links {
    /// An engine wants a lane, or waits for the one that was reset.
    pub(crate) fn on_waits(&mut self, now: Time, at: At, peer: usize) {
        self.waits.entry((at, peer)).or_insert(now);
    }

    /// It has one, or was told that there is none.
    pub(crate) fn on_settled(&mut self, at: At, peer: usize) {
        self.waits.remove(&(at, peer));
    }

    /// Its host died.
    pub(crate) fn on_dead(&mut self, host: usize) {
        self.waits.retain(|(at, _), _| at.host != host);
    }
}

/// A host's link at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkAtRest {
    pub(crate) hosts: (usize, usize),
    /// Which TCP connection, if any.
    pub(crate) connection: Option<u64>,
    pub(crate) is_up: bool,
    /// The control plane takes it for the link to that peer.
    pub(crate) is_the_peers: bool,
}

impl Checks {
    /// Both sides of a link have proven what they had to, says one of them.
    pub(crate) fn on_link_up(&mut self, now: Time, hosts: (usize, usize), daemons: &[DaemonPlan; 2]) {
        let [a, b] = daemons;
        if (a.key, a.wire_version) != (b.key, b.wire_version) {
            self.fail(now, "trust", format!("a link of hosts {hosts:?} is up, whose daemons are {a:?} and {b:?}"));
        }
    }

    /// An engine learned that a lane is lost.
    pub(crate) fn on_lane_lost(&mut self, now: Time, (host, peer): (usize, usize), reason: Reason) {
        self.causes.on_lane_lost(now, host, peer, reason);
        if !self.causes.explains_loss(now, host, peer, reason) {
            let detail = format!("lane of {host} to {peer} is lost by `{}`, for which there is no cause", reason.key());
            self.fail(now, "unexplained", detail);
        }
    }

    /// Nothing breaks since long, and nobody wants anything.
    pub(crate) fn on_links_at_rest(&mut self, now: Time, links: &[LinkAtRest]) {
        for ((at, peer), since) in std::mem::take(&mut self.links.waits) {
            let waited = now.saturating_since(since);
            self.fail(now, "liveness", format!("engine {at:?} waits for a lane to {peer} since {waited:?}"));
        }
        for link in links {
            let (host, peer) = link.hosts;
            let of_pair = links.iter().filter(|l| l.hosts == link.hosts).count();
            let others = links.iter().find(|l| l.hosts == (peer, host) && l.connection == link.connection);
            if of_pair > 1 || !link.is_up || !link.is_the_peers || !others.is_some_and(|l| l.is_up) {
                let detail =
                    format!("{of_pair} links of {host} to {peer}, one of them {link:?}, its other end {others:?}");
                self.fail(now, "links", detail);
            }
        }
    }
}
