//! The way of an owner's region to other memory: at a revoke, and to the daemon that comes after the one that ended
//! (docs/operate/restart.md).
//!
//! Owns who copies in which thread, and who waits until the region is there. What the next daemon is told, and when the
//! owner may copy, says [`raas_core::RegionKnown`].

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use control::{OpenedRegion, Reason, RegionKey, RegionRefusal, Request};
use raas_core::{Answer, NewRegion, RegionBrought, RegionMade, RegionReturn};
use shm::RegionMemory;

use super::{Handle, Reach};
use crate::park::lock;
use crate::region::ask::ask;
use crate::region::error::RegionError;
use crate::region::local::Local;
use crate::region_table::RegionUser;

impl Handle {
    /// A revoke: the region moves to this memory.
    pub(super) fn move_to(&self, open: u64, made: RegionMade, key: RegionKey, memory: Option<OwnedFd>) {
        let moved = memory
            .ok_or_else(|| "no descriptor for its memory".to_owned())
            .and_then(|fd| RegionMemory::accept_with_extents(fd, self.bytes, true).map_err(|e| e.to_string()))
            .and_then(|(memory, extents)| match &self.reach {
                Reach::Here(local) => {
                    let moved = local.change(|place| {
                        let moved = place.move_to((memory, Some(extents)), self.bytes, made)?;
                        if moved {
                            lock(&self.known).on_moved(key);
                        }
                        Ok::<_, shm::RegionError>(moved)
                    });
                    moved.unwrap_or(Ok(false)).map_err(|e| e.to_string())
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
                RegionReturn::There => break,
                RegionReturn::Again => {}
                RegionReturn::Over(why) => {
                    tracing::warn!(region = self.name, %why, "a region does not go on with the next daemon: it ends");
                    self.end_away(why);
                    break;
                }
            }
        }
        self.notes.wake();
    }

    fn try_to_come_back(self: &Arc<Self>) -> RegionReturn {
        let lost = || RegionReturn::Over(RegionRefusal::Reason(Reason::DaemonLost));
        let (Reach::Here(local), Some(spec)) = (&self.reach, &self.spec) else { return lost() };
        if self.is_deleted.get().is_some() {
            return RegionReturn::Over(RegionRefusal::OwnerGone);
        }
        let brought = {
            let place = local.place();
            let known = *lock(&self.known);
            known.bring(&place, spec)
        };
        let RegionBrought { spec, epoch, line } = match brought {
            Ok(brought) => brought,
            Err(why) => return RegionReturn::Over(why),
        };
        match ask(&self.attachment, |session| session.return_region(spec, epoch, line)) {
            Ok(Answer::Region(Ok(new))) => self.settle_at(local, *new, epoch),
            Ok(Answer::Region(Err(why))) => RegionReturn::refused(why),
            Ok(_) | Err(_) => lost(),
        }
    }

    /// The next daemon has made memory.
    fn settle_at(self: &Arc<Self>, local: &Local, new: NewRegion, from_epoch: u64) -> RegionReturn {
        let (OpenedRegion { open, info, .. }, daemon) = (new.opened, new.daemon);
        let close = || self.attachment.tell(&Request::RegionClose { open, delete: true });
        let followed = local.change(|place| RegionReturn::follow(place, new, self.bytes, from_epoch));
        match followed.unwrap_or(RegionReturn::Again) {
            RegionReturn::There => {}
            other => {
                close();
                return other;
            }
        }
        let user: Arc<dyn RegionUser> = Arc::clone(self) as _;
        let away = self.away.load(Ordering::Acquire);
        self.given.number.store(info.region, Ordering::Relaxed);
        self.given.daemon.store(daemon, Ordering::Release);
        self.given.open.store(open, Ordering::SeqCst);
        if !self.attachment.regions.add(&user, daemon) {
            return RegionReturn::Again;
        }
        self.attachment.tell(&Request::RegionMoved { open, epoch: info.epoch });
        // If this daemon has ended too, it is away from that one by now.
        let _ = self.away.compare_exchange(away, 0, Ordering::AcqRel, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Who deleted it meanwhile named the handle of before.
        if self.is_deleted.get().is_some() {
            close();
        }
        RegionReturn::There
    }
}
