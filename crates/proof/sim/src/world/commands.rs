//! What control plane and engines say to each other: each engine takes commands soon and in order, and the control plane
//! its reports.
//!
//! Owns that order: nothing is said to an engine beside its queue. What a command does, and what a report is to the control
//! plane, is the shipped crate `dispatch`'s.

use control::UserShare;
use dispatch::{Command, Left, Report};
use plane::{LaneCommand, ProgramCommand};

use super::actions::Seeded;
use super::users::is_user;
use super::{Event, World};
use crate::address::At;
use crate::links::Input;

impl World {
    pub(super) fn command(&mut self, at: At, command: Command) {
        let delay = self.some(self.plan.queue_delay_max);
        let (due, life) = (self.now + delay, self.life(at.host));
        self.note_numbers(at, &command);
        let Some(running) = self.up(at.host) else { return };
        let Some(told_at) = running.control.told_at.get_mut(at.engine as usize) else { return };
        *told_at = due.max(*told_at);
        let due = *told_at;
        self.queue.push(due, Event::Command { at, life, command: Box::new(command) });
    }

    /// What an engine gets a number for comes back once.
    fn note_numbers(&mut self, at: At, command: &Command) {
        use ProgramCommand::{Bind, Connect, OpenOperations};
        let (connections, sockets, app): (Vec<u64>, Vec<u64>, _) = match command {
            Command::Program { app, command: Connect { connection, .. }, .. } => (vec![*connection], vec![], Ok(*app)),
            Command::Program { app, command: Bind { socket: queue, .. } | OpenOperations { queue, .. }, .. } => {
                (vec![], vec![*queue], Ok(*app))
            }
            Command::Admit { answer: Ok(admitted), .. } => (vec![admitted.connection], vec![], Ok(admitted.app)),
            Command::Attach { client, returned: Some(returned), .. } => {
                let lanes = returned.connections.iter().map(|ticket| ticket.id).collect();
                (lanes, returned.sockets.iter().map(|ticket| ticket.id).collect(), Err(*client))
            }
            _ => return,
        };
        let Some(running) = self.up(at.host) else { return };
        let control = &mut running.control;
        let client = app.map_or_else(Some, |app| control.names.program(at.engine, app));
        let uid = client.and_then(|client| control.daemon.party(client)).map(|party| party.uid);
        control.numbers.extend(connections.into_iter().map(|number| (number, uid)));
        control.numbers.extend(sockets.into_iter().map(|number| (number, None)));
        if let Some(uid) = uid {
            self.judge_share(at.host, uid, false);
        }
    }

    /// A user has no more connections than its share, and is refused one only where it has as many.
    pub(super) fn judge_share(&mut self, host: usize, uid: u32, is_refused: bool) {
        let plan = &self.hosts[host].plan;
        let max = plan.user_share.of_table(plan.connections_max) as usize;
        if plan.user_share == UserShare::ALL {
            return;
        }
        let Some(running) = self.up(host) else { return };
        let held = running.control.numbers.values().filter(|of| **of == Some(uid)).count();
        if held > max || (is_refused && held < max) {
            let detail = format!("user {uid} of host {host} has {held} connections of {max}, refused: {is_refused}");
            self.checks.fail(self.now, "shares", detail);
        }
    }

    pub(super) fn on_command(&mut self, at: At, life: u32, command: Box<Command>) {
        if self.life(at.host) != life {
            return;
        }
        if let Some(until) = self.paused(at.host) {
            return self.queue.push(until, Event::Command { at, life, command });
        }
        let now = self.now;
        self.trace.text(now, || format!("engine {at:?}: {command:?}"));
        let Some(driven) = self.driven(at) else { return };
        driven.tap.now = now;
        let lane = match &*command {
            Command::Lane { lane, command } => Some((*lane, command.clone())),
            _ => None,
        };
        if let Some((lane, LaneCommand::Offer { peer, .. })) = lane {
            driven.given_up.remove(&engine::LaneAt::new(peer, lane));
        }
        let grants = match *command {
            Command::Region { command: plane::RegionCommand::Grant { region, lane: None, .. }, .. } => Some(region),
            _ => None,
        };
        let brought: Vec<u64> = match &*command {
            Command::Attach { returned: Some(returned), .. } => numbers_of(returned).collect(),
            _ => Vec::new(),
        };
        let report = command.execute(now, &mut driven.engine, &mut driven.tap);
        if let Some(Report::Attached { client, result }) = &report {
            while driven.engine.run_returns(&mut driven.tap) {}
            if let Ok(app) = result
                && !is_user(*client)
            {
                driven.uids.insert(*app, client.0 as u32);
                self.note_sockets(at, client.0 as u32);
            } else if result.is_err() {
                brought.iter().for_each(|number| self.take_number(at.host, *number));
            }
        }
        if let Some((lane, command)) = lane {
            self.on_lane_command((at, lane), &command, report.as_ref());
        }
        if let (Some(region), Some(Report::RegionGranted { result: Err(why), .. })) = (grants, &report) {
            self.checks.fail(now, "set-up", format!("region {region} of host {} is not granted: {why}", at.host));
        }
        // The answer comes after every event that the engine made before, and before those that it made now.
        report.into_iter().for_each(|report| self.report(at, report));
        self.after_command(at);
    }

    pub(super) fn report(&mut self, at: At, report: Report) {
        self.tell_plane(at.host, Input::Engine { engine: at.engine, report });
    }

    /// The control plane hears an engine.
    pub(super) fn hear(&mut self, at: At, report: Report) {
        let now = self.now;
        let number = match report {
            Report::Event(
                engine::Event::ConnectionOver { connection: number, .. }
                | engine::Event::SocketOver { socket: number, .. },
            ) => Some(number),
            _ => None,
        };
        let Some(running) = self.hosts[at.host].running.as_mut() else { return };
        let control = &mut running.control;
        let mut seeded = Seeded(&mut self.rng);
        let left = dispatch::hear(&mut control.daemon, &mut control.names, (now, at.engine), report, &mut seeded);
        number.into_iter().for_each(|number| self.take_number(at.host, number));
        match left {
            None => {}
            Some(Left::Command(command)) => self.command(at, command),
            Some(Left::Rings { client, app, size, rings }) => self.make_chunks((at, client, app), size, rings),
            Some(other) => {
                let detail = format!("host {}: {other:?}, for which nobody asked", at.host);
                self.checks.fail(now, "unexplained", detail);
            }
        }
    }
}

/// Numbers of what a program brings along.
fn numbers_of(returned: &engine::Returned) -> impl Iterator<Item = u64> {
    let sockets = returned.sockets.iter().map(|ticket| ticket.id);
    returned.connections.iter().map(|ticket| ticket.id).chain(sockets)
}
