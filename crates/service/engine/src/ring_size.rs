//! How large the rings of a connection are, and may become.

use shm::Span;

/// Bytes of each ring of a connection: powers of two, `first <= grown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSize {
    /// Bytes that are used at first.
    pub first: u32,
    /// Bytes of a ring that has grown, for which it has addresses from the start. Its pages come when they are used.
    pub grown: u32,
}

impl RingSize {
    /// Of rings that do not grow.
    pub const fn fixed(bytes: u32) -> Self {
        Self { first: bytes, grown: bytes }
    }

    /// Whether they may grow.
    pub const fn grows(self) -> bool {
        self.first < self.grown
    }

    /// Bytes that growing adds.
    pub(crate) const fn more(self) -> u64 {
        (self.grown - self.first) as u64
    }

    pub(crate) fn span(self) -> Span {
        Span::growing(self.first.into(), self.grown.into())
    }
}
