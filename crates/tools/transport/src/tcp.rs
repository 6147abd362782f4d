//! Kernel TCP as the rival of the measurements: congestion control and no delay are set explicitly, because a host's
//! default may be a congestion control that paces loopback traffic.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_tcp_congestion, set_tcp_nodelay};

use super::{Accept, Connection, Duplex, Transport};
use terminal::Failure;

/// Congestion controls of connections made here, the best first. Without root only some are allowed, reno always; none
/// of these paces.
const CONGESTION: [&str; 2] = ["cubic", "reno"];

/// The congestion control that connections made here have on this machine, for this user.
pub fn tcp_congestion() -> io::Result<&'static str> {
    set_congestion(&TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?)
}

/// The congestion control that connections of others have, which set none.
pub fn default_congestion() -> io::Result<String> {
    let socket = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    Ok(rustix::net::sockopt::tcp_congestion(&socket)?.trim_end_matches('\0').to_owned())
}

/// Kernel TCP.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Transport for Tcp {
    type Listener = TcpAccept;
    type Stream = TcpDuplex;

    fn listen(&self, at: SocketAddr) -> Result<TcpAccept, Failure> {
        let listener = TcpListener::bind(at).map_err(|e| Failure::failed(format!("cannot listen at {at}"), e))?;
        // Accepted connections inherit it before their first segment leaves.
        set_congestion(&listener)?;
        let local = listener.local_addr()?;
        Ok(TcpAccept { listener, local })
    }

    fn connect(&self, to: SocketAddr, timeout: Duration) -> Result<TcpDuplex, Failure> {
        let stream = TcpStream::connect_timeout(&to, timeout).map_err(|e| match e.kind() {
            io::ErrorKind::ConnectionRefused => Failure::Refused(format!("connection to {to}: {e}")),
            _ => Failure::failed(format!("connection to {to}"), e),
        })?;
        TcpDuplex::new(stream, to).map_err(|e| Failure::failed(format!("connection to {to}"), e))
    }

    fn daemon_pid(&self) -> Option<u32> {
        None
    }
}

/// Sets `cubic` as congestion control, or `reno` where that may not be set; says which.
pub fn set_congestion(socket: impl AsFd) -> io::Result<&'static str> {
    let mut refusal = None;
    for name in CONGESTION {
        match set_tcp_congestion(&socket, name) {
            Ok(()) => return Ok(name),
            Err(e) => refusal = Some(e),
        }
    }
    let why = refusal.map_or(String::new(), |e| e.to_string());
    Err(io::Error::other(format!("TCP congestion control {} is not to be had: {why}", CONGESTION.join(" or "))))
}

/// A TCP listener.
#[derive(Debug)]
pub struct TcpAccept {
    listener: TcpListener,
    local: SocketAddr,
}

impl Accept for TcpAccept {
    type Stream = TcpDuplex;

    fn accept_timeout(&self, timeout: Duration) -> io::Result<Option<TcpDuplex>> {
        let wait = Timespec::try_from(timeout).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        let (stream, peer) = self.listener.accept()?;
        TcpDuplex::new(stream, peer).map(Some)
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// A TCP connection.
#[derive(Debug)]
pub struct TcpDuplex {
    stream: TcpStream,
    peer: SocketAddr,
}

impl TcpDuplex {
    fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Self> {
        set_congestion(&stream)?;
        set_tcp_nodelay(&stream, true)?;
        Ok(Self { stream, peer })
    }
}

/// As any program has it.
impl Duplex for TcpStream {
    fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, into)
    }

    fn send(&self, from: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, from)
    }

    fn finish_sending(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Duplex for TcpDuplex {
    fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.recv(into)
    }

    fn send(&self, from: &[u8]) -> io::Result<usize> {
        self.stream.send(from)
    }

    fn finish_sending(&self) -> io::Result<()> {
        self.stream.finish_sending()
    }
}

impl Connection for TcpDuplex {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(timeout)?;
        self.stream.set_write_timeout(timeout)
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn path(&self) -> &'static str {
        "tcp"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_control_is_one_that_does_not_pace() {
        let chosen = tcp_congestion().unwrap();
        assert!(CONGESTION.contains(&chosen));
        let listener = Tcp.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let stream = Tcp.connect(listener.local_addr(), Duration::from_secs(60)).unwrap();
        let accepted = listener.accept_timeout(Duration::from_secs(60)).unwrap().unwrap();
        for socket in [&stream, &accepted] {
            let name = rustix::net::sockopt::tcp_congestion(&socket.stream).unwrap();
            assert_eq!(name.trim_end_matches('\0'), chosen);
            assert!(rustix::net::sockopt::tcp_nodelay(&socket.stream).unwrap());
        }
    }
}
