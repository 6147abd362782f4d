//! How far a write is when its call returns.

/// When a write counts as done; each includes those before it.
///
/// On one host all but the last are the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Completion {
    /// The bytes have been taken: the caller's buffer is free.
    Posted,
    /// The device of the region's host has answered.
    Acked,
    /// Every later read, atomic or load, by whomever, sees the bytes.
    #[default]
    Visible,
    /// The bytes survive the loss of power. Refused by name: no region lies in memory that does.
    Persistent,
}
