//! What the engine holds for connections of messages on UC (docs/use/unreliable.md): the memory of pieces, the UC queue pairs
//! of its lanes, whose turn it is, and what was lost.
//!
//! Owns the memory that the UC queue pairs share. It must never let them use a receive that is promised to a lane.

pub(crate) mod end;
pub(crate) mod losses;
pub(crate) mod memory;
pub(crate) mod piece;
pub(crate) mod places;

use std::collections::BTreeMap;

use verbs::{Provider, Qpn, SendOp, VerbsError};

use crate::ids::{LaneId, RouteId};
use crate::limits::MESSAGE_QUANTUM_BYTES;
use crate::sched::Drr;

use losses::Losses;
use memory::PieceMemory;

/// Pieces by WRITE.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Those that went by SEND because the peer had no place.
    pub(crate) no_place: u64,
}

/// The engine's part of all of them.
#[derive(Debug)]
pub(crate) struct Unreliable {
    /// None before the first UC queue pair.
    pub(crate) memory: Option<PieceMemory>,
    /// Connections with messages to send.
    pub(crate) drr: Drr<RouteId>,
    qps: BTreeMap<Qpn, LaneId>,
    /// UC queue pairs made, by which connections see that theirs is another one.
    ends: u32,
    pub(crate) losses: Losses,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) writes: Writes,
    /// A piece on its way into a ring or out of one.
    pub(crate) scratch: Vec<u8>,
}

impl Unreliable {
    pub(crate) fn new() -> Self {
        Self {
            memory: None,
            drr: Drr::new(MESSAGE_QUANTUM_BYTES),
            qps: BTreeMap::new(),
            ends: 0,
            losses: Losses::default(),
            sent: 0,
            received: 0,
            writes: Writes::default(),
            scratch: Vec::new(),
        }
    }

    /// Whether a round would send something now.
    pub(crate) fn has_work(&self) -> bool {
        // A completion, which wakes the engine, ends the wait for room.
        self.drr.front().is_some() && self.memory.as_ref().is_none_or(PieceMemory::has_room)
    }

    /// The lane beside which a UC queue pair is.
    pub(crate) fn lane_of(&self, qpn: Qpn) -> Option<LaneId> {
        self.qps.get(&qpn).copied()
    }

    /// A UC queue pair was made beside a lane. Its number among them.
    pub(crate) fn bind(&mut self, qpn: Qpn, lane: LaneId) -> u32 {
        self.qps.insert(qpn, lane);
        self.ends = self.ends.wrapping_add(1).max(1);
        self.ends
    }

    /// It is destroyed: nothing that was posted to it is on its way any more.
    pub(crate) fn unbind(&mut self, qpn: Qpn) {
        self.qps.remove(&qpn);
        if let Some(memory) = &mut self.memory {
            memory.forget_sends(qpn);
        }
    }

    /// Posts the piece that is in `scratch`.
    pub(crate) fn post<P: Provider>(&mut self, nic: &mut P, qpn: Qpn, op: SendOp) -> Result<(), VerbsError> {
        let memory = self.memory.as_mut().ok_or(VerbsError::NoSuch("memory of pieces"))?;
        match op {
            SendOp::Send => memory.post(nic, qpn, op, (&[], &self.scratch)),
            _ => memory.post(nic, qpn, op, (&places::check(&self.scratch), &self.scratch)),
        }
    }

    /// Counters for [`crate::EngineTotals`].
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("uc_qps", self.qps.len() as u64),
            ("uc_messages_sent", self.sent),
            ("uc_messages_received", self.received),
            ("uc_writes_sent", self.writes.sent),
            ("uc_writes_received", self.writes.received),
            ("uc_writes_no_place", self.writes.no_place),
        ];
        own.into_iter().chain(self.losses.counters())
    }
}
