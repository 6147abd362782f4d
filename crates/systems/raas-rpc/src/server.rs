//! The server: a port on which clients of every transport are taken.
//!
//! Owns the settings, and the threads from start to stop. A server that is dropped stops: calls that run end first.

mod clients;
mod connection;
mod execute;
mod group;
mod member;
mod ring;
mod seats;
mod slabs;
mod slices;
mod spin;
mod turns;
mod work;
mod worker;

use std::collections::HashMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use raas::{AcceptError, ListenOptions, MessageListener, MessageStream, Session};

use crate::error::ServeError;
use crate::layout::Layout;
use crate::once::WINDOW_MAX;
use crate::service::Service;
use clients::Clients;
use slabs::Slabs;

/// How often a thread that waits looks whether the server stops.
const TICK: Duration = Duration::from_millis(200);
/// The pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Most threads that look at slots.
const WORKERS_MAX: u16 = 64;
/// Most clients that have a turn at a time.
const GROUP_MAX: u16 = 1024;
/// A group grows to so many times its size, unless that is set.
const WIDEST: u16 = 12;
/// Longest request or response.
const PAYLOAD_BYTES_MAX: u32 = 1 << 20;
/// A frame's bytes beside its payload, at most.
const FRAME_BYTES: u32 = 64;
/// The daemon's default size of a ring, and the largest.
const RING_BYTES_USUAL: u32 = 512 << 10;
const RING_BYTES_MAX: u32 = 8 << 20;
/// Most clients of a server.
const CLIENTS_MAX: u32 = 65_536;

/// A lock whose holder panicked is taken all the same: the state is changed in single steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct ServerBuilder {
    session: Option<Session>,
    pub(crate) window: u16,
    pub(crate) request_bytes_max: u32,
    pub(crate) response_bytes_max: u32,
    pub(crate) clients_max: u32,
    pub(crate) forget_after: Duration,
    pub(crate) workers: u16,
    pub(crate) group: u16,
    widest: Option<u16>,
    pub(crate) awake: Duration,
}

impl Default for ServerBuilder {
    fn default() -> Self {
        Self {
            session: None,
            window: 16,
            request_bytes_max: 4096,
            response_bytes_max: 4096,
            clients_max: 512,
            forget_after: Duration::from_secs(60),
            workers: 1,
            group: 40,
            widest: None,
            awake: Duration::from_millis(4),
        }
    }
}

impl ServerBuilder {
    /// The session to serve in. Default: the process-wide one.
    #[must_use]
    pub fn session(mut self, session: &Session) -> Self {
        self.session = Some(session.clone());
        self
    }

    /// Calls that one client may have under way, 1 to 256. Default: 16. The server keeps as many responses for it.
    #[must_use]
    pub fn window(mut self, calls: u16) -> Self {
        self.window = calls;
        self
    }

    /// The longest request, to 1 MiB. Default: 4096 bytes.
    #[must_use]
    pub fn request_bytes_max(mut self, bytes: u32) -> Self {
        self.request_bytes_max = bytes;
        self
    }

    /// The longest response, to 1 MiB. Default: 4096 bytes.
    #[must_use]
    pub fn response_bytes_max(mut self, bytes: u32) -> Self {
        self.response_bytes_max = bytes;
        self
    }

    /// Clients that are served or remembered, 1 to 65,536. Default: 512. One more is refused with
    /// [`Refusal::TooManyClients`](crate::Refusal::TooManyClients), unless one that left can be forgotten.
    #[must_use]
    pub fn clients_max(mut self, clients: u32) -> Self {
        self.clients_max = clients;
        self
    }

    /// How long a client that left is remembered: it may come back and learn what became of its calls. Default: 60 s.
    #[must_use]
    pub fn forget_after(mut self, time: Duration) -> Self {
        self.forget_after = time;
        self
    }

    /// Threads that look at slots and execute the calls that come there, 0 to 64. Default: 1. With 0 only
    /// [`Transport::Messages`](crate::Transport::Messages) is offered, each of whose connections has a thread of its own. A client's slots belong to
    /// one thread, which executes its calls one after the other.
    #[must_use]
    pub fn workers(mut self, threads: u16) -> Self {
        self.workers = threads;
        self
    }

    /// With [`Transport::Scale`](crate::Transport::Scale), clients that have a turn at a time, for each worker: 1 to
    /// 1024. Default: 40, as in the paper. A worker that waits for them lets more in, up to [`ServerBuilder::widest`].
    #[must_use]
    pub fn group(mut self, clients: u16) -> Self {
        self.group = clients;
        self
    }

    /// To how many clients a group grows, at least its own size and at most 1024. Default: 12 times its size, or 1024. A
    /// worker has so many seats in its memory, and three for each client of a group that has not grown.
    #[must_use]
    pub fn widest(mut self, clients: u16) -> Self {
        self.widest = Some(clients);
        self
    }

    /// How long a thread goes on looking at its slots after the last request, before it sleeps: 1 ms to 1 s. Default: 4
    /// ms. While it looks, its processor is busy; the first request after it slept has to wake it.
    #[must_use]
    pub fn awake(mut self, time: Duration) -> Self {
        self.awake = time;
        self
    }

    /// Size of a connection's rings: a client's whole window fits, in both directions, so neither side waits for the
    /// other to read first. 0: the daemon's default is enough.
    fn ring_bytes(&self) -> u32 {
        let longest = self.request_bytes_max.max(self.response_bytes_max) + FRAME_BYTES;
        let wanted = longest.saturating_mul(self.window.into());
        if wanted <= RING_BYTES_USUAL { 0 } else { wanted.min(RING_BYTES_MAX).next_power_of_two() }
    }

    pub(crate) fn group_max(&self) -> u16 {
        self.widest.unwrap_or_else(|| self.group.saturating_mul(WIDEST).min(GROUP_MAX))
    }

    fn check(&self) -> Result<(), ServeError> {
        let is_between = |name, value: u64, low: u64, high: u64, range| {
            if (low..=high).contains(&value) { Ok(()) } else { Err(ServeError::Setting { name, value, range }) }
        };
        is_between("window", self.window.into(), 1, WINDOW_MAX.into(), "1 to 256")?;
        is_between("request_bytes_max", self.request_bytes_max.into(), 0, PAYLOAD_BYTES_MAX.into(), "0 to 1 MiB")?;
        is_between("response_bytes_max", self.response_bytes_max.into(), 0, PAYLOAD_BYTES_MAX.into(), "0 to 1 MiB")?;
        is_between("clients_max", self.clients_max.into(), 1, CLIENTS_MAX.into(), "1 to 65,536")?;
        is_between("workers", self.workers.into(), 0, WORKERS_MAX.into(), "0 to 64")?;
        is_between("group", self.group.into(), 1, GROUP_MAX.into(), "1 to 1024")?;
        is_between("widest", self.group_max().into(), self.group.into(), GROUP_MAX.into(), "the group's size to 1024")?;
        let awake_ms = u64::try_from(self.awake.as_millis()).unwrap_or(u64::MAX);
        is_between("awake in ms", awake_ms, 1, 1000, "1 to 1000")
    }

    /// Binds the port and starts to serve.
    pub fn serve(self, addr: impl ToSocketAddrs, service: impl Service) -> Result<Server, ServeError> {
        self.check()?;
        let session = match &self.session {
            Some(session) => session.clone(),
            None => Session::global().map_err(raas::BindError::from)?,
        };
        let options = ListenOptions::new().backlog(self.clients_max.min(1024)).ring_bytes(self.ring_bytes());
        let listener = MessageListener::bind_with(&session, addr, options)?;
        let local = listener.local_addr()?;
        let layout = Layout::new(self.window, self.request_bytes_max, self.response_bytes_max);
        let slabs = (0..self.workers)
            .map(|_| Slabs::make(&session, local.ip(), layout, &self).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared {
            service: Box::new(service),
            clients: Clients::new(self.clients_max, self.forget_after),
            slabs,
            settings: self,
            counters: Counters::default(),
            is_over: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let mut server = Server { shared: Arc::clone(&shared), local, threads: Vec::new() };
        for (number, slabs) in shared.slabs.iter().enumerate() {
            let (shared, slabs) = (Arc::clone(&shared), Arc::clone(slabs));
            let thread = std::thread::Builder::new().name(format!("raas-rpc-{number}"));
            server.threads.push(thread.spawn(move || worker::run(&shared, &slabs))?);
        }
        let thread = std::thread::Builder::new().name("raas-rpc-accept".into());
        server.threads.push(thread.spawn(move || accept(&shared, &listener))?);
        Ok(server)
    }
}

/// What the server counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) executed: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) torn: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) datagrams: AtomicU64,
    pub(crate) sleeps: AtomicU64,
    pub(crate) fetches: AtomicU64,
    pub(crate) slices: AtomicU64,
    pub(crate) seats: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a server did since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ServerCounters {
    /// Calls that the service executed.
    pub executed: u64,
    /// Requests that were answered from memory, or dropped, because they had come before.
    pub repeated: u64,
    /// Looks at a slot that found a part of a request.
    pub torn: u64,
    /// Requests that were not taken: not of the protocol, or of a client that has lost its slots.
    pub refused: u64,
    /// Responses that were sent as datagrams.
    pub datagrams: u64,
    /// Times that a worker went to sleep.
    pub sleeps: u64,
    /// With [`Transport::Scale`](crate::Transport::Scale), READs of requests in the memory of clients.
    pub fetches: u64,
    /// Time slices that ended because other clients waited for their turn.
    pub slices: u64,
    /// Seats of a worker that were ever used.
    pub seats: u64,
    /// Clients that are connected or remembered.
    pub clients: u64,
    /// Slabs that clients have.
    pub slabs: u64,
}

/// What all threads of a server share.
pub(crate) struct Shared {
    pub(crate) service: Box<dyn Service>,
    pub(crate) clients: Clients,
    pub(crate) slabs: Vec<Arc<Slabs>>,
    pub(crate) settings: ServerBuilder,
    pub(crate) counters: Counters,
    is_over: AtomicBool,
    /// Handles on the connections, to end them.
    connections: Mutex<HashMap<u64, MessageStream>>,
}

impl Shared {
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

/// A server that runs. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    local: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves in the process-wide session with the default settings.
    pub fn serve(addr: impl ToSocketAddrs, service: impl Service) -> Result<Self, ServeError> {
        Self::builder().serve(addr, service)
    }

    /// For settings.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What it did.
    pub fn counters(&self) -> ServerCounters {
        let (counters, load) = (&self.shared.counters, |counter: &AtomicU64| counter.load(Ordering::Relaxed));
        ServerCounters {
            executed: load(&counters.executed),
            repeated: load(&counters.repeated),
            torn: load(&counters.torn),
            refused: load(&counters.refused),
            datagrams: load(&counters.datagrams),
            sleeps: load(&counters.sleeps),
            fetches: load(&counters.fetches),
            slices: load(&counters.slices),
            seats: load(&counters.seats),
            clients: self.shared.clients.count(),
            slabs: self.shared.slabs.iter().map(|slabs| slabs.granted()).sum(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        for (_, stream) in lock(&self.shared.connections).drain() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("local", &self.local).finish_non_exhaustive()
    }
}

/// Takes connections until the server stops; each gets a thread.
fn accept(shared: &Arc<Shared>, listener: &MessageListener) {
    for number in 0.. {
        let stream = loop {
            if shared.is_over() {
                return;
            }
            match listener.accept_timeout(TICK) {
                Ok((stream, _)) => break stream,
                Err(AcceptError::TimedOut(_)) => {}
                // The listener goes on by itself when a daemon is there again.
                Err(error) => {
                    tracing::warn!(%error, "no connection was accepted");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        };
        match stream.try_clone() {
            Ok(handle) => lock(&shared.connections).insert(number, handle),
            Err(_) => continue,
        };
        let of = Arc::clone(shared);
        let serve = move || {
            connection::serve(&of, &stream);
            lock(&of.connections).remove(&number);
        };
        if let Err(error) = std::thread::Builder::new().name("raas-rpc-client".into()).spawn(serve) {
            tracing::warn!(%error, "no thread for a client: its connection is closed");
            lock(&shared.connections).remove(&number);
        }
    }
}
