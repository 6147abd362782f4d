//! What of a connection's rings nobody needs, and the words by which its application is kept from writing meanwhile.

use std::ops::Range;
use std::sync::atomic::Ordering;

use shm::{PeerFault, Span};

use super::Vqp;

/// The bytes of a ring that are in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InUse {
    pub(crate) tx: Range<u64>,
    pub(crate) rx: Range<u64>,
}

impl Vqp {
    pub(crate) fn tx_span(&self) -> Span {
        self.tx.span()
    }

    pub(crate) fn rx_span(&self) -> Span {
        self.rx.span()
    }

    /// Bytes of the larger of its rings, as far as they have grown.
    pub(crate) fn used_extent(&self) -> u64 {
        self.tx.span().fill_max().max(self.rx.span().fill_max())
    }

    /// The ends of what went into the transmit and into the receive ring.
    #[inline]
    pub(crate) fn put_in(&self) -> [u64; 2] {
        match &self.messages {
            Some(m) => [m.tx_tail, m.rx_tail],
            None => [self.tx.tail(), self.rx.tail()],
        }
    }

    /// Whether the application consumed bytes and did not ring for it.
    pub(crate) fn has_untold_head(&self) -> bool {
        let counts = !self.close.is_stop_asked() && !self.close.is_reset();
        let known = self.messages.as_ref().map_or(self.rx.head(), |m| m.rx_head);
        counts && self.slot.words().rx_head.load(Ordering::Relaxed) != known && self.slot.is_taken()
    }

    /// What is in use of both rings. An error means that the application broke the rules; `None`: it used one
    /// meanwhile.
    pub(crate) fn look_in_use(&mut self) -> Result<Option<InUse>, PeerFault> {
        let moved = self.on_doorbell()?;
        if let Some(m) = &self.messages {
            let is_used = moved || m.is_arriving();
            return Ok((!is_used).then_some(InUse { tx: m.tx_head..m.tx_tail, rx: m.rx_head..m.rx_tail }));
        }
        Ok((!moved).then_some(InUse { tx: self.tx.in_use(), rx: self.rx.in_use() }))
    }
}
