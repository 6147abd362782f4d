//! A host: the real NIC and the real engine, its processes, and when each of them runs next.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use engine::{AppId, Engine, EngineConfig, LaneAt};
use plane::{Admission, AdmissionConfig};
use roce::{Ipv4IdMode, Nic, NicConfig, NicLimits};
use shm::{EnginePage, SessionShape};
use verbs::{Capabilities, Region, Time, Wire, WirePolicy};

use crate::address::{UDP_PORT, address, standby};
use crate::app::App;
use crate::check::{AppUid, Limits};
use crate::content::mix;
use crate::links::ControlPlane;
use crate::plan::{DaemonPlan, HostPlan, Plan};
use crate::tap::Tap;
use crate::wire::TcpSide;

/// An engine with its context of the device, and when it runs next.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) tap: Tap,
    pub(crate) engine: Engine,
    /// All processes that the engine knows, those that are dead included.
    pub(crate) uids: BTreeMap<AppId, AppUid>,
    pub(crate) asleep: bool,
    /// Between the two steps by which connections come to rest.
    pub(crate) resting: bool,
    /// When the engine runs next, as the queue has it.
    pub(crate) engine_at: Option<Time>,
    /// When the next timer fires, as the queue has it.
    pub(crate) timer_at: Option<Time>,
    /// Peers whose lane the engine gave up by itself, until it is asked for a new end.
    pub(crate) given_up: BTreeSet<LaneAt>,
    pub(crate) rounds: u64,
}

/// What is lost when a host dies.
#[derive(Debug)]
pub(crate) struct Running {
    /// By number.
    pub(crate) engines: Vec<Driven>,
    pub(crate) control: ControlPlane,
    pub(crate) page: EnginePage,
    /// Processes that live.
    pub(crate) apps: BTreeMap<AppUid, App>,
    pub(crate) engine_paused_until: Time,
    pub(crate) stalled_until: Time,
    pub(crate) next_chunk: u32,
}

impl Running {
    pub(crate) fn engine(&mut self, number: u32) -> Option<&mut Driven> {
        self.engines.get_mut(number as usize)
    }
}

/// Of a host without applications.
const SLOTS: u32 = 64;
/// More than any window.
const RX_BUDGET_BYTES: u32 = 8 << 20;

/// A host, dead or alive.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) plan: HostPlan,
    pub(crate) limits: Limits,
    /// Counts its lives: events for an older one are nobody's.
    pub(crate) life: u32,
    pub(crate) running: Option<Running>,
    /// The daemon that is installed, and runs from its next start on.
    pub(crate) daemon: DaemonPlan,
    /// Those that ran, by the life of the host.
    pub(crate) daemons: BTreeMap<u32, DaemonPlan>,
    /// The machine is dead too: nobody answers for it.
    pub(crate) is_off: bool,
    /// What outlives a daemon that is killed.
    pub(crate) orphans: Orphans,
    patience: Duration,
    /// Hosts to which there are two paths.
    peers_with_standby: Vec<usize>,
    cut_max: usize,
    /// Of all sessions here.
    slots: u32,
}

impl Host {
    /// A host that is not started.
    pub(crate) fn new(index: usize, plan: &Plan) -> Self {
        Self {
            plan: plan.hosts[index].clone(),
            limits: Limits::new(index, &plan.hosts),
            life: 0,
            running: None,
            daemon: plan.hosts[index].daemon.clone(),
            daemons: BTreeMap::new(),
            is_off: false,
            orphans: Orphans::default(),
            patience: plan.link_timeout,
            peers_with_standby: (0..plan.hosts.len()).filter(|other| plan.has_standby && *other != index).collect(),
            cut_max: plan.streams.cut_max,
            slots: plan.apps.iter().filter(|app| app.host == index).map(|app| app.slots).max().unwrap_or(SLOTS),
        }
    }

    /// Its processes that live.
    pub(crate) fn apps(&self) -> impl Iterator<Item = &App> {
        self.running.iter().flat_map(|running| running.apps.values()).chain(self.orphans.apps.values())
    }

    /// A process that lives.
    pub(crate) fn app_mut(&mut self, uid: AppUid) -> Option<&mut App> {
        let running = self.running.as_mut().and_then(|running| running.apps.get_mut(&uid));
        running.or_else(|| self.orphans.apps.get_mut(&uid))
    }

    /// Starts it, empty.
    pub(crate) fn start(&mut self, index: usize, seed: u64) -> Result<(), String> {
        self.life += 1;
        self.is_off = false;
        self.daemons.insert(self.life, self.daemon.clone());
        let plan = &self.plan;
        let engines = self.daemon.engines;
        let has_standby = !self.peers_with_standby.is_empty();
        let nic = |number: u32| NicConfig {
            local: SocketAddr::new(address(index), UDP_PORT + number as u16),
            standby: if has_standby { vec![standby(index)] } else { Vec::new() },
            mtu: plan.mtu,
            limits: NicLimits { window_packets: plan.window_packets, ..NicLimits::default() },
            // Software NICs treat each other in ways that hardware does not.
            rx_budget_bytes: if plan.max_gso_segments > 1 { RX_BUDGET_BYTES } else { u32::MAX },
            capabilities: if plan.max_gso_segments > 1 { Capabilities::SOFTWARE_NIC } else { Capabilities::ROCE },
            name: format!("sim{index}"),
            max_gso_segments: plan.max_gso_segments,
            id_mode: if plan.max_gso_segments > 1 { Ipv4IdMode::SegmentIndex } else { Ipv4IdMode::Zero },
        };
        let key = mix(seed ^ mix(index as u64 ^ u64::from(self.life) << 32));
        let page = match self.orphans.page.take() {
            Some(page) => page,
            None => {
                let memory = Region::anonymous(EnginePage::BYTES as usize).map_err(|e| e.to_string())?;
                EnginePage::format(memory, self.life.into()).map_err(|e| e.to_string())?
            }
        };
        let config = EngineConfig {
            ring_bytes_default: plan.ring_bytes_default,
            ring_bytes_grown: plan.ring_bytes_grown,
            connections_max: plan.connections_max,
            user_share: plan.user_share,
            ring_memory_per_app_max: plan.ring_memory_per_app_max,
            lanes_max: plan.lanes_max,
            lane_credits: plan.lane_credits,
            srq_bytes_max: plan.srq_bytes_max,
            send_bytes_max: plan.send_bytes_max,
            lane_inflight_bytes_max: plan.lane_inflight_bytes_max,
            quantum_bytes: plan.quantum_bytes,
            connect_timeout: plan.connect_timeout,
            lane_rest_after: plan.lane_rest_after,
            rest_after: plan.rest_after,
            peer_return: plan.peer_return,
            choice: plan.choice,
            encrypt: plan.encrypt,
            tells_bulk: plan.bulk_bytes.is_some(),
            bulk_bytes: plan.bulk_bytes.unwrap_or(u64::MAX),
            // Where streams are bulk soon, conversations are such soon.
            conversation_turns: if plan.bulk_bytes == Some(u64::MAX) { u32::MAX } else { 4 },
            ..EngineConfig::new(vec![address(index)])
        };
        let start = |number: u32| {
            let key = key ^ u64::from(number) << 48;
            // Streams of TCP are the first engine's: plans have several engines or the wire over TCP.
            let wire = if number == 0 { plan.wire } else { WirePolicy::Only(Wire::Roce) };
            let tcp = TcpSide::new(wire, plan.record_limit, self.cut_max, entropy(mix(key ^ mix(9))));
            let mut tap = Tap::new(Nic::new(nic(number), entropy(key)), tcp);
            let config = EngineConfig { number, ..config.clone() };
            let engine = Engine::new(config, &mut tap, page.clone(), entropy(mix(key)));
            let mut engine = engine.map_err(|e| e.to_string())?;
            engine.set_tenants(plan.tenants.clone());
            Ok::<_, String>(Driven {
                tap,
                engine,
                uids: BTreeMap::new(),
                asleep: false,
                resting: false,
                engine_at: None,
                timer_at: None,
                given_up: BTreeSet::new(),
                rounds: 0,
            })
        };
        let driven = (0..engines).map(start).collect::<Result<Vec<_>, _>>()?;
        let instance = mix(key ^ mix(7)).max(1);
        let admission = AdmissionConfig {
            engines,
            spread: self.daemon.engines_by,
            connections_max: plan.connections_max,
            connections_per_app_max: plan.connections_max,
            lanes_max: plan.lanes_max,
            user_share: plan.user_share,
            ..AdmissionConfig::new(vec![address(index)])
        };
        let mut admission = Admission::new(admission, mix(key ^ mix(8)) as u16).map_err(|e| e.to_string())?;
        admission.begin_after(self.orphans.first_number());
        let control = ControlPlane::new(
            address(index),
            instance,
            (self.daemon.clone(), SessionShape::for_engines(engines, self.slots)),
            plan,
            self.patience,
            (admission, self.orphans.first_number(), mix(key ^ mix(10))),
            &self.peers_with_standby,
        );
        self.running = Some(Running {
            engines: driven,
            control,
            page,
            apps: BTreeMap::new(),
            engine_paused_until: Time::ZERO,
            stalled_until: Time::ZERO,
            next_chunk: self.orphans.next_chunk,
        });
        Ok(())
    }
}

/// What outlives a daemon that is killed.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// The daemon is dead and the machine is not.
    pub(crate) is_waiting: bool,
    /// Processes that wait for the next daemon, or are on their way to it.
    pub(crate) apps: BTreeMap<AppUid, App>,
    /// Where they look whether engines sleep: at the same place with every daemon.
    pub(crate) page: Option<EnginePage>,
    /// No chunk of theirs has this number or a greater one.
    pub(crate) next_chunk: u32,
    /// Daemons that were killed.
    pub(crate) deaths: u64,
}

impl Orphans {
    /// Numbers of connections of the next daemon begin behind this one, as those of raasd do.
    fn first_number(&self) -> u64 {
        self.deaths << 30
    }
}

/// 32 bytes of one number.
pub(crate) fn entropy(key: u64) -> [u8; 32] {
    let mut out = [0; 32];
    for (i, word) in out.chunks_mut(8).enumerate() {
        word.copy_from_slice(&mix(key ^ i as u64).to_le_bytes());
    }
    out
}

/// The cost of one round of an engine, so that work takes time.
pub(crate) const ROUND: Duration = Duration::from_nanos(700);
