//! What a peer's WRITEs placed since the last receive completion of the QP.
//!
//! Owns one range that covers them, and whether they fill it. The range may be too large, and must never be too small,
//! because the caller gives the bytes outside of it back to the system. It must never say that the range is full of
//! bytes if some did not arrive.

use verbs::{Placed, Rkey};

/// The range. WRITEs of one message, and of the plain ones before it, mostly lie in one place.
#[derive(Debug, Default)]
pub enum Unreported {
    /// No byte.
    #[default]
    Nothing,
    /// In this range.
    Range {
        /// The region.
        rkey: Rkey,
        /// First byte.
        start: u64,
        /// One after the last byte.
        end: u64,
        /// Each WRITE began where the one before it ended.
        is_piece: bool,
    },
    /// Of several regions.
    Anything,
}

impl Unreported {
    /// Bytes were placed.
    #[inline]
    pub fn add(&mut self, placed_in: Rkey, addr: u64, len: u32) {
        if len == 0 {
            return;
        }
        let placed_end = addr.saturating_add(len.into());
        match self {
            Self::Nothing => {
                *self = Self::Range { rkey: placed_in, start: addr, end: placed_end, is_piece: true };
            }
            Self::Range { rkey, start, end, is_piece } if *rkey == placed_in => {
                *is_piece &= addr == *end;
                (*start, *end) = ((*start).min(addr), (*end).max(placed_end));
            }
            _ => *self = Self::Anything,
        }
    }

    /// What the completion reports of all bytes that were placed. Afterwards nothing is unreported.
    #[inline]
    pub fn take(&mut self) -> Placed {
        match std::mem::take(self) {
            Self::Nothing => Placed::Nothing,
            Self::Range { rkey, start, end, is_piece: true } => Placed::Piece { rkey, addr: start, len: end - start },
            Self::Range { .. } | Self::Anything => Placed::Scattered,
        }
    }

    /// Whether any of it may lie in that range.
    pub fn touches(&self, asked: Rkey, addr: u64, len: u64) -> bool {
        match *self {
            Self::Nothing => false,
            Self::Range { rkey, start, end, .. } => rkey == asked && start < addr.saturating_add(len) && addr < end,
            Self::Anything => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_region_is_told_by_its_range_and_several_are_anything() {
        let (a, b) = (Rkey(7), Rkey(8));
        let mut u = Unreported::default();
        u.add(a, 100, 0);
        assert!(!u.touches(a, 0, u64::MAX));
        u.add(a, 100, 10);
        u.add(a, 200, 10);
        assert!(u.touches(a, 0, 101) && u.touches(a, 150, 1) && u.touches(a, 209, 1) && u.touches(a, 50, 1000));
        assert!(!u.touches(a, 0, 100) && !u.touches(a, 210, 5) && !u.touches(b, 150, 1));
        u.add(b, 0, 1);
        assert!(u.touches(a, 0, 1) && u.touches(b, 9, 1));
        u.take();
        assert!(!u.touches(a, 150, 1));
    }

    #[test]
    fn only_writes_that_follow_each_other_are_one_piece() {
        let (a, b) = (Rkey(7), Rkey(8));
        let told = |writes: &[(Rkey, u64, u32)]| {
            let mut u = Unreported::default();
            writes.iter().for_each(|&(rkey, addr, len)| u.add(rkey, addr, len));
            let placed = u.take();
            assert_eq!(u.take(), Placed::Nothing, "it was told");
            placed
        };
        assert_eq!(told(&[]), Placed::Nothing);
        assert_eq!(told(&[(a, 5, 0), (b, 9, 0)]), Placed::Nothing, "no byte");
        assert_eq!(told(&[(a, 5, 10), (a, 15, 1), (a, 90, 0)]), Placed::Piece { rkey: a, addr: 5, len: 11 });
        for scattered in [
            &[(a, 5, 10), (a, 16, 1)][..],
            &[(a, 5, 10), (a, 14, 2)],
            &[(a, 5, 10), (a, 5, 10)],
            &[(a, 15, 1), (a, 5, 10)],
            &[(a, 5, 10), (b, 15, 1)],
            &[(a, 5, 10), (a, 16, 1), (a, 17, 1)],
            &[(a, 5, 10), (a, 20, 1), (a, 15, 5), (a, 21, 1)],
        ] {
            assert_eq!(told(scattered), Placed::Scattered, "{scattered:?}");
        }
    }
}
