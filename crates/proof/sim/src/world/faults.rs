//! What breaks, and how it is mended.

use std::collections::BTreeSet;
use std::time::Duration;

use verbs::{Provider, QpModify, Qpn, Wire};

use plane::{Policy, Rights};

use super::World;
use crate::address::{At, address, is_shared};
use crate::check::AppUid;
use crate::plan::{Break, DaemonPlan, Fault};

/// Time until a restarted host's applications are started again.
const RESPAWN: Duration = Duration::from_millis(20);

impl World {
    pub(super) fn on_fault(&mut self, fault: &Fault) {
        let now = self.now;
        self.trace.text(now, || format!("FAULT {fault:?}"));
        match *fault {
            Fault::Cut { from, to, what } => {
                self.network.cut(from, to, what);
                self.checks.causes.on_cut(now, from, to);
                if what.data {
                    self.on_streams_cut(from, to);
                }
            }
            Fault::Hold { from, to } => {
                self.held.entry((from, to)).or_default();
                self.on_streams_cut(from, to);
                // Whoever waits for them sees a cut.
                self.checks.causes.on_cut(now, from, to);
            }
            Fault::Release { from, to } => self.release(from, to),
            Fault::PathDown { a, b, path } => {
                self.network.set_path(a, b, path, false);
                self.checks.causes.on_cut(now, a, b);
                self.on_streams_cut_on(a, b, path);
            }
            Fault::PathUp { a, b, path } => self.path_up(a, b, path),
            Fault::WireDown { a, b, wire } => {
                self.network.set_wire(a, b, wire, false);
                self.checks.causes.on_cut(now, a, b);
                if wire == Wire::Iwarp {
                    self.on_streams_cut(a, b);
                }
            }
            Fault::WireUp { a, b, wire } => self.wire_up(a, b, wire),
            Fault::Heal { a, b } => self.heal(a, b),
            Fault::Crash { host, told } => self.crash(host, told),
            Fault::Restart { host } => self.restart(host),
            Fault::KillDaemon { host } => self.kill_daemon(host),
            Fault::StartDaemon { host } => self.start_daemon(host),
            Fault::CrashAt { host, messages, told } => _ = self.fuses.insert(host, (messages, told)),
            Fault::Install { host, ref daemon } => self.install(host, daemon.clone()),
            Fault::PauseEngine { host, time } => self.pause(host, time, false),
            Fault::PauseHost { host, time } => self.pause(host, time, true),
            Fault::BreakDatagrams { host } => self.break_datagrams(host),
            Fault::BreakLane { host, peer, how } => self.break_lane(host, peer, how),
            Fault::ResetStreams { a, b } => self.reset_streams(a, b),
            Fault::BreakDirects { a, b } => self.break_directs(a, b),
            Fault::KillApp { app } => {
                let host = self.plan.apps[app].host;
                let uid = self.app_of(app).map(|a| a.uid);
                if let Some(uid) = uid {
                    self.kill(host, uid);
                }
            }
            Fault::Revoke { host } => self.revoke(host),
            Fault::Policy { host, connections_max } => self.set_policy(host, connections_max),
            Fault::LinkConditions(conditions) => self.network.conditions = conditions,
        }
        self.trace.note(now, "fault", &[]);
    }

    /// A pause is not made longer while it lasts: what it put off comes at its end, in order.
    fn pause(&mut self, host: usize, time: Duration, all: bool) {
        if self.paused(host).is_some() {
            return;
        }
        let until = self.after(time);
        self.checks.causes.on_outage(host, self.now, Some(until));
        let Some(running) = self.up(host) else { return };
        running.engine_paused_until = until;
        if all {
            running.stalled_until = until;
        }
    }

    fn break_lane(&mut self, host: usize, peer: usize, how: Break) {
        // One of them, which the moment decides.
        let first = self.steps as usize;
        let Some(running) = self.up(host) else { return };
        let count = running.engines.len();
        let broken = (0..count).map(|n| (first + n) % count).find_map(|engine| {
            let mut lanes = running.engines[engine].engine.lanes();
            lanes.retain(|l| l.peer.ip() == address(peer) && l.qpn.is_some_and(|qpn| qpn != 0));
            // A leased one too, unless an operator is to do it, who names the host alone.
            lanes.retain(|l| how != Break::Asked || is_shared(l));
            Some((engine, Qpn(lanes.get(first % lanes.len().max(1))?.qpn?)))
        });
        let Some((engine, qpn)) = broken else { return };
        let driven = &mut running.engines[engine];
        match how {
            Break::Silent => _ = driven.tap.modify_qp(qpn, &QpModify::Err),
            Break::Asked => _ = driven.engine.force_lane_error(&mut driven.tap, address(peer)),
            how => driven.tap.spoil = Some((qpn, how)),
        }
        self.checks.causes.on_break(host, peer);
        self.wake_engine(At { host, engine: engine as u32 });
    }

    fn break_datagrams(&mut self, host: usize) {
        let Some(running) = self.up(host) else { return };
        for driven in &mut running.engines {
            if let Some(qpn) = driven.tap.ud {
                let _ = driven.tap.nic.modify_qp(qpn, &QpModify::Err);
            }
        }
        self.wake_engines(host);
    }

    fn release(&mut self, from: usize, to: usize) {
        self.checks.causes.on_healed(self.now, from, to);
        for event in self.held.remove(&(from, to)).unwrap_or_default() {
            self.queue.push(self.now, event);
        }
        self.on_streams_back(from, to);
    }

    pub(super) fn heal(&mut self, a: usize, b: usize) {
        let was_cut = self.network.is_control_cut(a, b, 0) || self.network.is_control_cut(a, b, 1);
        self.network.heal(a, b);
        self.on_mended(a, b);
        self.on_streams_back(a, b);
        if was_cut {
            self.on_path_back(a, b);
        }
    }

    fn path_up(&mut self, a: usize, b: usize, path: usize) {
        self.network.set_path(a, b, path, true);
        self.on_mended(a, b);
        self.on_streams_back(a, b);
        self.on_path_back(a, b);
    }

    fn wire_up(&mut self, a: usize, b: usize, wire: Wire) {
        self.network.set_wire(a, b, wire, true);
        self.on_mended(a, b);
        self.on_streams_back(a, b);
    }

    /// Cuts, silent wires and paths that are down excuse failures until all are mended.
    fn on_mended(&mut self, a: usize, b: usize) {
        if self.network.is_whole(a, b) {
            self.checks.causes.on_healed(self.now, a, b);
        }
    }

    /// Another daemon is installed; it runs from the next start on.
    fn install(&mut self, host: usize, daemon: DaemonPlan) {
        self.hosts[host].daemon = daemon;
    }

    pub(super) fn crash(&mut self, host: usize, told: bool) {
        let now = self.now;
        self.end_orphans(host);
        self.end_users(host);
        self.lose_meetings(host);
        let Some(running) = self.hosts[host].running.take() else { return };
        self.hosts[host].life += 1;
        self.trace.note(now, "host {} dies", &[host as u64]);
        self.checks.causes.on_outage(host, now, None);
        for app in running.apps.values() {
            self.answers[app.plan_index].add(&app.answers);
            self.on_process_dead(app);
        }
        let known: BTreeSet<AppUid> = running.engines.iter().flat_map(|d| d.uids.values().copied()).collect();
        for uid in &known {
            self.checks.causes.on_owner_gone(now, *uid);
        }
        self.checks.links.on_dead(host);
        self.on_daemon_dead(host, told);
        self.on_streams_dead(host, told);
    }

    pub(super) fn restart(&mut self, host: usize) {
        if self.hosts[host].running.is_some() {
            return;
        }
        if self.hosts[host].orphans.is_waiting {
            return self.start_daemon(host);
        }
        self.checks.causes.on_back(self.now, host);
        self.start_host(host);
        self.on_machine_back(host);
        self.directs.reset_closed_of(host);
        self.on_streams_orphaned(host);
        let again: Vec<usize> = (0..self.plan.apps.len())
            .filter(|i| self.plan.apps[*i].host == host && self.plan.apps[*i].respawn)
            .collect();
        for index in again {
            let at = self.now + RESPAWN + self.some(RESPAWN);
            self.start_at(index, at);
        }
    }

    /// Nothing is broken from now on. Pauses end by themselves: what they put off must keep its order.
    fn set_policy(&mut self, host: usize, connections_max: Option<u32>) {
        let policy = Policy::new(Vec::new(), Rights { connections_max, ..Rights::default() });
        let (Ok(policy), Some(running)) = (policy, self.up(host)) else { return };
        running.control.daemon.set_policy(policy);
        self.settle_plane(host);
        if connections_max.is_some() {
            self.checks.causes.on_policy(host);
        }
    }

    pub(super) fn mend_everything(&mut self) {
        self.quiet = true;
        self.fuses.clear();
        for (a, b) in self.network.cut_pairs() {
            self.heal(a, b);
        }
        for ((a, b), path) in self.network.paths_down() {
            self.path_up(a, b, path);
        }
        for ((a, b), wire) in self.network.silent_wires() {
            self.wire_up(a, b, wire);
        }
        for (from, to) in self.held.keys().copied().collect::<Vec<_>>() {
            self.release(from, to);
        }
        let calm = crate::plan::LinkConditions { delay: self.network.conditions.delay, ..Default::default() };
        self.network.conditions = calm;
        for host in 0..self.hosts.len() {
            self.restart(host);
            self.set_policy(host, None);
            if let Some(running) = self.up(host) {
                running.engines.iter_mut().for_each(|driven| driven.tap.spoil = None);
            }
            self.wake_engines(host);
        }
    }

    /// All live processes, by host.
    pub(super) fn processes(&self) -> Vec<(usize, AppUid)> {
        let hosts = self.hosts.iter().enumerate();
        hosts.flat_map(|(i, h)| h.apps().map(move |app| (i, app.uid))).collect()
    }

    /// The rows of both ends of a lane between two hosts.
    pub(super) fn lane_rows(&self, lane: u32, a: usize, b: usize) -> Option<(control::LaneRow, control::LaneRow)> {
        let row = |host: usize, peer: usize| {
            let lanes = self.hosts[host].running.as_ref()?.engines.get(lane as usize)?.engine.lanes();
            lanes.into_iter().find(|l| l.name == format!("{}/{lane}", address(peer)))
        };
        Some((row(a, b)?, row(b, a)?))
    }
}
