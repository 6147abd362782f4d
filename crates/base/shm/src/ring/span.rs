//! At which place of a ring an absolute offset lies, for rings that may grow once.
//!
//! Owns the mapping and the room that it leaves. It must never name a place outside of the ring, whatever offsets it is
//! given.
//!
//! A growing ring uses its first bytes alone, the *first span*, until its writer chooses an offset X, the end of a lap,
//! from which on it uses all of it: X lies just behind the first span, so the bytes before X and the first lap after it
//! do not overlap. Why rings grow: a small ring costs little memory and stays in the caches; but what a processor has
//! just written reaches another one several times faster out of the cache that both share than out of the writer's own,
//! and it gets there only if more than the writer's own cache lies between writer and reader.
use std::ops::Range;

use super::PeerFault;

/// Offsets less than this apart count as one after the other, modulo 2^64.
const AHEAD_MAX: u64 = 1 << 63;

/// The part of a ring that is in use. Sizes are powers of two, `first <= full`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    first: u64,
    full: u64,
    grown_at: Option<u64>,
}

impl Span {
    /// Of a ring that is used whole from the start.
    pub const fn fixed(bytes: u64) -> Self {
        Self { first: bytes, full: bytes, grown_at: None }
    }

    /// Of a ring that uses its first bytes until it grows.
    pub const fn growing(first: u64, full: u64) -> Self {
        Self { first, full, grown_at: None }
    }

    /// Whether it can still grow.
    #[inline]
    pub fn may_grow(&self) -> bool {
        self.grown_at.is_none() && self.first < self.full
    }

    /// Bytes of the whole ring.
    #[inline]
    pub fn full(&self) -> u64 {
        self.full
    }

    /// Most bytes that may lie between head and tail.
    #[inline]
    pub fn fill_max(&self) -> u64 {
        if self.grown_at.is_none() { self.first } else { self.full }
    }

    /// Bytes that may be written after `tail` while those from `head` on are not consumed.
    #[inline]
    pub fn room(&self, tail: u64, head: u64) -> u64 {
        let fill = tail.wrapping_sub(head);
        let Some(at) = self.grown_at else { return self.first.saturating_sub(fill) };
        let before = at.wrapping_sub(head);
        if before == 0 || before >= AHEAD_MAX {
            self.full.saturating_sub(fill)
        } else if before > self.first {
            // The last lap of the first span is not free to its end.
            self.first.saturating_sub(fill)
        } else {
            // Unread bytes of the first span: the lap after them must stop in front of it.
            (at.wrapping_add(self.full - self.first)).wrapping_sub(tail)
        }
    }

    /// Grows a ring whose writer is at `tail`, at the end of this lap. Returns that place.
    pub(crate) fn grow(&mut self, tail: u64) -> Option<u64> {
        // 0 would mean nothing.
        let at = tail.max(1).checked_next_multiple_of(self.first).filter(|_| self.may_grow())?;
        self.grown_at = Some(at);
        Some(at)
    }

    /// Grows a ring whose reader consumed all before `head`, in the name of a writer that cannot be asked: at the first
    /// end of a lap that it cannot have passed. Returns that place.
    pub fn grow_beyond(&mut self, head: u64) -> Option<u64> {
        self.grow(head.checked_add(self.first)?)
    }

    /// Takes the place at which the ring grew (0: it did not) from words that outlived the one who kept them. False: no
    /// ring of this size grows there.
    pub fn restore(&mut self, at: u64) -> bool {
        if at == 0 {
            return true;
        }
        let fits = self.may_grow() && at & (self.first - 1) == 0;
        if fits {
            self.grown_at = Some(at);
        }
        fits
    }

    /// Where it grew.
    #[inline]
    pub fn grown_at(&self) -> Option<u64> {
        self.grown_at
    }

    /// Takes what [`Self::grow_beyond`] returned (0: nothing), for a writer at `tail`.
    pub(crate) fn on_told_ahead(&mut self, at: u64, tail: u64) -> Result<(), PeerFault> {
        if at == 0 || !self.may_grow() {
            return Ok(());
        }
        if at & (self.first - 1) != 0 || at.wrapping_sub(tail) > 2 * self.first {
            return Err(PeerFault::Cursor { what: "grown_at", from: tail, to: at, ring_bytes: self.first });
        }
        self.grown_at = Some(at);
        Ok(())
    }

    /// Takes what the writer stored (0: nothing), for a reader at `head`.
    pub fn on_told(&mut self, at: u64, head: u64) -> Result<(), PeerFault> {
        if at == 0 || !self.may_grow() {
            return Ok(());
        }
        // An honest writer had at most one span unread, and stored the end of the lap that it was in.
        let limit = 2 * self.first;
        if at & (self.first - 1) != 0 || at.wrapping_sub(head) >= limit {
            return Err(PeerFault::Cursor { what: "grown_at", from: head, to: at, ring_bytes: self.first });
        }
        self.grown_at = Some(at);
        Ok(())
    }

    /// Where `offset` lies, and how many bytes from there on lie together.
    #[inline]
    pub fn place(&self, offset: u64) -> (u64, u64) {
        if let Some(at) = self.grown_at {
            let beyond = offset.wrapping_sub(at);
            if beyond < AHEAD_MAX {
                let place = beyond.wrapping_add(self.first) & (self.full - 1);
                return (place, self.full - place);
            }
        }
        let place = offset & (self.first - 1);
        (place, self.first - place)
    }

    /// The pieces of `count` bytes from `offset` on: (place in the ring, part of the buffer).
    #[inline]
    pub(crate) fn pieces(&self, offset: u64, count: usize, mut copy: impl FnMut(u64, Range<usize>)) {
        let mut done = 0;
        while done < count {
            let (place, together) = self.place(offset.wrapping_add(done as u64));
            let end = done + (count - done).min(usize::try_from(together).unwrap_or(usize::MAX));
            copy(place, done..end);
            done = end;
        }
    }
}

#[cfg(test)]
mod tests;
