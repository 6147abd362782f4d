//! A connection over one of the transports, blocking or asking again and again. Owns how each is set up for its best.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use crate::bare::{BareRing, BareSegment, Wait};
use anyhow::{Context, Result};
use rustix::net::sockopt;

use super::Transport;

/// The kernel's list of what a connection may ask for.
const CONGESTION_LIST: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// Nothing is silent for longer unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Questions to the kernel between two looks at the clock.
const ASKS: u32 = 1 << 16;
/// Connections that may wait: `many` opens them faster than they are taken.
const BACKLOG: u32 = 4096;
/// In place of a path of a bare ring: make one.
const NEW: &str = "new";
/// The backlog of kernel sockets.
const KERNEL_BACKLOG: i32 = 4096;

/// One connection.
#[derive(Debug)]
pub(crate) enum Link {
    Raas(raas::Stream),
    Tcp(TcpStream, bool),
    Unix(UnixStream, bool),
    Bare(Box<BareRing>),
}

impl Link {
    pub(crate) fn connect(transport: Transport, to: &str, busy: bool) -> Result<Self> {
        let what = || format!("connecting to {to}");
        Ok(match transport {
            Transport::Raas => Self::raas(raas::Stream::connect(to).with_context(what)?)?,
            Transport::Tcp | Transport::TcpBbr => {
                let address: SocketAddr = to.parse().with_context(what)?;
                let socket = kernel_socket(address, transport)?;
                rustix::net::connect(&socket, &address).with_context(what)?;
                Self::tcp(TcpStream::from(socket), busy)?
            }
            Transport::Unix => Self::unix(UnixStream::connect(to).with_context(what)?, busy)?,
            Transport::Bare => {
                let segment = BareSegment::open(to).with_context(what)?;
                Self::Bare(Box::new(segment.end(true, wait(busy))?))
            }
        })
    }

    fn raas(stream: raas::Stream) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::Raas(stream))
    }

    fn tcp(stream: TcpStream, busy: bool) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(busy)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::Tcp(stream, busy))
    }

    fn unix(stream: UnixStream, busy: bool) -> Result<Self> {
        stream.set_nonblocking(busy)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::Unix(stream, busy))
    }

    #[inline]
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Raas(s) => Read::read(&mut &*s, into),
            Self::Tcp(s, false) => Read::read(&mut &*s, into),
            Self::Tcp(s, true) => ask(|| Read::read(&mut &*s, into)),
            Self::Unix(s, false) => Read::read(&mut &*s, into),
            Self::Unix(s, true) => ask(|| Read::read(&mut &*s, into)),
            Self::Bare(ring) => ring.read(into),
        }
    }

    #[inline]
    fn write(&self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Raas(s) => Write::write(&mut &*s, from),
            Self::Tcp(s, false) => Write::write(&mut &*s, from),
            Self::Tcp(s, true) => ask(|| Write::write(&mut &*s, from)),
            Self::Unix(s, false) => Write::write(&mut &*s, from),
            Self::Unix(s, true) => ask(|| Write::write(&mut &*s, from)),
            Self::Bare(ring) => ring.write(from),
        }
    }

    #[inline]
    pub(crate) fn read_exact(&self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match self.read(into)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => into = into.get_mut(n..).unwrap_or_default(),
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn write_all(&self, mut from: &[u8]) -> io::Result<()> {
        while !from.is_empty() {
            match self.write(from)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => from = from.get(n..).unwrap_or_default(),
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing more follows.
    pub(crate) fn finish(&self) -> io::Result<()> {
        match self {
            Self::Raas(s) => s.shutdown(Shutdown::Write),
            Self::Tcp(s, _) => s.shutdown(Shutdown::Write),
            Self::Unix(s, _) => s.shutdown(Shutdown::Write),
            Self::Bare(ring) => {
                ring.finish();
                Ok(())
            }
        }
    }

    /// How the bytes travel.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Raas(s) => s.path().as_str().to_owned(),
            Self::Tcp(..) => "tcp".to_owned(),
            Self::Unix(..) => "unix".to_owned(),
            Self::Bare(_) => "bare".to_owned(),
        }
    }
}

/// A connection that is being made. RaaS makes many at a time; kernel sockets need no other end to be connected.
#[derive(Debug)]
pub(crate) enum Opening {
    Raas(raas::Connecting),
    Made(Link),
}

impl Opening {
    pub(crate) fn begin(transport: Transport, to: &str) -> Result<Self> {
        if transport != Transport::Raas {
            return Ok(Self::Made(Link::connect(transport, to, false)?));
        }
        let address = to.parse().with_context(|| format!("connecting to {to}"))?;
        Ok(Self::Raas(raas::ConnectOptions::new().start(&raas::Session::global()?, address)?))
    }

    pub(crate) fn finish(self) -> Result<Link> {
        match self {
            Self::Raas(connecting) => Link::raas(connecting.wait(PATIENCE)?),
            Self::Made(link) => Ok(link),
        }
    }
}

fn wait(busy: bool) -> Wait {
    if busy { Wait::Spin } else { Wait::Yield }
}

/// Repeats what would block.
fn ask(mut act: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let begin = Instant::now();
    loop {
        for _ in 0..ASKS {
            match act() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                other => return other,
            }
        }
        if begin.elapsed() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// How kernel TCP finds its rate. It is always said, because the default of a host may be either.
fn congestion(transport: Transport) -> &'static str {
    if transport == Transport::TcpBbr { "bbr" } else { "cubic" }
}

fn kernel_socket(address: SocketAddr, transport: Transport) -> Result<rustix::fd::OwnedFd> {
    let family = if address.is_ipv4() { rustix::net::AddressFamily::INET } else { rustix::net::AddressFamily::INET6 };
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, rustix::net::SocketType::STREAM, flags, None)?;
    let name = congestion(transport);
    sockopt::set_tcp_congestion(&socket, name).with_context(|| {
        let list = std::fs::read_to_string(CONGESTION_LIST).unwrap_or_default();
        format!("this kernel has no TCP {name}, only {}: load its module tcp_{name}", list.trim())
    })?;
    Ok(socket)
}

/// Waits for connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Raas(raas::Listener),
    Tcp(TcpListener, bool),
    Unix(UnixListener, bool, String),
    /// Made here, or made by a relay: then this is its second end.
    Bare {
        segment: BareSegment,
        busy: bool,
        second: bool,
    },
}

impl Listener {
    pub(crate) fn bind(transport: Transport, at: &str, busy: bool, ring_bytes: u64) -> Result<Self> {
        let what = || format!("listening at {at}");
        Ok(match transport {
            Transport::Raas => {
                let session = raas::Session::global()?;
                let listener = raas::ListenOptions::new().backlog(BACKLOG).bind(&session, at).with_context(what)?;
                Self::Raas(listener)
            }
            Transport::Tcp | Transport::TcpBbr => {
                let address: SocketAddr = at.parse().with_context(what)?;
                let socket = kernel_socket(address, transport)?;
                rustix::net::bind(&socket, &address).with_context(what)?;
                rustix::net::listen(&socket, KERNEL_BACKLOG).with_context(what)?;
                Self::Tcp(TcpListener::from(socket), busy)
            }
            Transport::Unix => Self::Unix(UnixListener::bind(at).with_context(what)?, busy, at.to_owned()),
            Transport::Bare => {
                let second = at != NEW;
                let segment = if second { BareSegment::open(at) } else { BareSegment::create(ring_bytes) };
                Self::Bare { segment: segment.with_context(what)?, busy, second }
            }
        })
    }

    pub(crate) fn address(&self) -> Result<String> {
        Ok(match self {
            Self::Raas(l) => l.local_addr().expect("a listener knows its address").to_string(),
            Self::Tcp(l, _) => l.local_addr()?.to_string(),
            Self::Unix(_, _, path) => path.clone(),
            Self::Bare { segment, .. } => segment.path(),
        })
    }

    pub(crate) fn accept(&self) -> Result<Link> {
        match self {
            Self::Raas(l) => Link::raas(l.accept_timeout(PATIENCE)?.0),
            Self::Tcp(l, busy) => Link::tcp(l.accept()?.0, *busy),
            Self::Unix(l, busy, _) => Link::unix(l.accept()?.0, *busy),
            // A side that opens the ring finds what was written meanwhile, so no side need wait.
            Self::Bare { segment, busy, second } => Ok(Link::Bare(Box::new(segment.end(*second, wait(*busy))?))),
        }
    }
}
