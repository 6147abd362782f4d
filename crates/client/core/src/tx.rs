//! Writing to a connection.
//!
//! Owns the producing end of its ring. It must never hold bytes back: what a write took is on its way when it returns.

use std::fmt;
use std::io::IoSlice;
use std::ops::DerefMut;
use std::sync::Arc;

use shm::RingWriter;

use crate::direct_messages::{CHANGE, Way};
use crate::direct_tx::{DirectTx, offered};
use crate::{End, Endpoint, Life};

/// A stream that has written so much and still has no TCP connection of its own does not wait for one any more.
const HELD_UNTIL: u64 = 1 << 20;

/// The producing end of a connection. Its methods take the [`Endpoint`] of the same connection.
#[derive(Debug)]
pub struct Tx {
    ring: RingWriter,
    direct: DirectTx,
    life: Arc<Life>,
}

impl Tx {
    pub(crate) fn new(ring: RingWriter, life: Arc<Life>) -> Self {
        Self { ring, direct: DirectTx::ring(), life }
    }

    /// Puts in one buffer of at most a piece, and notifies the other side. 0: there is no room. The caller must check
    /// [`Endpoint::write_end`] before.
    #[inline]
    pub fn put_piece(&mut self, at: &Endpoint, buf: &[u8]) -> Result<usize, End> {
        at.note_answer();
        if at.direct().is_some()
            && let Some(count) = self.direct.put(at, self.ring.tail(), &[IoSlice::new(buf)])?
        {
            return Ok(count);
        }
        let count = self.ring.write(&buf[..self.held_room(at).min(buf.len())]).map_err(|fault| at.on_fault(fault))?;
        if count > 0 {
            at.tell_written(count as u64, self.ring.tail());
        } else {
            self.direct.on_full(at, buf.len());
        }
        Ok(count)
    }

    /// Whether a buffer of so many bytes goes in as one piece.
    #[inline]
    pub fn is_piece(at: &Endpoint, len: usize) -> bool {
        len <= at.piece_bytes
    }

    /// Puts in what fits and says so to the other side: at the end, and after each piece, so that the other side works
    /// on one while the next is copied. 0: there is no room. The caller looked at [`Endpoint::write_end`] before.
    #[inline]
    pub fn put(&mut self, at: &Endpoint, bufs: &[IoSlice<'_>]) -> Result<usize, End> {
        at.note_answer();
        if at.direct().is_some()
            && let Some(count) = self.direct.put(at, self.ring.tail(), bufs)?
        {
            return Ok(count);
        }
        let (mut total, mut untold) = (0, 0);
        let most = self.held_room(at);
        'all: for buf in bufs {
            for piece in buf.chunks(at.piece_bytes) {
                let allowed = piece.len().min(most - total);
                let count = self.ring.write(&piece[..allowed]).map_err(|fault| at.on_fault(fault))?;
                total += count;
                untold += count;
                if count < piece.len() {
                    break 'all;
                }
                if untold >= at.piece_bytes {
                    at.tell_written(untold as u64, self.ring.tail());
                    untold = 0;
                }
            }
        }
        if untold > 0 {
            at.tell_written(untold as u64, self.ring.tail());
        }
        if total == 0 {
            self.direct.on_full(at, offered(bufs));
        }
        Ok(total)
    }

    /// Sends a message, which has `len` bytes, at most [`Endpoint::tx_bytes`]: whole, or nothing. False: there is no
    /// room for all of it yet. The connection must be one of messages ([`crate::DirectPlace::carry_messages`]). `may_wait`: the
    /// caller may be held up; one that may not has its messages go by the ring, because a peer that breaks the rules can
    /// fill TCP.
    pub fn put_message(
        &mut self,
        at: &Endpoint,
        bufs: &[IoSlice<'_>],
        len: usize,
        may_wait: bool,
    ) -> Result<bool, End> {
        if let Some(end) = at.write_end() {
            return Err(end);
        }
        at.note_answer();
        if let Some(direct) = at.direct()
            && let Way::Tcp { is_new } = self.direct.way_of_message(at, direct, len, may_wait)?
            && (!is_new || self.put_in_ring(at, &[IoSlice::new(&CHANGE)], CHANGE.len())?)
        {
            self.direct.send_message(at, direct, bufs, len)?;
            return Ok(true);
        }
        self.put_in_ring(at, bufs, len)
    }

    /// Puts all of `len` bytes into the ring, or nothing.
    fn put_in_ring(&mut self, at: &Endpoint, bufs: &[IoSlice<'_>], len: usize) -> Result<bool, End> {
        let Ok(mut room) = Reserved::in_ring(&mut *self, at, len)? else { return Ok(false) };
        room.put_all(at, bufs);
        Ok(true)
    }

    /// Bytes that may be written now, apart from the room in the ring.
    #[inline]
    fn held_room(&self, at: &Endpoint) -> usize {
        let tail = self.ring.tail();
        if tail >= HELD_UNTIL {
            return usize::MAX;
        }
        at.held_room(tail).map_or(usize::MAX, |room| usize::try_from(room).unwrap_or(usize::MAX))
    }

    /// Writes what fits: some bytes, none yet (`None`), or why writing is over. `bufs` are not all empty.
    pub fn try_write(&mut self, at: &Endpoint, bufs: &[IoSlice<'_>]) -> Result<Option<usize>, End> {
        if let Some(end) = at.write_end() {
            return Err(end);
        }
        let count = self.put(at, bufs)?;
        Ok((count > 0).then_some(count))
    }

    /// Whether a write of `len` bytes would find room, or a ring that breaks the rules.
    #[inline]
    pub fn has_room(&mut self, len: u64) -> bool {
        if let Some(has_room) = self.direct.has_room() {
            return has_room;
        }
        !matches!(self.ring.free(), Ok(free) if free < len)
    }

    /// Room from which on a program is told that it may write, where it expects what kernel TCP does
    /// ([`RingWriter::writable_from`]).
    pub fn writable_from(&self) -> u64 {
        self.ring.writable_from()
    }

    /// Whether a write of `len` bytes would go somewhere, for a caller that armed the stream's own TCP connection: room
    /// there is told.
    #[inline]
    pub fn sees_room(&mut self, at: &Endpoint, len: u64) -> bool {
        !self.is_direct() && self.may_write(at, len)
    }

    /// Whether a write of `len` bytes would go somewhere: into the ring, or to the stream's own TCP connection.
    #[inline]
    pub(crate) fn may_write(&mut self, at: &Endpoint, len: u64) -> bool {
        (self.held_room(at) > 0 && self.has_room(len)) || self.direct.may_switch(at)
    }

    /// Leaves at most so many bytes unread by the peer from now on, and stays in the ring, where they are counted. A
    /// direction that has its own TCP connection already has that connection's buffers. `None`: as many as the ring
    /// holds.
    pub fn set_unread_max(&mut self, bytes: Option<u64>) {
        if bytes.is_some() {
            self.direct.pin();
        }
        self.ring.set_unread_max(bytes.unwrap_or(u64::MAX));
    }

    /// Whether bytes leave by the stream's own TCP connection.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.direct.is_socket()
    }

    /// Bytes that can be written now.
    pub fn room(&mut self, at: &Endpoint) -> Result<u64, End> {
        self.ring.free().map_err(|fault| at.on_fault(fault))
    }

    /// Bytes written that the daemon has not taken out of the ring yet; 0 between processes of one host.
    pub fn untaken(&self, at: &Endpoint) -> u64 {
        at.untaken(self.ring.tail())
    }
}

/// Room in the transmit ring, kept for its holder: while it stands nothing else is written, and what is written ahead
/// stays until it is committed. `T` is how the holder has the [`Tx`]: by reference, or by the guard of a lock.
pub struct Reserved<T: DerefMut<Target = Tx>> {
    /// None: given back.
    tx: Option<T>,
    /// What was written ahead, and how much may be, where the direction has left the ring.
    ahead: Option<(Vec<u8>, usize)>,
}

impl<T: DerefMut<Target = Tx>> Reserved<T> {
    /// One look for `len` bytes, at most [`Endpoint::tx_bytes`]: the room, `tx` back if there is none yet, or why
    /// writing is over.
    pub fn try_new(mut tx: T, at: &Endpoint, len: usize) -> Result<Result<Self, T>, End> {
        if let Some(end) = at.write_end() {
            return Err(end);
        }
        tx.direct.pin();
        tx.direct.leave(at)?;
        if let Some(has_room) = tx.direct.has_room() {
            let ahead = Some((Vec::with_capacity(len), len));
            return Ok(if has_room { Ok(Self { tx: Some(tx), ahead }) } else { Err(tx) });
        }
        Self::in_ring(tx, at, len)
    }

    /// One look for room in the ring.
    fn in_ring(mut tx: T, at: &Endpoint, len: usize) -> Result<Result<Self, T>, End> {
        let free = tx.ring.free_for(len as u64).map_err(|fault| at.on_fault(fault))?;
        if free >= len as u64 && tx.ring.hold() { Ok(Ok(Self { tx: Some(tx), ahead: None })) } else { Ok(Err(tx)) }
    }

    /// Copies `bytes` to `ahead` bytes behind what was committed. False: it lies beyond the room, and nothing was
    /// written.
    pub fn write_ahead(&mut self, ahead: u64, bytes: &[u8]) -> bool {
        if let Some((kept, max)) = &mut self.ahead {
            let from = usize::try_from(ahead).unwrap_or(usize::MAX);
            let Some(end) = from.checked_add(bytes.len()).filter(|end| end <= max) else { return false };
            if kept.len() < end {
                kept.resize(end, 0);
            }
            kept[from..end].copy_from_slice(bytes);
            return true;
        }
        self.tx().is_some_and(|tx| tx.ring.write_ahead(ahead, bytes))
    }

    /// The ring, unless this is a forked child, whose parent's it is.
    fn tx(&mut self) -> Option<&mut Tx> {
        self.tx.as_deref_mut().filter(|tx| tx.life.check_fork().is_ok())
    }

    /// Gives the ring back. What was written ahead and not committed is not sent.
    pub fn into_inner(mut self) -> T {
        self.let_go();
        self.tx.take().expect("it is given back once")
    }

    fn let_go(&mut self) {
        if self.ahead.is_some() {
            return;
        }
        if let Some(tx) = self.tx() {
            tx.ring.let_go();
        }
    }

    /// Sends the next `count` bytes that were written ahead. False: there is not so much room.
    pub fn commit(&mut self, at: &Endpoint, count: u64) -> bool {
        if self.ahead.is_some() {
            return self.commit_direct(at, count);
        }
        let tail = self.tx().and_then(|tx| tx.ring.commit(count).then(|| tx.ring.tail()));
        if let Some(tail) = tail
            && count > 0
        {
            at.note_answer();
            at.tell_written(count, tail);
        }
        tail.is_some()
    }

    /// As [`Reserved::commit`], by TCP: it waits until all is taken.
    #[cold]
    fn commit_direct(&mut self, at: &Endpoint, count: u64) -> bool {
        let Some((mut kept, max)) = self.ahead.take() else { return false };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let is_sent = match (kept.get(..count), self.tx()) {
            (Some(bytes), Some(tx)) => {
                at.note_answer();
                tx.direct.send_all(at, bytes)
            }
            _ => false,
        };
        kept.drain(..count.min(kept.len()));
        self.ahead = Some((kept, max.saturating_sub(count)));
        is_sent
    }

    /// Sends all of `bufs`, for which the room was reserved: piece by piece, so that the other side works on one while
    /// the next is copied.
    pub fn put_all(&mut self, at: &Endpoint, bufs: &[IoSlice<'_>]) {
        let mut ahead = 0;
        for buf in bufs {
            for piece in buf.chunks(at.piece_bytes) {
                let is_in = self.write_ahead(ahead as u64, piece);
                debug_assert!(is_in || at.check_fork().is_err(), "the room was reserved");
                ahead += piece.len();
                if ahead >= at.piece_bytes {
                    self.commit(at, ahead as u64);
                    ahead = 0;
                }
            }
        }
        self.commit(at, ahead as u64);
    }
}

impl<T: DerefMut<Target = Tx>> Drop for Reserved<T> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl<T: DerefMut<Target = Tx>> fmt::Debug for Reserved<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reserved").field(&self.tx.as_deref()).finish()
    }
}
