//! Whether a write answers what was read: the sign of a conversation, in which each message waits for the one before.
//!
//! Owns the words for it.

/// Writes in a row that each answer all that came: the connection is a conversation.
pub(crate) const ANSWERS: u32 = 16;

/// By which way the last thing was read that a write answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Asked {
    /// Nothing was read since the last write, or more is there.
    No,
    ByRing,
    ByTcp,
}

impl Asked {
    /// The one whose number this is.
    pub(crate) fn from_code(code: u8) -> Self {
        [Self::ByRing, Self::ByTcp].into_iter().find(|asked| *asked as u8 == code).unwrap_or(Self::No)
    }
}
