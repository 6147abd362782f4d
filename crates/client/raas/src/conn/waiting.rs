//! Waiting for a connection: looking for a while, then sleeping.
//!
//! Owns the order of announcing and looking again. It must never sleep without having announced it.

use std::io;
use std::sync::Arc;

use super::{Conn, Link, Side};
use crate::SessionError;
use crate::park::Parker;
use crate::patience::{Look, Next, Patience, WaitPolicy};

/// Yields of a reader of a stream before it sleeps.
const STREAM_YIELDS: u32 = 3;

impl Conn {
    /// Waits until `ready`, for a while by looking, then asleep. May return early; the caller looks again.
    pub(super) fn wait(
        &self,
        side: Side,
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
                    self.arm(side);
                    let slept = self.inner.block(self.parker(side), patience.deadline(), &mut || ready(Look::Glance));
                    self.disarm(side);
                    return slept.map_err(SessionError::into);
                }
            }
        }
    }

    /// The news of a lane pass through a daemon that may need this very processor, and take longer than all spins. A writer
    /// whose ring is full sleeps at once: it is called when half of the ring is free, while the daemon sends the other half.
    pub(super) fn wait_policy(&self, side: Side) -> WaitPolicy {
        match &self.link {
            Link::Lane(_) if side == Side::Write => WaitPolicy { spins: 0, yields: 0 },
            Link::Lane(_) => WaitPolicy { spins: 0, ..self.inner.policy },
            Link::Pair(_) => self.inner.policy,
        }
    }

    /// For readers of a stream.
    pub(super) fn stream_policy(&self) -> WaitPolicy {
        let policy = self.wait_policy(Side::Read);
        match &self.link {
            Link::Lane(_) => WaitPolicy { yields: STREAM_YIELDS.min(policy.yields), ..policy },
            Link::Pair(_) => policy,
        }
    }

    pub(super) fn arm(&self, side: Side) {
        match &self.link {
            Link::Lane(end) => end.arm(side),
            Link::Pair(end) => end.arm(side),
        }
    }

    /// Nobody sleeps any more; with a poller the announcement stays, since the poller may rest on it.
    fn disarm(&self, side: Side) {
        if self.poller.is_used() {
            return;
        }
        match &self.link {
            Link::Lane(end) => end.disarm(side),
            Link::Pair(end) => end.disarm(side),
        }
    }

    pub(super) fn parker(&self, side: Side) -> &Arc<Parker> {
        match side {
            Side::Read => &self.parkers[0],
            Side::Write => &self.parkers[1],
        }
    }

    /// Something changed: whoever waits looks again.
    pub(crate) fn notify(&self) {
        for parker in &self.parkers {
            parker.notify();
        }
        self.poller.tell();
    }
}
