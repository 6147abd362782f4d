//! Reading and writing for tasks: what cannot be done now wakes the task when it can. A reader looks again for a while
//! first.
//!
//! Owns nothing beyond the order: the waker stands before the announcement and the last look.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use raas_core::{Rx, Side};

use super::Conn;
use super::lent::{Lent, Room};
use crate::attachment::Attachment;

impl Conn {
    pub(crate) fn poll_read(&self, context: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut rx = self.begin(&self.rx)?;
        let mut attempt = |rx: &mut Rx| rx.take(&self.endpoint, buf);
        if let Some(count) = self.receive_once(&mut rx, &mut attempt)? {
            self.conversation.on_read(&self.attachment.reads, &self.attachment.turns);
            return Poll::Ready(Ok(count));
        }
        if self.looks_again(&mut rx, context) {
            return Poll::Pending;
        }
        self.wake_later(Side::Read, context)?;
        ready(self.receive_now(&mut rx, &mut attempt))
    }

    pub(crate) fn poll_write(&self, context: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|b| b.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let mut tx = self.begin(&self.tx)?;
        if let Some(count) = self.write_once(&mut tx, bufs)? {
            self.conversation.on_written();
            return Poll::Ready(Ok(count));
        }
        self.wake_later(Side::Write, context)?;
        self.show_room();
        ready(self.write_now(&mut tx, bufs))
    }

    /// Sends a message, `len` bytes, or nothing; `len` is at most [`Conn::tx_bytes`].
    pub(crate) fn poll_send_message(
        &self,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        len: usize,
    ) -> Poll<io::Result<()>> {
        let mut tx = self.begin(&self.tx)?;
        let mut put = || tx.put_message(&self.endpoint, bufs, len, false).map_err(|end| self.failed(end));
        if !put()? {
            self.wake_later(Side::Write, context)?;
            self.show_room();
            self.announce(Side::Write);
            if !put()? {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Bytes that arrived, lent. None: the end.
    pub(crate) fn poll_loan(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<Lent<'_>>>> {
        let mut rx = self.begin(&self.rx)?;
        let mut attempt = |rx: &mut Rx| self.count(rx);
        let seen = match self.receive_once(&mut rx, &mut attempt)? {
            Some(count) => Some(count),
            None => {
                self.wake_later(Side::Read, context)?;
                self.receive_now(&mut rx, &mut attempt)?
            }
        };
        let Some(count) = seen else { return Poll::Pending };
        Poll::Ready(Ok((count > 0).then_some(Lent { rx, bytes: count as u64 })))
    }

    /// Room for `len` bytes, at most [`Conn::tx_bytes`], lent.
    pub(crate) fn poll_reserve(&self, context: &mut Context<'_>, len: usize) -> Poll<io::Result<Room<'_>>> {
        let tx = self.begin(&self.tx)?;
        let tx = match self.try_reserve(tx, len).map_err(|end| self.failed(end))? {
            Ok(room) => return Poll::Ready(Ok(room)),
            Err(tx) => tx,
        };
        self.wake_later(Side::Write, context)?;
        self.show_room();
        self.announce(Side::Write);
        match self.try_reserve(tx, len).map_err(|end| self.failed(end))? {
            Ok(room) => Poll::Ready(Ok(room)),
            Err(_tx) => Poll::Pending,
        }
    }

    /// Whether the task, which found nothing to read, is polled again soon by itself. Between hosts it is not: the bytes
    /// come by way of two engines, and where these need the processor a call took half as long again.
    fn looks_again(&self, rx: &mut Rx, context: &mut Context<'_>) -> bool {
        let Attachment { reads, turns, .. } = &*self.attachment;
        let policy = || self.policy_of_reader(rx);
        let looks = !self.endpoint.is_lane() && self.conversation.looks_again(reads, turns, policy, context);
        if looks {
            rx.publish();
        }
        looks
    }

    /// The task is woken when something changes. Afterwards the caller looks.
    pub(crate) fn wake_later(&self, side: Side, context: &Context<'_>) -> io::Result<()> {
        self.attachment.ensure_watched()?;
        self.bell.poller.set_waker(side, context.waker());
        Ok(())
    }
}

fn ready(now: io::Result<Option<usize>>) -> Poll<io::Result<usize>> {
    match now {
        Ok(Some(count)) => Poll::Ready(Ok(count)),
        Ok(None) => Poll::Pending,
        Err(e) => Poll::Ready(Err(e)),
    }
}
