//! At which place of a ring an absolute offset lies, for rings that may grow once.
//!
//! Owns the mapping and the room that it leaves. It must never name a place outside of the ring, whatever offsets it is
//! given.
//!
//! A growing ring uses its first bytes alone, the *first span*, until an offset X is chosen from which on it uses all
//! of it: the first that the writer cannot have passed, one span behind what is known to be read. The byte at X lies
//! just behind the first span, and before all up to X is read nothing comes to lie in the first span, so no unread
//! bytes overlap. A ring that has grown takes all that it may hold before anything more is read, but for what was read
//! and not known to be, less than one span: the reader may be waiting for just that. Why rings grow: a small ring costs
//! little memory and stays in the caches; but what a processor has just written reaches another one several times
//! faster out of the cache that both share than out of the writer's own, and it gets there only if more than the
//! writer's own cache lies between writer and reader.
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
            // What is known to be read is less than X was chosen by.
            self.first.saturating_sub(fill)
        } else {
            // Unread bytes of the first span: the lap after them must stop in front of it.
            (at.wrapping_add(self.full - self.first)).wrapping_sub(tail)
        }
    }

    /// Grows a ring whose reader consumed all before `head`, which is all that its writer knows too. Returns the place.
    pub fn grow(&mut self, head: u64) -> Option<u64> {
        // Past 2^64 it is left alone: 0 would mean nothing.
        let at = head.checked_add(self.first).filter(|_| self.may_grow())?;
        self.grown_at = Some(at);
        Some(at)
    }

    /// Takes the place at which the ring grew (0: it did not) from words that outlived the one who kept them. False: no
    /// ring of this size grows.
    pub fn restore(&mut self, at: u64) -> bool {
        if at == 0 {
            return true;
        }
        let fits = self.may_grow();
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

    /// Takes the place that the engine chose (0: none), for a writer at `cursor`, or that the writer stored, for a
    /// reader there: neither can have passed it, and one span at most was unread when it was chosen.
    pub fn on_told(&mut self, at: u64, cursor: u64) -> Result<(), PeerFault> {
        if at == 0 || !self.may_grow() {
            return Ok(());
        }
        if at.wrapping_sub(cursor) > self.first {
            return Err(PeerFault::Cursor { what: "grown_at", from: cursor, to: at, ring_bytes: self.first });
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
        let together = self.first - place;
        // What follows X lies elsewhere.
        (place, self.grown_at.map_or(together, |at| together.min(at.wrapping_sub(offset))))
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
