//! Kernels at regions of this host, of other hosts' programs and of this host's, and the answers of other hosts.
//!
//! Owns the way from a record to a job and back. A record that breaks a rule fails its lane alone.

use std::net::IpAddr;

use kernels::{ANSWER_BYTES_MAX, UserKernel, View};
use shm::OperationStatus;

use crate::engine::Engine;
use crate::event::{Event, LocalPlace};
use crate::frame::Run;
use crate::ids::{AppId, LaneId, OperationId};
use crate::limits::OPERATIONS_PER_LANE_MAX;
use crate::operations::Outcome;
use crate::operations::answers::{Answer, Said};
use crate::operations::kernels::{Asker, Origin, Place, Ran, To};
use crate::operations::owned::RegionBreach;
use crate::table::Key;
use crate::violation::Violation;
use control::RegionAccess;

impl Engine {
    /// A peer asks for a kernel at a region of this host.
    pub(in crate::engine) fn on_run(&mut self, id: LaneId, run: &Run) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get(id) else { return Ok(()) };
        let (peer, answer_max) = (lane.peer(), lane.on.operations.kernel_bytes_max() as usize);
        let mut regions = Vec::new();
        for region in &run.regions {
            regions.push(self.ops.owned.for_kernel(peer, region.key, region.access)?);
        }
        if let Some((whole, allowed)) = regions.first().filter(|(_, a)| !a.contains(RegionAccess::EXECUTE)) {
            return Err(RegionBreach::Access { region: whole.number, allowed: *allowed }.into());
        }
        let to = To::Peer { lane: id, id: run.id };
        let asker = Asker { to, origin: Origin::Host(peer), program: run.program };
        let places = regions.into_iter().map(|(whole, access)| Place::Granted { peer, whole, access });
        self.ops.kernels.push(&self.ops.owned, asker, places.collect(), (&run.request, answer_max));
        Ok(())
    }

    /// A program of this host has a kernel run at regions of this host, which the caller has found that it may use.
    /// [`Event::KernelRan`] has the answer, unless the program goes before.
    pub fn run_kernel(&mut self, app: AppId, request: u64, places: Vec<LocalPlace>, bytes: &[u8]) {
        let Some(uid) = self.apps.get_here(app).map(|app| app.uid()) else { return };
        let asker = Asker { to: To::Program { app, request }, origin: Origin::Program(app, uid), program: 0 };
        let place = |LocalPlace { region, access, memory }| {
            let may = |right| access.contains(right);
            let view = View::new(memory, may(RegionAccess::READ), may(RegionAccess::WRITE));
            Place::Mapped { number: region, view }
        };
        let places = places.into_iter().map(place).collect();
        self.ops.kernels.push(&self.ops.owned, asker, places, (bytes, ANSWER_BYTES_MAX));
    }

    /// Gives the kernel whose turn it is a slice. Says whether there was anything to do.
    pub(in crate::engine) fn run_kernels(&mut self) -> bool {
        if !self.ops.kernels.has_work() {
            return false;
        }
        let spent = self.ops.kernels.run_slice(&self.ops.owned);
        self.ops.counters.kernel_fuel += spent.unwrap_or(0);
        self.answer_kernels();
        true
    }

    /// Owes the peers the answers of those that ended.
    fn answer_kernels(&mut self) {
        for Ran { to, result } in self.ops.kernels.take_ended() {
            let counters = &mut self.ops.counters;
            counters.kernels_run += 1;
            counters.kernels_failed += u64::from(result.is_err());
            let (id, operation) = match to {
                To::Peer { lane, id } => (lane, id),
                To::Program { app, request } => {
                    let result = result.map_err(|failure| failure.to_bytes());
                    self.events.push_back(Event::KernelRan { app, request, result });
                    continue;
                }
            };
            let said = match result {
                Ok(bytes) => Said::Ran { failed: false, bytes },
                Err(failure) => Said::Ran { failed: true, bytes: failure.to_bytes() },
            };
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            if lane.on.operations.answers.owe(Answer { id: operation, said }).is_err() {
                let violation = Violation::TooManyOperations(OPERATIONS_PER_LANE_MAX);
                self.counters.violations += 1;
                self.lanes.fail(id, violation.to_string());
                continue;
            }
            self.wake_lane(id);
            self.lanes.queue(id);
        }
    }

    /// Nothing of a peer's runs at a region of this host any more: what does, ends.
    pub fn halt_region(&mut self, number: u64, peer: IpAddr) {
        let peer = peer.to_canonical();
        self.ops.owned.halt(number, peer);
        self.ops.kernels.halt(number, peer);
        self.answer_kernels();
        self.halt_notices(number, peer);
    }

    /// A user kernel can be run at a region from here on. False: there are as many as may be, or a built-in one has the
    /// name.
    pub fn install_kernel(&mut self, region: u64, name: &str, kernel: UserKernel) -> bool {
        self.ops.kernels.install(region, name, kernel)
    }

    /// A region ended: its user kernels go, what runs there for programs of this host ends, and who waits for its owner
    /// is refused. Peers that have it open still run nothing there any more.
    pub fn forget_region(&mut self, region: u64) {
        self.ops.owned.halt_all(region);
        self.ops.kernels.uninstall(region);
        self.ops.kernels.halt_here(region);
        self.answer_kernels();
        self.forget_notices(region);
    }

    /// Whether a kernel waits for its next slice.
    pub fn has_kernels(&self) -> bool {
        self.ops.kernels.has_work()
    }

    /// A peer ran a kernel for an operation of this host.
    pub(in crate::engine) fn on_ran(
        &mut self,
        id: LaneId,
        operation: u32,
        failed: bool,
        bytes: Vec<u8>,
    ) -> Result<(), Violation> {
        let key = OperationId::from_bits(operation);
        let Some(op) = self.ops.get_mut(key) else {
            // Its application closed the queue, or left.
            self.counters.stale_frames += 1;
            return Ok(());
        };
        let Some(run) = op.run.as_mut().filter(|_| op.lane == id) else {
            return Err(Violation::OperationAnswer(operation));
        };
        run.answer = bytes;
        let outcome = if failed { Outcome::of(OperationStatus::KernelFailed, 0) } else { Outcome::DONE };
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        if self.ops.on_answer(key, &mut lane.on.operations, outcome) {
            Ok(())
        } else {
            Err(Violation::OperationAnswer(operation))
        }
    }
}
