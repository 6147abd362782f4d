//! Looking for the other end of a kernel TCP connection, to replace the connection by a stream (docs/use/run.md): for
//! libraries that stand between a program and its sockets.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use control::Request;
use raas_core::{Answer, RequestId};

pub use control::{MeetingPlace, Rendezvous, TcpEnd};

use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::lock;
use crate::{Reason, Session};

/// How a search ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The other end is there, or was sent to this end's listener.
    Met(MeetingPlace),
    /// The connection stays on TCP.
    Stays(Reason),
}

/// A search for the other end, under way at the daemon. It has no time limit. While it is there, `raas ss` shows the
/// connection; dropping it ends the search and takes the row out.
pub struct Meeting {
    attachment: Arc<Attachment>,
    request: RequestId,
    is_answered: bool,
}

impl Meeting {
    /// Begins to look for the other end of `socket`, a connected TCP socket. Returns at once. The daemon reads the
    /// addresses from the socket itself.
    pub fn begin(session: &Session, socket: BorrowedFd<'_>, end: TcpEnd) -> Result<Self, SessionError> {
        let attachment = Arc::clone(&session.attachment);
        let request = attachment.ask_with(Vec::new(), &[socket], |session| session.meet(end))?;
        Ok(Self { attachment, request, is_answered: false })
    }

    /// The answer if it is there by now; once.
    pub fn try_finish(&mut self) -> Result<Option<Found>, SessionError> {
        if self.is_answered {
            return Ok(None);
        }
        self.attachment.check_fork()?;
        self.attachment.look();
        let (answer, lost) = {
            let mut tables = lock(&self.attachment.tables);
            if !tables.is_over(self.request) {
                return Ok(None);
            }
            (tables.finish(self.request), tables.lost())
        };
        self.is_answered = true;
        match (answer, lost) {
            (Some(Answer::Met(Ok(place))), _) => Ok(Some(Found::Met(place))),
            (Some(Answer::Met(Err(reason))), _) => Ok(Some(Found::Stays(reason))),
            (Some(other), _) => Err(SessionError::Protocol(format!("the answer to Meet was {other:?}"))),
            (None, Some(lost)) => Err(lost),
            (None, None) => Err(SessionError::Protocol("the answer to Meet is gone".into())),
        }
    }

    /// Whether the daemon has answered, so that the next [`Meeting::try_finish`] says something; looks at nothing else.
    pub fn is_over(&self) -> bool {
        self.is_answered || self.attachment.check_fork().is_err() || lock(&self.attachment.tables).is_over(self.request)
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        if self.attachment.check_fork().is_err() {
            return;
        }
        if !self.is_answered {
            drop(lock(&self.attachment.tables).finish(self.request));
        }
        self.attachment.tell(&Request::Unmeet { request: self.request.number() });
    }
}

impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meeting").field("request", &self.request).field("is_answered", &self.is_answered).finish()
    }
}

/// Where a listener of this session is reached from this host, for [`Rendezvous::port`].
pub fn port_of(listener: &crate::Listener) -> u16 {
    listener.local_addr().map_or(0, |address: SocketAddr| address.port())
}
