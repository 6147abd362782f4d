//! Streams: the public face of a connection.
//!
//! Owns the halves. It must never hold up one direction for the other.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use control::{PathKind, Reason};
use raas_core::{Connection, Readiness, Side};

use crate::attachment::Attachment;
use crate::carrier::Carrier;
use crate::conn::Conn;
use crate::fallback::{FallbackCause, NotOverTcp};
use crate::flags::{Flags, Transport};
use crate::loan::{Loan, LoanMut};

/// A connection: an ordered, reliable stream of bytes in each direction, as of a TCP socket.
///
/// It can be read and written at once by two threads, through `&Stream` or as the halves of [`Stream::split`]; of
/// several readers (or writers) one at a time has its turn. Dropping it closes: what was written is still delivered, as
/// far as the peer reads on, unless bytes that arrived were not read; then the peer sees a reset, as with TCP.
pub struct Stream {
    pub(crate) carrier: Carrier,
}

impl Stream {
    /// The application has the connection.
    pub(crate) fn adopt(attachment: &Arc<Attachment>, connection: Connection) -> Self {
        Self { carrier: Carrier::Rings(Conn::adopt(attachment, connection)) }
    }

    /// Another handle on the same connection, as of `TcpStream`: both read and write it, settings hold for both, and it
    /// closes when the last is dropped. Fails in a forked child.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.carrier.check_fork()?;
        Ok(Self { carrier: self.carrier.clone() })
    }

    /// The two directions, for two threads. Dropping [`WriteHalf`] ends the writing (the peer reads to the end);
    /// dropping [`ReadHalf`] makes the peer's writes fail. The connection closes when the second half is dropped.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        let carrier = self.carrier;
        (ReadHalf { carrier: carrier.clone() }, WriteHalf { carrier })
    }

    /// Ends a direction or both. After `Write` the peer reads what was written and then the end; after `Read` reads
    /// give 0 at once and the peer's writes fail. A thread that waits in that direction returns.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match how {
            Shutdown::Read => self.carrier.shut(Side::Read),
            Shutdown::Write => self.carrier.shut(Side::Write),
            Shutdown::Both => self.carrier.shut(Side::Write).and(self.carrier.shut(Side::Read)),
        }
    }

    /// As `write`, where the caller names the transport and the verb; what the connection does not have is refused, and
    /// nothing is written then. A verb holds until another call names one, or none: bytes that lie in the ring and have
    /// not left go by the verb that was named last.
    pub fn write_with(&self, buf: &[u8], flags: Flags) -> io::Result<usize> {
        flags.check(Transport::Rc)?;
        self.carrier.use_verb(flags)?;
        self.carrier.write(buf)
    }

    /// The verb of everything that is written where the call names none, in place of the one that was asked for when the
    /// connection was made. Empty: the service chooses.
    pub fn set_flags(&self, flags: Flags) -> io::Result<()> {
        flags.check(Transport::Rc)?;
        self.carrier.set_verb(flags)
    }

    /// As [`Stream::set_flags`], of flags that were checked when the connection was asked for.
    pub(crate) fn with_flags(self, flags: Flags) -> Self {
        if !flags.is_empty() {
            // One that broke meanwhile says so when it is used.
            let _ = self.carrier.set_verb(flags);
        }
        self
    }

    /// Copies what can be read without taking it; waits as `read` does while there is nothing.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.carrier.peek(buf)
    }

    /// Waits until there is room for `bytes`, and lends that room: what is written to the [`LoanMut`] goes straight
    /// into the ring, and is sent by its `commit`. More than the ring holds is refused, with the limit named. Other
    /// writers of this stream wait meanwhile.
    ///
    /// ```no_run
    /// use std::io::Write;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let stream = raas::Stream::connect("10.0.0.2:7000")?;
    /// let mut loan = stream.reserve(4096)?;
    /// write!(loan, "{{\"answer\": {}}}", 42)?; // formatted into the ring, without a buffer between
    /// loan.commit();
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve(&self, bytes: usize) -> io::Result<LoanMut<'_>> {
        let conn = self.carrier.rings(NotOverTcp::Loans)?;
        let max = conn.tx_bytes();
        if bytes > max {
            let text =
                format!("a loan of {bytes} bytes is more than the ring's {max}: ask for less, or set `ring_bytes`");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(LoanMut::new(conn, conn.reserve(bytes)?, bytes))
    }

    /// Waits until bytes are there, and lends what is: to be looked at in the ring and taken by [`Loan::consume`]. None
    /// at the end. Other readers of this stream wait meanwhile.
    ///
    /// ```no_run
    /// # fn main() -> std::io::Result<()> {
    /// let stream = raas::Stream::connect("10.0.0.2:7000")?;
    /// while let Some(mut loan) = stream.loan()? {
    ///     let len = loan.len();
    ///     loan.write_to(0..len, &mut std::io::stdout())?;
    ///     loan.consume(len);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn loan(&self) -> io::Result<Option<Loan<'_>>> {
        let conn = self.carrier.rings(NotOverTcp::Loans)?;
        Ok(conn.loan()?.map(|lent| Loan::new(conn, lent)))
    }

    /// Bytes that can be read without waiting.
    pub fn unread_bytes(&self) -> io::Result<u64> {
        self.carrier.unread_bytes()
    }

    /// Bounds each read; None (the default) waits as long as it takes. A read that ran out of time fails with
    /// [`io::ErrorKind::TimedOut`] and took nothing. A zero timeout is refused.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.carrier.set_timeout(Side::Read, timeout)
    }

    /// Bounds each write, as [`Stream::set_read_timeout`] does reads.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.carrier.set_timeout(Side::Write, timeout)
    }

    /// The bound on reads.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.carrier.timeout(Side::Read)
    }

    /// The bound on writes.
    pub fn write_timeout(&self) -> Option<Duration> {
        self.carrier.timeout(Side::Write)
    }

    /// How long this connection waits for the other host while its daemon says nothing, because it stands still, its
    /// machine is paused, or the network is cut. Then reads and writes fail with [`Reason::PeerTimeout`], and other
    /// connections go on. None (the default) waits as long as the daemons do (`heartbeat_ms` x `heartbeat_misses`: 40
    /// s); a longer time than that changes nothing, and one shorter than three heartbeats (3 s) counts as these. Zero
    /// is refused.
    ///
    /// On one host it changes nothing: the death of the other process is seen at once. Over kernel TCP it is
    /// `TCP_USER_TIMEOUT`, which counts unacknowledged bytes alone.
    pub fn set_peer_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.carrier.set_peer_timeout(timeout)
    }

    /// What [`Stream::set_peer_timeout`] set, in whole milliseconds.
    pub fn peer_timeout(&self) -> Option<Duration> {
        self.carrier.peer_timeout()
    }

    /// Accepted, for programs that were written for TCP, and **without any effect**: what a write took is on its way
    /// when it returns, on every path, and nothing is ever held back to be sent with more.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        let _no_difference = nodelay;
        Ok(())
    }

    /// Always true; see [`Stream::set_nodelay`].
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Reads and writes that would wait fail with [`io::ErrorKind::WouldBlock`] instead. It holds for both halves.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.carrier.set_nonblocking(nonblocking)
    }

    /// What can be done now without waiting. The descriptor of [`Stream::ready_fd`] signals when that changes.
    pub fn readiness(&self) -> io::Result<Readiness> {
        self.carrier.readiness()
    }

    /// A descriptor for poll, epoll or an event loop: it turns readable when the readiness has changed since the last
    /// [`Stream::readiness`], which makes it unreadable again. So: poll it, call `readiness`, and do what that says
    /// until [`io::ErrorKind::WouldBlock`] (or call `readiness` again), then poll. It is readable at first.
    ///
    /// The first one of a session starts the session's watcher thread, and each costs a descriptor; a stream that is
    /// not asked for one has none.
    ///
    /// ```no_run
    /// use std::io::{ErrorKind, Read};
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut stream = raas::Stream::connect("10.0.0.2:7000")?;
    /// stream.set_nonblocking(true)?;
    /// let mut buffer = [0; 4096];
    /// loop {
    ///     poll(&mut [PollFd::new(&stream.ready_fd()?, PollFlags::IN)], None)?;
    ///     if !stream.readiness()?.contains(raas::Readiness::READ) {
    ///         continue;
    ///     }
    ///     loop {
    ///         match stream.read(&mut buffer) {
    ///             Ok(0) => return Ok(()),
    ///             Ok(count) => println!("{count} bytes"),
    ///             Err(e) if e.kind() == ErrorKind::WouldBlock => break,
    ///             Err(e) => return Err(e),
    ///         }
    ///     }
    /// }
    /// # }
    /// ```
    pub fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.carrier.ready_fd()
    }

    /// The descriptor of `ready_fd`, which was made before.
    pub(crate) fn made_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.carrier.made_fd()
    }

    /// The other end. It does not fail, and is a `Result` as that of `std::net`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.carrier.peer())
    }

    /// This end, as [`Stream::peer_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.carrier.local())
    }

    /// The connection's number on this host, as in `raas ss`. 0 over kernel TCP: `raas ss` shows it by its addresses.
    pub fn id(&self) -> u64 {
        self.carrier.id()
    }

    /// How the bytes travel.
    pub fn path(&self) -> PathKind {
        self.carrier.path()
    }

    /// Why they travel that way.
    pub fn reason(&self) -> Reason {
        match self.carrier.path() {
            PathKind::Shm => Reason::SameHost,
            PathKind::Tcp => Reason::TcpFallback,
            PathKind::TcpDirect => Reason::BulkStream,
            _ => Reason::OtherHost,
        }
    }

    /// Why it goes over kernel TCP, if it does.
    pub fn fallback(&self) -> Option<FallbackCause> {
        self.carrier.fallback()
    }

    /// The process at the other end, if it is on this host.
    pub fn peer_pid(&self) -> Option<u32> {
        self.carrier.peer_pid()
    }

    /// Why the connection is broken, if it is.
    pub fn failure(&self) -> Option<Reason> {
        self.carrier.failure()
    }
}

macro_rules! debug_by_carrier {
    ($($name:ident),*) => { $(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let carrier = &self.carrier;
                f.debug_struct(stringify!($name))
                    .field("id", &carrier.id())
                    .field("local", &carrier.local())
                    .field("peer", &carrier.peer())
                    .field("path", &carrier.path())
                    .finish()
            }
        }
    )* };
}
debug_by_carrier!(Stream, ReadHalf, WriteHalf);

macro_rules! read_by_carrier {
    ($($name:ty),*) => { $(
        impl Read for $name {
            #[inline]
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.carrier.read(buf)
            }
        }
    )* };
}
read_by_carrier!(Stream, &Stream, ReadHalf, &ReadHalf);

macro_rules! write_by_carrier {
    ($($name:ty),*) => { $(
        impl Write for $name {
            #[inline]
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                self.carrier.write(buf)
            }

            fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.carrier.write_slices(bufs)
            }

            /// Nothing is held back: every write is on its way when it returns.
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    )* };
}
write_by_carrier!(Stream, &Stream, WriteHalf, &WriteHalf);

/// The reading direction of a [`Stream`].
pub struct ReadHalf {
    pub(crate) carrier: Carrier,
}

/// The writing direction of a [`Stream`].
pub struct WriteHalf {
    pub(crate) carrier: Carrier,
}

impl ReadHalf {
    /// Bounds each read; see [`Stream::set_read_timeout`].
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.carrier.set_timeout(Side::Read, timeout)
    }

    /// The other end, as [`Stream::peer_addr`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.carrier.peer())
    }

    /// This end, as [`Stream::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.carrier.local())
    }
}

impl WriteHalf {
    /// Bounds each write; see [`Stream::set_write_timeout`].
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.carrier.set_timeout(Side::Write, timeout)
    }

    /// Ends the writing.
    pub fn shutdown(&self) -> io::Result<()> {
        self.carrier.shut(Side::Write)
    }

    /// The other end, as [`Stream::peer_addr`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.carrier.peer())
    }

    /// This end, as [`Stream::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.carrier.local())
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        // An error means that this is a forked child, and the stream its parent's.
        let _ = self.carrier.shut(Side::Read);
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        // As for the reading half.
        let _ = self.carrier.shut(Side::Write);
    }
}
