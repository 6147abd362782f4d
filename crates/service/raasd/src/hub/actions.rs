//! What `plane::Daemon` decides, carried out: messages to programs and peers, commands to engines, memory, dials.
//!
//! Owns nothing. It must decide nothing, and carry each action out before the next.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use control::{PeerMessage, Reply};
use dispatch::Command;
use plane::{
    Action, ClientId, DATAGRAM_ENGINE, Handed, LinkCommand, MemoryCommand, ProgramCommand, RegionCommand, Supply,
};
use shm::{ClosedElsewhere, WakeSocket};

use super::Hub;
use super::regions::Wanted;
use crate::client_socket::Outgoing;
use crate::dial::dial;
use crate::direct_socket::{PeerOffer, dial_direct};

/// What decisions need of the system.
pub(super) struct System;

impl Supply<ClosedElsewhere> for System {
    /// Without a random number there is none that proves anything, and the kernel's own would be the fault.
    fn word(&mut self) -> u64 {
        let mut bytes = [0; 8];
        match getrandom::fill(&mut bytes) {
            Ok(()) => u64::from_ne_bytes(bytes),
            Err(error) => panic!("no random number: {error}"),
        }
    }

    fn wake(&mut self) -> Option<(ClosedElsewhere, ClosedElsewhere)> {
        let made = WakeSocket::pair().map(|(a, b)| (a.into_fd().into(), b.into_fd().into()));
        made.inspect_err(|error| tracing::warn!(%error, "no wake socket for two processes")).ok()
    }
}

impl Hub {
    pub(super) fn carry_out(&mut self, action: Action<ClosedElsewhere, OwnedFd>) {
        match action {
            Action::Reply { client, reply, fds } => self.send_shared(client, Outgoing::of_strangers(&reply, fds)),
            Action::Started { to, incoming, from, connected } => self.start_pair((to, &incoming), (from, &connected)),
            Action::Share { client, reply, memory } => self.share_region(client, reply, memory),
            Action::Give { client, connection, slot, socket } => self.give_direct(client, connection, slot, socket),
            Action::Warn { client, words } => {
                if let (Some(left_out), Some(party)) = (self.may_log(), self.daemon.party(client)) {
                    tracing::warn!(pid = party.pid, uid = party.uid, left_out, "a program: {words}");
                }
            }
            Action::Attach { client, rights, brought } => self.attach(client, &rights, brought),
            Action::Rights { client, rights } => self.tell_rights(client, &rights),
            Action::Welcome { client } => self.on_welcome(client),
            Action::Refused { client, reason, words } => self.refuse(client, reason, &words),
            Action::Detach { client, reason, words } => self.detach(client, reason, &words),
            Action::Program { engine, client, command } => self.command_program(engine, client, command),
            Action::Lane { engine, lane, command } => self.command(engine, Command::Lane { lane, command }),
            Action::ResetLane { engine, client, request, peer } => {
                self.command(engine, Command::ResetLane { client, request, peer });
            }
            Action::AskRoute { peer, number, lane, route } => {
                self.command(lane, Command::StreamOfRoute { peer, number, route });
            }
            Action::Region(command) => {
                let memory = match command {
                    RegionCommand::Grant { region, register: Some(_), .. } => Some(self.regions.map(region, false)),
                    _ => None,
                };
                self.command(DATAGRAM_ENGINE, Command::Region { command, memory });
            }
            Action::Memory(command) => self.on_memory(command),
            Action::Link(command) => self.on_link_command(command),
            Action::DialDirect { peer, number, token, connection } => {
                let offer = PeerOffer { peer, number, token, connection };
                self.dial_tasks.spawn(dial_direct(Arc::clone(&self.link_context), offer));
            }
        }
    }

    fn on_memory(&mut self, command: MemoryCommand) {
        match command {
            MemoryCommand::Make { region, bytes, huge_pages } => {
                if let Some(made) = self.regions.make(Wanted { region, bytes, huge_pages }) {
                    self.on_region_made(made);
                }
            }
            MemoryCommand::Use { region } => self.regions.use_newest(region),
            MemoryCommand::Drop { region } => {
                self.forget_kept(region);
                self.regions.forget(region);
            }
            MemoryCommand::Keep { region, kept } => self.keep_region(region, kept),
            MemoryCommand::ForgetKept { region } => self.forget_kept(region),
            MemoryCommand::Stamp { word, value } => self.regions.stamp(word, value),
        }
    }

    fn on_link_command(&mut self, command: LinkCommand) {
        match command {
            LinkCommand::Dial { link, peer, deadline, ways } => {
                let task = dial(Arc::clone(&self.link_context), link, peer, deadline, ways);
                self.dials.insert(link, self.dial_tasks.spawn(task));
            }
            LinkCommand::CancelDial { link } => {
                if let Some(task) = self.dials.remove(&link) {
                    task.abort();
                }
            }
            LinkCommand::Send { link, message } => self.send_to_peer(link, message),
            LinkCommand::Close { link, reason, detail } => {
                if let Some(queue) = self.links.remove(&link) {
                    queue.close(PeerMessage::Bye { reason, detail });
                }
            }
        }
    }

    fn command_program(&mut self, engine: u32, client: ClientId, command: ProgramCommand) {
        if let Some(app) = self.names.app(client, engine) {
            let memory = match command {
                ProgramCommand::AttachRegion { region, older, .. } => Some(self.regions.map(region, older)),
                ProgramCommand::WriteRegion { grant, .. } => Some(self.regions.map(grant.region, false)),
                _ => None,
            };
            self.command(engine, Command::Program { app, command, memory });
        }
    }

    /// Of a connection between two programs the one that listens hears first.
    fn start_pair(&mut self, (to, incoming): (ClientId, &Reply), (from, connected): (ClientId, &Reply)) {
        let connected = Outgoing::new(connected, Vec::new());
        let next = self.clients.get(&from).map(|client| client.out.later(connected)).transpose();
        let next = next.unwrap_or_else(|why| {
            self.on_unsent(from, why);
            None
        });
        self.send_shared(to, Outgoing::before(incoming, next));
    }

    fn share_region(&mut self, client: ClientId, reply: Reply, memory: Handed) {
        match self.regions.hand_out(memory) {
            Ok(fds) => self.send_shared(client, Outgoing::shared(&reply, fds)),
            // Most likely the daemon is at its limit of them.
            Err(error) => {
                tracing::warn!(%error, "a region's memory cannot be handed out");
                self.daemon.on_not_shared(client, reply, error.to_string());
            }
        }
    }
}
