//! A simulated process: an application over the client core.
//!
//! It sleeps by the handshake of docs/inside/shared-memory.md whenever it has nothing to do, and is woken by the engine's wake or
//! by its own clock alone. It must never reach into the engine: it has shared memory and messages.

mod connections;
mod messages;
mod returning;
mod sockets;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::{ChunkKind, SocketTicket};
use raas_core::{Answer, DaemonMessage, EngineEnd, News, RequestId, SessionMemory, Wake};
use rand::rngs::StdRng;
use shm::{Doorbell, Session, Word32};
use verbs::{Region, Time};

use crate::address::address;
use crate::check::{AppUid, Asked, Checks, InRings, RecordId, Side};
use crate::conn::{Conn, Died, Fuse, earlier};
use crate::direct::SimSocket;
use crate::plan::{AppPlan, kind_of};
use sockets::Sockets;

pub use messages::Answers;
pub(crate) use messages::{Outbox, Reply, Request};

/// Notes that an engine is to be woken: the world does it when the process has run.
#[derive(Debug, Default)]
struct EngineWake(AtomicBool);

impl Wake for EngineWake {
    fn wake(&self) -> io::Result<()> {
        self.0.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The library gives a connection back that the application never had.
fn give_back(checks: &mut Checks, whose: (RecordId, Side)) {
    checks.on_abort(whose.0, whose.1);
    checks.on_closed(whose.0, whose.1);
}

/// What is known of a process that is not in.
#[derive(Debug, Default)]
pub(crate) struct Entering {
    /// It brings a session along.
    pub(crate) returns: bool,
    /// What its daemon says before it is in.
    pub(crate) held: Vec<Reply>,
}

/// A process.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) uid: AppUid,
    pub(crate) plan_index: usize,
    plan: AppPlan,
    rng: StdRng,
    pub(crate) session: Session,
    e2a: Doorbell,
    /// The client's session, of which the above is the memory.
    client: raas_core::Session,
    /// By engine.
    engine_wakes: Vec<Arc<EngineWake>>,
    app_sleep: Word32,
    /// What the daemon calls the making of a port.
    listens: BTreeMap<u16, RequestId>,
    /// By slot.
    pub(crate) conns: BTreeMap<u32, Conn>,
    open: usize,
    ready: BTreeSet<u32>,
    /// Slots whose streams have news of their TCP connections.
    directs: BTreeSet<u32>,
    timers: BTreeSet<(Time, u32)>,
    /// Connects of the plan that were not asked for yet, soonest last.
    to_connect: Vec<usize>,
    pub(crate) asked: BTreeMap<u64, Asked>,
    patience: BTreeMap<u64, Time>,
    cancelled: BTreeSet<u64>,
    /// Requests of the core, by the numbers that the daemon repeats.
    requests: BTreeMap<u64, RequestId>,
    to_listen: Vec<usize>,
    listening: BTreeSet<u16>,
    /// Ports at which connections wait, in the order in which they came.
    backlog: VecDeque<(u16, RecordId, Option<SimSocket>)>,
    next_accept: Time,
    sockets: Sockets,
    fuse: Fuse,
    scratch: Vec<u8>,
    pub(crate) is_ending: bool,
    left: bool,
    pub(crate) answers: Answers,
    /// When it runs next, as the world has it in its queue.
    pub(crate) run_at: Option<Time>,
    /// The life of the host in which its daemon started: that of the messages that it gets.
    pub(crate) life: u32,
    /// It has no daemon.
    is_away: bool,
    /// It is on its way to its daemon, and does nothing meanwhile.
    pub(crate) entering: Option<Entering>,
    /// The session as the next daemon gets it, and the datagram sockets in it with what is in their rings.
    brought: Option<Session>,
    pub(crate) sockets_brought: Vec<(SocketTicket, InRings)>,
    /// Its rings, for the next daemon.
    chunks: BTreeMap<u32, (ChunkKind, Region)>,
    /// Ports that the next daemon is to open again, and the numbers of these requests.
    relists: BTreeMap<u16, u64>,
    /// Messages to the daemon, and from it, arrive in order.
    pub(crate) to_daemon_at: Time,
    pub(crate) to_app_at: Time,
    timeout: Duration,
}

impl App {
    pub(crate) fn new(
        whose: (AppUid, usize),
        plan: &AppPlan,
        session: Session,
        engine_sleeps: Vec<Word32>,
        timeout: Duration,
        rng: StdRng,
    ) -> Self {
        let engine_wakes: Vec<_> = engine_sleeps.iter().map(|_| Arc::new(EngineWake::default())).collect();
        let end = |(sleep, wake): (Word32, &Arc<EngineWake>)| EngineEnd { sleep, wake: Arc::clone(wake) as _ };
        let engines = engine_sleeps.into_iter().zip(&engine_wakes).map(end).collect();
        let memory = SessionMemory { session: session.clone(), engines, can_rest: true, clock: None };
        let client = raas_core::Session::new(memory).expect("the system has a page of memory");
        let mut to_connect: Vec<usize> = (0..plan.connects.len()).collect();
        to_connect.sort_by_key(|i| std::cmp::Reverse((plan.connects[*i].at, *i)));
        Self {
            uid: whose.0,
            plan_index: whose.1,
            plan: plan.clone(),
            rng,
            e2a: session.e2a(),
            app_sleep: session.app_sleep(),
            session,
            client,
            engine_wakes,
            listens: BTreeMap::new(),
            conns: BTreeMap::new(),
            open: 0,
            ready: BTreeSet::new(),
            directs: BTreeSet::new(),
            timers: BTreeSet::new(),
            to_connect,
            asked: BTreeMap::new(),
            patience: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            requests: BTreeMap::new(),
            to_listen: (0..plan.listens.len()).rev().collect(),
            listening: BTreeSet::new(),
            backlog: VecDeque::new(),
            next_accept: Time::ZERO,
            sockets: Sockets::new(plan),
            fuse: Fuse(plan.crash_after),
            scratch: vec![0; plan.talk.copy_bytes],
            is_ending: false,
            left: false,
            answers: Answers::default(),
            run_at: None,
            life: 0,
            is_away: false,
            entering: None,
            brought: None,
            sockets_brought: Vec::new(),
            chunks: BTreeMap::new(),
            relists: BTreeMap::new(),
            to_daemon_at: Time::ZERO,
            to_app_at: Time::ZERO,
            timeout,
        }
    }

    /// Whether nothing is open, asked or going to be asked.
    pub(crate) fn is_idle(&self) -> bool {
        self.open == 0 && self.asked.is_empty() && self.to_connect.is_empty() && self.sockets.is_idle()
    }

    /// Connections that are not given back, connects without an answer.
    pub(crate) fn pending(&self) -> (usize, usize) {
        (self.open, self.asked.len())
    }

    /// Comes to an end: asks for nothing more, takes what waits, finishes what is open. With `leave` it exits then.
    pub(crate) fn end(&mut self) {
        self.is_ending = true;
        self.fuse = Fuse(None);
        self.plan.leave_at = None;
        self.to_connect.clear();
        self.ready.extend(self.sockets.end());
        self.next_accept = Time::ZERO;
        self.plan.listens.iter_mut().for_each(|l| (l.accept_gap, l.unlisten_at) = (Duration::ZERO, None));
        self.ready.extend(self.conns.iter().filter(|(_, c)| !c.closed).map(|(slot, _)| *slot));
    }

    /// Exits when it runs next.
    pub(crate) fn leave(&mut self, now: Time) {
        self.plan.leave_at = Some(now);
    }

    pub(crate) fn host(&self) -> usize {
        self.plan.host
    }

    /// Lets a connection write more; false if there is none that could.
    pub(crate) fn write_more(&mut self, slot: u32, bytes: u64) -> bool {
        self.ready.insert(slot);
        self.conns.get_mut(&slot).is_some_and(|c| c.write_more(bytes))
    }

    // ---- messages

    pub(crate) fn on_reply(&mut self, now: Time, reply: Reply, checks: &mut Checks) {
        match reply {
            Reply::Chunk { number, kind, region } => {
                self.chunks.insert(number, (kind, region.clone()));
                let chunk = DaemonMessage::Chunk { chunk: number, kind, region: Some(region), kept: None };
                self.hear(now, chunk, checks);
            }
            Reply::ChunkGone { number } => {
                self.chunks.remove(&number);
                self.hear(now, DaemonMessage::ChunkGone { chunk: number }, checks);
            }
            Reply::Listening { port, result } => {
                let result = result.map(|()| SocketAddr::new(address(self.plan.host), port));
                if let Some(request) = self.relists.remove(&port) {
                    self.on_relistened(now, request, result, checks);
                    return;
                }
                let Some(id) = self.listens.remove(&port) else { return };
                self.hear(now, DaemonMessage::Listening { request: id.number(), result }, checks);
                let answer = self.client.finish(id);
                if matches!(answer, Some(Answer::Listening(Ok(_)))) {
                    self.listening.insert(port);
                }
            }
            Reply::Paired { request } => {
                self.asked.remove(&request);
                self.patience.remove(&request);
                if let Some(id) = self.requests.remove(&request) {
                    drop(self.client.finish(id));
                }
            }
            Reply::Direct { connection, slot, socket } => {
                // One that is not there any more, or was not accepted, does not get it.
                if let Some(conn) = self.conns.get_mut(&slot)
                    && conn.take_direct(connection, socket, checks)
                {
                    self.on_direct_event(slot);
                }
            }
            Reply::Connected { request, result } => self.on_connected(now, request, result, checks),
            Reply::Bound { request, connection } => self.on_bound(now, request, connection, checks),
            Reply::Path { request, result } => {
                self.hear(now, DaemonMessage::DatagramPath { request, result }, checks);
                self.on_path(now, request, checks);
            }
            Reply::Incoming { port, connection, record, tcp } => {
                match self.hear(now, DaemonMessage::Incoming { port, connection }, checks) {
                    Some(News::Arrived(port)) => {
                        self.backlog.push_back((port, record, tcp));
                        self.open += 1;
                    }
                    // Nobody listens there any more: the library gives it back at once.
                    _ => give_back(checks, (record, Side::Acceptor)),
                }
            }
        }
    }

    /// Something happened on the TCP connection of the stream in a slot.
    pub(crate) fn on_direct_event(&mut self, slot: u32) {
        self.directs.insert(slot);
    }

    /// Has the client core follow a message of the daemon.
    fn hear(&mut self, now: Time, message: DaemonMessage, checks: &mut Checks) -> Option<News> {
        match self.client.on_message(message) {
            Ok(news) => Some(news),
            Err(fault) => {
                checks.fail(now, "connect", fault.to_string());
                None
            }
        }
    }

    /// The answer to a request of this process.
    fn answer(&mut self, request: u64) -> Option<Answer> {
        let id = self.requests.remove(&request)?;
        self.client.finish(id)
    }

    // ---- a run

    /// The process runs until it has nothing to do, then sleeps.
    pub(crate) fn run(&mut self, now: Time, checks: &mut Checks, address_of: fn(usize) -> IpAddr) -> Outbox {
        shm::end_sleep(&self.app_sleep);
        let mut out = Outbox::default();
        out.died = self.work(now, checks, &mut out, address_of).is_err();
        if out.died {
            return out;
        }
        let woken = (0..).zip(&self.engine_wakes).filter(|(_, wake)| wake.0.swap(false, Ordering::Relaxed));
        out.wakes = woken.map(|(engine, _)| engine).collect();
        out.again = self.next_at(now);
        shm::prepare_sleep(&self.app_sleep);
        if self.e2a.is_dirty() {
            shm::end_sleep(&self.app_sleep);
            out.again = Some(now);
        }
        out
    }

    fn work(
        &mut self,
        now: Time,
        checks: &mut Checks,
        out: &mut Outbox,
        address_of: fn(usize) -> IpAddr,
    ) -> Result<(), Died> {
        let mut dirty = Vec::new();
        while self.e2a.take(&mut dirty, 1024) > 0 {}
        self.ready.extend(dirty);
        for slot in std::mem::take(&mut self.directs) {
            if let Some(conn) = self.conns.get(&slot) {
                conn.on_direct_event();
                self.ready.insert(slot);
            }
        }
        self.fuse.point()?;
        if !self.is_away {
            self.say_outgoing(out);
            self.ask(now, checks, out, address_of)?;
        }
        self.accept(now, checks, out)?;
        if !self.is_away {
            self.ask_for_sockets(now, checks, out)?;
        }
        while let Some(&(at, slot)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.ready.insert(slot);
        }
        for slot in std::mem::take(&mut self.ready) {
            if self.run_socket(now, slot, checks)? {
                continue;
            }
            let Some(conn) = self.conns.get_mut(&slot) else { continue };
            let was_closed = conn.closed;
            let progress = conn.run(now, self.is_ending, checks, &mut self.fuse, &mut self.scratch)?;
            if conn.closed && !was_closed {
                self.open -= 1;
            }
            if let Some(at) = progress.again {
                self.timers.insert((at, slot));
            }
        }
        Ok(())
    }

    fn ask(
        &mut self,
        now: Time,
        checks: &mut Checks,
        out: &mut Outbox,
        address_of: fn(usize) -> IpAddr,
    ) -> Result<(), Died> {
        while let Some(index) = self.to_listen.pop() {
            let l = &self.plan.listens[index];
            let (id, _) = self.client.listen(l.port, l.backlog, l.ring_bytes, kind_of(l.port));
            self.listens.insert(l.port, id);
            out.requests.push(Request::Listen { port: l.port, backlog: l.backlog, ring_bytes: l.ring_bytes });
        }
        while let Some(&index) = self.to_connect.last()
            && self.plan.connects[index].at <= now
        {
            self.to_connect.pop();
            let c = &self.plan.connects[index];
            let socket = SocketAddr::new(address_of(c.to), c.port);
            let (id, _) = self.client.connect(socket, c.ring_bytes, kind_of(c.port));
            let (request, to) = (id.number(), (c.to, c.port));
            self.requests.insert(request, id);
            checks.causes.on_asked(to);
            self.asked.insert(request, Asked { at: now, from: self.plan.host, to, timeout: self.timeout });
            if let Some(patience) = c.patience {
                self.patience.insert(request, now + patience);
            }
            out.requests.push(Request::Connect { request, to: socket, ring_bytes: c.ring_bytes });
            self.fuse.point()?;
        }
        let late: Vec<u64> = self.patience.iter().filter(|(_, at)| **at <= now).map(|(r, _)| *r).collect();
        for request in late {
            self.patience.remove(&request);
            self.asked.remove(&request);
            self.cancelled.insert(request);
            if let Some(id) = self.requests.remove(&request) {
                let _cancel = self.client.cancel(id);
            }
            out.requests.push(Request::Cancel { request });
            self.fuse.point()?;
        }
        for index in 0..self.plan.listens.len() {
            let l = &mut self.plan.listens[index];
            let port = l.port;
            if l.unlisten_at.take_if(|at| *at <= now).is_some() && self.listening.remove(&port) {
                out.requests.push(Request::Unlisten { port });
                // What waits is not wanted any more.
                let _unlisten = self.client.unlisten(port);
                let open = &mut self.open;
                self.backlog.retain(|(at, record, _)| {
                    if *at == port {
                        give_back(checks, (*record, Side::Acceptor));
                        *open -= 1;
                    }
                    *at != port
                });
                self.fuse.point()?;
            }
        }
        if !self.left && self.plan.leave_at.is_some_and(|at| at <= now) {
            self.left = true;
            out.requests.push(Request::Bye);
        }
        Ok(())
    }

    fn accept(&mut self, now: Time, checks: &mut Checks, out: &mut Outbox) -> Result<(), Died> {
        while self.next_accept <= now
            && let Some((port, record, tcp)) = self.backlog.pop_front()
        {
            self.open -= 1;
            let Some((connection, _)) = self.client.accept(port) else {
                checks.fail(now, "connect", format!("no connection waits at port {port}, where one came"));
                return Ok(());
            };
            out.requests.push(Request::Accepted { port, connection: connection.endpoint.id() });
            if let Some(slot) = self.adopt(now, (*connection, tcp), (record, Side::Acceptor), checks)
                && let Some(conn) = self.conns.get_mut(&slot)
            {
                conn.accepted = true;
            }
            let gap = self.plan.listens.iter().find(|l| l.port == port).map_or(Duration::ZERO, |l| l.accept_gap);
            self.next_accept = now + gap;
            self.fuse.point()?;
        }
        Ok(())
    }

    fn next_at(&self, now: Time) -> Option<Time> {
        let mut next = self.timers.first().map(|t| t.0);
        if self.is_away {
            if !self.backlog.is_empty() {
                next = earlier(next, self.next_accept);
            }
            return next.map(|at| at.max(now));
        }
        if let Some(&index) = self.to_connect.last() {
            next = earlier(next, self.plan.connects[index].at);
        }
        if let Some(at) = self.patience.values().min() {
            next = earlier(next, *at);
        }
        for at in self.plan.listens.iter().filter_map(|l| l.unlisten_at) {
            next = earlier(next, at);
        }
        if !self.backlog.is_empty() {
            next = earlier(next, self.next_accept);
        }
        if let Some(at) = self.sockets.next_at() {
            next = earlier(next, at);
        }
        if let Some(at) = self.plan.leave_at.filter(|_| !self.left) {
            next = earlier(next, at);
        }
        next.map(|at| at.max(now))
    }
}

impl Drop for App {
    /// A process that leaves, or is killed, closes nothing: that is its daemon's part.
    fn drop(&mut self) {
        self.client.disown();
    }
}
