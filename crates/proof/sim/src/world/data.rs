//! The data path of the world: packets, rounds of engines, timers, runs of processes, and who wakes whom.

use engine::Load;
use roce::Arrived;
use verbs::Time;

use super::event::Way;
use super::{Event, SAMPLE_ROUNDS, World};
use crate::address::{At, address, address_on, path_of};
use crate::app::{App, Request};
use crate::check::AppUid;
use crate::conn::earlier;
use crate::content::mix;
use crate::host::ROUND;

/// Packets of one direction that are kept back; further ones are lost.
const HELD_MAX: usize = 10_000;
/// The byte of a packet that routers may write, so that the ICRC leaves it out (IBTA 9.2.6): what is turned over there
/// is no harm.
const UNPROTECTED: usize = 4;
/// Sends of one NIC that are taken at a time.
const SENDS_AT_A_TIME: usize = 64;

impl World {
    // ---- packets

    pub(super) fn on_packet(&mut self, way: Way, bytes: Box<[u8]>, id: u16, (whole, marked): (bool, bool)) {
        let Way { from, to, path } = way;
        let (now, hosts) = (self.now, (from.host, to.host));
        let Some(running) = self.hosts[to.host].running.as_mut().filter(|r| r.engines.len() > to.engine as usize)
        else {
            return self.checks.causes.on_harm(now, from.host, to.host);
        };
        if running.stalled_until > now {
            let until = running.stalled_until;
            return self.queue.push(until, Event::Packet { way, bytes, id, whole, marked });
        }
        if whole {
            self.checks.on_packet_whole(hosts, &bytes);
        }
        let port = crate::address::UDP_PORT + from.engine as u16;
        let source = std::net::SocketAddr::new(address_on(from.host, path), port);
        if let Some(driven) = running.engine(to.engine) {
            // Nothing tells the place of a packet that came alone and was marked.
            let place = if marked { 0 } else { id };
            let arrived = Arrived { from: source, to: address_on(to.host, path), place, is_marked: marked };
            driven.tap.nic.handle_arrived(now, &arrived, &bytes, bytes.len());
        }
        self.trace.note(now, "packet {} to {} arrives, {} bytes", &[from.code(), to.code(), bytes.len() as u64]);
        self.settle(to);
    }

    /// Sends what the NIC has, wakes who has to be woken, sets the timers. After everything that touches NIC or engine.
    pub(super) fn settle(&mut self, at: At) {
        if at.engine == 0 {
            self.run_streams(at.host);
        }
        self.transmit(at);
        let now = self.now;
        let Some(running) = self.up(at.host) else { return };
        let paused = running.engine_paused_until.max(running.stalled_until);
        let Some(driven) = running.engine(at.engine) else { return };
        let wakes = driven.asleep && driven.tap.nic.take_notify();
        let mut next = driven.tap.deadline();
        if driven.asleep
            && let Some(at) = driven.engine.deadline()
        {
            // An engine that does not run now has its turn when it does.
            next = earlier(next, at.max(paused));
        }
        if let Some(due) = next.map(|due| due.max(now)).filter(|due| driven.timer_at.is_none_or(|t| *due < t)) {
            driven.timer_at = Some(due);
            let life = self.life(at.host);
            self.queue.push(due, Event::Timer { at, life });
        }
        if wakes {
            self.wake_engine(at);
        }
    }

    fn transmit(&mut self, at: At) {
        let mut buf = std::mem::take(&mut self.buf);
        let now = self.now;
        for _ in 0..SENDS_AT_A_TIME {
            let Some(driven) = self.driven(at) else { break };
            let Some(sent) = driven.tap.nic.poll_transmit(now, &mut buf) else { break };
            let stride = sent.segment_bytes.map_or(buf.len(), usize::from).max(1);
            let engine = u32::from(sent.destination.port().saturating_sub(crate::address::UDP_PORT));
            let path = path_of(sent.destination.ip());
            let to = self.host_at(sent.destination.ip()).filter(|_| path_of(sent.source.ip()) == path);
            let way = to.map(|host| Way { from: at, to: At { host, engine }, path });
            for (index, segment) in buf.chunks(stride).enumerate() {
                match way {
                    Some(way) => self.send_packet(way, segment, index as u16),
                    None => {
                        let strange = format!("host {} sends from {} to {}", at.host, sent.source, sent.destination);
                        self.checks.fail(now, "set-up", strange);
                    }
                }
            }
        }
        self.buf = buf;
        let Some(driven) = self.driven(at) else { return };
        if driven.tap.nic.has_transmit() {
            driven.timer_at = Some(now);
            let life = self.life(at.host);
            self.queue.push(now, Event::Timer { at, life });
        }
    }

    fn send_packet(&mut self, way: Way, segment: &[u8], id: u16) {
        let Way { from, to, path } = way;
        self.checks.on_packet_sent(self.now, (from.host, to.host), segment);
        let copies = self.network.send(self.now, (from.host, to.host), path, segment.len());
        if copies[0].is_none() || copies.iter().flatten().any(|d| d.corrupt.is_some()) {
            self.checks.causes.on_harm(self.now, from.host, to.host);
        }
        let arrival = copies[0].map_or(0, |d| d.at.as_nanos());
        // The first byte of the BTH is the opcode, its last three the PSN (IBTA 9.2).
        let psn = segment.get(9..12).map_or(0, |p| u64::from(p[0]) << 16 | u64::from(p[1]) << 8 | u64::from(p[2]));
        let opcode = segment.first().copied().unwrap_or(0);
        self.trace.note(
            self.now,
            "packet {} to {}: opcode {} psn {}, {} bytes, arrives at {} (0: never)",
            &[from.code(), to.code(), opcode.into(), psn, segment.len() as u64, arrival],
        );
        for delivery in copies.into_iter().flatten() {
            let mut bytes: Box<[u8]> = segment.into();
            if let Some(bit) = delivery.corrupt
                && let Some(byte) = bytes.get_mut(bit as usize / 8)
            {
                *byte ^= 1 << (bit % 8);
            }
            let whole = delivery.corrupt.is_none_or(|bit| bit as usize / 8 == UNPROTECTED);
            let mut packet = Event::Packet { way, bytes, id, whole, marked: false };
            if self.network.has_switch() {
                packet = Event::AtSwitch { to: to.host, packet: Box::new(packet) };
            }
            match self.held.get_mut(&(from.host, to.host)) {
                Some(held) if held.len() < HELD_MAX => held.push(packet),
                Some(_) => {}
                None => self.queue.push(delivery.at, packet),
            }
        }
    }

    /// A packet is at the switch, and goes on if there is room at the port.
    pub(super) fn on_switch(&mut self, to: usize, mut packet: Event) {
        let Event::Packet { way: Way { from, .. }, ref bytes, ref mut marked, .. } = packet else { return };
        match self.network.forward(self.now, to, bytes.len()) {
            Some((at, mark)) => {
                *marked = mark;
                self.queue.push(at, packet);
            }
            None => {
                self.trace.note(self.now, "packet {} to {} finds no room at the switch", &[from.code(), to as u64]);
                self.checks.causes.on_harm(self.now, from.host, to);
            }
        }
    }

    // ---- engines

    /// The engine runs soon.
    pub(super) fn wake_engine(&mut self, at: At) {
        let delay = self.hosts[at.host].plan.wake_delay_max;
        let delay = self.some(delay);
        self.engine_at(at, self.now + delay);
    }

    /// All engines of a host run soon.
    pub(super) fn wake_engines(&mut self, host: usize) {
        self.engines_of(host).into_iter().for_each(|at| self.wake_engine(at));
    }

    fn engine_at(&mut self, at: At, due: Time) {
        let life = self.life(at.host);
        let Some(running) = self.up(at.host) else { return };
        let due = due.max(running.engine_paused_until).max(running.stalled_until);
        let Some(driven) = running.engine(at.engine) else { return };
        if driven.engine_at.is_none_or(|t| due < t) {
            driven.engine_at = Some(due);
            self.queue.push(due, Event::Engine { at, life });
        }
    }

    /// What the engine is told of its host, now and then: it follows from the time alone, so that it is no draw.
    fn load_of(&self, at: At) -> Option<Load> {
        let max = u64::from(self.hosts[at.host].plan.load_max);
        let drawn = mix(self.now.0 ^ (at.code() << 48));
        (max > 0 && drawn.is_multiple_of(8)).then(|| {
            let percent = |bits: u64| (bits % (max + 1)) as u8;
            // Mostly busy: then the peers are asked to fetch.
            let cpu = if drawn & 0x300 == 0 { percent(drawn >> 16) } else { max as u8 };
            Load::new(cpu, percent(drawn >> 32))
        })
    }

    pub(super) fn on_engine(&mut self, at: At, life: u32) {
        let now = self.now;
        let load = self.load_of(at);
        let Some(running) = self.up_in(at.host, life) else { return };
        let paused = running.engine_paused_until.max(running.stalled_until);
        let Some(driven) = running.engine(at.engine).filter(|driven| driven.engine_at == Some(now)) else { return };
        driven.engine_at = None;
        if driven.resting {
            // It runs again after the second step.
            return;
        }
        if paused > now {
            return self.engine_at(at, paused);
        }
        if std::mem::take(&mut driven.asleep) {
            driven.engine.end_sleep();
        }
        driven.tap.now = now;
        if let Some(load) = load {
            driven.engine.set_load(load);
        }
        let busy = driven.engine.run(now, &mut driven.tap);
        driven.rounds += 1;
        let rounds = driven.rounds;
        let sample = rounds.is_multiple_of(SAMPLE_ROUNDS) && self.samples;
        self.trace.note(now, "engine {} runs, work {}", &[at.code(), busy.into()]);
        self.after_engine(at);
        let host = &self.hosts[at.host];
        if let Some(driven) = host.running.as_ref().and_then(|r| r.engines.get(at.engine as usize)) {
            self.checks.on_round(now, at.host, &driven.tap);
            if sample {
                self.checks.on_sample(now, &host.limits, &driven.engine, &driven.tap);
            }
        }
        let Some(driven) = self.driven_in(at, life) else { return };
        if driven.engine.begin_rests(now) {
            driven.resting = true;
            let gap = self.hosts[at.host].plan.rest_gap_max;
            let due = self.now + self.some(gap);
            self.queue.push(due, Event::Rest { at, life });
            return self.settle(at);
        }
        let Some(driven) = self.driven_in(at, life) else { return };
        if !busy && driven.engine_at.is_none() && driven.engine.prepare_sleep(&mut driven.tap) {
            driven.asleep = true;
        } else {
            self.engine_at(at, now + ROUND);
        }
        self.settle(at);
    }

    /// Pages are given back: in between processes ran, packets came, and the control plane called.
    pub(super) fn on_rest(&mut self, at: At, life: u32) {
        let now = self.now;
        let Some(running) = self.up_in(at.host, life) else { return };
        if running.stalled_until > now {
            let until = running.stalled_until;
            return self.queue.push(until, Event::Rest { at, life });
        }
        let Some(driven) = running.engine(at.engine) else { return };
        driven.resting = false;
        driven.engine.finish_rests(now, &mut driven.tap, true);
        self.trace.note(now, "engine {} lets connections rest", &[at.code()]);
        self.after_engine(at);
        self.engine_at(at, now + ROUND);
    }

    /// Takes out of the engine what it has for daemon and applications.
    pub(super) fn after_engine(&mut self, at: At) {
        while let Some(event) = self.driven(at).and_then(|driven| driven.engine.poll_event()) {
            self.on_engine_event(at, event);
        }
        let Some(driven) = self.driven(at) else { return };
        let mut wakes = Vec::new();
        driven.engine.take_wakes(&mut wakes);
        let uids: Vec<AppUid> = wakes.iter().filter_map(|id| driven.uids.get(id).copied()).collect();
        for uid in uids {
            self.wake_app(at.host, uid);
        }
        self.settle(at);
    }

    /// The control plane called the engine: it has to look.
    pub(super) fn after_command(&mut self, at: At) {
        self.after_engine(at);
        self.engine_at(at, self.now + ROUND);
    }

    pub(super) fn on_timer(&mut self, at: At, life: u32) {
        let now = self.now;
        let Some(running) = self.up_in(at.host, life) else { return };
        let stalled = running.stalled_until;
        let Some(driven) = running.engine(at.engine).filter(|driven| driven.timer_at == Some(now)) else { return };
        driven.timer_at = None;
        if stalled > now {
            driven.timer_at = Some(stalled);
            return self.queue.push(stalled, Event::Timer { at, life });
        }
        let is_due = driven.asleep && driven.engine.deadline().is_some_and(|due| due <= now);
        if driven.tap.nic.deadline().is_some_and(|due| due <= now) {
            driven.tap.nic.handle_timeout(now);
            self.trace.note(now, "timer of NIC {}", &[at.code()]);
        }
        if is_due {
            self.engine_at(at, now);
        }
        self.settle(at);
    }

    // ---- processes

    /// A process runs soon.
    pub(super) fn wake_app(&mut self, host: usize, uid: AppUid) {
        let delay = self.hosts[host].plan.wake_delay_max;
        let at = self.now + self.some(delay);
        self.app_at(host, uid, at);
    }

    pub(super) fn app_at(&mut self, host: usize, uid: AppUid, at: Time) {
        let life = self.life(host);
        let Some(app) = self.hosts[host].app_mut(uid) else { return };
        if app.run_at.is_none_or(|t| at < t) {
            app.run_at = Some(at);
            self.queue.push(at, Event::App { host, life, app: uid });
        }
    }

    pub(super) fn on_app(&mut self, host: usize, life: u32, uid: AppUid) {
        let now = self.now;
        if self.life(host) != life {
            return;
        }
        let Some(app) = self.hosts[host].app_mut(uid).filter(|a| a.run_at == Some(now)) else { return };
        app.run_at = None;
        if app.entering.is_some() {
            return;
        }
        if self.hosts[host].orphans.apps.contains_key(&uid) {
            return self.run_orphan(host, uid);
        }
        let Some(running) = self.hosts[host].running.as_mut() else { return };
        let Some(app) = running.apps.get_mut(&uid) else { return };
        if running.stalled_until > now {
            let until = running.stalled_until;
            return self.app_at(host, uid, until);
        }
        let out = app.run(now, &mut self.checks, address);
        self.trace.note(
            now,
            "application {} on {} runs, {} requests, wakes {}, died {}",
            &[uid.into(), host as u64, out.requests.len() as u64, out.wakes.len() as u64, out.died.into()],
        );
        for request in out.requests {
            self.request_of(host, uid, request);
        }
        for engine in out.wakes {
            self.wake_engine(At { host, engine });
        }
        if out.died {
            return self.kill(host, uid);
        }
        if let Some(at) = out.again {
            // Work takes time.
            self.app_at(host, uid, at.max(now + ROUND));
        }
    }

    fn request_of(&mut self, host: usize, uid: AppUid, request: Request) {
        let delay = self.plan.daemon_delay_max;
        let at = self.now + self.some(delay);
        let life = self.life(host);
        let Some(app) = self.up(host).and_then(|r| r.apps.get_mut(&uid)) else { return };
        app.to_daemon_at = app.to_daemon_at.max(at);
        let at = app.to_daemon_at;
        self.queue.push(at, Event::ToDaemon { host, life, app: uid, request });
    }

    /// A process dies now; its daemon notices later.
    pub(super) fn kill(&mut self, host: usize, uid: AppUid) {
        let now = self.now;
        let life = self.life(host);
        if let Some(app) = self.hosts[host].orphans.apps.remove(&uid) {
            return self.end_orphan(app);
        }
        let Some(app) = self.up(host).and_then(|r| r.apps.remove(&uid)) else { return };
        self.trace.note(now, "application {} on {} dies", &[uid.into(), host as u64]);
        self.answers[app.plan_index].add(&app.answers);
        self.on_process_dead(&app);
        let delay = self.plan.daemon_delay_max;
        // Requests that it sent are read before the end of its socket; but the engine hears of its death by another one
        // too.
        let heard_in_order = self.some(delay) <= delay / 2;
        let sent_at = if heard_in_order { app.to_daemon_at } else { now };
        let at = sent_at.max(now + self.some(delay));
        self.queue.push(at, Event::Hangup { host, life, app: app.uid });
    }
    /// What a process had is nobody's any more.
    pub(super) fn on_process_dead(&mut self, app: &App) {
        self.checks.on_app_dead(app.uid);
        app.bound().for_each(|at| self.checks.datagrams.on_socket_dead(at));
    }
}
