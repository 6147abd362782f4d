//! Kernels that programs of this host have run at regions of this host.
//!
//! Owns what a request may ask for. The engine runs them, in the same slices as those of other hosts' programs.

use control::{RegionRefusal, Reply};
use dispatch::Command;
use engine::LocalPlace;
use plane::{ClientId, DATAGRAM_ENGINE};
use shm::{KERNEL_BYTES_MAX, KERNEL_REGIONS_MAX};

use super::Hub;

impl Hub {
    pub(super) fn on_run(
        &mut self,
        client: ClientId,
        request: u64,
        (open, others): (u64, Vec<u64>),
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        if others.len() as u64 > KERNEL_REGIONS_MAX || bytes.len() > KERNEL_BYTES_MAX as usize {
            return Err(format!("a kernel's request of {} bytes with {} other regions", bytes.len(), others.len()));
        }
        // A program that the engine does not know is on its way out.
        let Some(app) = self.names.app(client, DATAGRAM_ENGINE) else { return Ok(()) };
        let opens: Vec<u64> = std::iter::once(open).chain(others).collect();
        match self.places(client, &opens) {
            Ok(places) => self.command(DATAGRAM_ENGINE, Command::Run { app, request, places, bytes }),
            Err(why) => self.send(client, Reply::RegionRan { request, result: Err(why) }, Vec::new()),
        }
        Ok(())
    }

    fn places(&mut self, client: ClientId, opens: &[u64]) -> Result<Vec<LocalPlace>, RegionRefusal> {
        let mut places = Vec::with_capacity(opens.len());
        for (region, access) in self.daemon.directory_mut().begin_run(client, opens)? {
            places.push(LocalPlace { region, access, memory: self.regions.mapped(region)? });
        }
        Ok(places)
    }
}
