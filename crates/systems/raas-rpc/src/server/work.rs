//! What a worker works with while its memory is there, and how its responses leave.
//!
//! Owns the way of a response: left in its slot, or sent. It must never leave a response whose first word comes before
//! the rest.

use std::sync::Arc;
use std::time::Instant;

use raas::RegionError;

use super::connection::response;
use super::slabs::{Slab, Slabs, WorkerMemory};
use super::spin::SpinTime;
use super::{Counters, Shared};
use crate::frame::{RESPONSE_BUSY, RESPONSE_IN_SLOT, RequestHeader, Turn, request_flag};
use crate::once::Outcome;

/// See the head of this file.
pub(super) struct Work<'a> {
    pub(super) shared: &'a Shared,
    pub(super) slabs: &'a Slabs,
    pub(super) place: Arc<WorkerMemory>,
    pub(super) spin: SpinTime,
}

impl Work<'_> {
    /// Leaves or sends a response.
    pub(super) fn answer(
        &self,
        slab: &Slab,
        request: &RequestHeader,
        outcome: &Outcome,
        turn: Option<Turn>,
    ) -> Result<(), RegionError> {
        let mut header = response(self.shared, request, outcome);
        if self.spin.on_answer(Instant::now()) {
            header.flags |= RESPONSE_BUSY;
        }
        let is_sent = request.flags & request_flag::REPLY != 0;
        if !is_sent {
            return self.leave(slab, request.sequence, &header.encode(&outcome.payload));
        }
        header.turn = turn;
        let mut frame = header.encode(&outcome.payload);
        if frame.len() > slab.datagram_max {
            header.turn = None;
            self.leave(slab, request.sequence, &header.encode(&outcome.payload))?;
            header.turn = turn;
            header.flags |= RESPONSE_IN_SLOT;
            frame = header.encode(&[]);
        }
        Counters::add(&self.shared.counters.datagrams);
        // A datagram may be lost in any case: then the client asks again.
        if let Err(error) = self.place.socket.send_to(&frame, slab.datagrams) {
            tracing::debug!(%error, to = %slab.datagrams, "a response was not sent");
        }
        Ok(())
    }

    /// Leaves a response in its slot; its first word comes last.
    fn leave(&self, slab: &Slab, sequence: u64, frame: &[u8]) -> Result<(), RegionError> {
        let layout = self.slabs.layout;
        let at = slab.offset + layout.response_at(layout.slot_of(sequence));
        let (first, rest) = frame.split_at(8);
        self.place.region.write(at + 8, rest)?;
        let first = first.try_into().map_or(0, u64::from_ne_bytes);
        self.place.region.store(at, first)
    }
}
