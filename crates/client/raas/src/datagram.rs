//! Datagrams: packets with boundaries, and nothing else promised.
//!
//! Decides what is refused before it enters a socket's rings, and from which sender datagrams are received. It must
//! never send or give out a part of a datagram.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll, ready};
use std::time::Duration;

use control::Reason;
use raas_core::{NotARecord, Readiness, Side};
use shm::DatagramRecord;

use crate::answer_wait::wait_for_answer;
use crate::attachment::Attachment;
use crate::conn::Conn;
use crate::conn::lent::Lent;
use crate::datagram_error::DatagramError;
use crate::datagram_paths::{PathFailure, Paths, begin, path_of};
use crate::error::SessionError;
use crate::flags::{Flags, Transport};
use crate::park::{Parker, lock};
use crate::poller::Waiter;

/// A socket for datagrams, used like `std::net::UdpSocket`: a datagram arrives whole or not at all. It may be lost,
/// repeated or overtaken by another, above all if the receiver does not keep up: a datagram that finds the receiving
/// socket's ring full is dropped and counted (`raas ss`). Ports of datagrams are separate from those of listeners.
///
/// A datagram is one packet. So the longest one is what the path to its host carries, less 16 bytes
/// ([`DatagramSocket::max_payload`]), 4080 bytes at most; a longer one is refused with [`DatagramError::TooLong`]. If
/// that path gets narrower, datagrams that do not fit are lost and counted (`too_long`) until the daemons know.
/// Afterwards longer ones are refused with the new limit.
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// let socket = raas::DatagramSocket::bind("0.0.0.0:7001")?;
/// let mut buffer = [0; 4096];
/// loop {
///     let (len, from) = socket.recv_from(&mut buffer)?;
///     socket.send_to(&buffer[..len], from)?;
/// }
/// # }
/// ```
///
/// The first datagram to a host waits until the two daemons have a link, or fails with [`DatagramError::Unreachable`].
/// Later datagrams do not wait. If the link breaks they are dropped, and counted as `no_peer`, until it is back.
///
/// Any number of threads may use one socket; those that send (or receive) take turns. Dropping the socket frees the
/// port; what was sent before still leaves.
pub struct DatagramSocket {
    attachment: Arc<Attachment>,
    conn: Arc<Conn>,
    local: SocketAddr,
    paths: Arc<Mutex<Paths>>,
    peer: Arc<Mutex<Option<SocketAddr>>>,
}

impl DatagramSocket {
    /// The application has the socket, which was bound to `addr`.
    pub(crate) fn adopt(attachment: &Arc<Attachment>, conn: Arc<Conn>, addr: SocketAddr) -> Self {
        let told = conn.endpoint().local();
        let ip = if addr.ip().is_unspecified() { told.ip() } else { addr.ip() };
        let (paths, peer) = (Arc::default(), Arc::default());
        Self { attachment: Arc::clone(attachment), conn, local: SocketAddr::new(ip, told.port()), paths, peer }
    }

    /// Where it is bound; if to an unspecified address, the host's first one. It does not fail, and is a `Result` as
    /// that of
    /// `std::net`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// The address of [`DatagramSocket::connect`]; fails with [`DatagramError::NotConnected`] before it.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(lock(&self.peer).ok_or(DatagramError::NotConnected)?)
    }

    /// Another handle on the same socket, as of `UdpSocket`: each datagram is received by one of them, settings hold
    /// for both, and the port is free when the last is dropped. Fails in a forked child.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.attachment.check_fork()?;
        Ok(Self {
            attachment: Arc::clone(&self.attachment),
            conn: Arc::clone(&self.conn),
            local: self.local,
            paths: Arc::clone(&self.paths),
            peer: Arc::clone(&self.peer),
        })
    }

    /// Its number on this host, as in `raas ss`.
    pub fn id(&self) -> u64 {
        self.conn.endpoint().id()
    }

    /// The longest datagram to a host, in bytes. Asks the daemon, which makes a link to the host if there is none. Waits
    /// as long as [`crate::SessionBuilder::timeout`] says, whatever the timeout of writes is.
    pub fn max_payload(&self, addr: impl ToSocketAddrs) -> io::Result<usize> {
        let to = self.resolve(addr)?;
        let max = self.ask(to.ip(), self.attachment.config.timeout)?;
        self.paths()?.learn(to.ip(), max);
        Ok(self.cap(max))
    }

    // ---- sending

    /// Sends one datagram to the first of the addresses; waits while the transmit ring is full, and until there is a
    /// link to the host. It is on its way when this returns, which says nothing of its arrival.
    pub fn send_to(&self, buf: &[u8], addr: impl ToSocketAddrs) -> io::Result<usize> {
        let to = self.resolve(addr)?;
        let mut paths = self.paths()?;
        let max = match paths.known(to.ip()) {
            Some(max) => max,
            None if self.conn.is_nonblocking() => {
                self.attachment.look();
                self.poll_path(&mut paths, to)?.ok_or(io::ErrorKind::WouldBlock)?
            }
            None => {
                let timeout = self.conn.timeout(Side::Write).unwrap_or(self.attachment.config.timeout);
                let max = self.ask(to.ip(), timeout)?;
                paths.learn(to.ip(), max);
                max
            }
        };
        let record = self.record(buf, to, max)?;
        // The paths stay locked: one thread at a time waits for room.
        self.conn.reserve(usize::try_from(record.ring_bytes()).unwrap_or(usize::MAX))?.put_datagram(
            self.conn.endpoint(),
            &record,
            buf,
        );
        Ok(buf.len())
    }

    /// As [`DatagramSocket::send_to`], where the caller names the transport and the verb; what a datagram does not have
    /// is refused, and nothing is sent then.
    pub fn send_to_with(&self, buf: &[u8], addr: impl ToSocketAddrs, flags: Flags) -> io::Result<usize> {
        flags.check(Transport::Ud)?;
        self.send_to(buf, addr)
    }

    /// As [`DatagramSocket::send_to`], for tasks.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        buf: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        let to = self.resolve(to)?;
        let mut paths = self.paths()?;
        // The waker stands before the question is asked, so that its answer is not missed.
        self.conn.wake_later(Side::Write, context)?;
        let Some(max) = self.poll_path(&mut paths, to)? else { return Poll::Pending };
        let record = self.record(buf, to, max)?;
        let room = ready!(self.conn.poll_reserve(context, usize::try_from(record.ring_bytes()).unwrap_or(usize::MAX)))?;
        room.put_datagram(self.conn.endpoint(), &record, buf);
        Poll::Ready(Ok(buf.len()))
    }

    /// As [`DatagramSocket::recv_from`], for tasks.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        loop {
            let mut lent = ready!(self.conn.poll_loan(context))?.ok_or(io::ErrorKind::BrokenPipe)?;
            if let Some(taken) = self.take(&mut lent, buf)? {
                return Poll::Ready(Ok(taken));
            }
        }
    }

    /// Sends to the address of [`DatagramSocket::connect`].
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        let to = lock(&self.peer).ok_or(DatagramError::NotConnected)?;
        self.send_to(buf, to)
    }

    /// From now on [`DatagramSocket::send`] sends there, and only datagrams from there are received; others that are
    /// next in the ring are thrown away.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<()> {
        let to = self.resolve(addr)?;
        *lock(&self.peer) = Some(to);
        Ok(())
    }

    /// The first of the addresses; the unspecified one means this host.
    fn resolve(&self, addr: impl ToSocketAddrs) -> io::Result<SocketAddr> {
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "the address names no host");
        let to = addr.to_socket_addrs()?.next().ok_or_else(none)?;
        let ip = match self.attachment.addresses.iter().find(|a| a.is_ipv4() == to.is_ipv4()) {
            Some(&own) if to.ip().is_unspecified() => own,
            _ => to.ip().to_canonical(),
        };
        Ok(SocketAddr::new(ip, to.port()))
    }

    /// What is known of the paths to other hosts, as far as it is still true.
    fn paths(&self) -> io::Result<MutexGuard<'_, Paths>> {
        // Before the lock, which a thread holds that waits for room: in a forked child there is no such thread.
        self.attachment.check_fork()?;
        let mut paths = lock(&self.paths);
        paths.note_changes(self.conn.endpoint().paths_changed());
        Ok(paths)
    }

    fn poll_path(&self, paths: &mut Paths, to: SocketAddr) -> io::Result<Option<usize>> {
        paths.poll(&self.attachment, &self.conn.bell.poller, to.ip()).map_err(|e| e.into_io(to.ip()))
    }

    /// Asks for the path to a host, and waits.
    fn ask(&self, host: IpAddr, timeout: Duration) -> io::Result<usize> {
        let attachment = &self.attachment;
        let parker = Arc::new(Parker::default());
        let answer = begin(attachment, host, Waiter::Thread(Arc::clone(&parker)))
            .and_then(|request| wait_for_answer(attachment, request, &parker, timeout));
        match answer {
            Ok(None) => Err(PathFailure::Refused(Reason::TimedOut)),
            Ok(answer) => path_of(answer, attachment),
            Err(e) => Err(e.into()),
        }
        .map_err(|e| e.into_io(host))
    }

    /// What a path carries, if the ring holds it.
    fn cap(&self, max: usize) -> usize {
        let ring = DatagramRecord::bytes_max(self.conn.tx_bytes() as u64);
        max.min(usize::try_from(ring).unwrap_or(usize::MAX))
    }

    fn record(&self, buf: &[u8], to: SocketAddr, max: usize) -> Result<DatagramRecord, DatagramError> {
        let max = self.cap(max);
        let too_long = DatagramError::TooLong { len: buf.len(), max, to };
        if buf.len() > max {
            return Err(too_long);
        }
        let bytes = u16::try_from(buf.len()).map_err(|_| too_long)?;
        Ok(DatagramRecord { addr: to, bytes })
    }

    // ---- receiving

    /// Waits for a datagram and takes it; returns its length and its sender. If `buf` is too small, the datagram is
    /// kept, and the error has its length. 4096 bytes are always enough.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        loop {
            let mut lent = self.conn.loan()?.ok_or(io::ErrorKind::BrokenPipe)?;
            if let Some(taken) = self.take(&mut lent, buf)? {
                return Ok(taken);
            }
        }
    }

    /// As [`DatagramSocket::recv_from`], of a socket that is connected.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).map(|(len, _)| len)
    }

    /// Takes the record at the head. `None`: its sender is not the one from whom this socket receives.
    fn take(&self, lent: &mut Lent<'_>, buf: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        let broken = |e: NotARecord| SessionError::Protocol(e.to_string());
        let record = lent.rx.datagram(lent.bytes).map_err(broken)?;
        let wanted = lock(&self.peer).is_none_or(|peer| self.is_same(peer, record.addr));
        let len = usize::from(record.bytes);
        if wanted {
            let Some(place) = buf.get_mut(..len) else {
                return Err(DatagramError::BufferTooSmall { len, buffer: buf.len() }.into());
            };
            lent.rx.datagram_payload(place);
        }
        self.conn.consume(&mut lent.rx, record.ring_bytes());
        Ok(wanted.then_some((len, record.addr)))
    }

    /// Whether two addresses are one socket's; this host may have several names.
    fn is_same(&self, a: SocketAddr, b: SocketAddr) -> bool {
        let own = |a: SocketAddr| self.attachment.addresses.contains(&a.ip());
        a == b || (a.port() == b.port() && own(a) && own(b))
    }

    // ---- waiting

    /// Calls that would wait fail with `WouldBlock` instead. A first datagram to a host does so too, until there is a
    /// link.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.conn.set_nonblocking(nonblocking)
    }

    /// How long receiving waits before it fails with `TimedOut`. None (the default): without end.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.conn.set_timeout(Side::Read, timeout)
    }

    /// How long sending waits for room, and for a link. None (the default): without end for room, and for a link as
    /// long as the session's time limit.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.conn.set_timeout(Side::Write, timeout)
    }

    /// A descriptor that turns readable when the readiness may have changed since the last
    /// [`DatagramSocket::readiness`], which makes it unreadable again; as
    /// [`Stream::ready_fd`](crate::Stream::ready_fd).
    pub fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.conn.ready_fd()
    }

    /// The descriptor of `ready_fd`, which was made before.
    pub(crate) fn made_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.conn.made_fd()
    }

    /// What can be done without waiting: receive one datagram ([`Readiness::READ`]), send one
    /// ([`Readiness::WRITE`]). [`Readiness::ERR`]: the daemon is lost, and with it the socket.
    pub fn readiness(&self) -> io::Result<Readiness> {
        let longest = DatagramRecord { addr: self.local, bytes: u16::MAX }.ring_bytes();
        let room = longest.min(self.conn.tx_bytes() as u64 / 2);
        let ready = self.conn.readiness_for(room)?;
        let asking = self.paths.try_lock().is_ok_and(|paths| paths.is_asking(&self.attachment));
        Ok(if asking { ready.without(Readiness::WRITE) } else { ready })
    }

    /// Why the socket cannot be used any more, if that is so.
    pub fn failure(&self) -> Option<Reason> {
        self.conn.failure()
    }
}

impl Drop for DatagramSocket {
    fn drop(&mut self) {
        if self.attachment.check_fork().is_ok() && Arc::strong_count(&self.paths) == 1 {
            lock(&self.paths).forget_asked(&self.attachment);
        }
    }
}

impl fmt::Debug for DatagramSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramSocket").field("local", &self.local).finish()
    }
}
