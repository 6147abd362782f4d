//! A daemon in a thread of the test: the control protocol as the library sees it, and the engine's part for connections
//! "to another host", whose two ends are both sessions of this daemon.
//!
//! Owns the listeners, the sessions and their sockets. It must never look at a slot for which no doorbell rang: so a
//! ring that the library forgets is a test that hangs.
//!
//! 127.0.0.1 is this host (pairs), 127.0.0.2 the other one (lanes); both have the same listeners.

mod lanes;
mod pairs;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use control::{APP_VERSION, ChannelError, ChunkKind, Kind, Reason, Reply, Request, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shm::{Doorbell, EnginePage, Segment, Sharing, WakeSocket, Word32, end_sleep, must_wake, prepare_sleep};

use lanes::Lanes;
use pairs::Pairs;

pub(crate) const SLOTS: u32 = 256;
pub(crate) const HERE: &str = "127.0.0.1";
pub(crate) const THERE: &str = "127.0.0.2";
/// The next free port of any daemon: a library that falls back binds it at the kernel too, below the kernel's own
/// choices.
static NEXT_PORT: AtomicU16 = AtomicU16::new(21_000);

/// How the daemon differs from a friendly one.
#[derive(Clone)]
pub(crate) struct Options {
    /// Answer to Hello instead of Welcome.
    pub(crate) refuse: Option<Reply>,
    /// Ring size where the application names none.
    pub(crate) ring_bytes: u32,
    /// Slots of a pair segment.
    pub(crate) pair_slots: u32,
    /// Connects are not answered.
    pub(crate) mute: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { refuse: None, ring_bytes: 64 * 1024, pair_slots: 64, mute: false }
    }
}

/// What a test may look at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    pub(crate) sessions: usize,
    pub(crate) listeners: usize,
    pub(crate) lane_slots_used: usize,
    pub(crate) pair_slots_used: usize,
    pub(crate) accepted: u64,
    /// Connections over kernel TCP that stand: session and number.
    pub(crate) tcp: BTreeSet<(u64, u64)>,
    pub(crate) cancelled: u64,
    /// Doorbell slots taken from applications.
    pub(crate) doorbells: u64,
}

/// What a test may do to the daemon.
pub(crate) enum Command {
    /// Everything ends at once, as when killed.
    Die,
    /// Resets all lane connections.
    ResetLanes(Reason),
    /// Sends this to every application.
    Say(Reply),
    /// Sends bytes that are no message to every application.
    Garble,
}

pub(crate) struct FakeDaemon {
    _dir: tempfile::TempDir,
    path: PathBuf,
    commands: Sender<Command>,
    facts: Arc<Mutex<Facts>>,
    nudge: WakeSocket,
    thread: Option<JoinHandle<()>>,
}

impl FakeDaemon {
    pub(crate) fn start() -> Self {
        Self::start_with(Options::default())
    }

    pub(crate) fn start_with(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.sock");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listen = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&listen, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listen, 128).unwrap();
        let (commands, inbox) = channel();
        let (nudge, nudged) = WakeSocket::pair().unwrap();
        let facts = Arc::new(Mutex::new(Facts::default()));
        let mut daemon = Daemon::new(options, listen, inbox, nudged, Arc::clone(&facts));
        let thread = std::thread::spawn(move || daemon.run());
        Self { _dir: dir, path, commands, facts, nudge, thread: Some(thread) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn session(&self) -> raas::Session {
        raas::Session::connect(&self.path).unwrap()
    }

    pub(crate) fn facts(&self) -> Facts {
        self.facts.lock().unwrap().clone()
    }

    pub(crate) fn command(&self, command: Command) {
        let _ = self.commands.send(command);
        let _ = self.nudge.wake();
    }

    /// The daemon dies; returns when it is dead.
    pub(crate) fn die(&mut self) {
        self.command(Command::Die);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.command(Command::Die);
        if let Some(thread) = self.thread.take() {
            // A panic of the daemon is the test's failure, but not during another panic.
            let result = thread.join();
            if !std::thread::panicking() {
                result.unwrap();
            }
        }
    }
}

/// An attached application.
pub(crate) struct App {
    pub(crate) control: OwnedFd,
    pub(crate) wake: WakeSocket,
    pub(crate) memory: shm::Session,
    pub(crate) a2e: Doorbell,
    pub(crate) e2a: Doorbell,
    pub(crate) app_sleep: Word32,
    /// Generation of each slot, and whether it is in use.
    pub(crate) slots: Vec<(u32, bool)>,
    pub(crate) chunks: u32,
    pub(crate) pid: u32,
}

impl App {
    pub(crate) fn say(&self, reply: &Reply, fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        // A dead application is found when its socket is read.
        let _ = control::send_message(self.control.as_fd(), reply, &fds);
    }

    /// Tells the application that a slot changed.
    pub(crate) fn ring(&self, slot: u32) {
        self.e2a.ring(slot);
        if must_wake(&self.app_sleep) {
            let _ = self.wake.wake();
        }
    }
}

pub(crate) struct Listener {
    pub(crate) app: u64,
    pub(crate) kind: Kind,
    pub(crate) ring_bytes: u32,
    pub(crate) room: u32,
}

pub(crate) struct Daemon {
    pub(crate) options: Options,
    pub(crate) apps: BTreeMap<u64, App>,
    pub(crate) listeners: BTreeMap<u16, Listener>,
    pub(crate) next_id: u64,
    listen: OwnedFd,
    inbox: Receiver<Command>,
    nudged: WakeSocket,
    facts: Arc<Mutex<Facts>>,
    seen: Facts,
    page: Segment,
    engine_sleep: Word32,
    lanes: Lanes,
    pairs: Pairs,
}

impl Daemon {
    fn new(
        options: Options,
        listen: OwnedFd,
        inbox: Receiver<Command>,
        nudged: WakeSocket,
        facts: Arc<Mutex<Facts>>,
    ) -> Self {
        let page = Segment::create("fake-page", EnginePage::BYTES, Sharing::PeerReadOnly).unwrap();
        let engine_sleep = EnginePage::format(page.region().clone(), 1).unwrap().engine_sleep(0);
        Self {
            options,
            apps: BTreeMap::new(),
            listeners: BTreeMap::new(),
            next_id: 1,
            listen,
            inbox,
            nudged,
            facts,
            seen: Facts::default(),
            page,
            engine_sleep,
            lanes: Lanes::default(),
            pairs: Pairs::default(),
        }
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn run(&mut self) {
        loop {
            while let Ok(command) = self.inbox.try_recv() {
                match command {
                    Command::Die => return,
                    Command::ResetLanes(reason) => self.lanes.reset_all(&self.apps, reason),
                    Command::Say(reply) => self.apps.values().for_each(|app| app.say(&reply, &[])),
                    Command::Garble => self.apps.values().for_each(|app| {
                        let _ = control::send_frame(app.control.as_fd(), &[0xff; 9], &[]);
                    }),
                }
            }
            prepare_sleep(&self.engine_sleep);
            let idle = !self.pump_doorbells();
            if idle {
                self.publish_facts();
                self.sleep();
            }
            end_sleep(&self.engine_sleep);
            self.attach_new();
            let ids: Vec<u64> = self.apps.keys().copied().collect();
            for id in ids {
                self.read_app(id);
            }
            self.publish_facts();
        }
    }

    fn publish_facts(&mut self) {
        self.seen.sessions = self.apps.len();
        self.seen.listeners = self.listeners.len();
        self.seen.lane_slots_used =
            self.apps.values().map(|app| app.slots.iter().filter(|(_, used)| *used).count()).sum();
        self.seen.pair_slots_used = self.pairs.slots_used();
        *self.facts.lock().unwrap() = self.seen.clone();
    }

    fn sleep(&self) {
        let mut fds =
            vec![PollFd::new(&self.listen, PollFlags::IN), PollFd::from_borrowed_fd(self.nudged.fd(), PollFlags::IN)];
        for app in self.apps.values() {
            fds.push(PollFd::new(&app.control, PollFlags::IN));
            fds.push(PollFd::from_borrowed_fd(app.wake.fd(), PollFlags::IN));
        }
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
    }

    fn pump_doorbells(&mut self) -> bool {
        let mut any = false;
        let mut dirty = Vec::new();
        for (&id, app) in &mut self.apps {
            dirty.clear();
            while app.a2e.take(&mut dirty, 64) > 0 {}
            self.seen.doorbells += dirty.len() as u64;
            any |= !dirty.is_empty();
            self.lanes.mark(id, &dirty);
        }
        self.lanes.pump(&mut self.apps);
        any
    }

    fn attach_new(&mut self) {
        let _ = self.nudged.drain(&mut Vec::new());
        while let Ok(control) = rustix::net::accept_with(&self.listen, SocketFlags::CLOEXEC) {
            self.attach(control);
        }
    }

    fn attach(&mut self, control: OwnedFd) {
        let mut fds = [PollFd::new(&control, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 }));
        let mut buffer = Vec::new();
        let hello = control::recv_message::<Request>(control.as_fd(), &mut buffer);
        let Ok((Request::Hello { role, .. }, _)) = hello else { return };
        if let Some(refused) = &self.options.refuse {
            let _ = control::send_message(control.as_fd(), refused, &[]);
            return;
        }
        if role == Role::Inspector {
            return self.inspector(&control);
        }
        let bytes = shm::Session::bytes(SLOTS);
        let segment = Segment::create("fake-session", bytes, Sharing::ReadWrite).unwrap();
        let memory = shm::Session::format(segment.region().clone(), SLOTS, 1).unwrap();
        let (wake, theirs) = WakeSocket::pair().unwrap();
        let welcome = self.welcome(bytes);
        let fds = [segment.fd(), self.page.fd(), theirs.fd()];
        control::send_message(control.as_fd(), &welcome, &fds).unwrap();
        let pid = control::peer_credentials(&control).unwrap().pid;
        let app = App {
            control,
            wake,
            a2e: memory.a2e(0),
            e2a: memory.e2a(),
            app_sleep: memory.app_sleep(),
            memory,
            slots: vec![(0, false); SLOTS as usize],
            chunks: 0,
            pid,
        };
        let id = self.next_id();
        self.apps.insert(id, app);
    }

    fn welcome(&self, session_bytes: u64) -> Reply {
        Reply::Welcome {
            requires_encryption: false,
            version: APP_VERSION,
            release: "fake".into(),
            session: self.next_id + 1,
            slots: SLOTS,
            engines: 1,
            session_bytes,
            engine_page_bytes: EnginePage::BYTES,
            addresses: vec![HERE.parse().unwrap()],
        }
    }

    /// Two pages of one row each, then it leaves.
    fn inspector(&self, control: &OwnedFd) {
        control::send_message(control.as_fd(), &self.welcome(0), &[]).unwrap();
        let mut fds = [PollFd::new(control, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 }));
        let mut buffer = Vec::new();
        for id in [1, 2] {
            let asked = loop {
                match control::recv_message(control.as_fd(), &mut buffer) {
                    Err(ChannelError::WouldBlock) => {
                        let mut fds = [PollFd::new(control, PollFlags::IN)];
                        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 }));
                    }
                    other => break other,
                }
            };
            // It may have left after the first, not liking it.
            let Ok((Request::Inspect { request, from, .. }, _)) = asked else { return };
            assert_eq!(from.at, id - 1, "who asks brings back what it was told");
            let answer = control::InspectAnswer::Connections(vec![pairs::row(id)]);
            let next = (id == 1).then_some(control::Cursor { table: 7, at: id });
            let _ = control::send_message(control.as_fd(), &Reply::Inspected { request, answer, next }, &[]);
        }
    }

    fn read_app(&mut self, id: u64) {
        let mut buffer = Vec::new();
        loop {
            let Some(app) = self.apps.get(&id) else { return };
            let _ = app.wake.drain(&mut Vec::new());
            match control::recv_message::<Request>(app.control.as_fd(), &mut buffer) {
                Ok((request, fds)) => self.on_request(id, request, fds),
                Err(ChannelError::WouldBlock) => return,
                Err(_) => return self.detach(id),
            }
        }
    }

    fn detach(&mut self, id: u64) {
        // What it said before it left counts.
        while self.pump_doorbells() {}
        self.listeners.retain(|_, l| l.app != id);
        self.lanes.app_gone(&mut self.apps, id);
        self.pairs.app_gone(&self.apps, id);
        self.apps.remove(&id);
    }

    fn on_request(&mut self, id: u64, request: Request, fds: Vec<OwnedFd>) {
        match request {
            Request::Listen { request, port, ring_bytes, backlog, kind } => {
                self.on_listen((id, kind), request, port, ring_bytes, backlog);
            }
            Request::Unlisten { port } => {
                self.listeners.remove(&port);
            }
            Request::Accepted { port, .. } => {
                self.seen.accepted += 1;
                if let Some(listener) = self.listeners.get_mut(&port) {
                    listener.room += 1;
                }
            }
            Request::CancelConnect { .. } => self.seen.cancelled += 1,
            Request::Connect { request, to, ring_bytes, kind } => {
                self.on_connect((id, kind), request, to, ring_bytes);
            }
            Request::PairSegment { pair, index, slots, ring_bytes } => {
                self.pairs.on_segment(&self.apps, (pair, index), (slots, ring_bytes), fds.first().unwrap());
                self.pairs.progress(&self.apps);
            }
            Request::PairClosed { connection } => self.pairs.on_closed(connection),
            Request::TcpOpened { number, .. } => assert!(self.seen.tcp.insert((id, number))),
            Request::TcpClosed { number } => assert!(self.seen.tcp.remove(&(id, number))),
            other => panic!("the library sent {other:?}"),
        }
    }

    fn on_listen(&mut self, (app, kind): (u64, Kind), request: u64, port: u16, ring_bytes: u32, backlog: u32) {
        let port = if port == 0 { NEXT_PORT.fetch_add(1, Ordering::Relaxed) } else { port };
        let result = match self.listeners.entry(port) {
            Entry::Occupied(_) => Err(Reason::PortInUse),
            Entry::Vacant(place) => {
                place.insert(Listener { app, kind, ring_bytes, room: backlog });
                Ok(SocketAddr::new(HERE.parse().unwrap(), port))
            }
        };
        self.apps[&app].say(&Reply::Listening { request, result }, &[]);
    }

    fn on_connect(&mut self, (app, kind): (u64, Kind), request: u64, to: SocketAddr, ring_bytes: u32) {
        if self.options.mute {
            return;
        }
        let refuse = |reason| Reply::Connected { request, result: Err(reason) };
        let here: IpAddr = HERE.parse().unwrap();
        let there: IpAddr = THERE.parse().unwrap();
        if to.ip() != here && to.ip() != there {
            return self.apps[&app].say(&refuse(Reason::PeerUnreachable), &[]);
        }
        let Some(listener) = self.listeners.get_mut(&to.port()) else {
            return self.apps[&app].say(&refuse(Reason::NoListener), &[]);
        };
        if listener.kind != kind {
            return self.apps[&app].say(&refuse(Reason::WrongKind), &[]);
        }
        if listener.room == 0 {
            return self.apps[&app].say(&refuse(Reason::BacklogFull), &[]);
        }
        listener.room -= 1;
        let default = self.options.ring_bytes;
        let or_default = |bytes| if bytes == 0 { default } else { bytes };
        let (server, rings) = (listener.app, (or_default(ring_bytes), or_default(listener.ring_bytes)));
        let connection = self.next_id();
        if to.ip() == there {
            self.lanes.connect(&mut self.apps, connection, (app, request), (server, to), rings);
        } else {
            let slots = self.options.pair_slots;
            self.pairs.connect(&self.apps, connection, (app, request), (server, to), (slots, rings.0));
        }
    }
}

/// A chunk of `bytes` for an application, told to it.
pub(crate) fn add_chunk(app: &mut App, kind: ChunkKind, bytes: u64) -> (u32, shm::Region) {
    let segment = Segment::create("fake-chunk", bytes, Sharing::ReadWrite).unwrap();
    let chunk = app.chunks;
    app.chunks += 1;
    let reply = Reply::Chunk { chunk, kind, bytes };
    let _ = control::send_message(app.control.as_fd(), &reply, &[segment.fd()]);
    (chunk, segment.into_region())
}
