//! Reading from a connection: trying, and waiting between the tries.
//!
//! Decides which waits are those of a stream. It must never wait before it has shown the writing side its room.

use std::io;
use std::sync::atomic::Ordering;

use raas_core::{End, Rx, Side};

use super::Conn;
use super::lent::{Attempt, Lent};
use super::waiting::Waits;
use crate::patience::{Look, Patience, WaitPolicy};

/// A read or write of so many bytes is one of a stream that moves much.
const LARGE: usize = 16 << 10;
/// Bytes of such calls between two looks at what the daemon says.
const LOOK_BYTES: u64 = 4 << 20;

impl Conn {
    #[inline]
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.receive(|rx| rx.take(&self.endpoint, buf))
    }

    /// Copies without consuming.
    pub(crate) fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.receive(|rx| rx.peek(&self.endpoint, buf))
    }

    /// Waits until there are bytes, and lends them. None: the end.
    pub(crate) fn loan(&self) -> io::Result<Option<Lent<'_>>> {
        let mut rx = self.begin(&self.rx)?;
        let bytes = self.receive_slowly(&mut rx, &mut |rx| self.count(rx), false)?;
        Ok((bytes > 0).then_some(Lent { rx, bytes: bytes as u64 }))
    }

    pub(super) fn count(&self, rx: &mut Rx) -> Result<usize, End> {
        Ok(usize::try_from(rx.available(&self.endpoint)?).unwrap_or(usize::MAX))
    }

    /// Takes lent bytes out of the ring.
    pub(crate) fn consume(&self, rx: &mut Rx, count: u64) {
        rx.consume(&self.endpoint, count);
    }

    /// The next bytes come by the other way: the ring, or the stream's own TCP connection.
    pub(crate) fn change_way(&self) -> io::Result<()> {
        self.begin(&self.rx)?.change_way(&self.endpoint).map_err(|end| self.failed(end))
    }

    /// Bytes that can be read without waiting.
    pub(crate) fn unread_bytes(&self) -> io::Result<u64> {
        self.check_fork()?;
        self.begin(&self.rx)?.available(&self.endpoint).map_err(|end| self.failed(end))
    }

    #[inline]
    fn receive(&self, mut attempt: impl FnMut(&mut Rx) -> Result<usize, End>) -> io::Result<usize> {
        let mut rx = self.begin(&self.rx)?;
        let is_tried = self.endpoint.may_take();
        if is_tried {
            let count = attempt(&mut rx).map_err(|end| self.failed(end))?;
            if count > 0 {
                self.note_moved(count);
                return Ok(count);
            }
        }
        // A second look at TCP would be a system call.
        let is_tried = is_tried && rx.is_direct();
        self.receive_slowly(&mut rx, &mut attempt, is_tried)
    }

    /// A reader that always finds bytes, or a writer that always finds room, never waits, and would not hear that the
    /// daemon has a faster way for them; nor would one whose waits end before it sleeps.
    #[inline]
    pub(super) fn note_moved(&self, count: usize) {
        if count >= LARGE && self.endpoint.is_lane() {
            self.on_large(count);
        }
    }

    #[cold]
    fn on_large(&self, count: usize) {
        let bytes = self.unlooked.load(Ordering::Relaxed) + count as u64;
        if bytes < LOOK_BYTES {
            return self.unlooked.store(bytes, Ordering::Relaxed);
        }
        self.unlooked.store(0, Ordering::Relaxed);
        self.attachment.look();
    }

    #[inline(never)]
    fn receive_slowly(&self, rx: &mut Rx, attempt: &mut Attempt<'_>, is_tried: bool) -> io::Result<usize> {
        if self.is_nonblocking() {
            return self.receive_now(rx, attempt)?.ok_or_else(|| io::ErrorKind::WouldBlock.into());
        }
        if self.endpoint.is_lane() && !rx.is_direct() {
            self.on_large(LARGE);
        }
        let policy = self.policy_of_reader(rx);
        let mut patience = Patience::new(policy, &self.attachment.turns, self.timeout(Side::Read));
        let mut is_tried = is_tried;
        loop {
            if !is_tried && let Some(count) = self.receive_once(rx, attempt)? {
                return Ok(count);
            }
            is_tried = false;
            let beside = if rx.is_direct() { self.endpoint.direct_descriptor(Side::Read) } else { None };
            self.wait(Side::Read, beside, &mut patience, &mut |look| {
                match look {
                    Look::Glance | Look::Armed => {}
                    Look::BeforeYield => rx.publish(),
                    Look::BeforeSleep => rx.tell_room(&self.endpoint),
                }
                // Between yields nothing is told, so the look is the system call.
                let asks = policy.yields > 0 && matches!(look, Look::Glance | Look::BeforeYield) && rx.is_direct();
                let is_there = if asks { rx.stages_news() } else { rx.sees_news() };
                is_there || self.endpoint.read_end().is_some()
            })?;
        }
    }

    /// Asked before a wait begins: what counts is how much came since the last one.
    pub(super) fn policy_of_reader(&self, rx: &mut Rx) -> WaitPolicy {
        let waits = if rx.takes_stream(&self.endpoint) { Waits::Stream } else { Waits::Answer };
        waits.policy(self.endpoint.is_lane(), rx.is_direct(), self.attachment.config.policy)
    }

    /// Does not wait. None: nothing is there, and the poller's user is notified when something is.
    pub(super) fn receive_now(&self, rx: &mut Rx, attempt: &mut Attempt<'_>) -> io::Result<Option<usize>> {
        if let Some(count) = self.receive_once(rx, attempt)? {
            return Ok(Some(count));
        }
        rx.tell_room(&self.endpoint);
        self.announce_try(Side::Read);
        self.receive_once(rx, attempt)
    }

    /// One look: bytes, the end (0), an error, or nothing yet.
    pub(super) fn receive_once(&self, rx: &mut Rx, attempt: &mut Attempt<'_>) -> io::Result<Option<usize>> {
        match rx.look(&self.endpoint, attempt) {
            Ok(count) => Ok(count),
            Err(End::Finished) => Ok(Some(0)),
            Err(end) => Err(self.failed(end)),
        }
    }
}
