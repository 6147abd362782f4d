//! Attempts to reach another daemon: their pauses and their end.
//!
//! Owns which failures are worth another attempt, and what the control plane hears at last. It must never try longer
//! than it was given.

use std::time::Duration;

use control::Reason;
use verbs::Time;

/// Pause before the second attempt; it doubles.
const PAUSE: Duration = Duration::from_millis(50);
/// Time of one attempt for its TCP connection. An attempt that began while the peer's host was away hangs for as long as the
/// system sends again, and meanwhile this daemon may refuse the peer's own dials.
const CONNECT: Duration = Duration::from_secs(1);

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterAttempt {
    /// Another attempt at this time.
    Again(Time),
    /// None: tell [`crate::Daemon::handle_dial_failed`] this.
    GiveUp(Reason),
}

/// One dial, of several attempts.
#[derive(Debug)]
pub struct Dialing {
    deadline: Time,
    attempts_left: u64,
    pause: Duration,
}

impl Dialing {
    /// `deadline` bounds all attempts together, of which there are at most `attempts_max`.
    pub fn new(deadline: Time, attempts_max: u64) -> Self {
        Self { deadline, attempts_left: attempts_max, pause: PAUSE }
    }

    /// No attempt goes on longer.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// An attempt begins: its TCP connection must be there by then.
    pub fn connect_by(&self, now: Time) -> Time {
        self.deadline.min(now + CONNECT)
    }

    /// An attempt has no TCP connection in time. It is not counted: the time bounds how many there are.
    pub fn handle_late(&mut self, now: Time) -> AfterAttempt {
        let next = now + PAUSE;
        if next < self.deadline { AfterAttempt::Again(next) } else { AfterAttempt::GiveUp(Reason::PeerUnreachable) }
    }

    /// An attempt failed.
    pub fn handle_failed(&mut self, now: Time, reason: Reason) -> AfterAttempt {
        self.attempts_left = self.attempts_left.saturating_sub(1);
        let next = now + self.pause;
        if self.attempts_left == 0 || !is_worth_another(reason) || next >= self.deadline {
            return AfterAttempt::GiveUp(reason_for_application(reason));
        }
        self.pause *= 2;
        AfterAttempt::Again(next)
    }
}

/// A daemon that is just starting, that died under the handshake, or that many others want, may be there a moment
/// later.
fn is_worth_another(reason: Reason) -> bool {
    matches!(reason, Reason::PeerUnreachable | Reason::PeerBusy)
}

/// What the application hears.
fn reason_for_application(reason: Reason) -> Reason {
    match reason {
        Reason::Closed | Reason::PeerAuth | Reason::PeerVersion | Reason::BadAddress | Reason::PeerLimit => reason,
        Reason::PeerBusy => reason,
        Reason::LocalLimit => Reason::PeerLimit,
        _ => Reason::PeerUnreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    #[test]
    fn an_attempt_does_not_hang_as_long_as_the_dial_may_take() {
        let mut dialing = Dialing::new(ms(8_000), 1);
        let mut now = ms(10);
        let ends: Vec<Time> = std::iter::from_fn(|| {
            let end = dialing.connect_by(now);
            now = match dialing.handle_late(end) {
                AfterAttempt::Again(at) => at,
                AfterAttempt::GiveUp(reason) => {
                    assert_eq!(reason, Reason::PeerUnreachable);
                    return None;
                }
            };
            Some(end)
        })
        .collect();
        assert_eq!(ends[..2], [ms(1_010), ms(2_060)]);
        assert_eq!(ends.len(), 7, "the eighth ends with the time");
    }

    #[test]
    fn attempts_are_few_and_their_pauses_double() {
        let mut dialing = Dialing::new(ms(10_000), 3);
        assert_eq!(dialing.handle_failed(ms(0), Reason::PeerUnreachable), AfterAttempt::Again(ms(50)));
        assert_eq!(dialing.handle_failed(ms(60), Reason::PeerBusy), AfterAttempt::Again(ms(160)));
        assert_eq!(dialing.handle_failed(ms(170), Reason::PeerBusy), AfterAttempt::GiveUp(Reason::PeerBusy));
    }

    #[test]
    fn what_another_attempt_does_not_mend_ends_at_once_and_so_does_the_time() {
        for (reason, told) in [
            (Reason::PeerAuth, Reason::PeerAuth),
            (Reason::PeerVersion, Reason::PeerVersion),
            (Reason::Closed, Reason::Closed),
            (Reason::LocalLimit, Reason::PeerLimit),
            (Reason::Unspecified, Reason::PeerUnreachable),
        ] {
            assert_eq!(Dialing::new(ms(9), 3).handle_failed(ms(0), reason), AfterAttempt::GiveUp(told));
        }
        let end = AfterAttempt::GiveUp(Reason::PeerUnreachable);
        assert_eq!(Dialing::new(ms(50), 3).handle_failed(ms(0), Reason::PeerUnreachable), end);
    }
}
