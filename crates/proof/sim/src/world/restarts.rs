//! Daemons that are killed and started again while their processes live (docs/operate/restart.md).
//!
//! Owns what the kernel and the shipped daemon do between the two: sockets that end, processes that come back at
//! different times, and what of them is taken. What they bring is read by the shipped engine.

use std::time::Duration;

use plane::{ClientId, Holder, TICKET_SECRET_BYTES, Tickets};

use super::{Event, World};
use crate::address::{At, address};
use crate::app::App;
use crate::check::AppUid;
use crate::regions::UID;

/// Longest pause before a process finds the next daemon.
const RETURN_MAX: Duration = Duration::from_millis(160);

/// What names a process and no other.
pub(super) fn process_of(uid: AppUid) -> String {
    format!("process {uid}")
}

impl World {
    /// The daemon of a host is killed. Processes that can wait for the next one live on, the others count as killed.
    pub(super) fn kill_daemon(&mut self, host: usize) {
        let now = self.now;
        let Some(running) = self.hosts[host].running.take() else { return };
        self.trace.note(now, "the daemon of host {} is killed", &[host as u64]);
        let of = &mut self.hosts[host];
        of.life += 1;
        of.orphans.is_waiting = true;
        of.orphans.deaths += 1;
        of.orphans.next_chunk = running.next_chunk;
        of.orphans.page = Some(running.page);
        self.checks.causes.on_outage(host, now, None);
        self.checks.causes.on_daemon_killed(now, host);
        for (record, side) in running.control.untold.values() {
            // Nobody knows of it, or brings it to the next daemon.
            self.checks.on_abort(*record, *side);
            self.checks.on_closed(*record, *side);
        }
        let mut apps = running.apps;
        for uid in running.engines.iter().flat_map(|driven| driven.uids.values()) {
            if !apps.contains_key(uid) {
                self.checks.causes.on_owner_gone(now, *uid);
            }
        }
        for (uid, app) in std::mem::take(&mut apps) {
            if app.outlives_its_daemon() {
                self.hosts[host].orphans.apps.insert(uid, app);
            } else {
                self.end_orphan(app);
            }
        }
        running.control.regions.end_life();
        self.part_users(host);
        self.lose_meetings(host);
        self.checks.links.on_dead(host);
        self.on_daemon_dead(host, true);
        self.on_streams_dead(host, true);
        self.part_orphans(host);
    }

    /// Processes without a daemon run on.
    fn part_orphans(&mut self, host: usize) {
        self.hosts[host].orphans.apps.values_mut().for_each(App::part);
        let uids: Vec<AppUid> = self.hosts[host].orphans.apps.keys().copied().collect();
        uids.into_iter().for_each(|uid| self.wake_app(host, uid));
    }

    /// The next daemon of a host whose daemon was killed.
    pub(super) fn start_daemon(&mut self, host: usize) {
        if !std::mem::take(&mut self.hosts[host].orphans.is_waiting) {
            return;
        }
        self.checks.causes.on_back(self.now, host);
        self.start_host(host);
        self.on_machine_back(host);
        self.on_streams_orphaned(host);
        self.part_orphans(host);
        let life = self.life(host);
        let uids: Vec<AppUid> = self.hosts[host].orphans.apps.keys().copied().collect();
        for app in uids {
            let at = self.now + self.some(RETURN_MAX);
            // What the daemon before said is read first.
            let said = self.hosts[host].orphans.apps[&app].to_app_at + Duration::from_nanos(1);
            self.queue.push(at.max(said), Event::Return { host, life, app });
        }
    }

    /// A process comes back to the daemon.
    pub(super) fn on_return(&mut self, host: usize, life: u32, uid: AppUid) {
        if self.life(host) != life {
            return;
        }
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::Return { host, life, app: uid });
        }
        let now = self.now;
        let Some(mut app) = self.hosts[host].orphans.apps.remove(&uid) else { return };
        app.lose_requests(now, &mut self.checks);
        let tickets = Tickets::new([host as u8; TICKET_SECRET_BYTES]);
        let user = UID + app.plan_index as u32 % self.plan.uids;
        let process = process_of(uid);
        let stranger = Holder { uid: UID + 100, process: Some("another") };
        let open = |sealed: &[u8]| {
            let own = Holder { uid: user, process: Some(&process) };
            tickets.open(own, sealed).filter(|_| tickets.open(stranger, sealed).is_none())
        };
        let says = match app.bring(life, open) {
            Ok(says) => says,
            Err(why) => return self.checks.fail(now, "set-up", format!("application {uid} brings nothing: {why}")),
        };
        let Some(running) = self.up(host) else { return };
        running.apps.insert(uid, app);
        if self.take_in(host, uid, true).is_err() {
            let app = self.up(host).and_then(|running| running.apps.remove(&uid));
            return app.into_iter().for_each(|app| self.end_orphan(app));
        }
        says.into_iter().for_each(|request| self.ask_plane(host, ClientId(uid.into()), request));
    }

    /// Tells the judge which datagram sockets the first engine, which has the datagrams, took over of a process.
    pub(super) fn note_sockets(&mut self, at: At, uid: AppUid) {
        if at.engine != 0 {
            return;
        }
        let sockets = self.hosts[at.host].app_mut(uid).map(|app| std::mem::take(&mut app.sockets_brought));
        let Some(driven) = self.driven(at) else { return };
        let taken: Vec<u64> = driven.engine.datagram_sockets().iter().map(|row| row.id).collect();
        for (socket, in_rings) in sockets.into_iter().flatten() {
            let (at, port) = ((at.host, socket.id), socket.local.port());
            match taken.contains(&socket.id) {
                true => self.checks.datagrams.on_socket_back(at, port, in_rings),
                false => self.checks.datagrams.on_socket_not_taken(at, port),
            }
        }
    }

    /// A process runs while it has no daemon: nobody hears what it asks for.
    pub(super) fn run_orphan(&mut self, host: usize, uid: AppUid) {
        let now = self.now;
        let Some(app) = self.hosts[host].orphans.apps.get_mut(&uid) else { return };
        let out = app.run(now, &mut self.checks, address);
        self.trace.note(now, "application {} on {} runs alone", &[uid.into(), host as u64]);
        if out.died
            && let Some(app) = self.hosts[host].orphans.apps.remove(&uid)
        {
            return self.end_orphan(app);
        }
        if let Some(at) = out.again {
            self.app_at(host, uid, at.max(now + crate::host::ROUND));
        }
    }

    /// The machine dies while processes wait for a daemon.
    pub(super) fn end_orphans(&mut self, host: usize) {
        self.hosts[host].orphans.is_waiting = false;
        for app in std::mem::take(&mut self.hosts[host].orphans.apps).into_values() {
            self.end_orphan(app);
        }
    }

    pub(super) fn end_orphan(&mut self, app: App) {
        self.answers[app.plan_index].add(&app.answers);
        self.on_process_dead(&app);
        self.checks.causes.on_owner_gone(self.now, app.uid);
    }
}
