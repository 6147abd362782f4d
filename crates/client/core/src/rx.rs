//! Reading from a connection.
//!
//! Owns the consuming end of its ring, and when the writing side learns of the room. It must never report an end before
//! the bytes that came before it were read.

use shm::RingReader;

use crate::asked::Asked;
use crate::direct_rx::DirectRx;
use crate::inflow::Inflow;
use crate::{End, Endpoint, Side};

/// The head is published when this share of the ring was consumed, or the reader waits.
const PUBLISH_SHARE: u64 = 16;
/// The writing side is notified to look at the head when this share of the ring was consumed.
const TELL_SHARE: u64 = 4;

/// The consuming end of a connection, and what the writing side knows of it. Its methods take the [`Endpoint`] of the
/// same connection.
#[derive(Debug)]
pub struct Rx {
    ring: RingReader,
    ring_bytes: u64,
    /// The head that the writing side can see.
    published: u64,
    /// The head when the writing side was last notified.
    told: u64,
    inflow: Inflow,
    /// The peer switched to the stream's own TCP connection, and all that came before was read. Messages may come by either.
    direct: Option<Box<DirectRx>>,
    /// The end was reported to the engine, so that it can finish the connection.
    end_told: bool,
}

impl Rx {
    pub(crate) fn new(ring: RingReader, ring_bytes: u64) -> Self {
        Self { ring, ring_bytes, published: 0, told: 0, inflow: Inflow::default(), direct: None, end_told: false }
    }

    #[inline]
    fn unpublished(&self) -> u64 {
        self.ring.head().wrapping_sub(self.published)
    }

    /// A share of the ring: on one host of what was used of it at first, since a look at the head costs little there.
    #[inline]
    fn share_of(&self, at: &Endpoint, share: u64) -> u64 {
        let bytes = if at.is_lane() { self.ring.span_bytes() } else { self.ring_bytes };
        bytes / share
    }

    #[inline]
    fn untold(&self) -> u64 {
        self.ring.head().wrapping_sub(self.told)
    }

    /// Lets the writing side see what was consumed, without a word to it.
    #[inline]
    pub fn publish(&mut self) {
        if self.unpublished() > 0 {
            self.ring.publish();
            self.published = self.ring.head();
        }
    }

    /// Takes what is there, in pieces: the other side may fill the room of one while the next is copied. 0: nothing is
    /// there. It does not check for an end: call it if [`Endpoint::may_take`] says so, or let [`Rx::try_read`] do it.
    #[inline]
    pub fn take(&mut self, at: &Endpoint, buf: &mut [u8]) -> Result<usize, End> {
        if self.is_direct() {
            return Ok(self.take_direct(at, buf));
        }
        let mut total = 0;
        for piece in buf.chunks_mut(at.piece_bytes) {
            let count = self.ring.read_quietly(piece).map_err(|fault| at.on_fault(fault))?;
            total += count;
            self.inflow.on_taken(count as u64);
            if self.unpublished() >= self.share_of(at, PUBLISH_SHARE) {
                self.publish_or_tell(at);
            }
            if count < piece.len() {
                break;
            }
        }
        if total == 0 && self.follow(at)? {
            return Ok(self.take_direct(at, buf));
        }
        if total > 0 && at.direct().is_some() {
            at.note_asked(Asked::ByRing, matches!(self.ring.available(), Ok(0)));
        }
        Ok(total)
    }

    /// Copies what is there and leaves it; as [`Rx::take`] without a look at ends.
    pub fn peek(&mut self, at: &Endpoint, buf: &mut [u8]) -> Result<usize, End> {
        if self.available(at)? == 0 {
            return Ok(0);
        }
        if self.is_direct() {
            return Ok(self.peek_ahead(0, buf));
        }
        self.ring.peek(buf).map_err(|fault| at.on_fault(fault))
    }

    /// Bytes that are there. Of those that TCP holds, as many as are lent at a time.
    #[inline]
    pub fn available(&mut self, at: &Endpoint) -> Result<u64, End> {
        if !self.is_direct() {
            let bytes = self.ring.available().map_err(|fault| at.on_fault(fault))?;
            if bytes > 0 || !self.follow(at)? {
                return Ok(bytes);
            }
        }
        Ok(self.direct.as_mut().map_or(0, |direct| direct.stage()))
    }

    /// Whether a look would find something: bytes, or a ring that breaks the rules.
    #[inline]
    pub fn has_news(&mut self, at: &Endpoint) -> bool {
        match &mut self.direct {
            Some(direct) if !direct.is_on_ring => {
                // It may have found TCP's end just now, behind the lane's word.
                direct.has_news() || direct.is_spent() && at.read_end().is_some()
            }
            _ => !matches!(self.ring.available(), Ok(0)),
        }
    }

    /// As [`Rx::has_news`], for a caller that armed the stream's own TCP connection: what that has is told.
    #[inline]
    pub fn sees_news(&mut self) -> bool {
        match &self.direct {
            Some(direct) if !direct.is_on_ring => direct.is_staged(),
            _ => !matches!(self.ring.available(), Ok(0)),
        }
    }

    /// As [`Rx::has_news`], of the stream's own TCP connection: what a look finds there is taken, so that the read that
    /// follows asks the kernel no second time.
    pub fn stages_news(&mut self) -> bool {
        self.direct.as_mut().is_some_and(|direct| direct.stage() > 0 || direct.is_spent())
    }

    /// Whether the next bytes come by the stream's own TCP connection.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| !direct.is_on_ring)
    }

    /// Follows [`Next::OtherWay`](crate::Next::OtherWay), behind which the bytes come by the other way.
    pub fn change_way(&mut self, at: &Endpoint) -> Result<(), End> {
        // A peer that has no such connection, or no messages, cannot have said it.
        let direct = at.direct().filter(|direct| direct.carries_messages() && direct.is_committed());
        let Some(direct) = direct else { return Err(at.on_spoiled()) };
        let rx = self.direct.get_or_insert_with(|| Box::new(DirectRx::new(direct, true)));
        rx.is_on_ring = !rx.is_on_ring;
        direct.on_peer_switch();
        Ok(())
    }

    /// Goes on with TCP if the peer switched and all that came before was read. To be called when the ring is empty.
    #[inline]
    pub(crate) fn follow(&mut self, at: &Endpoint) -> Result<bool, End> {
        match (&mut self.direct, at.direct()) {
            (Some(direct), _) => {
                if direct.is_on_ring {
                    direct.look_for_end();
                }
                Ok(!direct.is_on_ring)
            }
            (None, None) => Ok(false),
            (None, Some(direct)) if direct.carries_messages() => {
                self.direct = Some(Box::new(DirectRx::new(direct, true)));
                Ok(false)
            }
            (None, Some(_)) => self.switch(at),
        }
    }

    #[cold]
    fn switch(&mut self, at: &Endpoint) -> Result<bool, End> {
        let Some(direct) = at.direct() else { return Ok(false) };
        let Some(from) = direct.advance() else { return Ok(false) };
        // Before the ring is looked at: what the peer wrote to it is there then.
        let is_finished = at.is_lane_finished();
        let available = self.ring.available().map_err(|fault| at.on_fault(fault))?;
        let end = self.ring.head().wrapping_add(available);
        if from > end {
            // More comes by the ring, unless the peer lied.
            return if is_finished { Err(at.on_spoiled()) } else { Ok(false) };
        }
        if from < end {
            return Err(at.on_spoiled());
        }
        if available == 0 {
            self.direct = Some(Box::new(DirectRx::new(direct, false)));
            self.tell_room(at);
        }
        Ok(available == 0)
    }

    /// What TCP has. A connection that broke is seen by the next look at the ends.
    #[inline(never)]
    fn take_direct(&mut self, at: &Endpoint, buf: &mut [u8]) -> usize {
        let Some(direct) = &mut self.direct else { return 0 };
        let count = direct.take(buf);
        if count > 0 {
            at.count_direct(Side::Read, direct.taken());
            at.note_asked(Asked::ByTcp, !direct.is_staged());
            self.inflow.on_taken(count as u64);
        }
        count
    }

    /// Copies bytes from `ahead` after the head, of those that [`Rx::available`] last returned, and leaves them in the
    /// ring; returns how many.
    pub fn peek_ahead(&self, ahead: u64, buf: &mut [u8]) -> usize {
        match &self.direct {
            Some(direct) if !direct.is_on_ring => direct.peek_ahead(ahead, buf),
            _ => self.ring.peek_ahead(ahead, buf),
        }
    }

    /// Takes up to `count` of the bytes that [`Rx::available`] last returned.
    pub fn consume(&mut self, at: &Endpoint, count: u64) {
        // Bytes that were lent before a fork are the parent's.
        if at.check_fork().is_err() {
            return;
        }
        if let Some(direct) = self.direct.as_mut().filter(|direct| !direct.is_on_ring) {
            direct.consume(count);
            return at.count_direct(Side::Read, direct.taken());
        }
        let taken = self.ring.consume_quietly(count);
        self.inflow.on_taken(taken);
        if self.unpublished() >= self.share_of(at, PUBLISH_SHARE) {
            self.publish_or_tell(at);
        }
    }

    /// One look with `attempt`, which takes or counts bytes: some, none yet (`None`), or how reading ended. What
    /// arrived before an end is given out before it.
    pub fn look(
        &mut self,
        at: &Endpoint,
        attempt: &mut dyn FnMut(&mut Self) -> Result<usize, End>,
    ) -> Result<Option<usize>, End> {
        // What arrived before the end is in the ring when it is looked at after the end was seen.
        let mut end = at.read_end();
        if at.may_take_before(end) {
            let count = attempt(self)?;
            if count > 0 {
                return Ok(Some(count));
            }
            if end.is_none() && self.direct.as_ref().is_some_and(|direct| direct.is_spent()) {
                // It is this look that found it. Messages may have come by the ring before it.
                end = at.read_end();
                if end.is_some() {
                    let count = attempt(self)?;
                    if count > 0 {
                        return Ok(Some(count));
                    }
                }
            }
        }
        match end {
            Some(end) => {
                if end == End::Finished {
                    self.tell_end(at);
                }
                Err(end)
            }
            None => Ok(None),
        }
    }

    /// Reads what is there: some bytes, none yet (`None`), or how reading ended. `buf` is not empty.
    pub fn try_read(&mut self, at: &Endpoint, buf: &mut [u8]) -> Result<Option<usize>, End> {
        self.look(at, &mut |rx| rx.take(at, buf))
    }

    /// Shows the writing side the room, and notifies it. It does this rarely, so that the writing side does not wake
    /// for each byte: only after a quarter of the ring. On a lane whose ring is half full it does it each time, because
    /// the notice takes longer.
    #[inline(never)]
    fn publish_or_tell(&mut self, at: &Endpoint) {
        let filled = self.ring.tail().wrapping_sub(self.published);
        let half_full = at.is_lane() && filled >= self.share_of(at, 2);
        if half_full || self.untold() >= self.share_of(at, TELL_SHARE) {
            self.tell_room(at);
        } else {
            self.publish();
        }
    }

    /// Shows the writing side all room. To be called before the reader waits, at the latest: a writer whose ring is
    /// smaller than the reader's may wait for room that is little for the reader.
    pub fn tell_room(&mut self, at: &Endpoint) {
        if self.untold() == 0 {
            return;
        }
        self.publish();
        self.told = self.published;
        at.tell_room();
    }

    fn tell_end(&mut self, at: &Endpoint) {
        if !self.end_told {
            self.end_told = true;
            self.publish();
            at.tell_end();
        }
    }

    /// The ring is empty and the reader is going to wait. Says whether it takes a stream: much at each of its last
    /// waits, while this side wrote nothing in between. A reader of a stream should sleep soon, so that the daemon has
    /// the processor.
    pub fn takes_stream(&mut self, at: &Endpoint) -> bool {
        self.inflow.on_wait(at.take_answered(), self.is_direct())
    }

    /// Gives the connection back as [`Endpoint`] does when it is dropped, but in order if the application had it
    /// (`is_owned`). Bytes that arrived and were not read make it a reset, as with TCP.
    pub fn close(&mut self, at: &Endpoint, is_owned: bool) {
        if at.check_fork().is_err() {
            return;
        }
        self.publish();
        at.close_with(|| !matches!(self.available(at), Ok(0)), is_owned);
    }
}
