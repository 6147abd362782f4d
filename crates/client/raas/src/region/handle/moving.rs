//! The way of an owner's region to other memory: at a revoke, and to the daemon that comes after the one that ended
//! (docs/restart.md).
//!
//! Owns when the owner may copy, and who waits until the region is there. It must never copy before the dead daemon's word
//! says that it has ended: until then accesses by others count as done in the memory that the region leaves.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use control::{OpenedRegion, Reason, RegionKey, RegionPath, RegionRefusal, Request};
use raas_core::{Answer, NewRegion};
use shm::RegionMemory;

use super::{Handle, Known, Reach};
use crate::park::lock;
use crate::region::ask::ask;
use crate::region::error::RegionError;
use crate::region::local::{Local, Made, Over};
use crate::region_table::RegionUser;

/// What became of a try.
enum Try {
    Done,
    /// That daemon has ended too.
    Again,
    Over(RegionRefusal),
}

impl Handle {
    /// A revoke: the region moves to this memory.
    pub(super) fn move_to(&self, open: u64, made: Made, key: RegionKey, memory: Option<OwnedFd>) {
        let moved = memory
            .ok_or_else(|| "no descriptor for its memory".to_owned())
            .and_then(|fd| RegionMemory::accept(fd, self.bytes, true).map_err(|e| e.to_string()))
            .and_then(|memory| match &self.reach {
                Reach::Here(local) => {
                    let settle = || {
                        let mut known = lock(&self.known);
                        known.key = key;
                        known.line.revokes = known.line.revokes.wrapping_add(1);
                    };
                    local.move_to(memory, self.bytes, made, settle).map_err(|e| e.to_string())
                }
                Reach::There(_) => Err("it is another host's".into()),
            });
        match moved {
            // A daemon that has ended, or the next one, does not know the handle.
            Ok(_) => self.attachment.tell(&Request::RegionMoved { open, epoch: made.epoch }),
            // It is with another daemon by now, or is being brought to one.
            Err(_) if self.daemon() != made.daemon || self.is_away() => {}
            Err(error) => {
                tracing::warn!(error, region = self.name, "a region cannot be moved: it ends");
                self.give_up();
            }
        }
    }

    /// The owner cannot follow a revoke: better no region than one that older handles still reach.
    pub(super) fn give_up(&self) {
        let _ = self.ended.set(RegionRefusal::OwnerGone);
        self.delete();
        self.notes.wake();
    }

    // ---- another daemon

    /// Waits until the region of an owner is with the daemon. It is over before that if the session is, or if the next
    /// daemon does not take it.
    pub(in crate::region) fn wait_until_here(&self) -> Result<(), RegionError> {
        self.check_session()?;
        self.check_ended()?;
        if !self.is_away() {
            return Ok(());
        }
        let is_settled = || !self.is_away() || self.attachment.lost().is_some();
        let parker = self.notes.enter();
        let mut waited = Ok(());
        while waited.is_ok() && !is_settled() {
            waited = self.attachment.block(&parker, None, &mut || is_settled());
        }
        self.notes.leave(&parker);
        waited?;
        self.check_session()?;
        self.check_ended()
    }

    /// The daemon has ended. True: the region is brought to the next one.
    pub(super) fn begin_away(&self) -> bool {
        let goes_on = self.is_owner() && self.ended.get().is_none() && self.is_deleted.get().is_none();
        if goes_on {
            self.away.store(self.daemon() + 1, Ordering::Release);
            self.notes.lose();
        }
        goes_on
    }

    /// Nothing more comes of it.
    pub(super) fn end_away(&self, why: RegionRefusal) {
        let _ = self.ended.set(why);
        self.away.store(0, Ordering::Release);
    }

    /// The region is not yet with the next daemon.
    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire) != 0
    }

    pub(super) fn come_back(self: &Arc<Self>) {
        loop {
            match self.try_to_come_back() {
                Try::Done => break,
                Try::Again => {}
                Try::Over(why) => {
                    tracing::warn!(region = self.name, %why, "a region does not go on with the next daemon: it ends");
                    self.end_away(why);
                    break;
                }
            }
        }
        self.notes.wake();
    }

    fn try_to_come_back(self: &Arc<Self>) -> Try {
        let lost = || Try::Over(RegionRefusal::Reason(Reason::DaemonLost));
        let (Reach::Here(local), Some(spec)) = (&self.reach, &self.spec) else { return lost() };
        if self.is_deleted.get().is_some() {
            return Try::Over(RegionRefusal::OwnerGone);
        }
        let (epoch, Known { key, line }) = {
            let place = local.place();
            match local.check(&place) {
                Ok(()) if place.is_parted() => (place.epoch, *lock(&self.known)),
                // It ended before its daemon did, or that daemon has only lost this session: others may have it still.
                Ok(()) | Err(Over::DaemonLost) => return lost(),
                Err(Over::OwnerGone | Over::Revoked) => return Try::Over(RegionRefusal::OwnerGone),
            }
        };
        let spec = control::RegionSpec { key, ..spec.clone() };
        match ask(&self.attachment, |session| session.return_region(spec, epoch, line)) {
            Ok(Answer::Region(Ok(new))) => self.settle_at(local, *new, epoch),
            Ok(Answer::Region(Err(RegionRefusal::Reason(Reason::DaemonLost)))) => Try::Again,
            Ok(Answer::Region(Err(why))) => Try::Over(why),
            Ok(_) | Err(_) => lost(),
        }
    }

    /// The next daemon has made memory.
    fn settle_at(self: &Arc<Self>, local: &Local, new: NewRegion, from_epoch: u64) -> Try {
        let NewRegion { opened: OpenedRegion { open, info, path }, mapping, daemon } = new;
        let close = || self.attachment.tell(&Request::RegionClose { open, delete: true });
        let (RegionPath::Local { stamp, .. }, Some(mapping)) = (path, mapping) else {
            close();
            let cause = raas_core::at_descriptor_limit(control::descriptor_limit());
            return Try::Over(RegionRefusal::NoMemory { bytes: self.bytes, cause });
        };
        let made = Made { stamp, epoch: info.epoch, daemon };
        match local.return_to(mapping, self.bytes, made, from_epoch) {
            Ok(true) => {}
            Ok(false) => {
                close();
                return Try::Again;
            }
            Err(error) => {
                close();
                return Try::Over(RegionRefusal::NoMemory { bytes: self.bytes, cause: error.to_string() });
            }
        }
        let user: Arc<dyn RegionUser> = Arc::clone(self) as _;
        let away = self.away.load(Ordering::Acquire);
        self.given.number.store(info.region, Ordering::Relaxed);
        self.given.daemon.store(daemon, Ordering::Release);
        self.given.open.store(open, Ordering::SeqCst);
        if !self.attachment.regions.add(&user, daemon) {
            return Try::Again;
        }
        self.attachment.tell(&Request::RegionMoved { open, epoch: info.epoch });
        // If this daemon has ended too, it is away from that one by now.
        let _ = self.away.compare_exchange(away, 0, Ordering::AcqRel, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Who deleted it meanwhile named the handle of before.
        if self.is_deleted.get().is_some() {
            close();
        }
        Try::Done
    }
}
