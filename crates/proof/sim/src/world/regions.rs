//! Regions of the daemons: what their programs ask and hear.
//!
//! Owns nothing.

use control::{RegionRefusal, Reply, Request};
use dispatch::Command;
use engine::{Attach, Returned, SlotSet, TenantPlace};
use plane::{Brought, ClientId, Newcomer, Party, ProgramFacts, ProgramRights};
use shm::{Session, SessionShape};

use super::{Event, World};
use crate::address::At;
use crate::regions::{PROGRAM, Regions, Shared};

/// The engine of a host that has the regions and the operations: the first.
pub(super) const fn of_regions(host: usize) -> At {
    At { host, engine: 0 }
}

impl World {
    pub(super) fn regions(&mut self, host: usize) -> Option<&mut Regions> {
        Some(&mut self.up(host)?.control.regions)
    }

    // ---- programs

    /// A program asks its daemon for something about regions.
    pub(super) fn on_region_request(&mut self, host: usize, life: u32, client: ClientId, request: Box<Request>) {
        if self.life(host) != life {
            return;
        }
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::ToRegions { host, life, client, request });
        }
        self.ask_plane(host, client, *request);
    }

    /// Root asks a daemon for what operators alone may have.
    pub(super) fn ask_as_operator(&mut self, host: usize, request: Request) {
        let root = Party { client: ClientId(u64::MAX), pid: 1, uid: 0 };
        self.with_plane(host, |daemon, _| daemon.handle_operator(root, request));
        self.settle_plane(host);
    }

    /// A program comes to its daemon, with a session if it has one, in which these slots are `used` if it brings it along
    /// from the daemon before. False: it may not.
    pub(super) fn take_program(
        &mut self,
        host: usize,
        (client, uid): (ClientId, u32),
        session: Option<Session>,
        used: Option<SlotSet>,
    ) -> bool {
        let facts = ProgramFacts { uid, ..ProgramFacts::default() };
        let party = Party { client, pid: 1, uid };
        let newcomer = Newcomer { party, facts, process: None, returns: used.is_some() };
        let Some(running) = self.up(host) else { return false };
        if running.control.daemon.handle_attach(newcomer).is_err() {
            return false;
        }
        let said = session.as_ref().filter(|_| used.is_some()).map(|session| {
            let SessionShape { slots, engines } = session.shape();
            Request::Return { slots, engines, session_bytes: 0, next_chunk: 0, used: Vec::new() }
        });
        session.into_iter().for_each(|session| {
            self.users.sessions.insert(client, (session, used.clone().unwrap_or_default()));
        });
        self.settle_plane(host);
        for request in said.into_iter().flat_map(|said| [said, Request::ReturnEnd]) {
            self.ask_plane(host, client, request);
        }
        true
    }

    /// As for an application. One without a session is nothing to an engine.
    pub(super) fn ask_engines_for_user(
        &mut self,
        host: usize,
        client: ClientId,
        rights: &ProgramRights,
        brought: Option<Vec<Brought>>,
    ) {
        let of_session = self.users.sessions.remove(&client);
        let uid = self.up(host).and_then(|running| running.control.daemon.party(client)).map_or(0, |party| party.uid);
        for at in self.engines_of(host) {
            let Some((session, used)) = &of_session else {
                let Some(running) = self.up(host) else { return };
                running.control.daemon.on_taken(client, at.engine, Ok(()));
                continue;
            };
            let program = Attach {
                pid: 1,
                uid,
                name: format!("{PROGRAM} {}", client.0),
                session: session.clone(),
                connect_to: rights.networks.clone(),
                tenant: TenantPlace::default(),
            };
            let returned = brought.as_ref().map(|_| Box::new(Returned { used: used.clone(), ..Returned::default() }));
            self.command(at, Command::Attach { client, program, returned });
        }
    }

    /// A program is gone: it left, or died.
    pub(super) fn leave_regions(&mut self, host: usize, client: ClientId) {
        let is_owner = self.users.owners.values().any(|owner| owner.client == client);
        let Some(running) = self.up(host) else { return };
        if running.control.daemon.party(client).is_none() {
            return;
        }
        self.leave(host, client);
        for at in self.engines_of(host).into_iter().filter(|_| is_owner) {
            let Some(running) = self.up(host) else { return };
            running.control.daemon.on_program_gone(client, at.engine);
        }
        self.settle_plane(host);
    }

    /// What programs hold, as their daemon tells them: a user has no more than its share, and is refused a handle to a region
    /// of its host only where it has as many.
    fn note_handles(&mut self, host: usize, client: ClientId, reply: &Reply) {
        let max = self.hosts[host].plan.handles_per_user_max;
        let asked = self.users.live.values().find(|user| user.client == client).and_then(|user| user.asked);
        let is_of = |asked: u64| matches!(reply, Reply::RegionOpened { request, .. } if *request == asked);
        let is_far = asked.is_some_and(|(asked, origin)| is_of(asked) && origin.owner != host);
        let Some(running) = self.up(host) else { return };
        let control = &mut running.control;
        let Some(uid) = control.daemon.party(client).map(|party| party.uid) else { return };
        let mut is_refused = false;
        match reply {
            Reply::RegionOpened { result: Ok(opened), .. } => {
                _ = control.handles.insert((client, opened.open), (uid, is_far))
            }
            Reply::RegionOpened { result: Err(RegionRefusal::TooMany { .. }), .. } if !is_far => is_refused = true,
            Reply::RegionEnded { open, .. } => _ = control.handles.remove(&(client, *open)),
            _ => return,
        }
        let held = control.handles.values().filter(|of| **of == (uid, is_far)).count() as u64;
        if held > max || (is_refused && held < max) {
            let detail = format!("user {uid} of host {host} has {held} handles of {max}, refused: {is_refused}");
            self.checks.fail(self.now, "shares", detail);
        }
    }

    pub(super) fn send_of_regions(&mut self, host: usize, client: ClientId, reply: Reply, memory: Option<Shared>) {
        self.note_handles(host, client, &reply);
        let delay = self.plan.daemon_delay_max;
        let at = self.now + self.some(delay);
        if let Some(at) = self.users.hears_at(client, at) {
            let said = Box::new((reply, memory));
            self.queue.push(at, Event::OfRegions { host, client, said });
        }
    }

    /// What is left of regions where no program is.
    pub(super) fn regions_left(&mut self, host: usize) -> Option<String> {
        let control = &self.up(host)?.control;
        let (directory, memories) = (control.daemon.directory(), control.regions.count());
        let (regions, leases) = (directory.in_use(), directory.leases_in_use());
        let foreign = control.daemon.foreign_handles();
        let places = directory.places_taken();
        let is_empty = (regions, leases, foreign, memories, places) == ((0, 0, 0), (0, 0), 0, 0, 0);
        (!is_empty).then(|| {
            format!(
                "regions, handles, stamps {regions:?}, leases {leases:?}, handles to other hosts {foreign}, memories \
                 {memories}, places of users {places}"
            )
        })
    }
}
