//! What goes wrong in a group of processes, and its end.
//!
//! Owns which faults go together: as long as one lasts, a majority of memories and a program that reaches them are there,
//! and no host loses program and daemon at once, which would be its memory's end.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use rand::RngExt as _;
use rustix::process::{Pid, Signal, kill_process};

use super::Field;
use super::hub::{Hub, Shape};
use crate::host::Host;

/// Longest time that a fault lasts beyond what was done meanwhile.
const LONGER_MS_MAX: u64 = 200;
/// How long faults that come together last.
const TOGETHER_MS: std::ops::Range<u64> = 50..800;
/// A slow link's delay, each way: from one that nobody minds to one that looks like an end.
const DELAY_MS: std::ops::Range<u64> = 2..80;
/// A bad link's losses, of 1000 frames.
const LOST: std::ops::Range<u32> = 20..300;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kind {
    /// A program is killed, and comes back.
    Killed,
    /// A program stands still.
    Still,
    /// A daemon is killed, and comes back.
    DaemonKilled,
    /// A daemon stands still.
    DaemonStill,
    /// Links of a host are cut.
    Cut,
    /// Links of a host are cut in one direction.
    OneWay,
    /// Links of a host are slow, or all links are and the leader's program is killed.
    Slow,
    /// Links of a host, or all, lose frames.
    Lossy,
    /// A member is removed, and added again.
    Churn,
    /// A program with the group's key lies in a member's place.
    Lies,
    /// A program with the group's key takes back what leaders wrote into a member's memory.
    Scribbles,
    /// Power goes at all hosts, and only what is in files is left.
    Power,
    /// Several of these at once.
    Together,
}

impl Kind {
    /// Whether it needs links.
    pub(super) fn is_of_links(self) -> bool {
        matches!(self, Self::Cut | Self::OneWay | Self::Slow | Self::Lossy)
    }

    /// Whether somebody with the key does it.
    pub(super) fn is_of_liars(self) -> bool {
        matches!(self, Self::Lies | Self::Scribbles)
    }

    fn is_of_programs(self) -> bool {
        matches!(self, Self::Killed | Self::Still)
    }
}

/// Whose process it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    Leader,
    Follower,
    Candidate,
}

/// What was done, until it is mended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    Process(Kind, usize),
    Links,
    Removed(usize),
    Liar(usize),
}

impl Field<'_> {
    /// A fault, while which others go on, and its end. Whose it was, in words.
    pub(super) fn suffer(&mut self, kind: Kind) -> Result<String> {
        if kind == Kind::Scribbles {
            return self.scribbles();
        }
        let struck = self.struck();
        let (faults, told) = match kind {
            Kind::Together => {
                let faults = self.together()?;
                let time = Duration::from_millis(self.rng.random_range(TOGETHER_MS));
                self.pass(time)?;
                (faults, String::new())
            }
            Kind::Lies => {
                let (fault, told) = self.begin_lies()?;
                (vec![fault], told)
            }
            Kind::Power => self.cut_power()?,
            Kind::Churn => (vec![self.remove()?], String::new()),
            Kind::Slow if self.rng.random_range(0..3) == 0 => (self.lengthen()?, " of all".to_owned()),
            Kind::Cut | Kind::OneWay | Kind::Slow | Kind::Lossy => (vec![self.tear(kind)?], String::new()),
            _ => {
                let mut whose = vec![Whose::Leader, Whose::Leader, Whose::Follower, Whose::Candidate];
                // Files need a majority of programs, and a candidate's end is that of two.
                if self.is_synced && self.place.ips.len() < 5 {
                    whose.pop();
                }
                let whose = whose[self.rng.random_range(0..whose.len())];
                (self.hit_whose(kind, whose)?, format!(" of a {}", format!("{whose:?}").to_lowercase()))
            }
        };
        let is_majority_there = kind != Kind::Together;
        let went_on = if is_majority_there { self.go_on() } else { Ok(()) };
        let longer = Duration::from_millis(self.rng.random_range(0..LONGER_MS_MAX));
        self.pass(longer)?;
        // Two followers have little to say to each other.
        self.until("a frame meets it", |field| !kind.is_of_links() || field.struck() > struck)?;
        for fault in faults.iter().rev() {
            self.mend(*fault).with_context(|| format!("mending {fault:?}"))?;
        }
        went_on.with_context(|| format!("while it lasts{told}: {faults:?}"))?;
        self.go_on().and_then(|()| self.become_whole()).with_context(|| format!("behind it{told}: {faults:?}"))?;
        Ok(told)
    }

    fn struck(&self) -> u64 {
        self.place.hub.as_ref().map_or(0, Hub::struck)
    }

    pub(super) fn other_than(&mut self, not: &[usize]) -> Result<usize> {
        let others: Vec<usize> = (0..self.place.ips.len()).filter(|host| !not.contains(host)).collect();
        others.get(self.rng.random_range(0..others.len().max(1))).copied().context("another host")
    }

    fn hit_whose(&mut self, kind: Kind, whose: Whose) -> Result<Vec<Fault>> {
        let leader = self.leader.context("nobody has led")?;
        match whose {
            Whose::Leader => Ok(vec![self.hit(kind, leader)?]),
            Whose::Follower => {
                let follower = self.other_than(&[leader])?;
                Ok(vec![self.hit(kind, follower)?])
            }
            Whose::Candidate => {
                // Its memory stays.
                let first = if kind.is_of_programs() { kind } else { Kind::Still };
                let first = self.hit(first, leader)?;
                let candidate = self.wait_candidate(leader)?;
                Ok(vec![first, self.hit(kind, candidate)?])
            }
        }
    }

    pub(super) fn hit(&mut self, kind: Kind, at: usize) -> Result<Fault> {
        match kind {
            Kind::Killed => {
                let mut member = self.members[at].take().context("a member")?;
                member.child.kill()?;
                member.child.wait()?;
            }
            Kind::DaemonKilled => self.daemons[at].take().context("a daemon")?.kill()?,
            _ => kill_process(self.pid(kind, at)?, Signal::STOP)?,
        }
        Ok(Fault::Process(kind, at))
    }

    fn pid(&self, kind: Kind, at: usize) -> Result<Pid> {
        let pid = match kind {
            Kind::DaemonStill => self.daemons[at].as_ref().map(Host::pid),
            _ => self.members[at].as_ref().map(|member| member.child.id()),
        };
        pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).context("its process")
    }

    /// Whoever still stands still goes on: a fault that never ended must not keep the judge from its end.
    pub(super) fn wake_all(&self) {
        for at in 0..self.place.ips.len() {
            let pids = [Kind::Still, Kind::DaemonStill].into_iter().filter_map(|kind| self.pid(kind, at).ok());
            pids.for_each(|pid| _ = kill_process(pid, Signal::CONT));
        }
    }

    fn tear(&mut self, kind: Kind) -> Result<Fault> {
        let leader = self.leader.context("nobody has led")?;
        let victim = if self.rng.random_range(0..3) > 0 { leader } else { self.other_than(&[leader])? };
        // One of its links, or all.
        let one = self.other_than(&[victim])?;
        let is_one = self.rng.random_range(0..3) == 0;
        let mut ways = vec![];
        for other in (0..self.place.ips.len()).filter(|other| *other != victim && (!is_one || *other == one)) {
            ways.extend([(victim, other), (other, victim)]);
        }
        let is_outward = self.rng.random_range(0..2) == 0;
        let shape = match kind {
            Kind::Slow => Shape { delay: Duration::from_millis(self.rng.random_range(DELAY_MS)), ..Shape::default() },
            Kind::Lossy => Shape { lost: self.rng.random_range(LOST), ..Shape::default() },
            _ => Shape { is_cut: true, ..Shape::default() },
        };
        if kind == Kind::OneWay {
            ways.retain(|(from, _)| (*from == victim) == is_outward);
        }
        let hub = self.place.hub.as_ref().context("a network")?;
        ways.iter().for_each(|way| hub.set(*way, shape));
        Ok(Fault::Links)
    }

    /// All hosts are far from each other, and somebody has to lead over these links.
    fn lengthen(&mut self) -> Result<Vec<Fault>> {
        let delay = Duration::from_millis(self.rng.random_range(DELAY_MS));
        let hub = self.place.hub.as_ref().context("a network")?;
        let all = 0..self.place.ips.len();
        let ways = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
        ways.filter(|(from, to)| from != to).for_each(|way| hub.set(way, Shape { delay, ..Shape::default() }));
        let leader = self.leader.context("nobody has led")?;
        Ok(vec![Fault::Links, self.hit(Kind::Killed, leader)?])
    }

    fn remove(&mut self) -> Result<Fault> {
        let leader = self.leader.context("nobody has led")?;
        let host = if self.rng.random_range(0..3) == 0 { leader } else { self.other_than(&[leader])? };
        self.alter(host, false)?;
        Ok(Fault::Removed(host))
    }

    /// Several faults of several hosts: a program, a daemon, links, and a member that is removed or not.
    fn together(&mut self) -> Result<Vec<Fault>> {
        let mut faults = vec![];
        if self.rng.random_range(0..4) == 0 {
            faults.push(self.remove()?);
        }
        let program = self.rng.random_range(0..self.place.ips.len());
        let daemon = self.other_than(&[program])?;
        let of = |pair: [Kind; 2], is_first: bool| if is_first { pair[0] } else { pair[1] };
        let (first, second) = (self.rng.random(), self.rng.random());
        faults.push(self.hit(of([Kind::Killed, Kind::Still], first), program)?);
        faults.push(self.hit(of([Kind::DaemonKilled, Kind::DaemonStill], second), daemon)?);
        if self.place.hub.is_some() {
            let kinds = [Kind::Cut, Kind::OneWay, Kind::Slow, Kind::Lossy];
            for _ in 0..self.rng.random_range(1..3) {
                let kind = kinds[self.rng.random_range(0..kinds.len())];
                faults.push(self.tear(kind)?);
            }
        }
        Ok(faults)
    }

    fn mend(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Process(kind @ (Kind::Still | Kind::DaemonStill), at) => {
                kill_process(self.pid(kind, at)?, Signal::CONT)?;
            }
            Fault::Process(Kind::DaemonKilled, at) => self.daemons[at] = Some(self.start_daemon(at)?),
            Fault::Process(_, at) => {
                let member = self.join(at)?;
                self.members[at] = Some(member);
            }
            Fault::Links => self.place.hub.iter().for_each(Hub::heal),
            Fault::Liar(host) => self.end_lies(host)?,
            Fault::Removed(host) => self.alter(host, true)?,
        }
        Ok(())
    }
}
