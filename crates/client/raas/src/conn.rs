//! One connection as threads and tasks share it: the core's endpoint and rings, each ring behind a lock, and who waits.
//!
//! Owns the locks, the timeouts and the mode. It must never take a lock that another connection takes while there is
//! data to read or room to write.
//!
//! Reading delivers all bytes that arrived before the peer finished, reset or died, and then reports the end. Writing
//! reports a reset at once.

pub(crate) mod lent;
#[cfg(feature = "tokio")]
mod polling;
mod readiness;
mod reading;
mod records;
mod waiting;
mod writing;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use control::Reason;
use raas_core::{Connection, End, Endpoint, Key, Rx, Side, Tx};

use crate::attachment::Attachment;
use crate::bell::Bell;
use crate::error::{SessionError, StreamError};
use crate::flags::Flags;
use crate::park::lock;
use crate::peer_timeout::peer_timeout_ms;
#[cfg(feature = "tokio")]
use crate::task_patience::Conversation;

/// One end of a connection. Dropping it closes.
#[derive(Debug)]
pub(crate) struct Conn {
    endpoint: Endpoint,
    rx: Mutex<Rx>,
    tx: Mutex<Tx>,
    pub(crate) attachment: Arc<Attachment>,
    pub(crate) bell: Arc<Bell>,
    nonblocking: AtomicBool,
    /// Bytes of large reads and writes since this side last looked whether the daemon says something.
    unlooked: AtomicU64,
    #[cfg(feature = "tokio")]
    conversation: Conversation,
    /// Nanoseconds, 0 for none.
    timeouts: [AtomicU64; 2],
    /// The verb of calls that name none: a value of `shm::slot_verb`.
    verb: AtomicU32,
}

impl Conn {
    /// The application has the connection: news of it is for the waiters here.
    pub(crate) fn adopt(attachment: &Arc<Attachment>, connection: Connection) -> Arc<Self> {
        let Connection { endpoint, rx, tx } = connection;
        let bell = Arc::new(Bell::default());
        if let Some(place) = endpoint.direct_place() {
            let _ = bell.direct.set(Arc::clone(place));
        }
        lock(&attachment.bells).set(endpoint.key(), &bell);
        Arc::new(Self {
            endpoint,
            rx: Mutex::new(rx),
            tx: Mutex::new(tx),
            attachment: Arc::clone(attachment),
            bell,
            nonblocking: AtomicBool::new(false),
            unlooked: AtomicU64::new(0),
            #[cfg(feature = "tokio")]
            conversation: Conversation::default(),
            timeouts: Default::default(),
            verb: AtomicU32::new(0),
        })
    }

    /// The core's part, for what needs no ring.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Refuses a forked child.
    pub(crate) fn check_fork(&self) -> Result<(), SessionError> {
        Ok(self.endpoint.check_fork()?)
    }

    /// As [`Conn::lock_ring`], for a call that holds no other lock: it first looks whether the daemon has died.
    #[inline]
    fn begin<'a, T>(&self, ring: &'a Mutex<T>) -> io::Result<MutexGuard<'a, T>> {
        if self.attachment.returning.is_dead() {
            self.attachment.follow_death();
        }
        self.lock_ring(ring)
    }

    /// The lock of a ring. A forked child is refused where it is taken: perhaps by a thread that only the parent has.
    #[inline]
    fn lock_ring<'a, T>(&self, ring: &'a Mutex<T>) -> io::Result<MutexGuard<'a, T>> {
        match ring.try_lock() {
            Ok(guard) => Ok(guard),
            Err(tried) => self.lock_slowly(ring, tried),
        }
    }

    #[cold]
    fn lock_slowly<'a, T>(
        &self,
        ring: &'a Mutex<T>,
        tried: TryLockError<MutexGuard<'a, T>>,
    ) -> io::Result<MutexGuard<'a, T>> {
        match tried {
            TryLockError::Poisoned(poisoned) => Ok(poisoned.into_inner()),
            TryLockError::WouldBlock => {
                self.check_fork()?;
                Ok(lock(ring))
            }
        }
    }

    // ---- settings

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
        Ok(self.endpoint.set_peer_timeout(ms).map_err(SessionError::from)?)
    }

    /// The verb of all that is written where a call names none.
    pub(crate) fn set_verb(&self, flags: Flags) -> io::Result<()> {
        self.verb.store(flags.slot_verb(), Ordering::Relaxed);
        self.use_verb(flags)
    }

    /// The verb of what is written from now on: the one named, or that of the connection.
    pub(crate) fn use_verb(&self, flags: Flags) -> io::Result<()> {
        let named = flags.slot_verb();
        let verb = if named == 0 { self.verb.load(Ordering::Relaxed) } else { named };
        Ok(self.endpoint.set_verb(verb).map_err(SessionError::from)?)
    }

    pub(crate) fn peer_timeout(&self) -> Option<Duration> {
        Some(self.endpoint.peer_timeout()).filter(|ms| *ms != 0).map(|ms| Duration::from_millis(ms.into()))
    }

    // ---- ending

    /// Why the connection is broken, if it is.
    pub(crate) fn failure(&self) -> Option<Reason> {
        self.endpoint.failure()
    }

    /// Ends a direction. Bytes written before are still delivered.
    pub(crate) fn shut(&self, side: Side) -> io::Result<()> {
        if !self.endpoint.mark_shut(side).map_err(SessionError::from)? {
            return Ok(());
        }
        if !self.bell.parker(side).notify() {
            self.attachment.kick();
        }
        self.bell.poller.tell();
        match side {
            Side::Read => self.endpoint.say_shut(side),
            Side::Write => {
                // A writer that is under way sees the mark and leaves; what it wrote lies before the end.
                let _tx = self.lock_ring(&self.tx)?;
                self.endpoint.say_shut(side);
            }
        }
        Ok(())
    }

    /// What a call fails with. A peer that broke the rules ends both directions, so a waiter in the other one is
    /// notified.
    #[cold]
    fn failed(&self, end: End) -> io::Error {
        if end == End::Reset(Reason::AppFault) {
            self.bell.notify();
            self.attachment.kick();
        }
        said(end)
    }
}

/// An end in words.
fn said(end: End) -> io::Error {
    match end {
        End::Finished => StreamError::broken_pipe(),
        End::Reset(reason) => StreamError::reset(reason),
        End::Forked(forked) => SessionError::from(forked).into(),
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // The rings, the slot and the tables are those of a forked process's parent.
        if self.check_fork().is_err() {
            return;
        }
        let key = self.endpoint.key();
        lock(&self.attachment.bells).forget(key);
        self.rx.get_mut().unwrap_or_else(PoisonError::into_inner).close(&self.endpoint, true);
        if let Key::PairSlot { pair, .. } = key {
            self.attachment.reap(pair);
        }
    }
}
