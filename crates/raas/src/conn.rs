//! One connection as the application sees it: reading, writing, waiting, closing, whichever path it takes.
//!
//! Owns the two rings and the order "state first, then ring" by which the last bytes before an end are never lost. It must
//! never take a lock that another connection takes while there is data to read or room to write.
//!
//! Reading delivers all bytes that arrived before the peer finished, reset or died; then the end is told. Writing tells a
//! reset at once.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::{PathKind, Reason, Request};
use shm::{PeerFault, RingReader, RingWriter, app_flag, waiting};

use crate::inner::Inner;
use crate::lane::LaneEnd;
use crate::pair::PairEnd;
use crate::park::{Parker, lock};
use crate::patience::{Look, Next, Patience};
use crate::{SessionError, StreamError};

/// The head is published when this share of the ring was consumed, or the reader waits.
const PUBLISH_SHARE: u64 = 16;
/// The writing side is told to look at the head when this share of the ring was consumed.
const TELL_SHARE: u64 = 4;

/// A direction of this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}

impl Side {
    /// Its bit in `app_wait` and in a pair's `waiting`.
    pub(crate) const fn bit(self) -> u32 {
        match self {
            Self::Read => waiting::READABLE,
            Self::Write => waiting::WRITABLE,
        }
    }
}

/// How a direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// In order: no more bytes, or nobody who wants any.
    Finished,
    /// Broken.
    Reset(Reason),
}

/// The path of a connection.
#[derive(Debug)]
pub(crate) enum Link {
    Lane(LaneEnd),
    Pair(PairEnd),
}

#[derive(Debug)]
struct Reader {
    ring: RingReader,
    ring_bytes: u64,
    /// The head that the writing side can see.
    published: u64,
    /// The head when the writing side was last told to look.
    told: u64,
    /// The end was told to the engine, so that it can finish the connection.
    end_told: bool,
}

impl Reader {
    fn unpublished(&self) -> u64 {
        self.ring.head().wrapping_sub(self.published)
    }

    fn untold(&self) -> u64 {
        self.ring.head().wrapping_sub(self.told)
    }

    fn publish(&mut self) {
        if self.unpublished() > 0 {
            self.ring.publish();
            self.published = self.ring.head();
        }
    }
}

/// One end of a connection. Dropping it closes.
#[derive(Debug)]
pub(crate) struct Conn {
    inner: Arc<Inner>,
    pub(crate) id: u64,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    link: Link,
    read: Mutex<Reader>,
    write: Mutex<RingWriter>,
    parkers: [Arc<Parker>; 2],
    /// Directions that this side shut, as bits of [`Side`].
    shut: AtomicU32,
    /// The peer broke the rules of the rings.
    faulty: AtomicBool,
    /// The application has it: an incoming connection that nobody accepted is reset when dropped.
    owned: AtomicBool,
    /// Nanoseconds, 0 for none.
    timeouts: [AtomicU64; 2],
}

impl Conn {
    pub(crate) fn new(
        inner: Arc<Inner>,
        (id, local, peer): (u64, SocketAddr, SocketAddr),
        link: Link,
        (reader, rx_bytes): (RingReader, u64),
        writer: RingWriter,
    ) -> Self {
        Self {
            inner,
            id,
            local,
            peer,
            link,
            read: Mutex::new(Reader { ring: reader, ring_bytes: rx_bytes, published: 0, told: 0, end_told: false }),
            write: Mutex::new(writer),
            parkers: Default::default(),
            shut: AtomicU32::new(0),
            faulty: AtomicBool::new(false),
            owned: AtomicBool::new(false),
            timeouts: Default::default(),
        }
    }

    // ---- reading

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

    /// Bytes that can be read without waiting.
    pub(crate) fn unread_bytes(&self) -> io::Result<u64> {
        lock(&self.read).ring.available().map_err(|fault| self.on_fault(fault))
    }

    #[inline]
    fn receive(&self, mut attempt: impl FnMut(&Self, &mut Reader) -> io::Result<usize>) -> io::Result<usize> {
        let mut reader = lock(&self.read);
        if self.shut.load(Ordering::Relaxed) & Side::Read.bit() == 0 {
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
        let mut patience = Patience::new(self.inner.policy, self.timeout(Side::Read));
        loop {
            // What arrived before the end is in the ring when it is looked at after the end was seen.
            let end = self.read_end();
            if self.shut.load(Ordering::Relaxed) & Side::Read.bit() != 0 {
                return Ok(0);
            }
            let count = attempt(self, reader)?;
            if count > 0 {
                return Ok(count);
            }
            match end {
                Some(End::Finished) => {
                    self.tell_end(reader);
                    return Ok(0);
                }
                Some(End::Reset(reason)) => return Err(StreamError::reset(reason)),
                None => {}
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

    #[inline]
    fn take(&self, reader: &mut Reader, buf: &mut [u8]) -> io::Result<usize> {
        let count = reader.ring.read_quietly(buf).map_err(|fault| self.on_fault(fault))?;
        if reader.unpublished() >= reader.ring_bytes / PUBLISH_SHARE {
            self.publish_or_tell(reader);
        }
        Ok(count)
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
    fn tell_room(&self, reader: &mut Reader) {
        if reader.untold() == 0 {
            return;
        }
        reader.publish();
        reader.told = reader.published;
        match &self.link {
            Link::Pair(end) => end.wake(Side::Write.bit()),
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

    fn read_end(&self) -> Option<End> {
        if self.faulty.load(Ordering::Relaxed) {
            return Some(End::Reset(Reason::AppFault));
        }
        if self.shut.load(Ordering::Relaxed) & Side::Read.bit() != 0 {
            return Some(End::Finished);
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

    // ---- writing

    pub(crate) fn write(&self, buf: &[u8]) -> io::Result<usize> {
        self.write_slices(&[IoSlice::new(buf)])
    }

    pub(crate) fn write_slices(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|b| b.is_empty()) {
            return Ok(0);
        }
        let mut ring = lock(&self.write);
        if let Some(end) = self.write_end() {
            return Err(write_error(end));
        }
        match self.put(&mut ring, bufs)? {
            0 => self.write_slowly(&mut ring, bufs),
            count => Ok(count),
        }
    }

    #[inline(never)]
    fn write_slowly(&self, ring: &mut RingWriter, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut patience = Patience::new(self.inner.policy, self.timeout(Side::Write));
        loop {
            self.wait(Side::Write, &mut patience, &mut |_| {
                !matches!(ring.free(), Ok(0)) || self.write_end().is_some()
            })?;
            if let Some(end) = self.write_end() {
                return Err(write_error(end));
            }
            let count = self.put(ring, bufs)?;
            if count > 0 {
                return Ok(count);
            }
        }
    }

    /// Puts in what fits and says so to the other side once.
    #[inline]
    fn put(&self, ring: &mut RingWriter, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for buf in bufs {
            let count = ring.write(buf).map_err(|fault| self.on_fault(fault))?;
            total += count;
            if count < buf.len() {
                break;
            }
        }
        if total > 0 {
            match &self.link {
                Link::Pair(end) => end.wake(Side::Read.bit()),
                Link::Lane(end) => self.wake_engine(end.ring()),
            }
        }
        Ok(total)
    }

    #[inline]
    fn write_end(&self) -> Option<End> {
        if self.faulty.load(Ordering::Relaxed) {
            return Some(End::Reset(Reason::AppFault));
        }
        if self.shut.load(Ordering::Relaxed) & Side::Write.bit() != 0 {
            return Some(End::Finished);
        }
        match &self.link {
            Link::Pair(end) => end.write_end(),
            Link::Lane(end) => {
                let lost = self.inner.lost();
                end.write_end().or(lost.map(End::Reset))
            }
        }
    }

    #[inline]
    fn wake_engine(&self, asleep: bool) {
        if asleep {
            self.inner.wake_engine();
        }
    }

    // ---- waiting

    /// Waits until `ready`, for a while by looking, then asleep. May return early; the caller looks again.
    fn wait(&self, side: Side, patience: &mut Patience, ready: &mut dyn FnMut(Look) -> bool) -> io::Result<()> {
        loop {
            match patience.pause() {
                Next::Look(look) if ready(look) => return Ok(()),
                Next::Look(_) => {}
                Next::GiveUp => return Err(io::Error::new(io::ErrorKind::TimedOut, "the stream's timeout is over")),
                Next::Block => {
                    if ready(Look::BeforeSleep) {
                        return Ok(());
                    }
                    self.arm(side);
                    let slept = self.inner.block(self.parker(side), patience.deadline(), &mut || ready(Look::Glance));
                    self.disarm(side);
                    return slept.map_err(SessionError::into);
                }
            }
        }
    }

    fn arm(&self, side: Side) {
        match &self.link {
            Link::Lane(end) => end.arm(side),
            Link::Pair(end) => end.arm(side),
        }
    }

    fn disarm(&self, side: Side) {
        match &self.link {
            Link::Lane(end) => end.disarm(side),
            Link::Pair(end) => end.disarm(side),
        }
    }

    fn parker(&self, side: Side) -> &Arc<Parker> {
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
    }

    // ---- state

    pub(crate) fn path(&self) -> PathKind {
        match self.link {
            Link::Lane(_) => PathKind::Lane,
            Link::Pair(_) => PathKind::Shm,
        }
    }

    /// The process at the other end, if it is on this host.
    pub(crate) fn peer_pid(&self) -> Option<u32> {
        match &self.link {
            Link::Lane(_) => None,
            Link::Pair(end) => Some(end.link.peer_pid),
        }
    }

    pub(crate) fn timeout(&self, side: Side) -> Option<Duration> {
        match self.timeouts[side as usize].load(Ordering::Relaxed) {
            0 => None,
            ns => Some(Duration::from_nanos(ns)),
        }
    }

    pub(crate) fn set_timeout(&self, side: Side, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a timeout of 0 is not allowed: use None for no timeout",
            ));
        }
        let ns = timeout.map_or(0, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
        self.timeouts[side as usize].store(ns, Ordering::Relaxed);
        Ok(())
    }

    /// The application has the connection now.
    pub(crate) fn set_owned(&self) {
        self.owned.store(true, Ordering::Relaxed);
    }

    /// Why the connection is broken, if it is.
    pub(crate) fn failure(&self) -> Option<Reason> {
        match self.read_end() {
            Some(End::Reset(reason)) => Some(reason),
            _ => None,
        }
    }

    // ---- ending

    /// Ends a direction. Bytes written before are still delivered.
    pub(crate) fn shut(&self, side: Side) -> io::Result<()> {
        self.inner.check_fork()?;
        if self.shut.fetch_or(side.bit(), Ordering::AcqRel) & side.bit() != 0 {
            return Ok(());
        }
        self.parker(side).notify();
        match side {
            Side::Read => self.raise(app_flag::STOP),
            Side::Write => {
                // A writer that is under way sees the bit and leaves; what it wrote lies before the FIN.
                let _ring = lock(&self.write);
                self.raise(app_flag::FIN);
            }
        }
        Ok(())
    }

    fn raise(&self, flags: u32) {
        match &self.link {
            Link::Pair(end) => end.raise(flags),
            Link::Lane(end) => {
                end.raise(flags);
                self.wake_engine(end.ring());
            }
        }
    }

    /// The other side's cursor is impossible: nothing of it is believed any more.
    #[cold]
    fn on_fault(&self, _fault: PeerFault) -> io::Error {
        self.faulty.store(true, Ordering::Relaxed);
        self.notify();
        StreamError::reset(Reason::AppFault)
    }
}

fn write_error(end: End) -> io::Error {
    match end {
        End::Finished => StreamError::broken_pipe(),
        End::Reset(reason) => StreamError::reset(reason),
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // The rings and the slot of a forked process's parent are the parent's.
        if self.inner.check_fork().is_err() {
            return;
        }
        let broken = matches!(self.read_end(), Some(End::Reset(_)));
        let shut = self.shut.load(Ordering::Relaxed) & Side::Read.bit() != 0;
        let faulty = self.faulty.load(Ordering::Relaxed);
        let reader = self.read.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // As TCP: who closes without having read what arrived tells the peer so by a reset. Who shut reading told it then.
        let unread = !shut && !broken && !matches!(reader.ring.available(), Ok(0));
        reader.publish();
        let abort = if faulty {
            Some(Reason::AppFault)
        } else if unread || !self.owned.load(Ordering::Relaxed) {
            Some(Reason::ResetByPeer)
        } else {
            None
        };
        match &self.link {
            Link::Lane(end) => {
                self.inner.forget_slot(end.slot());
                if end.close(abort.is_some()) {
                    self.inner.wake_engine();
                }
            }
            Link::Pair(end) => {
                end.close(self.id, abort);
                for connection in end.link.reap() {
                    self.inner.tell(&Request::PairClosed { connection });
                }
            }
        }
    }
}
