//! What a program does that uses regions: it attaches, opens a region of any host, works on it, and goes on with the next
//! daemon.
//!
//! Owns when it does that. It must never tell a program anything that its daemon, its engine or its memory did not say.

use std::time::Duration;

use control::{OpenedRegion, RegionAccess, RegionPath, RegionRefusal, Reply, Request};
use raas_core::{RegionIdentity, RegionMade, RegionPlace, is_loss, may_change};
use rand::RngExt;
use shm::Session;
use verbs::Region;

use super::regions::of_regions;
use super::{Event, World};
use crate::address::address;
use crate::plan::UserPlan;
use crate::regions::{NAME, Shared, UID};
use crate::user::{Opened, Origin, Reach, Taking, User};

/// Longest pause between two looks of a program, unless its plan says a longer one.
const GAP_MAX: Duration = Duration::from_millis(20);

impl World {
    /// A program looks at what is new, and goes on.
    pub(super) fn on_user(&mut self, host: usize, life: u32, user: usize) {
        if self.life(host) != life || self.users.is_over {
            return;
        }
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::User { host, life, user });
        }
        let is_up = self.up(host).is_some();
        if is_up && !self.users.live.contains_key(&user) {
            self.attach_user(host, user);
        }
        let Some(mut live) = self.users.live.remove(&user) else { return };
        let plan = self.plan.users[user].clone();
        let mut has_news = self.look(host, user, &mut live);
        let finds = is_up && live.life != life && !live.is_entering && self.now >= live.return_at;
        if finds && !self.return_user(host, user, &mut live) {
            // As if it had died: another one takes its place.
            self.users.done.insert(user, live.done);
            self.users.forget(live.client);
            return self.queue.push(self.now + GAP_MAX, Event::User { host, life, user });
        }
        let may_go_on = !self.quiet;
        if live.life == life {
            if live.opened.is_none() && live.asked.is_none() && may_go_on {
                self.ask_for_region(host, &mut live, &plan);
            }
            self.tend_borrowed(host, &mut live);
            if plan.borrows && may_go_on {
                self.come_near(host, live.client, || live.next_request());
            }
            if let Some(local) = plan.local.filter(|_| may_go_on) {
                let hosts = self.users.owners.get(&host).map(|owner| (address(host), owner.key()));
                let request = live.ask_for_local(local, user, hosts, &mut self.users.rng);
                request.into_iter().for_each(|request| self.ask_of_regions(host, live.client, request));
            }
            for open in std::mem::take(&mut live.over) {
                self.ask_of_regions(host, live.client, Request::RegionClose { open, delete: false });
            }
            has_news |= live.close_slots();
        }
        let count = if may_go_on { plan.count } else { 0 };
        let (rng, histories) = (&mut self.users.rng, &mut self.checks.histories);
        has_news |= live.submit((plan.depth, count), &mut self.users.ended, rng, histories);
        if has_news {
            // Also because room was made.
            live.ring();
            self.wake_engine(of_regions(host));
        }
        let stored = live.access(count, &self.users.ended, &mut self.users.rng, &mut self.checks.histories);
        stored.into_iter().for_each(|memory| self.on_stored(&memory));
        live.idle_looks = if has_news { 0 } else { live.idle_looks + 1 };
        let (looks, is_done) = (live.idle_looks, live.is_idle() && live.done >= count && live.life == life);
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
        let gap = Duration::from_nanos(gap << looks.min(10)).min(GAP_MAX.max(plan.gap_max));
        self.queue.push(self.now + gap, Event::User { host, life, user });
    }

    /// What its rings and its memory say: whether there was anything.
    fn look(&mut self, host: usize, user: usize, live: &mut User) -> bool {
        let (now, histories) = (self.now, &mut self.checks.histories);
        let [with_local, by_lease, by_near_lease] = live.counted;
        let looked = live.collect(now, histories).and_then(|has_news| {
            live.look_behind(false, histories)?;
            if live.is_over() || live.is_silent(now) {
                live.over.extend(live.opened.as_ref().map(|opened| opened.open));
                live.end_handle(now, false, histories)?;
            } else if live.is_parted() {
                live.end_handle(now, true, histories)?;
            }
            Ok(has_news)
        });
        self.checks.with_local += live.counted[0] - with_local;
        self.checks.by_lease += live.counted[1] - by_lease;
        self.checks.by_near_lease += live.counted[2] - by_near_lease;
        looked.unwrap_or_else(|what| {
            self.checks.fail(now, "operations", format!("program {user} on host {host}: {what}"));
            false
        })
    }

    /// Whose a program is.
    fn user_of_plan(&self, user: usize) -> u32 {
        UID + user as u32 % self.plan.uids
    }

    fn attach_user(&mut self, host: usize, user: usize) {
        let Some(shape) = self.up(host).map(|running| running.control.shape) else { return };
        let session = Region::anonymous(Session::bytes(shape) as usize).ok();
        let Some(session) = session.and_then(|region| Session::format(region, shape, 1).ok()) else { return };
        let (client, uid) = (self.users.next_client(), self.user_of_plan(user));
        let mut made = User::new(client, session.clone());
        made.done = self.users.done.get(&user).copied().unwrap_or(0);
        self.users.live.insert(user, made);
        if !self.take_program(host, (client, uid), Some(session), None) {
            self.users.live.remove(&user);
            self.users.forget(client);
        }
    }

    /// A program comes back, with its session. False: the daemon does not take it.
    fn return_user(&mut self, host: usize, user: usize, live: &mut User) -> bool {
        let (now, life) = (self.now, self.life(host));
        let closes = self.users.rng.random_bool(0.5);
        let used = match live.part(now, closes, &mut self.checks.histories) {
            Ok(used) => used,
            Err(what) => {
                self.checks.fail(now, "operations", format!("program {user} on host {host}: {what}"));
                return false;
            }
        };
        let before = live.client;
        let (client, uid) = (self.users.next_client(), self.user_of_plan(user));
        if let Err(why) = live.on_returning(client, life) {
            self.checks.fail(now, "set-up", format!("program {user} on host {host} brings nothing: {why}"));
            return false;
        }
        let is_taken =
            self.take_program(host, (client, uid), Some(live.session().clone()), Some(used.into_iter().collect()));
        self.users.forget(before);
        if is_taken {
            self.trace.note(now, "program {} on {} comes back", &[user as u64, host as u64]);
        }
        is_taken
    }

    /// A program dies, or leaves; its daemon hears of it.
    pub(super) fn end_user(&mut self, host: usize, live: &User) {
        self.users.forget(live.client);
        self.leave_regions(host, live.client);
    }

    // ---- its region

    /// Asks for the region of before, or for one of any host, whose key its owner has told everybody.
    fn ask_for_region(&mut self, host: usize, live: &mut User, plan: &UserPlan) {
        let now = self.now;
        let borrows = plan.borrows && live.again.is_none() && self.users.rng.random_bool(0.7);
        let lease = if borrows { self.lease_for(host, live.client) } else { None };
        let origin = match (&live.again, lease) {
            (Some(again), _) if again.next > now => return,
            (Some(again), _) => again.origin,
            (None, Some(lease)) => lease,
            (None, None) => {
                let owner = self.users.rng.random_range(0..self.hosts.len());
                // Writers that never meet would fence nobody.
                let owner = if self.plan.has_writers && self.users.rng.random_bool(0.7) { 0 } else { owner };
                let is_leased = plan.is_leased && owner != host;
                let Some(key) = self.users.owners.get(&owner).map(|owner| owner.key()) else { return };
                let by = self.draw_taking(owner);
                Origin { owner, key, is_leased, lease: None, is_shut: false, by }
            }
        };
        let takes = matches!(origin.by, Taking::Term(_));
        if (origin.owner != host || takes) && !live.has_queue() {
            return;
        }
        let Origin { owner, key, is_leased: leased_lane, lease, by, .. } = origin;
        let request = live.next_request();
        live.asked = Some((request, origin));
        let (host_of, name) = (address(owner), NAME.into());
        let access = if by == Taking::All { RegionAccess::ALL } else { RegionAccess::READ };
        let open = match by {
            Taking::Term(term) => Request::RegionTakeOver { request, host: host_of, name, key, term },
            _ => Request::RegionOpen { request, host: host_of, name, key, access, lease, leased_lane },
        };
        self.ask_of_regions(host, live.client, open);
    }

    /// What a program wants of a host's region.
    fn draw_taking(&mut self, owner: usize) -> Taking {
        let rng = &mut self.users.rng;
        match self.plan.has_writers {
            false => Taking::All,
            true if rng.random_ratio(1, 3) => Taking::Reads,
            true => Taking::Term(self.users.ended.writers.draw_term(owner, rng)),
        }
    }

    pub(super) fn on_user_reply(&mut self, host: usize, user: usize, reply: Reply, memory: Option<Shared>) {
        let now = self.now;
        let Some(client) = self.users.live.get(&user).map(|live| live.client) else { return };
        if self.hear_of_near(host, client, &reply) {
            return;
        }
        let Some(live) = self.users.live.get_mut(&user) else { return };
        match live.hear_of_local(&reply, memory.as_ref()) {
            Ok(false) => {}
            Ok(true) => return,
            Err(why) => return self.checks.fail(now, "local memory", format!("program {user} on host {host}: {why}")),
        }
        match reply {
            Reply::RegionOpened { request, result } => {
                let Some((_, origin)) = live.asked.take_if(|(asked, _)| *asked == request) else { return };
                match result {
                    Err(RegionRefusal::LeaseOver { lease }) if origin.lease == Some(lease) => {}
                    Ok(opened) => self.on_opened(host, user, origin, opened, memory),
                    Err(why) => self.on_not_opened(host, user, &why),
                }
            }
            Reply::Connected { result: Ok(connection), .. } => {
                let _ = live.on_queue(&connection);
            }
            Reply::RegionEnded { open, why } if live.opened.as_ref().is_some_and(|opened| opened.open == open) => {
                let is_broken = matches!(why, RegionRefusal::Reason(reason) if is_loss(reason));
                if let Err(what) = live.end_handle(now, is_broken, &mut self.checks.histories) {
                    self.checks.fail(now, "operations", format!("program {user} on host {host}: {what}"));
                }
            }
            _ => {}
        }
    }

    fn on_opened(
        &mut self,
        host: usize,
        user: usize,
        origin: Origin,
        OpenedRegion { open, info, path }: OpenedRegion,
        memory: Option<Shared>,
    ) {
        let Some(live) = self.users.live.get_mut(&user) else { return };
        let found = RegionIdentity { line: info.line, bytes: info.bytes };
        let reach = match path {
            RegionPath::Remote { handle } if origin.owner != host => Some(Reach::There { handle, epoch: info.epoch }),
            RegionPath::Writer { handle } if origin.owner == host && matches!(origin.by, Taking::Term(_)) => {
                Some(Reach::There { handle, epoch: info.epoch })
            }
            RegionPath::Local { stamp, .. } if origin.owner == host => {
                let made = RegionMade { stamp, epoch: info.epoch, daemon: 0 };
                let mapping = memory.and_then(|shared| shared.map(&path));
                mapping.map(|mapping| Reach::Here(RegionPlace::new(mapping, made)))
            }
            _ => None,
        };
        let Some(reach) = reach else {
            let detail = format!("program {user} on host {host} got {path:?} of host {}", origin.owner);
            return self.checks.fail(self.now, "operations", detail);
        };
        // A handle that goes on is of the region of before, whatever this one is.
        let identity = match live.again.take() {
            Some(again) if again.identity.goes_on_as(&found).is_err() => return live.over.push(open),
            Some(again) => {
                self.checks.handles_reopened += 1;
                again.identity
            }
            None => found,
        };
        let opened = Opened { open, reach, origin, identity, suspect: None };
        if let Some(turn) = opened.turn() {
            self.users.ended.writers.on_taken(opened.region(), turn, &mut self.checks.histories);
            self.checks.superseded = self.users.ended.writers.superseded;
        }
        live.opened = Some(opened);
        let client = live.client;
        self.on_borrowed((host, client), origin);
    }

    fn on_not_opened(&mut self, host: usize, user: usize, why: &RegionRefusal) {
        let (now, may_go_on) = (self.now, !self.quiet);
        let Some(live) = self.users.live.get_mut(&user) else { return };
        let is_kept =
            live.again.as_mut().is_some_and(|again| may_go_on && may_change(why) && again.on_refused(now, why));
        if !is_kept {
            live.again = None;
        }
        self.judge_refusal(host, why);
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
                | RegionRefusal::Superseded { .. }
                | RegionRefusal::Reason(_)
        );
        if !is_explained {
            self.checks.fail(self.now, "unexplained", format!("a program on host {host} gets no region: {why}"));
        }
    }
}
