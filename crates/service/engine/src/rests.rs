//! Which connections were used and did not rest since, and which rings came back with pages.
//!
//! Owns both queues and the pauses between their rounds. It must never look at a connection that rests.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use verbs::Time;

use crate::ids::{AppId, RouteId};
use crate::limits::{REST_PACE, REST_SLICE_BYTES, REST_TICKS, REST_TRIES_MAX};
use crate::numbers::nanos;
use crate::ringpool::Place;

/// The connections that were used and did not rest since.
#[derive(Debug)]
pub(crate) struct Rests {
    /// `None`: rings keep their pages.
    after: Option<Duration>,
    /// When each is looked at next, soonest first.
    queue: VecDeque<(Time, RouteId)>,
    /// Between the two steps.
    begun: Vec<RouteId>,
    /// Work for which nobody waits leaves gaps for the other.
    not_before: Time,
    /// Rings that came back, each once, and when they are looked at.
    rings: VecDeque<(Time, FreeRingAt)>,
    rings_not_before: Time,
}

/// One connection's place among those that are looked at.
#[derive(Debug)]
pub(crate) struct RestTurn {
    /// When it carried something last, or its application rang.
    used_at: Time,
    /// It is among them.
    is_watched: bool,
    /// Bytes of either ring that are done with, of a rest that takes several turns.
    at: u64,
    /// Ticks for which its rest was put off.
    tries: u8,
}

impl RestTurn {
    pub(crate) fn new(now: Time) -> Self {
        Self { used_at: now, is_watched: false, at: 0, tries: 0 }
    }

    pub(crate) fn used_at(&self) -> Time {
        self.used_at
    }

    /// The part of either ring whose turn it is.
    pub(crate) fn slice(&self) -> Range<u64> {
        self.at..self.at + REST_SLICE_BYTES
    }

    /// It rests, is over, or is left alone until it is used.
    pub(crate) fn leave(&mut self) {
        self.is_watched = false;
    }

    /// It is not at rest yet: the next rest begins at its rings' start.
    pub(crate) fn begin_anew(&mut self) {
        (self.tries, self.at) = (0, 0);
    }

    /// A part of its rings is done.
    pub(crate) fn next_slice(&mut self) {
        self.at += REST_SLICE_BYTES;
    }

    /// Something was in the way. False: for the last time.
    pub(crate) fn put_off(&mut self) -> bool {
        let again = self.tries < REST_TRIES_MAX;
        self.tries += u8::from(again);
        again
    }

    /// It was used meanwhile.
    pub(crate) fn used(&mut self, now: Time) {
        self.used_at = now;
    }
}

/// A ring that came back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreeRingAt {
    pub(crate) app: AppId,
    pub(crate) place: Place,
    pub(crate) freed_at: Time,
    /// Bytes that are done with, of a large one.
    pub(crate) done: u64,
}

impl Rests {
    pub(crate) fn new(after: Option<Duration>) -> Self {
        Self {
            after,
            queue: VecDeque::new(),
            begun: Vec::new(),
            not_before: Time::ZERO,
            rings: VecDeque::new(),
            rings_not_before: Time::ZERO,
        }
    }

    /// A connection carried something, or its application rang.
    #[inline]
    pub(crate) fn touch(&mut self, turn: &mut RestTurn, route: RouteId, now: Time) {
        turn.used_at = now;
        if !turn.is_watched
            && let Some(after) = self.after
        {
            *turn = RestTurn { is_watched: true, ..RestTurn::new(now) };
            self.queue.push_back((next_tick(now, after), route));
        }
    }

    /// After which time without use a connection rests.
    pub(crate) fn after(&self) -> Option<Duration> {
        self.after
    }

    /// Whether pages are given back at all.
    pub(crate) fn is_on(&self) -> bool {
        self.after.is_some()
    }

    /// A ring came back that may have pages.
    pub(crate) fn free(&mut self, app: AppId, place: Place, now: Time) {
        if let Some(after) = self.after {
            self.rings.push_back((next_tick(now, after), FreeRingAt { app, place, freed_at: now, done: 0 }));
        }
    }

    // ---- a round

    /// Whether a round may begin: none has begun, and the pause after the last one is over.
    pub(crate) fn may_begin(&self, now: Time) -> bool {
        self.begun.is_empty() && now >= self.not_before
    }

    /// How many connections were asked to wait with writing.
    pub(crate) fn begun(&self) -> usize {
        self.begun.len()
    }

    /// A connection was asked to wait with writing.
    pub(crate) fn begin(&mut self, route: RouteId) {
        self.begun.push(route);
    }

    /// Those that were told.
    pub(crate) fn take_begun(&mut self) -> Vec<RouteId> {
        std::mem::take(&mut self.begun)
    }

    /// The round is full: others are served before the next.
    pub(crate) fn pause(&mut self, now: Time) {
        self.not_before = now + REST_PACE;
    }

    /// A connection is looked at again in a tick.
    pub(crate) fn look_later(&mut self, route: RouteId, now: Time) {
        if let Some(after) = self.after {
            self.queue.push_back((next_tick(now, after), route));
        }
    }

    /// A connection goes on as soon as it may.
    pub(crate) fn look_next(&mut self, route: RouteId, now: Time) {
        self.queue.push_front((now, route));
    }

    /// The next connection whose tick has come.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<RouteId> {
        let &(at, route) = self.queue.front()?;
        if at > now {
            return None;
        }
        self.queue.pop_front();
        Some(route)
    }

    // ---- rings that nobody has

    /// Whether a round of them may begin.
    pub(crate) fn may_look_at_rings(&self, now: Time) -> bool {
        self.is_on() && now >= self.rings_not_before
    }

    /// The next ring whose tick has come.
    pub(crate) fn take_due_ring(&mut self, now: Time) -> Option<FreeRingAt> {
        if self.rings.front()?.0 > now {
            return None;
        }
        self.rings.pop_front().map(|(_, ring)| ring)
    }

    /// The ring was in use meanwhile, and is free since `freed_at`.
    pub(crate) fn look_at_ring_later(&mut self, ring: FreeRingAt, freed_at: Time, now: Time) {
        if let Some(after) = self.after {
            self.rings.push_back((next_tick(freed_at, after).max(now), FreeRingAt { freed_at, done: 0, ..ring }));
        }
    }

    /// A part of the ring is done.
    pub(crate) fn look_at_ring_next(&mut self, ring: FreeRingAt, now: Time) {
        self.rings.push_front((now, ring));
    }

    /// The round is over: others are served before the next.
    pub(crate) fn pause_rings(&mut self, now: Time) {
        self.rings_not_before = now + REST_PACE;
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        let rests = self.queue.front().map(|&(at, _)| at.max(self.not_before));
        let rings = self.rings.front().map(|&(at, _)| at.max(self.rings_not_before));
        rests.into_iter().chain(rings).min()
    }
}

/// Ticks are the same for all connections, so that one wake-up serves many.
fn next_tick(now: Time, after: Duration) -> Time {
    let tick = nanos(after / REST_TICKS).max(1);
    Time((now.as_nanos() / tick + 1) * tick)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_after_now_and_are_shared() {
        let after = Duration::from_millis(80);
        let tick = |ms| next_tick(Time::ZERO + Duration::from_millis(ms), after);
        assert_eq!([tick(0), tick(9), tick(10)].map(Time::as_nanos), [10_000_000, 10_000_000, 20_000_000]);
        assert_eq!(next_tick(Time(5), Duration::ZERO), Time(6));
    }
}
