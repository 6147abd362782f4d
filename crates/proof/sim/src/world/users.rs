//! Programs that use regions and owners of regions, as one table, and their way over the deaths of daemons.
//!
//! Owns which programs there are, and the order of what they and their daemons say to each other. What a daemon said before
//! it was killed is heard all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use control::{Reply, Request};
use engine::AppId;
use plane::ClientId;
use rand::rngs::StdRng;
use verbs::{Region, Time};

use super::owners::{Left, Owner};
use super::regions::of_regions;
use super::{Event, World};
use crate::address::At;
use crate::links::Input;
use crate::regions::Shared;
use crate::user::User;

/// What the daemons call them, beyond the numbers of applications.
const CLIENTS: u64 = 1 << 40;
/// Longest pause before a program finds the next daemon.
const RETURN_MAX: Duration = Duration::from_millis(160);
/// Longest time until a program looks again when its daemon was killed.
const LOOK_MAX: Duration = Duration::from_millis(2);

/// Whether it is a program of this table.
pub(super) fn is_user(client: ClientId) -> bool {
    client.0 > CLIENTS
}

/// All of them.
#[derive(Debug)]
pub(super) struct Users {
    pub(super) rng: StdRng,
    last_client: u64,
    /// Programs that are there, and when the last message to the daemon, and to the program, arrives.
    sockets: BTreeMap<ClientId, (Time, Time)>,
    /// By host.
    pub(super) owners: BTreeMap<usize, Owner>,
    pub(super) left: Vec<Left>,
    /// Revokes of a region for which its owner has moved it, by what the region is.
    pub(super) revokes: BTreeMap<u64, u64>,
    /// By plan.
    pub(super) live: BTreeMap<usize, User>,
    pub(super) done: BTreeMap<usize, u32>,
    pub(super) is_over: bool,
}

impl Users {
    pub(super) fn new(rng: StdRng) -> Self {
        let (sockets, owners, revokes, live, done) = Default::default();
        Self { rng, last_client: CLIENTS, sockets, owners, left: Vec::new(), revokes, live, done, is_over: false }
    }

    pub(super) fn next_client(&mut self) -> ClientId {
        self.last_client += 1;
        let client = ClientId(self.last_client);
        self.sockets.insert(client, (Time::ZERO, Time::ZERO));
        client
    }

    /// The program hears nothing more that is said to it by this name.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.sockets.remove(&client);
    }

    /// When a message to the program arrives, which is not there before `at`. None: the program is gone.
    pub(super) fn hears_at(&mut self, client: ClientId, at: Time) -> Option<Time> {
        let (_, heard) = self.sockets.get_mut(&client)?;
        *heard = at.max(*heard);
        Some(*heard)
    }
}

impl World {
    // ---- messages

    /// A program asks its daemon for something.
    pub(super) fn ask_of_regions(&mut self, host: usize, client: ClientId, request: Request) {
        let delay = self.plan.daemon_delay_max;
        let at = self.now + self.some(delay);
        let life = self.life(host);
        let Some((told, _)) = self.users.sockets.get_mut(&client) else { return };
        *told = at.max(*told);
        let at = *told;
        self.queue.push(at, Event::ToRegions { host, life, client, request: Box::new(request) });
    }

    /// A program hears its daemon.
    pub(super) fn on_region_reply(&mut self, host: usize, client: ClientId, (reply, memory): (Reply, Option<Shared>)) {
        if !self.users.sockets.contains_key(&client) {
            return;
        }
        self.trace.text(self.now, || format!("program {client:?} on {host} hears {reply:?}"));
        if self.users.owners.get(&host).is_some_and(|owner| owner.client == client) {
            return self.on_owner_reply(host, reply, memory);
        }
        if self.meetings.has(client) {
            return self.on_meeting_reply(host, client, reply);
        }
        let found = self.users.live.iter().find(|(_, user)| user.client == client).map(|(user, _)| *user);
        if let Some(user) = found {
            self.on_user_reply(host, user, reply, memory);
        }
    }

    // ---- daemons come and go

    /// When a program finds the next daemon: it has heard all that the one before said.
    pub(super) fn return_at(&mut self, client: ClientId) -> Time {
        let at = self.now + self.some(RETURN_MAX);
        let heard = self.users.sockets.get(&client).map_or(Time::ZERO, |(_, heard)| *heard);
        at.max(heard + Duration::from_nanos(1))
    }

    /// A daemon starts: the host's region is made or comes back, and so do its programs.
    pub(super) fn start_users(&mut self, host: usize) {
        if self.plan.users.is_empty() || self.users.is_over {
            return;
        }
        self.start_owner(host);
        let life = self.life(host);
        for user in 0..self.plan.users.len() {
            if self.plan.users[user].host != host {
                continue;
            }
            if let Some(client) = self.users.live.get(&user).map(|live| live.client) {
                let at = self.return_at(client);
                self.users.live.get_mut(&user).into_iter().for_each(|live| live.return_at = at);
            }
            self.look_soon(host, life, user);
        }
    }

    fn look_soon(&mut self, host: usize, life: u32, user: usize) {
        let at = self.now + self.some(LOOK_MAX);
        self.queue.push(at.max(self.plan.users[user].start), Event::User { host, life, user });
    }

    /// The daemon of a host is killed: its programs live, and find it out by and by.
    pub(super) fn part_users(&mut self, host: usize) {
        let life = self.life(host);
        for user in self.users.live.keys().copied().collect::<Vec<_>>() {
            if self.plan.users[user].host == host {
                self.look_soon(host, life, user);
            }
        }
    }

    /// A host is dead: its region and its programs are gone.
    pub(super) fn end_users(&mut self, host: usize) {
        if let Some(owner) = self.users.owners.remove(&host) {
            self.users.sockets.remove(&owner.client);
        }
        let plans = &self.plan.users;
        let (done, sockets) = (&mut self.users.done, &mut self.users.sockets);
        self.users.live.retain(|user, live| {
            let stays = plans[*user].host != host;
            if !stays {
                done.insert(*user, live.done);
                sockets.remove(&live.client);
            }
            stays
        });
    }

    // ---- what the engine says

    /// Whether an event is about one of these programs.
    pub(super) fn on_user_event(&mut self, at: At, event: &engine::Event) -> bool {
        let host = at.host;
        if at != of_regions(host) {
            return false;
        }
        // One that has not come back has the name that the daemon before gave it.
        let life = self.life(host);
        let is_it =
            |user: usize, u: &User, app| u.app == Some(app) && u.life == life && self.plan.users[user].host == host;
        let of = |app: AppId| self.users.live.iter().find(|(user, u)| is_it(**user, u, app)).map(|(user, _)| *user);
        let of_user = match event {
            engine::Event::ChunksWanted { app, .. } | engine::Event::Connected { app, .. } => of(*app),
            _ => None,
        };
        let is_of_user = |world: &mut Self, app: &AppId| {
            let client = world.up(host).and_then(|running| running.control.names.program(at.engine, *app));
            client.is_none_or(is_user)
        };
        match event {
            engine::Event::ChunksWanted { app, .. }
            | engine::Event::Connected { app, .. }
            | engine::Event::SocketOver { app, .. }
            | engine::Event::AppGone { app }
            | engine::Event::ChunkGone { app, .. }
                if !is_of_user(self, app) =>
            {
                return false;
            }
            engine::Event::ChunksWanted { app, size, rings } => {
                let bytes = size.grown as usize * *rings as usize;
                let (Ok(tx), Ok(rx)) = (Region::anonymous(bytes), Region::anonymous(bytes)) else { return true };
                let Some(running) = self.up(host) else { return true };
                let first = running.next_chunk;
                running.next_chunk += 2;
                let Some(driven) = running.engine(at.engine) else { return true };
                let (engine, tap) = (&mut driven.engine, &mut driven.tap);
                let _ = engine.add_chunk(tap, *app, first + 1, control::ChunkKind::Rx, *size, rx.clone());
                let _ = engine.add_chunk(tap, *app, first, control::ChunkKind::Tx, *size, tx.clone());
                if let Some(user) = of_user.and_then(|user| self.users.live.get_mut(&user)) {
                    user.chunks.extend([(first, tx), (first + 1, rx)]);
                }
                self.after_command(of_regions(host));
            }
            engine::Event::Connected { result, .. } => {
                if let (Some(user), Ok(connection)) = (of_user.and_then(|u| self.users.live.get_mut(&u)), result) {
                    let _ = user.on_queue(connection);
                }
            }
            engine::Event::AppGone { app } => {
                let client = self.up(host).and_then(|running| running.control.names.program(at.engine, *app));
                if let Some(client) = client {
                    self.tell_plane(host, Input::ProgramGone { client, engine: at.engine });
                }
            }
            engine::Event::SocketOver { .. } | engine::Event::ChunkGone { .. } | engine::Event::TakenBack { .. } => {}
            _ => return false,
        }
        true
    }

    // ---- the end

    /// Whether no program waits for an operation.
    pub(super) fn users_idle(&self) -> bool {
        self.users.live.values().all(|user| user.in_flight() == 0)
    }

    /// Operations that programs wait for.
    pub(super) fn users_left(&self) -> usize {
        self.users.live.values().map(User::in_flight).sum()
    }

    /// The programs end, and the owners take their regions back.
    pub(super) fn finish_users(&mut self) {
        self.users.is_over = true;
        for (user, live) in std::mem::take(&mut self.users.live) {
            let host = self.plan.users[user].host;
            self.end_user(host, &live);
        }
        self.finish_owners();
    }

    /// All regions are back, and their histories are judged.
    pub(super) fn judge_users(&mut self) {
        self.judge_owners();
        for wrong in self.checks.histories.judge() {
            self.checks.fail(self.now, "linearizability", wrong);
        }
    }
}
