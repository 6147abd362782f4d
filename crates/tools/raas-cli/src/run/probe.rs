//! Whether a TCP connection of this network namespace to itself would be upgraded: what `raas run --strict` asks before
//! it starts a program, and `raas doctor`.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use raas::meeting::{Found, Meeting, Rendezvous, TcpEnd};
use raas::{Reason, Session};

/// How long the daemon may take.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tried {
    /// It would be upgraded.
    Upgraded,
    /// It would stay on TCP.
    Stays(Reason),
    /// No connection could be made, as where the loopback interface is down.
    NoConnection,
}

/// Tries it.
pub(crate) fn upgrade(session: &Session) -> Tried {
    ends(session).unwrap_or(Tried::NoConnection)
}

fn ends(session: &Session) -> Option<Tried> {
    // In the daemon's namespace its own address; several daemons of one machine have loopback addresses.
    let addresses = session.addresses().iter().copied().chain([IpAddr::from(Ipv4Addr::LOCALHOST)]);
    let listener = addresses.filter_map(|ip| TcpListener::bind((ip, 0)).ok()).next()?;
    // Where the loopback interface is down nothing answers.
    let connects = TcpStream::connect_timeout(&listener.local_addr().ok()?, PATIENCE).ok()?;
    let (accepts, _) = listener.accept().ok()?;
    // Nobody connects to this place.
    let nowhere = TcpEnd::Accepted(Rendezvous { port: 1, token: 0 });
    let _accepted = Meeting::begin(session, accepts.as_fd(), nowhere).ok()?;
    let mut connected = Meeting::begin(session, connects.as_fd(), TcpEnd::Connected).ok()?;
    let until = Instant::now() + PATIENCE;
    loop {
        match connected.try_finish() {
            Ok(Some(Found::Met(_))) => return Some(Tried::Upgraded),
            Ok(Some(Found::Stays(reason))) => return Some(Tried::Stays(reason)),
            Ok(None) if Instant::now() < until => std::thread::sleep(PAUSE),
            Ok(None) => return Some(Tried::Stays(Reason::TimedOut)),
            Err(_) => return Some(Tried::Stays(Reason::DaemonLost)),
        }
    }
}
