//! Which connections were used and did not rest since, and which rings came back with pages.
//!
//! Owns both queues, the pauses between their rounds, and the count of what the rings of connections hold. It must never
//! look at a connection that rests.
//!
//! A ring is written from end to end, so a connection comes to hold all of its rings, however little of them it needs at a
//! time. Where all together hold much, connections rest sooner: those that hold the most pay for it.

use std::collections::VecDeque;
use std::time::Duration;

use verbs::Time;

use crate::ids::{AppId, RouteId};
use crate::limits::{
    GROW_WHEN_STUCK, HOLD_WHEN_STUCK, REST_PACE, REST_SOON_AFTER, REST_SOON_BYTES_MIN, REST_SOON_LOOKS, REST_TICKS,
};
use crate::numbers::nanos;
use crate::ringpool::Place;
use crate::vqp::{RestTurn, Vqp};

/// The connections that were used and did not rest since.
#[derive(Debug)]
pub(crate) struct Rests {
    /// `None`: rings keep their pages.
    after: Option<Duration>,
    /// When each is looked at next, soonest first.
    queue: VecDeque<(Time, RouteId)>,
    /// Bytes of the rings of connections that may have pages.
    held: u64,
    /// More than so many are much.
    held_much: u64,
    /// Places of the queue that are left of a look before their time.
    early: usize,
    early_at: Time,
    /// Between the two steps.
    begun: Vec<RouteId>,
    /// Work for which nobody waits leaves gaps for the other.
    not_before: Time,
    /// Rings that came back, each once, and when they are looked at.
    rings: VecDeque<(Time, FreeRingAt)>,
    rings_not_before: Time,
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
    /// `held_much`: rings that hold more bytes together give them back sooner.
    pub(crate) fn new(after: Option<Duration>, held_much: u64) -> Self {
        Self {
            after,
            queue: VecDeque::new(),
            held: 0,
            held_much,
            early: 0,
            early_at: Time::ZERO,
            begun: Vec::new(),
            not_before: Time::ZERO,
            rings: VecDeque::new(),
            rings_not_before: Time::ZERO,
        }
    }

    /// A connection carried something, or its application rang.
    #[inline]
    pub(crate) fn touch(&mut self, vqp: &mut Vqp, route: RouteId, now: Time) {
        vqp.rest.used_at = now;
        let Some(after) = self.after else { return };
        self.count(vqp);
        if self.may_hold_much(vqp) {
            vqp.hold_writer();
        }
        if !vqp.rest.is_watched {
            vqp.rest.begin_anew();
            vqp.rest.is_watched = true;
            self.queue.push_back((next_tick(now, after), route));
        }
    }

    /// It is over.
    pub(crate) fn forget(&mut self, vqp: &Vqp) {
        self.held -= vqp.rest.held;
    }

    /// What a connection's rings may have of pages has changed.
    #[inline]
    pub(crate) fn count(&mut self, vqp: &mut Vqp) {
        let [tx, rx] = vqp.put_in();
        let [clean_tx, clean_rx] = vqp.rest.clean;
        let held = tx.wrapping_sub(clean_tx).min(vqp.tx_span().fill_max())
            + rx.wrapping_sub(clean_rx).min(vqp.rx_span().fill_max());
        self.held = self.held - vqp.rest.held + held;
        vqp.rest.held = held;
    }

    /// Bytes of the rings of connections that may have pages.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Whether that is much.
    pub(crate) fn holds_much(&self) -> bool {
        self.held > self.held_much
    }

    /// Whether a writer that is held back is so no longer, and whether because it stands still.
    pub(crate) fn may_go(&self, vqp: &Vqp, now: Time) -> Option<bool> {
        let is_stuck = vqp.is_writer_held() && now.saturating_since(vqp.rest.used_at) >= HOLD_WHEN_STUCK;
        (is_stuck || !self.may_hold_much(vqp)).then_some(is_stuck)
    }

    /// Whether rings hold much, or would if all that were used lately were as full as this one may be: many writers can
    /// fill them before any engine looks.
    #[inline]
    fn may_hold_much(&self, vqp: &Vqp) -> bool {
        let all = vqp.used_extent().saturating_mul(2).saturating_mul(self.queue.len() as u64);
        self.held.max(all) > self.held_much
    }

    /// Whether a connection was left alone for long enough to rest.
    pub(crate) fn is_due(&self, turn: &RestTurn, now: Time) -> bool {
        let unused = now.saturating_since(turn.used_at);
        let is_soon = self.holds_much() && turn.held >= REST_SOON_BYTES_MIN && unused >= REST_SOON_AFTER;
        is_soon || self.after.is_some_and(|after| unused >= after)
    }

    /// Whether pages are given back at all.
    pub(crate) fn is_on(&self) -> bool {
        self.after.is_some()
    }

    /// Whether a ring that stands still is found by looks that come seldom.
    pub(crate) fn finds_what_stands_still(&self) -> bool {
        self.after.is_some_and(|after| after >= GROW_WHEN_STUCK)
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

    /// The round is full: others are served before the next. Where rings hold much, what arrives meanwhile would be more
    /// than what a pause leaves time for.
    pub(crate) fn pause(&mut self, now: Time) {
        self.not_before = if self.holds_much() { now } else { now + REST_PACE };
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
        if at > now && !self.may_look_early(now) {
            return None;
        }
        self.queue.pop_front();
        Some(route)
    }

    /// Whether the next connection is looked at before its time: the rings hold much.
    fn may_look_early(&mut self, now: Time) -> bool {
        if !self.holds_much() {
            self.early = 0;
            return false;
        }
        if self.early == 0 {
            if now < self.early_at {
                return false;
            }
            (self.early, self.early_at) = (self.queue.len().min(REST_SOON_LOOKS), now + REST_SOON_AFTER);
        }
        self.early -= 1;
        true
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
        let early = if self.early > 0 { Time::ZERO } else { self.early_at };
        let soonest = |at: Time| if self.holds_much() { at.min(early) } else { at };
        let rests = self.queue.front().map(|&(at, _)| soonest(at).max(self.not_before));
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
