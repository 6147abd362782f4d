//! What goes wrong in a group of the model.
//!
//! Owns the faults and when they end. It must never take the bytes of so many memories that what a majority held is
//! nowhere any more.

use std::collections::BTreeMap;

use super::Stage;
use super::files::Desk;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Nemesis {
    /// Links from a program to a node (`true`) and back, and when they heal.
    cuts: BTreeMap<(usize, usize, bool), u64>,
    /// Programs that are dead, and when they are started again.
    dead: BTreeMap<usize, u64>,
    /// Daemons that are down, when they are back, and whether their memory is lost.
    down: BTreeMap<usize, (u64, bool)>,
    pub(super) deaths: u64,
    pub(super) restarts: u64,
    pub(super) wipes: u64,
    /// Hosts without power.
    dark: BTreeMap<usize, u64>,
    pub(super) powers: u64,
}

impl Nemesis {
    /// Whether a host has no daemon.
    fn is_down(&self, node: usize) -> bool {
        self.down.contains_key(&node) || self.dark.contains_key(&node)
    }

    /// Whether nothing comes from a program to a node, or back.
    pub(super) fn is_cut(&self, program: usize, node: usize, is_outward: bool) -> bool {
        self.cuts.contains_key(&(program, node, is_outward))
    }
}

impl Stage {
    /// Maybe something goes wrong, or heals.
    pub(super) fn strike(&mut self) {
        let now = self.world.now_us();
        let plan = self.plan;
        self.heal_until(now);
        let until = now + self.world.below(plan.lasts * self.period_us);
        let count = self.programs.len() as u64;
        let (program, node) = (self.world.below(count) as usize, self.world.below(count) as usize);
        if self.strikes(plan.deaths) {
            // Half of the time it is one that leads, or wants to.
            let reigns: Vec<usize> = self.programs.iter().filter(|it| it.reigns).map(|it| it.me).collect();
            let chosen = match reigns.get(self.world.below(2 * reigns.len().max(1) as u64) as usize) {
                Some(leader) => *leader,
                None => program,
            };
            if self.programs[chosen].replica.is_some() {
                self.kill(chosen, until);
            }
        }
        if self.strikes(plan.pauses) {
            self.programs[program].paused_until = until;
        }
        if self.strikes(plan.power) {
            let is_lost = self.world.below(100) < plan.lost && self.may_wipe(node);
            self.cut_power(node, until);
            if is_lost {
                self.nemesis.wipes += 1;
                let number = self.world.state().keepers[node].renew();
                self.desks[node] = Desk::new(number);
            }
        }
        if self.strikes(plan.outages) {
            (0..count as usize).for_each(|host| self.cut_power(host, until));
        }
        if self.strikes(plan.restarts) && !self.nemesis.is_down(node) {
            let is_wiped = self.world.below(100) < plan.wiped && self.may_wipe(node);
            self.world.stop_node(node);
            self.nemesis.restarts += 1;
            self.nemesis.wipes += u64::from(is_wiped);
            self.nemesis.down.insert(node, (until, is_wiped));
        }
        if self.strikes(plan.changes) && self.programs[program].paused_until <= now {
            self.alter(program, node);
        }
        if self.strikes(plan.cuts) {
            // One link, or all of a program's.
            let is_alone = self.world.below(2) == 0;
            let ways = [[true].as_slice(), &[false], &[true, false]][self.world.below(3) as usize];
            for other in (0..self.programs.len()).filter(|other| *other != program && (is_alone || *other == node)) {
                self.nemesis.cuts.extend(ways.iter().map(|way| ((program, other, *way), until)));
            }
        }
    }

    /// The operator asks a program to have a host join, or to remove one.
    fn alter(&mut self, program: usize, host: usize) {
        let (id, is_member) = (host as u8, self.members.has_host(host as u8));
        if is_member && self.members.iter().count() <= self.plan.members.min(3) {
            return;
        }
        if let Some(replica) = &mut self.programs[program].replica {
            // It may be refused: not by the leader, or while another change is under way.
            let _asked = if is_member { replica.remove(id) } else { replica.add(id) };
            self.drain(program);
        }
    }

    fn strikes(&self, rate: u64) -> bool {
        rate > 0 && self.world.below(10_000) < rate
    }

    /// The program ends. Half of what it has under way goes no further; the rest may still happen.
    fn kill(&mut self, program: usize, until: u64) {
        self.programs[program].replica = None;
        self.programs[program].reigns = false;
        self.nemesis.deaths += 1;
        self.nemesis.dead.insert(program, until);
        self.end_flights(program);
        self.desks[program].close(false, &self.world);
    }

    fn end_flights(&mut self, program: usize) {
        let its: Vec<u64> =
            self.posted.iter().filter(|(_, posted)| posted.program == program).map(|(id, _)| *id).collect();
        for id in its {
            if self.world.below(2) == 0 {
                self.world.state().flights.get_mut(&id).into_iter().for_each(crate::flight::Flight::lose);
            }
        }
    }

    /// Program, daemon and memory of a host are gone, and what was not synced.
    fn cut_power(&mut self, host: usize, until: u64) {
        if self.nemesis.dark.contains_key(&host) {
            return;
        }
        self.nemesis.powers += 1;
        self.programs[host].replica = None;
        self.programs[host].reigns = false;
        self.end_flights(host);
        self.world.stop_node(host);
        self.desks[host].close(true, &self.world);
        // It comes back with all that it had.
        self.nemesis.dead.remove(&host);
        self.nemesis.down.remove(&host);
        self.nemesis.dark.insert(host, until);
    }

    /// Of the members as they are now, fewer than half may have lost their bytes.
    fn may_wipe(&self, node: usize) -> bool {
        let is_lost = |id: usize, number: u64| {
            let is_down = self.nemesis.down.get(&id).is_some_and(|(_, is_wiped)| *is_wiped);
            id == node || is_down || self.world.state().keepers[id].number() != number
        };
        let lost = self.members.iter().filter(|member| is_lost(member.id.into(), member.number)).count();
        // While members change a smaller group may be near, and a host that joins is soon one more to lose.
        let most = if self.plan.changes > 0 { 1 } else { (self.members.iter().count() - 1) / 2 };
        self.members.has_host(node as u8) && lost <= most
    }

    fn heal_until(&mut self, now: u64) {
        self.nemesis.cuts.retain(|_, until| *until > now);
        let lit: Vec<usize> = self.nemesis.dark.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        for host in lit {
            self.nemesis.dark.remove(&host);
            self.world.start_empty_node(host);
            self.start(host);
        }
        let up: Vec<(usize, bool)> =
            self.nemesis.down.iter().filter(|(_, (at, _))| *at <= now).map(|(id, (_, w))| (*id, *w)).collect();
        for (node, is_wiped) in up {
            self.nemesis.down.remove(&node);
            self.world.start_node(node, self.world.below(2) == 0, is_wiped);
        }
        // A program opens its file with its host's memory.
        let may_start = |host: usize| !self.plan.is_synced || !self.nemesis.is_down(host);
        let dead = self.nemesis.dead.iter().filter(|(id, at)| **at <= now && may_start(**id));
        let back: Vec<usize> = dead.map(|(id, _)| *id).collect();
        for program in back {
            self.nemesis.dead.remove(&program);
            self.start(program);
        }
    }

    /// All heals at once.
    pub(super) fn heal(&mut self) {
        self.heal_until(u64::MAX);
        self.programs.iter_mut().for_each(|program| program.paused_until = 0);
    }
}
