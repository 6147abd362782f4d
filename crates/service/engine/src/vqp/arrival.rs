//! What comes from the peer: data and ends.
//!
//! Owns what may come when. It must never count bytes that the device did not report, or beyond what was granted.

use control::Reason;
use shm::engine_flag;
use verbs::Placed;

use super::{Phase, Vqp};
use crate::violation::Violation;

impl Vqp {
    /// Whether `bytes` were placed at the tail of the rx ring, as the device reports it. If a device does not report
    /// places, the engine believes the length of the WRITE with immediate, which the device counted, and nothing that
    /// the peer claims was before.
    #[inline]
    fn is_placed(&self, bytes: u32, before: u32, placed: Placed) -> bool {
        let (place, together) = self.rx.next_place();
        let tail = self.rings.rx.offset + place;
        match placed {
            _ if u64::from(bytes) > together => false,
            Placed::Piece { rkey, addr, len } => (rkey, addr, len) == (self.rings.rx.rkey, tail, bytes.into()),
            Placed::Nothing => bytes == 0,
            Placed::Untold => before == 0,
            Placed::Scattered => false,
        }
    }

    /// `bytes` came by SEND: their place in the rx ring, to which they are to be copied. [`Self::on_copied`] is next.
    pub(crate) fn on_send(&self, bytes: u32) -> Result<u64, Violation> {
        self.check_arrival(bytes)?;
        let (place, together) = self.rx.next_place();
        if u64::from(bytes) > together {
            return Err(Violation::Wraps { id: self.identity.id, bytes, together });
        }
        Ok(place)
    }

    /// They are there.
    pub(crate) fn on_copied(&mut self, bytes: u32) {
        let tail = self.rx.on_arrived(bytes.into());
        self.slot.publish_rx_tail(tail);
    }

    /// Whether so many bytes may come now.
    #[inline]
    fn check_arrival(&self, bytes: u32) -> Result<(), Violation> {
        if self.phase != Phase::Open || !self.close.may_receive() {
            return Err(Violation::DataAfterEnd { id: self.identity.id });
        }
        if self.has_messages() {
            return Err(Violation::NotAStream { id: self.identity.id });
        }
        if self.pull.is_some() {
            return Err(Violation::DataWhileLent { id: self.identity.id });
        }
        let granted = self.rx.granted();
        if u64::from(bytes) > granted {
            return Err(Violation::DataBeyondGrant { id: self.identity.id, bytes, granted });
        }
        Ok(())
    }

    /// `bytes` landed in the rx ring; of `before` of them only the peer says so.
    #[inline]
    pub(crate) fn on_arrival(&mut self, bytes: u32, before: u32, placed: Placed) -> Result<(), Violation> {
        match self.arrive(bytes, before, placed) {
            Err(_) if self.is_spoiled() => Ok(()),
            other => other,
        }
    }

    #[inline]
    fn arrive(&mut self, bytes: u32, before: u32, placed: Placed) -> Result<(), Violation> {
        self.check_arrival(bytes)?;
        if !self.is_placed(bytes, before, placed) {
            return Err(Violation::NotPlaced { id: self.identity.id, bytes, at: self.rx.tail(), placed });
        }
        let tail = self.rx.on_arrived(bytes.into());
        self.slot.publish_rx_tail(tail);
        Ok(())
    }

    pub(crate) fn on_fin(&mut self, final_tail: u64) -> Result<(), Violation> {
        let is_early = final_tail != self.rx.tail() || self.pull.is_some();
        if (is_early && !self.is_spoiled()) || !self.close.on_fin() {
            return Err(Violation::Fin { id: self.identity.id, final_tail, arrived: self.rx.tail() });
        }
        // Beside a reset FIN would say that it came before.
        if !self.close.is_reset() {
            self.slot.raise(engine_flag::FIN);
        }
        Ok(())
    }

    pub(crate) fn on_stop(&mut self) {
        self.close.on_stop();
        self.slot.raise(engine_flag::STOP);
    }

    pub(crate) fn on_reset(&mut self, reason: Reason) -> Result<(), Violation> {
        if !self.close.on_reset() {
            return Err(Violation::SecondReset { id: self.identity.id });
        }
        self.slot.publish_reset(reason);
        Ok(())
    }
}
