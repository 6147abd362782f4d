//! The way of a revoke: everybody but the owner loses the region, and the region moves to memory that only the owner
//! has.
//!
//! Owns when the answer may be given. The memory of the host's own programs cannot be taken away from them: so new
//! memory is made first, then the stamp changes and all handles are over, then the owner copies. A store of an older
//! handle that is made after the copy reaches memory that nobody looks at any more, and its program sees the stamp.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use control::{RegionKey, RegionRefusal, Reply, region_stamp};
use verbs::Time;

use super::{Directory, DirectoryAction, Handed, Owner, Stage};
use crate::{ClientId, MemoryCommand, Party, RegionCommand};

/// Bytes that an owner copies in a second at least.
const COPY_BYTES_PER_SECOND: u64 = 128 << 20;

/// A revoke under way.
#[derive(Debug)]
pub(super) struct Revoke {
    pub(super) asker: Asker,
    new_key: Option<RegionKey>,
    /// Peers that may still have something in flight.
    stopping: BTreeSet<IpAddr>,
    /// All handles but the owner's are over, and the owner moves.
    is_moving: bool,
}

impl Revoke {
    /// The region is on its way to new memory.
    pub(super) fn is_moving(&self) -> bool {
        self.is_moving
    }

    /// Peers that may still have something in flight.
    pub(super) fn stopping(&self) -> impl Iterator<Item = IpAddr> {
        self.stopping.iter().copied()
    }
}

/// Who waits for the end of a revoke.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    client: ClientId,
    request: u64,
}

/// How long an owner may copy.
pub(super) fn copying(bytes: u64) -> Duration {
    Duration::from_secs(bytes / COPY_BYTES_PER_SECOND)
}

impl Directory {
    /// A program of this host revokes a region of this host.
    pub(crate) fn handle_revoke(
        &mut self,
        now: Time,
        party: Party,
        request: u64,
        (name, key): (&str, RegionKey),
        new_key: Option<RegionKey>,
    ) {
        self.now = now;
        let asker = Asker { client: party.client, request };
        let region = match self.check_revoke(party, name, key) {
            Ok(region) => region,
            Err(why) => return self.answer_revoke(asker, Err(why)),
        };
        let Some(entry) = self.entries.get_mut(&region) else { return };
        if entry.owner.is_none() {
            let epoch = entry.epoch + 1;
            self.end(region, region_stamp::REVOKED);
            return self.answer_revoke(asker, Ok(epoch));
        }
        let epoch = entry.epoch;
        let why = RegionRefusal::Revoked { held: epoch, current: epoch + 1 };
        self.end_writer_here(region, &why);
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let peers: BTreeSet<IpAddr> = std::mem::take(&mut entry.remote).into_keys().collect();
        let stopping = self.sharers(region, peers.iter().copied());
        let Some(entry) = self.entries.get_mut(&region) else { return };
        entry.stage = Stage::Revoking(Revoke { asker, new_key, stopping, is_moving: false });
        self.moving.insert(region, now + self.config.answer);
        self.stop_peers(region, epoch, &peers, &why);
        self.go_on_revoking(region);
    }

    /// A peer has nothing of a region in flight any more.
    pub(super) fn on_peer_stopped(&mut self, region: u64, peer: IpAddr) {
        if let Some(Stage::Revoking(revoke)) = self.entries.get_mut(&region).map(|entry| &mut entry.stage)
            && revoke.stopping.remove(&peer)
        {
            self.go_on_revoking(region);
        }
    }

    /// When no peer has anything in flight, the registration is given up, and kernels of this host's programs end; then memory is made to move to.
    fn go_on_revoking(&mut self, region: u64) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let Stage::Revoking(Revoke { stopping, is_moving: false, .. }) = &entry.stage else { return };
        if !stopping.is_empty() {
            return;
        }
        let (bytes, huge_pages, epoch) = (entry.spec.bytes, entry.spec.huge_pages, entry.epoch);
        self.actions.push_back(match entry.is_registered || entry.has_runs {
            true => DirectoryAction::Engine(RegionCommand::Deregister { region, epoch }),
            false => DirectoryAction::Memory(MemoryCommand::Make { region, bytes, huge_pages }),
        });
    }

    /// The engine's answer to [`RegionCommand::Deregister`].
    pub(crate) fn on_deregistered(&mut self, region: u64) {
        if let Some(entry) = self.entries.get_mut(&region) {
            (entry.is_registered, entry.has_runs) = (false, false);
            self.go_on_revoking(region);
        }
    }

    fn check_revoke(&self, party: Party, name: &str, key: RegionKey) -> Result<u64, RegionRefusal> {
        let (region, entry) = self.known(party.uid, name, &key)?;
        if !self.may_act_for(party.uid, entry.uid) {
            return Err(RegionRefusal::OtherUser { uid: entry.uid });
        }
        if matches!(entry.stage, Stage::Live) { Ok(region) } else { Err(RegionRefusal::Busy) }
    }

    /// The memory that the region moves to is there, or why not. Without it nothing is revoked.
    pub(super) fn on_next_made(&mut self, now: Time, region: u64, result: Result<(), RegionRefusal>) {
        let stamp = self.stamps.next_stamp();
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let Stage::Revoking(revoke) = &mut entry.stage else { return };
        let (Ok(()), Some(owner)) = (&result, entry.owner) else {
            let asker = revoke.asker;
            entry.stage = Stage::Live;
            self.moving.remove(&region);
            self.answer_revoke(asker, result.map(|()| 0));
            return self.serve_waiting(region);
        };
        revoke.is_moving = true;
        let key = revoke.new_key.unwrap_or(entry.spec.key);
        self.moving.insert(region, now + self.config.answer + copying(entry.spec.bytes));
        let held = entry.epoch;
        entry.epoch += 1;
        entry.line.revokes = entry.line.revokes.wrapping_add(1);
        entry.stamp = stamp;
        let (word, epoch, handles) = (entry.word, entry.epoch, entry.handles.take_all());
        let leases = std::mem::take(&mut entry.leases);
        self.stamp(word, region_stamp::of(stamp, region_stamp::LIVE));
        self.end_leases(leases);
        for (open, handle) in handles {
            self.drop_handle(handle.client, open, RegionRefusal::Revoked { held, current: epoch });
        }
        let Owner { client, open, .. } = owner;
        let memory = Some(Handed { region, writable: true, with_stamps: false });
        let reply = Reply::RegionMove { open, epoch, stamp, key };
        self.actions.push_back(DirectoryAction::Send { client, reply, memory });
    }

    /// The owner says that it uses the new memory alone.
    pub(crate) fn handle_moved(&mut self, client: ClientId, open: u64, epoch: u64) {
        let Some(&region) = self.programs.get(&client).and_then(|held| held.get(&open)) else { return };
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let is_owners = entry.owner.is_some_and(|o| o.client == client && o.open == open);
        if !is_owners || entry.epoch != epoch {
            return;
        }
        if matches!(entry.stage, Stage::Returning) {
            self.moving.remove(&region);
            entry.stage = Stage::Live;
            return self.serve_waiting(region);
        }
        let Stage::Revoking(Revoke { asker, new_key, is_moving: true, .. }) = entry.stage else { return };
        self.moving.remove(&region);
        entry.stage = Stage::Live;
        entry.spec.key = new_key.unwrap_or(entry.spec.key);
        self.actions.push_back(DirectoryAction::Memory(MemoryCommand::Use { region }));
        self.answer_revoke(asker, Ok(epoch));
        self.serve_waiting(region);
    }

    /// Opens that came meanwhile are looked at as if they came now: the key may be another one.
    fn serve_waiting(&mut self, region: u64) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        for (party, request, wish) in std::mem::take(&mut entry.waiting) {
            self.handle_open(party, request, wish);
        }
    }

    pub(super) fn answer_revoke(&mut self, asker: Asker, result: Result<u64, RegionRefusal>) {
        self.send(asker.client, Reply::RegionRevoked { request: asker.request, result });
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.moving.values().copied().chain(self.ending.values().map(super::Ending::deadline)).min()
    }

    /// An owner that does not move its region in time loses it: nobody has it then. A peer that does not stop in time
    /// loses its link.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        self.drop_late_peers(now);
        let late: Vec<u64> = self.moving.iter().filter(|(_, at)| **at <= now).map(|(&region, _)| region).collect();
        for region in late {
            let is_moving = |e: &super::Entry| match &e.stage {
                Stage::Revoking(revoke) => revoke.is_moving,
                Stage::Returning => true,
                Stage::Making { .. } | Stage::Live => false,
            };
            if self.entries.get(&region).is_some_and(is_moving) {
                tracing::warn!(region, "the owner of a region did not move it in time: the region ends");
                self.end(region, region_stamp::OWNER_GONE);
            } else {
                // The link of a peer that did not stop ends; until then there is more time.
                self.moving.insert(region, now + self.config.answer);
            }
        }
    }
}
