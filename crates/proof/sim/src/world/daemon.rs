//! The daemons' work for their own applications: sessions, requests, chunks, and what the engine has to say.

use control::{ChunkKind, Reason};
use dispatch::{Command, Report};
use engine::{AppId, Attach, Returned, RingSize, TenantPlace};
use plane::{Brought, ClientId, Newcomer, Party, ProgramFacts, ProgramRights};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shm::Session;
use verbs::{Region, Time};

use super::actions::name_of_listen;
use super::restarts::process_of;
use super::users::is_user;
use super::{Event, World};
use crate::address::At;
use crate::app::{App, Entering, Reply, Request};
use crate::check::{AppUid, RecordId, Side};
use crate::content::mix;
use crate::plan::kind_of;
use crate::regions::UID;

impl World {
    // ---- processes come

    /// Starts an application of the plan, if its host is up.
    pub(super) fn start_app(&mut self, index: usize) {
        let plan = self.plan.apps[index].clone();
        let host = plan.host;
        if self.quiet || self.up(host).is_none() {
            return;
        }
        self.attach(host, index);
    }

    fn attach(&mut self, host: usize, index: usize) {
        let now = self.now;
        let plan = self.plan.apps[index].clone();
        let uid = self.next_uid;
        self.next_uid += 1;
        let rng = StdRng::seed_from_u64(mix(self.plan.seed ^ mix(3 ^ u64::from(uid) << 8)));
        let timeout = self.hosts[host].plan.connect_timeout;
        let life = self.life(host);
        let Some(running) = self.up(host) else { return };
        let shape = running.control.shape;
        let session = Region::anonymous(Session::bytes(shape) as usize)
            .map_err(|e| e.to_string())
            .and_then(|region| Session::format(region, shape, life.into()).map_err(|e| e.to_string()));
        let session = match session {
            Ok(session) => session,
            Err(why) => return self.checks.fail(now, "set-up", format!("no session: {why}")),
        };
        let engine_sleeps = (0..running.engines.len() as u32).map(|n| running.page.engine_sleep(n)).collect();
        let mut app = App::new((uid, index), &plan, session, engine_sleeps, timeout, rng);
        app.life = life;
        app.entering = Some(Entering::default());
        running.apps.insert(uid, app);
        self.trace.note(now, "application {} on {} starts, plan {}", &[uid.into(), host as u64, index as u64]);
        if let Err(why) = self.take_in(host, uid, false) {
            self.checks.fail(now, "set-up", format!("application {uid} was not taken in: {why}"));
        }
    }

    /// Whose a process is.
    pub(super) fn user_of(&self, host: usize, uid: AppUid) -> u32 {
        let app = self.hosts[host].apps().find(|app| app.uid == uid);
        UID + app.map_or(0, |app| app.plan_index as u32 % self.plan.uids)
    }

    /// A process comes to its daemon.
    pub(super) fn take_in(&mut self, host: usize, uid: AppUid, returns: bool) -> Result<(), Reason> {
        let user = self.user_of(host, uid);
        let party = Party { client: ClientId(uid.into()), pid: 1000 + uid, uid: user };
        let facts = ProgramFacts { uid: user, ..ProgramFacts::default() };
        let newcomer = Newcomer { party, facts, process: Some(process_of(uid)), returns };
        let Some(running) = self.up(host) else { return Err(Reason::DaemonLost) };
        running.control.daemon.handle_attach(newcomer)?;
        self.settle_plane(host);
        Ok(())
    }

    /// The engines are to take a program in, with its session.
    pub(super) fn ask_engines(
        &mut self,
        host: usize,
        client: ClientId,
        rights: &ProgramRights,
        brought: Option<Vec<Brought>>,
    ) {
        if is_user(client) {
            return self.ask_engines_for_user(host, client, rights, brought);
        }
        let uid = client.0 as u32;
        let user = self.user_of(host, uid);
        let Some(app) = self.hosts[host].app_mut(uid) else { return };
        let used = app.used();
        let mut of = |brought: Brought| {
            let Brought { chunks, connections, sockets, refused } = brought;
            let chunks = chunks.into_iter().filter_map(|number| app.chunk(number)).collect();
            Returned { used: used.clone(), chunks, connections, sockets, refused }
        };
        let returned: Vec<Returned> = brought.into_iter().flatten().map(&mut of).collect();
        let session = app.session_for_daemon();
        let program = |session: Session| Attach {
            pid: 1000 + uid,
            uid: user,
            name: format!("app{uid}"),
            session,
            connect_to: rights.networks.clone(),
            // Of this table: policies of plans have one tenant.
            tenant: TenantPlace((uid % 3) as u16),
        };
        let mut returned = returned.into_iter().map(Box::new);
        for at in self.engines_of(host) {
            let (program, returned) = (program(session.clone()), returned.next());
            self.command(at, Command::Attach { client, program, returned });
        }
    }

    /// A program has its session.
    pub(super) fn welcome(&mut self, host: usize, client: ClientId) {
        if is_user(client) {
            return self.welcome_user(host, client);
        }
        let (now, life, uid) = (self.now, self.life(host), client.0 as u32);
        let Some(app) = self.up(host).and_then(|running| running.apps.get_mut(&uid)) else { return };
        let Some(Entering { returns, held }) = app.entering.take() else { return };
        if returns {
            app.on_returned(life);
            self.trace.note(now, "application {} on {} comes back", &[uid.into(), host as u64]);
        }
        held.into_iter().for_each(|reply| self.on_reply(host, life, uid, reply));
        self.wake_app(host, uid);
    }

    /// A program gets no session.
    pub(super) fn refuse_program(&mut self, host: usize, client: ClientId, reason: Reason, words: &str) {
        if is_user(client) {
            return self.refuse_user(host, client);
        }
        let uid = client.0 as u32;
        self.leave(host, client);
        let app = self.up(host).and_then(|running| running.apps.remove(&uid));
        let Some(app) = app else { return };
        if app.entering.as_ref().is_none_or(|entering| !entering.returns) {
            let detail = format!("application {uid} was not taken in: {reason}, {words}");
            return self.checks.fail(self.now, "set-up", detail);
        }
        self.end_orphan(app);
    }

    /// A program is gone.
    pub(super) fn leave(&mut self, host: usize, client: ClientId) {
        let Some(running) = self.up(host) else { return };
        running.control.daemon.handle_gone(client);
        running.control.handles.retain(|(of, _), _| *of != client);
        for at in self.engines_of(host) {
            let app = self.up(host).and_then(|running| running.control.names.app(client, at.engine));
            if let Some(app) = app {
                self.command(at, Command::Detach { app, reason: Reason::PeerAppDied });
            }
        }
    }

    // ---- requests

    pub(super) fn on_request(&mut self, host: usize, life: u32, uid: AppUid, request: Request) {
        let now = self.now;
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::ToDaemon { host, life, app: uid, request });
        }
        if self.up_in(host, life).is_none() {
            return;
        }
        let client = ClientId(uid.into());
        let request = match request {
            Request::Bye => return self.kill(host, uid),
            Request::Listen { port, backlog, ring_bytes } => {
                let request = name_of_listen(port, backlog);
                control::Request::Listen { request, port, backlog, ring_bytes, kind: kind_of(port) }
            }
            Request::Unlisten { port } => {
                self.checks.causes.on_unlistened(now, host, port);
                control::Request::Unlisten { port }
            }
            Request::Accepted { port, connection } => control::Request::Accepted { port, connection },
            Request::Connect { request, to, ring_bytes } => {
                control::Request::Connect { request, to, ring_bytes, kind: kind_of(to.port()) }
            }
            Request::Bind { request, port, ring_bytes } => control::Request::BindDatagram { request, port, ring_bytes },
            Request::Cancel { request } => control::Request::CancelConnect { request },
            Request::Path { request, to } => control::Request::DatagramPath { request, to },
        };
        self.ask_plane(host, client, request);
    }

    /// A program asks its daemon for something. One that is gone by now is not heard.
    pub(super) fn ask_plane(&mut self, host: usize, client: ClientId, request: control::Request) {
        let now = self.now;
        if let control::Request::RegionClose { open, .. } = &request
            && let Some(running) = self.up(host)
        {
            running.control.handles.remove(&(client, *open));
        }
        let taken = self.with_plane(host, |daemon, supply| {
            daemon.party(client).map(|_| daemon.handle_request(now, client, request, supply))
        });
        let left = match taken.flatten() {
            None => return,
            Some(Ok(None)) => Ok(()),
            Some(Ok(Some(request))) => self.on_system_request(host, client, request),
            Some(Err(fault)) => Err(fault),
        };
        if let Err(fault) = left {
            let detail = format!("program {client:?}, which keeps to the rules, broke them: {fault}");
            self.checks.fail(now, "set-up", detail);
        }
        self.settle_plane(host);
    }

    pub(super) fn on_hangup(&mut self, host: usize, life: u32, uid: AppUid) {
        let now = self.now;
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::Hangup { host, life, app: uid });
        }
        let Some(running) = self.up_in(host, life) else { return };
        let client = ClientId(uid.into());
        if running.control.daemon.party(client).is_none() {
            return;
        }
        self.leave(host, client);
        self.settle_plane(host);
        self.checks.causes.on_owner_gone(now, uid);
    }

    pub(super) fn reply_to(&mut self, host: usize, uid: AppUid, reply: Reply) {
        let life = self.life(host);
        if let Some(at) = self.app_hears_at(host, uid) {
            self.queue.push(at, Event::ToApp { host, life, app: uid, reply: Box::new(reply) });
        }
    }

    /// When a process hears what its daemon says now, in order. None: it is gone.
    pub(super) fn app_hears_at(&mut self, host: usize, uid: AppUid) -> Option<Time> {
        let at = self.now + self.some(self.plan.daemon_delay_max);
        let app = self.up(host)?.apps.get_mut(&uid)?;
        app.to_app_at = app.to_app_at.max(at);
        Some(app.to_app_at)
    }

    pub(super) fn on_reply(&mut self, host: usize, life: u32, uid: AppUid, reply: Reply) {
        let now = self.now;
        // What a daemon said before it was killed is read all the same.
        let Some(app) = self.hosts[host].app_mut(uid).filter(|app| app.life == life) else { return };
        if let Some(entering) = &mut app.entering {
            return entering.held.push(reply);
        }
        app.on_reply(now, reply, &mut self.checks);
        self.wake_app(host, uid);
    }

    // ---- chunks

    /// Makes ring memory, and announces it to the program before the engine may use it.
    pub(super) fn make_chunks(&mut self, (at, client, app): (At, ClientId, AppId), size: RingSize, rings: u32) {
        let (host, now) = (at.host, self.now);
        if !is_user(client) && self.rng.random_range(0..1000) < self.plan.chunk_refusals && !self.quiet {
            return self.command(at, Command::ChunksRefused { app, size, reason: Reason::LocalLimit });
        }
        let bytes = size.grown as usize * rings as usize;
        let (Ok(tx), Ok(rx)) = (Region::anonymous(bytes), Region::anonymous(bytes)) else {
            return self.checks.fail(now, "set-up", "no memory for rings".into());
        };
        let Some(running) = self.up(host) else { return };
        let first = running.next_chunk;
        running.next_chunk += 2;
        let (tx, rx) = ((first, tx), (first + 1, rx));
        if is_user(client) {
            self.give_chunks(client, [tx.clone(), rx.clone()]);
        } else {
            let uid = client.0 as u32;
            for (kind, (number, region)) in [(ChunkKind::Tx, tx.clone()), (ChunkKind::Rx, rx.clone())] {
                self.reply_to(host, uid, Reply::Chunk { number, kind, region });
            }
        }
        self.command(at, Command::AddChunks { app, size, tx, rx });
    }

    // ---- what the engine says

    /// The checkers see what an engine says when it says so; the control plane hears it soon.
    pub(super) fn on_engine_event(&mut self, at: At, event: engine::Event) {
        let (now, host, engine) = (self.now, at.host, at.engine);
        let uid = |world: &mut Self, id: AppId| world.driven(at).and_then(|d| d.uids.get(&id).copied());
        match &event {
            engine::Event::PeerWanted { peer, lane } => self.on_lane_wanted(at, *peer, *lane),
            engine::Event::Connected { app, request, result } => {
                let code = result.as_ref().err().map_or(0, |r| r.code());
                if let Some(uid) = uid(self, *app) {
                    self.trace.note(
                        now,
                        "connect {} of application {} answered, {}",
                        &[*request, uid.into(), code.into()],
                    );
                    let connection = result.as_ref().ok().filter(|connection| connection.peer.port() != 0);
                    if let Some(connection) = connection
                        && let Some(record) = self.checks.on_connected(now, host, uid, connection)
                    {
                        self.note_untold(host, connection.id, (record, Side::Connector));
                    }
                }
            }
            engine::Event::Incoming { app, port, connection } => {
                if let Some(uid) = uid(self, *app) {
                    let record = self.checks.on_incoming(now, host, uid, connection);
                    self.trace.note(
                        now,
                        "connection {} comes in at {}:{}",
                        &[record.0.into(), host as u64, u64::from(*port)],
                    );
                    self.note_untold(host, connection.id, (record, Side::Acceptor));
                }
            }
            engine::Event::AppFault { app, detail } => {
                let detail = format!("host {host} threw {app:?} out, which kept to the rules: {detail}");
                self.checks.fail(now, "unexplained", detail);
            }
            engine::Event::LaneFailed { peer, lane, reason, detail } => {
                self.on_lane_failed(at, (*peer, *lane), *reason, detail);
            }
            engine::Event::LaneReset { peer, lane, detail, .. } => self.on_lane_reset(at, (*peer, *lane), detail),
            engine::Event::LaneRests { peer, .. } => self.on_lane_rests(at, *peer),
            engine::Event::KernelRan { .. } => {
                self.checks.fail(now, "unexplained", format!("host {host}: {event:?}, for which nobody asked"));
            }
            engine::Event::StrangePort { peer, found, .. } => {
                let detail = format!("host {host} saw {peer} send from port {found}, but each host sends from its own");
                self.checks.fail(now, "unexplained", detail);
            }
            engine::Event::AppGone { app } => {
                let Some(running) = self.up(host) else { return };
                if let Some(uid) = running.engine(engine).and_then(|d| d.uids.remove(app))
                    && running.apps.contains_key(&uid)
                {
                    self.checks.fail(now, "release", format!("application {uid} is gone for the engine, but lives"));
                }
            }
            _ => {}
        }
        self.report(at, Report::Event(event));
    }

    fn note_untold(&mut self, host: usize, connection: u64, whose: (RecordId, Side)) {
        self.up(host).into_iter().for_each(|running| _ = running.control.untold.insert(connection, whose));
    }

    /// Time zero of what an application of the plan may do, for one that is started later.
    pub(super) fn start_at(&mut self, index: usize, at: Time) {
        self.queue.push(at, Event::Start { plan: index });
    }

    /// Each number that the engine got comes back once.
    pub(super) fn take_number(&mut self, host: usize, number: u64) {
        if self.up(host).is_some_and(|r| r.control.numbers.remove(&number).is_none()) {
            let detail = format!("host {host}: number {number} is over twice, or was never the engine's");
            self.checks.fail(self.now, "release", detail);
        }
    }
}
