//! A slice that was lent, as its lender has it.
//!
//! Owns the waiting for its return. It must never wait without a way to be woken.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::lending::{Lease, Lending};
use crate::error::SessionError;
use crate::patience::{Next, Patience};
use crate::region::Region;

/// A slice of a region that is a message, from [`MessageStream::lend`](crate::MessageStream::lend) until the receiver
/// gives it back. Meanwhile the lender must not write to it, or the receiver reads torn bytes.
///
/// Dropping it changes nothing for the receiver: the slice stays lent, and the region stays open while this is there.
pub struct Lent {
    lending: Arc<Lending>,
    lease: Arc<Lease>,
    /// Number of the loan, and what counts its uses.
    number: (u32, u64),
    _region: Region,
}

impl Lent {
    pub(super) fn new(lending: Arc<Lending>, lease: Arc<Lease>, number: (u32, u64), region: Region) -> Self {
        Self { lending, lease, number, _region: region }
    }

    /// Whether the receiver gave it back, or cannot look at it any more because it ended. Then the slice may be written
    /// to again. Does not wait.
    pub fn is_back(&self) -> io::Result<bool> {
        Ok(self.look(true)?)
    }

    /// Waits until it is back, as long as it takes.
    pub fn wait(&self) -> io::Result<()> {
        self.wait_until_back(None).map(drop)
    }

    /// As [`Lent::wait`], for at most `timeout`. False: it is not back yet.
    pub fn wait_timeout(&self, timeout: Duration) -> io::Result<bool> {
        self.wait_until_back(Some(timeout))
    }

    fn look(&self, follow: bool) -> Result<bool, SessionError> {
        let is_back = self.lending.is_back(&self.lease, self.number)?;
        if is_back || !follow {
            return Ok(is_back);
        }
        self.lending.look();
        self.lending.is_back(&self.lease, self.number)
    }

    fn wait_until_back(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let attachment = &self.lending.attachment;
        let mut patience = Patience::new(attachment.config.policy, &attachment.turns, timeout);
        loop {
            if self.look(false)? {
                return Ok(true);
            }
            match patience.pause() {
                Next::Look(_) => {}
                Next::GiveUp => return Ok(false),
                Next::Block => {
                    let mut ready = || !matches!(self.look(false), Ok(false));
                    let deadline = patience.deadline();
                    match self.lending.conn() {
                        Some(conn) => conn.sleep_for_loan(deadline, &mut ready)?,
                        None => {
                            let parker = self.lending.bell().enter_lenders();
                            let slept = attachment.block(&parker, deadline, &mut ready);
                            self.lending.bell().leave_lenders(&parker);
                            slept?;
                        }
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("loan", &self.number.0).finish_non_exhaustive()
    }
}
