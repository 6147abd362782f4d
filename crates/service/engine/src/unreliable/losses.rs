//! Why messages on UC are lost, and how many were.
//!
//! Owns the reasons and their names in `raas stat` (docs/use/unreliable.md). A list, no behaviour.

/// Why a message did not arrive, or a piece of one was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Its number did not come: the network, or the device of this host, lost it whole.
    Missing,
    /// A piece of it did not come.
    Torn,
    /// The ring of its receiver has no room.
    RingFull,
    /// The queue pair was replaced while it left.
    Cut,
    /// A piece came for no connection of the lane, or after its end.
    NoConnection,
    /// A piece came that cannot be.
    Malformed,
    /// A piece came again, or after a later message: the message that it is of counts as arrived or as missing already.
    Late,
    /// A WRITE completed whose place does not hold what was sent.
    Spoiled,
}

/// Of these on, pieces are counted and not messages.
const FIRST_OF_PIECES: usize = Loss::NoConnection as usize;

/// How many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Losses([u64; 8]);

impl Losses {
    pub(crate) fn count(&mut self, loss: Loss, by: u64) {
        let count = &mut self.0[loss as usize];
        *count = count.saturating_add(by);
    }

    /// Messages that were lost.
    pub(crate) fn messages(&self) -> u64 {
        self.0[..FIRST_OF_PIECES].iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        const NAMES: [&str; 8] = [
            "uc_lost_missing",
            "uc_lost_torn",
            "uc_lost_ring_full",
            "uc_lost_cut",
            "uc_pieces_no_connection",
            "uc_pieces_malformed",
            "uc_pieces_late",
            "uc_pieces_spoiled",
        ];
        NAMES.into_iter().zip(self.0)
    }
}
