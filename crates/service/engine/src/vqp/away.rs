//! A connection whose other end cannot be reached, because a daemon or the link between two was lost, and how it goes on
//! (docs/operate/restart.md).
//!
//! Owns what each end tells the other then. It must never send anything of the connection before each end has the
//! other's word, and never let what one program stored in its memory cost more than its own connection: those words are
//! all that is left of a daemon that was killed.

use std::sync::atomic::Ordering;

use control::{LaneTicket, Reason, RouteState, Ticket, TicketRing};
use shm::engine_flag;
use verbs::Time;

use super::cursors::BadWords;
use super::growth::{RxGrowth, TxGrowth};
use super::identity::Identity;
use super::{HeadReport, Phase, Vqp};
use crate::frame::{Back, FrameWriter, StreamRecord};
use crate::ring_size::RingSize;
use crate::ringpool::RingPair;

/// How far the two ends are with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Away {
    /// The peer is to be told that this end is back.
    Telling,
    /// It was told, and has not answered: its program may not be back.
    Told,
    /// It is back, and is to be told that this end knows.
    Answering,
}

/// What the peer's word brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The connection is back.
    Back,
    /// The application may write more.
    Room,
    /// Nothing new.
    Nothing,
}

/// What a connection remembers of the time in which its ends did not know each other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    /// It is given up then.
    until: Time,
    /// What was sent is known only by the peer: this end was taken over from a daemon before this one.
    is_unknown: bool,
    /// It goes on, and whether the peer knows that is not known.
    is_unconfirmed: bool,
    /// Both ends said what cannot be: nothing that comes counts any more.
    is_spoiled: bool,
}

impl Part {
    /// Whether it is not known what this end sent.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_unknown
    }
}

impl Vqp {
    // ---- parting

    /// Whether it can wait for its other end.
    pub(crate) fn can_part(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Away(_)) && !self.close.is_reset()
    }

    /// Its other end cannot be reached; it waits until then.
    pub(crate) fn part(&mut self, until: Time) {
        self.place.leave_lists();
        self.forget_rendezvous();
        self.growth.on_resumed(self.tx.span().grown_at());
        if !self.is_away() {
            self.part.until = until;
        }
        self.part.is_unconfirmed = false;
        self.phase = Phase::Away(Away::Telling);
    }

    pub(crate) fn is_away(&self) -> bool {
        matches!(self.phase, Phase::Away(_))
    }

    /// The peer was told that it is back, or said so itself: it may go on at any time.
    pub(crate) fn may_be_known(&self) -> bool {
        matches!(self.phase, Phase::Away(Away::Told | Away::Answering))
    }

    /// When it is given up, if it waits.
    pub(crate) fn away_until(&self) -> Option<Time> {
        self.is_away().then_some(self.part.until)
    }

    /// The lane has another queue pair, and the peer named the connection or did not. True: it begins again.
    pub(crate) fn begin_again_unless(&mut self, is_named: bool) -> bool {
        let again = !is_named && self.part.is_unconfirmed;
        self.part.is_unconfirmed &= !is_named;
        if again {
            self.phase = Phase::Away(Away::Telling);
        }
        again
    }

    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.part.is_unconfirmed
    }

    #[cold]
    pub(crate) fn is_spoiled(&self) -> bool {
        self.part.is_spoiled
    }

    // ---- from a daemon before this one

    /// What the program brings to the next daemon. Empty while the peer is not known.
    pub(super) fn ticket(&self) -> Vec<u8> {
        if matches!(self.phase, Phase::Opening(_)) {
            return Vec::new();
        }
        let ring = |place: crate::ringpool::Place| TicketRing { chunk: place.chunk_number, offset: place.offset };
        let size = |size: RingSize| (size.first, size.grown);
        let RingPair { tx, rx } = self.rings;
        let Identity { id, local, peer, kind, is_outgoing, .. } = self.identity;
        let ticket = LaneTicket {
            id,
            local,
            peer,
            kind,
            is_outgoing,
            own_route: self.routes.own,
            peer_route: self.routes.peer,
            slot: self.at().slot,
            generation: self.slot.generation(),
            tx: ring(tx),
            rx: ring(rx),
            size: size(self.size),
            allocated: size(self.allocated),
        };
        control::encode(&Ticket::Lane(ticket)).unwrap_or_default()
    }

    /// Takes the words of the slot for what a daemon before this one knew. The program could have written them, so an
    /// error costs it this connection.
    pub(crate) fn adopt(&mut self, ticket: &LaneTicket, until: Time) -> Result<(), BadWords> {
        self.routes.peer = ticket.peer_route;
        (self.is_open_sent, self.identity.is_outgoing) = (true, ticket.is_outgoing);
        let words = self.slot.words();
        let (tx_head, rx_tail) = (words.tx_head.load(Ordering::Acquire), words.rx_tail.load(Ordering::Acquire));
        let (mut tx_tail, mut rx_head) = (tx_head, rx_tail);
        if self.slot.is_taken() {
            (tx_tail, rx_head) = (words.tx_tail.load(Ordering::Acquire), words.rx_head.load(Ordering::Acquire));
        }
        let grown = (words.tx_grown_at.load(Ordering::Acquire), words.rx_grown_at.load(Ordering::Acquire));
        self.tx.adopt(tx_head, tx_tail, grown.0)?;
        self.rx.adopt(rx_tail, rx_head, grown.1)?;
        self.growth.tx = if grown.0 != 0 { TxGrowth::Grown } else { TxGrowth::Small };
        self.growth.rx = if grown.1 != 0 { RxGrowth::Grown } else { RxGrowth::Small };
        let flags = words.engine_flags.load(Ordering::Acquire);
        if flags & engine_flag::RESET != 0 {
            return Err(BadWords);
        }
        if flags & engine_flag::FIN != 0 {
            self.close.on_fin();
        }
        if flags & engine_flag::STOP != 0 {
            self.close.on_stop();
        }
        // The daemon may have died while it gave pages back, or held the writer back.
        self.slot.end_rest();
        self.slot.hold(0);
        // Its bytes were counted by that daemon, and it has its own TCP connection if it was to have one.
        self.bulk.forget();
        self.restore_messages();
        self.tx.begin_after();
        self.rx.begin_after();
        self.head_report = HeadReport::None;
        self.part = Part { until, is_unknown: true, ..Part::default() };
        self.phase = Phase::Away(Away::Telling);
        Ok(())
    }

    // ---- telling

    /// Writes what the peer must know first. False: the frame is full.
    pub(super) fn write_back(&mut self, frame: &mut FrameWriter<'_>) -> bool {
        let (is_answer, next) = match self.phase {
            Phase::Away(Away::Telling) => (false, Phase::Away(Away::Told)),
            Phase::Away(Away::Answering) => (true, Phase::Open),
            _ => return true,
        };
        let back = Back {
            route: self.routes.peer,
            own_route: self.routes.own,
            is_answer,
            flags: self.close.arrived(),
            ring: self.rings.rx.wire_ring(self.size),
            rx_tail: self.rx.tail(),
            rx_head: self.rx.head(),
            tx_grown_at: self.tx.span().grown_at().unwrap_or(0),
            rx_grown_at: self.rx.span().grown_at().unwrap_or(0),
        };
        if !frame.push(&StreamRecord::Back(back)) {
            return false;
        }
        self.rx.report();
        self.head_report = HeadReport::None;
        self.phase = next;
        true
    }

    // ---- hearing

    /// The peer is back. What its words, or this end's, make impossible ends the connection on both sides, in the order in
    /// which connections are reset.
    pub(crate) fn on_back(&mut self, back: &Back) -> Heard {
        match self.phase {
            // It answers what was answered. Its program may have read between its two words, and says so nowhere else.
            Phase::Away(Away::Answering) | Phase::Open if back.is_answer => {
                self.phase = Phase::Open;
                self.part.is_unconfirmed = false;
                if self.has_messages() {
                    return Heard::Nothing;
                }
                return match self.on_head(back.rx_head) {
                    Ok(true) => Heard::Room,
                    Ok(false) => Heard::Nothing,
                    Err(_) => self.spoil(),
                };
            }
            Phase::Away(Away::Telling | Away::Told) => {}
            _ => return Heard::Nothing,
        }
        self.routes.set_ring(back.ring.remote());
        let taken = self.take_back(back);
        self.part.is_unknown = false;
        self.part.is_unconfirmed = !back.is_answer;
        self.phase = if back.is_answer { Phase::Open } else { Phase::Away(Away::Answering) };
        if taken.is_err() { self.spoil() } else { Heard::Back }
    }

    fn spoil(&mut self) -> Heard {
        self.part.is_spoiled = true;
        self.close.on_abort(Reason::AppFault);
        self.slot.publish_reset(Reason::AppFault);
        Heard::Back
    }

    fn take_back(&mut self, back: &Back) -> Result<(), BadWords> {
        if back.ring.size != self.size {
            return Err(BadWords);
        }
        self.take_growth(back)?;
        if !self.part.is_unknown {
            let state = RouteState {
                route: back.route,
                own_route: back.own_route,
                rx_tail: back.rx_tail,
                rx_head: back.rx_head,
                flags: back.flags,
            };
            self.resume(&state).map_err(|_| BadWords)?;
            self.settle_growth();
            return Ok(());
        }
        // What its application did not want was never sent.
        let is_ended = back.flags & control::route_flag::FIN != 0 && !self.close.is_told_to_stop();
        if is_ended && back.rx_tail != self.tx.tail() {
            return Err(BadWords);
        }
        self.tx.on_back(back.rx_tail, back.rx_head)?;
        // Messages on UC have a cursor of their own, which nobody told the peer.
        if !self.has_messages() {
            self.slot.publish_tx_head(self.tx.head());
        }
        self.close.on_returned(back.flags);
        self.settle_growth();
        Ok(())
    }

    /// Both ends' rings must have grown at the same places, or the sender's alone: then the receiver learns it now.
    fn take_growth(&mut self, back: &Back) -> Result<(), BadWords> {
        let own = (self.tx.span().grown_at().unwrap_or(0), self.rx.span().grown_at().unwrap_or(0));
        if back.rx_grown_at != 0 && back.rx_grown_at != own.0 {
            return Err(BadWords);
        }
        if back.tx_grown_at == own.1 {
            return Ok(());
        }
        let is_allowed = self.part.is_unknown || self.growth.rx == RxGrowth::Allowed;
        let at = back.tx_grown_at;
        let mut span = self.rx.span();
        let fits = own.1 == 0 && is_allowed && span.on_told(at, self.rx.reported()).is_ok();
        let is_ahead = span.grown_at().is_some_and(|at| at.wrapping_sub(self.rx.tail()) <= u64::from(self.size.first));
        if !fits || !is_ahead {
            return Err(BadWords);
        }
        self.rx.set_span(span);
        self.growth.rx = RxGrowth::Grown;
        self.slot.words().rx_grown_at.store(at, Ordering::Relaxed);
        Ok(())
    }

    /// What [`Back`] said of the rings need not be said again.
    fn settle_growth(&mut self) {
        if self.tx.span().grown_at().is_some() {
            self.growth.tx = TxGrowth::Grown;
        }
    }
}
