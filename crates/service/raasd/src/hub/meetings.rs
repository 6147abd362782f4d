//! Ends of kernel TCP connections that programs have: what `plane::Meetings` decides, carried out.
//!
//! Owns nothing. It must believe no program what its socket is: the kernel says so to a receiver.

use std::net::IpAddr;

use control::{MeetMessage, MeetProof, MeetStep, PeerMessage, Reason, Reply, TcpEnd};
use plane::{ClientId, MeetingAction, MeetingEnd, Party};
use receivers::SocketEnds;
use receivers::Verdict;
use verbs::Encrypt;

use super::{DATAGRAM_ENGINE, Hub};
use crate::command::Command;
use crate::config::RunLanes;
use crate::receiving::With;

/// Rows of meetings in the table of kernel TCP connections have numbers with this bit, so that no number of the
/// program's own is one.
const MEETING_ROW: u64 = 1 << 63;

/// The daemon's own network namespace; none on a kernel that does not say.
pub(super) fn own_namespace() -> Option<u64> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).ok()?;
    receivers::network_namespace(&socket).ok()
}

/// What one end of a connection is to hear from the other one. Without a random number there is none that proves
/// anything, and the kernel's own would be the fault.
fn word() -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(error) => panic!("no random number: {error}"),
    }
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
    pub(super) fn on_meet(&mut self, party: Party, request: u64, end: TcpEnd, with: With) -> Result<(), String> {
        let refusal = match with {
            Verdict::Socket(ends) => match (ends.namespace, self.namespace) {
                (Some(of), Some(own)) if of == own => return self.on_ends(party, request, (end, ends), None),
                (Some(of), Some(_)) if Some(party.uid) != self.nobody => {
                    return self.on_ends(party, request, (end, ends), Some(of));
                }
                _ => {
                    self.show_end(party, request, ends)?;
                    Reason::ForeignSocket
                }
            },
            Verdict::Other => Reason::ForeignSocket,
            Verdict::NoRoom => Reason::LocalLimit,
            Verdict::Nothing | Verdict::TooMany | Verdict::Memory(_) => {
                return Err("a meeting comes with one socket".into());
            }
        };
        self.fallbacks.handle_reason(party.client, request | MEETING_ROW, refusal);
        self.send(party.client, Reply::Met { request, result: Err(refusal) }, Vec::new());
        Ok(())
    }

    fn on_ends(
        &mut self,
        party: Party,
        request: u64,
        (end, ends): (TcpEnd, SocketEnds),
        foreign: Option<u64>,
    ) -> Result<(), String> {
        self.show_end(party, request, ends)?;
        let SocketEnds { local, peer, .. } = ends;
        let now = self.now();
        let is_own = match foreign {
            None => self.meetings.is_of_this_host(local.ip(), peer.ip()),
            Some(_) => local.ip().to_canonical() == peer.ip().to_canonical(),
        };
        let config = &self.link_context.config;
        if config.requires_encryption() && (is_own || config.encrypt_to(peer.ip().to_canonical()) != Encrypt::Required)
        {
            self.send(party.client, Reply::MeetStep { request, step: MeetStep::Clear }, Vec::new());
        }
        self.meetings.handle_meet(now, party, (request, MeetingEnd { end, local, peer, foreign }), &mut word)
    }

    /// Its row in `raas ss`.
    fn show_end(&mut self, party: Party, request: u64, ends: SocketEnds) -> Result<(), String> {
        if request < MEETING_ROW {
            self.fallbacks.handle_opened(party, request | MEETING_ROW, (ends.local, ends.peer))?;
        }
        Ok(())
    }

    pub(super) fn on_meet_proof(&mut self, client: ClientId, request: u64, proof: MeetProof) {
        match proof {
            MeetProof::Stream { connection, local, peer } => {
                let pid = self.clients.get(&client).map_or(0, |client| client.who.pid);
                self.own_ends.show((client, request), (connection, pid), (local, peer));
            }
            MeetProof::Stays { reason, local, peer } => {
                self.on_unmeet(client, request);
                let who = self.clients.get(&client).map(|client| (client.who.pid, client.who.uid));
                let Some((pid, uid)) = who.filter(|_| request < MEETING_ROW) else { return };
                let row = request | MEETING_ROW;
                // The row was taken away just now, so there is none of this number.
                let is_shown = self.fallbacks.handle_opened(Party { client, pid, uid }, row, (local, peer));
                if is_shown == Ok(true) {
                    self.fallbacks.handle_reason(client, row, reason);
                }
            }
            MeetProof::Port(_) | MeetProof::Heard(_) => {
                self.meetings.handle_proof(client, request, proof, &mut word);
            }
        }
    }

    pub(super) fn on_unmeet(&mut self, client: ClientId, request: u64) {
        self.meetings.handle_unmeet(client, request);
        self.own_ends.hide((client, request));
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
