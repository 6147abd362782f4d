//! Reading from a connection.
//!
//! Owns the consuming end of its ring, and when the writing side learns of the room. It must never report an end before the
//! bytes that came before it were read.

use std::io;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use shm::RingReader;

use super::inflow::Inflow;
use super::{Conn, End, FAULTY, Link, Side};
use crate::StreamError;
use crate::park::lock;
use crate::patience::{Look, Patience, WaitPolicy};

/// The head is published when this share of the ring was consumed, or the reader waits.
const PUBLISH_SHARE: u64 = 16;
/// The writing side is told to look at the head when this share of the ring was consumed.
const TELL_SHARE: u64 = 4;

/// The consuming end, and what the writing side knows of it.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) ring: RingReader,
    ring_bytes: u64,
    /// The head that the writing side can see.
    published: u64,
    /// The head when the writing side was last told to look.
    told: u64,
    inflow: Inflow,
    /// The end was told to the engine, so that it can finish the connection.
    end_told: bool,
}

/// A reader, and how many bytes of its ring are there.
pub(super) type Lent<'a> = (MutexGuard<'a, Reader>, u64);

impl Reader {
    pub(super) fn new(ring: RingReader, ring_bytes: u64) -> Self {
        Self { ring, ring_bytes, published: 0, told: 0, inflow: Inflow::default(), end_told: false }
    }

    fn unpublished(&self) -> u64 {
        self.ring.head().wrapping_sub(self.published)
    }

    fn untold(&self) -> u64 {
        self.ring.head().wrapping_sub(self.told)
    }

    /// Lets the writing side see what was consumed.
    pub(super) fn publish(&mut self) {
        if self.unpublished() > 0 {
            self.ring.publish();
            self.published = self.ring.head();
        }
    }
}

impl Conn {
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.receive(|conn, reader| conn.take(reader, buf))
    }

    /// Copies without consuming.
    pub(crate) fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.receive(|conn, reader| reader.ring.peek(buf).map_err(|fault| conn.on_fault(fault)))
    }

    /// Waits until there are bytes, and lends them. None: the end.
    pub(crate) fn loan(&self) -> io::Result<Option<Lent<'_>>> {
        let mut reader = lock(&self.read);
        let mut attempt = |conn: &Self, reader: &mut Reader| conn.available(reader);
        let count = self.receive_slowly(&mut reader, &mut attempt)?;
        Ok((count > 0).then_some((reader, count as u64)))
    }

    pub(super) fn available(&self, reader: &mut Reader) -> io::Result<usize> {
        let bytes = reader.ring.available().map_err(|fault| self.on_fault(fault))?;
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Takes lent bytes out of the ring.
    pub(crate) fn consume(&self, reader: &mut Reader, count: u64) {
        let taken = reader.ring.consume_quietly(count);
        reader.inflow.on_taken(taken);
        if reader.unpublished() >= reader.ring_bytes / PUBLISH_SHARE {
            self.publish_or_tell(reader);
        }
    }

    /// Bytes that can be read without waiting.
    pub(crate) fn unread_bytes(&self) -> io::Result<u64> {
        lock(&self.read).ring.available().map_err(|fault| self.on_fault(fault))
    }

    #[inline]
    fn receive(&self, mut attempt: impl FnMut(&Self, &mut Reader) -> io::Result<usize>) -> io::Result<usize> {
        let mut reader = lock(&self.read);
        if !self.is(Side::Read.bit() | FAULTY) {
            let count = attempt(self, &mut reader)?;
            if count > 0 {
                return Ok(count);
            }
        }
        self.receive_slowly(&mut reader, &mut attempt)
    }

    #[inline(never)]
    fn receive_slowly(
        &self,
        reader: &mut Reader,
        attempt: &mut dyn FnMut(&Self, &mut Reader) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.is_nonblocking() {
            return self.receive_now(reader, attempt)?.ok_or_else(|| io::ErrorKind::WouldBlock.into());
        }
        let policy = self.read_policy(reader);
        let mut patience = Patience::new(policy, &self.inner.turns, self.timeout(Side::Read));
        loop {
            if let Some(count) = self.receive_once(reader, attempt)? {
                return Ok(count);
            }
            self.wait(Side::Read, &mut patience, &mut |look| {
                match look {
                    Look::Glance => {}
                    Look::BeforeYield => reader.publish(),
                    Look::BeforeSleep => self.tell_room(reader),
                }
                !matches!(reader.ring.available(), Ok(0)) || self.read_end().is_some()
            })?;
        }
    }

    /// How to wait now: who takes a stream sleeps soon, so that the daemon has the processor, and more is there afterwards.
    fn read_policy(&self, reader: &mut Reader) -> WaitPolicy {
        let answered = self.answered.load(Ordering::Relaxed);
        if answered {
            self.answered.store(false, Ordering::Relaxed);
        }
        if reader.inflow.on_wait(answered) { self.stream_policy() } else { self.wait_policy(Side::Read) }
    }

    /// Without waiting; None: nothing is there, and whoever uses the poller is told when there is.
    pub(super) fn receive_now(
        &self,
        reader: &mut Reader,
        attempt: &mut dyn FnMut(&Self, &mut Reader) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        if let Some(count) = self.receive_once(reader, attempt)? {
            return Ok(Some(count));
        }
        self.tell_room(reader);
        self.announce(Side::Read);
        self.receive_once(reader, attempt)
    }

    /// One look: bytes, the end (0), an error, or nothing yet.
    pub(super) fn receive_once(
        &self,
        reader: &mut Reader,
        attempt: &mut dyn FnMut(&Self, &mut Reader) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        // What arrived before the end is in the ring when it is looked at after the end was seen.
        let end = self.read_end();
        if !self.is(Side::Read.bit() | FAULTY) {
            let count = attempt(self, reader)?;
            if count > 0 {
                return Ok(Some(count));
            }
        }
        match end {
            Some(End::Finished) => {
                self.tell_end(reader);
                Ok(Some(0))
            }
            Some(End::Reset(reason)) => Err(StreamError::reset(reason)),
            None => Ok(None),
        }
    }

    /// Takes what is there, in pieces: the other side may fill the room of one while the next is copied.
    #[inline]
    pub(super) fn take(&self, reader: &mut Reader, buf: &mut [u8]) -> io::Result<usize> {
        let mut total = 0;
        for piece in buf.chunks_mut(self.piece_bytes) {
            let count = reader.ring.read_quietly(piece).map_err(|fault| self.on_fault(fault))?;
            total += count;
            reader.inflow.on_taken(count as u64);
            if reader.unpublished() >= reader.ring_bytes / PUBLISH_SHARE {
                self.publish_or_tell(reader);
            }
            if count < piece.len() {
                break;
            }
        }
        Ok(total)
    }

    /// Shows the writing side the room, and lets it know of it, seldom enough that it does not wake for each byte: it has a
    /// quarter of the ring to gain before it hears of it. A lane half full hears each time, since its news takes longer.
    #[inline(never)]
    fn publish_or_tell(&self, reader: &mut Reader) {
        let filled = reader.ring.tail().wrapping_sub(reader.published);
        let half_full = matches!(self.link, Link::Lane(_)) && filled >= reader.ring_bytes / 2;
        if half_full || reader.untold() >= reader.ring_bytes / TELL_SHARE {
            self.tell_room(reader);
        } else {
            reader.publish();
        }
    }

    /// Tells the writing side of all room there is. Before the reader sleeps at the latest: a writer whose ring is smaller
    /// than the reader's may wait for what the reader thinks little.
    pub(super) fn tell_room(&self, reader: &mut Reader) {
        if reader.untold() == 0 {
            return;
        }
        reader.publish();
        reader.told = reader.published;
        match &self.link {
            Link::Pair(end) => end.wake(Side::Write.bit()),
            Link::Lane(end) if end.is_datagram => {}
            Link::Lane(end) => self.wake_engine(end.ring()),
        }
    }

    fn tell_end(&self, reader: &mut Reader) {
        if let Link::Lane(end) = &self.link
            && !reader.end_told
        {
            reader.end_told = true;
            reader.publish();
            self.wake_engine(end.ring());
        }
    }

    pub(super) fn read_end(&self) -> Option<End> {
        if self.is(Side::Read.bit() | FAULTY) {
            return Some(self.own_end());
        }
        match &self.link {
            Link::Pair(end) => end.read_end(),
            Link::Lane(end) => {
                // The loss first: the engine's last words are seen after it.
                let lost = self.inner.lost();
                end.read_end().or(lost.map(End::Reset))
            }
        }
    }
}
