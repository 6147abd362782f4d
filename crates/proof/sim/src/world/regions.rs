//! Regions of the daemons: what their programs ask and hear.
//!
//! Owns nothing.

use control::{Reply, Request};
use engine::AppId;
use plane::{ClientId, Party, ProgramFacts};

use super::{Event, World};
use crate::address::At;
use crate::regions::{Regions, Shared, UID};

/// The engine of a host that has the regions and the operations: the first.
pub(super) const fn of_regions(host: usize) -> At {
    At { host, engine: 0 }
}

impl World {
    pub(super) fn regions(&mut self, host: usize) -> Option<&mut Regions> {
        Some(&mut self.up(host)?.control.regions)
    }

    // ---- programs

    /// A program asks its daemon for something about regions.
    pub(super) fn on_region_request(&mut self, host: usize, life: u32, client: ClientId, request: Box<Request>) {
        if self.life(host) != life {
            return;
        }
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::ToRegions { host, life, client, request });
        }
        self.ask_plane(host, client, *request);
    }

    /// The daemon takes a program in, with the name that its engine has for it if it has a session. False: it does not.
    pub(super) fn take_program(&mut self, host: usize, client: ClientId, app: Option<AppId>) -> bool {
        let Some(running) = self.up(host) else { return false };
        let control = &mut running.control;
        let facts = ProgramFacts { uid: UID, ..ProgramFacts::default() };
        if control.daemon.handle_attach(Party { client, pid: 1, uid: UID }, facts, None).is_err() {
            return false;
        }
        control.daemon.on_attached(client);
        app.into_iter().for_each(|app| control.names.add(client, of_regions(host).engine, app));
        true
    }

    /// A program is gone: it left, or died.
    pub(super) fn leave_regions(&mut self, host: usize, client: ClientId) {
        let Some(running) = self.up(host) else { return };
        let (engines, control) = (running.engines.len() as u32, &mut running.control);
        if control.daemon.party(client).is_none() {
            return;
        }
        control.daemon.handle_gone(client);
        let of_none: Vec<u32> = (0..engines).filter(|engine| control.names.app(client, *engine).is_none()).collect();
        of_none.into_iter().for_each(|engine| control.daemon.on_program_gone(client, engine));
        self.detach(host, client);
        self.settle_plane(host);
    }

    pub(super) fn send_of_regions(&mut self, host: usize, client: ClientId, reply: Reply, memory: Option<Shared>) {
        let delay = self.plan.daemon_delay_max;
        let at = self.now + self.some(delay);
        if let Some(at) = self.users.hears_at(client, at) {
            let said = Box::new((reply, memory));
            self.queue.push(at, Event::OfRegions { host, client, said });
        }
    }

    /// What is left of regions where no program is.
    pub(super) fn regions_left(&mut self, host: usize) -> Option<String> {
        let control = &self.up(host)?.control;
        let (directory, memories) = (control.daemon.directory(), control.regions.count());
        let (regions, leases) = (directory.in_use(), directory.leases_in_use());
        let foreign = control.daemon.foreign_handles();
        let is_empty = (regions, leases, foreign, memories) == ((0, 0, 0), (0, 0), 0, 0);
        (!is_empty).then(|| {
            format!(
                "regions, handles, stamps {regions:?}, leases {leases:?}, handles to other hosts {foreign}, memories \
                 {memories}"
            )
        })
    }
}
