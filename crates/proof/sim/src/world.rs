//! The world: hosts, network and virtual time; one thread, one queue of events.
//!
//! Owns the order of everything. It must never ask a checker what to do, nor read a clock or a random number that does
//! not come from the plan's seed.

mod actions;
mod commands;
mod control;
mod daemon;
mod data;
mod direct;
mod event;
mod faults;
mod lanes;
mod meetings;
mod owners;
mod pairs;
mod regions;
mod rest;
mod restarts;
mod streams;
mod tcp;
mod user_steps;
mod users;

use std::collections::BTreeMap;
use std::time::Duration;

use engine::Engine;
use netmodel::Schedule;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shm::SlotWords;
use verbs::Time;

use crate::address::{At, host_of};
use crate::app::{Answers, App};
use crate::check::{AppUid, Checks, RecordId};
use crate::content::mix;
use crate::direct::{DirectPipes, SentOff, SimSocket};
use crate::host::{Driven, Host, Running};
use crate::network::Network;
use crate::plan::{Fault, Plan};
use crate::streams::Streams;
use crate::tap::Tap;
use crate::tcp::Tcp;
use crate::trace::Trace;

use event::Event;
use meetings::Meetings;
use streams::StreamTimes;
use users::Users;

/// A run that takes more steps does not come to rest.
const STEPS_MAX: u64 = 20_000_000;
/// Events on their way at a time.
/// Events between two questions whether a run goes on.
const ASKED_EVERY: u64 = 64;
const FLYING_MAX: usize = 200_000;
/// Every so many rounds of an engine its tables are looked at.
const SAMPLE_ROUNDS: u64 = 64;

/// Everything.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    now: Time,
    queue: Schedule<Event>,
    hosts: Vec<Host>,
    network: Network,
    tcp: Tcp,
    /// The TCP connections of lanes.
    streams: Streams,
    streams_at: StreamTimes,
    /// The TCP connections of streams of bulk.
    directs: DirectPipes,
    /// Ends of kernel TCP connections whose processes were not told yet.
    kernel_ends: BTreeMap<RecordId, SimSocket>,
    checks: Checks,
    trace: Trace,
    rng: StdRng,
    next_uid: AppUid,
    steps: u64,
    steps_max: u64,
    buf: Vec<u8>,
    /// What processes that are gone, or live, were answered.
    answers: Vec<Answers>,
    /// Packets that are kept back, by their direction.
    held: BTreeMap<(usize, usize), Vec<Event>>,
    /// Hosts that die after this many control messages, and whether their kernel reports it.
    fuses: BTreeMap<usize, (u32, bool)>,
    /// Nothing breaks any more.
    quiet: bool,
    users: Users,
    meetings: Meetings,
    /// The tables of engines are looked at now and then.
    samples: bool,
}

impl World {
    /// All hosts up, applications and faults of the plan in the queue.
    pub fn new(plan: Plan, trace: Trace) -> Self {
        let rng = |label: u64| StdRng::seed_from_u64(mix(plan.seed ^ mix(label)));
        let mut world = Self {
            now: Time(1),
            queue: Schedule::new(),
            hosts: (0..plan.hosts.len()).map(|i| Host::new(i, &plan)).collect(),
            network: Network::new(plan.conditions, plan.switch, rng(1)),
            tcp: Tcp::default(),
            streams: Streams::new(plan.streams.room_bytes),
            streams_at: StreamTimes::default(),
            directs: DirectPipes::default(),
            kernel_ends: BTreeMap::new(),
            checks: Checks::new(&plan, plan.hosts.iter().map(|h| h.mtu.bytes()).collect()),
            trace,
            rng: rng(2),
            next_uid: 0,
            steps: 0,
            steps_max: STEPS_MAX,
            buf: Vec::new(),
            answers: vec![Answers::default(); plan.apps.len()],
            held: BTreeMap::new(),
            fuses: BTreeMap::new(),
            quiet: false,
            users: Users::new(rng(7)),
            meetings: Meetings::default(),
            samples: true,
            plan,
        };
        let waits = world.plan.hosts.iter().map(|host| host.peer_return).min().unwrap_or_default();
        world.checks.causes.set_peer_return(waits);
        let takes_roce = |host: &crate::plan::HostPlan| host.wire.allows(verbs::Wire::Roce);
        let without =
            (0..).zip(&world.plan.hosts).filter(|(_, host)| !takes_roce(host)).map(|(host, _)| host).collect();
        world.checks.causes.set_without_unreliable(without);
        world.trace.text(world.now, || format!("{:#?}", world.plan));
        for host in 0..world.hosts.len() {
            world.start_host(host);
        }
        for index in 0..world.plan.apps.len() {
            world.queue.push(world.plan.apps[index].start, Event::Start { plan: index });
        }
        for index in 0..world.plan.meetings.len() {
            world.plan_meeting(index);
        }
        for index in 0..world.plan.faults.len() {
            world.queue.push(world.plan.faults[index].0, Event::Fault(index));
        }
        world
    }

    /// Ends the run after so many steps, wherever it is.
    pub fn limit_steps(&mut self, steps: u64) {
        self.steps_max = steps.min(STEPS_MAX);
    }

    /// Leaves out the checks of whole tables, whose cost grows with them, where a scenario measures work.
    pub fn stop_sampling(&mut self) {
        self.samples = false;
    }

    // ---- what is seen from outside

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Events so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether the limit of [`Self::limit_steps`] ended the run.
    pub fn is_cut_short(&self) -> bool {
        self.steps >= self.steps_max
    }

    /// Packets that were sent, and those that were lost.
    pub fn packets(&self) -> (u64, u64) {
        (self.network.packets, self.network.lost)
    }

    /// Streams of bulk that got a TCP connection of their own, and such connections that are not closed at both ends.
    pub fn directs(&self) -> (u64, usize) {
        (self.directs.made, self.directs.open())
    }

    /// The checkers.
    pub fn checks(&self) -> &Checks {
        &self.checks
    }

    /// The trace.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The last lines of the trace: what was found. A panic of the code under test is a finding.
    pub(crate) fn note_outcome(&mut self, panic: Option<&str>) {
        if let Some(words) = panic {
            self.checks.fail(self.now, "panic", words.to_owned());
        }
        for violation in self.checks.violations() {
            self.trace.text(self.now, || format!("VIOLATION {}: {}", violation.kind, violation.detail));
        }
    }

    pub(crate) fn into_checks(self) -> Checks {
        self.checks
    }

    /// A host's first engine; panics if the host is down.
    pub fn engine(&self, host: usize) -> &Engine {
        &self.first(host).engine
    }

    /// Its context of the device; panics if the host is down.
    pub fn tap(&self, host: usize) -> &Tap {
        &self.first(host).tap
    }

    /// A host's engines; panics if the host is down.
    pub fn engines(&self, host: usize) -> impl Iterator<Item = &Engine> {
        self.running(host).engines.iter().map(|driven| &driven.engine)
    }

    fn first(&self, host: usize) -> &Driven {
        self.running(host).engines.first().expect("a daemon has an engine")
    }

    /// A counter of a host, the sum of its engines'.
    pub fn counter(&self, host: usize, name: &str) -> u64 {
        let of = |engine: &Engine| {
            let totals = engine.totals();
            totals.counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
        };
        self.engines(host).map(of).sum()
    }

    /// What the processes of an application of the plan were answered so far.
    pub fn answers(&self, plan: usize) -> Answers {
        let mut sum = self.answers[plan].clone();
        let live = self.hosts.iter().flat_map(Host::apps);
        for app in live.filter(|a| a.plan_index == plan) {
            sum.add(&app.answers);
        }
        sum
    }

    /// Bytes that the connections of an application of the plan wrote and read, in order of their slots.
    pub fn moved(&self, plan: usize) -> Vec<(u64, u64)> {
        self.app_of(plan).map_or_else(Vec::new, |a| a.conns.values().map(crate::conn::Conn::moved).collect())
    }

    /// Whether a process of an application of the plan lives.
    pub fn is_alive(&self, plan: usize) -> bool {
        self.app_of(plan).is_some()
    }

    /// Lets the connection in a slot write so many bytes more; false if there is none that could.
    pub fn write_more(&mut self, plan: usize, slot: u32, bytes: u64) -> bool {
        let Some((host, uid)) = self.app_of(plan).map(|a| (a.host(), a.uid)) else { return false };
        let app = self.hosts[host].app_mut(uid);
        let told = app.is_some_and(|a| a.write_more(slot, bytes));
        self.wake_app(host, uid);
        told
    }

    /// The words of a slot of a live process; panics if there is no such process or slot.
    pub fn slot(&self, plan: usize, slot: u32) -> SlotWords {
        self.app_of(plan).expect("the caller knows that the process lives").session.slot(slot)
    }

    /// The live process of an application of the plan.
    fn app_of(&self, plan: usize) -> Option<&App> {
        self.hosts.iter().flat_map(Host::apps).find(|a| a.plan_index == plan)
    }

    fn running(&self, host: usize) -> &Running {
        self.hosts[host].running.as_ref().expect("the caller knows that the host is up")
    }

    fn up(&mut self, host: usize) -> Option<&mut Running> {
        self.hosts.get_mut(host)?.running.as_mut()
    }

    fn up_in(&mut self, host: usize, life: u32) -> Option<&mut Running> {
        let host = self.hosts.get_mut(host)?;
        if host.life == life { host.running.as_mut() } else { None }
    }

    fn driven(&mut self, at: At) -> Option<&mut Driven> {
        self.up(at.host)?.engine(at.engine)
    }

    fn driven_in(&mut self, at: At, life: u32) -> Option<&mut Driven> {
        self.up_in(at.host, life)?.engine(at.engine)
    }

    /// The engines of a host that is up.
    fn engines_of(&self, host: usize) -> Vec<At> {
        let count = self.hosts[host].running.as_ref().map_or(0, |running| running.engines.len());
        (0..count as u32).map(|engine| At { host, engine }).collect()
    }

    fn life(&self, host: usize) -> u32 {
        self.hosts[host].life
    }

    // ---- time

    /// Runs until `end`, or until a promise was broken.
    pub fn run_until(&mut self, end: Time) {
        self.run_while(end, |_| true);
        if self.is_sound() && !self.is_cut_short() {
            self.now = self.now.max(end);
        }
    }

    /// Runs until `end` as long as `on` says so (asked now and then). True: `on` said no before the end.
    pub fn run_while(&mut self, end: Time, mut on: impl FnMut(&Self) -> bool) -> bool {
        // A question may look at all hosts.
        let asked_every = ASKED_EVERY.max(8 * self.hosts.len() as u64);
        while self.is_sound() {
            let Some(at) = self.queue.next_at().filter(|at| *at <= end) else { return !on(self) };
            if self.steps.is_multiple_of(asked_every) && !on(self) {
                return true;
            }
            if self.steps >= self.steps_max {
                if self.steps_max == STEPS_MAX {
                    self.checks.fail(self.now, "liveness", format!("no rest after {STEPS_MAX} steps"));
                }
                return false;
            }
            if self.queue.len() > FLYING_MAX {
                self.checks.fail(self.now, "bounds", format!("{} events on their way", self.queue.len()));
                return false;
            }
            self.steps += 1;
            self.now = self.now.max(at);
            if let Some((_, event)) = self.queue.pop() {
                self.on_event(event);
                self.run_directs();
            }
        }
        false
    }

    /// Whether every promise held so far.
    pub fn is_sound(&self) -> bool {
        self.checks.violations().is_empty()
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Packet { way, bytes, id, whole, marked } => self.on_packet(way, bytes, id, (whole, marked)),
            Event::AtSwitch { to, packet } => self.on_switch(to, *packet),
            Event::Stream { to, carried } => self.on_stream(to, carried),
            Event::StreamSilence { end, cut } => self.on_stream_silence(end, cut),
            Event::Engine { at, life } => self.on_engine(at, life),
            Event::Timer { at, life } => self.on_timer(at, life),
            Event::Rest { at, life } => self.on_rest(at, life),
            Event::App { host, life, app } => self.on_app(host, life, app),
            Event::ToDaemon { host, life, app, request } => self.on_request(host, life, app, request),
            Event::ToApp { host, life, app, reply } => self.on_reply(host, life, app, *reply),
            Event::Hangup { host, life, app } => self.on_hangup(host, life, app),
            Event::Segment { to, segment } => self.on_segment(to, *segment),
            Event::Accept { host, life, peer, connection } => self.on_accept(host, life, peer, connection),
            Event::LinkTimer { host, life, link } => self.on_link_timer(host, life, link),
            Event::Plane { host, life, input } => self.on_plane(host, life, input),
            Event::PlaneTimer { host, life } => self.on_plane_timer(host, life),
            Event::Command { at, life, command } => self.on_command(at, life, command),
            Event::OfPlane { host, life, app, reply } => self.on_reply_of_plane(host, life, app, *reply),
            Event::ToPairs { host, life, app, request } => self.on_request_of_pair(host, life, app, *request),
            Event::User { host, life, user } => self.on_user(host, life, user),
            Event::ToRegions { host, life, client, request } => self.on_region_request(host, life, client, request),
            Event::OfRegions { host, client, said } => self.on_region_reply(host, client, *said),
            Event::Owner { host, owner, step } => self.on_owner(host, owner, step),
            Event::Fault(index) => {
                let fault = self.plan.faults[index].1.clone();
                self.on_fault(&fault);
            }
            Event::Start { plan } => self.start_app(plan),
            Event::Meeting { meeting, side, step } => self.on_meeting(meeting, side, step),
            Event::Return { host, life, app } => self.on_return(host, life, app),
            Event::DirectHello { host, from, offer, nonce } => self.on_direct_hello(host, from, offer, nonce),
            Event::Direct { to, hosts, carried } => self.on_direct(SentOff { to, hosts, carried }),
        }
    }

    /// Breaks or mends something now.
    pub fn break_now(&mut self, fault: &Fault) {
        self.on_fault(fault);
    }

    fn after(&self, delay: Duration) -> Time {
        self.now + delay
    }

    /// A random time up to `max`.
    fn some(&mut self, max: Duration) -> Duration {
        let max = max.as_nanos() as u64;
        if max == 0 { Duration::ZERO } else { Duration::from_nanos(self.rng.random_range(0..=max)) }
    }

    fn start_host(&mut self, index: usize) {
        self.trace.note(self.now, "host {} starts", &[index as u64]);
        self.checks.datagrams.on_host_start(index);
        self.checks.causes.on_daemon(index, &self.hosts[index].daemon);
        if let Err(why) = self.hosts[index].start(index, self.plan.seed) {
            self.checks.fail(self.now, "set-up", format!("host {index} does not start: {why}"));
        }
        self.start_users(index);
    }

    fn host_at(&self, ip: std::net::IpAddr) -> Option<usize> {
        Some(host_of(ip)).filter(|host| *host < self.hosts.len())
    }
}
