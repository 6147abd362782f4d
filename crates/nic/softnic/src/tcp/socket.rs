//! TCP sockets of the second wire: the listener, connections out and in, and their options. Nothing here blocks.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use verbs::{AcceptAttr, PathMarks};

use super::congestion::{begin_unpaced, settle_pacing};
use crate::OpenError;

/// Connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 128;
/// A peer that acknowledges nothing for less than this is not given up: retransmissions begin after 200 ms, and the
/// second comes after 600 ms.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// Longest silence that TCP_USER_TIMEOUT can express.
const SILENCE_MAX: Duration = Duration::from_millis(i32::MAX as u64);
/// Pause between two probes of a connection on which nothing moves.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Probes without an answer after which the kernel gives up; TCP_USER_TIMEOUT comes first where it is set.
const PROBES: u32 = 8;

/// How long a peer may acknowledge nothing before the connection breaks: what a RoCEv2 requester waits, which is the ACK
/// timeout once for each try (IBTA 9.7.6.1.3). `None`: for ever.
pub(crate) fn silence_max(attr: &AcceptAttr) -> Option<Duration> {
    if attr.timeout == 0 {
        return None;
    }
    let tries = 1 + u32::from(attr.retry_cnt);
    let once = Duration::from_nanos(4_096_u64 << attr.timeout.min(31));
    Some((once * tries).clamp(SILENCE_MIN, SILENCE_MAX))
}

fn stream_socket(address: IpAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    begin_unpaced(&fd);
    Ok(fd)
}

/// A listener at the address and port of a NIC, or at a port that the system chooses if that one is free for UDP alone.
pub(crate) fn listen(local: SocketAddr, may_move: bool) -> Result<(OwnedFd, SocketAddr), OpenError> {
    let at = |wanted: SocketAddr| {
        let fd = stream_socket(wanted.ip()).map_err(|e| OpenError::os("socket(SOCK_STREAM)", e))?;
        // Connections of a NIC that is gone may still be in TIME_WAIT there.
        sockopt::set_socket_reuseaddr(&fd, true).map_err(|e| OpenError::os("setsockopt(SO_REUSEADDR)", e))?;
        match rustix::net::bind(&fd, &wanted).and_then(|()| rustix::net::listen(&fd, BACKLOG)) {
            Ok(()) => Ok(fd),
            Err(Errno::ADDRINUSE) => Err(OpenError::TcpPortInUse(wanted)),
            Err(Errno::ADDRNOTAVAIL) => Err(OpenError::AddressNotAvailable(wanted.ip())),
            Err(e) => Err(OpenError::os("listen", e)),
        }
    };
    let fd = match at(local) {
        Err(OpenError::TcpPortInUse(_)) if may_move => at(with_port(local, 0))?,
        other => other?,
    };
    let bound = rustix::net::getsockname(&fd).ok().and_then(|a| SocketAddr::try_from(a).ok());
    Ok((fd, bound.ok_or_else(|| OpenError::os("getsockname", io::ErrorKind::InvalidData))?))
}

/// As [`listen`], at an address that this host may not have at the moment.
pub(crate) fn listen_standby(local: SocketAddr) -> Result<(OwnedFd, SocketAddr), OpenError> {
    match listen(local, false) {
        Err(OpenError::AddressNotAvailable(address)) => {
            tracing::warn!(%address, "this host does not have the standby address now; connections there wait for it");
            let fd = stream_socket(local.ip()).map_err(|e| OpenError::os("socket(SOCK_STREAM)", e))?;
            listen_free(&fd, local).map_err(|e| OpenError::os("listen", e))?;
            Ok((fd, local))
        }
        other => other,
    }
}

/// Listens at an address whether or not this host has it.
fn listen_free(fd: &OwnedFd, local: SocketAddr) -> rustix::io::Result<()> {
    match local {
        SocketAddr::V4(_) => sockopt::set_ip_freebind(fd, true)?,
        SocketAddr::V6(_) => sockopt::set_ipv6_freebind(fd, true)?,
    }
    sockopt::set_socket_reuseaddr(fd, true)?;
    rustix::net::bind(fd, &local)?;
    rustix::net::listen(fd, BACKLOG)
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// What every connection of a queue pair has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketOptions {
    /// How long a peer may acknowledge nothing; `None`: for ever.
    pub(crate) silence: Option<Duration>,
    pub(crate) marks: PathMarks,
}

/// Begins to connect from the address of a NIC; `scope_id` is the interface of link-local addresses.
pub(crate) fn connect(local: SocketAddr, peer: SocketAddr, options: SocketOptions) -> rustix::io::Result<OwnedFd> {
    let fd = stream_socket(peer.ip())?;
    set_options(&fd, peer.is_ipv4(), options)?;
    rustix::net::bind(&fd, &with_port(local, 0))?;
    let peer = match (local, peer) {
        (SocketAddr::V6(own), SocketAddr::V6(far)) if far.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*far.ip(), far.port(), 0, own.scope_id()).into()
        }
        (_, peer) => peer,
    };
    match rustix::net::connect(&fd, &peer) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(e) => Err(e),
    }
}

/// Takes a connection that waits, with the peer's address; `None`: there is none.
pub(crate) fn accept(listener: &OwnedFd) -> Option<(OwnedFd, SocketAddr)> {
    // One that was reset before it was taken, or that is too much for the process, says nothing about the next.
    let (fd, from) = rustix::net::acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
    let from = from.and_then(|a| SocketAddr::try_from(a).ok())?;
    Some((fd, from))
}

/// Silence after which the kernel asks whether the other end of a stream's own connection is there, the pause between such
/// questions, and how many may stay without an answer. They are for firewalls on the way, which forget connections that
/// rest; what they would find the lane has found long before.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(60), 127);

/// What the TCP connection of a stream's own has, when it is given to a program: it is marked as the device's packets
/// are, and its pacing is settled. It has no `TCP_USER_TIMEOUT`, which would also break the connection to a reader that
/// takes nothing for so long, because it rests, or because the daemons that owe it the bytes before the switch are away.
/// Whether the other host is there the lane knows.
pub fn prepare_stream(fd: impl AsFd, marks: PathMarks) -> io::Result<()> {
    let (idle, pause, count) = KEEPALIVE;
    sockopt::set_socket_keepalive(&fd, true)?;
    sockopt::set_tcp_keepidle(&fd, idle)?;
    sockopt::set_tcp_keepintvl(&fd, pause)?;
    sockopt::set_tcp_keepcnt(&fd, count)?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    mark_socket(&fd, sockopt::socket_domain(&fd)? == AddressFamily::INET, marks)?;
    settle_pacing(fd);
    Ok(())
}

/// Gives the packets of a TCP socket their traffic class and hop limit.
fn mark_socket(fd: impl AsFd, is_ipv4: bool, marks: PathMarks) -> rustix::io::Result<()> {
    let PathMarks { traffic_class, hop_limit } = marks;
    // The kernel keeps the two lower bits for itself.
    match is_ipv4 {
        true => sockopt::set_ip_tos(&fd, traffic_class)?,
        false => sockopt::set_ipv6_tclass(&fd, traffic_class.into())?,
    }
    match (is_ipv4, hop_limit) {
        (_, 0) => Ok(()),
        (true, hops) => sockopt::set_ip_ttl(&fd, hops.into()),
        (false, hops) => sockopt::set_ipv6_unicast_hops(&fd, Some(hops)),
    }
}

/// What every connection of a queue pair has: small messages leave at once, and a peer that is gone breaks it.
pub(crate) fn set_options(fd: &OwnedFd, is_ipv4: bool, options: SocketOptions) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    mark_socket(fd, is_ipv4, options.marks)?;
    let Some(silence) = options.silence else { return Ok(()) };
    sockopt::set_tcp_user_timeout(fd, u32::try_from(silence.as_millis()).unwrap_or(u32::MAX))?;
    // Where nothing moves there is nothing to be acknowledged, and only probes find out.
    sockopt::set_tcp_keepidle(fd, silence.max(PROBE_PAUSE))?;
    sockopt::set_tcp_keepintvl(fd, PROBE_PAUSE)?;
    sockopt::set_tcp_keepcnt(fd, PROBES)?;
    sockopt::set_socket_keepalive(fd, true)
}

/// Whether a connection's buffer takes bytes.
pub(crate) fn has_room(fd: &OwnedFd) -> bool {
    let mut one = [PollFd::new(fd, PollFlags::OUT)];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A connection that is broken takes them, too: nothing would be gained by waiting.
    rustix::event::poll(&mut one, Some(&zero)).is_ok() && !one[0].revents().is_empty()
}

/// How a connection attempt ended; `None`: it goes on.
pub(crate) fn connected(fd: &OwnedFd) -> Option<rustix::io::Result<()>> {
    match sockopt::socket_error(fd) {
        Ok(Ok(())) => {}
        Ok(Err(e)) | Err(e) => return Some(Err(e)),
    }
    match rustix::net::getpeername(fd) {
        Ok(_) => Some(Ok(())),
        Err(Errno::NOTCONN) => None,
        Err(e) => Some(Err(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::Capabilities;

    #[test]
    fn the_silence_is_that_of_all_tries() {
        let attr = |timeout, retry_cnt| AcceptAttr {
            peer: Capabilities::empty(),
            timeout,
            retry_cnt,
            rnr_retry: 7,
            min_rnr_timer: 1,
        };
        assert_eq!(silence_max(&attr(0, 7)), None);
        assert_eq!(silence_max(&attr(17, 6)), Some(Duration::from_nanos((4_096 << 17) * 7)));
        assert_eq!(silence_max(&attr(1, 0)), Some(SILENCE_MIN));
        assert_eq!(silence_max(&attr(31, 7)), Some(Duration::from_nanos((4_096 << 31) * 8)));
    }

    #[test]
    fn connections_carry_the_marks_of_the_device() {
        let (listener, at) = listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let options = SocketOptions { silence: None, marks: PathMarks::new(26, 3) };
        let fd = connect("127.0.0.1:0".parse().unwrap(), at, options).unwrap();
        // The lower two bits are the kernel's.
        assert_eq!((sockopt::ip_tos(&fd).unwrap() & !3, sockopt::ip_ttl(&fd).unwrap()), (104, 3));
        let (listener6, at6) = listen("[::1]:0".parse().unwrap(), false).unwrap();
        let fd = connect("[::1]:0".parse().unwrap(), at6, options).unwrap();
        assert_eq!(sockopt::ipv6_tclass(&fd).unwrap() & !3, 104);
        assert_eq!(sockopt::ipv6_unicast_hops(&fd).unwrap(), 3);
        drop((listener, listener6));
    }

    /// The longest time for which connections may be told to wait for the other host's daemon.
    const WAIT_MAX: Duration = Duration::from_secs(3600);

    #[test]
    fn no_silence_for_which_the_lane_waits_breaks_a_stream() {
        let (_listener, at) = listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let socket = std::net::TcpStream::connect(at).unwrap();
        prepare_stream(&socket, PathMarks::new(26, 3)).unwrap();
        assert_eq!((sockopt::ip_tos(&socket).unwrap() & !3, sockopt::ip_ttl(&socket).unwrap()), (104, 3));
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 0);
        assert!(sockopt::socket_keepalive(&socket).unwrap() && sockopt::tcp_nodelay(&socket).unwrap());
        let (idle, pause) = (sockopt::tcp_keepidle(&socket).unwrap(), sockopt::tcp_keepintvl(&socket).unwrap());
        assert!(idle + pause * sockopt::tcp_keepcnt(&socket).unwrap() > WAIT_MAX);
    }

    #[test]
    fn a_port_that_is_taken_is_told_or_moved() {
        let (_held, at) = listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
        assert!(matches!(listen(at, false), Err(OpenError::TcpPortInUse(wanted)) if wanted == at));
        let (_other, moved) = listen(at, true).unwrap();
        assert!(moved.ip() == at.ip() && moved.port() != at.port());
    }
}
