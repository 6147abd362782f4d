//! A host's control plane: the shipped `plane::Daemon`, and the links that it drives.
//!
//! Owns what the daemon's tasks own: which stage each link is in, and its timer. It must never decide what `plane`
//! decides.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use control::{CHALLENGE_BYTES, PeerMessage, Reason};
use dispatch::Report;
use engine::AppId;
use plane::{
    Admission, ClientId, ClusterKey, ClusterKeys, DaemonConfig, Dialing, Heartbeat, Identity, Introduction, LinkId,
    LinkNames, LinkPath, Names, Opening, OwnPlace, PairLimits, PeersConfig, Permit, Seal, Strangers,
    TICKET_SECRET_BYTES, Tickets, Watch,
};
use shm::SessionShape;
use verbs::Time;

use crate::address::{PATHS, UDP_PORT, address_on, host_of, standby};
use crate::check::{RecordId, Side};
use crate::direct::SimSocket;
use crate::plan::{DaemonPlan, HostPlan};
use crate::regions::{self, Regions};
use crate::tcp::Segment;

/// Other daemons known at a time.
const PEERS_MAX: usize = 4096;
/// As the daemon's.
const LANE_SETUP: Duration = Duration::from_secs(10);
/// As the daemon's default of `handshake_ms`.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);
/// As the daemon's.
pub(crate) const DIAL_ATTEMPTS_MAX: u64 = 3;
/// Before the next path is tried, as in raasd; which goes on with the one before beside it.
pub(crate) const STAGGER: Duration = Duration::from_millis(100);
/// Time of a handshake while there are other paths to try, as in raasd.
pub(crate) const HANDSHAKE_OF_SEVERAL: Duration = Duration::from_secs(1);
/// Small enough to be met.
const PAIR_LIMITS: PairLimits = PairLimits {
    pairs_max: 64,
    pairs_per_user_max: 64,
    segments_max: 128,
    segments_per_user_max: 128,
    segments_per_pair_max: 4,
    owner_uid: 0,
    answer: Duration::from_secs(2),
};
/// The network namespace of each daemon.
pub(crate) const NAMESPACE: u64 = 1;
/// Heartbeats in the silence after which a link is given up.
const MISSES: u32 = 5;

/// What a link's task is at.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Another attempt follows.
    Pausing(Time),
    /// An attempt, whose TCP connection must be there by then.
    Connecting(Time),
    Opening(Box<Opening>),
    Up(Watch),
}

/// A link of this host.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: usize,
    /// The TCP connection, and which end of it is this host's.
    pub(crate) end: Option<(u64, usize)>,
    pub(crate) stage: Stage,
    /// Over which paths it is dialed, and how many were tried since the last attempt began.
    pub(crate) paths: Vec<usize>,
    pub(crate) tried: usize,
    /// The link whose place it takes; 0: none's.
    pub(crate) replaces: u64,
    /// Of one that this host dials.
    pub(crate) dialing: Option<Dialing>,
    /// Of one that it accepted and that has not proven the key.
    pub(crate) place: Option<Permit>,
    /// Of one that is up.
    pub(crate) seal: Option<Seal>,
    /// The control plane knows of it.
    pub(crate) said_hello: bool,
    /// The control plane knows that it is up.
    pub(crate) is_known: bool,
    /// What arrived while the verdict was awaited.
    pub(crate) waiting: VecDeque<Segment>,
    /// When its timer fires, as the queue has it.
    pub(crate) timer_at: Option<Time>,
}

impl Link {
    pub(crate) fn new(peer: usize, stage: Stage) -> Self {
        Self {
            peer,
            end: None,
            stage,
            paths: Vec::new(),
            tried: 0,
            replaces: 0,
            dialing: None,
            place: None,
            seal: None,
            said_hello: false,
            is_known: false,
            waiting: VecDeque::new(),
            timer_at: None,
        }
    }

    /// When its timer has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.stage {
            Stage::Pausing(at) | Stage::Connecting(at) => Some(*at),
            Stage::Opening(opening) => opening.deadline(),
            Stage::Up(watch) => Some(watch.deadline()),
        }
    }
}

/// What the control plane hears.
#[derive(Debug)]
pub(crate) enum Input {
    // From links.
    Hello { link: LinkId, source: IpAddr, hello: Identity },
    Up { link: LinkId, peer: Identity },
    Message { link: LinkId, message: PeerMessage },
    Silent { link: LinkId, silent: Duration },
    Down { link: LinkId, reason: Reason },
    DialFailed { link: LinkId, reason: Reason },
    // From an engine.
    Engine { engine: u32, report: Report },
    // From the tasks that make TCP connections for streams of bulk.
    DirectDialed { peer: IpAddr, number: u64, connection: u64, result: Result<SimSocket, Reason> },
}

impl Input {
    /// Whether the engine says it: its words and those of the links come by two queues.
    pub(crate) fn is_engines(&self) -> bool {
        matches!(self, Self::Engine { .. })
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    pub(crate) daemon: plane::Daemon<(), SimSocket>,
    /// Programs by the engines' names.
    pub(crate) names: Names<AppId>,
    /// Numbers of connections and sockets that the engine got and did not give back; of a connection the user.
    pub(crate) numbers: BTreeMap<u64, Option<u32>>,
    /// Handles to regions that programs have: whose they are, and whether they are to regions of other hosts.
    pub(crate) handles: BTreeMap<(ClientId, u64), (u32, bool)>,
    pub(crate) links: BTreeMap<LinkId, Link>,
    pub(crate) by_connection: BTreeMap<u64, LinkId>,
    pub(crate) strangers: Strangers,
    pub(crate) regions: Regions,
    /// Of its programs' sessions.
    pub(crate) shape: SessionShape,
    /// Connections that the engines made and their processes were not told of.
    pub(crate) untold: BTreeMap<u64, (RecordId, Side)>,
    pub(crate) heartbeat: Heartbeat,
    plan: DaemonPlan,
    instance: u64,
    address: IpAddr,
    last_accepted: u64,
    /// When the next timer of the peers fires, as the queue has it.
    pub(crate) timer_at: Option<Time>,
    /// What links and the engine report to the control plane arrives in order.
    pub(crate) heard_at: [Time; 2],
    /// What the control plane sends to an engine arrives in order.
    pub(crate) told_at: Vec<Time>,
}

impl ControlPlane {
    pub(crate) fn new(
        address: IpAddr,
        instance: u64,
        (plan, shape): (DaemonPlan, SessionShape),
        host: &HostPlan,
        patience: Duration,
        (admission, first_number, region_id): (Admission, u64, u64),
        peers_with_standby: &[usize],
    ) -> Self {
        let own = host_of(address);
        let path = |peer, path| LinkPath { own: address_on(own, path), peer: address_on(peer, path) };
        let paths = peers_with_standby.iter().map(|&peer| {
            let paths = (0..PATHS).map(|number| path(peer, number)).collect();
            (address_on(peer, 0), paths)
        });
        let heartbeat = Heartbeat { interval: patience / MISSES, misses: MISSES };
        let peers = PeersConfig {
            instance,
            engines: plan.engines,
            peers_max: PEERS_MAX,
            lane_setup: LANE_SETUP,
            heartbeat: heartbeat.interval,
            connect_timeout: host.connect_timeout,
            sources: peers_with_standby.iter().map(|&peer| (standby(peer), address_on(peer, 0))).collect(),
            paths: paths.collect(),
        };
        let config = DaemonConfig {
            peers,
            pairs: PAIR_LIMITS,
            directory: regions::limits(host.handles_per_user_max),
            listen: address,
            addresses: vec![address],
            encrypt: host.encrypt,
            encrypts: BTreeMap::new(),
            makes_directs: host.bulk_bytes.is_some(),
            tcp_is_faster: host.tcp_is_faster,
            namespace: Some(NAMESPACE),
            shape,
            // That of this host's daemons, one after the other.
            tickets: Tickets::new([own as u8; TICKET_SECRET_BYTES]),
            nobody: None,
            place: OwnPlace { peer_address: (address, UDP_PORT).into(), is_managers: false },
        };
        let mut daemon = plane::Daemon::new(config, admission);
        daemon.begin_after(first_number);
        daemon.directory_mut().draw_from(region_id);
        Self {
            daemon,
            names: Names::default(),
            numbers: BTreeMap::new(),
            handles: BTreeMap::new(),
            links: BTreeMap::new(),
            by_connection: BTreeMap::new(),
            strangers: Strangers::new(plan.handshakes_max, plan.handshakes_max, BTreeMap::new()),
            regions: Regions::default(),
            untold: BTreeMap::new(),
            shape,
            heartbeat,
            told_at: vec![Time::ZERO; plan.engines as usize],
            plan,
            instance,
            address,
            last_accepted: LinkId::FIRST_ACCEPTED.0 - 1,
            timer_at: None,
            heard_at: [Time::ZERO; 2],
        }
    }

    /// Of a link that takes the place of the one with that name; 0: of none.
    pub(crate) fn introduction(&self, challenge: [u8; CHALLENGE_BYTES], replaces: u64) -> Introduction {
        let identity = Identity::new(self.instance, self.address, self.plan.engines, challenge);
        let link = LinkNames { own: 0, replaces };
        let identity = Identity { link, heartbeat: self.heartbeat.interval, ..identity };
        Introduction { version: self.plan.wire_version, ..Introduction::of_this_release(identity) }
    }

    pub(crate) fn keys(&self) -> ClusterKeys {
        ClusterKeys::one(ClusterKey::new(vec![self.plan.key; 32]))
    }

    /// The number of the next link that is accepted.
    pub(crate) fn next_accepted(&mut self) -> LinkId {
        self.last_accepted += 1;
        LinkId(self.last_accepted)
    }

    /// Takes a link out. The caller must notify those that wait for its end.
    pub(crate) fn remove(&mut self, link: LinkId) -> Option<Link> {
        let removed = self.links.remove(&link)?;
        if let Some((connection, _)) = removed.end {
            self.by_connection.remove(&connection);
        }
        if let Some(place) = &removed.place {
            self.strangers.leave(place);
        }
        Some(removed)
    }
}
