//! Regions of the daemons: what their programs ask, and what raasd's engine thread does for them.
//!
//! Owns nothing. It must believe what the control plane says of a region, as the engine thread does.

use std::net::IpAddr;

use control::{Reason, RegionAccess, RegionGrant, RegionRefusal, Reply, Request};
use engine::{AppId, LaneAt};
use plane::{ClientId, Party, ProgramFacts, RegionCommand};

use super::event::Command;
use super::{Event, World};
use crate::address::At;
use crate::links::Input;
use crate::regions::{RegionInput, Regions, Shared, UID};

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
        if control.daemon.handle_attach(Party { client, pid: 1, uid: UID }, facts).is_err() {
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
        match control.names.app(client, of_regions(host).engine) {
            // The other engines do not know it.
            Some(app) => {
                (1..engines).for_each(|engine| control.daemon.on_program_gone(client, engine));
                self.command(of_regions(host), Command::Detach { app });
            }
            None => control.daemon.on_not_attached(client),
        }
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

    // ---- the engine

    /// The engine takes a command about regions.
    pub(super) fn execute_for_region(&mut self, at: At, command: RegionCommand) {
        let now = self.now;
        let Some(driven) = self.driven(at) else { return };
        let (engine, tap) = (&mut driven.engine, &mut driven.tap);
        match command {
            RegionCommand::Deregister { region, epoch } => {
                engine.deregister_region(tap, region, epoch);
                self.tell_of_regions(at, RegionInput::Deregistered { region });
            }
            RegionCommand::EndLane { peer, lane, reason } => {
                engine.end_leased_lane(now, tap, LaneAt::new(peer, lane), reason);
            }
            RegionCommand::Ungrant { region, peer } => engine.ungrant_region(region, peer),
            RegionCommand::Forget { region } => engine.forget_kernels(region),
            RegionCommand::Halt { region, peer } => engine.halt_region(region, peer),
            RegionCommand::NotificationsTaken { region, count } => engine.notifications_taken(region, count),
            RegionCommand::Stop { peer, region, epoch } => engine.stop_region(peer, region, epoch),
        }
    }

    /// The engine's answer comes after every event that it made before.
    pub(super) fn tell_of_regions(&mut self, at: At, answer: RegionInput) {
        self.after_engine(at);
        self.tell_plane(at.host, Input::Region(answer));
    }

    /// As raasd's engine thread does.
    pub(super) fn grant(
        &mut self,
        at: At,
        (region, epoch): (u64, u64),
        memory: Option<(verbs::Region, RegionAccess)>,
        (peer, open, lane): (IpAddr, u64, Option<u32>),
    ) -> RegionInput {
        let limit = || RegionRefusal::Reason(Reason::LocalLimit);
        let Some(driven) = self.driven(at) else {
            return RegionInput::Granted { peer, open, result: Err(limit()), not_registered: None };
        };
        let (engine, tap) = (&mut driven.engine, &mut driven.tap);
        let registers = memory.is_some();
        let registered =
            memory.map_or(Ok(()), |(memory, access)| engine.register_region(tap, region, epoch, memory, access));
        let result = match &registered {
            Ok(()) if lane.is_some_and(|lane| !engine.expect_leased_lane(peer, lane)) => Err(limit()),
            Ok(()) => {
                engine.grant_region(tap, region, peer).map(|grant| RegionGrant { epoch, ..grant }).ok_or_else(limit)
            }
            Err(_) => Err(limit()),
        };
        // What is registered is granted to somebody.
        let not_registered = (registers && result.is_err()).then_some(region);
        if not_registered.is_some() {
            engine.deregister_region(tap, region, epoch);
        }
        if let Err(error) = registered {
            self.checks.fail(self.now, "set-up", format!("region {region} of host {}: {error}", at.host));
        }
        RegionInput::Granted { peer, open, result, not_registered }
    }

    /// What the engine says of regions, for the control plane. False: it is about something else.
    pub(super) fn on_region_event(&mut self, at: At, event: &engine::Event) -> bool {
        let host = at.host;
        let input = match *event {
            engine::Event::RegionClosed { peer, handle, .. } => RegionInput::Closed { peer, handle },
            engine::Event::RegionStopped { peer, region, epoch } => RegionInput::Stopped { peer, region, epoch },
            engine::Event::RegionNotified { region, notify, .. } => RegionInput::Notified { region, notify },
            _ => return false,
        };
        self.tell_plane(host, Input::Region(input));
        true
    }

    /// The control plane hears its engine.
    pub(super) fn on_region_input(&mut self, host: usize, input: RegionInput) {
        let Some(running) = self.up(host) else { return };
        let daemon = &mut running.control.daemon;
        match input {
            RegionInput::Granted { peer, open, result, not_registered } => {
                daemon.on_granted((peer, open), result, not_registered);
            }
            RegionInput::Deregistered { region } => daemon.on_deregistered(region),
            RegionInput::Opened { open, result } => daemon.on_region_opened(open, result),
            RegionInput::Closed { peer, handle } => daemon.on_region_closed(peer, handle),
            RegionInput::Stopped { peer, region, epoch } => daemon.on_region_stopped(peer, region, epoch),
            RegionInput::Notified { region, notify } => daemon.on_region_notified(region, notify),
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
