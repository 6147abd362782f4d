//! What the shipped `plane::Daemon` decides, carried out as raasd's hub does.
//!
//! Owns how long everything takes. It must decide nothing.

use control::{Connection, Path, PeerMessage, Reason, Reply};
use dispatch::{Command, Mapped};
use plane::{
    Action, ClientId, DATAGRAM_ENGINE, LinkCommand, MemoryCommand, ProgramCommand, ProgramRights, RegionCommand, Supply,
};
use rand::RngExt;
use rand::rngs::StdRng;

use super::event::PeerOffer;
use super::regions::of_regions;
use super::users::is_user;
use super::{Event, World};
use crate::address::At;
use crate::app;
use crate::check::RecordId;
use crate::direct::{EndOwner, SimSocket};

/// Random words of the seed. Each wake socket can be made.
pub(super) struct Seeded<'a>(pub(super) &'a mut StdRng);

impl Supply<()> for Seeded<'_> {
    fn word(&mut self) -> u64 {
        self.0.random()
    }

    fn wake(&mut self) -> Option<((), ())> {
        Some(((), ()))
    }
}

impl World {
    /// Lets the control plane of a host that is up take something, with random words.
    pub(super) fn with_plane<R>(
        &mut self,
        host: usize,
        take: impl FnOnce(&mut plane::Daemon<(), SimSocket>, &mut dyn Supply<()>) -> R,
    ) -> Option<R> {
        let running = self.hosts.get_mut(host)?.running.as_mut()?;
        Some(take(&mut running.control.daemon, &mut Seeded(&mut self.rng)))
    }

    pub(super) fn settle_plane(&mut self, host: usize) {
        let now = self.now;
        while let Some(action) = self.up(host).and_then(|running| running.control.daemon.poll_action(now)) {
            self.trace.text(now, || format!("host {host}: {action:?}"));
            self.carry_out(host, action);
        }
        self.arm_plane(host);
    }

    fn carry_out(&mut self, host: usize, action: Action<(), SimSocket>) {
        let is_bound = matches!(action, Action::DialDirect { .. } | Action::Give { .. });
        if is_bound && self.plan.has_standby {
            let detail = format!("host {host} binds a stream to one of two paths: {action:?}");
            self.checks.fail(self.now, "paths", detail);
        }
        match action {
            Action::Reply { client, reply, fds: _ } => self.reply_of_plane(host, client, reply),
            Action::Started { to, incoming, from, connected } => {
                self.reply_of_plane(host, to, incoming);
                self.reply_of_plane(host, from, connected);
            }
            Action::Share { client, reply, memory } => {
                let Some(regions) = self.regions(host) else { return };
                match regions.hand_out(memory) {
                    Some(shared) => self.send_of_regions(host, client, reply, Some(shared)),
                    None => _ = self.with_plane(host, |daemon, _| daemon.on_not_shared(client, reply, "none".into())),
                }
            }
            Action::Give { client, connection, slot, socket } => {
                let uid = client.0 as u32;
                self.directs.own(&socket, EndOwner { host, uid, slot });
                self.reply_to(host, uid, app::Reply::Direct { connection, slot, socket });
            }
            Action::Program { engine, client, command } => self.command_program(host, engine, client, command),
            Action::Lane { engine, lane, command } => {
                self.command(At { host, engine }, Command::Lane { lane, command })
            }
            Action::ResetLane { engine, client, request, peer } => {
                self.command(At { host, engine }, Command::ResetLane { client, request, peer });
            }
            Action::AskRoute { peer, number, lane, route } => {
                self.command(At { host, engine: lane }, Command::StreamOfRoute { peer, number, route });
            }
            Action::Region(command) => {
                let memory = match command {
                    RegionCommand::Grant { region, register: Some(_), .. } => Some(self.mapped(host, region, false)),
                    _ => None,
                };
                self.command(of_regions(host), Command::Region { command, memory });
            }
            Action::Memory(command) => self.on_memory(host, command),
            Action::Link(command) => self.on_link_command(host, command),
            Action::DialDirect { peer, number, token, connection } => {
                self.dial_direct(host, PeerOffer { peer, number, token, connection });
            }
            Action::Attach { client, rights, brought } => self.ask_engines(host, client, &rights, brought),
            Action::Rights { client, rights } => self.tell_rights(host, client, &rights),
            Action::Welcome { client } => self.welcome(host, client),
            Action::Refused { client, reason, words } => self.refuse_program(host, client, reason, &words),
            Action::Warn { client, words } | Action::Detach { client, words, .. } => {
                self.checks.fail(
                    self.now,
                    "set-up",
                    format!("host {host}, program {client:?}, which keeps to the rules: {words}"),
                );
            }
        }
    }

    fn on_memory(&mut self, host: usize, command: MemoryCommand) {
        match command {
            MemoryCommand::Make { region, bytes, .. } => {
                let now = self.now;
                let Some(running) = self.up(host) else { return };
                let made = running.control.regions.make(region, bytes);
                running.control.daemon.on_made(now, region, made);
            }
            MemoryCommand::Use { region } => {
                self.regions(host).into_iter().for_each(|regions| regions.use_newest(region));
            }
            MemoryCommand::Drop { region } => self.regions(host).into_iter().for_each(|regions| regions.forget(region)),
            MemoryCommand::Stamp { word, value } => {
                self.regions(host).into_iter().for_each(|regions| regions.stamp(word, value));
            }
            MemoryCommand::Keep { .. } | MemoryCommand::ForgetKept { .. } => {
                self.checks.fail(self.now, "set-up", format!("host {host}: {command:?}, for which no program asks"));
            }
        }
    }

    fn on_link_command(&mut self, host: usize, command: LinkCommand) {
        match command {
            LinkCommand::Dial { link, peer, deadline, ways } => self.start_dial(host, link, (peer, ways), deadline),
            LinkCommand::CancelDial { link } => {
                if self.link(host, link).is_some_and(|link| !link.is_known) {
                    self.end_link(host, link);
                }
            }
            LinkCommand::Send { link, message } => {
                if self.link(host, link).is_some_and(|link| link.is_known) {
                    self.say(host, link, message);
                }
            }
            LinkCommand::Close { link, reason, detail } => {
                if self.link(host, link).is_some_and(|link| link.is_known) {
                    self.say(host, link, PeerMessage::Bye { reason, detail });
                    self.end_link(host, link);
                }
            }
        }
    }

    fn tell_rights(&mut self, host: usize, client: ClientId, rights: &ProgramRights) {
        for at in self.engines_of(host) {
            let app = self.up(host).and_then(|running| running.control.names.app(client, at.engine));
            let networks = rights.networks.clone();
            app.into_iter().for_each(|app| self.command(at, Command::SetConnectTo { app, networks: networks.clone() }));
        }
    }

    fn mapped(&mut self, host: usize, region: u64, older: bool) -> Mapped {
        let memory = self.regions(host).and_then(|regions| regions.memory(region, older));
        memory.ok_or_else(|| "the region has no memory".into())
    }

    fn command_program(&mut self, host: usize, engine: u32, client: ClientId, command: ProgramCommand) {
        let app = self.up(host).and_then(|running| running.control.names.app(client, engine));
        let Some(app) = app else { return };
        let memory = match command {
            ProgramCommand::AttachRegion { region, older, .. } => Some(self.mapped(host, region, older)),
            ProgramCommand::WriteRegion { grant, .. } => Some(self.mapped(host, grant.region, false)),
            _ => None,
        };
        self.command(At { host, engine }, Command::Program { app, command, memory });
    }

    /// What an engine made and its process is told of now.
    fn record_of(
        &mut self,
        (host, client): (usize, ClientId),
        connection: &Connection,
    ) -> Option<(RecordId, Option<SimSocket>)> {
        let (record, side) = self.up(host)?.control.untold.remove(&connection.id)?;
        let Path::Lane { slot, .. } = connection.path else { return Some((record, None)) };
        let owner = EndOwner { host, uid: client.0 as u32, slot };
        Some((record, self.kernel_tcp((record, side), owner)))
    }

    /// A process hears of what its engines made, in order with all else that its daemon says.
    fn of_engine(&mut self, host: usize, client: ClientId, reply: Reply) -> Option<app::Reply> {
        Some(match reply {
            Reply::Connected { request, result: Ok(connection) } if connection.peer.port() == 0 => {
                app::Reply::Bound { request, connection }
            }
            Reply::Connected { request, result: Ok(connection) } => {
                let (record, tcp) = self.record_of((host, client), &connection)?;
                app::Reply::Connected { request, result: Ok((connection, record, tcp)) }
            }
            Reply::Connected { request, result: Err(reason) } => app::Reply::Connected { request, result: Err(reason) },
            Reply::Incoming { port, connection } => {
                let (record, tcp) = self.record_of((host, client), &connection)?;
                app::Reply::Incoming { port, connection, record, tcp }
            }
            Reply::DatagramPath { request, result } => app::Reply::Path { request, result },
            Reply::ChunkGone { chunk } => app::Reply::ChunkGone { number: chunk },
            _ => return None,
        })
    }

    fn reply_of_plane(&mut self, host: usize, client: ClientId, reply: Reply) {
        if is_user(client) {
            return self.send_of_regions(host, client, reply, None);
        }
        let uid = client.0 as u32;
        match &reply {
            Reply::Listening { request, result: Ok(_) } => {
                let (port, backlog) = listen_of(*request);
                self.checks.causes.on_listening(self.now, uid, (host, port), backlog);
            }
            Reply::Connected { request, result: Err(reason) } => {
                if *reason == Reason::UserConnections {
                    let party = self.up(host).and_then(|running| running.control.daemon.party(client));
                    party.into_iter().for_each(|party| self.judge_share(host, party.uid, true));
                }
                let words = [*request, uid.into(), reason.code().into()];
                self.trace.note(self.now, "connect {} of {} is refused, {}", &words);
            }
            _ => {}
        }
        let is_engines = matches!(
            reply,
            Reply::Connected { .. } | Reply::Incoming { .. } | Reply::DatagramPath { .. } | Reply::ChunkGone { .. }
        );
        if is_engines && !is_of_pair(&reply) {
            let reply = self.of_engine(host, client, reply);
            return reply.into_iter().for_each(|reply| self.reply_to(host, uid, reply));
        }
        let life = self.life(host);
        if let Some(at) = self.app_hears_at(host, uid) {
            self.queue.push(at, Event::OfPlane { host, life, app: uid, reply: Box::new(reply) });
        }
    }
}

/// Whether the control plane made the connection of itself: two processes of one host have it.
fn is_of_pair(reply: &Reply) -> bool {
    let connection = match reply {
        Reply::Connected { result: Ok(connection), .. } | Reply::Incoming { connection, .. } => connection,
        _ => return false,
    };
    matches!(connection.path, Path::Shm { .. })
}

/// What a process calls its request for a port, so that the answer says which.
pub(super) fn name_of_listen(port: u16, backlog: u32) -> u64 {
    u64::from(backlog) << 16 | u64::from(port)
}

pub(super) fn listen_of(request: u64) -> (u16, u32) {
    (request as u16, (request >> 16) as u32)
}

/// The engine of a host that has the regions.
const _: () = assert!(DATAGRAM_ENGINE == 0, "`of_regions` names the first engine");
