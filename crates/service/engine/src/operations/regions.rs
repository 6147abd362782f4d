//! Regions of other hosts that applications of this one have open.
//!
//! Owns what an application may do where. Every submission is checked here before anything of it is posted.

use std::collections::BTreeSet;
use std::net::IpAddr;

use control::{Reason, RegionAccess, RegionGrant};
use genslab::{GenSlab, Key};
use shm::{Class, Opcode, OperationStatus, Submission};
use verbs::Region;

use crate::frame::RunRegion;
use crate::ids::{AppId, HandleId, LaneId};
use crate::limits::REGION_HANDLES_PER_APP_MAX;

use super::Outcome;

/// How far a handle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Its owner took the region back.
    Revoked,
    /// The link to the owner's host is gone.
    Lost(Reason),
    /// The application gave it back, or left.
    Closed,
    /// Its owner's daemon fenced it off: nothing of it reaches the region any more. It is closed too.
    Fenced,
}

/// One application's right to one region.
#[derive(Debug)]
struct Handle {
    app: AppId,
    peer: IpAddr,
    way: Way,
    grant: RegionGrant,
    state: State,
    in_flight: u32,
    /// It counts among those that need the lane.
    uses_lane: bool,
    /// The lane is its program's alone.
    is_leased: bool,
}

impl Handle {
    fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::Fenced)
    }
}

/// How a handle's operations reach the region.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// By a lane to its host.
    Lane(LaneId),
    /// It is of this host, and its writer's: the engine does them.
    Here(Region),
    /// It is of this host, and its program's memory: the engine tells the owner alone.
    Mapped,
}

impl Way {
    fn lane(&self) -> Option<LaneId> {
        if let Self::Lane(lane) = self { Some(*lane) } else { None }
    }
}

/// Of a handle, or of a region, nothing is in flight any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quiet {
    /// The application closed it, or left.
    Closed { app: AppId, peer: IpAddr, lane: Option<LaneId>, region: u64, handle: u32, used_lane: bool },
    /// What was asked for by `stop`.
    Stopped { peer: IpAddr, region: u64, epoch: u64 },
}

/// A handle on a leased lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeasedHandle {
    pub(crate) app: AppId,
    pub(crate) peer: IpAddr,
    pub(crate) lane: LaneId,
    pub(crate) handle: HandleId,
    /// Nothing more begins with it.
    pub(crate) is_over: bool,
}

/// Where an operation goes that may be done.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) handle: HandleId,
    /// Of its host.
    pub(crate) region: u64,
    pub(crate) way: Way,
}

/// All handles.
#[derive(Debug)]
pub(crate) struct OpenRegions {
    table: GenSlab<HandleId, Handle>,
    /// Regions that are to be reported when nothing of them is in flight.
    stopping: BTreeSet<(IpAddr, u64, u64)>,
    quiet: Vec<Quiet>,
}

impl OpenRegions {
    pub(crate) fn new(max: u32) -> Self {
        Self { table: GenSlab::new(max), stopping: BTreeSet::new(), quiet: Vec::new() }
    }

    pub(crate) fn len(&self) -> u64 {
        self.table.len().into()
    }

    /// Opens a region for an application. `None`: there are too many.
    pub(crate) fn open(
        &mut self,
        app: AppId,
        peer: IpAddr,
        (way, is_leased): (Way, bool),
        grant: RegionGrant,
    ) -> Option<HandleId> {
        if self.table.iter().filter(|(_, h)| h.app == app).count() >= REGION_HANDLES_PER_APP_MAX {
            return None;
        }
        let (state, uses_lane) = (State::Open, way.lane().is_some());
        self.table.insert(Handle { app, peer, way, grant, state, in_flight: 0, uses_lane, is_leased })
    }

    /// The application gives a handle back.
    pub(crate) fn close(&mut self, app: AppId, handle: HandleId) {
        if let Some(h) = self.table.get_mut(handle).filter(|h| h.app == app && !h.is_closed()) {
            h.state = State::Closed;
            self.settle(handle);
        }
    }

    /// The owner's daemon has fenced a handle off, which is closed with that.
    pub(crate) fn fence(&mut self, app: AppId, handle: HandleId) {
        if let Some(h) = self.table.get_mut(handle).filter(|h| h.app == app) {
            h.state = State::Fenced;
            self.settle(handle);
        }
    }

    /// The application left.
    pub(crate) fn close_all(&mut self, app: AppId) {
        let of_app: Vec<_> = self.table.iter().filter(|(_, h)| h.app == app).map(|(id, _)| id).collect();
        of_app.into_iter().for_each(|id| self.close(app, id));
    }

    /// A region of a peer's was revoked: nothing more of it begins. [`Quiet::Stopped`] follows. Which handles that are.
    pub(crate) fn stop(&mut self, peer: IpAddr, region: u64, epoch: u64) -> Vec<HandleId> {
        let mut found = Vec::new();
        for id in self.table.keys() {
            let Some(h) = self.table.get_mut(id) else { continue };
            if h.peer == peer && h.grant.region == region && h.grant.epoch <= epoch {
                found.push(id);
                if h.state == State::Open {
                    h.state = State::Revoked;
                }
            }
        }
        self.stopping.insert((peer, region, epoch));
        self.settle_stop(peer, region);
        found
    }

    /// The writer of a region of this host is over: nothing more of it is done.
    pub(crate) fn fence_here(&mut self, region: u64) {
        let is_it = |h: &Handle| matches!(h.way, Way::Here(_)) && h.grant.region == region;
        let found: Vec<_> = self.table.iter().filter(|(_, h)| is_it(h)).map(|(id, h)| (h.app, id)).collect();
        found.into_iter().for_each(|(app, id)| self.close(app, id));
    }

    /// A leased lane is gone. The handles that it was for.
    pub(crate) fn lose_lane(&mut self, lane: LaneId, reason: Reason) -> Vec<HandleId> {
        let mut lost = Vec::new();
        for id in self.table.keys() {
            let Some(h) = self.table.get_mut(id).filter(|h| h.is_leased && h.way.lane() == Some(lane)) else {
                continue;
            };
            if h.state == State::Open {
                h.state = State::Lost(reason);
            }
            lost.push(id);
        }
        lost
    }

    /// The link to a host is gone. How many handles needed its shared lane, and which there are.
    pub(crate) fn lose(&mut self, peer: IpAddr, reason: Reason) -> (usize, Vec<HandleId>) {
        let (mut uses, mut lost) = (0, Vec::new());
        for id in self.table.keys() {
            let Some(h) = self.table.get_mut(id).filter(|h| h.peer == peer) else { continue };
            uses += usize::from(std::mem::take(&mut h.uses_lane) && !h.is_leased);
            if !h.is_closed() {
                h.state = State::Lost(reason);
            }
            lost.push(id);
        }
        (uses, lost)
    }

    /// Why an operation that may have been done ended with its handle.
    pub(crate) fn end_of(&self, handle: HandleId) -> Reason {
        match self.table.get(handle) {
            Some(h) if h.state == State::Fenced => Reason::Superseded,
            Some(h) if h.is_leased && h.state == State::Revoked => Reason::LaneRevoked,
            _ => Reason::Closed,
        }
    }

    /// Handles on leased lanes, at `looks` places of the table from `from` on, and the next place.
    pub(crate) fn leased_page(
        &self,
        from: u32,
        looks: u32,
    ) -> (impl Iterator<Item = (u32, LeasedHandle)>, Option<u32>) {
        let (live, next) = self.table.page(from, looks);
        let leased = live.filter(|(_, _, h)| h.is_leased).filter_map(|(place, handle, h)| {
            let is_over = h.state != State::Open;
            Some((place, LeasedHandle { app: h.app, peer: h.peer, lane: h.way.lane()?, handle, is_over }))
        });
        (leased, next)
    }

    /// Judges a submission by what its application has open; nothing is changed.
    pub(crate) fn check(&self, app: AppId, s: &Submission) -> Result<Target, Outcome> {
        let refused = |status, detail| Err(Outcome::of(status, detail));
        let handle = HandleId::from_bits(s.region);
        let Some(h) = self.table.get(handle).filter(|h| h.app == app) else {
            return refused(OperationStatus::NoRegion, 0);
        };
        match h.state {
            State::Open => {}
            State::Revoked => return refused(OperationStatus::Revoked, h.grant.epoch),
            State::Lost(reason) => return refused(OperationStatus::PeerLost, reason.code().into()),
            State::Closed | State::Fenced => return refused(OperationStatus::NoRegion, 0),
        }
        if s.epoch != h.grant.epoch {
            return refused(OperationStatus::Revoked, h.grant.epoch);
        }
        // It has the bytes, and writes them.
        if matches!(h.way, Way::Mapped) && (s.opcode != Opcode::WriteNotify || s.bytes > 0) {
            return refused(OperationStatus::Access, h.grant.access.bits().into());
        }
        if s.class == Class::Persistent {
            return refused(OperationStatus::NoPersistence, 0);
        }
        let needed = match s.opcode {
            Opcode::Read => RegionAccess::READ,
            Opcode::Write | Opcode::WriteNotify => RegionAccess::WRITE,
            Opcode::Run => RegionAccess::EXECUTE,
            _ => RegionAccess::ATOMIC,
        };
        if !h.grant.access.contains(needed) {
            return refused(OperationStatus::Access, h.grant.access.bits().into());
        }
        if s.opcode.is_atomic() && !s.offset.is_multiple_of(8) {
            return refused(OperationStatus::Misaligned, s.offset);
        }
        // A kernel's bytes are no part of the region.
        if s.opcode != Opcode::Run && s.offset.checked_add(s.bytes.into()).is_none_or(|end| end > h.grant.bytes) {
            return refused(OperationStatus::OutOfBounds, h.grant.bytes);
        }
        let (told_at, told) = s.told();
        if s.opcode == Opcode::WriteNotify && told_at.checked_add(told.into()).is_none_or(|end| end > h.grant.bytes) {
            return refused(OperationStatus::OutOfBounds, h.grant.bytes);
        }
        Ok(Target { handle, region: h.grant.region, way: h.way.clone() })
    }

    /// A region that a kernel of this application is to use, which must be of the same host.
    pub(crate) fn run_region(&self, app: AppId, number: u32, lane: LaneId) -> Result<RunRegion, Outcome> {
        let known = self.table.get(HandleId::from_bits(number)).filter(|h| h.app == app && h.way.lane() == Some(lane));
        match known.map(|h| (h.state, &h.grant)) {
            Some((State::Open, grant)) => Ok(RunRegion { key: grant.rkey, access: grant.access }),
            Some((State::Revoked, grant)) => Err(Outcome::of(OperationStatus::Revoked, grant.epoch)),
            _ => Err(Outcome::of(OperationStatus::NoRegion, 0)),
        }
    }

    /// Whether an operation may go on, or why not.
    pub(crate) fn verdict(&self, handle: HandleId) -> Option<Outcome> {
        match self.table.get(handle).map(|h| (h.state, h.grant.epoch)) {
            Some((State::Open | State::Closed, _)) => None,
            Some((State::Revoked | State::Fenced, epoch)) => Some(Outcome::of(OperationStatus::Revoked, epoch)),
            Some((State::Lost(reason), _)) => Some(Outcome::of(OperationStatus::PeerLost, reason.code().into())),
            None => Some(Outcome::of(OperationStatus::NoRegion, 0)),
        }
    }

    /// Where the region lies at its owner's device.
    pub(crate) fn grant(&self, handle: HandleId) -> Option<&RegionGrant> {
        self.table.get(handle).map(|h| &h.grant)
    }

    /// An operation begins.
    pub(crate) fn begin(&mut self, handle: HandleId) {
        if let Some(h) = self.table.get_mut(handle) {
            h.in_flight += 1;
        }
    }

    /// An operation is over.
    pub(crate) fn end(&mut self, handle: HandleId) {
        if let Some(h) = self.table.get_mut(handle) {
            h.in_flight = h.in_flight.saturating_sub(1);
            self.settle(handle);
        }
    }

    fn settle(&mut self, handle: HandleId) {
        let Some(h) = self.table.get(handle).filter(|h| h.in_flight == 0) else { return };
        let (peer, region) = (h.peer, h.grant.region);
        if h.is_closed()
            && let Some(h) = self.table.remove(handle)
        {
            let (app, lane, used_lane) = (h.app, h.way.lane(), h.uses_lane);
            self.quiet.push(Quiet::Closed { app, peer, lane, region, handle: handle.bits(), used_lane });
        }
        self.settle_stop(peer, region);
    }

    fn settle_stop(&mut self, peer: IpAddr, region: u64) {
        if self.stopping.is_empty() {
            return;
        }
        let stops: Vec<_> = self.stopping.range((peer, region, 0)..=(peer, region, u64::MAX)).copied().collect();
        for stop in stops {
            let of = |h: &Handle| h.peer == peer && h.grant.region == region && h.grant.epoch <= stop.2;
            if !self.table.iter().any(|(_, h)| of(h) && h.in_flight > 0) {
                self.stopping.remove(&stop);
                self.quiet.push(Quiet::Stopped { peer, region, epoch: stop.2 });
            }
        }
    }

    pub(crate) fn has_quiet(&self) -> bool {
        !self.quiet.is_empty()
    }

    pub(crate) fn take_quiet(&mut self) -> Vec<Quiet> {
        std::mem::take(&mut self.quiet)
    }
}
