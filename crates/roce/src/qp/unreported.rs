//! What a peer's WRITEs placed since the last receive completion of the QP.
//!
//! Owns one range that covers them. It may say too much, and must never say too little: who asks gives the bytes outside of
//! it back to the system.

use verbs::Rkey;

/// The range. WRITEs of one message, and of the plain ones before it, mostly lie in one place.
#[derive(Debug, Default)]
pub(crate) enum Unreported {
    #[default]
    Nothing,
    Range {
        rkey: Rkey,
        start: u64,
        end: u64,
    },
    /// Of several regions.
    Anything,
}

impl Unreported {
    /// Bytes were placed.
    #[inline]
    pub(crate) fn add(&mut self, placed_in: Rkey, addr: u64, len: u32) {
        if len == 0 {
            return;
        }
        let placed_end = addr.saturating_add(len.into());
        match self {
            Self::Nothing => *self = Self::Range { rkey: placed_in, start: addr, end: placed_end },
            Self::Range { rkey, start, end } if *rkey == placed_in => {
                (*start, *end) = ((*start).min(addr), (*end).max(placed_end));
            }
            _ => *self = Self::Anything,
        }
    }

    /// A completion told of all that was placed.
    #[inline]
    pub(crate) fn clear(&mut self) {
        *self = Self::Nothing;
    }

    /// Whether any of it may lie in that range.
    pub(crate) fn touches(&self, asked: Rkey, addr: u64, len: u64) -> bool {
        match *self {
            Self::Nothing => false,
            Self::Range { rkey, start, end } => rkey == asked && start < addr.saturating_add(len) && addr < end,
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
        u.clear();
        assert!(!u.touches(a, 150, 1));
    }
}
