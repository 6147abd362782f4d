//! What a connection has to say to its peer, and when.
//!
//! Owns the order: the answer to an Open comes first, and Fin and Reset last.

use super::away::Away;
use super::{HeadReport, Phase, Vqp};
use crate::frame::{FrameWriter, StreamRecord};

impl Vqp {
    /// Whether the application consumed everything and the peer will send no more.
    pub(crate) fn is_all_read(&self) -> bool {
        self.close.is_fin_received() && self.rx.is_all_read()
    }

    /// Fin says that nothing of the ring is read any more, neither by this end's device nor by the peer's.
    fn owes_fin(&self) -> bool {
        !self.is_lent() && self.close.owes_fin(self.tx.is_all_sent() && self.is_messages_drained())
    }

    /// Decides whether the bytes consumed and not reported are worth a record now, later, or not at all.
    ///
    /// A quarter of the ring is: the peer's application cannot stay blocked while it is missing, since it is blocked
    /// only by a full ring, which the application here drains or already holds back itself. After Fin the peer waits
    /// for the last byte to be consumed. Anything else may wait a little.
    pub(crate) fn update_head_report(&mut self) -> HeadReport {
        let unreported = self.rx.unreported();
        self.head_report = if unreported == 0 || !self.close.reports_heads() {
            HeadReport::None
        } else if unreported >= self.rx.span().fill_max() / 4 || self.is_all_read() {
            HeadReport::Due
        } else {
            HeadReport::Lazy
        };
        self.head_report
    }

    /// Whether a record other than a lazy head is to be sent.
    pub(crate) fn owes_records(&self) -> bool {
        match self.phase {
            Phase::Opening(_) => false,
            Phase::Accepting => true,
            Phase::Away(away) => away != Away::Told,
            Phase::Open => {
                self.head_report == HeadReport::Due
                    || self.growth.owes()
                    || self.owes_rendezvous()
                    || self.close.owes_stop(self.is_all_read())
                    || self.owes_fin()
                    || self.close.owes_reset().is_some()
            }
        }
    }

    /// Writes the records that are owed. False: the frame is full, and some are left.
    pub(crate) fn write_records(&mut self, frame: &mut FrameWriter<'_>, wrote_end: &mut bool) -> bool {
        let route = self.routes.peer;
        let was_open = self.phase == Phase::Open;
        if self.phase == Phase::Accepting {
            let ring = self.rings.rx.wire_ring(self.size);
            if !frame.push(&StreamRecord::OpenAck { route, own_route: self.routes.own, ring }) {
                return false;
            }
            self.phase = Phase::Open;
        }
        if !self.write_back(frame) {
            return false;
        }
        if self.phase != Phase::Open {
            return true;
        }
        // A message could overtake the answer, to an Open or to a Back: none leaves before that frame has arrived.
        *wrote_end = !was_open && self.has_messages();
        if !self.write_growth(frame) || !self.write_rendezvous(frame) {
            return false;
        }
        if self.head_report != HeadReport::None && self.close.reports_heads() {
            if !frame.push(&StreamRecord::Head { route, consumed: self.rx.head() }) {
                return false;
            }
            self.rx.report();
        }
        self.head_report = HeadReport::None;
        if self.close.owes_stop(self.is_all_read()) {
            if !frame.push(&StreamRecord::Stop { route }) {
                return false;
            }
            self.close.stop_was_sent();
        }
        if self.owes_fin() {
            if !frame.push(&StreamRecord::Fin { route, final_tail: self.tx.sent() }) {
                return false;
            }
            self.close.fin_was_sent();
            *wrote_end = true;
        }
        if let Some(reason) = self.close.owes_reset() {
            if !frame.push(&StreamRecord::Reset { route, reason: reason.code() }) {
                return false;
            }
            self.close.reset_was_sent();
            *wrote_end = true;
        }
        true
    }
}
