//! What a caller gets of a command.
//!
//! Owns nothing.

use crate::class::Class;

/// A command that a majority holds, and that was applied here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Of its entry in the log; 0 if it had been applied before, and this repeats the reply.
    pub index: u64,
    /// What the machine said.
    pub reply: Vec<u8>,
    /// Where it is.
    pub class: Class,
}
