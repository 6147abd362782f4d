//! The path MTU toward a host, by datagrams that no router may cut: what is too long comes back as an ICMP message,
//! which the kernel remembers. A network that drops those messages too looks as if it carried all.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use verbs::PathMtu;

/// How long an ICMP message may take to come back.
const ICMP_WITHIN: Duration = Duration::from_millis(300);

/// What a few datagrams found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Path {
    /// Bytes of an IP packet that the kernel takes the path for.
    pub(super) ip_bytes: u32,
    /// The largest RoCEv2 packets that pass, as far as anybody said.
    pub(super) carries: Option<PathMtu>,
    /// The host answered that nobody has the port open.
    pub(super) refused: bool,
}

/// Sends datagrams of each size from `from` to `to` until one is not refused as too long.
pub(super) fn probe(from: IpAddr, to: SocketAddr) -> io::Result<Path> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(ICMP_WITHIN))?;
    match to {
        SocketAddr::V4(_) => sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?,
        SocketAddr::V6(_) => sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?,
    }
    let mut path = Path { ip_bytes: 0, carries: None, refused: false };
    for &size in PathMtu::ALL.iter().rev() {
        let payload = size.bytes() + super::device::OVERHEAD_BYTES - headers(to, true);
        let datagram = vec![0; payload];
        match socket.send(&datagram) {
            Ok(_) => {}
            Err(e) if too_long(&e) => continue,
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => path.refused = true,
            Err(e) => return Err(e),
        }
        let came_back = match socket.recv(&mut [0; 1]) {
            Err(e) if too_long(&e) => true,
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                path.refused = true;
                false
            }
            _ => false,
        };
        // The router may have named a smaller one without an error at this socket.
        if !came_back && known(&socket, to)? as usize >= payload + headers(to, false) {
            path.carries = Some(size);
            break;
        }
    }
    path.ip_bytes = known(&socket, to)?;
    Ok(path)
}

/// Bytes of the IP and UDP headers; `largest` of the larger kind.
fn headers(to: SocketAddr, largest: bool) -> usize {
    if largest || to.is_ipv6() { 40 + 8 } else { 20 + 8 }
}

fn too_long(e: &io::Error) -> bool {
    e.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error())
}

fn known(socket: &UdpSocket, to: SocketAddr) -> io::Result<u32> {
    Ok(match to {
        SocketAddr::V4(_) => sockopt::ip_mtu(socket)?,
        SocketAddr::V6(_) => sockopt::ipv6_mtu(socket)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_carries_the_largest_packets_and_tells_a_closed_port() {
        let open = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = open.local_addr().unwrap();
        let path = probe(to.ip(), to).unwrap();
        assert_eq!((path.carries, path.refused), (Some(PathMtu::Mtu4096), false), "{path:?}");
        assert!(path.ip_bytes >= 4096, "{path:?}");
        drop(open);
        assert!(probe(to.ip(), to).unwrap().refused);
    }
}
