//! What a caller gets of a command.
//!
//! Owns nothing.

/// A command that a majority's memories hold, and that was applied here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Of its entry in the log; 0 if it had been applied before, and this repeats the reply.
    pub index: u64,
    /// What the machine said.
    pub reply: Vec<u8>,
}
