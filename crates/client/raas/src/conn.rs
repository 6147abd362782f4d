//! One connection as the application sees it: reading, writing, waiting, closing, whichever path it takes.
//!
//! Owns the two rings and the order "state first, then ring" by which the last bytes before an end are never lost. It must
//! never take a lock that another connection takes while there is data to read or room to write.
//!
//! Reading delivers all bytes that arrived before the peer finished, reset or died; then the end is told. Writing tells a
//! reset at once.

mod inflow;
#[cfg(feature = "tokio")]
mod polling;
mod readiness;
mod reading;
mod waiting;
mod writing;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::{PathKind, Reason, Request};
pub(crate) use reading::Reader;
use shm::{PeerFault, RingReader, RingWriter, app_flag};

use crate::inner::Inner;
use crate::lane::LaneEnd;
use crate::pair::PairEnd;
use crate::park::{Parker, lock};
use crate::poller::Poller;
use crate::{SessionError, StreamError};

/// Data is copied in pieces of this share of the ring.
const PIECE_SHARE: u64 = 8;

/// The peer broke the rules of the rings: a bit of a connection's state beside those of [`Side`].
const FAULTY: u32 = 4;

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
            Self::Read => shm::waiting::READABLE,
            Self::Write => shm::waiting::WRITABLE,
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
    /// Longest copy between two messages to the other side.
    piece_bytes: usize,
    tx_bytes: usize,
    /// This side wrote since its reader last waited.
    answered: AtomicBool,
    parkers: [Arc<Parker>; 2],
    pub(crate) poller: Arc<Poller>,
    nonblocking: AtomicBool,
    /// Directions that this side shut, as bits of [`Side`], and [`FAULTY`].
    state: AtomicU32,
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
            read: Mutex::new(Reader::new(reader, rx_bytes)),
            tx_bytes: usize::try_from(writer.capacity()).unwrap_or(usize::MAX),
            write: Mutex::new(writer),
            piece_bytes: usize::try_from(rx_bytes / PIECE_SHARE).unwrap_or(usize::MAX).max(1),
            answered: AtomicBool::new(false),
            parkers: Default::default(),
            poller: Arc::default(),
            nonblocking: AtomicBool::new(false),
            state: AtomicU32::new(0),
            owned: AtomicBool::new(false),
            timeouts: Default::default(),
        }
    }

    /// Refuses a forked child.
    pub(crate) fn check_fork(&self) -> Result<(), SessionError> {
        self.inner.check_fork()
    }

    // ---- state

    /// Whether any of these bits of the state is set.
    #[inline]
    fn is(&self, bits: u32) -> bool {
        self.state.load(Ordering::Relaxed) & bits != 0
    }

    /// The end that this side made.
    fn own_end(&self) -> End {
        if self.is(FAULTY) { End::Reset(Reason::AppFault) } else { End::Finished }
    }

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

    /// Between processes of one host there is no daemon that could be silent.
    pub(crate) fn set_peer_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let ms = peer_timeout_ms(timeout)?;
        self.inner.check_fork()?;
        if let Link::Lane(end) = &self.link {
            end.set_peer_timeout(ms);
            self.wake_engine(end.ring());
        }
        Ok(())
    }

    pub(crate) fn peer_timeout(&self) -> Option<Duration> {
        match &self.link {
            Link::Lane(end) => {
                Some(end.peer_timeout()).filter(|ms| *ms != 0).map(|ms| Duration::from_millis(ms.into()))
            }
            Link::Pair(_) => None,
        }
    }

    /// Of a datagram socket: see [`LaneEnd::paths_changed`].
    pub(crate) fn paths_changed(&self) -> u64 {
        match &self.link {
            Link::Lane(end) => end.paths_changed(),
            Link::Pair(_) => 0,
        }
    }

    /// The application has the connection now.
    pub(crate) fn set_owned(&self) {
        self.owned.store(true, Ordering::Relaxed);
    }

    /// Why the connection is broken, if it is: in either direction, for one that ended in order stays so.
    pub(crate) fn failure(&self) -> Option<Reason> {
        let broken = |end| if let Some(End::Reset(reason)) = end { Some(reason) } else { None };
        broken(self.read_end()).or_else(|| broken(self.write_end()))
    }

    // ---- ending

    /// Ends a direction. Bytes written before are still delivered.
    pub(crate) fn shut(&self, side: Side) -> io::Result<()> {
        self.inner.check_fork()?;
        if self.state.fetch_or(side.bit(), Ordering::AcqRel) & side.bit() != 0 {
            return Ok(());
        }
        if !self.parker(side).notify() {
            self.inner.kick();
        }
        self.poller.tell();
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

    #[inline]
    fn wake_engine(&self, asleep: bool) {
        if asleep {
            self.inner.wake_engine();
        }
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
        self.state.fetch_or(FAULTY, Ordering::Relaxed);
        self.notify();
        self.inner.kick();
        StreamError::reset(Reason::AppFault)
    }
}

/// Whole milliseconds, not less than asked for; 0 for none.
pub(crate) fn peer_timeout_ms(timeout: Option<Duration>) -> io::Result<u32> {
    match timeout {
        Some(Duration::ZERO) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a peer timeout of 0 is not allowed: use None to wait as long as the daemons do",
        )),
        Some(t) => Ok(u32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)),
        None => Ok(0),
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // The rings and the slot of a forked process's parent are the parent's.
        if self.inner.check_fork().is_err() {
            return;
        }
        let broken = matches!(self.read_end(), Some(End::Reset(_)));
        let (shut, faulty) = (self.is(Side::Read.bit()), self.is(FAULTY));
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
