//! Same-host connections of a session that is lost. They go on, since no daemon is on their path, so each daemon that comes
//! is told of them: else `raas ss` would not show them after a stop in order, or a daemon that came late.
//!
//! Owns when a daemon is looked for, and what it is told. Nothing is asked of it: what the program opens from here on is in
//! another session.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use control::{Reason, Request, Role};

use crate::attachment::Attachment;
use crate::control_socket::{Bringing, knock};
use crate::descriptor::is_hung_up;
use crate::error::SessionError;
use crate::kept::Showing;
use crate::park::lock;
use crate::returning::{ANSWER_WAIT, PAUSE_FIRST, is_worth_a_try, jittered};

/// Longest pause between two looks for a daemon. It may come at any time, so they go on as long as the connections.
const PAUSE_MAX: Duration = Duration::from_secs(2);

impl Attachment {
    /// The session is lost: from here on the next daemon is looked for, if there is something to show.
    pub(crate) fn begin_showing(&self, reason: Reason) {
        let is_end = matches!(reason, Reason::ShuttingDown | Reason::DaemonLost);
        if is_end && !self.config.daemon_wait.is_zero() && self.has_pairs() {
            *lock(&self.showing) = Showing::Looks { next_try: Instant::now(), pause: PAUSE_FIRST };
        }
    }

    fn has_pairs(&self) -> bool {
        !lock(&self.tables).session.show_messages(&self.returning.segment).is_empty()
    }

    /// How long a thread that follows the session may sleep before it looks for a daemon.
    pub(crate) fn look_due(&self) -> Option<Duration> {
        if !self.is_over() {
            return self.return_due();
        }
        match &*lock(&self.showing) {
            Showing::Looks { next_try, .. } => Some(next_try.saturating_duration_since(Instant::now())),
            Showing::Not | Showing::Shown => None,
        }
    }

    /// Looks for the daemon that is to show the connections, if it is time. To be called by the thread that follows the
    /// session.
    pub(crate) fn try_show(&self) {
        if !self.is_over() {
            return;
        }
        let mut state = lock(&self.showing);
        let pause = match &*state {
            Showing::Shown if matches!(is_hung_up(self.control.as_fd()), Ok(false)) => return,
            Showing::Shown => PAUSE_FIRST,
            Showing::Looks { next_try, pause } if Instant::now() >= *next_try => *pause,
            Showing::Not | Showing::Looks { .. } => return,
        };
        *state = match self.show() {
            Ok(state) => state,
            Err(error) if is_worth_a_try(&error) => {
                Showing::Looks { next_try: Instant::now() + jittered(pause), pause: (2 * pause).min(PAUSE_MAX) }
            }
            Err(error) => {
                tracing::debug!(%error, "no daemon shows the same-host connections of before");
                Showing::Not
            }
        };
    }

    fn show(&self) -> Result<Showing, SessionError> {
        let deadline = Instant::now() + ANSWER_WAIT;
        let socket = knock(&self.config.path, deadline)?;
        let messages = lock(&self.tables).session.show_messages(&self.returning.segment);
        if messages.is_empty() {
            return Ok(Showing::Not);
        }
        let hello = raas_core::Greeting::new(Role::Returning, self.config.name.clone()).hello();
        let mut bringing = Bringing::new(socket, std::iter::once((hello, None)).chain(messages));
        let Some((reply, fds)) = bringing.answer(deadline)? else {
            return Err(SessionError::Silent { path: self.config.path.clone(), waited: ANSWER_WAIT });
        };
        let given = lock(&self.tables).session.returned(reply, fds)?;
        self.take_descriptors(bringing.socket(), given.wakes)?;
        Ok(Showing::Shown)
    }

    /// Something to be said of the connections, in the session that is lost.
    pub(crate) fn tell_shown(&self, request: &Request) {
        if let (Showing::Shown, Request::PairClosed { .. }) = (&*lock(&self.showing), request) {
            // A daemon that does not read shows a row too many until this process ends.
            let _ = control::send_message(self.control.as_fd(), request, &[]);
        }
    }
}
