//! Messages: connections that keep boundaries, as `SOCK_SEQPACKET` sockets do.
//!
//! Owns sending whole. A message enters the ring whole or not at all; the receiving side takes it in parts if its ring
//! is smaller. It must never give out a part of a message.

use std::fmt;
use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Duration;

use control::{PathKind, Reason};
use raas_core::{Incoming, MESSAGE_HEADER_BYTES, Readiness, message_header};

use crate::calls::Calls;
use crate::fallback::NotOverTcp;
use crate::flags::{Flags, Transport};
use crate::message_error::{MessageError, receive_error};
use crate::park::lock;
use crate::stream::Stream;

/// A connection of messages: each arrives as it was sent, whole and in order, or the connection fails.
///
/// Messages have no numbers. So a program must not send a request and receive the next message as its reply after a
/// receive that ran out of time: it would take the late reply for the reply to the next request.
/// [`MessageStream::call`] sees to that.
///
/// Both ends are of this kind: a [`Stream`] that connects to a [`MessageListener`](crate::MessageListener), and the
/// other way round, is refused with [`Reason::WrongKind`].
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// let message = raas::MessageStream::connect("10.0.0.2:7000")?;
/// message.send(b"first")?;
/// message.send(b"second")?;
/// let mut buffer = vec![0; message.len_max()];
/// while let Some(len) = message.receive(&mut buffer)? {
///     println!("{} bytes: {:?}", len, &buffer[..len]);
/// }
/// # Ok(())
/// # }
/// ```
pub struct MessageStream {
    pub(crate) stream: Stream,
    incoming: Arc<Mutex<Incoming>>,
    pub(crate) calls: Arc<Calls>,
}

impl MessageStream {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, incoming: Arc::default(), calls: Arc::default() }
    }

    /// The longest message that can be sent here: this end's ring less the header.
    pub fn len_max(&self) -> usize {
        // Connecting and listening refuse messages over anything but rings.
        self.stream
            .carrier
            .rings(NotOverTcp::Messages)
            .map_or(0, |conn| conn.tx_bytes().saturating_sub(MESSAGE_HEADER_BYTES))
    }

    /// Sends one message, which may be empty; waits while there is no room for all of it. On an error none of it was
    /// sent.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        self.send_vectored(&[IoSlice::new(message)])
    }

    /// As [`MessageStream::send`], where the caller names the transport and the verb; what the connection does not have
    /// is refused, and nothing is sent then.
    pub fn send_with(&self, message: &[u8], flags: Flags) -> io::Result<()> {
        flags.check(Transport::Rc)?;
        self.send(message)
    }

    /// Sends the parts as one message.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let conn = self.stream.carrier.rings(NotOverTcp::Messages)?;
        let len = parts.iter().map(|p| p.len()).sum();
        let header = self.header(len)?;
        if let [only] = parts {
            return conn.write_whole(&[IoSlice::new(&header), IoSlice::new(only)], MESSAGE_HEADER_BYTES + len);
        }
        let mut all = Vec::with_capacity(1 + parts.len());
        all.push(IoSlice::new(&header));
        all.extend(parts.iter().map(|p| IoSlice::new(p)));
        conn.write_whole(&all, MESSAGE_HEADER_BYTES + len)
    }

    /// What goes before a message of `len` bytes.
    fn header(&self, len: usize) -> Result<[u8; MESSAGE_HEADER_BYTES], MessageError> {
        Ok(message_header(len, self.len_max())?)
    }

    /// Receives the next message and says how long it is; None at the end. If `buf` is too small the message is kept,
    /// and the error says its size ([`MessageError::BufferTooSmall`]). Waits as [`Stream`]'s `read` does.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive_by(buf, &mut |part| (&self.stream).read(part))
    }

    /// Receives by `read`; what was taken before it fails is kept for the next call.
    fn receive_by(
        &self,
        buf: &mut [u8],
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        self.stream.carrier.check_fork()?;
        lock(&self.incoming).receive(buf, read).map_err(receive_error)
    }

    /// Receives the next message, however long it is; None at the end.
    pub fn receive_vec(&self) -> io::Result<Option<Vec<u8>>> {
        let mut buf = Vec::new();
        loop {
            match self.receive(&mut buf) {
                Ok(len) => return Ok(len.map(|_| buf)),
                Err(e) => buf.resize(MessageError::len_wanted(e)?, 0),
            }
        }
    }

    /// Sends and receives that would wait fail with [`io::ErrorKind::WouldBlock`]; a message is then not sent at all.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.stream.set_nonblocking(nonblocking)
    }

    /// As [`Stream::readiness`]; with [`Readiness::WRITE`] there is some room, and a long message may still not fit.
    pub fn readiness(&self) -> io::Result<Readiness> {
        self.stream.readiness()
    }

    /// As [`Stream::ready_fd`].
    pub fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.stream.ready_fd()
    }

    /// The descriptor of `ready_fd`, which was made before.
    pub(crate) fn made_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.stream.made_fd()
    }

    /// Bounds each wait of a receive; see [`Stream::set_read_timeout`]. A message of which a part came is kept.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(timeout)
    }

    /// Bounds each send.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_write_timeout(timeout)
    }

    /// As [`Stream::set_peer_timeout`].
    pub fn set_peer_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_peer_timeout(timeout)
    }

    /// What [`MessageStream::set_peer_timeout`] set.
    pub fn peer_timeout(&self) -> Option<Duration> {
        self.stream.peer_timeout()
    }

    /// Ends a direction or both, as [`Stream::shutdown`].
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.stream.shutdown(how)
    }

    /// The other end, as [`Stream::peer_addr`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// This end, as [`Stream::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Another handle on the same connection, as [`Stream::try_clone`]: each message is received by one of them.
    pub fn try_clone(&self) -> io::Result<Self> {
        let (stream, incoming) = (self.stream.try_clone()?, Arc::clone(&self.incoming));
        Ok(Self { stream, incoming, calls: Arc::clone(&self.calls) })
    }

    /// The connection's number on this host, as in `raas ss`.
    pub fn id(&self) -> u64 {
        self.stream.id()
    }

    /// How the bytes travel.
    pub fn path(&self) -> PathKind {
        self.stream.path()
    }

    /// Why the connection is broken, if it is.
    pub fn failure(&self) -> Option<Reason> {
        self.stream.failure()
    }
}

#[cfg(feature = "tokio")]
impl MessageStream {
    /// As [`MessageStream::send`], for tasks.
    pub(crate) fn poll_send(&self, context: &mut Context<'_>, message: &[u8]) -> Poll<io::Result<()>> {
        let conn = self.stream.carrier.rings(NotOverTcp::Messages)?;
        let header = self.header(message.len()).map_err(io::Error::from)?;
        let whole = [IoSlice::new(&header), IoSlice::new(message)];
        conn.poll_write_whole(context, &whole, MESSAGE_HEADER_BYTES + message.len())
    }

    /// As [`MessageStream::receive`], for tasks.
    pub(crate) fn poll_receive(&self, context: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<Option<usize>>> {
        let mut is_pending = false;
        let received = self.receive_by(buf, &mut |part| match self.stream.carrier.poll_read(context, part) {
            Poll::Ready(count) => count,
            Poll::Pending => {
                is_pending = true;
                Err(io::ErrorKind::WouldBlock.into())
            }
        });
        if is_pending { Poll::Pending } else { Poll::Ready(received) }
    }
}

impl fmt::Debug for MessageStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MessageStream").field(&self.stream).finish()
    }
}
