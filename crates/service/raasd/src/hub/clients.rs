//! Programs: attaching, their requests, detaching.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use control::{APP_VERSION, ChunkKind, Reason, Reply, Request, Role};
use dispatch::Command;
use engine::{AppId, Attach, Returned, RingSize};
use plane::{Brought, ClientId, Newcomer, PAIR_SLOTS, Party, ProgramRights};
use receivers::Verdict;
use shm::{Pair, Segment, Session, SessionShape, Sharing, WakeSocket};
use tokio::sync::Notify;

use super::actions::System;
use super::tenants::place_of;
use super::{Attaching, Client, Hub, Stage};
use crate::client_socket::{ClientInput, Entering, NotQueued, OutQueue, Outgoing, ProgramIdentity};
use crate::command::{self, AppWake};
use crate::questions::QuestionPlace;
use crate::receiving::{With, memory_of};

/// Memory that a program and the daemon write. Where a first access may raise SIGBUS it has all its pages at once.
fn make_segment(name: &str, bytes: u64) -> Result<Segment, shm::SegmentError> {
    let segment = Segment::create(name, bytes, Sharing::ReadWrite)?;
    if shm::overcommit_is_strict() {
        segment.allocate(bytes)?;
    }
    Ok(segment)
}

/// What a program is told that does not get a session.
fn refused(reason: Reason) -> Reply {
    let detail = reason.to_string();
    let (layout, release) = (shm::LAYOUT_VERSION, env!("CARGO_PKG_VERSION").into());
    Reply::Refused { version: APP_VERSION, layout, release, reason, detail }
}

impl Hub {
    pub(super) fn on_client(&mut self, input: ClientInput) {
        match input {
            ClientInput::Opened { client, who, out, hung_up, entering } => {
                self.on_opened(client, who, (out, hung_up), entering);
            }
            ClientInput::Request { client, request, with, turn } => {
                self.turn = Some(Arc::new(turn));
                if let Err(fault) = self.on_request(client, request, with) {
                    self.throw_out(client, &fault);
                }
            }
            ClientInput::Closed { client, fault } => {
                if let Some(who) = self.clients.get(&client).map(|c| c.who.clone()) {
                    if let Some(left_out) = self.may_log() {
                        match &fault {
                            Some(fault) => {
                                let ProgramIdentity { pid, uid, name, .. } = &who;
                                tracing::warn!(pid, uid, name, fault, left_out, "detached a program");
                            }
                            // Tools come and go all the time.
                            None if who.role == Role::Inspector => {}
                            None => tracing::info!(pid = who.pid, name = who.name, left_out, "a program left"),
                        }
                    }
                    self.forget(client);
                }
            }
        }
    }

    /// Whether a line about a program may be written; how many were left out before.
    pub(super) fn may_log(&mut self) -> Option<Option<u64>> {
        self.log.take(std::time::Instant::now())
    }

    // ---- attaching

    fn on_opened(
        &mut self,
        client: ClientId,
        who: ProgramIdentity,
        (out, hung_up): (OutQueue, Arc<Notify>),
        entering: Entering,
    ) {
        let (stage, entering) = match who.role {
            Role::Inspector => (Stage::Inspector, None),
            // One that brings a session along goes on at its own pace.
            Role::Returning => (Stage::Returning(None), None),
            Role::Application => (Stage::Attaching(Attaching::default()), Some(entering)),
        };
        let is_inspector = matches!(stage, Stage::Inspector);
        if !is_inspector {
            let ProgramIdentity { pid, uid, facts, process, role, .. } = who.clone();
            let (party, returns) = (Party { client, pid, uid }, role == Role::Returning);
            if let Err(reason) = self.daemon.handle_attach(Newcomer { party, facts, process, returns }) {
                if let Some(left_out) = self.may_log() {
                    tracing::warn!(pid, %reason, left_out, "no more programs are taken in");
                }
                out.send_last(Outgoing::new(&refused(reason), Vec::new()));
                return;
            }
        }
        let question = QuestionPlace::default();
        self.clients.insert(client, Client { who, out, hung_up, stage, next_chunk: 0, question, entering });
        if is_inspector {
            self.send(client, self.welcome(client, true), Vec::new());
        }
    }

    /// Has the engines take a program in, with its session.
    pub(super) fn attach(&mut self, client: ClientId, rights: &ProgramRights, brought: Option<Vec<Brought>>) {
        let Some(place) = self.clients.get_mut(&client) else { return };
        let who = place.who.clone();
        let returned = match &mut place.stage {
            Stage::Returning(returned) => returned.take(),
            _ => None,
        };
        let asked = match (returned, brought) {
            (Some(returned), Some(brought)) => {
                let (session, returned) = returned.shared(brought);
                self.ask_engines(client, &who, (&session, rights), returned)
            }
            _ => self.make_session(client, &who, rights),
        };
        match (asked, self.clients.get_mut(&client)) {
            (Ok(fds), Some(place)) => place.stage = Stage::Attaching(Attaching { fds, held: Vec::new() }),
            (Ok(_), None) => {}
            (Err(error), _) => self.daemon.on_not_asked(client, error.to_string()),
        }
    }

    /// Makes the session and asks the engines; says which descriptors the program gets.
    fn make_session(
        &mut self,
        client: ClientId,
        who: &ProgramIdentity,
        rights: &ProgramRights,
    ) -> io::Result<Vec<OwnedFd>> {
        let other = |e: &dyn std::fmt::Display| io::Error::other(e.to_string());
        let bytes = Session::bytes(self.shape);
        let segment = make_segment("raas-session", bytes).map_err(|e| other(&e))?;
        let session_fd = segment.fd().try_clone_to_owned()?;
        let session = Session::format(segment.into_region(), self.shape, self.epoch).map_err(|e| other(&e))?;
        let mut fds = vec![session_fd];
        fds.extend(self.ask_engines(client, who, (&session, rights), Vec::new())?);
        Ok(fds)
    }

    /// Asks the engines to take a program in; says which descriptors it gets beside its session's.
    fn ask_engines(
        &mut self,
        client: ClientId,
        who: &ProgramIdentity,
        (session, rights): (&Session, &ProgramRights),
        returned: Vec<Returned>,
    ) -> io::Result<Vec<OwnedFd>> {
        let mut fds = vec![self.engine_page.as_fd().try_clone_to_owned()?];
        let mut wakes: Vec<Arc<WakeSocket>> = Vec::new();
        for _ in 0..self.engines.count() {
            let (ours, theirs) = WakeSocket::pair()?;
            wakes.push(Arc::new(ours));
            fds.push(theirs.into_fd());
        }
        let Some(told) = wakes.first().cloned() else { return Err(io::Error::other("a daemon without engines")) };
        let mut returned = returned.into_iter().map(Box::new);
        for (engine, heard) in (0..).zip(wakes) {
            let (session, wake) = (session.clone(), AppWake { heard, told: Arc::clone(&told) });
            let (connect_to, tenant) = (rights.networks.clone(), place_of(rights));
            let attach = Attach { pid: who.pid, uid: who.uid, name: who.name.clone(), session, connect_to, tenant };
            let command = command::Command::Attach { client, attach, wake, returned: returned.next() };
            self.engines.queue(engine, command);
        }
        Ok(fds)
    }

    fn welcome(&self, client: ClientId, inspector: bool) -> Reply {
        let SessionShape { slots, engines } = self.shape;
        let (slots, engines, session_bytes, engine_page_bytes) =
            if inspector { (0, 0, 0, 0) } else { (slots, engines, Session::bytes(self.shape), shm::EnginePage::BYTES) };
        Reply::Welcome {
            version: APP_VERSION,
            release: env!("CARGO_PKG_VERSION").into(),
            session: client.0,
            slots,
            engines,
            session_bytes,
            engine_page_bytes,
            addresses: self.addresses.clone(),
            requires_encryption: self.daemon.requires_encryption(),
        }
    }

    /// A program has its session.
    pub(super) fn on_welcome(&mut self, id: ClientId) {
        let left_out = self.may_log();
        let Some(client) = self.clients.get_mut(&id) else { return };
        let ProgramIdentity { pid, uid, name, .. } = &client.who;
        if let Some(left_out) = left_out {
            tracing::info!(pid, uid, name, left_out, "a program attached");
        }
        client.entering = None;
        if let Stage::Attaching(Attaching { fds, held }) = std::mem::replace(&mut client.stage, Stage::Attached) {
            self.send(id, self.welcome(id, false), fds);
            held.into_iter().for_each(|outgoing| self.send_shared(id, outgoing));
        }
    }

    /// A program does not get a session.
    pub(super) fn refuse(&mut self, id: ClientId, reason: Reason, why: &str) {
        let left_out = self.may_log();
        let Some(client) = self.clients.get(&id) else { return };
        if let Some(left_out) = left_out {
            let (pid, uid) = (client.who.pid, client.who.uid);
            tracing::warn!(pid, uid, %reason, why, left_out, "a program is not taken in");
        }
        client.out.send_last(Outgoing::new(&refused(reason), Vec::new()));
        self.forget(id);
    }

    /// A command to all engines about a program that they have taken in.
    pub(super) fn command_all_of(&mut self, client: ClientId, command: impl Fn(AppId) -> Command) {
        for engine in 0..self.engines.count() {
            if let Some(app) = self.names.app(client, engine) {
                self.command(engine, command(app));
            }
        }
    }

    // ---- requests

    /// An error is what the program did wrong.
    fn on_request(&mut self, id: ClientId, request: Request, with: With) -> Result<(), String> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        let party = Party { client: id, pid: client.who.pid, uid: client.who.uid };
        match request {
            Request::Inspect { request, query, from } => return self.on_question(id, request, query, from),
            Request::Lookup { request, name } => return self.on_lookup(id, request, &name),
            _ => {}
        }
        let Some(request) = self.daemon.handle_operator(party, request) else { return Ok(()) };
        if let Request::NotTaken { what, limit } = &request
            && let Some(Client { stage: Stage::Attached, .. }) = self.clients.get(&id)
        {
            self.log_own_limit(id, what, *limit);
        }
        match self.daemon.handle_request(self.link_context.now(), id, request, &mut System)? {
            Some(request) => self.on_system_request(id, request, with),
            None => Ok(()),
        }
    }

    /// What needs the system: memory and sockets.
    fn on_system_request(&mut self, id: ClientId, request: Request, with: With) -> Result<(), String> {
        match request {
            Request::PairSegment { pair, index, slots, ring_bytes } => {
                self.on_pair_segment(id, pair, index, (slots, ring_bytes), with)
            }
            Request::Meet { request, end } => self.on_meet(id, request, end, with),
            Request::RegionInstall { request, open, kernel, module } => {
                self.on_install(id, request, open, (kernel, module));
                Ok(())
            }
            Request::RegionRun { request, open, others, bytes } => self.on_run(id, request, (open, others), bytes),
            Request::Hello { .. } => Err("Hello a second time".into()),
            Request::Return { .. } | Request::ReturnChunk { .. } => self.on_return(id, request, with),
            // The machine that decides gives back no other one.
            _ => Err("a request that nothing in this daemon answers".into()),
        }
    }

    fn on_pair_segment(
        &mut self,
        client: ClientId,
        pair: u64,
        index: u32,
        shape: (u32, u32),
        with: With,
    ) -> Result<(), String> {
        if matches!(with, Verdict::NoRoom) {
            self.on_own_limit(client, pair, index);
            return Ok(());
        }
        let fd = memory_of(&with, "a pair segment")?;
        if !self.daemon.expects_segment(client, pair, index, shape)? {
            return Ok(());
        }
        let (slots, ring_bytes) = (PAIR_SLOTS, shape.1);
        let bytes = Pair::bytes(slots, ring_bytes);
        let segment = Segment::accept(fd, bytes, Sharing::PeerReadOnly).map_err(|e| e.to_string())?;
        if shm::overcommit_is_strict() {
            // The words, which `raas ss` reads. Nobody can punch holes into a segment that is sealed against writes.
            segment.allocate(Pair::words_bytes(slots)).map_err(|e| e.to_string())?;
        }
        let Ok(fd) = segment.fd().try_clone_to_owned() else {
            self.on_own_limit(client, pair, index);
            return Ok(());
        };
        let view = Pair::open(segment.into_region(), slots, ring_bytes).map_err(|e| e.to_string())?;
        self.daemon.handle_segment(pair, index, fd.into(), view);
        Ok(())
    }

    // ---- rings

    /// Makes ring memory, and announces it to the program before the engine may use it.
    pub(super) fn on_chunks_wanted(&mut self, (engine, id, app): (u32, ClientId, AppId), size: RingSize, rings: u32) {
        let bytes = u64::from(size.grown) * u64::from(rings);
        let make = |name| {
            let segment = make_segment(name, bytes).map_err(|e| e.to_string())?;
            let fd = segment.fd().try_clone_to_owned().map_err(|e| e.to_string())?;
            Ok::<_, String>((segment.into_region(), fd))
        };
        // Both are made before the program learns of one.
        let (tx, rx) = match make("raas-tx").and_then(|tx| Ok((tx, make("raas-rx")?))) {
            Ok(both) => both,
            Err(error) => {
                if let Some(left_out) = self.may_log() {
                    tracing::warn!(bytes, %error, left_out, "no memory for rings");
                }
                return self.command(engine, Command::ChunksRefused { app, size, reason: Reason::LocalLimit });
            }
        };
        let mut sent = Vec::new();
        for ((region, fd), kind) in [(tx, ChunkKind::Tx), (rx, ChunkKind::Rx)] {
            let Some(client) = self.clients.get_mut(&id) else { return };
            let chunk = client.next_chunk;
            client.next_chunk = client.next_chunk.wrapping_add(1);
            self.send(id, Reply::Chunk { chunk, kind, bytes }, vec![fd]);
            sent.push((chunk, region));
        }
        if let (Some(rx), Some(tx)) = (sent.pop(), sent.pop()) {
            self.command(engine, Command::AddChunks { app, size, tx, rx });
        }
    }

    // ---- sending and detaching

    /// Queues a message; a program whose queue is full does not read, and is detached.
    pub(super) fn send(&mut self, id: ClientId, reply: Reply, fds: Vec<OwnedFd>) {
        self.send_shared(id, Outgoing::new(&reply, fds));
    }

    /// As [`Self::send`], with descriptors that others may get too.
    pub(super) fn send_shared(&mut self, id: ClientId, outgoing: Outgoing) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if let Stage::Attaching(attaching) = &mut client.stage {
            return attaching.held.push(outgoing);
        }
        if let Err(error) = client.out.send(outgoing) {
            self.on_unsent(id, error);
        }
    }

    /// A message could not be queued: the program has ended just now, which is no fault, or does not read.
    pub(super) fn on_unsent(&mut self, id: ClientId, why: NotQueued) {
        let words = "it does not read its control socket";
        match why {
            NotQueued::Ended => self.detach(id, Reason::AppFault, words),
            NotQueued::Unread => self.throw_out(id, words),
        }
    }

    /// The program broke the rules.
    pub(super) fn throw_out(&mut self, id: ClientId, fault: &str) {
        if let Some(Client { who, .. }) = self.clients.get(&id)
            && let Some(left_out) = self.log.take(std::time::Instant::now())
        {
            tracing::warn!(pid = who.pid, uid = who.uid, name = who.name, fault, left_out, "detached a program");
        }
        self.detach(id, Reason::AppFault, fault);
    }

    /// Usually the program died. Its control socket shows that after the program's last messages. If the program were
    /// detached before these were read, they would be lost, for instance the acceptance of a connection that ended in
    /// order. So the control socket decides, and its reader ends a socket that stays open.
    pub(super) fn on_wake_hangup(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get(&id) {
            client.hung_up.notify_one();
        }
    }

    /// Detaches a program, with words for it but none in the log.
    pub(super) fn detach(&mut self, id: ClientId, reason: Reason, fault: &str) {
        let Some(client) = self.clients.get(&id) else { return };
        let reply = Reply::Detached { reason, detail: fault.into() };
        client.out.send_last(Outgoing::new(&reply, Vec::new()));
        self.forget(id);
    }

    /// Removes a program that has ended. An engine that detached it by itself takes no notice.
    pub(super) fn forget(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else { return };
        self.daemon.handle_gone(id);
        self.command_all_of(id, |app| Command::Detach { app, reason: Reason::PeerAppDied });
        self.questions.handle_gone(id, client.who.uid);
        self.installs.handle_gone(id, client.who.uid);
        shm::give_heap_back_soon();
    }
}
