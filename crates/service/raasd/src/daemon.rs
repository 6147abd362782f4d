//! Starting and stopping: files, sockets, threads, in their order.
//!
//! Owns the threads. It must never leave one of them behind, or the socket file of a daemon that has ended.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc as blocking;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::EngineConfig;
use plane::{Admission, ClusterKeys};
use receivers::Spawner;
use shm::{EnginePage, Segment, SessionShape, Sharing};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use verbs::Provider;

use crate::accept_links::{accept_links, inputs_max};
use crate::check::{Prepared, prepare};
use crate::client_socket::{ClientContext, ENTERING_MAX, accept_clients};
use crate::command::EngineReport;
use crate::device::Contexts;
use crate::engine_thread::load::CPU_ALL;
use crate::engine_thread::{EVENTS_MAX, EngineHandle, EngineParts, THREAD_NAME, spawn};
use crate::error::panic_words;
use crate::hub::{Engines, Hub, HubParts};
use crate::incarnation::Incarnation;
use crate::key;
use crate::limits::DataPath;
use crate::link::LinkContext;
use crate::log_quota::LogQuota;
use crate::receiving::Receivers;
use crate::reload::reload_files;
use crate::shares::Memory;
use crate::shutdown::Shutdown;
use crate::sleeper::Bell;
use crate::socket_place::SocketPlace;
use crate::user_turns::Rooms;
use crate::{Config, ConfigError, DaemonError, client_inputs, cluster};

/// Lines of log about hosts that cannot be reached, for each period.
const DIAL_LOG_LINES: u32 = 20;

/// Links that wait in the kernel to be accepted.
const BACKLOG: i32 = 128;

/// A running daemon in this process. Dropping it stops it in order.
#[derive(Debug)]
pub struct Daemon {
    socket: PathBuf,
    peer_address: SocketAddr,
    shutdown: Shutdown,
    reload: Arc<Notify>,
    thread: Option<JoinHandle<Result<(), DaemonError>>>,
}

impl Daemon {
    /// Starts a daemon; returns when it serves.
    pub fn start(config: Config) -> Result<Self, DaemonError> {
        Self::start_with(config, Shutdown::new())
    }

    /// As [`Self::start`], with a handle to stop it by.
    pub fn start_with(config: Config, shutdown: Shutdown) -> Result<Self, DaemonError> {
        let (ready, started) = blocking::channel();
        let (stop, reload) = (shutdown.clone(), Arc::new(Notify::new()));
        let asked = Arc::clone(&reload);
        let thread = std::thread::Builder::new()
            .name("raas-control".into())
            .spawn(move || serve(config, &stop, asked, &ready))
            .map_err(DaemonError::io("cannot start the control thread"))?;
        match started.recv() {
            Ok(Ready { socket, peer_address }) => {
                Ok(Self { socket, peer_address, shutdown, reload, thread: Some(thread) })
            }
            // It ended before it was ready, and says why.
            Err(_) => Err(join(thread)
                .err()
                .unwrap_or(DaemonError::ThreadDied { thread: "control", what: "ended before it served".into() })),
        }
    }

    /// The control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Where other daemons reach this one.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// Reads the cluster keys and the policy again, as SIGHUP does with a daemon that has its signals.
    pub fn reload(&self) {
        self.reload.notify_one();
    }

    /// Stops the daemon in order and waits for its end.
    pub fn stop(mut self) -> Result<(), DaemonError> {
        self.shutdown.trigger();
        self.thread.take().map_or(Ok(()), join)
    }

    /// Stops the daemon without a word to programs and peers, as its death would, and waits for its end. They wait for the
    /// daemon that comes after it.
    pub fn hand_over(mut self) -> Result<(), DaemonError> {
        self.shutdown.hand_over();
        self.thread.take().map_or(Ok(()), join)
    }

    /// Waits for the daemon's end, whatever ends it.
    pub fn wait(mut self) -> Result<(), DaemonError> {
        self.thread.take().map_or(Ok(()), join)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.shutdown.trigger();
        if let Some(thread) = self.thread.take()
            && let Err(error) = join(thread)
        {
            tracing::error!(%error, "the daemon ended with an error");
        }
    }
}

/// Runs a daemon until `shutdown`; calls `on_ready` once with its socket when it serves.
pub fn run(config: Config, shutdown: Shutdown, on_ready: impl FnOnce(&Path)) -> Result<(), DaemonError> {
    let daemon = Daemon::start_with(config, shutdown)?;
    on_ready(daemon.socket());
    daemon.wait()
}

fn join(thread: JoinHandle<Result<(), DaemonError>>) -> Result<(), DaemonError> {
    let is_engine = thread.thread().name().is_some_and(|name| name.starts_with(THREAD_NAME));
    let name = if is_engine { "engine" } else { "control" };
    thread
        .join()
        .unwrap_or_else(|payload| Err(DaemonError::ThreadDied { thread: name, what: panic_words(payload.as_ref()) }))
}

/// Where the daemon serves.
struct Ready {
    socket: PathBuf,
    peer_address: SocketAddr,
}

/// The control thread.
fn serve(
    config: Config,
    shutdown: &Shutdown,
    reload: Arc<Notify>,
    ready: &blocking::Sender<Ready>,
) -> Result<(), DaemonError> {
    let Prepared { config, fit, device, group, policy } = prepare(config)?;
    for words in &fit.words {
        tracing::info!("{words}");
    }
    for words in &fit.too_much {
        tracing::warn!("{words}");
    }
    let mut place = SocketPlace::take_for(&config, group.as_ref())?;
    if config.key_file.is_none() {
        key::read_or_create(place.directory())?;
    }
    let keys = key::read_all(&config, place.directory())?;
    tracing::info!("{}", key::words(&config, &keys));
    let keys = Keys { keys, directory: place.directory().to_path_buf(), reload };
    let peer_address = config.own_peer_address();
    let peer_port = |source| DaemonError::peer_port(peer_address, source);
    let first = TcpListener::bind(peer_address).map_err(peer_port)?;
    let peer_address = first.local_addr().map_err(peer_port)?;
    let mut peers = vec![first];
    for address in &config.standby {
        let address = SocketAddr::new(*address, peer_address.port());
        peers.push(listen_at_standby(address).map_err(|source| DaemonError::peer_port(address, source))?);
    }
    for listener in &peers {
        // For streams of bulk, which get connections that come here. Control links carry too little to be paced.
        softnic::begin_unpaced(listener);
        listener.set_nonblocking(true).map_err(peer_port)?;
    }
    let contexts = device.open(&config, random()?)?;
    let page = Segment::create("raas-engine", EnginePage::BYTES, Sharing::PeerReadOnly)?;
    page.allocate(EnginePage::BYTES)?;
    let engine_page = page.fd().try_clone_to_owned().map_err(DaemonError::io("dup"))?;
    let epoch = u64::from_ne_bytes(random()?).max(1);
    let page = EnginePage::format(page.into_region(), epoch)
        .map_err(|e| DaemonError::Io { what: "engine page", source: std::io::Error::other(e) })?;
    // Without it programs whose calls never wait do not learn of this daemon's death.
    let life = page.begin_life();
    let _life = life.inspect_err(|error| tracing::warn!(%error, "this daemon's death will not be said in its page"));
    let engines = config.engines;
    let DataPath { admission, engine: mut engine_config } = config.data_path();
    if shm::overcommit_is_strict() {
        tracing::warn!(
            "vm.overcommit_memory is 2: rings have all their memory from the start, and neither rest nor grow"
        );
        engine_config.rest_after = None;
        engine_config.ring_bytes_grown = engine_config.ring_bytes_default;
    }
    // The bounds of all rings of an application, and of the host with its users.
    for bound in [&mut engine_config.ring_memory_per_app_max, &mut engine_config.ring_memory_max] {
        *bound = bound.div_ceil(u64::from(engines));
    }
    let shape = SessionShape::for_engines(engines, admission.connections_per_app_max);
    let connect_timeout = engine_config.connect_timeout;
    let mut admission = Admission::new(admission, u16::from_ne_bytes(random()?))
        .map_err(|e| DaemonError::from(ConfigError::one(format!("limits: {e}"))))?;
    let incarnation = place.incarnation(random()?)?;
    admission.begin_after(incarnation.first_number());
    admission.set_policy(policy);
    let is_softnic = matches!(contexts, Contexts::SoftNic(_));
    engine_config.clock = Some(monotonic_ns);
    engine_config.tells_bulk = is_softnic && config.tcp_direct;
    let (event_queue, events) = mpsc::channel(EVENTS_MAX);
    let cpu_max = u32::try_from(config.limits.engine_cpu_max).unwrap_or(CPU_ALL);
    let common = EngineCommon { config: engine_config, page, events: event_queue, ended: shutdown.clone(), cpu_max };
    let engines = match contexts {
        Contexts::SoftNic(contexts) => spawn_all(&common, contexts)?,
        Contexts::RdmaCore(contexts) => spawn_all(&common, contexts)?,
    };
    drop(common);
    let listener = place.listen(config.socket_mode, group.as_ref())?;
    let plane = Plane {
        config,
        keys,
        peers,
        listener,
        engine_page,
        epoch,
        shape,
        connect_timeout,
        is_softnic,
        admission,
        incarnation,
    };
    let ready_at = Ready { socket: plane.config.socket.clone(), peer_address };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(DaemonError::io("cannot start the control runtime"))?;
    let ended = runtime.block_on(plane.run((engines, events), shutdown, || {
        let _ = ready.send(ready_at);
    }));
    // Tasks that still run have had their time.
    runtime.shutdown_background();
    ended
}

/// Listens at a further address of this host, which it may not have at the moment: then connections wait for it.
fn listen_at_standby(address: SocketAddr) -> std::io::Result<TcpListener> {
    use rustix::net::sockopt;
    match TcpListener::bind(address) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {}
        other => return other,
    }
    tracing::warn!(%address, "this host does not have the standby address now; control links there wait for it");
    let (family, kind) = match address {
        SocketAddr::V4(_) => (rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM),
        SocketAddr::V6(_) => (rustix::net::AddressFamily::INET6, rustix::net::SocketType::STREAM),
    };
    let socket = rustix::net::socket_with(family, kind, rustix::net::SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    match address {
        SocketAddr::V4(_) => sockopt::set_ip_freebind(&socket, true)?,
        SocketAddr::V6(_) => sockopt::set_ipv6_freebind(&socket, true)?,
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// The clock by which engines look at messages: that of every program of this host.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What all engines start with.
struct EngineCommon {
    config: EngineConfig,
    page: EnginePage,
    events: mpsc::Sender<EngineReport>,
    ended: Shutdown,
    cpu_max: u32,
}

/// Starts an engine for each context.
fn spawn_all<P: Provider + Send + 'static>(
    common: &EngineCommon,
    contexts: Vec<P>,
) -> Result<Vec<EngineHandle>, DaemonError> {
    let EngineCommon { config, page, events, ended, cpu_max } = common;
    let start = |(number, device): (u32, P)| {
        spawn(EngineParts {
            config: EngineConfig { number, ..config.clone() },
            device,
            page: page.clone(),
            entropy: random()?,
            events: events.clone(),
            ended: ended.clone(),
            cpu_max: *cpu_max,
        })
    };
    (0..).zip(contexts).map(start).collect()
}

/// Waits until all engines have started. If one does not, the others end too, and the error is why.
async fn all_started(engines: &mut Vec<EngineHandle>) -> Result<(), DaemonError> {
    let mut all = true;
    for engine in engines.iter_mut() {
        all &= (&mut engine.started).await.is_ok();
    }
    if all {
        return Ok(());
    }
    let ended = std::mem::take(engines).into_iter().map(|engine| {
        drop(engine.commands);
        engine.bell.ring();
        join(engine.thread)
    });
    let ended: Vec<_> = ended.collect();
    ended.into_iter().collect()
}

/// The keys of the start, and how they are read again.
struct Keys {
    keys: ClusterKeys,
    /// Where the key lies if the configuration names none.
    directory: PathBuf,
    reload: Arc<Notify>,
}

/// What the control plane starts with.
struct Plane {
    config: Config,
    keys: Keys,
    peers: Vec<TcpListener>,
    listener: OwnedFd,
    engine_page: OwnedFd,
    epoch: u64,
    shape: SessionShape,
    connect_timeout: Duration,
    is_softnic: bool,
    admission: Admission,
    incarnation: Incarnation,
}

impl Plane {
    async fn run(
        self,
        (mut engines, events): (Vec<EngineHandle>, mpsc::Receiver<EngineReport>),
        shutdown: &Shutdown,
        ready: impl FnOnce(),
    ) -> Result<(), DaemonError> {
        all_started(&mut engines).await?;
        let Keys { keys, directory, reload } = self.keys;
        let config = Arc::new(self.config);
        let (client_queue, client_inputs) = client_inputs::queue();
        let (link_queue, link_inputs) = mpsc::channel(inputs_max(config.limits.handshakes_max));
        let (members, asking) = cluster::start(&config.cluster, config.listen)?;
        let links = Arc::new(LinkContext {
            members,
            config: Arc::clone(&config),
            keys: Mutex::new(keys),
            instance: u64::from_ne_bytes(random()?),
            started: tokio::time::Instant::now(),
            inputs: link_queue,
            log: Mutex::new(LogQuota::new(DIAL_LOG_LINES, std::time::Instant::now())),
            room: Notify::new(),
        });
        let peers: Result<Vec<_>, _> = self.peers.into_iter().map(tokio::net::TcpListener::from_std).collect();
        let peers = peers.map_err(DaemonError::io("peer listener"))?;
        let spawner = match &config.confinement.spawner {
            Some(spawner) => Arc::clone(spawner),
            // Inside another program, which nothing confines.
            None => {
                Arc::new(Spawner::start().map_err(DaemonError::io("cannot start the process that makes receivers"))?)
            }
        };
        let receivers = Receivers::new(spawner);
        let memory = Memory::new(&config.limits);
        let clients = ClientContext {
            inputs: client_queue,
            limits: config.limits.clone(),
            receivers,
            memory: memory.clone(),
            doors: Arc::new(Rooms::new(ENTERING_MAX)),
            buffer: Arc::default(),
        };
        let accepting_clients = tokio::spawn(accept_clients(self.listener, clients, shutdown.clone()));
        let accepting_links = tokio::spawn(accept_links(peers, Arc::clone(&links), shutdown.clone()));
        if shutdown.signals {
            watch_signals(shutdown.clone(), Arc::clone(&reload))?;
        }
        let (policy_queue, policies) = mpsc::channel(1);
        tokio::spawn(reload_files(reload, Arc::clone(&links), directory, policy_queue));
        tracing::info!(listen = %config.listen, socket = %config.socket.display(), device = %config.device, "serving");
        ready();
        let bells: Vec<_> = engines.iter().map(|engine| engine.bell.clone()).collect();
        let (lines, threads) = engines.into_iter().map(|e| ((e.commands, e.bell), e.thread)).unzip();
        let parts = HubParts {
            config,
            links,
            connect_timeout: self.connect_timeout,
            is_softnic: self.is_softnic,
            admission: self.admission,
            incarnation: self.incarnation,
            shape: self.shape,
            epoch: self.epoch,
            engine_page: self.engine_page,
            engines: Engines::new(lines),
            events,
            client_inputs,
            link_inputs,
            memory,
            policies,
        };
        let ended = Hub::run(parts, shutdown).await;
        // The hub's command senders are gone, so a sleeping engine must see that too.
        bells.iter().for_each(Bell::ring);
        let threads: Vec<_> = threads;
        let engines = tokio::task::spawn_blocking(move || {
            let ended: Vec<_> = threads.into_iter().map(join).collect();
            ended.into_iter().collect::<Result<(), _>>()
        });
        let engines = engines.await.map_err(|e| DaemonError::ThreadDied { thread: "control", what: e.to_string() })?;
        // Whatever ended the hub, everything else ends too.
        shutdown.trigger();
        if shutdown.hands_over() {
            asking.hand_over();
        } else {
            drop(asking);
        }
        let died = |e: tokio::task::JoinError| DaemonError::ThreadDied { thread: "control", what: e.to_string() };
        let clients = accepting_clients.await.map_err(died);
        let links = accepting_links.await.map_err(died);
        tracing::info!("stopped");
        ended.and(engines).and(links)?;
        clients?.map_err(DaemonError::io("control socket"))
    }
}

fn watch_signals(shutdown: Shutdown, reload: Arc<Notify>) -> Result<(), DaemonError> {
    let mut hangup = signal(SignalKind::hangup()).map_err(DaemonError::io("signals"))?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reload.notify_one();
        }
    });
    let mut terminate = signal(SignalKind::terminate()).map_err(DaemonError::io("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(DaemonError::io("signals"))?;
    let mut replace = signal(SignalKind::user_defined2()).map_err(DaemonError::io("signals"))?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = replace.recv() => {
                tracing::info!("told by a signal to make way for the next daemon; programs and peers wait for it");
                return shutdown.hand_over();
            }
        }
        tracing::info!("told to stop by a signal");
        shutdown.trigger();
    });
    Ok(())
}

fn random<const N: usize>() -> Result<[u8; N], DaemonError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| DaemonError::Io {
        what: "the system's randomness",
        source: std::io::Error::other(e.to_string()),
    })?;
    Ok(bytes)
}
