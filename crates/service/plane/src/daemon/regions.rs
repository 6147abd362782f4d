//! Regions of this host and handles to those of others, and what a program's rights and a lost lane mean for them.

use std::net::IpAddr;
use std::sync::Arc;

use control::{LEASED_LANE_FIRST, REGION_EPOCH_MAX, Reason, RegionGrant, RegionMessage, RegionRefusal, Reply, Request};
use verbs::Time;

use super::{Action, DATAGRAM_ENGINE, Daemon};
use crate::{
    ClientId, DirectoryAction, Foreign, ForeignAction, Lessee, Party, ProgramCommand, RegionCommand, RegionRight,
    RegionWish, Rights, TakeOver, TenantShare,
};

impl<F, S> Daemon<F, S> {
    // ---- programs

    /// As [`Daemon::handle_request`].
    pub(super) fn handle_region_request(
        &mut self,
        now: Time,
        party: Party,
        request: Request,
    ) -> Result<Option<Request>, String> {
        let client = party.client;
        match request {
            Request::RegionCreate { request, spec } => match self.region_share(client) {
                Some(share) => self.directory.handle_create(party, request, spec, share),
                None => self.refuse_region(client, request),
            },
            Request::RegionAdopt { request, spec } => match self.region_share(client) {
                Some(_) => self.directory.handle_adopt(party, request, &spec),
                None => self.refuse_region(client, request),
            },
            Request::RegionReturn { request, spec, epoch, line } => {
                // Nothing that it says is believed but what it could ask for as well: its user, share and policy are
                // judged as for a new one.
                if !(1..=REGION_EPOCH_MAX).contains(&epoch) {
                    return Err(format!("its region was in epoch {epoch}, which is not from 1 to {REGION_EPOCH_MAX}"));
                }
                match self.region_share(client) {
                    Some(share) => self.directory.handle_return(party, request, (spec, epoch, line), share),
                    None => self.refuse_region(client, request),
                }
            }
            Request::RegionOpen { request, host, name, key, access, lease, leased_lane } => {
                let wish = RegionWish { name, key, access, lease };
                // One of this host is mapped, and needs no lane.
                match self.hosts.other(host) {
                    _ if !self.may_open(client, leased_lane) => self.refuse_region(client, request),
                    None => self.directory.handle_open(party, request, wish),
                    Some(host) => self.foreign.handle_open(party, request, host, wish, leased_lane),
                }
            }
            Request::RegionTakeOver { request, host, name, key, term } => {
                let wish = TakeOver { name, key, term };
                match self.hosts.other(host) {
                    other if !self.may_open(client, other.is_some()) => self.refuse_region(client, request),
                    None => self.directory.handle_take_over(party, request, &wish),
                    Some(host) => self.foreign.handle_take_over(party, request, host, wish),
                }
            }
            Request::RegionClose { open, .. } if Foreign::is_foreign(open) => self.foreign.handle_close(client, open),
            Request::RegionClose { open, delete } => self.directory.handle_close(client, open, delete),
            Request::RegionRevoke { request, name, key, new_key } => {
                self.directory.handle_revoke(now, party, request, (&name, key), new_key);
            }
            Request::RegionMoved { open, epoch } => self.directory.handle_moved(client, open, epoch),
            Request::RegionNotifier { request, open } => self.directory.handle_notifier(client, request, open),
            Request::RegionAttach { request, open, epoch } => {
                self.directory.handle_attach(client, request, open, epoch);
            }
            Request::RegionDetach { number } => self.directory.handle_detach(client, number),
            Request::RegionNotices { open, queue } => self.directory.handle_notices(client, open, queue),
            Request::RegionLend { request, open, connection, host, key } => {
                let of_pair = self.pairs.other_end(client, connection).map(Lessee::Program);
                let to = of_pair.or_else(|| self.hosts.other(host).map(Lessee::Host));
                self.directory.handle_lend(client, request, open, (connection, to), key);
            }
            Request::RegionUnlend { lease } => self.directory.handle_unlend(client, lease),
            Request::RegionLoansBack { host, lease, key, loans } => match self.hosts.other(host) {
                None => self.directory.handle_loans_back(Lessee::Program(client), lease, &key, loans),
                // Whether the program was lent them is for the lender's daemon to say: it knows the key.
                Some(host) => self.tell_of_region(now, host, RegionMessage::LoansBack { lease, key, loans }),
            },
            Request::RegionLoansTaken { lease } => self.directory.handle_loans_taken(client, lease),
            of_driver => return Ok(Some(of_driver)),
        }
        Ok(None)
    }

    /// What a program may make of regions; none if it may make none.
    fn region_share(&self, client: ClientId) -> Option<TenantShare> {
        let (name, rights) = self.admission.tenant_of(client)?;
        let share = TenantShare { name: Arc::clone(name), bytes_max: rights.region_bytes_max };
        (rights.regions >= RegionRight::Create).then_some(share)
    }

    /// Whether a program may open regions of others, and with a lane of its own.
    fn may_open(&self, client: ClientId, is_leased: bool) -> bool {
        let may = |rights: &Rights| rights.regions >= RegionRight::Open && (rights.leased_lanes || !is_leased);
        self.admission.tenant_of(client).is_some_and(|(_, rights)| may(rights))
    }

    /// The policy does not let the program have the region.
    fn refuse_region(&mut self, client: ClientId, request: u64) {
        let result = Err(RegionRefusal::Reason(Reason::Policy));
        self.reply(client, Reply::RegionOpened { request, result });
    }

    /// The driver has no descriptor for [`Action::Share`].
    pub fn on_not_shared(&mut self, client: ClientId, reply: Reply, cause: String) {
        match reply {
            Reply::RegionOpened { request, result: Ok(opened) } => {
                self.directory.handle_close(client, opened.open, true);
                let refused = RegionRefusal::NoMemory { bytes: opened.info.bytes, cause };
                self.reply(client, Reply::RegionOpened { request, result: Err(refused) });
            }
            // Without its new memory the owner has no region.
            Reply::RegionMove { open, .. } => {
                self.directory.handle_close(client, open, true);
                self.reply(client, Reply::RegionEnded { open, why: RegionRefusal::OwnerGone });
            }
            other => self.reply(client, other),
        }
    }

    // ---- what engines and memory say

    /// The answer to [`MemoryCommand::Make`](crate::MemoryCommand::Make).
    pub fn on_made(&mut self, now: Time, region: u64, result: Result<(), RegionRefusal>) {
        self.directory.on_made(now, region, result);
    }

    /// The answer to [`RegionCommand::Grant`]; `not_registered`: the region that was to be registered, and is not.
    pub fn on_granted(
        &mut self,
        (peer, open): (IpAddr, u64),
        result: Result<RegionGrant, RegionRefusal>,
        not_registered: Option<u64>,
    ) {
        not_registered.into_iter().for_each(|region| self.directory.on_not_registered(region));
        self.directory.on_granted(peer, open, result);
    }

    /// The answer to [`RegionCommand::Deregister`].
    pub fn on_deregistered(&mut self, region: u64) {
        self.directory.on_deregistered(region);
    }

    /// The answer to [`ProgramCommand::AttachRegion`].
    pub fn on_region_attached(&mut self, client: ClientId, number: u32, result: Result<(), RegionRefusal>) {
        self.directory.on_attached(client, number, result);
    }

    /// The answer to [`ProgramCommand::OpenRegion`] and [`ProgramCommand::WriteRegion`].
    pub fn on_region_opened(&mut self, open: u64, result: Result<u32, Reason>) {
        if Foreign::is_foreign(open) {
            self.foreign.on_opened(open, result);
        } else {
            self.directory.on_writer_opened(open, result);
        }
    }

    /// An engine's handle is closed.
    pub fn on_region_closed(&mut self, peer: IpAddr, handle: u32) {
        self.foreign.on_closed(peer, handle);
    }

    /// The answer to [`RegionCommand::Stop`].
    pub fn on_region_stopped(&mut self, peer: IpAddr, region: u64, epoch: u64) {
        self.foreign.on_stopped(peer, region, epoch);
    }

    // ---- other hosts

    pub(super) fn on_region_message(&mut self, now: Time, peer: IpAddr, message: RegionMessage) {
        if !self.directory.handle_peer(now, peer, &message) {
            self.foreign.handle_peer(peer, message);
        }
    }

    /// The lane or the link to a peer is gone, and the engine knows it before anything that is asked of it from here on.
    fn on_peer_gone(&mut self, now: Time, peer: IpAddr, reason: Reason) {
        self.directory.handle_peer_gone(now, peer);
        self.foreign.handle_peer_gone(peer, reason);
    }

    /// One lane to a peer is gone, and the engine knows it.
    pub(super) fn on_lane_gone(&mut self, now: Time, (peer, lane): (IpAddr, u32), reason: Reason) {
        if lane >= LEASED_LANE_FIRST {
            self.foreign.handle_lane_gone(peer, lane, reason);
        } else if lane == DATAGRAM_ENGINE {
            self.on_peer_gone(now, peer, reason);
        }
    }

    fn tell_of_region(&mut self, now: Time, peer: IpAddr, message: RegionMessage) {
        if !self.peers.tell_of_region(peer, message) {
            self.on_peer_gone(now, peer, Reason::PeerLost);
        }
    }

    // ---- what is decided

    pub(super) fn on_foreign_action(&mut self, now: Time, action: ForeignAction) {
        match action {
            ForeignAction::Path { client, request, host } => self.path(client, request, host),
            ForeignAction::Tell { peer, message } => self.tell_of_region(now, peer, message),
            ForeignAction::Lease { open, peer } => {
                let lane = self.peers.lane_number(peer);
                self.foreign.on_lane_number(open, lane);
            }
            ForeignAction::Open { open, client, .. } if !self.is_attached(client) => {
                self.foreign.on_opened(open, Err(Reason::AppFault));
            }
            ForeignAction::Open { open, client, peer, grant, lane } => {
                self.command(DATAGRAM_ENGINE, client, ProgramCommand::OpenRegion { peer, open, grant, lane });
            }
            // Of a program that has left the engine closes it by itself.
            ForeignAction::Close { client, handle, is_fenced } => {
                self.command(DATAGRAM_ENGINE, client, ProgramCommand::CloseRegion { handle, is_fenced });
            }
            ForeignAction::EndLane { peer, lane } => {
                self.region(RegionCommand::EndLane { peer, lane, reason: Reason::Closed });
            }
            ForeignAction::Stop { peer, region, epoch } => self.region(RegionCommand::Stop { peer, region, epoch }),
            ForeignAction::Send { client, reply } => self.reply(client, reply),
        }
    }

    fn region(&mut self, command: RegionCommand) {
        self.actions.push_back(Action::Region(command));
    }

    pub(super) fn on_directory_action(&mut self, now: Time, action: DirectoryAction) {
        match action {
            DirectoryAction::Memory(command) => self.actions.push_back(Action::Memory(command)),
            DirectoryAction::Engine(command) => self.region(command),
            DirectoryAction::Program { client, command: ProgramCommand::AttachRegion { number, .. } }
                if !self.is_attached(client) =>
            {
                let gone = Err(RegionRefusal::Reason(Reason::AppFault));
                self.directory.on_attached(client, number, gone);
            }
            DirectoryAction::Program {
                client,
                command: ProgramCommand::WriteRegion { open, .. } | ProgramCommand::OpenNotifier { open, .. },
            } if !self.is_attached(client) => {
                self.directory.on_writer_opened(open, Err(Reason::AppFault));
            }
            // Of a program that has left the engine detaches it by itself.
            DirectoryAction::Program { client, command } => self.command(DATAGRAM_ENGINE, client, command),
            DirectoryAction::Tell { peer, message } => {
                if let RegionMessage::Stop { region, .. } = message {
                    self.region(RegionCommand::Halt { region, peer });
                }
                self.tell_of_region(now, peer, message);
            }
            DirectoryAction::DropPeer { peer } => {
                self.peers.drop_peer(peer, "it goes on using a region that was revoked");
            }
            DirectoryAction::Send { client, reply, memory: None } => self.reply(client, reply),
            DirectoryAction::Send { client, reply, memory: Some(memory) } => {
                self.actions.push_back(Action::Share { client, reply, memory });
            }
        }
    }
}
