//! The cursor algorithms of both ends of a ring, over any memory.
//!
//! Owns the order of copies and cursors. It must never read back a cursor that it published.
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::span::Span;
use super::{PeerFault, check_cursor};
use crate::sync::AtomicWord;

/// How a ring of this producer grows, and the word that shows the place to the other side.
#[derive(Debug)]
enum Growth<W> {
    /// It does not.
    Never,
    /// The producer chooses, and stores the place there.
    Chosen(W),
    /// The engine chooses for it, and stores the place there.
    Told(W),
}

/// The cursor algorithm of the producing end, over any memory.
#[derive(Debug)]
pub(crate) struct Producer<W> {
    tail_word: W,
    head_word: W,
    growth: Growth<W>,
    pub(super) tail: u64,
    pub(super) head: u64,
    span: Span,
    /// Most bytes that this producer leaves unread, whatever the ring holds.
    unread_max: u64,
    /// Where the next byte goes, and how many bytes from there on are known to be free and to lie together. A write of
    /// no more bytes needs no look at the peer's line or at the span.
    place: u64,
    run: u64,
}

impl<W: AtomicWord<u64>> Producer<W> {
    pub(crate) fn new(tail_word: W, head_word: W, tail: u64, head: u64, ring_bytes: u64) -> Self {
        tail_word.store(tail, Ordering::Release);
        let span = Span::fixed(ring_bytes);
        Self::over((tail_word, head_word, Growth::Never), tail, head, span)
    }

    /// As `new`, for an empty ring that may grow. The words start at their first values.
    pub(crate) fn growing((tail_word, head_word, grown_word): (W, W, W), at: u64, span: Span) -> Self {
        grown_word.store(0, Ordering::Relaxed);
        tail_word.store(at, Ordering::Release);
        Self::over((tail_word, head_word, Growth::Chosen(grown_word)), at, at, span)
    }

    /// As `growing`, of a ring whose engine stores to `grown_word` where it grows.
    pub(crate) fn growing_when_told((tail_word, head_word, grown_word): (W, W, W), at: u64, span: Span) -> Self {
        tail_word.store(at, Ordering::Release);
        Self::over((tail_word, head_word, Growth::Told(grown_word)), at, at, span)
    }

    fn over((tail_word, head_word, growth): (W, W, Growth<W>), tail: u64, head: u64, span: Span) -> Self {
        Self { tail_word, head_word, growth, tail, head, span, unread_max: u64::MAX, place: 0, run: 0 }
    }

    /// From now on `write` leaves at most so many bytes unread.
    pub(super) fn set_unread_max(&mut self, bytes: u64) {
        (self.unread_max, self.run) = (bytes, 0);
    }

    #[inline]
    pub(crate) fn free(&mut self) -> Result<u64, PeerFault> {
        // PAIRS WITH the release store of the head in Consumer::consume: the consumer's copies out of the bytes before
        // this head are done, they may be written over.
        let seen = self.head_word.load(Ordering::Acquire);
        self.head = check_cursor("head", self.head, seen, self.tail, self.span.full())?;
        if self.span.may_grow()
            && let Growth::Told(word) = &self.growth
        {
            // The place lies beyond all that this producer may have written before it knows it, so it may see it early.
            self.span.on_told(word.load(Ordering::Relaxed), self.tail)?;
            self.run = 0;
        }
        if self.known_free() == 0 {
            // Who waits for room before it writes finds it too.
            self.on_short(1);
        }
        Ok(self.known_room())
    }

    /// Grows a ring that could never have room for `count`.
    pub(super) fn make_way(&mut self, count: u64) {
        if count > self.span.fill_max() {
            self.grow();
        }
    }

    /// There is too little room for `len` bytes. The ring grows, unless it is this producer that wants no more in it.
    #[cold]
    fn on_short(&mut self, len: u64) {
        if self.known_free() < len.min(self.known_allowed()) {
            self.grow();
        }
    }

    fn grow(&mut self) {
        if let Growth::Chosen(word) = &self.growth
            && let Some(at) = self.span.grow(self.head)
        {
            // PAIRS WITH the acquire load of the tail in Consumer::available: a thread that sees a tail beyond `at`
            // sees this.
            word.store(at, Ordering::Relaxed);
            // The next byte may lie elsewhere now.
            self.run = 0;
        }
    }

    /// Most bytes that will ever be unread. None: not before the ring has grown.
    pub(super) fn final_fill(&self) -> Option<u64> {
        let is_final = !self.span.may_grow() || self.unread_max <= self.span.fill_max();
        is_final.then(|| self.span.full().min(self.unread_max))
    }

    #[inline]
    pub(super) fn known_free(&self) -> u64 {
        self.span.room(self.tail, self.head)
    }

    /// Bytes that may be written before as many are unread as this producer leaves.
    #[inline]
    fn known_allowed(&self) -> u64 {
        self.unread_max.saturating_sub(self.tail.wrapping_sub(self.head))
    }

    #[inline]
    fn known_room(&self) -> u64 {
        self.known_free().min(self.known_allowed())
    }

    #[inline]
    pub(crate) fn write(&mut self, len: usize, mut copy: impl FnMut(u64, Range<usize>)) -> Result<usize, PeerFault> {
        let bytes = len as u64;
        if bytes > self.run {
            return self.write_anew(len, copy);
        }
        if len > 0 {
            copy(self.place, 0..len);
            self.place += bytes;
            self.run -= bytes;
            self.publish(bytes);
        }
        Ok(len)
    }

    /// As `write`, with a look at what is free and where.
    fn write_anew(&mut self, len: usize, copy: impl FnMut(u64, Range<usize>)) -> Result<usize, PeerFault> {
        // The peer's line is touched only when the room known from last time is too small.
        if self.known_room() < len as u64 && self.free()? < len as u64 {
            self.on_short(len as u64);
        }
        let count = len.min(usize::try_from(self.known_room()).unwrap_or(usize::MAX));
        if count > 0 {
            self.span.pieces(self.tail, count, copy);
            self.publish(count as u64);
        }
        let (place, together) = self.span.place(self.tail);
        (self.place, self.run) = (place, together.min(self.known_room()));
        Ok(count)
    }

    #[inline]
    fn publish(&mut self, count: u64) {
        self.tail = self.tail.wrapping_add(count);
        // PAIRS WITH the acquire load of the tail in Consumer::available: a thread that sees it sees the bytes before
        // it.
        self.tail_word.store(self.tail, Ordering::Release);
    }
}

impl<W: AtomicWord<u64>> Producer<W> {
    /// Copies behind the tail, within the known room, where the consumer does not look before the tail has moved.
    pub(super) fn write_ahead(&self, ahead: u64, len: usize, copy: impl FnMut(u64, Range<usize>)) -> bool {
        let fits = ahead.checked_add(len as u64).is_some_and(|end| end <= self.known_free());
        if fits && len > 0 {
            self.span.pieces(self.tail.wrapping_add(ahead), len, copy);
        }
        fits
    }

    pub(super) fn commit(&mut self, count: u64) -> bool {
        let fits = count <= self.known_free();
        if fits && count > 0 {
            self.run = 0;
            self.publish(count);
        }
        fits
    }
}

/// The cursor algorithm of the consuming end, over any memory.
#[derive(Debug)]
pub(crate) struct Consumer<W> {
    tail_word: W,
    head_word: W,
    grown_word: Option<W>,
    pub(super) tail: u64,
    pub(super) head: u64,
    pub(super) span: Span,
}

impl<W: AtomicWord<u64>> Consumer<W> {
    pub(crate) fn new(tail_word: W, head_word: W, at: u64, ring_bytes: u64) -> Self {
        head_word.store(at, Ordering::Release);
        Self { tail_word, head_word, grown_word: None, tail: at, head: at, span: Span::fixed(ring_bytes) }
    }

    /// As `new`, of a ring that may grow.
    pub(crate) fn growing((tail_word, head_word, grown_word): (W, W, W), at: u64, span: Span) -> Self {
        head_word.store(at, Ordering::Release);
        Self { tail_word, head_word, grown_word: Some(grown_word), tail: at, head: at, span }
    }

    #[inline]
    pub(crate) fn available(&mut self) -> Result<u64, PeerFault> {
        // PAIRS WITH the release store of the tail in Producer::write: the bytes before this tail are in the ring.
        let seen = self.tail_word.load(Ordering::Acquire);
        if self.span.may_grow()
            && let Some(word) = &self.grown_word
        {
            self.span.on_told(word.load(Ordering::Relaxed), self.head)?;
        }
        let limit = self.head.wrapping_add(self.span.fill_max());
        self.tail = check_cursor("tail", self.tail, seen, limit, self.span.fill_max())?;
        Ok(self.tail.wrapping_sub(self.head))
    }

    #[inline]
    pub(crate) fn peek(&mut self, len: usize, copy: impl FnMut(u64, Range<usize>)) -> Result<usize, PeerFault> {
        let known = self.tail.wrapping_sub(self.head);
        let there = if known < len as u64 { self.available()? } else { known };
        let count = len.min(usize::try_from(there).unwrap_or(usize::MAX));
        if count > 0 {
            self.span.pieces(self.head, count, copy);
        }
        Ok(count)
    }

    /// As `peek`, of bytes further on, and without a look at the producer's word.
    pub(super) fn peek_ahead(&self, ahead: u64, len: usize, copy: impl FnMut(u64, Range<usize>)) -> usize {
        let known = self.tail.wrapping_sub(self.head).saturating_sub(ahead);
        let count = len.min(usize::try_from(known).unwrap_or(usize::MAX));
        if count > 0 {
            self.span.pieces(self.head.wrapping_add(ahead), count, copy);
        }
        count
    }

    #[inline]
    pub(crate) fn consume(&mut self, count: u64) -> u64 {
        let count = count.min(self.tail.wrapping_sub(self.head));
        if count > 0 {
            self.head = self.head.wrapping_add(count);
            self.publish();
        }
        count
    }

    /// Moves the own head by what `peek` just copied, without telling the producer.
    #[inline]
    pub(crate) fn advance(&mut self, count: u64) {
        self.head = self.head.wrapping_add(count);
    }

    #[inline]
    pub(crate) fn publish(&self) {
        // PAIRS WITH the acquire load of the head in Producer::free: the copies out are done before it is seen.
        self.head_word.store(self.head, Ordering::Release);
    }
}
