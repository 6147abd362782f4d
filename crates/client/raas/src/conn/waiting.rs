//! Waiting for a connection: looking for a while, then sleeping.
//!
//! Owns the order of announcing and looking again, and for how long each kind of wait looks. It must never sleep
//! without having announced it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use raas_core::Side;
use rustix::event::{PollFd, PollFlags};

use super::Conn;
use crate::error::SessionError;
use crate::patience::{Look, Next, Patience, WaitPolicy};

/// Yields of a reader of a stream before it sleeps.
const STREAM_YIELDS: u32 = 3;

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Bytes, in a conversation.
    Answer,
    /// Bytes of a stream that comes by itself.
    Stream,
    /// Any room.
    Room,
    /// Room for all of a message, a datagram or a loan.
    WholeRoom,
}

impl Waits {
    /// How to wait for it. News of a lane passes through a daemon that may need this very processor, and takes longer
    /// than all spins. So between hosts no thread spins. A writer whose ring is full sleeps at once; it is woken when
    /// half of the ring is free, while the daemon sends the other half. A reader of a stream sleeps soon, so that the
    /// daemon has the processor, and more bytes are there afterwards.
    ///
    /// What the kernel carries has the kernel's own time: such a wait sleeps at once, but for the answer in a
    /// conversation, which is looked for between yields.
    pub(crate) fn policy(self, is_lane: bool, is_direct: bool, set: WaitPolicy) -> WaitPolicy {
        if is_direct && self != Self::Answer {
            return WaitPolicy { spins: 0, yields: 0 };
        }
        if !is_lane {
            return set;
        }
        match self {
            Self::Answer | Self::WholeRoom => WaitPolicy { spins: 0, ..set },
            Self::Stream => WaitPolicy { spins: 0, yields: STREAM_YIELDS.min(set.yields) },
            Self::Room => WaitPolicy { spins: 0, yields: 0 },
        }
    }
}

/// What a descriptor tells those who wait for this side.
fn told_of(side: Side) -> PollFlags {
    match side {
        Side::Read => PollFlags::IN | PollFlags::RDHUP,
        Side::Write => PollFlags::OUT,
    }
}

impl Conn {
    /// Waits until `ready`: first by looking for a while, then asleep. It may return early; the caller looks again.
    /// `beside`: the stream's own TCP connection, if what it waits for comes by it.
    pub(super) fn wait(
        &self,
        side: Side,
        beside: Option<BorrowedFd<'_>>,
        patience: &mut Patience<'_>,
        ready: &mut dyn FnMut(Look) -> bool,
    ) -> io::Result<()> {
        loop {
            match patience.pause() {
                Next::Look(look) if ready(look) => return Ok(()),
                Next::Look(_) => {}
                Next::GiveUp => return Err(io::Error::new(io::ErrorKind::TimedOut, "the stream's timeout is over")),
                Next::Block => {
                    if ready(Look::BeforeSleep) {
                        return Ok(());
                    }
                    if side == Side::Write {
                        // The peer may be writing too, into room that it has not heard of.
                        self.show_room();
                    }
                    self.endpoint.arm(side);
                    let (parker, deadline) = (self.bell.parker(side), patience.deadline());
                    let beside = beside.map(|fd| PollFd::from_borrowed_fd(fd, told_of(side)));
                    let mut arm = || self.endpoint.arm_direct(side);
                    let mut ready = || ready(Look::Armed);
                    let slept = self.attachment.block_beside(parker, beside, deadline, &mut arm, &mut ready);
                    self.disarm(side);
                    return slept.map_err(SessionError::into);
                }
            }
        }
    }

    /// No thread of this side sleeps any more. With a poller the announcement stays, because the poller may depend on
    /// it; and one about room stays while a thread waits for a slice that it lent.
    fn disarm(&self, side: Side) {
        let is_wanted = self.bell.poller.is_used() || (side == Side::Write && self.bell.has_lenders());
        if !is_wanted {
            self.endpoint.disarm(side);
        }
    }

    /// Sleeps until `ready`, for a thread that waits for a slice which it lent: the other side tells of it as of room.
    pub(crate) fn sleep_for_loan(
        &self,
        deadline: Option<Instant>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<(), SessionError> {
        let parker = self.bell.enter_lenders();
        self.endpoint.arm(Side::Write);
        let slept = self.attachment.block(&parker, deadline, ready);
        // The announcement stays: a writer may depend on it, and the next wake takes it away.
        self.bell.leave_lenders(&parker);
        slept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_hosts_nobody_spins() {
        let set = WaitPolicy { spins: 64, yields: 100 };
        let all = [Waits::Answer, Waits::Stream, Waits::Room, Waits::WholeRoom];
        assert!(all.iter().all(|waits| waits.policy(true, false, set).spins == 0));
        let yields: Vec<_> = all.iter().map(|waits| waits.policy(true, false, set).yields).collect();
        assert_eq!(yields, [100, STREAM_YIELDS, 0, 100]);
        assert!(all.iter().all(|waits| {
            let policy = waits.policy(false, false, set);
            (policy.spins, policy.yields) == (64, 100)
        }));
    }
}
