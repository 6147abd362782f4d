//! What of a connection's rings nobody needs, and the words by which its application is kept from writing meanwhile.

use std::ops::Range;
use std::sync::atomic::Ordering;

use shm::{PeerFault, Span};

use super::Vqp;
use crate::rests::RestTurn;

/// The bytes of a ring that are in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InUse {
    pub(crate) tx: Range<u64>,
    pub(crate) rx: Range<u64>,
}

impl Vqp {
    pub(crate) fn tx_span(&self) -> Span {
        self.tx_span
    }

    pub(crate) fn rx_span(&self) -> Span {
        self.rx_span
    }

    /// Bytes of the larger of its rings, as far as they have grown.
    pub(crate) fn used_extent(&self) -> u64 {
        self.tx_span.fill_max().max(self.rx_span.fill_max())
    }

    /// Its place among those that are looked at for whether they rest.
    pub(crate) fn rest_mut(&mut self) -> &mut RestTurn {
        &mut self.rest
    }

    pub(crate) fn rest(&self) -> &RestTurn {
        &self.rest
    }

    /// Whether the application consumed bytes and did not ring for it.
    pub(crate) fn has_untold_head(&self) -> bool {
        let counts = !self.close.is_stop_asked() && !self.close.is_reset();
        let known = self.messages.as_ref().map_or(self.rx_head, |m| m.rx_head);
        counts
            && self.words.rx_head.load(Ordering::Relaxed) != known
            && self.words.app_generation.load(Ordering::Relaxed) == self.generation
    }

    /// Tells the application to wait with writing.
    pub(crate) fn begin_rest(&self) {
        shm::begin_rest(&self.words);
    }

    /// It may write again.
    pub(crate) fn end_rest(&self) {
        shm::end_rest(&self.words);
    }

    /// Whether the application is not writing, after the barrier that follows [`Self::begin_rest`].
    pub(crate) fn is_unused(&self) -> bool {
        shm::is_unused(&self.words)
    }

    /// What is in use of both rings. An error means that the application broke the rules; `None`: it used one
    /// meanwhile.
    pub(crate) fn look_in_use(&mut self) -> Result<Option<InUse>, PeerFault> {
        let moved = self.on_doorbell()?;
        if let Some(m) = &self.messages {
            let is_used = moved || m.is_arriving();
            return Ok((!is_used).then_some(InUse { tx: m.tx_head..m.tx_tail, rx: m.rx_head..m.rx_tail }));
        }
        Ok((!moved).then_some(InUse { tx: self.tx_head..self.tx_tail, rx: self.rx_head..self.rx_tail }))
    }
}
