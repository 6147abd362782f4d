//! Ends of kernel TCP connections that programs have: what `plane::Meetings` decides, carried out.
//!
//! Owns nothing. It must believe no program what its socket is: the socket itself says so.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use control::{MeetMessage, PeerMessage, Reason, Reply, TcpEnd};
use plane::{ClientId, MeetingAction, Party};
use rustix::net::{SocketType, sockopt};
use verbs::Encrypt;

use super::{DATAGRAM_ENGINE, Hub};
use crate::closers;
use crate::command::Command;
use crate::config::RunLanes;

/// Rows of meetings in the table of kernel TCP connections have numbers with this bit, so that no number of the
/// program's own is one.
const MEETING_ROW: u64 = 1 << 63;

/// The addresses of a connected TCP socket of the daemon's own network namespace: this end and the other.
fn ends(socket: &OwnedFd, namespace: Option<u64>) -> Option<(SocketAddr, SocketAddr)> {
    let is_tcp = sockopt::socket_type(socket).ok()? == SocketType::STREAM
        && sockopt::socket_protocol(socket).ok()? == Some(rustix::net::ipproto::TCP);
    // Another namespace may have any addresses, so also those of somebody else's connection.
    let is_here = softnic::network_namespace(socket.as_fd()).ok() == namespace && namespace.is_some();
    if !is_tcp || !is_here {
        return None;
    }
    let local = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    let peer = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    Some((local, peer))
}

/// The daemon's own network namespace; none on a kernel that does not say.
pub(super) fn own_namespace() -> Option<u64> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).ok()?;
    softnic::network_namespace(socket.as_fd()).ok()
}

impl Hub {
    pub(super) fn on_meet(
        &mut self,
        party: Party,
        request: u64,
        end: TcpEnd,
        fds: Vec<OwnedFd>,
        lacks_fds: bool,
    ) -> Result<(), String> {
        let found = match &fds[..] {
            [socket] => ends(socket, self.namespace),
            [] if lacks_fds => None,
            _ => {
                fds.into_iter().for_each(closers::let_go);
                return Err("a meeting comes with one socket".into());
            }
        };
        fds.into_iter().for_each(closers::let_go);
        let Some((local, peer)) = found else {
            let reason = if lacks_fds { Reason::LocalLimit } else { Reason::ForeignSocket };
            self.send(party.client, Reply::Met { request, result: Err(reason) }, Vec::new());
            return Ok(());
        };
        let now = self.now();
        if request < MEETING_ROW {
            self.fallbacks.handle_opened(party, request | MEETING_ROW, (local, peer))?;
        }
        self.meetings.handle_meet(now, party, request, (end, local, peer))
    }

    pub(super) fn on_unmeet(&mut self, client: ClientId, request: u64) {
        self.meetings.handle_unmeet(client, request);
        self.fallbacks.handle_closed(client, request | MEETING_ROW);
    }

    /// The engine says whether there is a link to a host. False: no meeting waits for it.
    pub(super) fn on_meeting_path(&mut self, client: ClientId, request: u64, result: Result<u32, Reason>) -> bool {
        let now = self.now();
        let result = match result {
            Ok(_) | Err(Reason::NoDatagrams) => Ok(()),
            Err(reason) => Err(reason),
        };
        self.meetings.on_path(now, client, request, result)
    }

    pub(super) fn on_meet_message(&mut self, peer: IpAddr, message: MeetMessage) {
        let stays = self.keeps_on_tcp(peer);
        self.meetings.handle_peer(peer, message, stays);
    }

    /// Whether a lane would give nothing to connections of programs under `raas run` that a host makes to this one: it
    /// would be a software NIC's, in the clear, with one path, and so slower than kernel TCP (docs/use/run.md).
    fn keeps_on_tcp(&self, peer: IpAddr) -> bool {
        let config = &self.link_context.config;
        let gives_nothing = config.encrypt_to(peer) == Encrypt::Off && !config.has_standby(peer);
        self.is_softnic && config.run_lanes == RunLanes::Auto && gives_nothing
    }

    pub(super) fn settle_meetings(&mut self) {
        while let Some(action) = self.meetings.poll_action() {
            match action {
                MeetingAction::Path { client, request, host } if self.peers.link_to(host).is_some() => {
                    self.on_meeting_path(client, request, Ok(0));
                }
                MeetingAction::Path { client, request, host } => {
                    self.command_of(client, DATAGRAM_ENGINE, |app| Command::DatagramPath { app, request, to: host });
                }
                MeetingAction::Tell { peer, message } => {
                    if !self.peers.tell(peer, PeerMessage::Meet(message)) {
                        self.meetings.handle_peer_gone(peer, Reason::PeerLost);
                    }
                }
                MeetingAction::Send { client, reply } => {
                    if let Reply::Met { request, result: Ok(_) } = &reply {
                        self.fallbacks.handle_closed(client, request | MEETING_ROW);
                    }
                    self.send(client, reply, Vec::new());
                }
                MeetingAction::Stays { client, request, reason } => {
                    self.fallbacks.handle_reason(client, request | MEETING_ROW, reason);
                }
            }
        }
    }
}
