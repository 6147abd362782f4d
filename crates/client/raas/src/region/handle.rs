//! One handle to a region: its checks, its accesses, its end.
//!
//! Owns the order of the checks: process, session, access, bounds, and last the stamp. It must give the handle back to
//! the daemon when nobody has it any more.

mod asking;
mod breaking;
mod lending;
mod moving;
mod notifying;
mod opening;
mod running;

use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use control::{Reason, RegionAccess, RegionKey, RegionLine, RegionPath, RegionRefusal, RegionSpec, Request};
use raas_core::{NewRegion, RegionKnown, RegionMade, RegionNews, RegionOver, RegionPlace};
use shm::AtomicOp;

use super::completion::Completion;
use super::error::RegionError;
use super::local::Local;
use super::notes::Notes;
use super::queue::{LaneOf, queue_of};
use super::registered::Registered;
use super::remote::Remote;
use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::lock;
use crate::region_table::RegionUser;
pub(super) use asking::revoke;
use asking::{ask_for_region, unexpected};
pub(crate) use lending::Lender;

/// Where a region is.
#[derive(Debug)]
pub(super) enum Reach {
    Here(Local),
    There(Remote),
}

/// What a daemon gave with a handle.
#[derive(Debug)]
struct Given {
    open: AtomicU64,
    number: AtomicU64,
    /// Which daemon of the session it was.
    daemon: AtomicU64,
}

impl Given {
    fn new(open: u64, number: u64, daemon: u64) -> Self {
        let [open, number, daemon] = [open, number, daemon].map(AtomicU64::new);
        Self { open, number, daemon }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Handle {
    attachment: Arc<Attachment>,
    name: String,
    given: Given,
    bytes: u64,
    access: RegionAccess,
    /// How an owner made the region, but for its key.
    spec: Option<RegionSpec>,
    /// Of an owner's region that is not yet with the next daemon: which one it was with, and 1. Otherwise 0.
    away: AtomicU64,
    known: Mutex<RegionKnown>,
    reach: Reach,
    /// The daemon said so.
    ended: OnceLock<RegionRefusal>,
    notes: Notes,
    /// By what the owner is told of what this program writes, if it has the memory mapped.
    notifier: Mutex<Option<Arc<Remote>>>,
    /// Its memory as local memory of this program's operations on other hosts' regions.
    registered: Mutex<Option<Arc<Registered>>>,
    /// What was lent by it.
    leases: Mutex<lending::Leases>,
    /// It was given back already.
    is_deleted: OnceLock<()>,
}

impl Handle {
    /// `from` says how it was opened, or how this program made the region.
    fn adopt(
        attachment: &Arc<Attachment>,
        (name, key): (String, RegionKey),
        from: Result<(IpAddr, LaneOf), RegionSpec>,
        new: NewRegion,
    ) -> Result<Arc<Self>, RegionError> {
        let NewRegion { opened, mapping, daemon } = new;
        let (from, spec) = from.map_or_else(|spec| (None, Some(spec)), |from| (Some(from), None));
        let is_owner = spec.is_some();
        let (epoch, access) = (opened.info.epoch, opened.info.access);
        let reach = match (opened.path, mapping) {
            (RegionPath::Local { stamp, .. }, Some(mapping)) => {
                Ok(Reach::Here(Local::new(mapping, RegionMade { stamp, epoch, daemon }, is_owner)))
            }
            (RegionPath::Local { .. }, None) => {
                Err(RegionError::Descriptors { name: name.clone(), limit: control::descriptor_limit() })
            }
            (RegionPath::Remote { handle } | RegionPath::Writer { handle }, _) => {
                let (host, lane) = from.unwrap_or((IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), LaneOf::Host));
                queue_of(attachment, host, lane).map(|queue| Reach::There(Remote { queue, handle, epoch, access }))
            }
        };
        let reach = reach.inspect_err(|_| {
            attachment.tell(&Request::RegionClose { open: opened.open, delete: true });
        })?;
        let handle = Arc::new(Self {
            attachment: Arc::clone(attachment),
            name,
            given: Given::new(opened.open, opened.info.region, daemon),
            bytes: opened.info.bytes,
            access: if is_owner { RegionAccess::ALL | RegionAccess::EXECUTE } else { access },
            spec,
            away: AtomicU64::new(0),
            known: Mutex::new(RegionKnown { key, line: opened.info.line }),
            reach,
            ended: OnceLock::new(),
            notes: Notes::default(),
            notifier: Mutex::default(),
            registered: Mutex::default(),
            leases: Mutex::default(),
            is_deleted: OnceLock::new(),
        });
        let user: Arc<dyn RegionUser> = Arc::clone(&handle) as _;
        if !attachment.regions.add(&user, daemon) {
            // That one ended before the caller had the handle.
            handle.lose();
        }
        Ok(handle)
    }

    // ---- what it is

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn number(&self) -> u64 {
        self.given.number.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn epoch(&self) -> u64 {
        match &self.reach {
            Reach::Here(local) => local.place().epoch,
            Reach::There(remote) => remote.epoch,
        }
    }

    pub(super) fn access(&self) -> RegionAccess {
        self.access
    }

    pub(super) fn key(&self) -> RegionKey {
        lock(&self.known).key
    }

    /// Which region it is.
    pub(super) fn line(&self) -> RegionLine {
        lock(&self.known).line
    }

    pub(super) fn is_owner(&self) -> bool {
        self.spec.is_some()
    }

    pub(super) fn is_here(&self) -> bool {
        matches!(self.reach, Reach::Here(_))
    }

    pub(super) fn daemon(&self) -> u64 {
        self.given.daemon.load(Ordering::Acquire)
    }

    fn open_now(&self) -> u64 {
        self.given.open.load(Ordering::SeqCst)
    }

    pub(super) fn attachment(&self) -> &Arc<Attachment> {
        &self.attachment
    }

    pub(super) fn registered(&self) -> &Mutex<Option<Arc<Registered>>> {
        &self.registered
    }

    pub(super) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Whether operations on both go the same way: on this host, or through one queue.
    pub(super) fn shares_way(&self, other: &Self) -> bool {
        match (&self.reach, &other.reach) {
            (Reach::Here(_), Reach::Here(_)) => true,
            (Reach::There(one), Reach::There(other)) => Arc::ptr_eq(&one.queue, &other.queue),
            _ => false,
        }
    }

    // ---- accesses

    pub(super) fn read(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), RegionError> {
        let len = bufs.iter().fold(0u64, |sum, buf| sum.saturating_add(buf.len() as u64));
        if let Reach::There(remote) = &self.reach {
            self.check_access(RegionAccess::READ, offset, len)?;
            let (mut bufs, mut at) = (bufs.iter_mut(), 0);
            let mut buf = bufs.next();
            let mut put = |mut bytes: &[u8]| {
                while let Some(place) = buf.as_deref_mut().filter(|_| !bytes.is_empty()) {
                    let count = bytes.len().min(place.len() - at);
                    place[at..at + count].copy_from_slice(&bytes[..count]);
                    (bytes, at) = (&bytes[count..], at + count);
                    if at == place.len() {
                        (buf, at) = (bufs.next(), 0);
                    }
                }
            };
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            return remote.read(&self.name, offset, len, &mut put).map_err(|e| self.why_over(e));
        }
        self.access_bytes(RegionAccess::READ, offset, len, |memory| {
            let mut at = offset;
            for buf in bufs {
                memory.read_whole_words(at, buf)?;
                at += buf.len() as u64;
            }
            Ok(())
        })
    }

    /// Writes; with a tag the owner gets it after the bytes.
    pub(super) fn write(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        completion: Completion,
        tag: Option<u32>,
    ) -> Result<(), RegionError> {
        let len = bufs.iter().fold(0u64, |sum, buf| sum.saturating_add(buf.len() as u64));
        if let Reach::There(remote) = &self.reach {
            self.check_access(RegionAccess::WRITE, offset, len)?;
            let written = remote.write(&self.name, offset, bufs, completion, tag);
            return written.map_err(|e| self.why_over(e));
        }
        self.write_here(offset, bufs, len)?;
        // The bytes are written in any case.
        tag.map_or(Ok(()), |tag| self.notify(tag, offset, len).map_err(RegionError::behind_bytes))
    }

    fn write_here(&self, offset: u64, bufs: &[IoSlice<'_>], len: u64) -> Result<(), RegionError> {
        self.access_bytes(RegionAccess::WRITE, offset, len, |memory| {
            let mut at = offset;
            for buf in bufs {
                memory.write_whole_words(at, buf)?;
                at += buf.len() as u64;
            }
            Ok(())
        })
    }

    pub(super) fn load(&self, offset: u64) -> Result<u64, RegionError> {
        let mut bytes = [0; 8];
        self.check_aligned(offset)?;
        self.read(offset, &mut [IoSliceMut::new(&mut bytes)])?;
        Ok(u64::from_ne_bytes(bytes))
    }

    pub(super) fn store(&self, offset: u64, value: u64) -> Result<(), RegionError> {
        self.check_aligned(offset)?;
        self.write(offset, &[IoSlice::new(&value.to_ne_bytes())], Completion::Visible, None)
    }

    pub(super) fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, RegionError> {
        self.check_aligned(offset)?;
        if let Reach::There(remote) = &self.reach {
            self.check_access(RegionAccess::ATOMIC, offset, 8)?;
            return remote.atomic(&self.name, offset, op).map_err(|e| self.why_over(e));
        }
        self.access_bytes(RegionAccess::ATOMIC, offset, 8, |memory| memory.atomic64(offset, op))
    }

    /// What every access needs before it begins, wherever the region is.
    pub(super) fn check_access(&self, needs: RegionAccess, offset: u64, len: u64) -> Result<(), RegionError> {
        self.check_session()?;
        self.check_may(needs, offset, len)?;
        self.check_ended()
    }

    /// Whether the handle is for that, and the region has these bytes.
    pub(super) fn check_may(&self, needs: RegionAccess, offset: u64, len: u64) -> Result<(), RegionError> {
        if !self.access.contains(needs) {
            return Err(RegionError::NoAccess { name: self.name.clone(), asked: needs, allowed: self.access });
        }
        if offset.checked_add(len).is_none_or(|end| end > self.bytes) {
            return Err(RegionError::OutOfBounds { name: self.name.clone(), offset, len, bytes: self.bytes });
        }
        Ok(())
    }

    /// What the daemon said of the end, or that it has ended itself.
    fn check_ended(&self) -> Result<(), RegionError> {
        match self.ended.get() {
            Some(RegionRefusal::Reason(Reason::DaemonLost)) => {
                Err(RegionError::DaemonLost { name: self.name.clone(), may_have_landed: false })
            }
            Some(why) => Err(RegionError::refused(&self.name, why.clone())),
            None => Ok(()),
        }
    }

    /// One access, between two looks at the stamp. An access that changes bytes ends with a sequentially consistent
    /// fence, as those of [`shm::Region`] on whole words do.
    pub(super) fn access_bytes<T>(
        &self,
        needs: RegionAccess,
        offset: u64,
        len: u64,
        access: impl FnOnce(&shm::Region) -> Result<T, shm::RegionError>,
    ) -> Result<T, RegionError> {
        self.check_access(needs, offset, len)?;
        let Reach::Here(local) = &self.reach else {
            return Err(SessionError::Protocol("a region of another host is not mapped".into()).into());
        };
        let place = local.place();
        self.check_live(local, &place, false)?;
        let result = access(&place.memory).map_err(|e| SessionError::Protocol(format!("region {}: {e}", self.name)))?;
        self.check_live(local, &place, needs.changes())?;
        Ok(result)
    }

    /// In a forked child the locks are the parent's, and may be locked for ever; so this comes first.
    fn check_session(&self) -> Result<(), RegionError> {
        let life = self.attachment.daemon.life();
        if life.is_alive() {
            return Ok(());
        }
        life.check_fork()?;
        // Without its daemon nobody can say whether the region is still what it was.
        let reason = life.lost().unwrap_or(Reason::DaemonLost);
        Err(SessionError::Lost { reason }.into())
    }

    pub(super) fn check_aligned(&self, offset: u64) -> Result<(), RegionError> {
        if offset.is_multiple_of(8) { Ok(()) } else { Err(RegionError::Misaligned { name: self.name.clone(), offset }) }
    }

    /// As [`Handle::check_live`], after the program stored through a pointer.
    pub(super) fn check_written(&self, local: &Local, place: &RegionPlace) -> Result<(), RegionError> {
        match (local.check_behind_changes(place), self.ended.get()) {
            (Ok(()), None) => Ok(()),
            (over, told) => Err(self.over(over.err(), told, place.epoch, true)),
        }
    }

    #[inline]
    pub(super) fn check_live(
        &self,
        local: &Local,
        place: &RegionPlace,
        may_have_landed: bool,
    ) -> Result<(), RegionError> {
        match (local.check(place), self.ended.get()) {
            (Ok(()), None) => Ok(()),
            (over, told) => Err(self.over(over.err(), told, place.epoch, may_have_landed)),
        }
    }

    #[cold]
    fn over(&self, over: Option<RegionOver>, told: Option<&RegionRefusal>, held: u64, landed: bool) -> RegionError {
        let name = self.name.clone();
        match (told, over) {
            (Some(&RegionRefusal::Revoked { held, current }), _) => {
                RegionError::Revoked { name, held, current, may_have_landed: landed }
            }
            (Some(&RegionRefusal::Superseded { term }), _) => {
                RegionError::Superseded { name, term, may_have_landed: landed }
            }
            (Some(RegionRefusal::OwnerGone), _) | (None, Some(RegionOver::OwnerGone)) => {
                RegionError::OwnerGone { name, may_have_landed: landed }
            }
            (Some(RegionRefusal::Reason(Reason::DaemonLost)), _) | (None, Some(RegionOver::DaemonLost)) => {
                RegionError::DaemonLost { name, may_have_landed: landed }
            }
            (Some(why), _) => RegionError::Refused { name, why: why.clone() },
            // The daemon's words are still on their way.
            (None, _) => RegionError::Revoked { name, held, current: held + 1, may_have_landed: landed },
        }
    }

    // ---- the end

    pub(super) fn revoke(&self, new_key: Option<RegionKey>) -> Result<u64, RegionError> {
        if !self.is_owner() {
            return Err(RegionError::NotOwner { name: self.name.clone() });
        }
        loop {
            // The name may be another region's by now.
            self.wait_until_here()?;
            let daemon = self.daemon();
            match revoke(&self.attachment, &self.name, self.key(), new_key) {
                // The next daemon got it before it got the region.
                Err(RegionError::Refused { why: RegionRefusal::Unknown, .. })
                    if self.daemon() != daemon || self.is_away() => {}
                result => return result,
            }
        }
    }

    pub(super) fn delete(&self) {
        if self.is_deleted.set(()).is_ok() {
            self.attachment.tell(&Request::RegionClose { open: self.open_now(), delete: true });
        }
    }
}

impl RegionUser for Handle {
    fn open_number(&self) -> u64 {
        self.open_now()
    }

    fn follow(self: Arc<Self>, news: RegionNews) {
        match news {
            RegionNews::LoansBack { lease, loans, .. } => self.on_loans_back(lease, loans),
            RegionNews::LeaseOver { lease, .. } => self.on_lease_over(lease),
            RegionNews::Ended { why, .. } => {
                let _ = self.ended.set(why);
                self.notes.wake();
            }
            RegionNews::Move { open, epoch, stamp, key, memory } => {
                let made = RegionMade { stamp, epoch, daemon: self.daemon() };
                // Of its own, because copying a large region takes long, and this thread follows the daemon.
                let (handle, mover) = (Arc::clone(&self), std::thread::Builder::new().name("raas-region".into()));
                let copy = move || handle.move_to(open, made, key, memory);
                if let Err(error) = mover.spawn(copy) {
                    tracing::warn!(%error, region = self.name, "no thread to move a region: it ends");
                    self.give_up();
                }
            }
        }
    }

    fn part(&self) -> bool {
        let goes_on = self.begin_away();
        if !goes_on {
            let _ = self.ended.set(RegionRefusal::Reason(Reason::DaemonLost));
        }
        self.part_leases();
        goes_on
    }

    fn part_queue(&self) {
        if let Reach::There(remote) = &self.reach {
            remote.queue.part();
        }
    }

    fn bring_back(self: Arc<Self>) {
        self.come_back();
    }

    fn lose(&self) {
        self.end_away(RegionRefusal::Reason(Reason::DaemonLost));
        // A handle whose daemon ended before it was there has the queue of the next one, which others use.
        if let Reach::There(remote) = &self.reach
            && remote.queue.is_of(self.daemon())
        {
            remote.queue.part();
        }
        self.part_leases();
    }

    fn wake(&self) {
        self.notes.wake();
        if let Reach::There(remote) = &self.reach {
            remote.queue.follow();
        }
        self.wake_lenders();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.attachment.check_fork().is_ok() {
            let open = self.open_now();
            self.attachment.regions.remove(open);
            if self.is_deleted.get().is_none() && self.ended.get().is_none() {
                self.attachment.tell(&Request::RegionClose { open, delete: false });
            }
        }
    }
}
