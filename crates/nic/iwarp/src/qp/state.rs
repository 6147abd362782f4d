//! The states of a stream, and the waits that have an end.
//!
//! ```text
//!            connect                 reply
//!   Idle ───────────────► Requesting ─────► Open ──── close ───► Closing ──┐
//!     └──── accept ────────────────────────► │                             ├─► Over
//!                        fault, Terminate, end of input, abort ─► Ending ──┘
//! ```

use std::time::Duration;

use verbs::Time;

use crate::limits::{LINGER_MAX, STARTUP_MAX};

/// State of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// There is no TCP connection yet; work waits.
    Idle,
    /// The MPA request is on its way, the reply is awaited.
    Requesting,
    /// Frames go both ways.
    Open,
    /// What was posted still goes out; then this end of the connection is shut down.
    Closing,
    /// All work is flushed. What is built goes out, and what comes in is not looked at.
    Ending,
    /// The connection is of no more use.
    Over,
}

impl State {
    /// Work requests are executed, now or later.
    pub(super) const fn takes_work(self) -> bool {
        matches!(self, Self::Idle | Self::Requesting | Self::Open)
    }

    /// Frames of the peer have a meaning.
    pub(super) const fn receives(self) -> bool {
        matches!(self, Self::Requesting | Self::Open | Self::Closing)
    }

    /// Nothing more comes of it.
    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Over)
    }

    /// Work requests are turned into frames.
    pub(super) const fn sends(self) -> bool {
        matches!(self, Self::Open | Self::Closing)
    }
}

/// A wait with an end. It begins at the next look at the clock, which the owner has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Wait {
    #[default]
    None,
    Begins(Duration),
    Until(Time),
}

impl Wait {
    pub(super) const STARTUP: Self = Self::Begins(STARTUP_MAX);
    pub(super) const LINGER: Self = Self::Begins(LINGER_MAX);

    /// When the owner has to look at the clock.
    pub(super) const fn deadline(self) -> Option<Time> {
        match self {
            Self::None => None,
            Self::Begins(_) => Some(Time::ZERO),
            Self::Until(at) => Some(at),
        }
    }

    /// Looks at the clock: whether the wait is over.
    pub(super) fn is_over(&mut self, now: Time) -> bool {
        match *self {
            Self::None => false,
            Self::Begins(length) => {
                *self = Self::Until(now + length);
                false
            }
            Self::Until(at) => now >= at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_state_allows() {
        use State::*;
        let table = [
            (Idle, true, false, false),
            (Requesting, true, true, false),
            (Open, true, true, true),
            (Closing, false, true, true),
            (Ending, false, false, false),
            (Over, false, false, false),
        ];
        for (state, work, receives, sends) in table {
            assert_eq!((state.takes_work(), state.receives(), state.sends()), (work, receives, sends), "{state:?}");
        }
    }

    #[test]
    fn a_wait_begins_at_the_first_look_at_the_clock() {
        let mut wait = Wait::LINGER;
        assert_eq!(wait.deadline(), Some(Time::ZERO));
        let start = Time(5_000_000_000);
        assert!(!wait.is_over(start));
        assert_eq!(wait.deadline(), Some(start + LINGER_MAX));
        assert!(!wait.is_over(Time(5_999_999_999)) && wait.is_over(Time(6_000_000_000)));
        assert!(!Wait::None.is_over(Time(u64::MAX)) && Wait::None.deadline().is_none());
    }
}
