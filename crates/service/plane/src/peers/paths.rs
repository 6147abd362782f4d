//! The ways to a peer that has more than one: pairs of addresses, from the configuration of both hosts (docs/operate/failover.md).
//!
//! Owns which of them a dial tries, in which order, and when a better one than the link's is tried again. It must never
//! give a link up because another way may be better: the new link has to be there first.

use std::net::IpAddr;
use std::time::Duration;

use verbs::Time;

use super::{Established, PeerAction, Peers};
use crate::{Identity, LinkCommand, LinkId, LinkPath, Ways};

/// First pause before a better path is tried again; it doubles.
const PROBE_MIN: Duration = Duration::from_secs(2);
/// Longest pause. A link over the first path that lasted for so long makes the next pause the first one again.
const PROBE_MAX: Duration = Duration::from_secs(60);
/// Time of such a try.
const PROBE_TIME: Duration = Duration::from_secs(2);
/// First pause between tries to find another path for a link that says nothing; it doubles.
const SEEK_MIN: Duration = Duration::from_millis(100);
/// Its longest.
const SEEK_MAX: Duration = Duration::from_secs(5);
/// Heartbeats that a peer with several paths misses before another one is tried.
pub const PATH_MISSES: u32 = 3;

/// What is known of a peer's paths.
#[derive(Debug)]
pub(super) struct Paths {
    /// The preferred one first; at least two.
    list: Vec<LinkPath>,
    /// The number of the last link that was up.
    last_link: u64,
    /// The path of the last link, and since when it was up.
    used: usize,
    up_since: Time,
    /// The path over which the last link said nothing.
    silent: Option<usize>,
    /// Tries of better paths that failed, or led to a link that did not last, in a row.
    probes_failed: u32,
    probe_at: Option<Time>,
    /// The same of tries for a silent link.
    seeks_failed: u32,
    seek_at: Time,
    is_probing: bool,
    /// Why this path, for people.
    reason: String,
}

impl Paths {
    pub(super) fn new(list: Vec<LinkPath>) -> Self {
        Self {
            list,
            last_link: 0,
            used: 0,
            up_since: Time::ZERO,
            silent: None,
            probes_failed: 0,
            probe_at: None,
            seeks_failed: 0,
            seek_at: Time::ZERO,
            is_probing: false,
            reason: String::new(),
        }
    }

    /// For a peer to which there is no link: all, the one that was silent last.
    fn all(&self) -> Vec<LinkPath> {
        let is_silent = |index: usize| self.silent == Some(index);
        let numbered = || self.list.iter().enumerate();
        let first = numbered().filter(|(index, _)| !is_silent(*index));
        first.chain(numbered().filter(|(index, _)| is_silent(*index))).map(|(_, path)| *path).collect()
    }

    /// All but the one that is used.
    fn others(&self) -> Vec<LinkPath> {
        let numbered = self.list.iter().enumerate();
        numbered.filter(|(index, _)| *index != self.used).map(|(_, path)| *path).collect()
    }

    /// Why the path is used, after the one with that place, if there was a link before.
    fn reason_after(&self, was: usize, any: bool) -> String {
        let (place, count) = (self.used + 1, self.list.len());
        let before = self.list.get(was).filter(|_| any && was != self.used);
        match before {
            None if self.used == 0 => format!("the preferred one of {count}"),
            None => format!("number {place} of {count}: those before it were not there"),
            Some(before) if self.used < was => {
                format!("number {place} of {count}: it is there again, and preferred to {before}")
            }
            Some(before) if self.silent == Some(was) => {
                format!("number {place} of {count}: nothing was heard over {before}")
            }
            Some(before) => format!("number {place} of {count}: the link over {before} ended"),
        }
    }

    fn probe_later(&mut self, now: Time, chance: u64) {
        let whole = PROBE_MIN.saturating_mul(1 << self.probes_failed.min(16)).min(PROBE_MAX);
        self.probe_at = (self.used > 0).then(|| now + drawn(whole, chance));
    }
}

/// From half of a time to the whole of it.
fn drawn(whole: Duration, chance: u64) -> Duration {
    let half = whole / 2;
    half + Duration::from_nanos(chance % u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1))
}

/// A number that differs from daemon to daemon and from try to try (splitmix64): no more is needed for pauses that are
/// not in step.
fn chance(instance: u64, now: Time) -> u64 {
    let mut word = instance.wrapping_add(now.as_nanos()).wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Peers {
    /// The path of the link to a peer, if it may have more than one, and why this one, in a clause for people.
    pub fn path_to(&self, peer: IpAddr) -> Option<(LinkPath, String)> {
        let path = self.peers.get(&peer)?.established.as_ref()?.path?;
        Some((path, self.paths.get(&peer)?.reason.clone()))
    }

    /// How often connections to a host went on over another path.
    pub fn path_changes(&self) -> u64 {
        self.path_changes
    }

    /// How a peer to which there is no link is dialed.
    pub(super) fn ways_to(&self, peer: IpAddr) -> Ways {
        let of = |paths: &Paths| Ways { paths: paths.all(), replaces: paths.last_link, is_probe: false };
        self.paths.get(&peer).map(of).unwrap_or_default()
    }

    /// Where lanes of a link over that path are; none: where those of the first one are.
    pub(super) fn lane_path(&self, peer: IpAddr, path: Option<LinkPath>) -> Option<LinkPath> {
        let first = self.paths.get(&peer)?.list.first()?;
        path.filter(|path| path != first)
    }

    /// The peer of a link has said nothing for so long: if it has other paths, they are tried. The link stays until
    /// there is a new one.
    pub(crate) fn seek_path(&mut self, now: Time, link: LinkId, silent: Duration) {
        let Some(&peer) = self.links.get(&link) else { return };
        let Some(paths) = self.paths.get_mut(&peer) else { return };
        let waits = self.waiting.has(peer);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(established) = entry.established.as_ref().filter(|e| e.link == link) else { return };
        if silent < established.heartbeat * PATH_MISSES || entry.dial.is_some() || waits || now < paths.seek_at {
            return;
        }
        tracing::info!(%peer, ?silent, "the peer's daemon says nothing; trying other paths to it");
        let ways = Ways { paths: paths.others(), replaces: established.name, is_probe: false };
        paths.silent = Some(paths.used);
        paths.is_probing = false;
        let deadline = now + self.config.connect_timeout * 4 / 5;
        self.dial(peer, deadline, ways);
    }

    /// The peer of a link that was silent speaks: no other path is needed.
    pub(super) fn stop_seeking(&mut self, peer: IpAddr) {
        let Some(paths) = self.paths.get_mut(&peer) else { return };
        (paths.silent, paths.seeks_failed, paths.seek_at) = (None, 0, Time::ZERO);
        if paths.is_probing {
            return;
        }
        let Some(dial) = self.peers.get_mut(&peer).and_then(|entry| entry.dial.take()) else { return };
        self.links.remove(&dial);
        self.actions.push_back(PeerAction::Link(LinkCommand::CancelDial { link: dial }));
    }

    /// Whether a link of the same process that has proven the key takes the place of the one that is there.
    pub(super) fn may_replace(&self, old: &Established, link: LinkId, dialed: bool, identity: &Identity) -> bool {
        let Some(paths) = self.paths.get(&identity.address) else { return false };
        let says = if dialed { paths.last_link } else { identity.link.replaces };
        old.link != link && old.name != 0 && says == old.name
    }

    /// A link is up over a path.
    pub(super) fn note_path(&mut self, now: Time, peer: IpAddr, name: u64, path: Option<LinkPath>) {
        let chance = chance(self.config.instance, now);
        let Some(paths) = self.paths.get_mut(&peer) else { return };
        let before = std::mem::replace(&mut paths.last_link, name);
        let used = path.and_then(|path| paths.list.iter().position(|other| *other == path));
        let was = std::mem::replace(&mut paths.used, used.unwrap_or_default());
        paths.reason = paths.reason_after(was, before != 0);
        if let Some(path) = path.filter(|_| before != 0 && was != paths.used) {
            self.path_changes += 1;
            tracing::warn!(%peer, %path, reason = paths.reason, "connections to the host go over another path");
        }
        paths.up_since = now;
        (paths.silent, paths.seeks_failed, paths.seek_at) = (None, 0, Time::ZERO);
        paths.is_probing = false;
        paths.probe_later(now, chance);
    }

    /// The link to a peer is over.
    pub(super) fn note_link_over(&mut self, now: Time, peer: IpAddr, was_silent: bool) {
        let Some(paths) = self.paths.get_mut(&peer) else { return };
        paths.probe_at = None;
        if was_silent {
            paths.silent = Some(paths.used);
        }
        if paths.used == 0 {
            let lasted = now.saturating_since(paths.up_since) >= PROBE_MAX;
            paths.probes_failed = if lasted { 0 } else { paths.probes_failed.saturating_add(1) };
        }
    }

    /// A dial ended without a link.
    pub(super) fn note_dial_failed(&mut self, now: Time, peer: IpAddr) {
        let chance = chance(self.config.instance, now);
        let has_link = self.link_to(peer).is_some();
        let Some(paths) = self.paths.get_mut(&peer).filter(|_| has_link) else { return };
        if std::mem::take(&mut paths.is_probing) {
            paths.probes_failed = paths.probes_failed.saturating_add(1);
            paths.probe_later(now, chance);
        } else {
            let whole = SEEK_MIN.saturating_mul(1 << paths.seeks_failed.min(16)).min(SEEK_MAX);
            paths.seeks_failed = paths.seeks_failed.saturating_add(1);
            paths.seek_at = now + drawn(whole, chance);
        }
    }

    /// When the next better path is tried.
    pub(super) fn probe_deadline(&self) -> Option<Time> {
        self.paths.values().filter_map(|paths| paths.probe_at).min()
    }

    /// Tries paths that are better than those of links, where it is time.
    pub(super) fn probe_due(&mut self, now: Time) {
        let due = |(peer, paths): (&IpAddr, &Paths)| paths.probe_at.is_some_and(|at| at <= now).then_some(*peer);
        let due: Vec<IpAddr> = self.paths.iter().filter_map(due).collect();
        for peer in due {
            let chance = chance(self.config.instance, now);
            let waits = self.waiting.has(peer);
            let Some(paths) = self.paths.get_mut(&peer) else { continue };
            paths.probe_at = None;
            let Some(entry) = self.peers.get(&peer) else { continue };
            let Some(established) = &entry.established else { continue };
            // Also the time after this try, however it ends.
            paths.probe_later(now, chance);
            if entry.dial.is_some() || waits || established.is_silent {
                continue;
            }
            let better = paths.list.get(..paths.used).unwrap_or_default().to_vec();
            let ways = Ways { paths: better, replaces: established.name, is_probe: true };
            paths.is_probing = true;
            self.dial(peer, now + PROBE_TIME, ways);
        }
    }
}

#[cfg(test)]
mod tests;
