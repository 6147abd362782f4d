//! Connections that rest give the pages of their rings back to the system.
//!
//! Owns which connection rests, and which part of its rings nobody needs: all except the bytes between head and tail.
//! It must never give back a byte that somebody may still read: of the transmit ring while the application may be
//! writing ([`shm::begin_rest`]), of the receive ring while the device may hold bytes of the peer that the engine has
//! not counted ([`Provider::try_discard`]). docs/inside/lanes.md, "Resting connections", has the argument.
//!
//! Two steps, because a barrier of the system lies between them: [`Engine::begin_rests`] says in the slots of a few
//! connections what is going to happen, [`Engine::finish_rests`] does it. Connections are looked at in turns of one
//! tick, from their first use after a rest until they rest again, so that nothing is left to do when all rest.
//!
//! Rings that nobody has are simpler: when they were free for as long, all their pages go.

use std::ops::Range;

use shm::{Span, waiting};
use verbs::{MrId, Provider, Qpn, Status, Time, WcOpcode};

use super::Engine;
use crate::ids::RouteId;
use crate::immediate::Immediate;
use crate::limits::{REST_BYTES_PER_RUN, REST_LOOKS_PER_RUN, REST_SLICE_BYTES, RESTS_PER_RUN};
use crate::ringpool::FreeRing;
use crate::vqp::Vqp;

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

impl Engine {
    /// Chooses a few connections that have rested for long enough, and makes their applications wait with writing.
    /// True: some are chosen; [`shm::rest_barrier`] is next, then [`Engine::finish_rests`].
    pub fn begin_rests(&mut self, now: Time) -> bool {
        self.see(now);
        let now = self.now;
        if !self.rests.is_on() {
            return false;
        }
        if !self.rests.may_begin(now) {
            return self.rests.begun() > 0;
        }
        let mut bytes = 0;
        for _ in 0..REST_LOOKS_PER_RUN {
            if self.rests.begun() >= RESTS_PER_RUN || bytes >= REST_BYTES_PER_RUN {
                self.rests.pause(now);
                break;
            }
            let Some(route) = self.rests.take_due(now) else { break };
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            if self.apps.get_here(vqp.app()).is_none() {
                // Its rings are going to be free as a whole.
                vqp.rest.leave();
            } else if vqp.wants_growth() || vqp.is_writer_held() || !self.rests.is_due(&vqp.rest, now) {
                vqp.rest.begin_anew();
                self.rests.look_later(route, now);
                self.find_untold_head(route);
                self.give_room(route);
            } else {
                vqp.slot.begin_rest();
                bytes += vqp.rest.held().min(2 * REST_SLICE_BYTES);
                self.rests.begin(route);
            }
        }
        self.rests.begun() > 0
    }

    /// A writer that waits for room gets it if it must.
    fn give_room(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        let at = vqp.at();
        if let Some(is_stuck) = self.rests.may_go(vqp, self.now)
            && vqp.let_writer_go(is_stuck)
        {
            self.notify(at);
        }
        self.grow(route);
    }

    /// A reader rings once for many reads. One that went to do something else before it did is not waited for: its peer
    /// may want the room.
    fn find_untold_head(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route).filter(|vqp| vqp.has_untold_head()) else { return };
        let at = vqp.at();
        if let Err(fault) = self.on_doorbell(at) {
            self.on_app_fault(at.app, &fault);
        }
    }

    /// Gives pages back. `barrier`: [`shm::rest_barrier`] was passed; without it transmit rings keep theirs.
    pub fn finish_rests<P: Provider>(&mut self, now: Time, nic: &mut P, barrier: bool) {
        self.see(now);
        let now = self.now;
        // A device that holds completions back refuses for any of them. Here it is seen which rings they are about.
        self.poll_completions(nic);
        for route in self.rests.take_begun() {
            let Some(outcome) = self.rest(route, nic, barrier) else { continue };
            let Some(vqp) = self.vqps.get_mut(route) else { continue };
            self.rests.count(vqp);
            match outcome {
                Outcome::Rests => {
                    vqp.rest.leave();
                    self.counters.rests += 1;
                }
                Outcome::More => {
                    vqp.rest.next_slice();
                    self.rests.look_next(route, now);
                }
                Outcome::PutOff if vqp.rest.put_off() => self.rests.look_later(route, now),
                Outcome::PutOff => vqp.rest.leave(),
                Outcome::Used => {
                    vqp.rest.used(now);
                    self.rests.look_later(route, now);
                }
            }
            vqp.slot.end_rest();
            let (at, awaited) = (vqp.at(), vqp.slot.is_awaited(waiting::WRITABLE));
            if awaited {
                self.notify(at);
            }
            self.update(route);
        }
        self.apps.collect_wakes();
    }

    /// Gives the pages of free rings back, a bounded number of bytes at a time. Neither application nor device touches
    /// them: a connection's rings become free only when neither can.
    pub(super) fn run_free_rings<P: Provider>(&mut self, nic: &mut P) -> bool {
        let now = self.now;
        if !self.rests.may_look_at_rings(now) {
            return false;
        }
        let mut bytes = 0;
        for looks in 0..REST_LOOKS_PER_RUN {
            let Some(mut ring) = self.rests.take_due_ring(now) else { return looks > 0 };
            let Some(tenant) = self.apps.get_mut(ring.app) else { continue };
            let (mr, len) = match tenant.pool.look_at_free(&ring.place, ring.freed_at) {
                FreeRing::Used => continue,
                FreeRing::Since(freed_at) => {
                    self.rests.look_at_ring_later(ring, freed_at, now);
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
                self.rests.look_at_ring_next(ring, now);
            }
            if bytes >= REST_BYTES_PER_RUN {
                break;
            }
        }
        self.rests.pause_rings(now);
        true
    }

    /// Whether bytes in its receive ring may have arrived that are not counted yet.
    fn has_uncounted(&self, route: RouteId) -> bool {
        let is_of_messages = self.vqps.get(route).is_some_and(Vqp::has_messages);
        self.completions.waiting.iter().any(|c| {
            let about = c.imm.and_then(Immediate::from_bits).map(|imm| self.vqps.named(imm.route));
            match (c.status, c.opcode) {
                _ if is_of_messages => true,
                (Status::Success, WcOpcode::RecvWriteImm) => about.is_none_or(|named| named == route),
                (Status::Success, _) => false,
                _ => true,
            }
        })
    }

    /// One connection, between [`shm::begin_rest`] and [`shm::end_rest`]. `None`: it is over.
    fn rest<P: Provider>(&mut self, route: RouteId, nic: &mut P, barrier: bool) -> Option<Outcome> {
        let uncounted = self.has_uncounted(route);
        let vqp = self.vqps.get_mut(route)?;
        if vqp.is_pulling() {
            return Some(Outcome::PutOff);
        }
        // Before the tail is read: an unused ring has no other tail until the rest ends.
        let is_unused = barrier && vqp.slot.is_unused();
        let in_use = match vqp.look_in_use() {
            Ok(Some(in_use)) => in_use,
            Ok(None) => return Some(Outcome::Used),
            Err(fault) => {
                let app = vqp.app();
                self.on_app_fault(app, &fault);
                return None;
            }
        };
        let pool = &self.apps.get(vqp.app())?.pool;
        let (extent, rings) = (vqp.used_extent(), vqp.rings());
        let tx = pool.mr_of(&rings.tx).filter(|_| is_unused);
        let rx = pool.mr_of(&rings.rx).filter(|_| !uncounted);
        let qpn = vqp.place.lane().and_then(|id| self.lanes.get(id)).and_then(|lane| lane.qp.qpn());
        let turn = vqp.rest.slice();
        let mut refused = false;
        let mut discard = |mr: Option<MrId>, at: u64, spare: Spare, unreported: Option<Qpn>| {
            let Some(mr) = mr else { return false };
            spare.into_iter().flatten().filter_map(|piece| within(piece, &turn)).all(|(offset, len)| {
                let done = nic.try_discard(mr, at + offset, len, unreported);
                refused |= done.is_err();
                done.unwrap_or(true)
            })
        };
        let tx_done = discard(tx, rings.tx.offset, spare(&in_use.tx, vqp.tx_span()), None);
        let rx_done = discard(rx, rings.rx.offset, spare(&in_use.rx, vqp.rx_span()), qpn);
        self.counters.device_refusals += u64::from(refused);
        if turn.end >= extent {
            let vqp = self.vqps.get_mut(route)?;
            vqp.rest.on_clean(tx_done.then_some(in_use.tx.start), rx_done.then_some(in_use.rx.start));
        }
        Some(match tx_done && rx_done {
            true if turn.end < extent => Outcome::More,
            true => Outcome::Rests,
            false => Outcome::PutOff,
        })
    }
}

/// Pieces of a ring, by offset and length: at most one more than those in use.
type Spare = [Option<(u64, u64)>; 4];

/// What of a piece lies in this turn's part of the ring.
fn within((offset, len): (u64, u64), turn: &Range<u64>) -> Option<(u64, u64)> {
    let (start, end) = (offset.max(turn.start), (offset + len).min(turn.end));
    (start < end).then(|| (start, end - start))
}

/// What of a ring, as far as it has grown, lies outside of the bytes in use.
fn spare(in_use: &Range<u64>, span: Span) -> Spare {
    let mut used = [None; 3];
    let (mut at, mut left) = (in_use.start, in_use.end.wrapping_sub(in_use.start));
    for piece in &mut used {
        let (place, together) = span.place(at);
        let len = together.min(left);
        *piece = (len > 0).then_some((place, place + len));
        (at, left) = (at.wrapping_add(len), left - len);
    }
    used.sort_unstable_by_key(|piece| piece.map_or(u64::MAX, |(start, _)| start));
    let (mut spare, mut from) = ([None; 4], 0);
    let end = span.fill_max();
    for (gap, next) in spare.iter_mut().zip(used.into_iter().chain([None])) {
        let (start, after) = next.unwrap_or((end, end));
        *gap = (from < start).then_some((from, start - from));
        from = after;
    }
    spare
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_what_is_used_is_spare() {
        for head in 0..24_u64 {
            for used in 0..=8 {
                let head = head.wrapping_sub(9);
                let spare = spare(&(head..head.wrapping_add(used)), Span::fixed(8));
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
}
