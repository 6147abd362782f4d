//! A port that is listened on, through the losses of the daemon.
//!
//! Owns the session that the port is open in, the error that reports its loss, and the tries to listen again. It must
//! never report one loss twice, never try without a pause, and never leave a port open at the daemon that no listener
//! has.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::attachment::{Attachment, Recover};
use crate::error::{AcceptError, BindError, SessionError};
use crate::flags::Flags;
use crate::listen_options::ListenOptions;
use crate::park::lock;
use crate::poller::Poller;
use crate::reactor::sleep_bound;
use crate::tcp_listener::KernelListener;

/// Pause after the first try to listen again; each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a daemon may take to answer one try.
const TRY_MAX: Duration = Duration::from_secs(2);

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Listening {
    options: ListenOptions,
    pub(crate) local: SocketAddr,
    /// Kernel TCP in addition to it, if asked for.
    pub(crate) kernel: Option<KernelListener>,
    pub(crate) poller: Arc<Poller>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    attachment: Arc<Attachment>,
    /// The session is lost, and the port with it.
    is_lost: bool,
    /// What the next `accept` fails with.
    untold: Option<AcceptError>,
    /// How the last failed try was reported, so that it is reported once.
    told: Option<String>,
    /// Some thread is trying.
    is_tried: bool,
    next_try: Instant,
    pause: Duration,
}

impl State {
    /// Looks whether the session is lost.
    fn notice(&mut self, local: SocketAddr) {
        if self.is_lost {
            return;
        }
        let (lost, is_port_lost) = {
            let mut tables = lock(&self.attachment.tables);
            (tables.lost(), tables.session.take_lost_port(local.port()))
        };
        if is_port_lost && lost.is_none() {
            // The try that follows tells why.
            self.is_lost = true;
            (self.next_try, self.pause) = (Instant::now(), PAUSE_FIRST);
        }
        if let Some(lost) = lost {
            tracing::warn!(%local, cause = %lost, "the daemon is lost: listening again as soon as there is one");
            (self.is_lost, self.untold) = (true, Some(lost.into()));
            (self.next_try, self.pause) = (Instant::now(), PAUSE_FIRST);
        }
    }
}

impl Listening {
    /// The port is open in `attachment` for `local`.
    pub(crate) fn start(
        options: ListenOptions,
        attachment: &Arc<Attachment>,
        local: SocketAddr,
        kernel: Option<KernelListener>,
    ) -> Result<Arc<Self>, SessionError> {
        let state = State {
            attachment: Arc::clone(attachment),
            is_lost: false,
            untold: None,
            told: None,
            is_tried: false,
            next_try: Instant::now(),
            pause: PAUSE_FIRST,
        };
        let (poller, state) = (Arc::default(), Mutex::new(state));
        // From here on dropping it closes the port.
        let listening = Arc::new(Self { options, local, kernel, poller, state, changed: Condvar::new() });
        listening.settle_in(attachment)?;
        Ok(listening)
    }

    /// Makes the session announce connections that come.
    fn settle_in(self: &Arc<Self>, attachment: &Arc<Attachment>) -> Result<(), SessionError> {
        lock(&attachment.tables).set_poller(self.local.port(), Arc::clone(&self.poller));
        if let Some(kernel) = &self.kernel {
            attachment.watch_listener(kernel.fd(), self.local.port())?;
        }
        let weak: Weak<Self> = Arc::downgrade(self);
        attachment.add_recoverable(weak);
        Ok(())
    }

    /// What accepted connections are to travel by.
    pub(crate) fn flags(&self) -> Flags {
        self.options.flags
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        state.notice(self.local);
        state
    }

    /// The session that the port is, or was last, open in.
    pub(crate) fn attachment(&self) -> Arc<Attachment> {
        Arc::clone(&lock(&self.state).attachment)
    }

    /// Whether the session is lost and the port not open again yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.state().is_lost
    }

    /// Whether there is an error to be reported.
    pub(crate) fn has_error(&self) -> bool {
        self.state().untold.is_some()
    }

    /// The error of a loss, once.
    pub(crate) fn take_error(&self) -> Result<(), AcceptError> {
        self.state().untold.take().map_or(Ok(()), Err)
    }

    /// Tries to listen again if it is time, else waits for it, or for another thread's try, at most until `deadline`.
    pub(crate) fn recover(self: &Arc<Self>, deadline: Option<Instant>) {
        if self.try_again() {
            return;
        }
        let state = self.state();
        if !state.is_lost {
            return;
        }
        let due = if state.is_tried { PAUSE_MAX } else { state.next_try.saturating_duration_since(Instant::now()) };
        let bound = due.min(sleep_bound(deadline));
        match &self.kernel {
            Some(kernel) => {
                drop(state);
                kernel.wait_for(bound);
            }
            None => drop(self.changed.wait_timeout(state, bound).unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Tries to listen again if it is time and nobody else does. False: there was nothing to try.
    fn try_again(self: &Arc<Self>) -> bool {
        let old = {
            let mut state = self.state();
            if !state.is_lost || state.is_tried || Instant::now() < state.next_try {
                return false;
            }
            state.is_tried = true;
            Arc::clone(&state.attachment)
        };
        let again = self.listen_again(&old);
        let mut state = lock(&self.state);
        state.is_tried = false;
        let has_news = match again {
            Ok(attachment) => {
                tracing::info!(local = %self.local, "listening again");
                (state.attachment, state.is_lost, state.told) = (attachment, false, None);
                true
            }
            Err(error) => {
                state.next_try = Instant::now() + state.pause;
                state.pause = (2 * state.pause).min(PAUSE_MAX);
                Self::note(&mut state, error)
            }
        };
        drop(state);
        self.changed.notify_all();
        if has_news {
            self.poller.tell();
        }
        true
    }

    /// Remembers why a try failed, if that is news: that there is no daemon yet is none.
    fn note(state: &mut State, error: BindError) -> bool {
        use SessionError::{Lost, NoDaemon, Silent};
        if matches!(error, BindError::Session(NoDaemon { .. } | Lost { .. } | Silent { .. })) {
            return false;
        }
        let words = error.to_string();
        let is_new = state.told.as_ref() != Some(&words);
        if is_new {
            state.told = Some(words);
            state.untold = Some(match error {
                BindError::Session(e) => e.into(),
                other => AcceptError::NotListening(other),
            });
        }
        is_new
    }

    fn listen_again(self: &Arc<Self>, old: &Arc<Attachment>) -> Result<Arc<Attachment>, BindError> {
        let attachment = old.successor(TRY_MAX)?;
        self.options.ask(&attachment, self.local)?;
        self.kernel.iter().for_each(|kernel| old.unwatch(kernel.fd()));
        if let Err(e) = self.settle_in(&attachment) {
            close(&attachment, self.local.port());
            return Err(e.into());
        }
        Ok(attachment)
    }
}

impl Recover for Listening {
    fn try_recover(self: Arc<Self>) {
        self.try_again();
    }

    fn next_try_in(&self, attachment: &Attachment) -> Option<Instant> {
        let state = self.state();
        let is_its = std::ptr::eq(Arc::as_ptr(&state.attachment), attachment);
        (is_its && state.is_lost).then_some(state.next_try)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let attachment = self.attachment();
        // In a forked child the port is the parent's.
        if attachment.check_fork().is_err() {
            return;
        }
        self.kernel.iter().for_each(|kernel| attachment.unwatch(kernel.fd()));
        close(&attachment, self.local.port());
    }
}

/// Closes a port at the daemon; connections that wait there are reset.
pub(crate) fn close(attachment: &Attachment, port: u16) {
    let request = lock(&attachment.tables).close_port(port);
    attachment.tell(&request);
    // What was said of connections to other processes that waited there; as in `tell`.
    let _ = attachment.send_outgoing();
}
