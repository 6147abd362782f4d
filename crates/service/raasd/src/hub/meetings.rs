//! Ends of kernel TCP connections that programs have: what `plane::Meetings` decides, carried out.
//!
//! Owns nothing. It must believe no program what its socket is: the kernel says so to a receiver.

use std::net::IpAddr;

use control::{MeetMessage, PeerMessage, Reason, Reply, TcpEnd};
use plane::{ClientId, MeetingAction, Party};
use receivers::SocketEnds;
use receivers::Verdict;
use verbs::Encrypt;

use super::{DATAGRAM_ENGINE, Hub};
use crate::command::Command;
use crate::config::RunLanes;

/// Rows of meetings in the table of kernel TCP connections have numbers with this bit, so that no number of the
/// program's own is one.
const MEETING_ROW: u64 = 1 << 63;

/// The daemon's own network namespace; none on a kernel that does not say.
pub(super) fn own_namespace() -> Option<u64> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).ok()?;
    receivers::network_namespace(&socket).ok()
}

impl Hub {
    pub(super) fn on_meet(&mut self, party: Party, request: u64, end: TcpEnd, with: Verdict) -> Result<(), String> {
        let refusal = match with {
            // Another namespace may have any addresses, so also those of somebody else's connection.
            Verdict::Socket(ends) if ends.namespace == self.namespace && ends.namespace.is_some() => {
                return self.on_ends(party, request, (end, ends));
            }
            Verdict::Socket(_) | Verdict::Other => Reason::ForeignSocket,
            Verdict::NoRoom => Reason::LocalLimit,
            Verdict::Nothing | Verdict::TooMany | Verdict::Memory(_) => {
                return Err("a meeting comes with one socket".into());
            }
        };
        self.send(party.client, Reply::Met { request, result: Err(refusal) }, Vec::new());
        Ok(())
    }

    fn on_ends(&mut self, party: Party, request: u64, (end, ends): (TcpEnd, SocketEnds)) -> Result<(), String> {
        let SocketEnds { local, peer, .. } = ends;
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
