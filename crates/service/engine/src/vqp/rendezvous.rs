//! Bytes that the receiver fetches: the sender says up to where its transmit ring may be read, the receiver READs, and
//! says when it reads no more (docs/inside/wire.md, "Rendezvous").
//!
//! Owns both ends of it. The sender must never end its direction, use another verb, or give the ring away while the peer
//! may read it. The receiver must never say that it is done while a READ is in flight, and never count bytes before
//! their READ is completed.

use std::sync::atomic::Ordering;

use verbs::{RemoteAddr, Rkey, Sge};

use super::{Phase, Piece, Vqp};
use crate::choice::{Choice, Facts, Thresholds, Verb, choose};
use crate::frame::{FrameWriter, StreamRecord};
use crate::numbers::few;
use crate::violation::Violation;

/// Whether the peer may read the transmit ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LendKey {
    /// Nobody wanted it.
    #[default]
    None,
    /// A registration is asked for.
    Wanted,
    /// By this key.
    Has(Rkey),
    /// The device did not register it.
    Refused,
}

/// What the peer may read, in offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lent {
    end: u64,
    /// The end that the peer was told last and has not answered.
    told: Option<u64>,
}

/// The direction to the peer.
#[derive(Debug, Default)]
pub(super) struct Lending {
    key: LendKey,
    lent: Option<Lent>,
    asked: Option<Verb>,
    last: Option<Choice>,
}

/// The direction from the peer: what is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pull {
    /// The peer's ring.
    ring: RemoteAddr,
    end: u64,
    posted: u64,
    in_flight: u32,
    /// The lane takes no more READs: it says when it does.
    waits: bool,
}

impl Vqp {
    // ---- the choice

    /// What the application's word says.
    #[inline]
    pub(super) fn look_at_verb(&mut self) {
        self.lending.asked = Verb::asked(self.slot.words().tx_verb.load(Ordering::Relaxed));
    }

    /// The verb of the next piece. `facts` has what the lane knows.
    #[inline]
    pub(crate) fn choose(&mut self, facts: Facts, at: &Thresholds) -> Choice {
        let facts = Facts {
            asked: self.lending.asked,
            waiting: self.sendable_end().wrapping_sub(self.tx.sent()),
            is_registered: matches!(self.lending.key, LendKey::Has(_)),
            can_read: facts.can_read && self.lending.key != LendKey::Refused,
            ..facts
        };
        let choice = choose(&facts, self.lending.last.unwrap_or(Choice::USUAL), at);
        self.lending.last = Some(choice);
        choice
    }

    /// What was chosen last, if anything was sent.
    pub(crate) fn last_choice(&self) -> Option<Choice> {
        self.lending.last
    }

    /// What the application asked for.
    pub(crate) fn asked_verb(&self) -> Option<Verb> {
        self.lending.asked
    }

    // ---- to the peer

    pub(crate) fn lend_key(&self) -> LendKey {
        self.lending.key
    }

    pub(crate) fn set_lend_key(&mut self, key: LendKey) {
        self.lending.key = key;
    }

    /// Whether the peer may be reading the transmit ring, so that no other verb may carry what follows.
    pub(crate) fn is_lent(&self) -> bool {
        self.lending.lent.is_some()
    }

    /// All that could leave may be read by the peer, which is to be told.
    pub(crate) fn lend(&mut self) -> u64 {
        let (end, before) = (self.sendable_end(), self.tx.sent());
        let told = self.lending.lent.and_then(|lent| lent.told);
        self.lending.lent = Some(Lent { end, told });
        let bytes = end.wrapping_sub(before);
        self.tx.on_sent(bytes);
        bytes
    }

    /// The peer reads nothing before this offset any more.
    pub(crate) fn on_pulled(&mut self, end: u64) -> Result<(), Violation> {
        let wrong = Violation::Pulled { id: self.identity.id, found: end };
        let Some(lent) = &mut self.lending.lent else { return Err(wrong) };
        let Some(told) = lent.told.filter(|told| told.wrapping_sub(end) <= self.tx.span().full()) else {
            return Err(wrong);
        };
        // It may have crossed the word of a later end.
        if told == end {
            lent.told = None;
            if lent.end == end || self.close.is_reset() {
                self.lending.lent = None;
            }
        }
        Ok(())
    }

    /// Whether there is an end that the peer does not know. After a reset nothing further is lent.
    fn owes_ready(&self) -> bool {
        self.lending.lent.is_some_and(|lent| lent.told != Some(lent.end)) && !self.close.is_reset()
    }

    // ---- from the peer

    /// The peer lends its transmit ring up to this offset.
    pub(crate) fn on_ready(&mut self, end: u64, ring: RemoteAddr) -> Result<(), Violation> {
        if !self.close.may_receive() {
            return Err(Violation::DataAfterEnd { id: self.identity.id });
        }
        let granted = self.rx.granted();
        let from = self.pull.map_or(self.rx.tail(), |pull| pull.end);
        let (bytes, more) = (end.wrapping_sub(self.rx.tail()), end.wrapping_sub(from));
        if bytes > granted || more == 0 || more > bytes {
            return Err(Violation::Ready { id: self.identity.id, found: end, from, granted });
        }
        if ring.addr.checked_add(self.rx.span().full()).is_none() {
            return Err(Violation::Ready { id: self.identity.id, found: end, from, granted });
        }
        let new = Pull { ring, end, posted: self.rx.tail(), in_flight: 0, waits: false };
        self.pull = Some(self.pull.map_or(new, |pull| Pull { ring, end, ..pull }));
        Ok(())
    }

    /// Whether something is to be read, or being read.
    pub(crate) fn is_pulling(&self) -> bool {
        self.pull.is_some()
    }

    /// Whether a READ is to be posted.
    #[inline]
    pub(crate) fn wants_pull(&self) -> bool {
        self.pull.is_some_and(|pull| pull.posted != pull.end && !pull.waits) && !self.close.is_reset()
    }

    /// The lane takes no more READs now, or takes them again.
    pub(crate) fn wait_to_pull(&mut self, waits: bool) {
        if let Some(pull) = &mut self.pull {
            pull.waits = waits;
        }
    }

    /// The next contiguous piece of at most `max` bytes, where it lies in the peer's ring, and where it goes.
    pub(crate) fn next_pull(&self, max: u32) -> Option<(Piece, RemoteAddr, Sge)> {
        let pull = self.pull.filter(|_| self.wants_pull())?;
        let (at, together) = self.rx.span().place(pull.posted);
        let bytes = few(pull.end.wrapping_sub(pull.posted).min(together).min(max.into()));
        let from = RemoteAddr { addr: pull.ring.addr + at, ..pull.ring };
        let to = Sge { addr: self.rings.rx.offset + at, len: bytes, lkey: self.rings.rx.lkey };
        Some((Piece { at, bytes }, from, to))
    }

    /// A READ is staged.
    pub(crate) fn on_pull_staged(&mut self, bytes: u32, wr: u64) {
        self.last_wr = wr;
        if let Some(pull) = &mut self.pull {
            pull.posted = pull.posted.wrapping_add(bytes.into());
            pull.in_flight += 1;
        }
    }

    /// The oldest READ in flight is done. True: the application has news.
    pub(crate) fn on_pull_done(&mut self, bytes: u32) -> bool {
        let Some(pull) = &mut self.pull else { return false };
        pull.in_flight = pull.in_flight.saturating_sub(1);
        if !self.close.may_receive() {
            return false;
        }
        let tail = self.rx.on_arrived(bytes.into());
        self.slot.publish_rx_tail(tail);
        true
    }

    /// The end up to which nothing is read any more, if the peer is to be told.
    fn pulled(&self) -> Option<u64> {
        let done = |pull: &Pull| pull.in_flight == 0 && (pull.posted == pull.end || self.close.is_reset());
        self.pull.filter(done).map(|pull| pull.end)
    }

    // ---- both

    /// The queue pair is destroyed: nothing of it is in flight, and what was lent and not read is sent again.
    pub(crate) fn forget_rendezvous(&mut self) {
        (self.lending.lent, self.pull) = (None, None);
    }

    /// Whether neither end reads the other's ring.
    pub(super) fn is_rendezvous_over(&self) -> bool {
        let was_told = self.lending.lent.is_some_and(|lent| lent.told.is_some() || !self.close.is_reset());
        !was_told && self.pull.is_none()
    }

    pub(super) fn owes_rendezvous(&self) -> bool {
        self.phase == Phase::Open && (self.owes_ready() || self.pulled().is_some())
    }

    /// Writes what is owed about it. False: the frame is full.
    pub(super) fn write_rendezvous(&mut self, frame: &mut FrameWriter<'_>) -> bool {
        let route = self.routes.peer;
        if let Some(end) = self.pulled() {
            if !frame.push(&StreamRecord::Pulled { route, end }) {
                return false;
            }
            self.pull = None;
            // What was not read counts as arrived and dropped: the peer goes on behind it until it hears of the reset.
            // The application, which wants no more, is not told.
            self.rx.skip_to(end);
        }
        if !self.owes_ready() {
            return true;
        }
        let (LendKey::Has(key), Some(lent)) = (self.lending.key, &mut self.lending.lent) else { return true };
        let ring = RemoteAddr { addr: self.rings.tx.offset, rkey: key };
        let is_written = frame.push(&StreamRecord::Ready { route, end: lent.end, ring });
        if is_written {
            lent.told = Some(lent.end);
        }
        is_written
    }
}
