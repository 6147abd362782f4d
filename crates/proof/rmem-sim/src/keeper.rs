//! What a node's daemon knows: who writes, and which memory this is.
//!
//! Owns the fence. A grant ends the older writer at once and for ever, and a daemon that ends has no writer when it is
//! back.

use rmem::Error;

/// Between the numbers of two memories of one node.
const NUMBERS_STEP: u64 = 100;

/// What a daemon said to a take-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Granted { number: u64, last: u64, grant: u64 },
    Superseded { fence: u64 },
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Keeper {
    number: u64,
    /// The last fence that was granted, 0 if it is forgotten.
    granted: u64,
    /// Who writes: each grant has a number of its own.
    writer: Option<u64>,
    grants: u64,
    ends: u64,
    /// The words while the daemon is down.
    kept: Option<Vec<u64>>,
    /// Writes that a fence ended.
    pub(crate) fenced: u64,
    /// Whether its bytes are those of the member, and not zeroes that wait for them.
    pub(crate) is_whole: bool,
}

impl Keeper {
    pub(crate) fn new(node: u64) -> Self {
        Self {
            number: node + NUMBERS_STEP,
            granted: 0,
            writer: None,
            grants: 0,
            ends: 0,
            kept: None,
            fenced: 0,
            is_whole: true,
        }
    }

    /// The number of the memory.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// How often the daemon has ended.
    pub(crate) fn ends(&self) -> u64 {
        self.ends
    }

    pub(crate) fn take_over(&mut self, fence: u64) -> Taken {
        if fence <= self.granted {
            return Taken::Superseded { fence: self.granted };
        }
        self.grants += 1;
        self.writer = Some(self.grants);
        let last = std::mem::replace(&mut self.granted, fence);
        Taken::Granted { number: self.number, last, grant: self.grants }
    }

    /// Whether an operation that began when the daemon had ended so often goes on, a write by this grant too.
    pub(crate) fn lets(&mut self, node: u8, ends: u64, grant: Option<u64>) -> Result<(), Error> {
        if ends != self.ends {
            return Err(Error::NodeLost { node, why: "the model's daemon has ended since".to_owned() });
        }
        if grant.is_some() && grant != self.writer {
            self.fenced += 1;
            return Err(Error::Revoked { node });
        }
        Ok(())
    }

    /// What was granted last, if somebody writes by it.
    pub(crate) fn superseded_by(&self) -> Option<u64> {
        self.writer.map(|_| self.granted)
    }

    pub(crate) fn stop(&mut self, words: Vec<u64>) {
        self.kept = Some(words);
        self.writer = None;
        self.ends += 1;
    }

    pub(crate) fn start(&mut self, forgets: bool, is_wiped: bool) -> Option<Vec<u64>> {
        let mut words = self.kept.take()?;
        if forgets || is_wiped {
            self.granted = 0;
        }
        if is_wiped {
            words.fill(0);
            self.renew();
        }
        Some(words)
    }

    /// From here on the memory is another one.
    pub(crate) fn renew(&mut self) -> u64 {
        self.number += NUMBERS_STEP;
        self.number
    }

    /// As [`Keeper::start`], behind a power failure: the memory is of zeroes, and is to be what it was by its file.
    pub(crate) fn start_empty(&mut self) -> Option<Vec<u64>> {
        let mut words = self.kept.take()?;
        words.fill(0);
        (self.granted, self.is_whole) = (0, false);
        Some(words)
    }
}
