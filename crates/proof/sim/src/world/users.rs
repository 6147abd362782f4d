//! Programs that use regions of other hosts, by the shipped directories of the daemons.
//!
//! Owns what such a program asks its daemon for, and when it looks at its rings. It must never tell a program anything
//! that its daemon or its engine did not say.

use std::collections::BTreeMap;
use std::time::Duration;

use control::{OpenedRegion, RegionAccess, RegionPath, RegionRefusal, Reply, Request};
use engine::{AppId, Attach, OperationsOpen, TenantPlace};
use plane::ClientId;
use rand::RngExt;
use rand::rngs::StdRng;
use shm::{Session, SessionShape};
use verbs::{Region, Time};

use super::owners::{Left, NAME, Owner};
use super::regions::of_regions;
use super::{Event, World};
use crate::address::{At, address};
use crate::host::Driven;
use crate::regions::{Shared, UID};
use crate::user::{Opened, User};

/// Longest pause between two looks of a program.
const GAP_MAX: Duration = Duration::from_millis(20);
/// Slots of a program's session.
const SLOTS: u32 = 64;
/// Numbers of their queues, beyond those that the control plane gives.
const QUEUES: u64 = 1 << 40;
/// What the daemons call them, beyond the numbers of applications.
const CLIENTS: u64 = 1 << 40;

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
    /// By plan.
    live: BTreeMap<usize, User>,
    done: BTreeMap<usize, u32>,
    pub(super) is_over: bool,
}

impl Users {
    pub(super) fn new(rng: StdRng) -> Self {
        let (sockets, owners, live, done) = Default::default();
        Self { rng, last_client: CLIENTS, sockets, owners, left: Vec::new(), live, done, is_over: false }
    }

    pub(super) fn next_client(&mut self) -> ClientId {
        self.last_client += 1;
        let client = ClientId(self.last_client);
        self.sockets.insert(client, (Time::ZERO, Time::ZERO));
        client
    }

    /// When a message to the program arrives, which is not there before `at`. None: the program is gone.
    pub(super) fn hears_at(&mut self, client: ClientId, at: Time) -> Option<Time> {
        let (_, heard) = self.sockets.get_mut(&client)?;
        *heard = at.max(*heard);
        Some(*heard)
    }
}

impl World {
    fn region_engine(&mut self, host: usize) -> Option<&mut Driven> {
        self.driven(of_regions(host))
    }

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
    pub(super) fn on_region_reply(
        &mut self,
        host: usize,
        life: u32,
        client: ClientId,
        (reply, memory): (Reply, Option<Shared>),
    ) {
        if self.life(host) != life || !self.users.sockets.contains_key(&client) {
            return;
        }
        self.trace.text(self.now, || format!("program {client:?} on {host} hears {reply:?}"));
        if self.users.owners.get(&host).is_some_and(|owner| owner.client == client) {
            return self.on_owner_reply(host, client, reply, memory);
        }
        let found = self.users.live.iter().find(|(_, user)| user.client == client).map(|(user, _)| *user);
        if let Some(user) = found {
            self.on_user_reply(host, user, reply);
        }
    }

    /// A host starts: its region is there, and its programs come.
    pub(super) fn start_users(&mut self, host: usize) {
        if self.plan.users.is_empty() || self.users.is_over {
            return;
        }
        self.start_owner(host);
        let life = self.life(host);
        for user in 0..self.plan.users.len() {
            if self.plan.users[user].host == host {
                let at = self.now.max(self.plan.users[user].start);
                self.queue.push(at, Event::User { host, life, user });
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

    // ---- a program

    pub(super) fn on_user(&mut self, host: usize, life: u32, user: usize) {
        if self.life(host) != life || self.up(host).is_none() || self.users.is_over {
            return;
        }
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::User { host, life, user });
        }
        if !self.users.live.contains_key(&user) {
            self.attach_user(host, user);
        }
        let Some(mut live) = self.users.live.remove(&user) else { return };
        let plan = self.plan.users[user].clone();
        let mut has_news = live.collect(&mut self.checks.histories).unwrap_or_else(|what| {
            self.checks.fail(self.now, "operations", format!("program {user} on host {host}: {what}"));
            false
        });
        let may_go_on = !self.quiet;
        if live.opened.is_none() && live.asked.is_none() && live.has_queue() && may_go_on {
            self.open_for(host, &mut live, plan.is_leased);
        }
        for open in std::mem::take(&mut live.over) {
            self.ask_of_regions(host, live.client, Request::RegionClose { open, delete: false });
        }
        let count = if may_go_on { plan.count } else { 0 };
        has_news |= live.submit(plan.depth, count, &mut self.users.rng, &mut self.checks.histories);
        if has_news {
            // Also because room was made.
            live.ring();
            self.wake_engine(of_regions(host));
        }
        live.idle_looks = if has_news { 0 } else { live.idle_looks + 1 };
        let (looks, is_done) = (live.idle_looks, live.in_flight() == 0 && live.done >= count);
        let dies = may_go_on && plan.dies_after.is_some_and(|after| live.done >= after && live.in_flight() > 0);
        if dies {
            self.users.done.insert(user, live.done);
            self.end_user(host, &live);
            self.plan.users[user].dies_after = None;
        } else {
            self.users.live.insert(user, live);
        }
        if is_done && !dies {
            return;
        }
        // A program whose host or peer stands still looks more and more rarely.
        let gap = 1 + self.users.rng.random_range(0..=plan.gap_max.as_nanos() as u64);
        let gap = Duration::from_nanos(gap << looks.min(10)).min(GAP_MAX);
        self.queue.push(self.now + gap, Event::User { host, life, user });
    }

    fn attach_user(&mut self, host: usize, user: usize) {
        let now = self.now;
        let done = self.users.done.get(&user).copied().unwrap_or(0);
        let Some(driven) = self.region_engine(host) else { return };
        let shape = SessionShape::for_engines(1, SLOTS);
        let session = Region::anonymous(Session::bytes(shape) as usize).ok();
        let Some(session) = session.and_then(|region| Session::format(region, shape, 1).ok()) else { return };
        let attach = Attach {
            pid: 1,
            uid: UID,
            name: format!("user{user}"),
            session: session.clone(),
            connect_to: None,
            tenant: TenantPlace::default(),
        };
        // The table may be full of those that died.
        let Ok(app) = driven.engine.attach(attach) else { return };
        driven.engine.open_operations(app, 1, OperationsOpen { queue: QUEUES + user as u64, ring_bytes: 4096 });
        self.trace.note(now, "program {} on {} uses regions", &[user as u64, host as u64]);
        let client = self.users.next_client();
        if let Some(regions) = self.regions(host) {
            regions.attach(client, Some(app));
        }
        let mut made = User::new(client, app, session);
        made.done = done;
        self.users.live.insert(user, made);
        self.after_command(of_regions(host));
    }

    /// A program dies, or leaves; its daemon hears of it.
    fn end_user(&mut self, host: usize, live: &User) {
        self.users.sockets.remove(&live.client);
        self.leave_regions(host, live.client);
    }

    /// Asks for the region of another host, whose key its owner has told everybody.
    fn open_for(&mut self, host: usize, live: &mut User, is_leased: bool) {
        let owner = self.users.rng.random_range(0..self.hosts.len());
        let Some(key) = self.users.owners.get(&owner).filter(|_| owner != host).map(|owner| owner.key) else { return };
        let request = live.next_request();
        live.asked = Some(request);
        let (name, access) = (NAME.into(), RegionAccess::ALL);
        let (lease, leased_lane) = (None, is_leased);
        let open = Request::RegionOpen { request, host: address(owner), name, key, access, lease, leased_lane };
        self.ask_of_regions(host, live.client, open);
    }

    fn on_user_reply(&mut self, host: usize, user: usize, reply: Reply) {
        let Some(live) = self.users.live.get_mut(&user) else { return };
        match reply {
            Reply::RegionOpened { request, result } if live.asked == Some(request) => {
                live.asked = None;
                match result {
                    Ok(OpenedRegion { open, info, path: RegionPath::Remote { handle } }) => {
                        let (region, epoch) = (info.line.id, info.epoch);
                        live.opened = Some(Opened { open, handle, region, epoch });
                    }
                    Ok(opened) => {
                        let detail = format!("program {user} on host {host} got {opened:?} of another host");
                        self.checks.fail(self.now, "operations", detail);
                    }
                    Err(why) => self.judge_refusal(host, &why),
                }
            }
            Reply::RegionEnded { open, .. } => _ = live.opened.take_if(|opened| opened.open == open),
            _ => {}
        }
    }

    /// A refusal must be one that can be: the owner may not be there yet, its key be another one by now, or the way to it
    /// be lost.
    fn judge_refusal(&mut self, host: usize, why: &RegionRefusal) {
        let is_explained = matches!(
            why,
            RegionRefusal::Unknown
                | RegionRefusal::Busy
                | RegionRefusal::WrongKey
                | RegionRefusal::OwnerGone
                | RegionRefusal::Revoked { .. }
                | RegionRefusal::TooMany { .. }
                | RegionRefusal::Reason(_)
        );
        if !is_explained {
            self.checks.fail(self.now, "unexplained", format!("a program on host {host} gets no region: {why}"));
        }
    }

    // ---- what the engine says

    /// Whether an event is about one of these programs, or a region.
    pub(super) fn on_user_event(&mut self, at: At, event: &engine::Event) -> bool {
        let host = at.host;
        if at != of_regions(host) {
            return false;
        }
        let of = |users: &Users, app: AppId, plans: &[crate::plan::UserPlan]| {
            users.live.iter().find(|(user, u)| u.app == app && plans[**user].host == host).map(|(user, _)| *user)
        };
        let is_process = |world: &mut Self, app: &AppId| world.driven(at).is_some_and(|d| d.uids.contains_key(app));
        match event {
            engine::Event::ChunksWanted { app, .. }
            | engine::Event::Connected { app, .. }
            | engine::Event::SocketOver { app, .. }
            | engine::Event::AppGone { app }
            | engine::Event::ChunkGone { app, .. }
                if is_process(self, app) =>
            {
                return false;
            }
            engine::Event::ChunksWanted { app, size, rings } => {
                let user = of(&self.users, *app, &self.plan.users);
                let bytes = size.grown as usize * *rings as usize;
                let (Ok(tx), Ok(rx)) = (Region::anonymous(bytes), Region::anonymous(bytes)) else { return true };
                let Some(running) = self.up(host) else { return true };
                let first = running.next_chunk;
                running.next_chunk += 2;
                let Some(driven) = running.engine(at.engine) else { return true };
                let (engine, tap) = (&mut driven.engine, &mut driven.tap);
                let _ = engine.add_chunk(tap, *app, first + 1, control::ChunkKind::Rx, *size, rx.clone());
                let _ = engine.add_chunk(tap, *app, first, control::ChunkKind::Tx, *size, tx.clone());
                if let Some(user) = user.and_then(|user| self.users.live.get_mut(&user)) {
                    user.chunks.extend([(first, tx), (first + 1, rx)]);
                }
                self.after_command(of_regions(host));
            }
            engine::Event::Connected { app, result, .. } => {
                let user = of(&self.users, *app, &self.plan.users);
                if let (Some(user), Ok(connection)) = (user.and_then(|u| self.users.live.get_mut(&u)), result) {
                    let _ = user.on_queue(connection);
                }
            }
            engine::Event::SocketOver { .. } | engine::Event::AppGone { .. } | engine::Event::ChunkGone { .. } => {}
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
