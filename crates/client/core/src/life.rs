//! Whether a session or a pair still stands, in this very process.
//!
//! Owns one word in memory that the kernel empties in a child made by `fork`. It must never let a child take for its
//! own what its parent made.
//!
//! The word is looked at by every call that moves bytes, so one load answers two questions: is the other side there,
//! and is this the process that made it. Where the kernel cannot empty memory on `fork` (before Linux 4.14) the process
//! number is compared in its place, where calls wait, drop or ask the daemon.

use std::io;

use control::Reason;
use shm::ProcessWord;

use crate::{End, Forked};

/// It stands. No reason has this code.
const ALIVE: u32 = u32::MAX;

/// See the head of this file.
#[derive(Debug)]
pub struct Life {
    word: ProcessWord,
    owner: u32,
}

impl Life {
    /// Begins, and belongs to this process.
    pub fn new() -> io::Result<Self> {
        Ok(Self { word: ProcessWord::new(ALIVE)?, owner: std::process::id() })
    }

    /// Whether it stands and belongs to this process.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.word.load() == ALIVE
    }

    /// The process that made it.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// How it ended, if it did or if this is a forked child.
    #[inline]
    pub fn end(&self) -> Option<End> {
        match self.word.load() {
            ALIVE => None,
            word => Some(self.end_of(word)),
        }
    }

    /// Why it ended, if it did.
    pub fn lost(&self) -> Option<Reason> {
        self.end().and_then(End::failure)
    }

    /// Ends it; the first reason stands.
    pub fn lose(&self, reason: Reason) {
        // In a child the word is 0, and stays so.
        self.word.replace(ALIVE, reason.code() + 1);
    }

    /// From here on everything is refused, and dropping closes nothing, as in a forked child: for a caller that plays a
    /// process which is killed in the middle of a step.
    pub fn disown(&self) {
        self.word.empty();
    }

    /// Refuses a forked child.
    pub fn check_fork(&self) -> Result<(), Forked> {
        let is_forked = match self.word.load() {
            0 => true,
            _ => !self.word.is_wiped() && std::process::id() != self.owner,
        };
        if is_forked { Err(Forked { owner: self.owner }) } else { Ok(()) }
    }

    #[cold]
    fn end_of(&self, word: u32) -> End {
        match word.checked_sub(1) {
            Some(code) => End::Reset(Reason::from_code(code)),
            None => End::Forked(Forked { owner: self.owner }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stands() {
        let life = Life::new().unwrap();
        assert!(life.is_alive() && life.end().is_none() && life.check_fork().is_ok());
        life.lose(Reason::PeerAppDied);
        life.lose(Reason::DaemonLost);
        assert!(!life.is_alive());
        assert_eq!((life.end(), life.lost()), (Some(End::Reset(Reason::PeerAppDied)), Some(Reason::PeerAppDied)));
        assert!(life.check_fork().is_ok(), "an end is no fork");
    }
}
