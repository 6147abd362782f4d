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
    pub(crate) fn put(&mut self, slot: u16, frame: &[u8]) -> Option<Sge> {
        self.memory.as_mut()?.put(slot, frame)
    }

    // ---- numbers

    /// The number of the frame that is sent next.
    pub(crate) fn next(&self) -> u64 {
        self.sent + 1
    }

    /// It is sent.
    pub(crate) fn on_sent(&mut self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn header(sequence: u64) -> Header {
        Header { records: 0, incarnation: 1, sequence, credits: 0 }
    }

    #[test]
    fn each_frame_is_handled_once_and_none_is_left_out() {
        let mut frames = Frames::default();
        assert_eq!(frames.on_arrived(&header(1)), Ok(true));
        assert_eq!(frames.on_arrived(&header(1)), Ok(false));
        assert_eq!(frames.on_arrived(&header(3)), Err(Violation::Sequence { found: 3, expected: 2 }));
        assert_eq!((frames.on_arrived(&header(2)), frames.received()), (Ok(true), 2));
    }

    #[test]
    fn the_next_frame_is_the_one_after_those_that_arrived() {
        let mut frames = Frames::default();
        frames.on_sent();
        frames.on_sent();
        assert_eq!(frames.on_arrived_there(3, true), Err(Violation::FramesArrived { found: 3, sent: 2 }));
        assert_eq!((frames.on_arrived_there(1, true), frames.next()), (Ok(()), 2));
        // An engine that began anew goes on where the peer says.
        assert_eq!((frames.on_arrived_there(9, false), frames.next()), (Ok(()), 10));
    }
}
