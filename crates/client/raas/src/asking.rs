//! Requests to the daemon: sent now, or to the next daemon if this one has ended before anything of them was sent.
//!
//! Owns which of the two. It must never send a request twice, and never keep one that a daemon may have heard.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use control::{ChannelError, Reason, Request};
use raas_core::{RequestId, Session};
use rustix::event::PollFlags;

use crate::attachment::{Attachment, SEND_TIMEOUT, Sent};
use crate::descriptor::{is_hung_up, wait_for};
use crate::error::SessionError;
use crate::park::lock;
use crate::poller::Waiter;

impl Attachment {
    /// Begins a request that `make` describes, sends it, and has `waiters` notified of its answer. One of which nothing
    /// could be sent is sent to the next daemon, for as long as the session waits for that.
    pub(crate) fn ask(
        &self,
        waiters: Vec<Waiter>,
        make: impl FnOnce(&mut Session) -> (RequestId, Request),
    ) -> Result<RequestId, SessionError> {
        self.check_fork()?;
        let (id, request) = self.begin(waiters, make);
        match self.try_send(&request, &[]) {
            Ok(Sent::Yes) => Ok(id),
            Ok(Sent::No) => self.keep_unsent(id, request).map(|()| id),
            Err(e) => {
                drop(lock(&self.tables).finish(id));
                Err(e)
            }
        }
    }

    /// As [`Self::ask`], with descriptors. It fails if the daemon has ended.
    pub(crate) fn ask_with(
        &self,
        waiters: Vec<Waiter>,
        fds: &[BorrowedFd<'_>],
        make: impl FnOnce(&mut Session) -> (RequestId, Request),
    ) -> Result<RequestId, SessionError> {
        self.check_fork()?;
        let (id, request) = self.begin(waiters, make);
        self.send(&request, fds).map(|()| id).inspect_err(|_| drop(lock(&self.tables).finish(id)))
    }

    fn begin(
        &self,
        waiters: Vec<Waiter>,
        make: impl FnOnce(&mut Session) -> (RequestId, Request),
    ) -> (RequestId, Request) {
        let mut tables = lock(&self.tables);
        let (id, request) = make(&mut tables.session);
        tables.wait_for(id, waiters);
        (id, request)
    }

    /// Whether a request waits for the next daemon.
    pub(crate) fn is_unsent(&self, request: RequestId) -> bool {
        lock(&self.tables).session.is_unsent(request)
    }

    fn keep_unsent(&self, id: RequestId, request: Request) -> Result<(), SessionError> {
        let is_kept = lock(&self.tables).session.keep_unsent(id, request);
        if !is_kept && self.is_away() {
            drop(lock(&self.tables).finish(id));
            return Err(SessionError::Lost { reason: Reason::DaemonLost });
        }
        if !is_kept {
            // Its waiter finds the loss, with the daemon's last message if there was one.
            return Ok(());
        }
        // The next daemon may have come between the try and this.
        if !self.is_away() && !matches!(is_hung_up(self.control.as_fd()), Ok(true)) {
            self.send_unsent();
        }
        Ok(())
    }

    /// Sends what a daemon before this one did not get. What the socket does not take within a bound stays, and its
    /// caller gives up at a time of its own.
    pub(crate) fn send_unsent(&self) {
        let deadline = Instant::now() + SEND_TIMEOUT;
        while self.send_some_unsent() {
            if !matches!(wait_for(self.control.as_fd(), PollFlags::OUT, deadline), Ok(true)) {
                return;
            }
        }
    }

    /// True: the socket is full. A request is sent and taken out under the lock under which a death fails what was
    /// sent: so the death of this daemon finds it in one of both places.
    fn send_some_unsent(&self) -> bool {
        let mut tables = lock(&self.tables);
        while !self.is_away() && self.lost().is_none() {
            let Some((id, request)) = tables.session.first_unsent() else { return false };
            match control::send_message(self.control.as_fd(), request, &[]) {
                Ok(()) => tables.session.on_sent(id),
                Err(ChannelError::WouldBlock) => return true,
                // This one has ended too.
                Err(_) => return false,
            }
        }
        false
    }
}
