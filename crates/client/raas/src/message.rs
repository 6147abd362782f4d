//! Messages: connections that keep boundaries, as `SOCK_SEQPACKET` sockets do.
//!
//! Owns sending whole. A message enters the ring whole or not at all; the receiving side takes it in parts if its ring
//! is smaller. It must never give out a part of a message.

use std::fmt;
use std::io::{self, IoSlice, Read as _};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Duration;

use control::{PathKind, Reason};
use raas_core::{Incoming, LOAN_BYTES_MAX, LoanRecord, MESSAGE_HEADER_BYTES, Next, Readiness, message_header};

use crate::calls::Calls;
use crate::carrier::Carrier;
use crate::fallback::NotOverTcp;
use crate::flags::{Flags, Transport};
use crate::lend::{ByReference, Lent, View};
use crate::message_error::{MessageError, receive_error};
use crate::park::lock;
use crate::region::Region;
use crate::stream::Stream;

/// How a receive gets bytes: some, 0 at the end, or why none yet.
type Read<'a> = dyn FnMut(&mut [u8]) -> io::Result<usize> + 'a;

/// A connection of messages: each arrives as it was sent, whole and in order, or the connection fails.
///
/// Messages have no numbers. So a program must not send a request and receive the next message as its reply after a
/// receive that ran out of time: it would take the late reply for the reply to the next request.
/// [`MessageStream::call`] sees to that.
///
/// **On UC** ([`Flags::UC`] at both ends, [`ConnectOptions::flags`](crate::ConnectOptions::flags) and
/// [`ListenOptions::flags`](crate::ListenOptions::flags)) a message arrives whole, once and in order, or not at all, and
/// nothing waits for one that was lost. What finds no room in the receiver's ring is lost too. The last messages before a
/// close may be lost. On one host nothing is lost: there a send waits for room. docs/use/unreliable.md has the rest.
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
    /// None over kernel TCP, where there are no connections of messages, and on UC.
    by_reference: Option<Arc<ByReference>>,
    transport: Transport,
}

impl MessageStream {
    pub(crate) fn new(stream: Stream, transport: Transport) -> Self {
        if let Carrier::Rings(conn) = &stream.carrier
            && let Some(place) = conn.endpoint().direct_place()
        {
            place.carry_messages();
        }
        let by_reference = match &stream.carrier {
            Carrier::Rings(conn) if transport == Transport::Rc => Some(Arc::new(ByReference::new(conn))),
            _ => None,
        };
        Self { stream, incoming: Arc::default(), calls: Arc::default(), by_reference, transport }
    }

    /// What carries it: [`Transport::Rc`], or [`Transport::Uc`] if both ends asked for that ([`Flags::UC`]); then
    /// messages may be lost.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Refuses what needs that no message is lost.
    pub(crate) fn check_reliable(&self, what: &'static str) -> Result<(), MessageError> {
        match self.transport {
            Transport::Uc => Err(MessageError::MayBeLost { what }),
            _ => Ok(()),
        }
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
    /// is refused, and nothing is sent then. A verb holds until another call names one, or none.
    pub fn send_with(&self, message: &[u8], flags: Flags) -> io::Result<()> {
        flags.check(self.transport)?;
        self.stream.carrier.use_verb(flags)?;
        self.send(message)
    }

    /// Sends the parts as one message.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let conn = self.stream.carrier.rings(NotOverTcp::Messages)?;
        let len = parts.iter().map(|p| p.len()).sum();
        let header = self.header(len)?;
        if let [only] = parts {
            return conn.send_message(&[IoSlice::new(&header), IoSlice::new(only)], MESSAGE_HEADER_BYTES + len);
        }
        let mut all = Vec::with_capacity(1 + parts.len());
        all.push(IoSlice::new(&header));
        all.extend(parts.iter().map(|p| IoSlice::new(p)));
        conn.send_message(&all, MESSAGE_HEADER_BYTES + len)
    }

    /// What goes before a message of `len` bytes.
    fn header(&self, len: usize) -> Result<[u8; MESSAGE_HEADER_BYTES], MessageError> {
        Ok(message_header(len, self.len_max())?)
    }

    /// Receives the next message and says how long it is; None at the end. If `buf` is too small the message is kept,
    /// and the error says its size ([`MessageError::BufferTooSmall`]). Waits as [`Stream`]'s `read` does.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive_by(buf, true, &mut |part| (&self.stream).read(part))
    }

    /// Receives by `read`; what was taken before it fails is kept for the next call. `may_fetch`: a message that is lent
    /// by another host may be read there, which takes its time.
    fn receive_by(&self, buf: &mut [u8], may_fetch: bool, read: &mut Read<'_>) -> io::Result<Option<usize>> {
        self.stream.carrier.check_fork()?;
        let mut incoming = lock(&self.incoming);
        let Some(loan) = self.next_loan(&mut incoming, read)? else {
            return incoming.receive(buf, read).map_err(receive_error);
        };
        let (buffer, borrowing) = (buf.len(), &self.by_reference()?.borrowing);
        let len = usize::try_from(loan.len).unwrap_or(usize::MAX);
        if borrowing.is_far() && !may_fetch {
            return Err(MessageError::Lent { len: loan.len }.into());
        }
        let Some(buf) = buf.get_mut(..len) else { return Err(MessageError::BufferTooSmall { len, buffer }.into()) };
        let view = borrowing.view(loan)?;
        // Whether it can be read or not, the message was received.
        incoming.take_loan();
        view.read(0, buf)?;
        Ok(Some(len))
    }

    /// The loan that comes next, if one does; leases before it are followed.
    fn next_loan(&self, incoming: &mut Incoming, read: &mut Read<'_>) -> io::Result<Option<LoanRecord>> {
        loop {
            match incoming.next(read).map_err(receive_error)? {
                Some(Next::Lease(lease)) => self.by_reference()?.borrowing.announce(lease),
                Some(Next::Loan(loan)) => return Ok(Some(loan)),
                Some(Next::OtherWay) => self.stream.carrier.rings(NotOverTcp::Messages)?.change_way()?,
                Some(Next::Bytes(_)) | None => return Ok(None),
            }
        }
    }

    fn by_reference(&self) -> Result<&ByReference, NotOverTcp> {
        self.by_reference.as_deref().ok_or(NotOverTcp::Messages)
    }

    /// Sends `len` bytes at `offset` of a region as a message, **by reference**: no byte is copied here, and on one host
    /// none at all. The slice is lent until the receiver gives it back, which [`Lent`] tells; until then it must not be
    /// written to. Any `receive` of the peer takes such a message; [`MessageStream::receive_view`] does not copy it.
    ///
    /// The handle must allow reading, and its region be one of this host. The process at the other end can then read all
    /// of the region, so lend from regions that were made for it. At most [`LOANS_MAX`](crate::LOANS_MAX) slices of up to
    /// [`LOAN_BYTES_MAX`] bytes are lent at a time on a connection; with one more it fails
    /// with [`MessageError::TooManyLent`]. The first slice of a region asks the daemon.
    pub fn lend(&self, region: &Region, offset: u64, len: u64) -> io::Result<Lent> {
        self.check_reliable("lending")?;
        if len > LOAN_BYTES_MAX {
            return Err(MessageError::SliceTooLong { len }.into());
        }
        let conn = self.stream.carrier.rings(NotOverTcp::Messages)?;
        self.by_reference()?.lend(conn, region, offset, len)
    }

    /// Receives the next message without copying it if it was lent; None at the end. Waits as
    /// [`MessageStream::receive`] does, and a first look at a slice of each region asks the daemon.
    pub fn receive_view(&self) -> io::Result<Option<View>> {
        let view = self.receive_view_by(&mut |part| (&self.stream).read(part))?;
        if let Some(view) = &view
            && !self.stream.carrier.is_nonblocking()
        {
            // So that it can be looked at whatever becomes of the sender. A look says again what is wrong.
            let _ = view.open();
        }
        Ok(view)
    }

    fn receive_view_by(&self, read: &mut Read<'_>) -> io::Result<Option<View>> {
        self.stream.carrier.check_fork()?;
        let mut incoming = lock(&self.incoming);
        if let Some(loan) = self.next_loan(&mut incoming, read)? {
            let view = self.by_reference()?.borrowing.view(loan)?;
            incoming.take_loan();
            return Ok(Some(view));
        }
        let mut buf = Vec::new();
        loop {
            match incoming.receive(&mut buf, read).map_err(receive_error) {
                Ok(len) => return Ok(len.map(|_| View::copy(buf))),
                Err(e) => buf.resize(MessageError::len_wanted(e)?, 0),
            }
        }
    }

    /// Receives the next message, however long it is; None at the end. One that is lent and longer than any that is
    /// copied ([`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX)) is kept, with [`MessageError::Lent`].
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
        let by_reference = self.by_reference.clone();
        let transport = self.transport;
        Ok(Self { stream, incoming, calls: Arc::clone(&self.calls), by_reference, transport })
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
        conn.poll_send_message(context, &whole, MESSAGE_HEADER_BYTES + message.len())
    }

    /// As [`MessageStream::receive`], for tasks.
    pub(crate) fn poll_receive(&self, context: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<Option<usize>>> {
        self.poll_by(context, &mut |read| self.receive_by(buf, false, read))
    }

    /// As [`MessageStream::receive_view`], for tasks.
    pub(crate) fn poll_receive_view(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<View>>> {
        self.poll_by(context, &mut |read| self.receive_view_by(read))
    }

    fn poll_by<T>(
        &self,
        context: &mut Context<'_>,
        receive: &mut dyn FnMut(&mut Read<'_>) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let mut is_pending = false;
        let received = receive(&mut |part| match self.stream.carrier.poll_read(context, part) {
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
