//! Single-producer single-consumer byte rings over absolute 64-bit offsets.
//!
//! Owns the order of data copies and cursor publication, and the rule by which a peer's cursor is accepted. It must
//! never place or size a copy by a value of the peer that [`check_cursor`] did not pass, and never read back its own
//! published cursor: the peer may be able to change it.
//!
//! Offsets count modulo 2^64. Since a ring's size divides 2^64, positions stay right across the wrap.
mod cursors;
mod span;

pub(crate) use cursors::{Consumer, Producer};
pub use span::Span;

use crate::rest::TxUse;
use crate::{Region, RegionError, SlotWords, Word64};

/// A peer's published cursor broke the rules; the connection (or session) must be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// A cursor went back, or beyond what the ring can hold.
    #[error("cursor {what} jumped from {from} to {to}, ring of {ring_bytes} bytes: give this connection up")]
    Cursor {
        /// Which cursor.
        what: &'static str,
        /// Last accepted.
        from: u64,
        /// Now seen.
        to: u64,
        /// Capacity.
        ring_bytes: u64,
    },
}

/// Accepts a peer-published cursor: `value` must be in `last..=limit`, counted modulo 2^64.
///
/// `last` and `limit` are private values of the caller with `limit - last <= ring_bytes`; if they are not, nothing is
/// accepted.
#[inline]
pub fn check_cursor(what: &'static str, last: u64, value: u64, limit: u64, ring_bytes: u64) -> Result<u64, PeerFault> {
    let span = limit.wrapping_sub(last);
    if span <= ring_bytes && value.wrapping_sub(last) <= span {
        Ok(value)
    } else {
        Err(PeerFault::Cursor { what, from: last, to: value, ring_bytes })
    }
}

/// Where a ring lies.
#[derive(Debug, Clone)]
pub struct RingMemory {
    /// Memory.
    pub region: Region,
    /// Offset of the ring in it.
    pub offset: u64,
    /// Capacity, a power of two.
    pub bytes: u64,
}

impl RingMemory {
    fn check(&self) -> Result<(), RegionError> {
        if !self.bytes.is_power_of_two() {
            let max = 1 << 63;
            return Err(RegionError::Geometry { what: "ring bytes", value: self.bytes, min: 1, max });
        }
        let size = self.region.len();
        if self.bytes > size || self.offset > size - self.bytes {
            return Err(RegionError::OutOfBounds { offset: self.offset, len: self.bytes, size });
        }
        Ok(())
    }

    fn span_to_write(&self, first_bytes: u64) -> Result<Span, RegionError> {
        let span = self.growing_span(first_bytes)?;
        if self.region.is_writable() { Ok(span) } else { Err(RegionError::ReadOnly) }
    }

    fn growing_span(&self, first_bytes: u64) -> Result<Span, RegionError> {
        self.check()?;
        if !first_bytes.is_power_of_two() || first_bytes > self.bytes {
            return Err(RegionError::Geometry {
                what: "first ring bytes",
                value: first_bytes,
                min: 1,
                max: self.bytes,
            });
        }
        Ok(Span::growing(first_bytes, self.bytes))
    }
}

/// The producing end: copies in, publishes `tail`, reads the consumer's `head`.
#[derive(Debug)]
pub struct RingWriter {
    memory: RingMemory,
    cursors: Producer<Word64>,
    /// Where the consumer's side may give pages of the ring back.
    tx_use: Option<TxUse>,
}

impl RingWriter {
    /// Starts at absolute offset `at` (head = tail = at), and stores that to its own word, `tail`.
    ///
    /// The consumer's word must hold `at` before the first call that looks at it. Refused are memory out of bounds, a
    /// size that is not a power of two, and read-only memory or a read-only `tail`.
    pub fn new(memory: RingMemory, tail: Word64, head: Word64, at: u64) -> Result<Self, RegionError> {
        Self::resume(memory, tail, head, at, at)
    }

    /// Takes over a ring in use: own tail `tail_at`, last known head `head_at`, as the process before knew them
    /// (privately: these are not checked against the shared words). Otherwise as [`RingWriter::new`].
    pub fn resume(
        memory: RingMemory,
        tail: Word64,
        head: Word64,
        tail_at: u64,
        head_at: u64,
    ) -> Result<Self, RegionError> {
        memory.check()?;
        check_fill(memory.bytes, tail_at, head_at)?;
        if !memory.region.is_writable() {
            return Err(RegionError::ReadOnly);
        }
        let tail = tail.writable()?;
        let cursors = Producer::new(tail, head, tail_at, head_at, memory.bytes);
        Ok(Self { memory, cursors, tx_use: None })
    }

    /// As [`RingWriter::new`] with a ring that grows from its first `first_bytes` (a power of two) to all of it when a
    /// write finds it full; `grown_at` is the writer's own word that shows this to the consumer.
    pub fn growing(
        memory: RingMemory,
        first_bytes: u64,
        (tail, head, grown_at): (Word64, Word64, Word64),
        at: u64,
    ) -> Result<Self, RegionError> {
        let span = memory.span_to_write(first_bytes)?;
        let words = (tail.writable()?, head, grown_at.writable()?);
        Ok(Self { memory, cursors: Producer::growing(words, at, span), tx_use: None })
    }

    /// As [`RingWriter::growing`], of a ring whose engine chooses where it grows, and stores that to `grown_at`.
    pub fn growing_when_told(
        memory: RingMemory,
        first_bytes: u64,
        (tail, head, grown_at): (Word64, Word64, Word64),
        at: u64,
    ) -> Result<Self, RegionError> {
        let span = memory.span_to_write(first_bytes)?;
        let cursors = Producer::growing_when_told((tail.writable()?, head, grown_at), at, span);
        Ok(Self { memory, cursors, tx_use: None })
    }

    /// Lets the engine give pages of this slot's transmit ring back while nothing is written ([`crate::begin_rest`]).
    /// The process has joined the barrier ([`crate::join_rest_barrier`]), and this is before anything was written.
    pub fn may_rest(mut self, words: &SlotWords) -> Result<Self, RegionError> {
        self.tx_use = Some(TxUse::new(words)?);
        Ok(self)
    }

    /// As [`RingWriter::free`], in a ring that grows if it must to hold `count` at all, and without the bound of
    /// [`RingWriter::set_unread_max`]: who reserves room wants it together.
    pub fn free_for(&mut self, count: u64) -> Result<u64, PeerFault> {
        self.cursors.make_way(count);
        let allowed = self.free()?;
        Ok(if self.is_resting() { allowed } else { self.cursors.known_free() })
    }

    /// [`RingWriter::write`] leaves at most so many bytes unread from now on, whatever the ring holds.
    pub fn set_unread_max(&mut self, bytes: u64) {
        self.cursors.set_unread_max(bytes);
    }

    #[inline]
    fn is_resting(&self) -> bool {
        self.tx_use.as_ref().is_some_and(TxUse::is_resting)
    }

    /// Bytes that can be written now. There are none while the engine gives pages back; when it is done, it signals
    /// that as it signals room.
    #[inline]
    pub fn free(&mut self) -> Result<u64, PeerFault> {
        if self.is_resting() { Ok(0) } else { self.cursors.free() }
    }

    /// The room from which on kernel TCP calls a socket writable: a third of what it may hold (`sk_stream_is_writeable`).
    /// A program that is told so counts on a write of a usual size not to wait. In a ring that may still grow it is one
    /// byte, since a ring grows when it is full.
    pub fn writable_from(&self) -> u64 {
        self.cursors.final_fill().map_or(1, |most| most.div_ceil(3).max(1))
    }

    /// Keeps the engine from giving pages back until [`RingWriter::let_go`], so that what is written ahead stays.
    /// False: it is just doing so, as if the ring were full.
    pub fn hold(&mut self) -> bool {
        let Some(tx_use) = &mut self.tx_use else { return true };
        tx_use.is_held = tx_use.claim();
        tx_use.is_held
    }

    /// After [`RingWriter::hold`].
    pub fn let_go(&mut self) {
        if let Some(tx_use) = &mut self.tx_use
            && std::mem::take(&mut tx_use.is_held)
        {
            tx_use.release();
        }
    }

    /// Copies as much as fits and publishes it; says how many bytes. 0 means full (or nothing to write).
    #[inline]
    pub fn write(&mut self, src: &[u8]) -> Result<usize, PeerFault> {
        if !self.tx_use.as_ref().is_none_or(TxUse::claim) {
            return Ok(0);
        }
        let memory = &self.memory;
        let written = self.cursors.write(src.len(), |at, piece| {
            memory
                .region
                .write(memory.offset + at, &src[piece])
                .expect("`new` checked that the ring lies in the region");
        });
        if let Some(tx_use) = &self.tx_use {
            tx_use.release();
        }
        written
    }

    /// Copies `src` to `ahead` bytes after the tail without publishing it. It must end within the room that
    /// [`RingWriter::free`] last returned, and a ring that may rest must be held. Otherwise nothing is written, and the
    /// result is false. [`RingWriter::commit`] publishes.
    pub fn write_ahead(&mut self, ahead: u64, src: &[u8]) -> bool {
        if self.tx_use.as_ref().is_some_and(|tx_use| !tx_use.is_held) {
            return false;
        }
        let memory = &self.memory;
        self.cursors.write_ahead(ahead, src.len(), |at, piece| {
            memory
                .region
                .write(memory.offset + at, &src[piece])
                .expect("`new` checked that the ring lies in the region");
        })
    }

    /// Publishes the next `count` bytes after the tail, which were written ahead. False, and nothing done: there is not
    /// so much room.
    pub fn commit(&mut self, count: u64) -> bool {
        self.cursors.commit(count)
    }

    /// Bytes that the ring holds when it is grown.
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.memory.bytes
    }

    /// Own tail: absolute offset after the last byte written.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.cursors.tail
    }

    /// Last accepted head.
    #[inline]
    pub fn head(&self) -> u64 {
        self.cursors.head
    }
}

/// The consuming end: reads the producer's `tail`, copies out, publishes `head`.
#[derive(Debug)]
pub struct RingReader {
    memory: RingMemory,
    cursors: Consumer<Word64>,
}

impl RingReader {
    /// Starts at absolute offset `at` (nothing read before it), and stores that to its own word, `head`.
    ///
    /// The producer's word must hold `at` or more before the first call that looks at it. Refused are memory out of
    /// bounds, a size that is not a power of two, and a read-only `head`; the memory and `tail` may be read-only.
    pub fn new(memory: RingMemory, tail: Word64, head: Word64, at: u64) -> Result<Self, RegionError> {
        memory.check()?;
        let cursors = Consumer::new(tail, head.writable()?, at, memory.bytes);
        Ok(Self { memory, cursors })
    }

    /// As [`RingReader::new`], of a ring that its producer made by [`RingWriter::growing`].
    pub fn growing(
        memory: RingMemory,
        first_bytes: u64,
        (tail, head, grown_at): (Word64, Word64, Word64),
        at: u64,
    ) -> Result<Self, RegionError> {
        let span = memory.growing_span(first_bytes)?;
        let words = (tail, head.writable()?, grown_at);
        Ok(Self { memory, cursors: Consumer::growing(words, at, span) })
    }

    /// Most bytes that it holds as far as it has grown.
    #[inline]
    pub fn span_bytes(&self) -> u64 {
        self.cursors.span.fill_max()
    }

    /// Bytes that can be read now.
    #[inline]
    pub fn available(&mut self) -> Result<u64, PeerFault> {
        self.cursors.available()
    }

    /// Copies out up to `dst.len()` bytes and publishes the head; 0 means empty (or no room in `dst`).
    #[inline]
    pub fn read(&mut self, dst: &mut [u8]) -> Result<usize, PeerFault> {
        let count = self.peek(dst)?;
        self.cursors.consume(count as u64);
        Ok(count)
    }

    /// As [`RingReader::read`], but the producer does not see the room before [`RingReader::publish`]. The head often
    /// lies in a cache line that the producer looks at for other news: a store to it for each small message costs both
    /// sides a transfer of that line.
    #[inline]
    pub fn read_quietly(&mut self, dst: &mut [u8]) -> Result<usize, PeerFault> {
        let count = self.peek(dst)?;
        self.cursors.advance(count as u64);
        Ok(count)
    }

    /// Publishes the head. A caller that reads quietly does this from time to time, and always before it waits.
    #[inline]
    pub fn publish(&mut self) {
        self.cursors.publish();
    }

    /// Copies out up to `dst.len()` bytes and leaves them in the ring. What a second look shows may differ: the peer
    /// may rewrite bytes that were not consumed.
    #[inline]
    pub fn peek(&mut self, dst: &mut [u8]) -> Result<usize, PeerFault> {
        let memory = &self.memory;
        self.cursors.peek(dst.len(), |at, piece| {
            memory
                .region
                .read(memory.offset + at, &mut dst[piece])
                .expect("`new` checked that the ring lies in the region");
        })
    }

    /// Copies out up to `dst.len()` bytes that lie `ahead` bytes after the head, of those that
    /// [`RingReader::available`] last returned. They stay in the ring. As with [`RingReader::peek`], the peer may
    /// rewrite them meanwhile.
    pub fn peek_ahead(&self, ahead: u64, dst: &mut [u8]) -> usize {
        let memory = &self.memory;
        self.cursors.peek_ahead(ahead, dst.len(), |at, piece| {
            memory
                .region
                .read(memory.offset + at, &mut dst[piece])
                .expect("`new` checked that the ring lies in the region");
        })
    }

    /// Takes up to `count` of the bytes known to be there without telling the producer; says how many.
    pub fn consume_quietly(&mut self, count: u64) -> u64 {
        let count = count.min(self.cursors.tail.wrapping_sub(self.cursors.head));
        self.cursors.advance(count);
        count
    }

    /// Drops up to `count` of the bytes known to be there and publishes the head; says how many.
    pub fn consume(&mut self, count: u64) -> u64 {
        self.cursors.consume(count)
    }

    /// Own head: absolute offset of the next byte to read.
    #[inline]
    pub fn head(&self) -> u64 {
        self.cursors.head
    }

    /// Last accepted tail.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.cursors.tail
    }
}

fn check_fill(ring_bytes: u64, tail: u64, head: u64) -> Result<(), RegionError> {
    let fill = tail.wrapping_sub(head);
    if fill > ring_bytes {
        return Err(RegionError::OutOfBounds { offset: head, len: fill, size: ring_bytes });
    }
    Ok(())
}
