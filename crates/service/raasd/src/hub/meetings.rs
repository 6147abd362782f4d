//! Ends of kernel TCP connections that programs have: what the system says of them.
//!
//! Owns nothing. It must believe no program what its socket is: the kernel says so to a receiver.

use control::{Reason, TcpEnd};
use plane::{ClientId, SocketFacts};
use receivers::{SocketEnds, Verdict};

use super::Hub;
use super::actions::System;
use crate::receiving::With;

/// The daemon's own network namespace; none on a kernel that does not say.
pub(super) fn own_namespace() -> Option<u64> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).ok()?;
    receivers::network_namespace(&socket).ok()
}

/// The user whose number all have for whom the daemon's own user namespace has none: no one user.
pub(super) fn nobody() -> Option<u32> {
    let is_whole = |text: String| text.split_whitespace().nth(2).and_then(|count| count.parse().ok()) == Some(u32::MAX);
    if std::fs::read_to_string("/proc/self/uid_map").is_ok_and(is_whole) {
        return None;
    }
    std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok().and_then(|text| text.trim().parse().ok())
}

impl Hub {
    pub(super) fn on_meet(&mut self, client: ClientId, request: u64, end: TcpEnd, with: With) -> Result<(), String> {
        let facts = match with {
            Verdict::Socket(SocketEnds { local, peer, namespace }) => Ok(SocketFacts { local, peer, namespace }),
            Verdict::Other => Err(Reason::ForeignSocket),
            Verdict::NoRoom => Err(Reason::LocalLimit),
            Verdict::Nothing | Verdict::TooMany | Verdict::Memory(_) => {
                return Err("a meeting comes with one socket".into());
            }
        };
        self.daemon.handle_meet(self.link_context.now(), client, (request, end), facts, &mut System)
    }
}
