//! Control frames of a lane: their memory, and their numbers, which go on over the lane's incarnations.
//!
//! Owns that each frame of the peer is handled once.

use verbs::{MrId, Provider, Sge, VerbsError};

use crate::frame::Header;
use crate::limits::FRAME_SLOTS;
use crate::recvpool::FrameMemory;
use crate::violation::Violation;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    memory: Option<FrameMemory>,
    /// Number of the last frame sent, and received.
    sent: u64,
    received: u64,
}

impl Frames {
    // ---- memory

    /// Makes the memory, if there is none.
    pub(crate) fn make<P: Provider>(&mut self, nic: &mut P, frame_bytes: u32) -> Result<(), VerbsError> {
        if self.memory.is_none() {
            self.memory = Some(FrameMemory::new(nic, FRAME_SLOTS, frame_bytes)?);
        }
        Ok(())
    }

    pub(crate) fn memory(&self) -> Option<&FrameMemory> {
        self.memory.as_ref()
    }

    /// Takes the memory of a lane without a queue pair.
    pub(super) fn take_memory(&mut self) -> Option<FrameMemory> {
        self.memory.take()
    }

    /// The region and bytes of its memory, once each time that frames were written there.
    pub(super) fn take_touched(&mut self) -> Option<(MrId, u64)> {
        let memory = self.memory.as_mut()?;
        memory.take_touched().then(|| (memory.mr, memory.bytes()))
    }

    /// Puts a frame into its slot.
    pub(super) fn put(&mut self, slot: u16, frame: &[u8]) -> Option<Sge> {
        self.memory.as_mut()?.put(slot, frame)
    }

    // ---- numbers

    /// The number of the frame that is sent next.
    pub(super) fn next(&self) -> u64 {
        self.sent + 1
    }

    /// It is sent.
    pub(super) fn on_sent(&mut self) {
        self.sent += 1;
    }

    /// A frame arrived. False: it was handled on an earlier incarnation.
    pub(super) fn on_arrived(&mut self, header: &Header) -> Result<bool, Violation> {
        let expected = self.received + 1;
        if header.sequence < expected {
            return Ok(false);
        }
        if header.sequence != expected {
            return Err(Violation::Sequence { found: header.sequence, expected });
        }
        self.received = expected;
        Ok(true)
    }

    /// Number of the last frame of the peer that was handled.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The peer says how many frames it has handled: the next is the one after. `knows_sent`: this end knows how many it
    /// has sent.
    pub(super) fn on_arrived_there(&mut self, arrived: u64, knows_sent: bool) -> Result<(), Violation> {
        if knows_sent && arrived > self.sent {
            return Err(Violation::FramesArrived { found: arrived, sent: self.sent });
        }
        self.sent = arrived;
        Ok(())
    }

    /// The link to the peer's daemon is lost: numbers begin again.
    pub(super) fn forget_numbers(&mut self) {
        (self.sent, self.received) = (0, 0);
    }
}
