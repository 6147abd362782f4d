//! Notifications: which programs may have the owner of a region told, and where the owner is told.
//!
//! Owns the checks, and the engine's handle by which a program has the owner of a region told that it has mapped. It must
//! have the engine close that with the program's handle, and never carry a notification: the engine does that
//! (docs/inside/shared-memory.md).

use std::collections::BTreeMap;

use control::{Reason, RegionAccess, RegionRefusal, Reply};

use super::{Directory, DirectoryAction};
use crate::{ClientId, ProgramCommand};

/// How far the engine's handle is.
#[derive(Debug, Clone, Copy)]
enum State {
    /// The engine opens it, for this request.
    Asked {
        request: u64,
    },
    /// The program's handle ended meanwhile.
    Over,
    Open {
        handle: u32,
    },
}

/// By the program's handle.
#[derive(Debug, Default)]
pub(super) struct Notifiers(BTreeMap<u64, (ClientId, State)>);

impl Notifiers {
    /// A program has left: the engine closes its handles by itself.
    pub(super) fn forget_program(&mut self, client: ClientId) {
        self.0.retain(|_, (of, _)| *of != client);
    }
}

impl Directory {
    /// A program of this host will have the owner of a region told.
    pub(crate) fn handle_notifier(&mut self, client: ClientId, request: u64, open: u64) {
        let result = match self.notifiers.0.get(&open).copied() {
            Some((_, State::Open { handle })) => self.check_notifier(client, open).map(|_| Some(handle)),
            Some(_) => Err(RegionRefusal::Busy),
            None => self.check_notifier(client, open).map(|(region, bytes)| {
                self.notifiers.0.insert(open, (client, State::Asked { request }));
                let command = ProgramCommand::OpenNotifier { open, region, bytes };
                self.actions.push_back(DirectoryAction::Program { client, command });
                None
            }),
        };
        if let Some(result) = result.transpose() {
            self.send(client, Reply::RegionNotifier { request, result });
        }
    }

    /// The region of a program's handle by which it may write, and its length.
    fn check_notifier(&self, client: ClientId, open: u64) -> Result<(u64, u64), RegionRefusal> {
        let region = self.programs.get(&client).and_then(|held| held.get(&open)).copied();
        let region = region.ok_or(RegionRefusal::Unknown)?;
        let entry = self.entries.get(&region).filter(|entry| entry.owner.is_some()).ok_or(RegionRefusal::OwnerGone)?;
        match entry.handles.get(open) {
            Some(handle) if !handle.access.contains(RegionAccess::WRITE) => {
                Err(RegionRefusal::NoAccess { asked: RegionAccess::WRITE, allowed: handle.access })
            }
            _ => Ok((region, entry.spec.bytes)),
        }
    }

    /// The engine's answer to [`ProgramCommand::OpenNotifier`]. False: it is of something else.
    pub(super) fn on_notifier_opened(&mut self, open: u64, result: Result<u32, Reason>) -> bool {
        let Some((client, state)) = self.notifiers.0.get_mut(&open) else { return false };
        let client = *client;
        match (*state, result) {
            (State::Open { .. }, _) => return false,
            (State::Asked { request }, Ok(handle)) => {
                *state = State::Open { handle };
                self.send(client, Reply::RegionNotifier { request, result: Ok(handle) });
            }
            (State::Over, Ok(handle)) => {
                self.notifiers.0.remove(&open);
                self.close_notifier(client, handle);
            }
            (State::Asked { .. } | State::Over, Err(reason)) => {
                let over = self.notifiers.0.remove(&open);
                if let Some((_, State::Asked { request })) = over {
                    let result = Err(RegionRefusal::Reason(reason));
                    self.send(client, Reply::RegionNotifier { request, result });
                }
            }
        }
        true
    }

    /// The program's handle is over.
    pub(super) fn end_notifier(&mut self, open: u64) {
        let Some((client, state)) = self.notifiers.0.get_mut(&open) else { return };
        let client = *client;
        match *state {
            State::Open { handle } => {
                self.notifiers.0.remove(&open);
                self.close_notifier(client, handle);
            }
            State::Asked { request } => {
                *state = State::Over;
                let result = Err(RegionRefusal::Unknown);
                self.send(client, Reply::RegionNotifier { request, result });
            }
            State::Over => {}
        }
    }

    fn close_notifier(&mut self, client: ClientId, handle: u32) {
        let command = ProgramCommand::CloseRegion { handle, is_fenced: true };
        self.actions.push_back(DirectoryAction::Program { client, command });
    }

    /// The owner has a queue for them.
    pub(crate) fn handle_notices(&mut self, client: ClientId, open: u64, queue: u64) {
        let Some(&region) = self.programs.get(&client).and_then(|held| held.get(&open)) else { return };
        let owner = self.entries.get(&region).and_then(|entry| entry.owner);
        if owner.is_some_and(|owner| owner.client == client && owner.open == open) {
            let command = ProgramCommand::NoticesInto { region, queue };
            self.actions.push_back(DirectoryAction::Program { client, command });
        }
    }
}
