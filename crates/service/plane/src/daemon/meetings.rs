//! Programs that have two ends of one kernel TCP connection: what the kernel says of an end, and where its row stands.

use std::net::{IpAddr, SocketAddr};

use control::{MeetMessage, MeetProof, MeetStep, PeerMessage, Reason, Reply, TcpEnd};
use verbs::{Encrypt, Time};

use super::{Action, Daemon, Supply};
use crate::{ClientId, MeetingAction, MeetingEnd, Party};

/// Rows of meetings in the table of kernel TCP connections have numbers with this bit, so that no number of the
/// program's own is one.
const MEETING_ROW: u64 = 1 << 63;

/// What the kernel says of a TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketFacts {
    /// Its own address.
    pub local: SocketAddr,
    /// The other end's.
    pub peer: SocketAddr,
    /// Its network namespace; none: the kernel does not say.
    pub namespace: Option<u64>,
}

impl<F, S> Daemon<F, S> {
    // ---- programs

    /// A program has one end of a TCP connection, by the kernel's word; an error: why the kernel did not say. An error of
    /// this is what the program did wrong.
    pub fn handle_meet(
        &mut self,
        now: Time,
        client: ClientId,
        (request, end): (u64, TcpEnd),
        facts: Result<SocketFacts, Reason>,
        supply: &mut dyn Supply<F>,
    ) -> Result<(), String> {
        let Some(party) = self.party(client).filter(|_| self.is_attached(client)) else {
            return Err("only an attached application may ask for this".into());
        };
        let refusal = match facts {
            Err(reason) => reason,
            Ok(facts) => match (facts.namespace, self.namespace) {
                (Some(of), Some(own)) if of == own => {
                    return self.meet(now, party, (request, end), (facts, None), supply);
                }
                (Some(of), Some(_)) if Some(party.uid) != self.nobody => {
                    return self.meet(now, party, (request, end), (facts, Some(of)), supply);
                }
                _ => {
                    self.show_end(party, request, facts)?;
                    Reason::ForeignSocket
                }
            },
        };
        self.fallbacks.handle_reason(client, request | MEETING_ROW, refusal);
        self.reply(client, Reply::Met { request, result: Err(refusal) });
        Ok(())
    }

    fn meet(
        &mut self,
        now: Time,
        party: Party,
        (request, end): (u64, TcpEnd),
        (facts, foreign): (SocketFacts, Option<u64>),
        supply: &mut dyn Supply<F>,
    ) -> Result<(), String> {
        self.show_end(party, request, facts)?;
        let SocketFacts { local, peer, .. } = facts;
        let is_own = match foreign {
            None => self.meetings.is_of_this_host(local.ip(), peer.ip()),
            Some(_) => local.ip().to_canonical() == peer.ip().to_canonical(),
        };
        let is_clear = is_own || self.hosts.encrypt_to(peer.ip().to_canonical()) != Encrypt::Required;
        if self.hosts.requires_encryption() && is_clear {
            self.reply(party.client, Reply::MeetStep { request, step: MeetStep::Clear });
        }
        let end = MeetingEnd { end, local, peer, foreign };
        self.meetings.handle_meet(now, party, (request, end), &mut || supply.word())
    }

    /// Its row in `raas ss`.
    fn show_end(&mut self, party: Party, request: u64, facts: SocketFacts) -> Result<(), String> {
        if request < MEETING_ROW {
            self.fallbacks.handle_opened(party, request | MEETING_ROW, (facts.local, facts.peer))?;
        }
        Ok(())
    }

    pub(super) fn meet_proof(&mut self, client: ClientId, request: u64, proof: MeetProof, supply: &mut dyn Supply<F>) {
        match proof {
            MeetProof::Stream { connection, local, peer } => {
                let pid = self.party(client).map_or(0, |party| party.pid);
                self.own_ends.show((client, request), (connection, pid), (local, peer));
            }
            MeetProof::Stays { reason, local, peer } => {
                self.unmeet(client, request);
                let Some(party) = self.party(client).filter(|_| request < MEETING_ROW) else { return };
                let row = request | MEETING_ROW;
                // The row was taken away just now, so there is none of this number.
                if self.fallbacks.handle_opened(party, row, (local, peer)) == Ok(true) {
                    self.fallbacks.handle_reason(client, row, reason);
                }
            }
            MeetProof::Port(_) | MeetProof::Heard(_) => {
                self.meetings.handle_proof(client, request, proof, &mut || supply.word());
            }
        }
    }

    pub(super) fn unmeet(&mut self, client: ClientId, request: u64) {
        self.meetings.handle_unmeet(client, request);
        self.own_ends.hide((client, request));
        self.fallbacks.handle_closed(client, request | MEETING_ROW);
    }

    // ---- hosts

    /// An engine says whether there is a link to a host: to the machine that asked, or to the program.
    pub fn on_path(&mut self, now: Time, client: ClientId, request: u64, result: Result<u32, Reason>) {
        // A device without datagrams says so only when the lane is there.
        let link = match result {
            Ok(_) | Err(Reason::NoDatagrams) => Ok(()),
            Err(reason) => Err(reason),
        };
        let is_taken = self.foreign.on_path(client, request, link) || self.meetings.on_path(now, client, request, link);
        if !is_taken {
            self.reply(client, Reply::DatagramPath { request, result });
        }
    }

    pub(super) fn on_meet_message(&mut self, peer: IpAddr, message: MeetMessage) {
        let stays = self.keeps_on_tcp(peer);
        self.meetings.handle_peer(peer, message, stays);
    }

    /// Whether a lane would give nothing to connections of programs under `raas run` that a host makes to this one.
    fn keeps_on_tcp(&self, peer: IpAddr) -> bool {
        self.tcp_is_faster && self.hosts.are_plain(peer)
    }

    pub(super) fn on_meeting_action(&mut self, now: Time, action: MeetingAction) {
        match action {
            MeetingAction::Path { client, request, host } if self.peers.link_to(host).is_some() => {
                self.meetings.on_path(now, client, request, Ok(()));
            }
            MeetingAction::Path { client, request, host } => self.path(client, request, host),
            MeetingAction::Tell { peer, message } => {
                if !self.peers.tell(peer, PeerMessage::Meet(message)) {
                    self.meetings.handle_peer_gone(peer, Reason::PeerLost);
                }
            }
            MeetingAction::Send { client, reply } => {
                if let Reply::Met { request, result: Ok(_) } = &reply {
                    self.fallbacks.handle_closed(client, request | MEETING_ROW);
                }
                self.actions.push_back(Action::Reply { client, reply, fds: Vec::new() });
            }
            MeetingAction::Stays { client, request, reason } => {
                self.fallbacks.handle_reason(client, request | MEETING_ROW, reason);
            }
        }
    }
}
