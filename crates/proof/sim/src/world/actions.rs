//! What the shipped `plane::Daemon` decides, carried out as raasd's hub does.
//!
//! Owns how long everything takes. It must decide nothing.

use control::{PeerMessage, Reply};
use plane::{Action, ClientId, DATAGRAM_ENGINE, ProgramCommand, Supply};
use rand::RngExt;
use rand::rngs::StdRng;

use super::event::{Command, PeerOffer};
use super::regions::of_regions;
use super::users::is_user;
use super::{Event, World};
use crate::address::At;
use crate::app;
use crate::direct::{EndOwner, SimSocket};

/// Random words of the seed. Each wake socket can be made.
struct Seeded<'a>(&'a mut StdRng);

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
            Action::AskRoute { peer, number, lane, route } => {
                self.command(At { host, engine: lane }, Command::AskRoute { peer, number, route });
            }
            Action::Grant { region, epoch, register, peer, open, lane } => {
                let Some(regions) = self.regions(host) else { return };
                let memory = register.and_then(|access| Some((regions.memory(region)?, access)));
                self.command(of_regions(host), Command::Grant { region, epoch, memory, peer, open, lane });
            }
            Action::Region(command) => self.command(of_regions(host), Command::Region(command)),
            Action::Make { region, bytes, .. } => {
                let now = self.now;
                let Some(running) = self.up(host) else { return };
                let made = running.control.regions.make(region, bytes);
                running.control.daemon.on_made(now, region, made);
            }
            Action::Use { .. } => {}
            Action::Drop { region } => self.regions(host).into_iter().for_each(|regions| regions.forget(region)),
            Action::Stamp { word, value } => {
                self.regions(host).into_iter().for_each(|regions| regions.stamp(word, value));
            }
            Action::Dial { link, peer, deadline, ways } => self.start_dial(host, link, (peer, ways), deadline),
            Action::CancelDial { link } => {
                if self.link(host, link).is_some_and(|link| !link.is_known) {
                    self.end_link(host, link);
                }
            }
            Action::Send { link, message } => {
                if self.link(host, link).is_some_and(|link| link.is_known) {
                    self.say(host, link, message);
                }
            }
            Action::Close { link, reason, detail } => {
                if self.link(host, link).is_some_and(|link| link.is_known) {
                    self.say(host, link, PeerMessage::Bye { reason, detail });
                    self.end_link(host, link);
                }
            }
            Action::DialDirect { peer, number, token, connection } => {
                self.dial_direct(host, PeerOffer { peer, number, token, connection });
            }
            action @ (Action::Keep { .. } | Action::Attach { .. } | Action::NoRow { .. }) => {
                self.checks.fail(self.now, "set-up", format!("host {host}: {action:?}, for which no program asks"));
            }
        }
    }

    fn command_program(&mut self, host: usize, engine: u32, client: ClientId, command: ProgramCommand) {
        let Some(running) = self.up(host) else { return };
        match command {
            ProgramCommand::Connect { connection: number, .. } | ProgramCommand::Bind { socket: number, .. } => {
                running.control.numbers.insert(number);
            }
            _ => {}
        }
        if let Some(app) = running.control.names.app(client, engine) {
            self.command(At { host, engine }, Command::Program { app, command });
        }
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
                let words = [*request, uid.into(), reason.code().into()];
                self.trace.note(self.now, "connect {} of {} is refused, {}", &words);
            }
            _ => {}
        }
        let life = self.life(host);
        if let Some(at) = self.app_hears_at(host, uid) {
            self.queue.push(at, Event::OfPlane { host, life, app: uid, reply: Box::new(reply) });
        }
    }
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
