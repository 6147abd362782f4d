//! When the peer is asked whether it has executed what was sent: by a READ of no bytes behind it.
//!
//! The answer of a READ comes after everything before it was placed and delivered (RFC 5040 section 5.5), so it confirms
//! all sends before it. Answers of the consumer's READs and atomics do the same. One READ of no bytes is outstanding at a
//! time; what is signalled meanwhile waits for the next, so there is at most one for each round trip.

/// Of one stream.
#[derive(Debug, Default)]
pub(super) struct Confirmation {
    is_wanted: bool,
    is_outstanding: bool,
    /// Sends since the last one that was asked for.
    unasked: u32,
}

impl Confirmation {
    /// All frames of a send are built, whose completion `is_awaited` or not. The others are asked for when they fill half
    /// of the queue, because their places come back only by that.
    pub(super) fn on_whole(&mut self, is_awaited: bool, max_send_wr: u32) {
        self.unasked = self.unasked.saturating_add(1);
        self.is_wanted |= is_awaited || self.unasked >= max_send_wr.div_ceil(2);
    }

    /// The stream is to be closed in order, and waits for all that was sent.
    pub(super) fn on_close(&mut self) {
        self.is_wanted |= self.unasked > 0;
    }

    /// Whether a READ is to go out.
    pub(super) const fn is_due(&self) -> bool {
        self.is_wanted && !self.is_outstanding
    }

    pub(super) fn on_asked(&mut self) {
        *self = Self { is_outstanding: true, ..Self::default() };
    }

    pub(super) fn on_answered(&mut self) {
        self.is_outstanding = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_for_what_is_signalled_or_fills_the_queue() {
        let mut c = Confirmation::default();
        (0..3).for_each(|_| c.on_whole(false, 8));
        assert!(!c.is_due());
        c.on_whole(false, 8);
        assert!(c.is_due(), "half of the queue");
        c.on_asked();
        c.on_whole(true, 8);
        assert!(!c.is_due(), "one is outstanding");
        c.on_answered();
        assert!(c.is_due());
        c.on_asked();
        c.on_answered();
        c.on_whole(false, 8);
        assert!(!c.is_due(), "nothing is signalled");
    }
}
