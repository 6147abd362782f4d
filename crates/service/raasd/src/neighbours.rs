//! Who has what a daemon needs for itself: its address, or its socket. Most often another daemon of this host, such as
//! that of another user, and then the way on is to use that one or another address.
//!
//! Owns the words. What it says is found in lists that the kernel shows to everybody; it must never change anything.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use control::{APP_VERSION, Reply, Request, Role};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// File name of the control socket where nothing else is said.
const SOCKET_NAME: &str = "raasd.sock";
/// Addresses of 127.0.0.0/8 that are looked at for one that is free.
const LOOPBACKS: std::ops::RangeInclusive<u8> = 1..=32;

/// How long another daemon may take to say its addresses.
const ANSWER_MAX: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// A socket that waits for others, of the kernel's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    at: SocketAddr,
    uid: u32,
}

/// The process at the other end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Server {
    uid: u32,
    pid: u32,
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "user {}, process {}", self.uid, self.pid)
    }
}

/// What to say of an address that cannot be had: who has it, and the ways on.
pub(crate) fn who_has(protocol: Protocol, address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => "`listen` must be an address of this host: `ip address` lists them".into(),
        io::ErrorKind::AddrInUse => in_use(protocol, address),
        _ => "`raas doctor` says what stands in the way".into(),
    }
}

fn in_use(protocol: Protocol, address: SocketAddr) -> String {
    let all = bound(protocol);
    let apart = match free_loopback(&all, address) {
        Some(free) => format!("give this one an address of its own, such as --listen {free}"),
        None => "give this one another address (--listen) or other ports (--peer-port and --udp-port)".to_owned(),
    };
    let Some(holder) = all.iter().find(|bound| takes(bound.at, address)) else {
        return format!("another program has it: end that one, or {apart}");
    };
    match &*daemons_at(holder) {
        [] => format!("a program of user {} has it: end that one, or {apart}", holder.uid),
        [(socket, server)] => {
            let who = server.map_or_else(|| format!("user {}", holder.uid), |server| server.to_string());
            let at = socket.display();
            format!("the daemon at {at} ({who}) has it: use that one, with --socket {at}, or {apart}")
        }
        several => {
            let sockets: Vec<_> = several.iter().map(|(socket, _)| socket.display().to_string()).collect();
            let (uid, at) = (holder.uid, sockets.join(" or "));
            format!("a daemon of user {uid} has it, at {at}: use that one, with --socket, or {apart}")
        }
    }
}

/// Whether a socket at `bound` keeps another one from `wanted`.
fn takes(bound: SocketAddr, wanted: SocketAddr) -> bool {
    bound.port() == wanted.port() && (bound.ip() == wanted.ip() || bound.ip().is_unspecified())
}

/// A loopback address at which nobody has the port, if `address` is a loopback address.
fn free_loopback(all: &[Bound], address: SocketAddr) -> Option<IpAddr> {
    address.ip().is_loopback().then_some(())?;
    let mut each = LOOPBACKS.map(|last| IpAddr::from([127, 0, 0, last]));
    each.find(|ip| !all.iter().any(|bound| takes(bound.at, SocketAddr::new(*ip, address.port()))))
}

/// Control sockets of this host whose daemon may be the one that holds the address: the one that says so, else those of
/// its user that are not asked.
fn daemons_at(holder: &Bound) -> Vec<(PathBuf, Option<Server>)> {
    let own = rustix::process::geteuid().as_raw();
    let mut others = Vec::new();
    for socket in control::served_sockets().unwrap_or_default().into_iter().filter(|socket| is_control(socket)) {
        match knock(&socket) {
            Ok(asked) => {
                let says_so = |ip: &IpAddr| holder.at.ip().is_unspecified() || *ip == holder.at.ip();
                let Some(server) = server_of(&asked).filter(|server| server.uid == holder.uid) else { continue };
                // A stranger's process is not listened to: what it sends may hold up who takes it.
                let is_trusted = server.uid == 0 || server.uid == own;
                match is_trusted.then(|| addresses_of(&asked)).flatten() {
                    Some(addresses) if addresses.iter().any(says_so) => return vec![(socket, Some(server))],
                    Some(_) => {}
                    None => others.push((socket, Some(server))),
                }
            }
            // The owner of what can be seen counts.
            Err(Errno::ACCESS | Errno::PERM) => {
                let seen = std::fs::metadata(&socket).ok().or_else(|| std::fs::metadata(socket.parent()?).ok());
                if seen.is_some_and(|meta| meta.uid() == holder.uid) {
                    others.push((socket, None));
                }
            }
            Err(_) => {}
        }
    }
    others
}

/// The addresses of the daemon at the other end, if it says them soon.
fn addresses_of(socket: &OwnedFd) -> Option<Vec<IpAddr>> {
    let name = "raas daemon".to_owned();
    let hello = Request::Hello { version: APP_VERSION, layout: shm::LAYOUT_VERSION, role: Role::Inspector, name };
    control::send_message(socket.as_fd(), &hello, &[]).ok()?;
    let mut waits = [PollFd::new(socket, PollFlags::IN)];
    if rustix::event::poll(&mut waits, Some(&ANSWER_MAX)).ok()? == 0 {
        return None;
    }
    match control::recv_message::<Reply>(socket.as_fd(), &mut Vec::new()).ok()? {
        (Reply::Welcome { addresses, .. }, _) => Some(addresses),
        _ => None,
    }
}

/// Whether a socket is a daemon's, by its name or the lock beside it.
fn is_control(socket: &Path) -> bool {
    socket.file_name().is_some_and(|name| name == SOCKET_NAME) || lock_path(socket).exists()
}

/// The lock file of a daemon that serves this socket.
pub(crate) fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    PathBuf::from(path)
}

/// Who serves the socket at `path`; none if nobody does, or this user is not let in.
pub(crate) fn server(path: &Path) -> Option<Server> {
    server_of(&knock(path).ok()?)
}

fn server_of(socket: &OwnedFd) -> Option<Server> {
    let credentials = control::peer_credentials(socket).ok()?;
    Some(Server { uid: credentials.uid, pid: credentials.pid })
}

/// Connects to a control socket, as a program would that then says nothing.
pub(crate) fn knock(path: &Path) -> rustix::io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&probe, &address)?;
    Ok(probe)
}

/// Sockets of this network namespace that wait for others.
fn bound(protocol: Protocol) -> Vec<Bound> {
    let files = match protocol {
        Protocol::Tcp => ["/proc/net/tcp", "/proc/net/tcp6"],
        Protocol::Udp => ["/proc/net/udp", "/proc/net/udp6"],
    };
    let texts = files.into_iter().filter_map(|file| std::fs::read_to_string(file).ok());
    texts.flat_map(|text| bound_in(&text)).collect()
}

/// Those of the text of one list: `sl local_address rem_address st tx:rx tr:when retrnsmt uid ...`.
fn bound_in(list: &str) -> Vec<Bound> {
    /// States of sockets that are connected to nobody: TCP that listens, UDP.
    const WAITS: [&str; 2] = ["0A", "07"];
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, local, _, state, _, _, _, uid, ..] = fields[..] else { return None };
        let at = WAITS.contains(&state).then(|| address_of(local))??;
        Some(Bound { at, uid: uid.parse().ok()? })
    };
    list.lines().filter_map(of).collect()
}

/// An address as the kernel's lists have it: words of four bytes as this machine holds them, and the port.
fn address_of(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => word(0)?.into(),
        32 => {
            let bytes: Vec<u8> = (0..4).map(word).collect::<Option<Vec<_>>>()?.concat();
            IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn addresses_of_the_kernels_lists_are_read() {
        let own = rustix::process::geteuid().as_raw();
        for ip in ["127.0.0.1", "0.0.0.0", "::1", "::"] {
            let tcp = TcpListener::bind(SocketAddr::new(ip.parse().unwrap(), 0)).unwrap();
            let at = tcp.local_addr().unwrap();
            let found = bound(Protocol::Tcp);
            assert!(found.contains(&Bound { at, uid: own }), "{at}: {found:?}");
        }
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = udp.local_addr().unwrap();
        assert!(bound(Protocol::Udp).iter().any(|bound| bound.at == at));
        assert!(bound_in("  sl  local_address rem_address   st\n   0: 0100007F:12B6 nonsense\n\n").is_empty());
    }

    #[test]
    fn who_has_an_address_is_told_with_another_one_that_is_free() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let error = TcpListener::bind(at).unwrap_err();
        let words = who_has(Protocol::Tcp, at, &error);
        let own = rustix::process::geteuid().as_raw();
        assert!(words.contains(&format!("of user {own} has it")) || words.contains(&format!("user {own},")), "{words}");
        assert!(words.contains("--listen 127.0.0."), "{words}");
        let strange = SocketAddr::new([192, 0, 2, 1].into(), 1);
        let error = TcpListener::bind(strange).unwrap_err();
        assert!(who_has(Protocol::Tcp, strange, &error).contains("ip address"), "{error}");
    }
}
