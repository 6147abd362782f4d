//! What the demo needs of the machine, looked at before anything is started.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use rustix::process::{Resource, getrlimit};

use super::host::Ports;
use super::plan::Connection;
use super::protocol::Seat;
use transport::process;
use verbs::Wire;

/// Descriptors of an application in addition to its connections: standard streams, files being sent, listener, session.
const APP_DESCRIPTORS: u64 = 48;
/// Descriptors of a daemon in addition to those of its applications, and for each of them.
const DAEMON_DESCRIPTORS: u64 = 64;
const DAEMON_DESCRIPTORS_PER_APP: u64 = 8;
/// Descriptors of this process in addition to two for each child.
const OWN_DESCRIPTORS: u64 = 48;

/// Raises what may be raised, and says what is short.
pub(super) fn check(hosts: [IpAddr; 2], ports: Ports, seats: &[Seat], links: &[Connection]) -> Result<(), String> {
    process::raise_descriptor_limit();
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    enough_descriptors(limit, ports.engines, seats, links)?;
    hosts.into_iter().try_for_each(|ip| free_ports(ip, ports))
}

/// Checks that nobody uses the ports of a host.
fn free_ports(ip: IpAddr, ports: Ports) -> Result<(), String> {
    let other = if ports.nic == 5791 { 5891 } else { 5791 };
    let taken = |kind: &str, port: u16, what: &str, e: std::io::Error| {
        format!(
            "{kind} port {port} ({what}) of {ip} cannot be used: {e}; another demo or daemon may run there: \
             `--listen-port {other}` takes other ports, `--hosts A,B` other addresses (all of 127.0.0.0/8 is local)"
        )
    };
    for nic in (ports.nic..=u16::MAX).zip(0..ports.engines).map(|(port, _)| port) {
        UdpSocket::bind(SocketAddr::new(ip, nic)).map_err(|e| taken("UDP", nic, "RoCEv2", e))?;
        if ports.wire.allows(Wire::Iwarp) {
            TcpListener::bind(SocketAddr::new(ip, nic)).map_err(|e| taken("TCP", nic, "iWARP", e))?;
        }
    }
    let listener = TcpListener::bind(SocketAddr::new(ip, ports.peer));
    listener.map(drop).map_err(|e| taken("TCP", ports.peer, "daemon to daemon", e))
}

fn enough_descriptors(limit: u64, engines: u32, seats: &[Seat], links: &[Connection]) -> Result<(), String> {
    let apps = seats.len() as u64;
    let of_app = seats.iter().map(|&seat| links.iter().filter(|l| l.has(seat)).count()).max().unwrap_or(0) as u64;
    let needs = [
        ("each application over kernel TCP", APP_DESCRIPTORS + of_app),
        ("each daemon", DAEMON_DESCRIPTORS + (DAEMON_DESCRIPTORS_PER_APP + u64::from(engines) - 1) * apps),
        ("the demo itself", OWN_DESCRIPTORS + 2 * (apps + 2)),
    ];
    let short = needs.into_iter().filter(|(_, needed)| *needed > limit).max_by_key(|(_, needed)| *needed);
    short.map_or(Ok(()), |(who, needed)| {
        Err(format!(
            "too few descriptors: {who} needs {needed}, and this shell allows {limit} (`ulimit -Hn`). Raise that, or ask for \
             less with --connections and --apps"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_named() {
        let seats = [0, 1].map(|host| Seat { host, app: 0 });
        let links = vec![Connection::new(seats[0], seats[1]); 1000];
        let short = enough_descriptors(64, 1, &seats, &links).unwrap_err();
        assert!(short.contains("over kernel TCP needs 1048") && short.contains("allows 64"), "{short}");
        let short = enough_descriptors(64, 1, &seats, &links[..1]).unwrap_err();
        assert!(short.contains("each daemon needs 80"), "{short}");
        assert!(enough_descriptors(1048, 1, &seats, &links).is_ok());
    }
}
