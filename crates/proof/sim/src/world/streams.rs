//! The TCP connections that carry lanes: what travels on them, how long that takes, and what a cut path, a dead process
//! and a dead machine do to them.

use std::collections::BTreeMap;
use std::time::Duration;

use verbs::{Time, Wire};

use super::{Event, World};
use crate::address::{At, PATHS, host_of};
use crate::host::Driven;
use crate::streams::{Carried, EndId};
use crate::wire::Here;

/// A peer that acknowledges nothing for so long is given up: what the software NIC asks of the kernel for a lane.
const SILENCE: Duration = Duration::from_millis(4_300);
/// What TCP waits before it sends a segment again, if no later one was acknowledged.
const RETRANSMISSION: Duration = Duration::from_millis(200);
/// Goes of one host in a row before others have their turn.
const GOES: usize = 32;

/// What the world remembers of streams.
#[derive(Debug, Default)]
pub(super) struct StreamTimes {
    /// When the last of what goes to an end arrives.
    last: BTreeMap<EndId, Time>,
    /// The last cut of each path between two hosts.
    cuts: BTreeMap<((usize, usize), usize), u64>,
    next_cut: u64,
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl World {
    /// Moves bytes between the machines of a host and its streams, as long as any move.
    pub(super) fn run_streams(&mut self, host: usize) {
        let (now, life) = (self.now, self.life(host));
        let mut is_moving = false;
        for _ in 0..GOES {
            let Some(running) = self.hosts.get_mut(host).and_then(|h| h.running.as_mut()) else { return };
            if running.stalled_until > now {
                // The kernel takes bytes; nobody reads them.
                return self.timer_at(host, running_until(self, host));
            }
            let Some(Driven { tap, .. }) = running.engine(0) else { return };
            is_moving = tap.tcp.run(Here { now, host, life }, &mut tap.nic, &mut self.streams);
            self.send_departures();
            if !is_moving {
                break;
            }
        }
        if is_moving {
            self.timer_at(host, now);
        }
        self.judge_streams(host);
    }

    fn timer_at(&mut self, host: usize, at: Time) {
        let life = self.life(host);
        let place = At { host, engine: 0 };
        let Some(driven) = self.driven(place) else { return };
        if driven.timer_at.is_none_or(|t| at < t) {
            driven.timer_at = Some(at);
            self.queue.push(at, Event::Timer { at: place, life });
        }
    }

    /// A rule of the wire may be broken only where the plan spoils work requests.
    fn judge_streams(&mut self, host: usize) {
        let Some(driven) = self.driven(At { host, engine: 0 }) else { return };
        let broken = std::mem::take(&mut driven.tap.tcp.broken_rules);
        for (peer, words) in broken {
            let peer = host_of(peer);
            self.trace.text(self.now, || format!("stream of {host} to {peer} ended: {words}"));
            if !self.checks.causes.was_broken(host, peer) {
                let detail = format!("the stream of host {host} to {peer} ended, and nothing was broken: {words}");
                self.checks.fail(self.now, "unexplained", detail);
            }
        }
    }

    fn send_departures(&mut self) {
        while let Some((to, carried)) = self.streams.next_departure() {
            self.send_on_stream(to, carried);
        }
    }

    fn send_on_stream(&mut self, to: EndId, carried: Carried) {
        let Some((receiver, sender)) = self.streams.hosts(to) else { return };
        let path = self.streams.path(to);
        // The order of a direction is kept, also of what waits.
        if self.is_way_cut((sender, receiver), path) || self.streams.is_held(to) {
            return self.streams.hold(to, carried);
        }
        let conditions = self.network.conditions;
        let bytes = if let Carried::Data(bytes) = &carried { bytes.len() } else { 0 };
        let jitter = self.some(conditions.delay);
        let mut delay = conditions.delay + jitter + Duration::from_micros(1);
        if conditions.bytes_per_us > 0 {
            delay += Duration::from_nanos(bytes as u64 * 1000 / u64::from(conditions.bytes_per_us));
        }
        let (is_lost, is_late) = self.network.stream_fate();
        if is_lost {
            delay += 2 * conditions.delay;
        }
        if is_late {
            delay += RETRANSMISSION;
            self.checks.causes.on_harm(self.now, sender, receiver);
        }
        self.arrive_after(to, carried, delay);
    }

    /// Whether segments of one direction do not arrive.
    fn is_way_cut(&self, (from, to): (usize, usize), path: usize) -> bool {
        self.network.is_wire_cut((from, to), path, Wire::Iwarp) || self.held.contains_key(&(from, to))
    }

    fn arrive_after(&mut self, to: EndId, carried: Carried, delay: Duration) {
        let last = self.streams_at.last.entry(to).or_default();
        *last = (*last).max(self.now + delay);
        let at = *last;
        self.queue.push(at, Event::Stream { to, carried });
    }

    pub(super) fn on_stream(&mut self, to: EndId, carried: Carried) {
        let Some((host, from)) = self.streams.hosts(to) else { return };
        if self.hosts[host].is_off {
            // Nobody answers. The sender's kernel gives up in the end.
            return;
        }
        let (is_syn, now) = (carried == Carried::Syn, self.now);
        let listens = self.hosts[host].running.as_ref().is_some_and(|r| r.engines.iter().any(|d| d.tap.tcp.listens()));
        let life = listens.then_some(self.hosts[host].life);
        self.trace.note(self.now, "stream {} from {} to {}", &[to.0, from as u64, host as u64]);
        self.streams.arrive(to, carried, life);
        if is_syn && let (Some(_), Some(driven)) = (life, self.driven(At { host, engine: 0 })) {
            driven.tap.tcp.on_stranger(to, now);
        }
        self.send_departures();
        if self.streams.life(to) == Some(self.life(host)) {
            self.settle(At { host, engine: 0 });
        }
    }

    // ---- what breaks them

    pub(super) fn reset_streams(&mut self, a: usize, b: usize) {
        self.checks.causes.on_break(a, b);
        for end in self.streams.between(a, b) {
            self.streams.break_end(end);
        }
        self.settle(At { host: a, engine: 0 });
        self.settle(At { host: b, engine: 0 });
    }

    /// Nothing passes between two hosts any more, or in one direction: acknowledgements neither.
    pub(super) fn on_streams_cut(&mut self, from: usize, to: usize) {
        (0..PATHS).for_each(|path| self.on_streams_cut_on(from, to, path));
    }

    /// As before, on one path.
    pub(super) fn on_streams_cut_on(&mut self, from: usize, to: usize, path: usize) {
        self.streams_at.next_cut += 1;
        let cut = self.streams_at.next_cut;
        self.streams_at.cuts.insert((pair(from, to), path), cut);
        let mut ends = self.streams.between(from, to);
        ends.retain(|end| self.streams.path(*end) == path);
        for end in ends {
            let at = self.now + SILENCE + self.some(SILENCE / 4);
            self.queue.push(at, Event::StreamSilence { end, cut });
        }
    }

    pub(super) fn on_stream_silence(&mut self, end: EndId, cut: u64) {
        let Some((host, peer)) = self.streams.hosts(end) else { return };
        if self.streams_at.cuts.get(&(pair(host, peer), self.streams.path(end))) == Some(&cut) {
            self.streams.give_up(end);
            self.settle(At { host, engine: 0 });
        }
    }

    /// The path carries packets again: what waited is sent again, after a while.
    pub(super) fn on_streams_back(&mut self, a: usize, b: usize) {
        (0..PATHS).for_each(|path| self.on_streams_back_on(a, b, path));
    }

    fn on_streams_back_on(&mut self, a: usize, b: usize, path: usize) {
        for (from, to) in [(a, b), (b, a)] {
            if self.is_way_cut((from, to), path) {
                return;
            }
        }
        self.streams_at.cuts.remove(&(pair(a, b), path));
        for (from, to) in [(a, b), (b, a)] {
            for (end, carried) in self.streams.release(from, to, path) {
                let delay = self.some(RETRANSMISSION);
                self.arrive_after(end, carried, delay);
            }
        }
    }

    /// A host's processes died. Its kernel closes their streams, if it lives.
    pub(super) fn on_streams_dead(&mut self, host: usize, told: bool) {
        self.streams.crash(host, told);
        self.send_departures();
        if !told {
            for peer in 0..self.hosts.len() {
                if peer != host {
                    self.on_streams_cut(host, peer);
                }
            }
        }
    }

    /// A machine is back: it knows nothing of the streams that others still have to it.
    pub(super) fn on_streams_orphaned(&mut self, host: usize) {
        for peer in 0..self.hosts.len() {
            for path in (0..PATHS).filter(|_| peer != host) {
                let is_cut = |way| self.network.is_wire_cut(way, path, Wire::Iwarp);
                if !is_cut((host, peer)) && !is_cut((peer, host)) {
                    self.streams_at.cuts.remove(&(pair(host, peer), path));
                }
            }
        }
        for end in self.streams.orphans(host) {
            let delay = self.some(RETRANSMISSION);
            self.arrive_after(end, Carried::Rst, delay);
        }
    }
}

/// When a host that stands still goes on.
fn running_until(world: &World, host: usize) -> Time {
    world.hosts[host].running.as_ref().map_or(world.now, |r| r.stalled_until)
}
