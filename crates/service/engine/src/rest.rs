//! Connections that rest give the pages of their rings back to the system.
//!
//! Owns which connection rests, and what of its rings nobody needs: all but the bytes between head and tail. It must never
//! give back a byte that somebody may still read: of the transmit ring while the application may be writing
//! ([`shm::begin_rest`]), of the receive ring while the device may hold bytes of the peer that the engine has not counted
//! ([`Provider::try_discard`]). ARCHITECTURE.md, "Resting connections", has the argument.
//!
//! Two steps, because a barrier of the system lies between them: [`Engine::begin_rests`] says in the slots of a few connections
//! what is going to happen, [`Engine::finish_rests`] does it. Connections are looked at in turns of one tick, from their first
//! use after a rest until they rest again, so that nothing is left to do when all rest.
//!
//! Rings that nobody has are simpler: when they were free for as long, all their pages go.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shm::waiting;
use verbs::{MrId, Provider, Qpn, Time};

use crate::AppId;
use crate::engine::Engine;
use crate::limits::{
    REST_BYTES_PER_RUN, REST_LOOKS_PER_RUN, REST_PACE, REST_SLICE_BYTES, REST_TICKS, REST_TRIES_MAX, RESTS_PER_RUN,
};
use crate::ringpool::{FreeRing, Place};
use crate::vqp::{RouteId, Vqp};

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

/// A ring that came back.
#[derive(Debug, Clone, Copy)]
struct FreeRingAt {
    app: AppId,
    place: Place,
    freed_at: Time,
    /// Bytes that are done with, of a large one.
    done: u64,
}

/// What one connection's turn led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All that can be given back is.
    Rests,
    /// A part of its rings is done.
    More,
    /// Something is in the way that may go by itself.
    PutOff,
    /// It was used meanwhile.
    Used,
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
    pub(crate) fn touch(&mut self, vqp: &mut Vqp, route: RouteId, now: Time) {
        vqp.used_at = now;
        if !vqp.in_rests
            && let Some(after) = self.after
        {
            vqp.in_rests = true;
            (vqp.rest_tries, vqp.rest_at) = (0, 0);
            self.queue.push_back((next_tick(now, after), route));
        }
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

    fn take_due(&mut self, now: Time) -> Option<RouteId> {
        let &(at, route) = self.queue.front()?;
        if at > now {
            return None;
        }
        self.queue.pop_front();
        Some(route)
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        let rests = self.queue.front().map(|&(at, _)| at.max(self.not_before));
        let rings = self.rings.front().map(|&(at, _)| at.max(self.rings_not_before));
        rests.into_iter().chain(rings).min()
    }
}

impl Vqp {
    /// Whether the application consumed bytes and did not ring for it.
    fn has_untold_head(&self) -> bool {
        let counts = !self.close.is_stop_asked() && !self.close.is_reset();
        counts
            && self.words.rx_head.load(Ordering::Relaxed) != self.rx_head
            && self.words.app_generation.load(Ordering::Relaxed) == self.generation
    }
}

/// Ticks are the same for all connections, so that one wake-up serves many.
fn next_tick(now: Time, after: Duration) -> Time {
    let tick = (after / REST_TICKS).as_nanos().max(1) as u64;
    Time((now.as_nanos() / tick + 1) * tick)
}

impl Engine {
    /// Chooses a few connections that have rested for long enough and tells their applications to wait with writing. True: some
    /// are chosen; [`shm::rest_barrier`] is next, then [`Engine::finish_rests`].
    pub fn begin_rests(&mut self, now: Time) -> bool {
        let Some(after) = self.rests.after else { return false };
        if !self.rests.begun.is_empty() || now < self.rests.not_before {
            return !self.rests.begun.is_empty();
        }
        let mut bytes = 0;
        for _ in 0..REST_LOOKS_PER_RUN {
            if self.rests.begun.len() >= RESTS_PER_RUN || bytes >= REST_BYTES_PER_RUN {
                self.rests.not_before = now + REST_PACE;
                break;
            }
            let Some(route) = self.rests.take_due(now) else { break };
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            if self.apps.get(vqp.app).is_none_or(|a| a.leaving) {
                // Its rings are going to be free as a whole.
                vqp.in_rests = false;
            } else if now < vqp.used_at + after {
                (vqp.rest_tries, vqp.rest_at) = (0, 0);
                self.rests.queue.push_back((next_tick(now, after), route));
                self.find_untold_head(route);
            } else {
                shm::begin_rest(&vqp.words);
                bytes += 2 * REST_SLICE_BYTES.min(vqp.ring_bytes.into());
                self.rests.begun.push(route);
            }
        }
        !self.rests.begun.is_empty()
    }

    /// A reader rings once for many reads. One that went to do something else before it did is not waited for: its peer may want
    /// the room.
    fn find_untold_head(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route).filter(|vqp| vqp.has_untold_head()) else { return };
        let (app, slot) = (vqp.app, vqp.slot);
        if let Err(fault) = self.on_doorbell(app, slot) {
            self.on_app_fault(app, &fault);
        }
    }

    /// Gives pages back. `barrier`: [`shm::rest_barrier`] was passed; without it transmit rings keep theirs.
    pub fn finish_rests<P: Provider>(&mut self, now: Time, nic: &mut P, barrier: bool) {
        let Some(after) = self.rests.after else { return };
        let mut begun = std::mem::take(&mut self.rests.begun);
        for route in begun.drain(..) {
            let Some(outcome) = self.rest(route, nic, barrier) else { continue };
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            match outcome {
                Outcome::Rests => {
                    vqp.in_rests = false;
                    self.counters.rests += 1;
                }
                Outcome::More => {
                    vqp.rest_at += REST_SLICE_BYTES;
                    self.rests.queue.push_front((now, route));
                }
                Outcome::PutOff if vqp.rest_tries >= REST_TRIES_MAX => vqp.in_rests = false,
                Outcome::PutOff => {
                    vqp.rest_tries += 1;
                    self.rests.queue.push_back((next_tick(now, after), route));
                }
                Outcome::Used => {
                    vqp.used_at = now;
                    self.rests.queue.push_back((next_tick(now, after), route));
                }
            }
            shm::end_rest(&vqp.words);
            let (app, slot, awaited) = (vqp.app, vqp.slot, vqp.is_awaited(waiting::WRITABLE));
            if awaited {
                self.notify(app, slot);
            }
            self.update(route);
        }
        self.rests.begun = begun;
        self.collect_wakes();
    }

    /// Gives the pages of rings back that nobody has, a bounded number of bytes at a time. Neither application nor device touches
    /// them: a connection's rings come back when nobody can.
    pub(crate) fn run_free_rings<P: Provider>(&mut self, nic: &mut P) -> bool {
        let now = self.now;
        let Some(after) = self.rests.after.filter(|_| now >= self.rests.rings_not_before) else { return false };
        let mut bytes = 0;
        for looks in 0..REST_LOOKS_PER_RUN {
            let Some((at, mut ring)) = self.rests.rings.pop_front() else { return looks > 0 };
            if at > now {
                self.rests.rings.push_front((at, ring));
                return looks > 0;
            }
            let Some(tenant) = self.apps.get_mut(ring.app) else { continue };
            let (mr, len) = match tenant.pool.look_at_free(&ring.place, ring.freed_at) {
                FreeRing::Used => continue,
                FreeRing::Since(freed_at) => {
                    (ring.freed_at, ring.done) = (freed_at, 0);
                    self.rests.rings.push_back((next_tick(freed_at, after).max(now), ring));
                    continue;
                }
                FreeRing::Rests { mr, bytes } => (mr, REST_SLICE_BYTES.min(bytes - ring.done)),
            };
            if nic.try_discard(mr, ring.place.offset + ring.done, len, None).is_err() {
                self.counters.device_refusals += 1;
            }
            (bytes, ring.done) = (bytes + len, ring.done + len);
            if tenant.pool.is_whole(&ring.place, ring.done) {
                tenant.pool.on_rested(&ring.place);
                self.counters.ring_rests += 1;
            } else {
                self.rests.rings.push_front((at, ring));
            }
            if bytes >= REST_BYTES_PER_RUN {
                break;
            }
        }
        self.rests.rings_not_before = now + REST_PACE;
        true
    }

    /// One connection, between [`shm::begin_rest`] and [`shm::end_rest`]. `None`: it is over.
    fn rest<P: Provider>(&mut self, route: RouteId, nic: &mut P, barrier: bool) -> Option<Outcome> {
        let uncounted = !self.completions.is_empty();
        let vqp = self.vqps.get_mut(route)?;
        // Before the tail is read: an unused ring has no other tail until the rest ends.
        let is_unused = barrier && shm::is_unused(&vqp.words);
        let known = (vqp.tx_tail, vqp.rx_head);
        if let Err(fault) = vqp.on_doorbell() {
            let app = vqp.app;
            self.on_app_fault(app, &fault);
            return None;
        }
        if (vqp.tx_tail, vqp.rx_head) != known {
            return Some(Outcome::Used);
        }
        let pool = &self.apps.get(vqp.app)?.pool;
        let ring_bytes = vqp.ring_bytes.into();
        let tx = pool.mr_of(&vqp.tx_place).filter(|_| is_unused);
        let rx = pool.mr_of(&vqp.rx_place).filter(|_| !uncounted);
        let qpn = vqp.lane.and_then(|id| self.lanes.get(id)).filter(|lane| lane.has_qp()).map(|lane| lane.qpn);
        let turn = vqp.rest_at..vqp.rest_at + REST_SLICE_BYTES;
        let mut refused = false;
        let mut discard = |mr: Option<MrId>, at: u64, spare: Spare, unreported: Option<Qpn>| {
            let Some(mr) = mr else { return false };
            spare.into_iter().flatten().filter_map(|piece| within(piece, &turn)).all(|(offset, len)| {
                let done = nic.try_discard(mr, at + offset, len, unreported);
                refused |= done.is_err();
                done.unwrap_or(true)
            })
        };
        let tx_done = discard(tx, vqp.tx_place.offset, spare(vqp.tx_head, vqp.tx_tail, ring_bytes), None);
        let rx_done = discard(rx, vqp.rx_place.offset, spare(vqp.rx_head, vqp.rx_tail, ring_bytes), qpn);
        self.counters.device_refusals += u64::from(refused);
        Some(match tx_done && rx_done {
            true if turn.end < ring_bytes => Outcome::More,
            true => Outcome::Rests,
            false => Outcome::PutOff,
        })
    }
}

/// Pieces of a ring, by offset and length.
type Spare = [Option<(u64, u64)>; 2];

/// What of a piece lies in this turn's part of the ring.
fn within((offset, len): (u64, u64), turn: &Range<u64>) -> Option<(u64, u64)> {
    let (start, end) = (offset.max(turn.start), (offset + len).min(turn.end));
    (start < end).then(|| (start, end - start))
}

/// What of a ring lies outside of `head..tail`.
fn spare(head: u64, tail: u64, ring_bytes: u64) -> Spare {
    let used = tail.wrapping_sub(head);
    if used == 0 {
        return [Some((0, ring_bytes)), None];
    }
    let len = ring_bytes.saturating_sub(used);
    let start = tail % ring_bytes;
    let first = len.min(ring_bytes - start);
    let piece = |offset, len| (len > 0).then_some((offset, len));
    [piece(start, first), piece(0, len - first)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_what_is_used_is_spare() {
        for head in 0..24_u64 {
            for used in 0..=8 {
                let head = head.wrapping_sub(9);
                let spare = spare(head, head.wrapping_add(used), 8);
                let is_spare = |at| spare.iter().flatten().any(|&(o, n)| (o..o + n).contains(&at));
                for at in 0..8 {
                    let is_used = (0..used).any(|i| head.wrapping_add(i) % 8 == at);
                    assert_eq!(is_spare(at), !is_used, "{at} of {head}+{used}: {spare:?}");
                }
            }
        }
    }

    #[test]
    fn turns_cover_a_ring_once() {
        let pieces = [(0, 7), (9, 30)];
        let turns: Vec<_> = (0..40).step_by(10).map(|at| at..at + 10).collect();
        let parts: Vec<_> = turns.iter().flat_map(|t| pieces.iter().filter_map(|p| within(*p, t))).collect();
        assert_eq!(parts, [(0, 7), (9, 1), (10, 10), (20, 10), (30, 9)]);
    }

    #[test]
    fn ticks_come_after_now_and_are_shared() {
        let after = Duration::from_millis(80);
        let tick = |ms| next_tick(Time::ZERO + Duration::from_millis(ms), after);
        assert_eq!([tick(0), tick(9), tick(10)].map(Time::as_nanos), [10_000_000, 10_000_000, 20_000_000]);
        assert_eq!(next_tick(Time(5), Duration::ZERO), Time(6));
    }
}
