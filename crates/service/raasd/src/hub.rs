//! The control plane's centre: one task that takes the messages of programs, peers, the engines and the clock, and is
//! the only one that changes their state.
//!
//! Owns the order between them. It must never wait for anyone but all of them together: commands that an engine's
//! queue does not take are kept, and programs and peers are not heard meanwhile.

mod actions;
mod clients;
mod descriptors;
mod direct;
mod engines;
mod events;
mod installs;
mod kept;
mod links;
mod meetings;
mod questions;
mod regions;
mod returns;
mod runs;
mod tenants;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use control::{PeerMessage, Reason, Reply};
use engine::{AppId, ReturnedChunk, SlotSet};
use plane::{Admission, ClientId, Daemon, DaemonConfig, LinkId, Names, OwnPlace, PairLimits, PeersConfig, Policy};
use shm::{Backoff, ClosedElsewhere, Session, SessionShape};
use softnic::Crowds;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};
use verbs::Time;

use crate::client_inputs::ClientInputs;
use crate::client_socket::{ClientInput, Entering, OutQueue, Outgoing, ProgramIdentity};
use crate::command::{Command, EngineReport};
use crate::config::RunLanes;
use crate::incarnation::Incarnation;
use crate::limits::count;
use crate::link::{LinkContext, LinkInput};
use crate::link_queue::{LinkQueue, Turn};
use crate::log_quota::LogQuota;
use crate::looks::{LOOKS, Looks};
use crate::questions::{QuestionPlace, Questions};
use crate::shares::Memory;
use crate::shutdown::Shutdown;
use crate::turns::Turns;
use crate::{Config, DaemonError};
use installs::{Installs, Read};
use kept::KeptRegions;
use regions::{Made, Regions};

pub(crate) use engines::Engines;

/// Segments of one pair of processes, and for each pair that the host may have.
const PAIR_SEGMENTS_MAX: usize = 256;
const SEGMENTS_PER_PAIR: u64 = 4;
/// Lines of log about programs that come, go or are thrown out, in a while.
const PROGRAM_LOG_LINES: u32 = 100;
/// Time at the end for the last words to peers.
const FAREWELL: Duration = Duration::from_millis(500);

/// What the hub is made of.
#[derive(Debug)]
pub(crate) struct HubParts {
    pub(crate) config: Arc<Config>,
    pub(crate) links: Arc<LinkContext>,
    pub(crate) connect_timeout: Duration,
    /// The device is a software NIC.
    pub(crate) is_softnic: bool,
    pub(crate) admission: Admission,
    pub(crate) incarnation: Incarnation,
    pub(crate) shape: SessionShape,
    pub(crate) epoch: u64,
    pub(crate) engine_page: OwnedFd,
    pub(crate) engines: Engines,
    pub(crate) events: mpsc::Receiver<EngineReport>,
    pub(crate) client_inputs: ClientInputs<ClientInput>,
    pub(crate) link_inputs: mpsc::Receiver<LinkInput>,
    pub(crate) memory: Memory,
    /// Each time it is read again.
    pub(crate) policies: mpsc::Receiver<Policy>,
}

/// How far a program is.
#[derive(Debug)]
enum Stage {
    Inspector,
    /// It brings a session along, and has not said all of it.
    Returning(Option<Box<ReturnedSession>>),
    /// The engines are asked.
    Attaching(Attaching),
    Attached,
}

/// The memory of a session that a daemon before this one made.
#[derive(Debug)]
struct ReturnedSession {
    session: Session,
    used: SlotSet,
    chunks: BTreeMap<u32, ReturnedChunk>,
}

/// What a program gets when all engines have taken it in.
#[derive(Debug, Default)]
struct Attaching {
    /// They go with the Welcome.
    fds: Vec<OwnedFd>,
    /// What engines that have answered say of what it brought along: the Welcome comes first.
    held: Vec<Outgoing>,
}

/// A program on the control socket.
#[derive(Debug)]
struct Client {
    who: ProgramIdentity,
    out: OutQueue,
    /// Tells the reader of its control socket that its wake socket is closed.
    hung_up: Arc<Notify>,
    stage: Stage,
    next_chunk: u32,
    question: QuestionPlace,
    /// Of one that is being attached.
    entering: Option<Entering>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    link_context: Arc<LinkContext>,
    shape: SessionShape,
    epoch: u64,
    engine_page: OwnedFd,
    addresses: Vec<IpAddr>,
    clients: BTreeMap<ClientId, Client>,
    incarnation: Incarnation,
    /// Decides.
    daemon: Daemon<ClosedElsewhere, OwnedFd>,
    /// Programs by the engines' names, until nothing of them is left there.
    names: Names<AppId>,
    crowds: Crowds,
    regions: Regions,
    kept: KeptRegions,
    installs: Installs,
    links: BTreeMap<LinkId, LinkQueue>,
    /// Something waits for room in one of them.
    links_wait: bool,
    /// Of the program whose request is being carried out.
    turn: Option<Turn>,
    dials: BTreeMap<LinkId, AbortHandle>,
    dial_tasks: JoinSet<()>,
    engines: Engines,
    questions: Questions,
    /// Questions that went to an engine.
    asked: u64,
    /// Open descriptors, and when they were counted.
    fds: Option<(Instant, u32)>,
    /// What programs make the daemon hold.
    memory: Memory,
    /// For lines about programs, which any of them can cause.
    log: LogQuota,
    turns: Turns,
}

/// What the hub takes.
enum HubInput {
    Engine(Option<EngineReport>),
    Client(Option<ClientInput>),
    Link(Option<LinkInput>),
    Policy(Policy),
    RegionMade(Made),
    KernelRead(Read),
    Question,
    Room,
    Tick,
    Shutdown,
    /// Nothing: it is awake and looks once more.
    Look,
}

/// What the machine that decides is told of the configuration.
fn decisions(
    config: &Config,
    engines: u32,
    owner_uid: u32,
    (links, connect_timeout, is_softnic): (&LinkContext, Duration, bool),
    (incarnation, shape): (&Incarnation, SessionShape),
) -> DaemonConfig {
    let limits = &config.limits;
    let segments_max = SEGMENTS_PER_PAIR * limits.pairs_max;
    let data_path = config.data_path();
    DaemonConfig {
        peers: PeersConfig {
            instance: links.instance,
            engines,
            peers_max: count(data_path.admission.lanes_max.into()),
            lane_setup: limits.lane_setup(),
            heartbeat: config.heartbeat.interval,
            connect_timeout,
            sources: config.further_sources(),
            paths: config.paths(),
        },
        pairs: PairLimits {
            pairs_max: count(limits.pairs_max),
            pairs_per_user_max: count(limits.user_share().of(limits.pairs_max)),
            segments_max: count(segments_max),
            segments_per_user_max: count(limits.user_share().of(segments_max)),
            segments_per_pair_max: PAIR_SEGMENTS_MAX,
            owner_uid,
            answer: limits.pair_answer(),
        },
        directory: limits.directory(owner_uid),
        listen: config.listen,
        addresses: config.host_addresses(),
        encrypt: config.encrypt,
        encrypts: data_path.engine.encrypts,
        makes_directs: is_softnic && config.tcp_direct,
        tcp_is_faster: is_softnic && config.run_lanes == RunLanes::Auto,
        namespace: meetings::own_namespace(),
        shape,
        tickets: incarnation.tickets(),
        nobody: meetings::nobody(),
        place: OwnPlace { peer_address: config.own_peer_address(), is_managers: config.given_socket.is_some() },
    }
}

impl Hub {
    /// Runs until it is stopped, which the end of an engine's thread does too.
    pub(crate) async fn run(parts: HubParts, shutdown: &Shutdown) -> Result<(), DaemonError> {
        let HubParts { mut events, mut client_inputs, mut link_inputs, mut policies, engines, config, .. } = parts;
        let owner_uid = rustix::process::geteuid().as_raw();
        let of_device = (&*parts.links, parts.connect_timeout, parts.is_softnic);
        let decides = decisions(&config, engines.count(), owner_uid, of_device, (&parts.incarnation, parts.shape));
        let mut daemon = Daemon::new(decides, parts.admission);
        daemon.begin_after(parts.incarnation.first_number());
        daemon.directory_mut().draw_from(parts.epoch);
        let mut hub = Self {
            addresses: config.host_addresses(),
            regions: Regions::new(daemon.directory().stamp_words())?,
            daemon,
            crowds: Crowds::default(),
            kept: KeptRegions::default(),
            installs: Installs::default(),
            memory: parts.memory,
            link_context: parts.links,
            shape: parts.shape,
            epoch: parts.epoch,
            engine_page: parts.engine_page,
            clients: BTreeMap::new(),
            incarnation: parts.incarnation.clone(),
            names: Names::default(),
            links: BTreeMap::new(),
            links_wait: false,
            turn: None,
            dials: BTreeMap::new(),
            dial_tasks: JoinSet::new(),
            engines,
            questions: Questions::default(),
            asked: 0,
            fds: None,
            log: LogQuota::new(PROGRAM_LOG_LINES, std::time::Instant::now()),
            turns: Turns::new(),
        };
        hub.tell_tenants();
        hub.adopt_regions();
        let (mut looks, mut backoff, mut looking) = (Looks::new(), Backoff::new(LOOKS), false);
        loop {
            let free = hub.engines.have_room();
            let tick = hub.next_tick();
            let heard = tokio::select! {
                event = events.recv() => HubInput::Engine(event),
                input = client_inputs.recv(), if free => HubInput::Client(input),
                input = link_inputs.recv(), if free => HubInput::Link(input),
                Some(policy) = policies.recv(), if free => HubInput::Policy(policy),
                () = hub.engines.room(), if !free => HubInput::Room,
                () = hub.link_context.room.notified(), if hub.links_wait => HubInput::Room,
                // One at a time, and as often as anything else that is ready: programs that ask and ask hold nobody up.
                () = std::future::ready(()), if free && hub.questions.is_ready() => HubInput::Question,
                Some(_) = hub.dial_tasks.join_next() => HubInput::Room,
                Some(read) = hub.installs.next_read() => HubInput::KernelRead(read),
                Some(made) = hub.regions.next_made() => HubInput::RegionMade(made),
                () = tokio::time::sleep_until(tick) => HubInput::Tick,
                () = shutdown.triggered() => HubInput::Shutdown,
                () = tokio::task::yield_now(), if looking => HubInput::Look,
            };
            if matches!(heard, HubInput::Look) {
                looking = looks.look_again(|| hub.now()) && backoff.snooze();
                continue;
            }
            looks.on_work(|| hub.now());
            backoff.reset();
            looking = true;
            hub.turns.begin(hub.now());
            match heard {
                HubInput::Engine(Some(event)) => hub.on_engine(event),
                // The threads ended on their own: their errors say why.
                HubInput::Engine(None) => return Ok(()),
                HubInput::Client(Some(input)) => hub.on_client(input),
                HubInput::Link(Some(input)) => hub.on_link(input),
                // Both acceptors hold a sender as long as the hub runs.
                HubInput::Client(None) | HubInput::Link(None) | HubInput::Shutdown => {
                    // One that hands over ends as if it were killed: nobody is told.
                    if !shutdown.hands_over() {
                        hub.farewell().await;
                    }
                    return Ok(());
                }
                HubInput::Policy(policy) => hub.on_policy(policy),
                HubInput::KernelRead(read) => hub.on_kernel_read(read),
                HubInput::RegionMade(made) => hub.on_region_made(made),
                HubInput::Question => hub.answer_next_question(),
                HubInput::Tick => hub.on_tick(),
                HubInput::Room | HubInput::Look => {}
            }
            hub.settle();
            hub.turn = None;
            hub.links_wait = hub.say_waiting();
            hub.turns.end(hub.now());
            if hub.daemon.hands_over() {
                shutdown.hand_over();
            }
        }
    }

    fn now(&self) -> Time {
        self.link_context.now()
    }

    fn next_tick(&self) -> Instant {
        let next = [self.daemon.deadline(), self.crowds.deadline()].into_iter().flatten().min();
        let idle = Duration::from_secs(3600);
        self.link_context.instant(next.unwrap_or_else(|| self.now() + idle))
    }

    fn on_tick(&mut self) {
        let now = self.now();
        self.daemon.handle_timeout(now);
        self.crowds.handle_timeout(now, |connection| self.daemon.directs().is_given(connection));
    }

    /// Carries out what was decided, and moves kept commands on.
    fn settle(&mut self) {
        while let Some(action) = self.daemon.poll_action(self.now()) {
            self.carry_out(action);
        }
        self.engines.send();
    }

    /// Queues a command; [`Self::settle`] sends it.
    fn command(&mut self, engine: u32, command: dispatch::Command) {
        self.engines.queue(engine, Command::Engine(command));
    }

    /// Tells all programs and peers that the daemon stops.
    async fn farewell(&mut self) {
        let clients: Vec<ClientId> = self.clients.keys().copied().collect();
        for client in clients {
            if let Some(client) = self.clients.remove(&client) {
                let reply = Reply::Detached { reason: Reason::ShuttingDown, detail: "the daemon stops".into() };
                client.out.send_last(Outgoing::new(&reply, Vec::new()));
            }
        }
        for queue in std::mem::take(&mut self.links).into_values() {
            queue.close(PeerMessage::Bye { reason: Reason::ShuttingDown, detail: "the daemon stops".into() });
        }
        (0..self.engines.count()).for_each(|engine| self.engines.queue(engine, Command::Stop));
        self.settle();
        // Links that we dialed say their goodbye; dials that are still under way have nobody to say it to.
        for dial in std::mem::take(&mut self.dials).into_values() {
            dial.abort();
        }
        let _ = timeout(FAREWELL, async { while self.dial_tasks.join_next().await.is_some() {} }).await;
    }
}
