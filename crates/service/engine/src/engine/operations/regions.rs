//! Regions: those of this host that others use, and those of others that applications of this host use.
//!
//! Owns what the daemon may ask for about them (docs/use/regions.md). It must never deregister memory of this host while a
//! peer is allowed to reach it, unless the daemon says that the peer's lane is gone.

use std::net::IpAddr;

use control::{Reason, RegionAccess, RegionGrant};
use shm::OperationStatus;
use verbs::{Provider, Region, VerbsError};

use crate::engine::Engine;
use crate::event::Event;
use crate::ids::{AppId, HandleId};
use crate::lane_at::LaneAt;
use crate::operations::regions::{Quiet, Way};
use crate::operations::{Memory, Operation, Outcome};
use crate::table::Key;

impl Engine {
    // ---- of this host

    /// Registers a region of this host for programs of others. Its number is the directory's.
    pub fn register_region<P: Provider>(
        &mut self,
        nic: &mut P,
        number: u64,
        epoch: u64,
        memory: Region,
        access: RegionAccess,
    ) -> Result<(), VerbsError> {
        self.ops.owned.register(nic, (number, epoch), memory, access)
    }

    /// Lets a peer reach a region that is registered; what its daemon must know. `None`: there is no such region. What
    /// a peer asks for of a region that it has not open fails its lane.
    pub fn grant_region<P: Provider>(&mut self, nic: &mut P, number: u64, peer: IpAddr) -> Option<RegionGrant> {
        let peer = peer.to_canonical();
        let lane = self.lane_to(nic, peer)?;
        let (grant, is_new) = self.ops.owned.grant(number, peer)?;
        if is_new && let Some(lane) = self.lanes.get_mut(lane) {
            lane.on.operations.add_use();
        }
        Some(grant)
    }

    /// As [`Engine::grant_region`], to the one peer whose program writes the region: by a registration of its own, which
    /// [`Engine::fence_region`] gives up.
    pub fn grant_writer<P: Provider>(
        &mut self,
        nic: &mut P,
        number: u64,
        peer: IpAddr,
        access: RegionAccess,
    ) -> Result<RegionGrant, VerbsError> {
        let grant = self.grant_region(nic, number, peer).ok_or(VerbsError::NoSuch("region"))?;
        let mr = self.ops.owned.register_writer(nic, number, peer.to_canonical(), access)?;
        Ok(RegionGrant { access, rkey: mr.rkey.0, ..grant })
    }

    /// The writer of a region is over. Its leased lane has ended before; here go its registration, and its handle if it
    /// is a program of this host. Nothing of it lands any more.
    pub fn fence_region<P: Provider>(&mut self, nic: &mut P, number: u64) {
        if let Some(mr) = self.ops.owned.take_writer(number) {
            self.dereg(nic, mr);
        }
        self.ops.regions.fence_here(number);
    }

    /// A peer's daemon says that nothing of its host uses a region any more.
    pub fn ungrant_region(&mut self, number: u64, peer: IpAddr) {
        let peer = peer.to_canonical();
        if self.ops.owned.ungrant(number, peer) {
            self.drop_lane_use(peer);
        }
    }

    fn drop_lane_use(&mut self, peer: IpAddr) {
        if let Some(lane) = self.lanes.to(peer).and_then(|id| self.lanes.get_mut(id)) {
            lane.on.operations.drop_use();
        }
    }

    /// Gives the registration of a region of this epoch up. Every peer that had it open has said that it does not use
    /// it any more, or lost its lane: an access of one that did neither breaks its lane's queue pair. False: it is not
    /// registered.
    pub fn deregister_region<P: Provider>(&mut self, nic: &mut P, number: u64, epoch: u64) -> bool {
        self.ops.kernels.halt_here(number);
        if let Some(mr) = self.ops.owned.take_writer(number) {
            self.dereg(nic, mr);
        }
        let Some((mr, peers)) = self.ops.owned.remove(number, epoch) else { return false };
        self.dereg(nic, mr);
        for peer in peers {
            self.drop_lane_use(peer);
        }
        true
    }

    // ---- of other hosts

    /// An application opened a region of another host. The result is what its submissions name. Their operations go
    /// over the shared lane to that host, or over a leased one, which is made if there is none of that number. It is
    /// there until the daemon [ends](Engine::end_leased_lane) it.
    pub fn open_region<P: Provider>(
        &mut self,
        nic: &mut P,
        app: AppId,
        at: impl Into<LaneAt>,
        grant: RegionGrant,
    ) -> Result<u32, Reason> {
        self.apps.get_here(app).ok_or(Reason::AppFault)?;
        let at = at.into().canonical();
        let lane = match (at.leased, self.lanes.at(at)) {
            (None, _) => self.lane_to(nic, at.peer),
            (Some(number), None) => self.insert_lane((at.peer, number)),
            (Some(_), known) => known,
        };
        let id = lane.ok_or(Reason::LocalLimit)?;
        let way = (Way::Lane(id), at.leased.is_some());
        let handle = self.ops.regions.open(app, at.peer, way, grant).ok_or(Reason::LocalLimit)?;
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.on.operations.add_use();
            // Its first operation is not to wait for the queue pair.
            if lane.is_leased() && lane.want() {
                self.events.push_back(Event::PeerWanted { peer: at.peer, lane: lane.number() });
            }
        }
        Ok(handle.bits())
    }

    /// An application of this host writes a region of this host, and is the only one beside its owner. Its operations are
    /// done here, in `memory`, until [`Engine::fence_region`].
    pub fn write_region(&mut self, app: AppId, memory: Region, grant: RegionGrant) -> Result<u32, Reason> {
        self.apps.get_here(app).ok_or(Reason::AppFault)?;
        let handle = self.ops.regions.open(app, self.local_address(), (Way::Here(memory), false), grant);
        handle.map(HandleId::bits).ok_or(Reason::LocalLimit)
    }

    /// An application gives a region of another host back, or it `is_fenced`: then nothing of it begins that has not begun.
    /// [`Event::RegionClosed`] follows when nothing that it began is in flight.
    pub fn close_region(&mut self, app: AppId, handle: u32, is_fenced: bool) {
        let handle = HandleId::from_bits(handle);
        if is_fenced {
            self.ops.regions.fence(app, handle);
            self.abandon_operations(|op| op.handle == handle);
        } else {
            self.ops.regions.close(app, handle);
        }
    }

    /// The owner takes a region back, as its daemon says: nothing of this epoch, or of one before, begins any more.
    /// [`Event::RegionStopped`] follows when nothing that was begun is in flight.
    pub fn stop_region(&mut self, peer: IpAddr, region: u64, epoch: u64) {
        let handles = self.ops.regions.stop(peer.to_canonical(), region, epoch);
        self.abandon_operations(|op| handles.contains(&op.handle));
    }

    /// Registers memory of an application, for its own operations, under a number of the daemon's. READs need it to be
    /// `writable`.
    pub fn attach_local_region<P: Provider>(
        &mut self,
        nic: &mut P,
        app: AppId,
        number: u32,
        memory: &Region,
        writable: bool,
    ) -> Result<(), VerbsError> {
        self.apps.get_here(app).ok_or(VerbsError::NoSuch("application"))?;
        let tenant = self.tenant_pins(app);
        self.ops.locals.attach(nic, (app, number), tenant.as_ref(), memory, writable)
    }

    /// Gives that up, as soon as no operation uses it.
    pub fn detach_local_region(&mut self, app: AppId, number: u32) {
        self.ops.locals.detach(app, number);
    }

    // ---- ends

    /// Operations are given up as far as nothing of them is under way: their queue is closed, or their region is revoked.
    /// What the owner was asked for waits for its answer. Otherwise that would be one to nothing, and more could be asked
    /// for at a time than the owner allows: either fails the lane, for all.
    pub(in crate::engine) fn abandon_operations(&mut self, which: impl Fn(&Operation) -> bool) {
        for (id, of_lane) in self.ops.those(which) {
            let Some(lane) = self.lanes.get_mut(of_lane) else { continue };
            let flight = &mut lane.on.operations;
            let was_to_be_asked = flight.take_back_ask(id);
            let Some(op) = self.ops.get(id) else { continue };
            let (handle, has_effect) = (op.handle, op.may_have_effect());
            let outcome = match self.ops.regions.verdict(handle) {
                _ if has_effect => {
                    Outcome::of(OperationStatus::OutcomeUnknown, self.ops.regions.end_of(handle).code().into())
                }
                Some(refused) => refused,
                None => Outcome::of(OperationStatus::Failed, Reason::Closed.code().into()),
            };
            let Some(op) = self.ops.get_mut(id) else { continue };
            let is_posting = !matches!(op.memory, Memory::None) && op.posted < op.submission.bytes;
            if op.asked.is_some() || (!is_posting && !was_to_be_asked) {
                // What was posted, or asked for, comes to its end by itself.
                continue;
            }
            if op.posted == 0 || op.is_placed {
                self.ops.end(id, flight, outcome);
                continue;
            }
            // No more of it is posted; the device is done with it first.
            op.verdict = Some(outcome);
            if is_posting {
                let (queue, wr) = (op.queue, op.last_wr);
                if let Some(queue) = self.ops.queues.get_mut(queue) {
                    queue.finish_current(id);
                }
                flight.on_posted(wr, id);
            }
        }
    }

    /// The link to a host is gone, and with it what its daemon and this one had open of each other's.
    pub(in crate::engine) fn lose_regions(&mut self, peer: IpAddr, reason: Reason) {
        let (uses, handles) = self.ops.regions.lose(peer, reason);
        self.abandon_operations(|op| handles.contains(&op.handle));
        let uses = uses + self.ops.owned.ungrant_all(peer);
        for _ in 0..uses {
            self.drop_lane_use(peer);
        }
        if let Some(id) = self.lanes.to(peer) {
            self.ops.free_places(id);
        }
    }

    /// Reports handles and regions of which nothing is in flight any more.
    pub(super) fn settle_regions(&mut self) {
        for quiet in self.ops.regions.take_quiet() {
            match quiet {
                Quiet::Closed { app, peer, lane, region, handle, used_lane } => {
                    if let Some(lane) = lane.filter(|_| used_lane).and_then(|lane| self.lanes.get_mut(lane)) {
                        lane.on.operations.drop_use();
                    }
                    self.events.push_back(Event::RegionClosed { app, peer, region, handle });
                }
                Quiet::Stopped { peer, region, epoch } => {
                    self.events.push_back(Event::RegionStopped { peer, region, epoch });
                }
            }
        }
    }
}
