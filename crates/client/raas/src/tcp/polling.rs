//! Reading and writing over kernel TCP for tasks: what cannot be done now wakes the task when it can.
//!
//! Owns the order: the waker stands before the last look. It must never depend on whether the socket blocks, which
//! threads may set meanwhile.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use raas_core::Side;
use rustix::event::epoll::EventFlags;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use super::TcpConn;
use crate::poller::Poller;
use crate::socket_watch::Awaited;

/// The tasks that wait for a connection.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    poller: Arc<Poller>,
    awaited: Awaited,
}

impl TcpConn {
    pub(crate) fn poll_read(&self, context: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() || self.is_read_shut() {
            return Poll::Ready(Ok(0));
        }
        let polled = self.poll_now(Side::Read, context, &mut || {
            let (_, count) = recv(&self.socket, &mut *buf, RecvFlags::DONTWAIT)?;
            Ok(count)
        });
        polled.map(|done| done.and_then(|count| self.end_of(count)))
    }

    pub(crate) fn poll_write(&self, context: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.poll_now(Side::Write, context, &mut || {
            Ok(sendmsg(&self.socket, bufs, &mut SendAncillaryBuffer::default(), flags)?)
        })
    }

    fn poll_now(
        &self,
        side: Side,
        context: &Context<'_>,
        call: &mut dyn FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let mut is_announced = false;
        loop {
            match call() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if is_announced {
                        return Poll::Pending;
                    }
                    is_announced = true;
                    let what = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP;
                    self.tasks.poller.set_waker(side, context.waker());
                    self.tasks.awaited.ensure(self.socket.as_fd(), what, &self.tasks.poller)?;
                }
                Err(e) => return Poll::Ready(Err(self.on_error(e))),
                Ok(count) => return Poll::Ready(Ok(count)),
            }
        }
    }
}
