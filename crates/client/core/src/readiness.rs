//! What can be done on a stream or listener without waiting.
//!
//! Owns the bits and their names. It must never be the place where they are found out.

use std::fmt;
use std::ops::BitOr;

/// What can be done without waiting: a set of [`Readiness::READ`], [`WRITE`](Readiness::WRITE), [`HUP`](Readiness::HUP)
/// and [`ERR`](Readiness::ERR).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Readiness(u8);

impl Readiness {
    /// Nothing.
    pub const EMPTY: Self = Self(0);
    /// A read returns at once: with bytes, the end, or an error. Of a listener: `accept` returns at once.
    pub const READ: Self = Self(1);
    /// A write returns at once: it takes bytes, or fails.
    pub const WRITE: Self = Self(2);
    /// The peer writes no more, or this side reads no more: the unread bytes are the last.
    pub const HUP: Self = Self(4);
    /// The connection is broken; the failure of the connection says why. Unread bytes can still be read.
    pub const ERR: Self = Self(8);

    /// Whether all of `bits` are in it.
    pub const fn contains(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// Whether it is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// It without `bits`.
    pub const fn without(self, bits: Self) -> Self {
        Self(self.0 & !bits.0)
    }

    /// `bits` if `set`.
    pub const fn when(bits: Self, set: bool) -> Self {
        if set { bits } else { Self::EMPTY }
    }
}

impl BitOr for Readiness {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Self::READ, "READ"), (Self::WRITE, "WRITE"), (Self::HUP, "HUP"), (Self::ERR, "ERR")];
        f.debug_set().entries(names.iter().filter(|(bit, _)| self.contains(*bit)).map(|(_, name)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_know_their_bits() {
        let both = Readiness::READ | Readiness::HUP;
        assert!(both.contains(Readiness::READ) && both.contains(Readiness::HUP) && !both.contains(Readiness::ERR));
        assert_eq!(format!("{both:?}"), r#"{"READ", "HUP"}"#);
        assert!(Readiness::when(both, false).is_empty());
    }
}
