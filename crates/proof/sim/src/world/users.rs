//! Programs that use regions and owners of regions, as one table, and their way over the deaths of daemons.
//!
//! Owns which programs there are, and the order of what they and their daemons say to each other. What a daemon said before
//! it was killed is heard all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use control::{Reply, Request};
use engine::SlotSet;
use plane::ClientId;
use rand::rngs::StdRng;
use shm::Session;
use verbs::{Region, Time};

use super::owners::{Left, Lent, Near, Owner};
use super::{Event, World};
use crate::regions::Shared;
use crate::user::{Ended, User};

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
    /// Of programs that are on their way to their daemon, with the slots in use.
    pub(super) sessions: BTreeMap<ClientId, (Session, SlotSet)>,
    /// By host.
    pub(super) owners: BTreeMap<usize, Owner>,
    pub(super) left: Vec<Left>,
    pub(super) lent: Vec<Lent>,
    pub(super) near: Near,
    pub(super) ended: Ended,
    /// By plan.
    pub(super) live: BTreeMap<usize, User>,
    pub(super) done: BTreeMap<usize, u32>,
    pub(super) is_over: bool,
}

impl Users {
    pub(super) fn new(rng: StdRng) -> Self {
        let (sockets, sessions, owners, lent, ended, live, done) = Default::default();
        Self {
            rng,
            last_client: CLIENTS,
            sockets,
            sessions,
            owners,
            left: Vec::new(),
            lent,
            near: Near::default(),
            ended,
            live,
            done,
            is_over: false,
        }
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
        self.sessions.remove(&client);
        self.near.forget(client);
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
                self.users
                    .live
                    .get_mut(&user)
                    .into_iter()
                    .for_each(|live| (live.return_at, live.is_entering) = (at, false));
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
        self.forget_leases(host);
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

    /// A program has its session.
    pub(super) fn welcome_user(&mut self, host: usize, client: ClientId) {
        if self.meetings.has(client) {
            return self.ask_to_meet(host, client);
        }
        let life = self.life(host);
        let Some((user, live)) = self.users.live.iter_mut().find(|(_, user)| user.client == client) else { return };
        let user = *user;
        (live.life, live.is_entering) = (life, false);
        let request = live.next_request();
        self.trace.note(self.now, "program {} on {} uses regions", &[user as u64, host as u64]);
        self.ask_of_regions(host, client, Request::OpenOperations { request, ring_bytes: 4096 });
    }

    /// A program gets no session: the tables may be full of those that died. Another one takes its place.
    pub(super) fn refuse_user(&mut self, host: usize, client: ClientId) {
        self.leave(host, client);
        self.users.forget(client);
        self.meetings.remove(client);
        let user = self.users.live.iter().find(|(_, user)| user.client == client).map(|(user, _)| *user);
        if let Some((user, live)) = user.and_then(|user| self.users.live.remove_entry(&user)) {
            self.users.done.insert(user, live.done);
        }
    }

    /// Ring memory of one of these programs.
    pub(super) fn give_chunks(&mut self, client: ClientId, chunks: [(u32, Region); 2]) {
        let user = self.users.live.values_mut().find(|user| user.client == client);
        user.into_iter().for_each(|user| user.chunks.extend(chunks.clone()));
    }

    // ---- the end

    /// Whether no program waits for an operation.
    pub(super) fn users_idle(&self) -> bool {
        self.users.live.values().all(|user| user.in_flight() == 0)
    }

    /// Engines that have local memory of operations whose programs gave it back, or lost it.
    pub(super) fn too_much_local_memory(&self) -> Option<String> {
        (0..self.hosts.len()).find_map(|host| {
            self.hosts[host].running.as_ref()?;
            let has = self.counter(host, "regions_local");
            let of_host = self.users.live.iter().filter(|(user, _)| self.plan.users[**user].host == host);
            let may: u64 = of_host.map(|(_, live)| live.local_memory_max()).sum();
            (has > may).then(|| format!("host {host} has {has} local memories of programs, which use {may}"))
        })
    }

    /// Operations that programs wait for.
    pub(super) fn users_left(&self) -> usize {
        self.users.live.values().map(User::in_flight).sum()
    }

    /// The programs end; the owners then take their regions back.
    pub(super) fn finish_users(&mut self) {
        self.users.is_over = true;
        for (user, live) in std::mem::take(&mut self.users.live) {
            let host = self.plan.users[user].host;
            self.end_user(host, &live);
        }
    }

    /// All regions are back, and their histories are judged.
    pub(super) fn judge_users(&mut self) {
        self.judge_owners();
        for wrong in self.checks.histories.judge() {
            self.checks.fail(self.now, "linearizability", wrong);
        }
    }
}
