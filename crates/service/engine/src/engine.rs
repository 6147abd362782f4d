//! The engine: its state, one round of work, and the steps that all parts share.
//!
//! Owns the order of a round. It must never do more work in one round than the limits allow, and must never look at
//! connections that have no news.

mod away;
mod connect;
mod credits;
mod datagram;
mod dial;
mod direct;
mod endings;
mod growth;
mod inspect;
mod keys;
mod lane_rest;
mod leased;
mod link;
mod listen;
mod mechanism;
pub(crate) mod mechanisms;
mod operations;
mod pinned;
mod pump;
mod recv;
mod rendezvous;
mod reset;
mod rest;
mod returns;
mod ring_slot;
mod stall;
mod streams;
mod tenant;
mod unreliable;

use endings::Ending;
use mechanism::Mechanism;
use mechanisms::Mechanisms;
pub use mechanisms::check_frame;
use pump::{Choosing, Pump};
use returns::Returning;
pub use returns::{Returned, ReturnedChunk};

use std::collections::VecDeque;
use std::net::IpAddr;

use rand::SeedableRng;
use rand::rngs::StdRng;
use shm::{EnginePage, Word32};
use verbs::{AsyncEvent, Capabilities, Completion, CqId, MrId, PathMtu, Provider, Time, VerbsError};

use crate::apps::Apps;
use crate::attempts::{Connects, ParkedOpens};
use crate::choice::Load;
use crate::config::{DeviceFit, DeviceRoom, EngineConfig};
use crate::counters::Counters;
use crate::datagram::Datagrams;
use crate::dials::Dials;
use crate::event::{Event, SetupError};
use crate::ids::{AppId, ConnectId, Flow, RouteId, SlotAt};
use crate::lanes::Lanes;
use crate::limits::{
    ASYNC_EVENTS_PER_RUN, COMPLETIONS_PER_RUN, DATAGRAM_COMPLETIONS_MAX, DEVICE_SAMPLE, HEAD_LINGER,
    KERNELS_QUEUED_MAX, LEASED_SHARE, PIECE_COMPLETIONS_MAX, TIMERS_PER_RUN,
};
use crate::operations::Operations;
use crate::operations::kernels::KernelLimits;
use crate::pins::Pins;
use crate::recvpool::RecvPool;
use crate::rests::Rests;
use crate::route_names::RouteNames;
use crate::stages::Stages;
use crate::tenants::{TenantPlace, Tenants, Waits};
use crate::timers::Timers;
use crate::unreliable::Unreliable;
use crate::vqp::table::Connections;
use crate::vqp::{HeadReport, List};

/// What the engine needs to know of the device.
#[derive(Debug, Clone)]
struct Device {
    mtu: PathMtu,
    max_msg_bytes: u32,
    capabilities: Capabilities,
    sq_depth: usize,
}

/// The completion queue, and what was taken out of it and not handled.
#[derive(Debug)]
struct Completions {
    cq: CqId,
    /// Queues that were made: all completions of an engine come through one.
    queues: u32,
    waiting: Vec<Completion>,
    spare: Vec<Completion>,
}

/// Ring chunks that are registered with the device.
#[derive(Debug, Default)]
struct RingMemory {
    chunks: u32,
    bytes: u64,
    /// Of these, registrations by which peers read transmit rings.
    lent: u32,
    lent_bytes: u64,
}

/// Buffers that are used again and again.
#[derive(Debug)]
struct Scratch {
    frame_in: Vec<u8>,
    frame_out: Vec<u8>,
    dirty: Vec<u32>,
}

/// The data path of one daemon on one device.
///
/// One thread calls it: control messages by name, then [`Engine::run`] until it says that there is nothing to do, each
/// time with [`Engine::begin_rests`] and, if that says so, [`Engine::finish_rests`]; then [`Engine::poll_event`] and
/// [`Engine::take_wakes`]. Time is an argument; the largest seen counts.
///
/// Its parts keep their own state and rules; what crosses parts is in the modules below this one, each a round or a
/// kind of call, and nowhere else.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    device: Device,
    rng: StdRng,
    engine_sleep: Word32,
    /// The largest time seen, and the first.
    now: Time,
    started: Option<Time>,

    apps: Apps,
    vqps: Connections,
    lanes: Lanes,
    connects: Connects,
    /// Connects whose lane went away before there was an answer.
    displaced: Vec<ConnectId>,
    /// Applications that come back, in the order of their turns.
    returns: VecDeque<Returning>,
    /// Connections that are to end, by application.
    endings: VecDeque<Ending>,
    parked_opens: ParkedOpens,
    dials: Dials,
    datagrams: Datagrams,
    unreliable: Unreliable,
    ops: Operations,
    /// Connections whose transmit rings are to be registered for their peers.
    lend_wanted: Vec<RouteId>,
    load: Load,
    tenants: Tenants,

    recv: RecvPool,
    shortage: credits::Shortage,
    completions: Completions,
    ring_memory: RingMemory,
    timers: Timers,
    rests: Rests,
    /// Streams whose writers are held back, and until when at most, soonest first.
    holds: VecDeque<(Time, RouteId)>,
    scratch: Scratch,
    stages: Stages,

    events: VecDeque<Event>,
    last_incarnation: u32,
    counters: Counters,
    sampled: Option<Time>,
}

impl Engine {
    /// Makes CQ and SRQ on the device. `entropy` seeds packet sequence numbers, route ids and ports: it must be secret
    /// randomness in production.
    pub fn new<P: Provider>(
        mut config: EngineConfig,
        nic: &mut P,
        page: EnginePage,
        entropy: [u8; 32],
    ) -> Result<Self, SetupError> {
        config.check()?;
        config.addresses.iter_mut().for_each(|a| *a = a.to_canonical());
        if nic.pins_memory() {
            // It would pin a ring's further pages from the start.
            config.ring_bytes_grown = config.ring_bytes_default;
        }
        let attr = nic.device().clone();
        for (needed, what) in [
            (Capabilities::SRQ, "shared receive queues, which lanes need"),
            (Capabilities::IMMEDIATE, "immediate data, which lanes need"),
        ] {
            if !attr.capabilities.contains(needed) {
                return Err(VerbsError::Unsupported { device: attr.name, what }.into());
            }
        }
        let shared = config.lanes_max;
        config.lanes_max = shared.saturating_add(config.leased_lanes_max);
        let DeviceFit { lanes, receives, send_queue: sq_depth } = config.check_device(&DeviceRoom::from(&attr))?;
        config.leased_lanes_max = config.leased_lanes_max.min(lanes / LEASED_SHARE);
        config.lanes_max = shared.min(lanes - config.leased_lanes_max);
        let cq = nic.create_cq(lanes * sq_depth + receives + DATAGRAM_COMPLETIONS_MAX + PIECE_COMPLETIONS_MAX)?;
        let queues = 1;
        let recv = RecvPool::new(nic, config.send_bytes_max, receives, lanes)?;
        let device = Device {
            mtu: attr.mtu,
            max_msg_bytes: attr.max_msg_bytes,
            capabilities: attr.capabilities,
            sq_depth: sq_depth as usize,
        };
        let mut rng = StdRng::from_seed(entropy);
        let names = RouteNames::new(&mut rng);
        let has_datagrams = config.number == 0 && attr.capabilities.contains(Capabilities::DATAGRAMS);
        let port_cq = has_datagrams.then_some(cq);
        let datagrams = Datagrams::new(nic, port_cq, config.datagram_sockets_max, &mut rng)?;
        let kernels = KernelLimits { fuel_max: config.kernel_fuel_max, queued_max: KERNELS_QUEUED_MAX };
        let completions = || Vec::with_capacity(COMPLETIONS_PER_RUN);
        let frame = || Vec::with_capacity(config.send_bytes_max as usize);
        Ok(Self {
            device,
            rng,
            engine_sleep: page.engine_sleep(config.number),
            now: Time::ZERO,
            started: None,
            apps: Apps::new(config.apps_max),
            vqps: Connections::new(config.connections_max, names),
            lanes: Lanes::new(config.lanes_max, config.leased_lanes_max),
            connects: Connects::new(config.connections_max),
            displaced: Vec::new(),
            returns: VecDeque::new(),
            endings: VecDeque::new(),
            parked_opens: ParkedOpens::new(config.connections_max),
            dials: Dials::new(&config),
            datagrams,
            unreliable: Unreliable::new(),
            ops: Operations::new(Pins::new(nic.pins_memory(), config.pins), kernels),
            lend_wanted: Vec::new(),
            load: Load::default(),
            tenants: Tenants::default(),
            recv,
            shortage: credits::Shortage::default(),
            completions: Completions { cq, queues, waiting: completions(), spare: completions() },
            ring_memory: RingMemory::default(),
            timers: Timers::default(),
            rests: Rests::new(config.rest_after.filter(|_| !nic.pins_memory()), config.ring_held_much),
            holds: VecDeque::new(),
            scratch: Scratch { frame_in: frame(), frame_out: frame(), dirty: Vec::new() },
            stages: Stages::new(config.clock),
            events: VecDeque::new(),
            last_incarnation: 0,
            counters: Counters::default(),
            sampled: None,
            config,
        })
    }

    /// Takes the time of a call: the largest time that any call has given counts.
    fn see(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.started.get_or_insert(now);
    }

    // ---- a round

    /// One round: completions, doorbells, timers, sending. Says whether anything was done; the work of one round is
    /// bounded, so what is left is done in the next.
    pub fn run<P: Provider>(&mut self, now: Time, nic: &mut P) -> bool {
        self.see(now);
        let mut worked = self.run_completions(nic);
        worked |= self.run_device_events(nic);
        worked |= self.run_returns(nic);
        worked |= self.run_endings(nic);
        worked |= self.run_doorbells();
        worked |= self.run_timers(nic);
        worked |= self.run_displaced(nic);
        worked |= Mechanisms::run(self);
        worked |= self.run_lanes(nic);
        worked |= self.run_lendings(nic);
        worked |= Mechanisms::run_behind_lanes(self, nic);
        worked |= self.run_worn_lanes();
        worked |= self.run_resets(nic);
        worked |= self.run_free_rings(nic);
        worked |= Mechanisms::settle(self);
        worked |= self.run_departures(nic);
        worked |= Mechanisms::run_last(self, nic, !worked);
        self.apps.collect_wakes();
        self.sample(nic);
        worked
    }

    fn run_device_events<P: Provider>(&mut self, nic: &mut P) -> bool {
        for done in 0..ASYNC_EVENTS_PER_RUN {
            let Some(event) = nic.poll_event() else { return done > 0 };
            match event {
                AsyncEvent::QpFatal(qpn) | AsyncEvent::QpRequestError(qpn) | AsyncEvent::QpAccessError(qpn) => {
                    if let Some(id) = self.lanes.of_qp(qpn) {
                        self.lanes.fail(id, format!("the device put QP {qpn} in error"));
                    } else {
                        Mechanisms::on_qp_failed(self, qpn);
                    }
                }
                AsyncEvent::CqError(_) | AsyncEvent::DeviceFatal => {
                    for id in self.lanes.keys() {
                        self.fail_lane(nic, id, format!("the device reported {event:?}"));
                    }
                }
                AsyncEvent::PathMtu { peer, mtu } => {
                    for id in self.lanes.all_over(peer) {
                        let is_too_wide =
                            self.lanes.get_mut(id).is_some_and(|lane| lane.mtu.narrow(&lane.qp, self.now, mtu));
                        self.lanes.note_narrow(id);
                        if is_too_wide {
                            let most = mtu.bytes();
                            self.lanes.fail(id, format!("the way to the peer takes a path MTU of {most} at most"));
                        }
                    }
                }
                AsyncEvent::KeysWorn { qpn, is_due } => self.on_keys_worn(qpn, is_due),
                AsyncEvent::StrangePort { qpn, found } => {
                    if let Some(lane) = self.lanes.of_qp(qpn).and_then(|id| self.lanes.get(id)) {
                        let (peer, expected) = (lane.peer(), lane.qp.peer_port());
                        self.events.push_back(Event::StrangePort { peer, found, expected });
                    }
                }
                _ => {}
            }
        }
        true
    }

    fn run_timers<P: Provider>(&mut self, nic: &mut P) -> bool {
        let now = self.now;
        let mut worked = false;
        for _ in 0..TIMERS_PER_RUN {
            let Some(id) = self.timers.due_connect(now) else { break };
            self.on_connect_timeout(id);
            worked = true;
        }
        for _ in 0..TIMERS_PER_RUN {
            let Some(id) = self.timers.due_heads(now) else { break };
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.on.connections.lists.on_head_timer();
            }
            self.wake_lane(id);
            self.lanes.queue(id);
            worked = true;
        }
        for _ in 0..TIMERS_PER_RUN {
            let Some(app) = self.timers.due_orphan(now) else { break };
            self.on_orphan_timeout(nic, app);
            worked = true;
        }
        worked |= self.end_holds();
        worked |= self.run_away();
        worked |= self.run_tenants();
        worked |= self.run_credit_periods();
        worked |= self.run_lane_rests(nic);
        worked |= self.recv.trim(nic);
        let connects = &self.connects;
        self.timers.skip_stale(|id| connects.contains(id));
        worked
    }

    /// Tenants that were stopped by a rate may send again.
    fn run_tenants(&mut self) -> bool {
        let mut worked = false;
        while let Some((place, waits)) = self.tenants.due(self.now) {
            self.bring_back(place, waits);
            worked = true;
        }
        worked
    }

    fn bring_back(&mut self, place: TenantPlace, waits: Vec<Waits>) {
        for waits in waits {
            Mechanisms::bring_back(self, place, waits);
        }
    }

    fn run_lanes<P: Provider>(&mut self, nic: &mut P) -> bool {
        let mut worked = false;
        for _ in 0..self.lanes.queued() {
            let Some(id) = self.lanes.next_queued() else { break };
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            let scratch = &mut self.scratch.frame_out;
            let (vqps, ops) = (&mut self.vqps, &mut self.ops);
            let choosing = Choosing { at: &self.config.choice, here: self.load, wanted: &mut self.lend_wanted };
            let (counters, stages) = (&mut self.counters, &mut self.stages);
            let (tenants, now) = (&mut self.tenants, self.now);
            let mut pump = Pump { id, lane, ops, vqps, scratch, choosing, counters, stages, tenants, now };
            let used =
                |c: &Counters| (c.writes_sent, c.sends_sent, c.reads_posted, c.records_sent, c.operations_posted);
            let before = used(pump.counters);
            match pump.run(nic) {
                Ok(sent) => {
                    worked |= sent;
                    if before != used(&self.counters) {
                        lane.on_used(self.now);
                    }
                }
                Err(e) => {
                    self.lanes.fail(id, e.to_string());
                    worked = true;
                    continue;
                }
            }
            let asked = lane.rest.take_asked();
            // Only the limit of frames per round leaves work that could be done at once.
            if lane.has_frame_to_send() {
                self.lanes.queue(id);
            }
            if let Some(unused) = asked {
                self.on_lane_unused(nic, id, unused);
            }
        }
        worked
    }

    fn sample<P: Provider>(&mut self, nic: &P) {
        if self.sampled.is_none_or(|at| self.now.saturating_since(at) >= DEVICE_SAMPLE) {
            self.sampled = Some(self.now);
            let told = nic.counters();
            let naks = told.iter().filter(|(name, _)| name.starts_with("rnr_naks")).map(|(_, n)| *n);
            self.counters.rnr_naks = naks.reduce(|sum, n| sum + n);
            for id in self.lanes.narrowed() {
                if self.lanes.get_mut(id).is_some_and(|lane| lane.mtu.widen(&lane.qp, self.now, self.device.mtu)) {
                    self.lanes.fail(id, "longer packets are tried again".into());
                }
            }
        }
    }

    // ---- results

    /// Bytes of ring data sent and received since the start. The difference over a round says how much it moved.
    pub fn data_bytes(&self) -> u64 {
        self.counters.data_bytes
    }

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Appends the applications that sleep and have news: write to each one's wake socket. Their sleep flags are
    /// cleared already, so a wake that is not written is lost.
    pub fn take_wakes(&mut self, out: &mut Vec<AppId>) {
        self.apps.take_wakes(out);
    }

    /// Stores the sleep flag, arms the CQ, looks once more. False: there is work, do not sleep (`end_sleep` was done).
    pub fn prepare_sleep<P: Provider>(&mut self, nic: &mut P) -> bool {
        shm::prepare_sleep(&self.engine_sleep);
        let Completions { cq, waiting, .. } = &mut self.completions;
        let armed = nic.req_notify_cq(*cq, false).is_ok();
        let polled = nic.poll_cq(*cq, waiting, COMPLETIONS_PER_RUN);
        let idle = armed
            && polled.is_ok()
            && self.completions.waiting.is_empty()
            && self.lanes.queued() == 0
            && self.events.is_empty()
            && !self.apps.has_work()
            && !self.lanes.has_failing()
            && self.displaced.is_empty()
            && !Mechanisms::has_work(self)
            && !self.apps.has_rung()
            && self.returns.is_empty()
            && self.endings.is_empty();
        if !idle {
            self.end_sleep();
        }
        idle
    }

    /// Clears the sleep flag.
    pub fn end_sleep(&mut self) {
        shm::end_sleep(&self.engine_sleep);
    }

    /// When [`Engine::run`] is needed even if nothing happens.
    pub fn deadline(&self) -> Option<Time> {
        let mechanisms = Mechanisms::deadline(self);
        let keys = self.lanes.keys_deadline(self.now);
        let hold = self.holds.front().map(|(until, _)| *until);
        [self.timers.deadline(), self.rests.deadline(), mechanisms, self.tenants.deadline(), keys, hold]
            .into_iter()
            .flatten()
            .min()
    }

    // ---- shared steps

    /// Rings an application's doorbell; whether it has to be woken is decided once at the end of the round.
    fn notify(&mut self, at: SlotAt) {
        self.apps.mark(at, true);
    }

    /// Something about a connection changed: puts it into the lists it belongs to, or ends it.
    fn update(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        if let Some(id) = vqp.place.lane()
            && let Some(lane) = self.lanes.get_mut(id)
        {
            let lazy = vqp.update_head_report() == HeadReport::Lazy;
            if lazy && vqp.place.enter(List::LazyHead) && lane.on.connections.lists.push_lazy_head(route) {
                self.timers.start_heads(self.now + HEAD_LINGER, id);
            }
            if let Some(stall) = &mut lane.stall {
                stall.note(route, vqp.slot.peer_timeout());
            }
            let mut has_work = false;
            if vqp.owes_records() && vqp.place.enter(List::Control) {
                lane.on.connections.lists.push_control(route);
                has_work = true;
            }
            if (vqp.is_sendable() || vqp.wants_pull()) && vqp.place.enter(List::Ready) {
                lane.drr.push(vqp.app(), Flow::Connection(route), &self.tenants);
                has_work = true;
            }
            if vqp.wants_to_send_messages() {
                has_work = true;
                if !lane.may_name(vqp.last_wr()) && vqp.enter_messages() {
                    self.unreliable.drr.push(vqp.app(), route, &self.tenants);
                }
            }
            if has_work {
                self.wake_lane(id);
                self.lanes.queue(id);
            }
        }
        self.try_release(route);
    }

    /// Frees a connection if nobody can touch its memory any more.
    fn try_release(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get(route) else { return };
        let lane = vqp.place.lane().and_then(|id| self.lanes.get_mut(id));
        let is_over = vqp.is_over();
        if !is_over || lane.as_ref().is_some_and(|l| l.may_name(vqp.last_wr())) {
            // The ends of a lane that rests tell each other what is over when it wakes.
            if let Some(id) = vqp.place.lane().filter(|_| is_over) {
                self.wake_lane(id);
            }
            return;
        }
        if let Some(lane) = lane {
            self.vqps.unlink(&mut lane.members, route, self.now);
        }
        let Some(vqp) = self.vqps.remove(route) else { return };
        self.rests.forget(&vqp);
        let app = vqp.app();
        self.events.extend(vqp.over());
        let Some(tenant) = self.apps.get_mut(app) else { return };
        if let Some(port) = vqp.backlog_port() {
            tenant.leave_backlog(port, vqp.id());
        }
        tenant.count_bytes(vqp.uncounted());
        self.counters.closed += 1;
        self.free_slot(vqp.at(), vqp.slot.words(), vqp.rings(), vqp.allocated());
    }

    /// Deregisters a region that nobody uses.
    fn dereg<P: Provider>(&mut self, nic: &mut P, mr: MrId) {
        if nic.dereg_mr(mr).is_err() {
            self.counters.device_refusals += 1;
        }
    }

    // ---- addresses

    fn is_own(&self, ip: IpAddr) -> bool {
        self.config.addresses.contains(&ip)
    }

    /// The address of this end of connections.
    fn local_address(&self) -> IpAddr {
        self.config.addresses.first().copied().unwrap_or(IpAddr::from([0, 0, 0, 0]))
    }
}
