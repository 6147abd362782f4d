//! What the control plane asks about regions that cross hosts, carried out by the engine.

use control::{Reason, RegionAccess, RegionGrant, RegionRefusal};
use verbs::Provider;

use super::EngineThread;
use crate::command::{FromEngine, RegionCommand};

impl<P: Provider> EngineThread<P> {
    pub(super) fn execute_for_region(&mut self, command: RegionCommand) {
        let (engine, device) = (&mut self.engine, &mut self.device);
        match command {
            RegionCommand::Grant { region, epoch, memory, peer, open } => {
                let registered = memory.map_or(Ok(()), |memory| {
                    let memory = memory.map_err(|e| e.to_string())?;
                    engine
                        .register_region(device, region, epoch, memory, RegionAccess::ALL)
                        .map_err(|error| error.to_string())
                });
                let result = match registered {
                    Ok(()) => engine
                        .grant_region(device, region, peer)
                        .map(|grant: RegionGrant| RegionGrant { epoch, ..grant })
                        .ok_or(RegionRefusal::Reason(Reason::LocalLimit)),
                    Err(error) => {
                        tracing::warn!(region, error, "the device does not take a region's memory");
                        Err(RegionRefusal::Reason(Reason::LocalLimit))
                    }
                };
                self.held.push_back(FromEngine::RegionGranted { peer, open, result });
            }
            RegionCommand::Ungrant { region, peer } => engine.ungrant_region(region, peer),
            RegionCommand::Deregister { region, epoch } => {
                engine.deregister_region(device, region, epoch);
                self.held.push_back(FromEngine::RegionDeregistered { region });
            }
            RegionCommand::NotificationsTaken { region, count } => engine.notifications_taken(region, count),
            RegionCommand::Open { app, peer, open, grant } => {
                let result = engine.open_region(device, app, peer, grant);
                self.held.push_back(FromEngine::RegionOpened { open, result });
            }
            RegionCommand::Close { app, handle } => engine.close_region(app, handle),
            RegionCommand::Stop { peer, region, epoch } => engine.stop_region(peer, region, epoch),
        }
    }
}
