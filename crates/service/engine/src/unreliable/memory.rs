//! The memory of pieces: a shared receive queue of the UC queue pairs alone, and places from which they send.
//!
//! Owns both. It must never post memory of an application: a piece is copied before it is posted and after it came. It
//! must never have more posted than its bounds.

use verbs::{Access, Payload, PostError, Provider, Qpn, SendFlags, SendOp, SendWr, SrqId, SrqInit, VerbsError};

use crate::limits::{PIECE_BYTES_MAX, PIECE_RECEIVES, PIECES_INFLIGHT_MAX};
use crate::numbers::count;
use crate::places::{Places, Receives};
use crate::recvpool::RECV_WR;

/// Marks the `wr_id` of all that is posted to UC queue pairs: of a completion whose queue pair is destroyed already, it
/// alone says to which memory it belongs.
pub(crate) const PIECE_WR: u64 = 1 << 62;

/// Receives and sends of all UC queue pairs of an engine.
#[derive(Debug)]
pub(crate) struct PieceMemory {
    srq: SrqId,
    pub(crate) receives: Receives,
    sends: Places,
    /// Places from which nothing is sent.
    free: Vec<u32>,
    /// By place: the queue pair to which it is posted.
    posted: Vec<Option<Qpn>>,
}

impl PieceMemory {
    /// Makes the shared receive queue, and posts its receives.
    pub(crate) fn new<P: Provider>(nic: &mut P) -> Result<Self, VerbsError> {
        let attr = nic.device();
        let receives = PIECE_RECEIVES.min(attr.max_srq_wr);
        let slots = PIECES_INFLIGHT_MAX.min(attr.max_qp_wr);
        let srq = nic.create_srq(&SrqInit { max_wr: receives, max_sge: 1, limit: 0 })?;
        let mut memory = Self {
            srq,
            receives: Receives::new(nic, receives, PIECE_BYTES_MAX, RECV_WR | PIECE_WR)?,
            sends: Places::new(nic, slots, PIECE_BYTES_MAX as usize, Access::empty())?,
            free: (0..slots).rev().collect(),
            posted: vec![None; slots as usize],
        };
        memory.repost(nic).map_err(|e| e.cause)?;
        Ok(memory)
    }

    pub(crate) fn srq(&self) -> SrqId {
        self.srq
    }

    /// Sends that a queue pair may have.
    pub(crate) fn slots(&self) -> u32 {
        count(self.posted.len())
    }

    /// Memory regions registered, and their bytes.
    pub(crate) fn registered(&self) -> (u32, u64) {
        (2, self.receives.registered() + self.sends.region.len())
    }

    // ---- sending

    /// Whether one more piece may be posted.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Copies a piece, behind `check` if it is to be WRITTEN, and posts it. [`Self::has_room`] said that it may be.
    pub(crate) fn post<P: Provider>(
        &mut self,
        nic: &mut P,
        qpn: Qpn,
        op: SendOp,
        (check, piece): (&[u8], &[u8]),
    ) -> Result<(), VerbsError> {
        let full = VerbsError::Full { what: "places of pieces", limit: self.posted.len() as u64 };
        let Some(&slot) = self.free.last() else { return Err(full) };
        let (at, len) = (u64::from(slot) * self.sends.stride, check.len() + piece.len());
        let region = &self.sends.region;
        let is_written = region.write(at, check).is_ok() && region.write(at + check.len() as u64, piece).is_ok();
        if len > PIECE_BYTES_MAX as usize || !is_written {
            return Err(full);
        }
        let sge = [self.sends.sge(slot.into(), count(len))];
        let wr = SendWr {
            wr_id: PIECE_WR | u64::from(slot),
            op,
            payload: Payload::Sges(&sge),
            flags: SendFlags::SIGNALED,
            dest: None,
        };
        nic.post_send(qpn, &[wr]).map_err(|e| e.cause)?;
        self.free.pop();
        self.posted[slot as usize] = Some(qpn);
        Ok(())
    }

    /// A send of this queue pair completed.
    pub(crate) fn on_sent(&mut self, qpn: Qpn, wr_id: u64) {
        let slot = usize::try_from(wr_id & !PIECE_WR).unwrap_or(usize::MAX);
        if self.posted.get(slot).is_some_and(|posted| *posted == Some(qpn)) {
            self.posted[slot] = None;
            self.free.push(count(slot));
        }
    }

    /// A queue pair was destroyed: its sends give no completion.
    pub(crate) fn forget_sends(&mut self, qpn: Qpn) {
        for (slot, posted) in self.posted.iter_mut().enumerate() {
            if *posted == Some(qpn) {
                *posted = None;
                self.free.push(count(slot));
            }
        }
    }

    // ---- receiving

    /// Posts receives that were given back.
    pub(crate) fn repost<P: Provider>(&mut self, nic: &mut P) -> Result<(), PostError> {
        self.receives.post_idle(|wrs| nic.post_srq_recv(self.srq, wrs))
    }
}
