//! Regions of the daemons: what `plane::Directory` and `plane::Foreign` decide, carried out as raasd's hub and its engine
//! thread do.
//!
//! Owns how long everything takes. It must keep the order of what the control plane tells the engine, with the commands
//! about lanes.

use std::net::IpAddr;

use control::{LEASED_LANE_FIRST, Reason, RegionAccess, RegionGrant, RegionMessage, RegionRefusal, Reply, Request};
use engine::LaneAt;
use plane::{ClientId, DirectoryAction, Foreign, ForeignAction, OTHERS, RegionWish, TenantShare};
use verbs::Time;

use super::{Event, World};
use crate::address::{At, host_of};
use crate::links::Input;
use crate::regions::{RegionCommand, RegionInput, Regions, Shared};

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
        let now = self.now;
        let Some(regions) = self.regions(host) else { return };
        let Some(party) = regions.party(client) else { return };
        let share = || TenantShare { name: OTHERS.into(), bytes_max: None };
        match *request {
            Request::RegionCreate { request, spec } => regions.directory.handle_create(party, request, spec, share()),
            Request::RegionReturn { request, spec, epoch, line } => {
                regions.directory.handle_return(party, request, (spec, epoch, line), share());
            }
            Request::RegionOpen { request, host: of, name, key, access, lease, leased_lane } => {
                let wish = RegionWish { name, key, access, lease };
                match host_of(of) == host {
                    true => regions.directory.handle_open(party, request, wish),
                    false => regions.foreign.handle_open(party, request, of, wish, leased_lane),
                }
            }
            Request::RegionClose { open, .. } if Foreign::is_foreign(open) => {
                regions.foreign.handle_close(client, open);
            }
            Request::RegionClose { open, delete } => regions.directory.handle_close(client, open, delete),
            Request::RegionRevoke { request, name, key, new_key } => {
                regions.directory.handle_revoke(now, party, request, (&name, key), new_key);
            }
            Request::RegionMoved { open, epoch } => regions.directory.handle_moved(client, open, epoch),
            other => self.checks.fail(now, "set-up", format!("a program asks for {other:?}")),
        }
        self.settle_plane(host);
    }

    /// A program is gone: it left, or died.
    pub(super) fn leave_regions(&mut self, host: usize, client: ClientId) {
        let Some(regions) = self.regions(host) else { return };
        if let Some(app) = regions.leave(client) {
            self.command_region(host, RegionCommand::Detach { app });
        }
        self.settle_plane(host);
    }

    fn send_of_regions(&mut self, host: usize, client: ClientId, reply: Reply, memory: Option<Shared>) {
        let delay = self.plan.daemon_delay_max;
        let at = self.now + self.some(delay);
        if let Some(at) = self.users.hears_at(client, at) {
            let said = Box::new((reply, memory));
            self.queue.push(at, Event::OfRegions { host, client, said });
        }
    }

    // ---- other daemons

    pub(super) fn on_region_message(&mut self, host: usize, peer: IpAddr, message: RegionMessage) {
        let now = self.now;
        self.trace.text(now, || format!("host {host} hears of {peer}: {message:?}"));
        let Some(regions) = self.regions(host) else { return };
        if !regions.directory.handle_peer(now, peer, &message) {
            regions.foreign.handle_peer(peer, message);
        }
    }

    /// One lane to a peer is gone, and the engine knows it before anything that is asked of it from here on.
    pub(super) fn on_region_lane_gone(&mut self, host: usize, (peer, lane): (IpAddr, u32), reason: Reason) {
        if lane >= LEASED_LANE_FIRST {
            let Some(regions) = self.regions(host) else { return };
            regions.foreign.handle_lane_gone(peer, lane, reason);
        } else if lane == of_regions(host).engine {
            self.on_region_peer_gone(host, peer, reason);
        }
    }

    fn on_region_peer_gone(&mut self, host: usize, peer: IpAddr, reason: Reason) {
        let now = self.now;
        let Some(regions) = self.regions(host) else { return };
        regions.directory.handle_peer_gone(now, peer);
        regions.foreign.handle_peer_gone(peer, reason);
    }

    fn tell_of_region(&mut self, host: usize, peer: IpAddr, message: RegionMessage) {
        let Some(running) = self.up(host) else { return };
        if !running.control.peers.tell_of_region(peer, message) {
            self.on_region_peer_gone(host, peer, Reason::PeerLost);
        }
    }

    // ---- what is decided

    pub(super) fn settle_regions(&mut self, host: usize) {
        self.settle_foreign(host);
        self.settle_directory(host);
        // What is told to a peer without a link ends handles to it.
        self.settle_foreign(host);
    }

    fn settle_foreign(&mut self, host: usize) {
        while let Some(action) = self.regions(host).and_then(|regions| regions.foreign.poll_action()) {
            let app_of = |world: &mut Self, client| world.regions(host).and_then(|regions| regions.app_of(client));
            match action {
                ForeignAction::Path { client, request, host: to } => {
                    if let Some(app) = app_of(self, client) {
                        self.command_region(host, RegionCommand::Path { app, request, host: to });
                    }
                }
                ForeignAction::Tell { peer, message } => self.tell_of_region(host, peer, message),
                ForeignAction::Lease { open, peer } => {
                    let Some(running) = self.up(host) else { return };
                    let lane = running.control.peers.lane_number(peer);
                    running.control.regions.foreign.on_lane_number(open, lane);
                }
                ForeignAction::Open { open, client, peer, grant, lane } => match app_of(self, client) {
                    Some(app) => self.command_region(host, RegionCommand::Open { app, peer, open, grant, lane }),
                    None => {
                        let Some(regions) = self.regions(host) else { return };
                        regions.foreign.on_opened(open, Err(Reason::AppFault));
                    }
                },
                ForeignAction::Close { client, handle } => {
                    // Of a program that has left the engine closes it by itself.
                    if let Some(app) = app_of(self, client) {
                        self.command_region(host, RegionCommand::Close { app, handle });
                    }
                }
                ForeignAction::Stop { peer, region, epoch } => {
                    self.command_region(host, RegionCommand::Stop { peer, region, epoch });
                }
                ForeignAction::Send { client, reply } => self.send_of_regions(host, client, reply, None),
            }
        }
    }

    fn settle_directory(&mut self, host: usize) {
        let now = self.now;
        let Some(regions) = self.regions(host) else { return };
        regions.directory.see(now);
        while let Some(action) = self.regions(host).and_then(|regions| regions.directory.poll_action()) {
            self.trace.text(now, || format!("host {host}: {action:?}"));
            let Some(regions) = self.regions(host) else { return };
            match action {
                DirectoryAction::Make { region, bytes, .. } => {
                    let made = regions.make(region, bytes);
                    regions.directory.on_made(now, region, made);
                }
                DirectoryAction::Use { .. } => {}
                DirectoryAction::Drop { region } => {
                    regions.forget(region);
                    self.command_region(host, RegionCommand::Forget { region });
                }
                DirectoryAction::Stamp { word, value } => regions.stamp(word, value),
                DirectoryAction::Grant { region, epoch, register, peer, open, lane } => {
                    let memory = register.and_then(|access: RegionAccess| Some((regions.memory(region)?, access)));
                    self.command_region(host, RegionCommand::Grant { region, epoch, memory, peer, open, lane });
                }
                DirectoryAction::EndLane { peer, lane, reason } => {
                    self.command_region(host, RegionCommand::EndLane { peer, lane, reason });
                }
                DirectoryAction::Ungrant { region, peer } => {
                    self.command_region(host, RegionCommand::Ungrant { region, peer });
                }
                DirectoryAction::Deregister { region, epoch } => {
                    self.command_region(host, RegionCommand::Deregister { region, epoch });
                }
                DirectoryAction::NotificationsTaken { region, count } => {
                    self.command_region(host, RegionCommand::NotificationsTaken { region, count });
                }
                DirectoryAction::Tell { peer, message } => {
                    if let RegionMessage::Stop { region, .. } = message {
                        self.command_region(host, RegionCommand::Halt { region, peer });
                    }
                    self.tell_of_region(host, peer, message);
                }
                DirectoryAction::DropPeer { peer } => {
                    let Some(running) = self.up(host) else { return };
                    running.control.peers.drop_peer(peer, "it goes on using a region that was revoked");
                }
                DirectoryAction::Send { client, reply, memory } => {
                    let memory = memory.and_then(|handed| regions.hand_out(handed));
                    self.send_of_regions(host, client, reply, memory);
                }
                action @ (DirectoryAction::Keep { .. }
                | DirectoryAction::Attach { .. }
                | DirectoryAction::Detach { .. }) => {
                    self.checks.fail(now, "set-up", format!("host {host}: {action:?}, for which no program asks"));
                }
            }
        }
    }

    // ---- the engine

    /// A command to the engine; it takes it soon, in one order with those about lanes.
    fn command_region(&mut self, host: usize, command: RegionCommand) {
        let delay = self.some(self.plan.queue_delay_max);
        let (due, life) = (self.now + delay, self.life(host));
        let Some(running) = self.up(host) else { return };
        running.control.told_at = running.control.told_at.max(due);
        let due: Time = running.control.told_at;
        self.queue.push(due, Event::Region { host, life, command: Box::new(command) });
    }

    pub(super) fn on_region_command(&mut self, host: usize, life: u32, command: Box<RegionCommand>) {
        if self.life(host) != life {
            return;
        }
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::Region { host, life, command });
        }
        let (now, at) = (self.now, of_regions(host));
        self.trace.text(now, || format!("engine {at:?}: {command:?}"));
        let Some(driven) = self.driven(at) else { return };
        let (engine, tap) = (&mut driven.engine, &mut driven.tap);
        tap.now = now;
        let answer = match *command {
            RegionCommand::Grant { region, epoch, memory, peer, open, lane } => {
                let input = self.grant(at, (region, epoch), memory, (peer, open, lane));
                Some(input)
            }
            RegionCommand::Deregister { region, epoch } => {
                engine.deregister_region(tap, region, epoch);
                Some(RegionInput::Deregistered { region })
            }
            RegionCommand::Open { app, peer, open, grant, lane } => {
                let result = engine.open_region(tap, app, LaneAt { peer, leased: lane }, grant);
                Some(RegionInput::Opened { open, result })
            }
            RegionCommand::Path { app, request, host: to } => {
                engine.datagram_path(now, tap, app, request, to);
                None
            }
            RegionCommand::EndLane { peer, lane, reason } => {
                engine.end_leased_lane(now, tap, LaneAt::new(peer, lane), reason);
                None
            }
            RegionCommand::Ungrant { region, peer } => {
                engine.ungrant_region(region, peer);
                None
            }
            RegionCommand::Forget { region } => {
                engine.forget_kernels(region);
                None
            }
            RegionCommand::Halt { region, peer } => {
                engine.halt_region(region, peer);
                None
            }
            RegionCommand::NotificationsTaken { region, count } => {
                engine.notifications_taken(region, count);
                None
            }
            RegionCommand::Close { app, handle } => {
                engine.close_region(app, handle);
                None
            }
            RegionCommand::Stop { peer, region, epoch } => {
                engine.stop_region(peer, region, epoch);
                None
            }
            RegionCommand::Detach { app } => {
                engine.detach(now, tap, app, Reason::PeerAppDied);
                None
            }
        };
        if let Some(answer) = answer {
            self.after_engine(at);
            self.tell_plane(host, Input::Region(answer));
        }
        self.after_command(at);
    }

    /// As raasd's engine thread does.
    fn grant(
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
            engine::Event::DatagramPath { app, request, result } => {
                let client = self.regions(host).and_then(|regions| regions.client_of(app));
                let Some(client) = client.filter(|_| at == of_regions(host)) else { return false };
                // A device without datagrams says so only when the lane is there.
                let result = match result {
                    Ok(_) | Err(Reason::NoDatagrams) => Ok(()),
                    Err(reason) => Err(reason),
                };
                RegionInput::Path { client, request, result }
            }
            _ => return false,
        };
        self.tell_plane(host, Input::Region(input));
        true
    }

    /// The control plane hears its engine.
    pub(super) fn on_region_input(&mut self, host: usize, input: RegionInput) {
        let Some(Regions { directory, foreign, .. }) = self.regions(host) else { return };
        match input {
            RegionInput::Path { client, request, result } => _ = foreign.on_path(client, request, result),
            RegionInput::Granted { peer, open, result, not_registered } => {
                not_registered.into_iter().for_each(|region| directory.on_not_registered(region));
                directory.on_granted(peer, open, result);
            }
            RegionInput::Deregistered { region } => directory.on_deregistered(region),
            RegionInput::Opened { open, result } => foreign.on_opened(open, result),
            RegionInput::Closed { peer, handle } => foreign.on_closed(peer, handle),
            RegionInput::Stopped { peer, region, epoch } => foreign.on_stopped(peer, region, epoch),
            RegionInput::Notified { region, notify } => directory.on_remote_notification(region, notify),
        }
    }
}
