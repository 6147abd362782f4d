//! Messages: connections that keep boundaries, as `SOCK_SEQPACKET` sockets do.
//!
//! Owns the framing: four bytes of length, little-endian, before each message. A message enters the ring whole or not at all;
//! the receiving side takes it in parts if its ring is smaller. It must never give out a part of a message, and never keep
//! more than one.

use std::fmt;
use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use control::{Kind, PathKind, Reason};

use crate::calls::Calls;
use crate::park::lock;
use crate::replies::RING_BYTES_MAX;
use crate::{
    AcceptError, BindError, ConnectError, ConnectOptions, ListenOptions, Listener, NotOverTcp, Readiness, Session,
    Stream,
};

/// Bytes before each message.
const HEADER_BYTES: usize = 4;
/// The longest message that any connection may carry: the largest ring, less its header. What a connection carries is
/// [`Message::len_max`].
pub const MESSAGE_BYTES_MAX: usize = RING_BYTES_MAX as usize - HEADER_BYTES;

/// What is inside the [`io::Error`] of a message that could not be sent or received.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Longer than the connection carries; nothing was sent. Kind: `InvalidInput`.
    #[error(
        "a message of {len} bytes is longer than the {max} that this connection carries: send less, or connect with larger `ring_bytes`"
    )]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes that would fit.
        max: usize,
    },
    /// The buffer is too small; the message waits for the next call. Kind: `InvalidInput`.
    #[error("the next message has {len} bytes, the buffer {buffer}: it was kept, receive it with a larger one")]
    BufferTooSmall {
        /// Bytes of the message.
        len: usize,
        /// Bytes of the buffer.
        buffer: usize,
    },
    /// The peer ended before it answered a [`Message::call`]. Kind: `UnexpectedEof`.
    #[error("the connection ended before the reply came")]
    NoReply,
    /// A call on this connection has no reply, or not yet, so that the next message cannot be told from it. Nothing was
    /// sent. Kind:
    /// `NotConnected`.
    #[error("an earlier call on this connection got no reply, which may still come: connect anew to call again")]
    OutOfStep,
    /// The peer ended in the middle of a message. Kind: `UnexpectedEof`.
    #[error("the connection ended in the middle of a message")]
    Cut,
    /// The peer announced a message that no connection carries: it does not follow the framing. Kind: `InvalidData`.
    #[error("the peer announced a message of {0} bytes, more than any connection carries ({MESSAGE_BYTES_MAX})")]
    Announced(u32),
}

impl MessageError {
    /// The buffer that would have been large enough, if it was that.
    pub(crate) fn len_wanted(error: io::Error) -> io::Result<usize> {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(&Self::BufferTooSmall { len, .. }) => Ok(len),
            _ => Err(error),
        }
    }
}

crate::error::debug_says_the_words!(MessageError);

impl From<MessageError> for io::Error {
    fn from(e: MessageError) -> Self {
        let kind = match e {
            MessageError::TooLong { .. } | MessageError::BufferTooSmall { .. } => io::ErrorKind::InvalidInput,
            MessageError::Cut | MessageError::NoReply => io::ErrorKind::UnexpectedEof,
            MessageError::OutOfStep => io::ErrorKind::NotConnected,
            MessageError::Announced(_) => io::ErrorKind::InvalidData,
        };
        Self::new(kind, e)
    }
}

/// A connection of messages: each arrives as it was sent, whole and in order, or the connection fails.
///
/// Messages have no numbers: who sends a request and receives the next message as its reply must not do so after a
/// receive that ran out of time, since the late reply would be taken for the next one's. [`Message::call`] sees to
/// that.
///
/// Both ends are of this kind: a [`Stream`] that connects to a [`MessageListener`], and the other way round, is refused with
/// [`Reason::WrongKind`].
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// let message = raas::Message::connect("10.0.0.2:7000")?;
/// message.send(b"first")?;
/// message.send(b"second")?;
/// let mut buffer = vec![0; message.len_max()];
/// while let Some(len) = message.receive(&mut buffer)? {
///     println!("{} bytes: {:?}", len, &buffer[..len]);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Message {
    pub(crate) stream: Stream,
    incoming: Arc<Mutex<Incoming>>,
    pub(crate) calls: Arc<Calls>,
}

/// Reads some bytes, or 0 at the end.
type ReadSome<'a> = dyn FnMut(&mut [u8]) -> io::Result<usize> + 'a;

/// The message that is being received.
#[derive(Debug, Default)]
struct Incoming {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    /// What was taken of it before a call had to return.
    body: Vec<u8>,
}

impl Message {
    /// Connects, in the process-wide session, to the first of the addresses that answers.
    pub fn connect(addr: impl ToSocketAddrs) -> Result<Self, ConnectError> {
        Self::connect_with(&Session::global()?, addr, ConnectOptions::new())
    }

    /// As [`Message::connect`], in a session of the caller's and with settings.
    pub fn connect_with(
        session: &Session,
        addr: impl ToSocketAddrs,
        options: ConnectOptions,
    ) -> Result<Self, ConnectError> {
        options.kind(Kind::Message).connect(session, addr).map(Self::new)
    }

    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, incoming: Arc::default(), calls: Arc::default() }
    }

    /// The longest message that can be sent here: this end's ring less the header.
    pub fn len_max(&self) -> usize {
        // Connecting and listening refuse messages over anything but rings.
        self.stream.carrier.rings(NotOverTcp::Messages).map_or(0, |conn| conn.tx_bytes().saturating_sub(HEADER_BYTES))
    }

    /// Sends one message, which may be empty; waits while there is no room for all of it. On an error none of it was sent.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        self.send_vectored(&[IoSlice::new(message)])
    }

    /// Sends the parts as one message.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let conn = self.stream.carrier.rings(NotOverTcp::Messages)?;
        let len = parts.iter().map(|p| p.len()).sum();
        let header = self.header(len)?;
        if let [only] = parts {
            return conn.write_whole(&[IoSlice::new(&header), IoSlice::new(only)], HEADER_BYTES + len);
        }
        let mut all = Vec::with_capacity(1 + parts.len());
        all.push(IoSlice::new(&header));
        all.extend(parts.iter().map(|p| IoSlice::new(p)));
        conn.write_whole(&all, HEADER_BYTES + len)
    }

    /// What goes before a message of `len` bytes.
    fn header(&self, len: usize) -> Result<[u8; HEADER_BYTES], MessageError> {
        let max = self.len_max();
        let fits = u32::try_from(len).ok().filter(|_| len <= max);
        fits.map(u32::to_le_bytes).ok_or(MessageError::TooLong { len, max })
    }

    /// Receives the next message and says how long it is; None at the end. If `buf` is too small the message is kept, and the
    /// error says its size ([`MessageError::BufferTooSmall`]). Waits as [`Stream`]'s `read` does.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive_by(buf, &mut |part| (&self.stream).read(part))
    }

    /// Receives by `read`; what was taken before it fails is kept for the next call.
    fn receive_by(&self, buf: &mut [u8], read: &mut ReadSome<'_>) -> io::Result<Option<usize>> {
        let mut incoming = lock(&self.incoming);
        let Some(len) = next_len(&mut incoming, read)? else { return Ok(None) };
        let buffer = buf.len();
        let Some(buf) = buf.get_mut(..len) else {
            return Err(MessageError::BufferTooSmall { len, buffer }.into());
        };
        let mut have = incoming.body.len();
        buf[..have].copy_from_slice(&incoming.body);
        if let Err(e) = fill(buf, &mut have, read) {
            incoming.body.clear();
            incoming.body.extend_from_slice(&buf[..have]);
            return Err(e);
        }
        *incoming = Incoming::default();
        Ok(Some(len))
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

    /// What [`Message::set_peer_timeout`] set.
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

/// The length of the next message, once its header is there.
fn next_len(incoming: &mut Incoming, read: &mut ReadSome<'_>) -> io::Result<Option<usize>> {
    while incoming.header_bytes < HEADER_BYTES {
        let count = read(&mut incoming.header[incoming.header_bytes..])?;
        match (count, incoming.header_bytes) {
            (0, 0) => return Ok(None),
            (0, _) => return Err(MessageError::Cut.into()),
            _ => incoming.header_bytes += count,
        }
    }
    let len = u32::from_le_bytes(incoming.header);
    match usize::try_from(len) {
        Ok(len) if len <= MESSAGE_BYTES_MAX => Ok(Some(len)),
        _ => Err(MessageError::Announced(len).into()),
    }
}

fn fill(buf: &mut [u8], have: &mut usize, read: &mut ReadSome<'_>) -> io::Result<()> {
    while *have < buf.len() {
        match read(&mut buf[*have..])? {
            0 => return Err(MessageError::Cut.into()),
            count => *have += count,
        }
    }
    Ok(())
}

#[cfg(feature = "tokio")]
impl Message {
    /// As [`Message::send`], for tasks.
    pub(crate) fn poll_send(&self, context: &mut Context<'_>, message: &[u8]) -> Poll<io::Result<()>> {
        let conn = self.stream.carrier.rings(NotOverTcp::Messages)?;
        let header = self.header(message.len()).map_err(io::Error::from)?;
        let whole = [IoSlice::new(&header), IoSlice::new(message)];
        conn.poll_write_whole(context, &whole, HEADER_BYTES + message.len())
    }

    /// As [`Message::receive`], for tasks.
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

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Message").field(&self.stream).finish()
    }
}

/// A port of this host on which connections of messages are accepted.
#[derive(Debug)]
pub struct MessageListener(Listener);

impl MessageListener {
    #[cfg(feature = "tokio")]
    pub(crate) fn new(listener: Listener) -> Self {
        Self(listener)
    }

    /// Listens, in the process-wide session; as [`Listener::bind`].
    pub fn bind(addr: impl ToSocketAddrs) -> Result<Self, BindError> {
        Self::bind_with(&Session::global()?, addr, ListenOptions::new())
    }

    /// As [`MessageListener::bind`], in a session of the caller's and with settings.
    pub fn bind_with(session: &Session, addr: impl ToSocketAddrs, options: ListenOptions) -> Result<Self, BindError> {
        options.kind(Kind::Message).bind(session, addr).map(Self)
    }

    /// As [`MessageListener::accept`], for tasks: of those that poll one listener the last is woken.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<(Message, SocketAddr), AcceptError>> {
        self.0.poll_accept(context).map_ok(|(stream, peer)| (Message::new(stream), peer))
    }

    /// As [`Listener::accept`].
    pub fn accept(&self) -> Result<(Message, SocketAddr), AcceptError> {
        self.0.accept().map(|(stream, peer)| (Message::new(stream), peer))
    }

    /// As [`Listener::accept_timeout`].
    pub fn accept_timeout(&self, timeout: Duration) -> Result<(Message, SocketAddr), AcceptError> {
        self.0.accept_timeout(timeout).map(|(stream, peer)| (Message::new(stream), peer))
    }

    /// As [`Listener::set_nonblocking`].
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }

    /// As [`Listener::readiness`].
    pub fn readiness(&self) -> io::Result<Readiness> {
        self.0.readiness()
    }

    /// As [`Listener::ready_fd`].
    pub fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.ready_fd()
    }

    /// The descriptor of `ready_fd`, which was made before.
    pub(crate) fn made_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.made_fd()
    }

    /// Where it listens, as [`Listener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// As [`Listener::try_clone`].
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Connections as they come, without end; as [`Listener::incoming`].
    pub fn incoming(&self) -> IncomingMessages<'_> {
        IncomingMessages { listener: self }
    }
}

impl<'a> IntoIterator for &'a MessageListener {
    type Item = Result<Message, AcceptError>;
    type IntoIter = IncomingMessages<'a>;

    fn into_iter(self) -> IncomingMessages<'a> {
        self.incoming()
    }
}

/// Connections of messages as they come; made by [`MessageListener::incoming`].
#[derive(Debug)]
pub struct IncomingMessages<'a> {
    listener: &'a MessageListener,
}

impl Iterator for IncomingMessages<'_> {
    type Item = Result<Message, AcceptError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(message, _)| message))
    }
}
