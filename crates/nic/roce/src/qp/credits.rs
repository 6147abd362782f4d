//! End-to-end flow control (IBTA 9.7.7.2): how many messages the peer has receives for.
//!
//! Messages are numbered in the order of their first packets, all kinds of them. The peer's acknowledgements carry the
//! number of messages that it has completed and the receives that are left; their sum is the last message that it has a
//! receive for. A message beyond that which takes a receive goes out alone, with nothing else under way, and asks for an
//! acknowledgement, which tells of new receives.

use verbs::Psn;

use crate::wire::{Aeth, Syndrome, credits_of};

/// Credits of one requester.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    /// Messages whose first packet was sent. They are counted modulo 2^24, as PSNs are.
    begun: Psn,
    /// The last message that the peer has a receive for; `None` while it does not count credits.
    last: Option<Psn>,
}

impl Credits {
    /// The first packet of a message was sent for the first time.
    pub(crate) const fn on_message(&mut self) {
        self.begun = self.begun.plus(1);
    }

    /// Takes the credits of an acknowledgement. Receives that are posted cannot be taken back, so one that is older, or
    /// whose code rounds down more, changes nothing.
    pub(crate) fn on_acknowledge(&mut self, aeth: Aeth) {
        let Syndrome::Ack(code) = aeth.syndrome else { return };
        let told = credits_of(code).map(|credits| Psn::new(aeth.msn).plus(credits));
        self.last = match (self.last, told) {
            (Some(last), Some(told)) if !told.is_after(last) => Some(last),
            _ => told,
        };
    }

    /// Whether the peer may lack a receive for the message in progress, or for the next one if that `begins`, or has
    /// none for those behind it.
    pub(crate) fn is_short(&self, begins: bool) -> bool {
        let message = if begins { self.begun.plus(1) } else { self.begun };
        self.last.is_some_and(|last| message.is_after(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(msn: u32, code: u8) -> Aeth {
        Aeth { syndrome: Syndrome::Ack(code), msn }
    }

    #[test]
    fn as_many_as_the_peer_has_receives_for() {
        let mut credits = Credits::default();
        assert!(!credits.is_short(true), "nothing is known");
        credits.on_message();
        credits.on_acknowledge(ack(1, 2));
        credits.on_message();
        assert!(!credits.is_short(false) && !credits.is_short(true));
        credits.on_message();
        assert!(!credits.is_short(false) && credits.is_short(true), "message 4 of 3");
        credits.on_acknowledge(ack(0, 1));
        credits.on_acknowledge(ack(2, 0));
        assert!(!credits.is_short(false), "an old acknowledgement takes nothing back");
        credits.on_acknowledge(ack(3, 1));
        assert!(!credits.is_short(true));
        credits.on_acknowledge(ack(3, 31));
        (0..1_000).for_each(|_| credits.on_message());
        assert!(!credits.is_short(true), "the peer does not count");
    }

    #[test]
    fn numbers_wrap() {
        let mut credits = Credits { begun: Psn::new(0xff_ffff), last: None };
        credits.on_acknowledge(ack(0xff_ffff, 2));
        credits.on_message();
        assert!(!credits.is_short(false) && !credits.is_short(true));
        credits.on_message();
        assert!(credits.is_short(true));
    }
}
