//! The one writer of a region that has one at a time, and how the next one takes its place.
//!
//! Owns the terms: a take-over needs a greater one than all before, and none is granted twice. It must never let a program
//! hear that it writes before the registration of the writer before it is gone at the engine, and the queue pair if that
//! was for nothing else: so their ends are decided before the new grant, and the engine keeps that order. Readers, the
//! owner and the bytes stay.
//!
//! What a program has mapped cannot be taken away from it. So a writer of this host gets no mapping: the engine does its
//! operations. The owner alone has the region mapped for writing, and may write it as it likes.

use std::net::IpAddr;

use control::{
    OpenedRegion, Reason, RegionAccess, RegionGrant, RegionInfo, RegionMessage, RegionPath, RegionRefusal, RegionSpec,
};

use super::handles::{Handle, Writer};
use super::remote::RemoteHandle;
use super::{Directory, DirectoryAction, Entry, Stage, TakeOver, info_of};
use crate::{Party, ProgramCommand, RegionCommand};

/// A region with one writer that nobody may write is none.
pub(super) fn check_spec(spec: &RegionSpec) -> Result<(), RegionRefusal> {
    let (asked, allowed) = (RegionAccess::WRITE, spec.access);
    if spec.single_writer && !allowed.contains(asked) {
        return Err(RegionRefusal::NoAccess { asked, allowed });
    }
    Ok(())
}

impl Entry {
    /// What those may do who open it without a term.
    pub(super) fn opened_access(&self) -> RegionAccess {
        let readers = RegionAccess::READ | RegionAccess::EXECUTE;
        if self.spec.single_writer { self.spec.access & readers } else { self.spec.access }
    }

    /// What its writer may do. Kernels are for those who open it.
    fn writer_access(&self) -> RegionAccess {
        self.spec.access & RegionAccess::ALL
    }
}

impl Directory {
    /// A program of this host becomes the writer of a region of this host.
    pub(crate) fn handle_take_over(&mut self, party: Party, request: u64, wish: &TakeOver) {
        let checked = self.check_take_over(party.uid, wish);
        let region = match checked.and_then(|region| self.check_handles(party).map(|()| region)) {
            Ok(region) => region,
            Err(why) => return self.opened(party.client, request, Err(why), None),
        };
        let last_term = self.supersede(region, wish.term);
        let open = self.next_open();
        let Party { client, pid, .. } = party;
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let access = entry.writer_access();
        entry.writer = Some(Writer::Here { client, pid, open, request: Some(request) });
        entry.handles.insert(open, Handle { client, access, lease: None });
        let (epoch, bytes) = (entry.epoch, entry.spec.bytes);
        self.add_handle(party, open, region);
        self.takers.insert(open, (region, last_term));
        let grant = RegionGrant { region, epoch, bytes, access, rkey: 0, addr: 0, last_term };
        let command = ProgramCommand::WriteRegion { open, grant };
        self.actions.push_back(DirectoryAction::Program { client, command });
    }

    /// The engine's answer to [`ProgramCommand::WriteRegion`] and [`ProgramCommand::OpenNotifier`].
    pub(crate) fn on_writer_opened(&mut self, open: u64, result: Result<u32, Reason>) {
        if self.on_notifier_opened(open, result) {
            return;
        }
        let Some((region, last_term)) = self.takers.remove(&open) else { return };
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let Some(Writer::Here { client, open: of, request, .. }) = &mut entry.writer else { return };
        let (client, Some(request)) = (*client, request.take().filter(|_| *of == open)) else { return };
        match result {
            Ok(handle) => {
                let access = entry.writer_access();
                let info = RegionInfo { access, last_term, ..info_of(region, entry) };
                let opened = OpenedRegion { open, info, path: RegionPath::Writer { handle } };
                self.opened(client, request, Ok(opened), None);
            }
            Err(reason) => {
                entry.writer = None;
                entry.handles.remove(open);
                self.forget_handle(client, open);
                self.opened(client, request, Err(RegionRefusal::Reason(reason)), None);
            }
        }
    }

    /// A program of another host becomes the writer of a region of this host, over a leased lane.
    pub(super) fn handle_peer_take_over(&mut self, peer: IpAddr, (open, lane): (u64, u32), uid: u32, wish: &TakeOver) {
        let checked = self.check_take_over(uid, wish).and_then(|region| {
            self.check_peer_handle(peer, open)?;
            self.check_lane(peer, Some(lane), Some(region)).map(|()| region)
        });
        let region = match checked {
            Ok(region) => region,
            Err(why) => return self.tell(peer, RegionMessage::Opened { open, result: Err(why) }),
        };
        // The writer before may be of the same program, on the same lane, which stays.
        self.join_lane(peer, Some(lane));
        let last_term = self.supersede(region, wish.term);
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let access = entry.writer_access();
        entry.writer = Some(Writer::Far { peer, open });
        let handle = RemoteHandle { region, access, lease: None, lane: Some(lane), last_term };
        self.grant(peer, open, handle, Some(access));
    }

    fn check_take_over(&self, uid: u32, wish: &TakeOver) -> Result<u64, RegionRefusal> {
        let (region, entry) = self.known(uid, &wish.name, &wish.key)?;
        if !self.may_see(uid, entry) {
            return Err(RegionRefusal::OtherUser { uid: entry.uid });
        }
        if !entry.spec.single_writer {
            return Err(RegionRefusal::ManyWriters);
        }
        if !matches!(entry.stage, Stage::Live) {
            return Err(RegionRefusal::Busy);
        }
        if wish.term <= entry.term {
            return Err(RegionRefusal::Superseded { term: entry.term });
        }
        Ok(region)
    }

    /// The writer of a region is over, and another one comes by `term`. The term of the last take-over before.
    fn supersede(&mut self, region: u64, term: u64) -> u64 {
        let Some(entry) = self.entries.get_mut(&region) else { return 0 };
        let last_term = std::mem::replace(&mut entry.term, term);
        let why = RegionRefusal::Superseded { term };
        if let Some(Writer::Far { peer, open }) = entry.writer {
            entry.writer = None;
            // The peer hears why before its lane ends.
            self.tell(peer, RegionMessage::Superseded { open, why });
            self.close_peer_handle(peer, open, Reason::Superseded);
            self.fence(region);
        } else {
            self.end_writer_here(region, &why);
        }
        last_term
    }

    /// A writer of this host is over, and hears why.
    pub(super) fn end_writer_here(&mut self, region: u64, why: &RegionRefusal) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let Some(Writer::Here { client, open, request, .. }) = entry.writer else { return };
        entry.writer = None;
        entry.handles.remove(open);
        self.takers.remove(&open);
        self.fence(region);
        self.end_leases_of(region, client, Some(open));
        match request {
            Some(request) => {
                self.forget_handle(client, open);
                self.opened(client, request, Err(why.clone()), None);
            }
            None => self.drop_handle(client, open, why.clone()),
        }
    }

    /// A program of this host has given a handle up, or has left.
    pub(super) fn forget_writer_here(&mut self, region: u64, open: u64) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        if matches!(entry.writer, Some(Writer::Here { open: of, .. }) if of == open) {
            entry.writer = None;
            self.takers.remove(&open);
            self.fence(region);
        }
    }

    /// A handle of a program of another host is over.
    pub(super) fn forget_far_writer(&mut self, region: u64, peer: IpAddr, open: u64) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        if entry.writer == Some(Writer::Far { peer, open }) {
            entry.writer = None;
            self.fence(region);
        }
    }

    pub(super) fn fence(&mut self, region: u64) {
        self.actions.push_back(DirectoryAction::Engine(RegionCommand::Fence { region }));
    }
}
