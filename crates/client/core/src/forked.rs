//! What a child made by `fork` gets instead of its parent's session.

/// This process is a child, made by `fork`, of the process that made the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this session belongs to process {owner}, from which this one was forked: make a new session after fork")]
pub struct Forked {
    /// The process that made it.
    pub owner: u32,
}
