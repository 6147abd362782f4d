//! Hosts, the network between them, and the daemons' part of the work: dialling, chunks, wakes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use control::{Kind, LaneOffer, LaneRoutes, Reason};
use engine::{AppId, Attach, Engine, Event, RingSize, TenantPlace};
use plane::Connect;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use roce::Nic;
use shm::EnginePage;
use verbs::{Capabilities, Time};

use crate::apps::SimApp;

pub(crate) use control_link::offered;
use desk::{Desk, HostConfig, Local};

mod control_link;
pub(crate) mod desk;
mod end;
mod host;
mod restart;

/// What the network does to packets, per thousand.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LinkConditions {
    pub(crate) loss: u32,
    pub(crate) duplicate: u32,
    pub(crate) reorder: u32,
}

/// One host: NIC, engine, applications.
pub(crate) struct Host {
    pub(crate) addr: IpAddr,
    pub(crate) nic: Nic,
    pub(crate) engine: Engine,
    pub(crate) desk: Desk,
    page: EnginePage,
    /// Of the engine.
    number: u32,
    pub(crate) apps: BTreeMap<AppId, SimApp>,
    pub(crate) faults: Vec<(AppId, String)>,
    pub(crate) gone: Vec<AppId>,
    /// What the engine said of regions.
    pub(crate) regions: Vec<Event>,
    /// Operation queues that are over, by number.
    pub(crate) queues_over: Vec<u64>,
    pub(crate) lane_failures: Vec<String>,
    pub(crate) lane_resets: Vec<String>,
    /// Whom the engine wanted dialed, and when.
    pub(crate) wanted: Vec<(Time, IpAddr)>,
    /// Peer, port that was seen, port that was expected.
    pub(crate) strange_ports: Vec<(IpAddr, u16, u16)>,
    pub(crate) locals: Vec<Local>,
    pub(crate) refuse_chunks: bool,
    /// Chunks are made when the test says so.
    pub(crate) holds_chunks: bool,
    chunks_wanted: Vec<(AppId, RingSize, u32)>,
    /// An access to a chunk cannot be served.
    pub(crate) chunks_without_pages: bool,
    /// Each lane is said to make room for another host's as soon as it is up.
    pub(crate) gives_lanes_up: bool,
    pub(crate) wakes: BTreeSet<AppId>,
    next_request: u64,
    asleep: bool,
    /// Rests are begun, and finished by the test.
    pub(crate) holds_rests: bool,
    /// As it said in its last offer.
    pub(crate) ud_qpn: u32,
}

#[derive(Debug)]
enum Link {
    Dial,
    Offer(LaneOffer),
    Ready,
    Reset { resumes: bool, reason: Reason },
    Rest,
    Routes(LaneRoutes),
    RoutesTaken,
}

#[derive(Debug)]
enum Arrival {
    Packet { from: SocketAddr, to: SocketAddr, bytes: Vec<u8>, id: u16 },
    Link { from: usize, to: usize, message: Link },
}

/// Everything.
pub(crate) struct World {
    pub(crate) hosts: Vec<Host>,
    pub(crate) now: Time,
    flying: BTreeMap<(Time, u64), Arrival>,
    next_seq: u64,
    rng: StdRng,
    pub(crate) conditions: LinkConditions,
    pub(crate) delay: Duration,
    /// Packets between these hosts vanish.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// Longer packets vanish.
    pub(crate) swallowed_above: usize,
    /// So do those of which it says so.
    pub(crate) swallows: fn(&[u8]) -> bool,
    /// What these hosts send comes from another port, as behind a device that translates ports.
    pub(crate) changed_ports: BTreeMap<usize, u16>,
    /// Hosts whose daemon hangs; their NICs work.
    pub(crate) stopped: BTreeSet<usize>,
    /// Messages of the control link vanish.
    pub(crate) no_links: bool,
    offered: BTreeSet<(usize, usize)>,
    /// Ends whose reset is sent and not answered.
    draining: BTreeSet<(usize, usize)>,
    /// Ends whose connections wait for the next incarnation.
    resuming: BTreeSet<(usize, usize)>,
    /// Ends that rest, and wanted the lane again before the other knew.
    woken: BTreeSet<(usize, usize)>,
    /// What host 1 says wrongly, once, of what arrived.
    pub(crate) twist: Option<fn(&mut LaneRoutes)>,
    buf: Vec<u8>,
    pub(crate) steps: u64,
    restarts: u64,
}

/// Numbers of operation queues; those of datagram sockets are smaller.
pub(crate) const QUEUE_NUMBERS: u64 = 1 << 40;
/// The daemons' user.
const OWNER: u32 = 77;

/// Each host's device has a port of its own, which its peers learn by its offer.
fn udp_port(host: usize) -> u16 {
    4791 + host as u16
}

pub(crate) fn addr(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, host as u8 + 1])
}

/// A run that takes more is stuck.
const STEPS_MAX: u64 = 3_000_000;

impl World {
    pub(crate) fn new(hosts: usize, seed: u64) -> Self {
        Self::with(hosts, seed, |_| {})
    }

    pub(crate) fn with(hosts: usize, seed: u64, configure: impl Fn(&mut HostConfig)) -> Self {
        // Software NICs treat each other in ways that others do not.
        let able = if seed.is_multiple_of(2) { Capabilities::SOFTWARE_NIC } else { Capabilities::ROCE };
        Self::of((0..hosts).map(|i| Host::new(i, seed, able, &configure)).collect(), seed)
    }

    /// Hosts whose devices can do this.
    pub(crate) fn of_devices(able: &[Capabilities], seed: u64) -> Self {
        Self::of(able.iter().enumerate().map(|(i, able)| Host::new(i, seed, *able, &|_| {})).collect(), seed)
    }

    fn of(hosts: Vec<Host>, seed: u64) -> Self {
        Self {
            hosts,
            now: Time(1),
            flying: BTreeMap::new(),
            next_seq: 0,
            rng: StdRng::seed_from_u64(seed),
            conditions: LinkConditions::default(),
            delay: Duration::from_micros(5),
            cut: BTreeSet::new(),
            swallowed_above: usize::MAX,
            swallows: |_| false,
            changed_ports: BTreeMap::new(),
            stopped: BTreeSet::new(),
            no_links: false,
            offered: BTreeSet::new(),
            draining: BTreeSet::new(),
            resuming: BTreeSet::new(),
            woken: BTreeSet::new(),
            twist: None,
            buf: Vec::new(),
            steps: 0,
            restarts: 0,
        }
    }

    // ---- what tests do

    /// An application of the daemon's own user, which has no shares.
    pub(crate) fn attach(&mut self, host: usize, slots: u32) -> AppId {
        self.attach_as(host, OWNER, slots)
    }

    pub(crate) fn attach_as(&mut self, host: usize, uid: u32, slots: u32) -> AppId {
        let h = &mut self.hosts[host];
        let app = SimApp::new(slots, h.number, h.page.engine_sleep(h.number));
        let session = app.session.clone();
        let pid = 1000 + h.apps.len() as u32;
        let client = h.desk.attach(uid);
        let id = h
            .engine
            .attach(Attach {
                pid,
                uid,
                name: format!("app{pid}"),
                session,
                connect_to: None,
                tenant: TenantPlace::default(),
            })
            .unwrap();
        h.desk.on_attached(client, id);
        h.apps.insert(id, app);
        id
    }

    pub(crate) fn app(&mut self, host: usize, app: AppId) -> &mut SimApp {
        self.hosts[host].apps.get_mut(&app).unwrap()
    }

    pub(crate) fn listen(&mut self, host: usize, app: AppId, port: u16, backlog: u32) -> SocketAddr {
        self.hosts[host].listen(app, port, backlog, 0).unwrap()
    }

    pub(crate) fn connect(&mut self, host: usize, app: AppId, to: SocketAddr, ring_bytes: u32) -> u64 {
        self.connect_of_kind(host, app, Connect { to, ring_bytes, kind: Kind::Stream })
    }

    pub(crate) fn connect_of_kind(&mut self, host: usize, app: AppId, connect: Connect) -> u64 {
        let h = &mut self.hosts[host];
        h.next_request += 1;
        let request = h.next_request;
        h.connect(self.now, app, request, connect);
        request
    }

    /// Connects and waits for the answer: the slot, or why not.
    pub(crate) fn connect_wait(&mut self, host: usize, app: AppId, to: SocketAddr, ring: u32) -> Result<u32, Reason> {
        let request = self.connect(host, app, to, ring);
        self.until("answer to a connect", |w| w.hosts[host].apps[&app].answers.contains_key(&request));
        self.app(host, app).answers[&request]
    }

    /// Two hosts' applications with one connection: (slot at host 0, slot at host 1).
    pub(crate) fn pair(&mut self, a: AppId, b: AppId, port: u16, ring: u32) -> (u32, u32) {
        let to = SocketAddr::new(addr(1), port);
        if !self.hosts[1].listen(b, port, 16, 0).is_ok_and(|a| a == to) {
            panic!("cannot listen on {to}");
        }
        let slot = self.connect_wait(0, a, to, ring).unwrap();
        self.until("incoming", |w| w.hosts[1].apps[&b].incoming.iter().any(|i| i.1 == port));
        let peer = self.app(1, b).incoming.iter().find(|i| i.1 == port).unwrap().0;
        (slot, peer)
    }

    /// Changes what a connection does, and rings.
    pub(crate) fn tell(&mut self, host: usize, app: AppId, slot: u32, what: impl FnOnce(&mut crate::apps::SimConn)) {
        let app = self.app(host, app);
        what(app.conns.get_mut(&slot).unwrap());
        app.poke(slot);
    }

    /// An application goes to sleep, if it has nothing to do.
    pub(crate) fn app_sleeps(&mut self, (host, app): (usize, AppId)) {
        self.app(host, app).sleep();
    }

    /// The process dies: nothing of it runs any more.
    pub(crate) fn kill(&mut self, host: usize, app: AppId) -> SimApp {
        self.kill_with(host, app, |_| {})
    }

    /// The process does a last thing and dies before the engine looked.
    pub(crate) fn kill_with(&mut self, host: usize, app: AppId, last: impl FnOnce(&mut SimApp)) -> SimApp {
        last(self.app(host, app));
        let h = &mut self.hosts[host];
        h.desk.left(app);
        h.engine.detach(self.now, &mut h.nic, app, Reason::Closed);
        h.apps.remove(&app).unwrap()
    }

    pub(crate) fn counter(&self, host: usize, name: &str) -> u64 {
        let totals = self.hosts[host].engine.totals();
        totals.counters.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    // ---- time

    /// Runs until `done`, and panics if that does not come.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.steps + STEPS_MAX;
        self.wake_all();
        while !done(self) {
            let moved = self.step();
            if !moved || self.steps > limit {
                self.dump();
                panic!("{what}: {}", if moved { "takes too long" } else { "nothing happens any more" });
            }
        }
    }

    /// Runs for some virtual time.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.wake_all();
        while self.now < end && self.step() {}
        self.now = self.now.max(end);
    }

    /// Runs until nothing happens but keep-alives of at most a second of virtual time.
    pub(crate) fn settle(&mut self) {
        self.pass(Duration::from_secs(1));
    }

    /// A test, like the daemon's control thread, wakes the engine when it calls it.
    fn wake_all(&mut self) {
        self.hosts.iter_mut().for_each(Host::wake);
    }

    /// Everything that can be done now; then time goes on to what comes next. False: nothing ever will.
    pub(crate) fn step(&mut self) -> bool {
        self.steps += 1;
        // Work takes time, so packets arrive also while somebody is busy.
        self.now = self.now + Duration::from_nanos(100);
        let mut worked = self.deliver();
        for i in 0..self.hosts.len() {
            worked |= self.run_host(i);
        }
        if worked {
            return true;
        }
        let arrival = self.flying.first_key_value().map(|(k, _)| k.0);
        let stopped = &self.stopped;
        let engines = self.hosts.iter().enumerate().filter(|(i, _)| !stopped.contains(i));
        // A rest that the test holds back is due all the time, and would have time pass in steps of nanoseconds.
        let held = self.now + Duration::from_millis(1);
        let engines = engines.filter_map(|(_, h)| {
            let deadline = h.engine.deadline()?;
            Some(if h.holds_rests { deadline.max(held) } else { deadline })
        });
        let timers = self.hosts.iter().filter_map(|h| h.nic.deadline()).chain(engines).min();
        let Some(next) = [arrival, timers].into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        true
    }

    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let arrival = entry.remove();
            self.arrive(arrival);
            any = true;
        }
        any
    }

    fn run_host(&mut self, i: usize) -> bool {
        let now = self.now;
        let h = &mut self.hosts[i];
        let mut worked = false;
        if h.nic.deadline().is_some_and(|d| d <= now) {
            h.nic.handle_timeout(now);
            worked = true;
        }
        if h.asleep && (h.nic.take_notify() || h.engine.deadline().is_some_and(|d| d <= now)) {
            h.wake();
        }
        if !h.asleep && !self.stopped.contains(&i) {
            let mut busy = h.engine.run(now, &mut h.nic);
            if !h.holds_rests && h.engine.begin_rests(now) {
                h.engine.finish_rests(now, &mut h.nic, true);
                busy = true;
            }
            worked |= busy;
            while let Some(event) = self.hosts[i].engine.poll_event() {
                self.on_event(i, event);
                worked = true;
            }
            let h = &mut self.hosts[i];
            let mut wakes = Vec::new();
            h.engine.take_wakes(&mut wakes);
            h.wakes.extend(wakes);
            if !busy && h.engine.prepare_sleep(&mut h.nic) {
                h.asleep = true;
            }
        }
        worked |= self.run_apps(i);
        worked | self.transmit(i)
    }

    fn run_apps(&mut self, i: usize) -> bool {
        let h = &mut self.hosts[i];
        let mut worked = false;
        for (id, app) in &mut h.apps {
            // A sleeping application runs only if it was woken.
            if app.session.app_sleep().load(std::sync::atomic::Ordering::SeqCst) != 0 && !h.wakes.remove(id) {
                continue;
            }
            h.wakes.remove(id);
            let (any, wake) = app.work();
            worked |= any;
            if wake {
                h.engine.end_sleep();
                h.asleep = false;
                worked = true;
            }
        }
        worked
    }

    fn on_event(&mut self, i: usize, event: Event) {
        let h = &mut self.hosts[i];
        let Some(event) = h.on_admission_event(self.now, event) else { return };
        match event {
            // Tests make leased lanes themselves.
            Event::PeerWanted { lane, .. } | Event::LaneFailed { lane, .. } | Event::LaneReset { lane, .. }
                if lane >= control::LEASED_LANE_FIRST => {}
            Event::PeerWanted { peer, .. } => {
                h.wanted.push((self.now, peer));
                let to = self.hosts.iter().position(|h| h.addr == peer);
                match to {
                    Some(to) => self.dial(i, to),
                    // It never answers.
                    None if self.no_links => {}
                    None => {
                        let h = &mut self.hosts[i];
                        h.engine.lane_lost(self.now, &mut h.nic, peer, Reason::PeerUnreachable);
                    }
                }
            }
            Event::ChunksWanted { app, size, rings } => {
                h.chunks_wanted.push((app, size, rings));
                if !h.holds_chunks {
                    h.make_chunks();
                }
            }
            Event::DatagramPath { app, request, result } => {
                let Some(sim) = h.apps.get_mut(&app) else { return };
                assert!(sim.paths.insert(request, result).is_none(), "question {request} was answered twice");
            }
            Event::Connected { app, request, result } => {
                let Some(sim) = h.apps.get_mut(&app) else { return };
                let answer = result.map(|c| if c.peer.port() == 0 { sim.open(c) } else { sim.adopt(c, true) });
                assert!(sim.answers.insert(request, answer).is_none(), "request {request} was answered twice");
            }
            Event::Incoming { app, port, connection } => {
                let Some(sim) = h.apps.get_mut(&app) else { return };
                let id = connection.id;
                let slot = sim.adopt(connection, false);
                sim.incoming.push((slot, port, id));
                if sim.auto_accept {
                    h.accepted(app, port, id);
                }
            }
            Event::AppFault { app, detail } => {
                h.desk.left(app);
                h.faults.push((app, detail));
            }
            Event::LaneFailed { peer, reason, detail, .. } => {
                // An unused lane that makes room for another one has not failed.
                if reason != Reason::Closed {
                    h.lane_failures.push(detail);
                }
                if let Some(to) = self.hosts.iter().position(|h| h.addr == peer) {
                    self.forget_round(i, to);
                    self.send_link(i, to, Link::Reset { resumes: false, reason });
                }
            }
            Event::LaneReset { peer, detail, .. } => {
                h.lane_resets.push(detail);
                if let Some(to) = self.hosts.iter().position(|h| h.addr == peer) {
                    self.forget_round(i, to);
                    self.draining.insert((i, to));
                    self.send_link(i, to, Link::Reset { resumes: true, reason: Reason::LaneFailed });
                }
            }
            Event::LaneRests { peer, .. } => {
                if let Some(to) = self.hosts.iter().position(|h| h.addr == peer) {
                    self.forget_round(i, to);
                    self.draining.insert((i, to));
                    self.send_link(i, to, Link::Rest);
                }
            }
            Event::StrangePort { peer, found, expected } => h.strange_ports.push((peer, found, expected)),
            Event::ChunkGone { app, chunk } => {
                let Some(sim) = h.apps.get_mut(&app) else { return };
                sim.chunks_gone.push(chunk);
                sim.chunks.remove(&chunk);
            }
            event @ (Event::RegionClosed { .. } | Event::RegionStopped { .. } | Event::KernelRan { .. }) => {
                h.regions.push(event);
            }
            _ => unreachable!("the desk takes what is said of ports and connections"),
        }
    }

    // ---- the network

    fn fly(&mut self, at: Time, arrival: Arrival) {
        self.next_seq += 1;
        self.flying.insert((at, self.next_seq), arrival);
    }

    fn transmit(&mut self, i: usize) -> bool {
        let mut worked = false;
        let mut buf = std::mem::take(&mut self.buf);
        for _ in 0..64 {
            let h = &mut self.hosts[i];
            let Some(t) = h.nic.poll_transmit(self.now, &mut buf) else { break };
            worked = true;
            let stride = t.segment_bytes.map_or(buf.len(), usize::from).max(1);
            for (n, segment) in buf.chunks(stride).enumerate() {
                self.send_packet(i, t.destination, segment, n as u16);
            }
        }
        self.buf = buf;
        worked
    }

    fn send_packet(&mut self, i: usize, to: SocketAddr, bytes: &[u8], id: u16) {
        let of = |(host, h): (usize, &Host)| SocketAddr::new(h.addr, udp_port(host));
        let dest = self.hosts.iter().enumerate().position(|h| of(h) == to);
        if dest.is_some_and(|d| self.cut.contains(&(i.min(d), i.max(d)))) {
            return;
        }
        if bytes.len() > self.swallowed_above || (self.swallows)(bytes) {
            return;
        }
        let w = self.conditions;
        if self.rng.random_range(0..1000) < w.loss {
            return;
        }
        let copies = 1 + u32::from(self.rng.random_range(0..1000) < w.duplicate);
        for _ in 0..copies {
            let late = if self.rng.random_range(0..1000) < w.reorder {
                Duration::from_micros(self.rng.random_range(1..200))
            } else {
                Duration::ZERO
            };
            let port = self.changed_ports.get(&i).copied().unwrap_or_else(|| udp_port(i));
            let from = SocketAddr::new(self.hosts[i].addr, port);
            self.fly(self.now + self.delay + late, Arrival::Packet { from, to, bytes: bytes.to_vec(), id });
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Packet { from, to, bytes, id } => {
                if let Some(h) = self.hosts.iter_mut().find(|h| h.addr == to.ip()) {
                    h.nic.handle_datagram(self.now, from, &bytes, id);
                }
            }
            Arrival::Link { from, to, message } => self.on_link(from, to, message),
        }
    }
}
