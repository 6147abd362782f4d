//! Regions of this host that programs use as local memory of their operations on regions of other hosts.
//!
//! Owns the numbers of that memory. A program has it for no longer than its handle to the region: memory that a region
//! has left must not stay because a program forgot it.

use std::collections::BTreeMap;

use control::{RegionAccess, RegionRefusal, Reply};

use super::{Directory, DirectoryAction, Stage};
use crate::{ClientId, ProgramCommand};

/// Memory of one handle at a time: what the region is in, and what it has left while operations go on there.
const PER_HANDLE_MAX: usize = 2;

#[derive(Debug, Clone, Copy)]
struct Local {
    open: u64,
    /// The request whose answer waits for the engine.
    request: Option<u64>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Locals {
    table: BTreeMap<(ClientId, u32), Local>,
    last: u32,
}

impl Locals {
    /// Numbers of handles have more bits: those above the first 30 say which daemon it is.
    pub(super) fn begin_after(&mut self, number: u64) {
        self.last = u32::try_from(number >> 30 & u64::from(u32::MAX)).unwrap_or_default() << 22;
    }

    /// A program is gone; the engine gives up what was its.
    pub(super) fn forget_program(&mut self, client: ClientId) {
        let own: Vec<_> = self.table.range((client, 0)..=(client, u32::MAX)).map(|(key, _)| *key).collect();
        own.into_iter().for_each(|key| _ = self.table.remove(&key));
    }

    fn of_handle(&self, client: ClientId, open: u64) -> Vec<u32> {
        let of_program = self.table.range((client, 0)..=(client, u32::MAX));
        of_program.filter(|(_, local)| local.open == open).map(|((_, number), _)| *number).collect()
    }

    /// A number that no memory has.
    fn add(&mut self, client: ClientId, local: Local) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.table.contains_key(&(client, self.last)) {
                self.table.insert((client, self.last), local);
                return self.last;
            }
        }
    }
}

impl Directory {
    /// A program wants the memory of a region that it has open, as of an epoch, as local memory.
    pub(crate) fn handle_attach(&mut self, client: ClientId, request: u64, open: u64, epoch: u64) {
        match self.check_attach(client, open, epoch) {
            Ok((region, older, writable)) => {
                let before = self.locals.of_handle(client, open);
                for &number in before.iter().take((before.len() + 1).saturating_sub(PER_HANDLE_MAX)) {
                    self.handle_detach(client, number);
                }
                let number = self.locals.add(client, Local { open, request: Some(request) });
                let command = ProgramCommand::AttachRegion { region, older, number, writable };
                self.actions.push_back(DirectoryAction::Program { client, command });
            }
            Err(why) => self.send(client, Reply::RegionAttached { request, result: Err(why) }),
        }
    }

    /// The region, whether it is the memory that it moves away from, and whether the program may write it.
    fn check_attach(&self, client: ClientId, open: u64, epoch: u64) -> Result<(u64, bool, bool), RegionRefusal> {
        let region = *self.programs.get(&client).and_then(|held| held.get(&open)).ok_or(RegionRefusal::Unknown)?;
        let entry = self.entries.get(&region).ok_or(RegionRefusal::OwnerGone)?;
        // Operations that put bytes there could not be taken back from a writer that is fenced off.
        let may_write = |access: RegionAccess| access.changes() && !entry.spec.single_writer;
        let writable = entry.handles.get(open).is_none_or(|handle| may_write(handle.access));
        let is_moving = matches!(&entry.stage, Stage::Revoking(revoke) if revoke.is_moving());
        if epoch == entry.epoch {
            Ok((region, false, writable))
        } else if is_moving && epoch + 1 == entry.epoch {
            Ok((region, true, writable))
        } else {
            Err(RegionRefusal::Revoked { held: epoch, current: entry.epoch })
        }
    }

    /// The engine's answer to [`ProgramCommand::AttachRegion`].
    pub(crate) fn on_attached(&mut self, client: ClientId, number: u32, result: Result<(), RegionRefusal>) {
        let Some(local) = self.locals.table.get_mut(&(client, number)) else { return };
        let Some(request) = local.request.take() else { return };
        if result.is_err() {
            self.locals.table.remove(&(client, number));
        }
        self.send(client, Reply::RegionAttached { request, result: result.map(|()| number) });
    }

    /// A program does not use such memory any more.
    pub(crate) fn handle_detach(&mut self, client: ClientId, number: u32) {
        let Some(local) = self.locals.table.remove(&(client, number)) else { return };
        let command = ProgramCommand::DetachRegion { number };
        self.actions.push_back(DirectoryAction::Program { client, command });
        if let Some(request) = local.request {
            let why = RegionRefusal::OwnerGone;
            self.send(client, Reply::RegionAttached { request, result: Err(why) });
        }
    }

    /// A handle is over.
    pub(super) fn detach_of(&mut self, client: ClientId, open: u64) {
        for number in self.locals.of_handle(client, open) {
            self.handle_detach(client, number);
        }
    }
}
