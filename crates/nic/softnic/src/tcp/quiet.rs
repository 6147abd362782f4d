//! Whether anything comes back over a TCP connection for what was sent on it, as the kernel's TCP sees it.
//!
//! Owns when the kernel is asked, and what counts as silence. The peer's program has no part in it: a peer that does not
//! read, or stands still, has a kernel that answers.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use verbs::Time;

use crate::sys::path_state::awaited;

/// How often the kernel is asked while something waits for an answer.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Silence that is told, on a near path. Longer than TCP's first retransmission (200 ms) and its answer take.
const QUIET_MIN: Duration = Duration::from_millis(300);
/// Round trips that are added.
const QUIET_ROUND_TRIPS: u32 = 3;
/// Looks in a row that find it so: a question of TCP may have been on its way in one of them.
const LOOKS: u32 = 2;
/// Pause before it is told again.
const AGAIN: Duration = Duration::from_millis(250);

/// The silence of one connection.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// Nothing came back since then, as far as is known.
    since: Time,
    /// `None`: nothing waits for an answer.
    next_look: Option<Time>,
    looks: u32,
}

impl Quiet {
    /// Something left, or the connection begins.
    pub(super) fn on_sent(&mut self, now: Time) {
        if self.next_look.is_none() {
            (self.since, self.next_look, self.looks) = (now, Some(now + LOOK_PAUSE), 0);
        }
    }

    /// When [`Self::look`] has something to do.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.next_look
    }

    /// Asks the kernel, if it is time. For how long nothing came back, if that is to be told now.
    pub(super) fn look(&mut self, fd: &OwnedFd, now: Time) -> Option<Duration> {
        self.next_look.filter(|at| *at <= now)?;
        self.next_look = None;
        // What the kernel does not say anything of is not judged.
        let state = awaited(fd.as_fd()).ok().filter(|state| state.is_unanswered || state.has_unsent)?;
        // A connection that was never answered was heard before it was there.
        let heard = Time(now.as_nanos().saturating_sub(u64::try_from(state.heard.as_nanos()).unwrap_or(u64::MAX)));
        self.since = self.since.max(heard);
        let silent = now.saturating_since(self.since);
        let is_silent = state.is_unanswered && silent >= QUIET_MIN + state.round_trip * QUIET_ROUND_TRIPS;
        self.looks = if is_silent { self.looks + 1 } else { 0 };
        if self.looks < LOOKS {
            self.next_look = Some(now + LOOK_PAUSE);
            return None;
        }
        (self.next_look, self.looks) = (Some(now + AGAIN), LOOKS - 1);
        Some(silent)
    }
}
