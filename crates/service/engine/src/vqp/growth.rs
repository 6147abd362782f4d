//! How the rings of a connection grow, each direction by itself (docs/inside/wire.md, "Rings that grow").
//!
//! Owns the two state machines and the place from which on each ring uses all of its bytes. It must never let data
//! beyond that place leave before the peer was told it, and never take a place of the peer's at which an honest sender
//! could not have chosen it.

use std::sync::atomic::Ordering;

use control::Kind;
use verbs::Time;

use super::Vqp;
use crate::frame::{FrameWriter, StreamRecord};
use crate::limits::{GROW_WHEN_STUCK, HOLD_BYTES_MUCH};
use crate::violation::Violation;

/// The direction to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum TxGrowth {
    #[default]
    Small,
    /// It is full since then, and nothing was taken out.
    Full(Time),
    /// The peer is to be asked for a larger ring.
    Asking,
    /// It was asked.
    Asked,
    /// It has no memory for it.
    Refused,
    /// From this offset on all of the ring is used; the peer is to be told.
    Telling(u64),
    Grown,
}

/// The direction from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RxGrowth {
    #[default]
    Small,
    /// The peer asked, and gets this answer.
    Answering(bool),
    /// It was allowed, and has not said from where on.
    Allowed,
    Refused,
    Grown,
}

/// Whether the writer keeps little in its ring, because rings hold much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Holding {
    #[default]
    Free,
    Held,
    /// It was, and stood still.
    Stuck,
}

#[derive(Debug, Default)]
pub(super) struct Growth {
    pub(super) holding: Holding,
    pub(super) tx: TxGrowth,
    pub(super) rx: RxGrowth,
}

impl Growth {
    /// Whether there is a record to send.
    pub(super) fn owes(&self) -> bool {
        matches!(self.tx, TxGrowth::Asking | TxGrowth::Telling(_)) || matches!(self.rx, RxGrowth::Answering(_))
    }

    /// The lane is a new one: what was not known to have arrived is said again.
    pub(super) fn on_resumed(&mut self, grown_at: Option<u64>) {
        self.tx = match (self.tx, grown_at) {
            (TxGrowth::Telling(at), _) | (TxGrowth::Grown, Some(at)) => TxGrowth::Telling(at),
            // The question or its answer was lost.
            (TxGrowth::Asked, _) => TxGrowth::Asking,
            (other, _) => other,
        };
        if let RxGrowth::Answering(allowed) = self.rx {
            // The peer asks again.
            self.rx = if allowed { RxGrowth::Allowed } else { RxGrowth::Refused };
        }
    }
}

impl Vqp {
    // ---- to the peer

    /// Whether the transmit ring is full, and could be larger.
    pub(crate) fn wants_growth(&self) -> bool {
        matches!(self.growth.tx, TxGrowth::Small | TxGrowth::Full(_))
            && self.tx.span().may_grow()
            && self.tx.is_full()
            && self.close.may_send_data()
    }

    /// Whether it is to be larger now. `waits`: not before it was full for a while.
    pub(crate) fn is_growth_due(&mut self, waits: Option<Time>) -> bool {
        if !self.wants_growth() {
            return false;
        }
        match (waits, self.growth.tx) {
            (None, _) => true,
            (Some(now), TxGrowth::Full(since)) => now.saturating_since(since) >= GROW_WHEN_STUCK,
            (Some(now), _) => {
                self.growth.tx = TxGrowth::Full(now);
                false
            }
        }
    }

    /// Rings hold much: the writer of a stream that named no size keeps little in this one.
    #[inline]
    pub(crate) fn hold_writer(&mut self) {
        let is_small = matches!(self.growth.tx, TxGrowth::Small | TxGrowth::Full(_)) && self.size.grows();
        if self.growth.holding == Holding::Free && is_small && self.kind() == Kind::Stream {
            self.growth.holding = Holding::Held;
            self.slot.hold(HOLD_BYTES_MUCH);
        }
    }

    /// Whether it may be waiting because of that.
    pub(crate) fn is_writer_held(&self) -> bool {
        self.growth.holding == Holding::Held && self.tx.unconsumed() >= HOLD_BYTES_MUCH.into()
    }

    /// It is not held back any more. `is_stuck`: nor will it be again. True: it is to be told.
    pub(crate) fn let_writer_go(&mut self, is_stuck: bool) -> bool {
        let was_held = self.growth.holding == Holding::Held;
        if was_held {
            self.growth.holding = if is_stuck { Holding::Stuck } else { Holding::Free };
            self.slot.hold(0);
        }
        was_held
    }

    /// Something was taken out of the transmit ring.
    pub(super) fn on_room(&mut self) {
        if matches!(self.growth.tx, TxGrowth::Full(_)) {
            self.growth.tx = TxGrowth::Small;
        }
    }

    /// There is memory for a larger transmit ring: the peer is asked whether it has some too.
    pub(crate) fn ask_to_grow(&mut self) {
        self.growth.tx = TxGrowth::Asking;
    }

    /// There is none.
    pub(crate) fn stay_small(&mut self) {
        self.growth.tx = TxGrowth::Refused;
    }

    /// The peer's answer. False: the memory for a larger transmit ring is not needed.
    pub(crate) fn on_grow_answer(&mut self, allowed: bool) -> Result<bool, Violation> {
        if self.growth.tx != TxGrowth::Asked {
            return Err(Violation::Growth { id: self.identity.id, what: "an answer that nobody waits for" });
        }
        let grown_at = if allowed { self.tx.grow() } else { None };
        let Some(at) = grown_at else {
            self.growth.tx = TxGrowth::Refused;
            return Ok(false);
        };
        self.growth.tx = TxGrowth::Telling(at);
        self.slot.words().tx_grown_at.store(at, Ordering::Relaxed);
        Ok(true)
    }

    /// The end of what may be sent now: data beyond the place of growth follows the record that names it.
    #[inline]
    pub(super) fn sendable_end(&self) -> u64 {
        match self.growth.tx {
            TxGrowth::Telling(at) if self.tx.tail().wrapping_sub(self.tx.sent()) > at.wrapping_sub(self.tx.sent()) => {
                at
            }
            _ => self.tx.tail(),
        }
    }

    // ---- from the peer

    /// The peer asks for a larger receive ring. True: memory for it is to be looked for; [`Self::answer_growth`] has
    /// the result. Otherwise the answer is known.
    pub(crate) fn on_grow(&mut self) -> Result<bool, Violation> {
        match self.growth.rx {
            _ if !self.rx.span().may_grow() => Err(Violation::Growth {
                id: self.identity.id,
                what: "a question for a ring that does not grow, or has grown",
            }),
            RxGrowth::Small => Ok(true),
            RxGrowth::Answering(allowed) => {
                self.answer_growth(allowed);
                Ok(false)
            }
            RxGrowth::Allowed | RxGrowth::Refused => {
                self.answer_growth(self.growth.rx == RxGrowth::Allowed);
                Ok(false)
            }
            RxGrowth::Grown => Err(Violation::Growth { id: self.identity.id, what: "a question after growth" }),
        }
    }

    pub(crate) fn answer_growth(&mut self, allowed: bool) {
        self.growth.rx = RxGrowth::Answering(allowed);
    }

    /// The peer says from where on it uses all of the receive ring.
    pub(crate) fn on_grown_at(&mut self, at: u64) -> Result<(), Violation> {
        if self.growth.rx == RxGrowth::Grown && self.rx.span().grown_at() == Some(at) {
            return Ok(());
        }
        let wrong = |what| Violation::Growth { id: self.identity.id, what };
        if self.growth.rx != RxGrowth::Allowed {
            return Err(wrong("a place of growth that was not allowed"));
        }
        // The sender's head is one that was reported, and its data beyond the place follows this record.
        let mut span = self.rx.span();
        span.on_told(at, self.rx.reported()).map_err(|_| wrong("a place of growth that no sender could choose"))?;
        if span.grown_at().is_none_or(|at| at.wrapping_sub(self.rx.tail()) > u64::from(self.size.first)) {
            return Err(wrong("a place of growth behind what arrived"));
        }
        self.rx.set_span(span);
        self.growth.rx = RxGrowth::Grown;
        // PAIRS WITH the acquire load of the tail in the application: it sees a tail beyond the place after the place.
        self.slot.words().rx_grown_at.store(at, Ordering::Relaxed);
        Ok(())
    }

    // ---- records

    /// Writes what is owed about growth. False: the frame is full.
    pub(super) fn write_growth(&mut self, frame: &mut FrameWriter<'_>) -> bool {
        let route = self.routes.peer;
        if let RxGrowth::Answering(allowed) = self.growth.rx {
            if !frame.push(&StreamRecord::GrowAnswer { route, allowed }) {
                return false;
            }
            self.growth.rx = if allowed { RxGrowth::Allowed } else { RxGrowth::Refused };
        }
        let (record, after) = match self.growth.tx {
            TxGrowth::Asking => (StreamRecord::Grow { route }, TxGrowth::Asked),
            TxGrowth::Telling(at) => (StreamRecord::GrownAt { route, at }, TxGrowth::Grown),
            _ => return true,
        };
        let written = frame.push(&record);
        if written {
            self.growth.tx = after;
        }
        written
    }
}
