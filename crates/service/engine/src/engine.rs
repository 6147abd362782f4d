//! The engine: its state, one round of work, and the steps that all parts share.
//!
//! Owns the order of a round. It must never work in one round more than the limits allow, nor look at connections that
//! have no news.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shm::{EnginePage, Word32};
use verbs::{AsyncEvent, Completion, CqId, Gid, MrId, PathMtu, Provider, Qpn, Time};

use crate::app::App;
use crate::connect::{Connect, ConnectId};
use crate::datagram::{Datagrams, UdPort};
use crate::event::{Event, SetupError};
use crate::lane::{Lane, LaneId, LaneState};
use crate::limits::{
    ASYNC_EVENTS_PER_RUN, COMPLETIONS_PER_RUN, DEVICE_SAMPLE, EPHEMERAL_FIRST, HEAD_LINGER, TIMERS_PER_RUN,
};
use crate::listen::{Listener, ParkedId, ParkedOpen};
use crate::pump::Pump;
use crate::recvpool::RecvPool;
use crate::rest::Rests;
use crate::ringpool::{PutBack, Retired, RingPair};
use crate::route_names::RouteNames;
use crate::stat::Counters;
use crate::table::Table;
use crate::timers::Timers;
use crate::users::{Far, Users};
use crate::vqp::{HeadReport, RouteId, Vqp};
use crate::{AppId, DeviceFit, DeviceRoom, EngineConfig};

/// What the engine needs to know of the device.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub(crate) gid: Gid,
    pub(crate) udp_port: u16,
    pub(crate) mtu: PathMtu,
    pub(crate) max_msg_bytes: u32,
    pub(crate) max_rd_atomic: u8,
    pub(crate) rx_budget_bytes: Option<u32>,
    pub(crate) sq_depth: usize,
}

/// The data path of one daemon on one device.
///
/// One thread calls it: control messages by name, then [`Engine::run`] until it says that there is nothing to do, each time with
/// [`Engine::begin_rests`] and, if that says so, [`Engine::finish_rests`]; then [`Engine::poll_event`] and [`Engine::take_wakes`]. Time is an argument; the largest seen counts.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) device: Device,
    pub(crate) rng: StdRng,
    engine_sleep: Word32,
    pub(crate) cq: CqId,
    pub(crate) recv: RecvPool,
    pub(crate) now: Time,

    pub(crate) apps: Table<AppId, App>,
    pub(crate) vqps: Table<RouteId, Vqp>,
    pub(crate) route_names: RouteNames,
    pub(crate) lanes: Table<LaneId, Lane>,
    pub(crate) connects: Table<ConnectId, Connect>,
    pub(crate) parked_opens: Table<ParkedId, ParkedOpen>,
    pub(crate) listeners: BTreeMap<u16, Listener>,
    pub(crate) users: Users,
    pub(crate) datagrams: Datagrams,
    pub(crate) peers: BTreeMap<IpAddr, LaneId>,
    /// Lanes by queue pair, sorted.
    pub(crate) by_qpn: Vec<(Qpn, LaneId)>,
    /// Applications whose doorbells are looked at.
    pub(crate) attached: Vec<AppId>,
    /// Connects whose lane went away before there was an answer.
    pub(crate) displaced: Vec<ConnectId>,
    /// Connects and parked opens that have no virtual QP.
    pub(crate) waiting: u32,

    pub(crate) events: VecDeque<Event>,
    /// Lanes with work.
    pub(crate) lane_queue: VecDeque<LaneId>,
    /// Lanes whose queue pair failed in this round.
    pub(crate) failing: Vec<LaneId>,
    /// Applications whose doorbell was rung in this round.
    touched: Vec<AppId>,
    wakes: Vec<AppId>,
    pub(crate) gone: Vec<AppId>,
    pub(crate) retired: VecDeque<(AppId, Retired)>,
    /// Ring chunks that are registered with the device, and their bytes.
    pub(crate) ring_mrs: u32,
    pub(crate) ring_mr_bytes: u64,
    pub(crate) timers: Timers,
    pub(crate) rests: Rests,

    pub(crate) completions: Vec<Completion>,
    pub(crate) completions_spare: Vec<Completion>,
    pub(crate) frame_in: Vec<u8>,
    frame_out: Vec<u8>,
    pub(crate) dirty: Vec<u32>,

    pub(crate) last_connection: u64,
    pub(crate) last_incarnation: u32,
    next_port: u16,
    pub(crate) counters: Counters,
    sampled: Option<Time>,
}

impl Engine {
    /// Makes CQ and SRQ on the device. `entropy` seeds packet sequence numbers, route ids and ports: secret randomness in earnest.
    pub fn new<P: Provider>(
        mut config: EngineConfig,
        nic: &mut P,
        page: EnginePage,
        entropy: [u8; 32],
    ) -> Result<Self, SetupError> {
        config.check()?;
        config.addresses.iter_mut().for_each(|a| *a = a.to_canonical());
        let attr = nic.device().clone();
        let DeviceFit { lanes, send_queue: sq_depth } = config.check_device(&DeviceRoom::from(&attr))?;
        config.lanes_max = lanes;
        let cq = nic.create_cq(lanes * (config.lane_credits + sq_depth) + UdPort::COMPLETIONS_MAX)?;
        let recv = RecvPool::new(nic, config.send_bytes_max, config.lane_credits, config.lanes_max)?;
        let device = Device {
            gid: attr.gid,
            udp_port: attr.udp_port,
            mtu: attr.mtu,
            max_msg_bytes: attr.max_msg_bytes,
            max_rd_atomic: attr.max_rd_atomic,
            rx_budget_bytes: attr.rx_budget_bytes,
            sq_depth: sq_depth as usize,
        };
        let mut rng = StdRng::from_seed(entropy);
        let next_port = rng.random_range(EPHEMERAL_FIRST..=u16::MAX);
        let route_names = RouteNames::new(&mut rng);
        let datagrams = Datagrams::new(nic, cq, config.datagram_sockets_max, &mut rng)?;
        Ok(Self {
            device,
            rng,
            engine_sleep: page.engine_sleep(),
            cq,
            recv,
            now: Time::ZERO,
            apps: Table::new(config.apps_max),
            vqps: Table::new(config.connections_max),
            route_names,
            lanes: Table::new(config.lanes_max),
            connects: Table::new(config.connections_max),
            parked_opens: Table::new(config.connections_max),
            listeners: BTreeMap::new(),
            users: Users::new(&config),
            datagrams,
            peers: BTreeMap::new(),
            by_qpn: Vec::new(),
            attached: Vec::new(),
            displaced: Vec::new(),
            waiting: 0,
            events: VecDeque::new(),
            lane_queue: VecDeque::new(),
            failing: Vec::new(),
            touched: Vec::new(),
            wakes: Vec::new(),
            gone: Vec::new(),
            retired: VecDeque::new(),
            ring_mrs: 0,
            ring_mr_bytes: 0,
            timers: Timers::default(),
            rests: Rests::new(config.rest_after.filter(|_| !nic.pins_memory())),
            completions: Vec::with_capacity(COMPLETIONS_PER_RUN),
            completions_spare: Vec::with_capacity(COMPLETIONS_PER_RUN),
            frame_in: Vec::with_capacity(config.send_bytes_max as usize),
            frame_out: Vec::with_capacity(config.send_bytes_max as usize),
            dirty: Vec::new(),
            last_connection: 0,
            last_incarnation: 0,
            next_port,
            counters: Counters::default(),
            sampled: None,
            config,
        })
    }

    // ---- a round

    /// One round: completions, doorbells, timers, sending. Says whether anything was done; the work of one round is
    /// bounded, so what is left is done in the next.
    pub fn run<P: Provider>(&mut self, now: Time, nic: &mut P) -> bool {
        self.now = self.now.max(now);
        let mut worked = self.run_completions(nic);
        worked |= self.run_device_events(nic);
        worked |= self.run_doorbells();
        worked |= self.run_timers(nic);
        worked |= self.run_displaced(nic);
        worked |= self.run_lanes(nic);
        worked |= self.run_datagrams(nic);
        worked |= self.run_resets(nic);
        worked |= self.run_free_rings(nic);
        worked |= self.run_departures(nic);
        self.collect_wakes();
        self.sample(nic);
        worked
    }

    fn run_device_events<P: Provider>(&mut self, nic: &mut P) -> bool {
        for done in 0..ASYNC_EVENTS_PER_RUN {
            let Some(event) = nic.poll_event() else { return done > 0 };
            match event {
                AsyncEvent::QpFatal(qpn) => {
                    if let Some(id) = self.lane_of(qpn) {
                        self.break_lane(id, format!("the device put QP {qpn} in error"));
                    } else if qpn == self.datagrams.port.qpn() {
                        self.datagrams.port.fail();
                    }
                }
                AsyncEvent::CqError(_) | AsyncEvent::DeviceFatal => {
                    for id in self.lanes.keys() {
                        self.fail_lane(nic, id, format!("the device reported {event:?}"));
                    }
                }
                AsyncEvent::PathMtu { peer, mtu } => {
                    if let Some(&id) = self.peers.get(&peer.to_canonical())
                        && self.lanes.get_mut(id).is_some_and(|lane| lane.narrow(self.now, mtu))
                    {
                        self.break_lane(id, format!("the way to the peer takes a path MTU of {} at most", mtu.bytes()));
                    }
                }
                AsyncEvent::StrangePort { qpn, found } => {
                    if let Some(lane) = self.lane_of(qpn).and_then(|id| self.lanes.get(id)) {
                        let (peer, expected) = (lane.peer, lane.peer_port);
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
                lane.has_head_timer = false;
                lane.heads_due = !lane.lazy_heads.is_empty();
            }
            self.queue_lane(id);
            worked = true;
        }
        for _ in 0..TIMERS_PER_RUN {
            let Some(app) = self.timers.due_orphan(now) else { break };
            self.on_orphan_timeout(nic, app);
            worked = true;
        }
        let connects = &self.connects;
        self.timers.skip_stale(|id| connects.contains(id));
        worked
    }

    fn run_lanes<P: Provider>(&mut self, nic: &mut P) -> bool {
        let mut worked = false;
        for _ in 0..self.lane_queue.len() {
            let Some(id) = self.lane_queue.pop_front() else { break };
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            lane.is_queued = false;
            let mut pump =
                Pump { lane, vqps: &mut self.vqps, scratch: &mut self.frame_out, counters: &mut self.counters };
            match pump.run(nic) {
                Ok(sent) => worked |= sent,
                Err(e) => {
                    self.break_lane(id, e.to_string());
                    worked = true;
                    continue;
                }
            }
            // Only the limit of frames per round leaves work that could be done at once.
            let lane = self.lanes.get(id);
            if lane.is_some_and(|l| l.state == LaneState::Up && l.wants_frame() && l.allows_frame()) {
                self.queue_lane(id);
            }
        }
        worked
    }

    pub(crate) fn collect_wakes(&mut self) {
        for app in self.touched.drain(..) {
            let Some(tenant) = self.apps.get_mut(app) else { continue };
            tenant.is_touched = false;
            if tenant.must_wake() {
                self.wakes.push(app);
            }
        }
    }

    fn sample<P: Provider>(&mut self, nic: &P) {
        if self.sampled.is_none_or(|at| self.now.saturating_since(at) >= DEVICE_SAMPLE) {
            self.sampled = Some(self.now);
            self.counters.rnr_naks =
                nic.counters().iter().filter(|(name, _)| name.starts_with("rnr_naks")).map(|(_, n)| n).sum();
            for id in self.lanes.keys() {
                if self.lanes.get_mut(id).is_some_and(|lane| lane.widen(self.now, self.device.mtu)) {
                    self.break_lane(id, "longer packets are tried again".into());
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

    /// Appends the applications that sleep and have news: write to each one's wake socket. Their sleep flags are cleared
    /// already, so a wake that is not written is lost.
    pub fn take_wakes(&mut self, out: &mut Vec<AppId>) {
        out.append(&mut self.wakes);
    }

    /// Stores the sleep flag, arms the CQ, looks once more. False: there is work, do not sleep (`end_sleep` was done).
    pub fn prepare_sleep<P: Provider>(&mut self, nic: &mut P) -> bool {
        shm::prepare_sleep(&self.engine_sleep);
        let armed = nic.req_notify_cq(self.cq, false).is_ok();
        let polled = nic.poll_cq(self.cq, &mut self.completions, COMPLETIONS_PER_RUN);
        let idle = armed
            && polled.is_ok()
            && self.completions.is_empty()
            && self.lane_queue.is_empty()
            && self.events.is_empty()
            && self.wakes.is_empty()
            && self.gone.is_empty()
            && self.retired.is_empty()
            && self.failing.is_empty()
            && self.displaced.is_empty()
            && !self.datagrams.has_work()
            && !self.attached.iter().any(|a| self.apps.get(*a).is_some_and(|a| a.a2e.is_dirty()));
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
        let revival = self.datagrams.port.deadline();
        [self.timers.deadline(), self.rests.deadline(), revival].into_iter().flatten().min()
    }

    // ---- shared steps

    /// Puts a lane into the list of those with work.
    #[inline]
    pub(crate) fn queue_lane(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(id)
            && !lane.is_queued
        {
            lane.is_queued = true;
            self.lane_queue.push_back(id);
        }
    }

    /// Rings an application's doorbell; whether it has to be woken is decided once at the end of the round.
    pub(crate) fn notify(&mut self, app: AppId, slot: u32) {
        self.mark(app, slot, true);
    }

    /// As [`Engine::notify`]; but what no thread of the application waits for wakes none, for the others would only pay.
    #[inline]
    pub(crate) fn mark(&mut self, app: AppId, slot: u32, awaited: bool) {
        let Some(tenant) = self.apps.get_mut(app).filter(|a| !a.leaving) else { return };
        tenant.e2a.ring(slot);
        if awaited && !tenant.is_touched {
            tenant.is_touched = true;
            self.touched.push(app);
        }
    }

    /// Something about a connection changed: puts it into the lists it belongs to, or ends it.
    pub(crate) fn update(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get_mut(route) else { return };
        if let Some(id) = vqp.lane
            && let Some(lane) = self.lanes.get_mut(id)
        {
            if vqp.update_head_report() == HeadReport::Lazy && !vqp.in_lazy {
                vqp.in_lazy = true;
                lane.lazy_heads.push_back(route);
                if !lane.has_head_timer {
                    lane.has_head_timer = true;
                    self.timers.start_heads(self.now + HEAD_LINGER, id);
                }
            }
            if let Some(stall) = &mut lane.stall {
                stall.note(route, vqp.peer_timeout());
            }
            let mut has_work = false;
            if vqp.owes_records() && !vqp.in_control {
                vqp.in_control = true;
                lane.control.push_back(route);
                has_work = true;
            }
            if vqp.is_sendable() && !vqp.in_ready {
                vqp.in_ready = true;
                lane.drr.push(vqp.app, route);
                has_work = true;
            }
            if has_work {
                self.queue_lane(id);
            }
        }
        self.try_release(route);
    }

    /// Frees a connection if nobody can touch its memory any more.
    pub(crate) fn try_release(&mut self, route: RouteId) {
        let Some(vqp) = self.vqps.get(route) else { return };
        let lane = vqp.lane.and_then(|id| self.lanes.get(id));
        let may_be_named = lane.is_some_and(|l| l.holds_connections() || !l.sendq.is_completed(vqp.last_wr));
        if may_be_named || !vqp.is_over() {
            return;
        }
        let Some(vqp) = self.vqps.remove(route) else { return };
        if let Some(lane) = vqp.lane {
            self.unlink(lane, vqp.previous, vqp.next);
        }
        self.free_backlog_place(vqp.backlog_port, vqp.id);
        let Some(tenant) = self.apps.get_mut(vqp.app) else { return };
        tenant.connections -= 1;
        self.users.drop_connection(tenant.uid, Some(Far { host: vqp.peer.ip(), is_outgoing: vqp.is_outgoing }));
        let (tx, rx) = vqp.uncounted();
        tenant.count_bytes(tx, rx);
        tenant.put_back_slot(vqp.slot, &vqp.words);
        let back = tenant.pool.put_back(self.now, RingPair { tx: vqp.tx_place, rx: vqp.rx_place });
        self.note_put_back(vqp.app, back);
        self.counters.closed += 1;
        self.serve_rings(vqp.app, vqp.allocated_bytes);
        self.note_departure(vqp.app);
    }

    /// Rings are free: chunks that are spare go, and pages later.
    pub(crate) fn note_put_back(&mut self, app: AppId, back: PutBack) {
        self.retired.extend(back.retired.into_iter().map(|r| (app, r)));
        for place in back.used {
            self.rests.free(app, place, self.now);
        }
    }

    /// Deregisters a region that nobody uses.
    pub(crate) fn dereg<P: Provider>(&mut self, nic: &mut P, mr: MrId) {
        if nic.dereg_mr(mr).is_err() {
            self.counters.device_refusals += 1;
        }
    }

    // ---- addresses

    pub(crate) fn is_own(&self, ip: IpAddr) -> bool {
        self.config.addresses.contains(&ip)
    }

    /// The address of this end of connections.
    pub(crate) fn local_address(&self) -> IpAddr {
        self.config.addresses.first().copied().unwrap_or(IpAddr::from([0, 0, 0, 0]))
    }

    /// A port for the connecting end: it distinguishes connections for people, routes do for the engine.
    pub(crate) fn next_ephemeral(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = if port == u16::MAX { EPHEMERAL_FIRST } else { port + 1 };
        port
    }
}
