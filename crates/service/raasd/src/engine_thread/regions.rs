//! What the control plane asks about regions that cross hosts, carried out by the engine.

use control::{Reason, RegionGrant, RegionRefusal};
use engine::{LaneAt, TENANT_PINNED};
use plane::RegionCommand;
use verbs::{Provider, VerbsError};

use super::EngineThread;
use crate::command::{FromEngine, RegionWork};

impl<P: Provider> EngineThread<P> {
    pub(super) fn execute_for_region(&mut self, work: RegionWork) {
        let (engine, device) = (&mut self.engine, &mut self.device);
        match work {
            RegionWork::Command(command) => self.execute_region_command(command),
            RegionWork::Grant { region, epoch, memory, peer, open, lane } => {
                let registers = memory.is_some();
                let registered = memory.map_or(Ok(()), |memory| {
                    let (memory, access) = memory?;
                    engine.register_region(device, region, epoch, memory, access).map_err(|error| error.to_string())
                });
                let result = match registered {
                    Ok(()) if lane.is_some_and(|lane| !engine.expect_leased_lane(peer, lane)) => {
                        tracing::warn!(%peer, ?lane, "no place for a leased lane: see `leased_lanes_max`");
                        Err(RegionRefusal::Reason(Reason::LocalLimit))
                    }
                    Ok(()) => engine
                        .grant_region(device, region, peer)
                        .map(|grant: RegionGrant| RegionGrant { epoch, ..grant })
                        .ok_or(RegionRefusal::Reason(Reason::LocalLimit)),
                    Err(error) => {
                        tracing::warn!(region, error, "the device does not take a region's memory");
                        Err(RegionRefusal::Reason(Reason::LocalLimit))
                    }
                };
                // What is registered is granted to somebody.
                let not_registered = (registers && result.is_err()).then_some(region);
                if not_registered.is_some() {
                    engine.deregister_region(device, region, epoch);
                }
                self.held.push_back(FromEngine::RegionGranted { peer, open, result, not_registered });
            }
            RegionWork::Install { client, request, region, kernel, module } => {
                let installed = engine.install_kernel(region, &kernel, module);
                let max = kernels::USER_KERNELS_MAX as u64;
                let what = "kernels of the region, or a built-in one has the name, of which".to_owned();
                let result = if installed { Ok(()) } else { Err(RegionRefusal::TooMany { what, used: max, max }) };
                self.held.push_back(FromEngine::KernelInstalled { client, request, result });
            }
            RegionWork::Run { app, request, places, bytes } => engine.run_kernel(app, request, places, &bytes),
            RegionWork::Attach { client, app, number, memory, writable } => {
                let attached = memory.map_err(|error| (error, Reason::LocalLimit)).and_then(|memory| {
                    let attached = engine.attach_local_region(device, app, number, &memory, writable);
                    attached.map_err(|error| {
                        let is_tenants = matches!(error, VerbsError::Full { what: TENANT_PINNED, .. });
                        (error.to_string(), if is_tenants { Reason::TenantLimit } else { Reason::LocalLimit })
                    })
                });
                let result = attached.map_err(|(error, reason)| {
                    tracing::warn!(error, "a region cannot be local memory of a program");
                    RegionRefusal::Reason(reason)
                });
                self.held.push_back(FromEngine::RegionAttached { client, number, result });
            }
        }
    }

    fn execute_region_command(&mut self, command: RegionCommand) {
        let now = self.now();
        let (engine, device) = (&mut self.engine, &mut self.device);
        match command {
            RegionCommand::EndLane { peer, lane, reason } => {
                engine.end_leased_lane(now, device, LaneAt::new(peer, lane), reason);
            }
            RegionCommand::Ungrant { region, peer } => engine.ungrant_region(region, peer),
            RegionCommand::Deregister { region, epoch } => {
                engine.deregister_region(device, region, epoch);
                self.held.push_back(FromEngine::RegionDeregistered { region });
            }
            RegionCommand::Forget { region } => engine.forget_kernels(region),
            RegionCommand::Halt { region, peer } => engine.halt_region(region, peer),
            RegionCommand::NotificationsTaken { region, count } => engine.notifications_taken(region, count),
            RegionCommand::Stop { peer, region, epoch } => engine.stop_region(peer, region, epoch),
        }
    }
}
