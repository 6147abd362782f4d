//! The data path of the world: packets, rounds of engines, timers, runs of processes, and who wakes whom.

use verbs::Time;

use super::{Event, SAMPLE_ROUNDS, World};
use crate::address::address;
use crate::app::{App, Request};
use crate::check::AppUid;
use crate::conn::earlier;
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

    pub(super) fn on_packet(
        &mut self,
        (from, to): (usize, usize),
        bytes: Box<[u8]>,
        id: u16,
        (whole, marked): (bool, bool),
    ) {
        let now = self.now;
        let Some(running) = self.hosts[to].running.as_mut() else {
            return self.checks.causes.on_harm(now, from, to);
        };
        if running.stalled_until > now {
            let until = running.stalled_until;
            return self.queue.push(until, Event::Packet { from, to, bytes, id, whole, marked });
        }
        if whole {
            self.checks.on_packet_whole((from, to), &bytes);
        }
        let source = std::net::SocketAddr::new(address(from), crate::host::UDP_PORT);
        if marked {
            running.tap.nic.handle_marked(now, source, &bytes, bytes.len());
        } else {
            running.tap.nic.handle_datagram(now, source, &bytes, id);
        }
        self.trace.note(now, "packet {} to {} arrives, {} bytes", &[from as u64, to as u64, bytes.len() as u64]);
        self.settle(to);
    }

    /// Sends what the NIC has, wakes who has to be woken, sets the timers. After everything that touches NIC or engine.
    pub(super) fn settle(&mut self, host: usize) {
        self.run_streams(host);
        self.transmit(host);
        let now = self.now;
        let Some(running) = self.up(host) else { return };
        let wakes = running.asleep && running.tap.nic.take_notify();
        let mut next = running.tap.deadline();
        if running.asleep
            && let Some(at) = running.engine.deadline()
        {
            // An engine that does not run now has its turn when it does.
            next = earlier(next, at.max(running.engine_paused_until).max(running.stalled_until));
        }
        if let Some(at) = next.map(|at| at.max(now)).filter(|at| running.timer_at.is_none_or(|t| *at < t)) {
            running.timer_at = Some(at);
            let life = self.life(host);
            self.queue.push(at, Event::Timer { host, life });
        }
        if wakes {
            self.wake_engine(host);
        }
    }

    fn transmit(&mut self, host: usize) {
        let mut buf = std::mem::take(&mut self.buf);
        let now = self.now;
        for _ in 0..SENDS_AT_A_TIME {
            let Some(running) = self.up(host) else { break };
            let Some(sent) = running.tap.nic.poll_transmit(now, &mut buf) else { break };
            let stride = sent.segment_bytes.map_or(buf.len(), usize::from).max(1);
            let to = self.host_at(sent.destination.ip());
            for (index, segment) in buf.chunks(stride).enumerate() {
                match to {
                    Some(to) => self.send_packet(host, to, segment, index as u16),
                    None => self.checks.fail(now, "set-up", format!("host {host} sends to {}", sent.destination)),
                }
            }
        }
        self.buf = buf;
        let Some(running) = self.up(host) else { return };
        if running.tap.nic.has_transmit() {
            running.timer_at = Some(now);
            let life = self.life(host);
            self.queue.push(now, Event::Timer { host, life });
        }
    }

    fn send_packet(&mut self, from: usize, to: usize, segment: &[u8], id: u16) {
        self.checks.on_packet_sent(self.now, (from, to), segment);
        let copies = self.network.send(self.now, from, to, segment.len());
        if copies[0].is_none() || copies.iter().flatten().any(|d| d.corrupt.is_some()) {
            self.checks.causes.on_harm(self.now, from, to);
        }
        let arrival = copies[0].map_or(0, |d| d.at.as_nanos());
        // The first byte of the BTH is the opcode, its last three the PSN (IBTA 9.2).
        let psn = segment.get(9..12).map_or(0, |p| u64::from(p[0]) << 16 | u64::from(p[1]) << 8 | u64::from(p[2]));
        let opcode = segment.first().copied().unwrap_or(0);
        self.trace.note(
            self.now,
            "packet {} to {}: opcode {} psn {}, {} bytes, arrives at {} (0: never)",
            &[from as u64, to as u64, opcode.into(), psn, segment.len() as u64, arrival],
        );
        for delivery in copies.into_iter().flatten() {
            let mut bytes: Box<[u8]> = segment.into();
            if let Some(bit) = delivery.corrupt
                && let Some(byte) = bytes.get_mut(bit as usize / 8)
            {
                *byte ^= 1 << (bit % 8);
            }
            let whole = delivery.corrupt.is_none_or(|bit| bit as usize / 8 == UNPROTECTED);
            let mut packet = Event::Packet { from, to, bytes, id, whole, marked: false };
            if self.network.has_switch() {
                packet = Event::AtSwitch { to, packet: Box::new(packet) };
            }
            match self.held.get_mut(&(from, to)) {
                Some(held) if held.len() < HELD_MAX => held.push(packet),
                Some(_) => {}
                None => self.queue.push(delivery.at, packet),
            }
        }
    }

    /// A packet is at the switch, and goes on if there is room at the port.
    pub(super) fn on_switch(&mut self, to: usize, mut packet: Event) {
        let Event::Packet { from, ref bytes, ref mut marked, .. } = packet else { return };
        match self.network.forward(self.now, to, bytes.len()) {
            Some((at, mark)) => {
                *marked = mark;
                self.queue.push(at, packet);
            }
            None => {
                self.trace.note(self.now, "packet {} to {} finds no room at the switch", &[from as u64, to as u64]);
                self.checks.causes.on_harm(self.now, from, to);
            }
        }
    }

    // ---- engines

    /// The engine runs soon.
    pub(super) fn wake_engine(&mut self, host: usize) {
        let delay = self.hosts[host].plan.wake_delay_max;
        let delay = self.some(delay);
        self.engine_at(host, self.now + delay);
    }

    fn engine_at(&mut self, host: usize, at: Time) {
        let life = self.life(host);
        let Some(running) = self.up(host) else { return };
        let at = at.max(running.engine_paused_until).max(running.stalled_until);
        if running.engine_at.is_none_or(|t| at < t) {
            running.engine_at = Some(at);
            self.queue.push(at, Event::Engine { host, life });
        }
    }

    pub(super) fn on_engine(&mut self, host: usize, life: u32) {
        let now = self.now;
        let Some(running) = self.up_in(host, life) else { return };
        if running.engine_at != Some(now) {
            return;
        }
        running.engine_at = None;
        if running.resting {
            // It runs again after the second step.
            return;
        }
        let paused = running.engine_paused_until.max(running.stalled_until);
        if paused > now {
            return self.engine_at(host, paused);
        }
        if std::mem::take(&mut running.asleep) {
            running.engine.end_sleep();
        }
        running.tap.now = now;
        let busy = running.engine.run(now, &mut running.tap);
        running.rounds += 1;
        let rounds = running.rounds;
        let sample = rounds.is_multiple_of(SAMPLE_ROUNDS) && self.samples;
        self.trace.note(now, "engine {} runs, work {}", &[host as u64, busy.into()]);
        self.after_engine(host);
        if let Some(running) = self.hosts[host].running.as_ref() {
            self.checks.on_round(now, host, &running.tap);
            if sample {
                self.checks.on_sample(now, &self.hosts[host].limits, &running.engine, &running.tap);
            }
        }
        let Some(running) = self.up_in(host, life) else { return };
        if running.engine.begin_rests(now) {
            running.resting = true;
            let gap = self.hosts[host].plan.rest_gap_max;
            let at = self.now + self.some(gap);
            self.queue.push(at, Event::Rest { host, life });
            return self.settle(host);
        }
        let Some(running) = self.up_in(host, life) else { return };
        if !busy && running.engine_at.is_none() && running.engine.prepare_sleep(&mut running.tap) {
            running.asleep = true;
        } else {
            self.engine_at(host, now + ROUND);
        }
        self.settle(host);
    }

    /// Pages are given back: in between processes ran, packets came, and the control plane called.
    pub(super) fn on_rest(&mut self, host: usize, life: u32) {
        let now = self.now;
        let Some(running) = self.up_in(host, life) else { return };
        if running.stalled_until > now {
            let until = running.stalled_until;
            return self.queue.push(until, Event::Rest { host, life });
        }
        running.resting = false;
        running.engine.finish_rests(now, &mut running.tap, true);
        self.trace.note(now, "engine {} lets connections rest", &[host as u64]);
        self.after_engine(host);
        self.engine_at(host, now + ROUND);
    }

    /// Takes out of the engine what it has for daemon and applications.
    pub(super) fn after_engine(&mut self, host: usize) {
        while let Some(event) = self.up(host).and_then(|r| r.engine.poll_event()) {
            self.on_engine_event(host, event);
        }
        let Some(running) = self.up(host) else { return };
        let mut wakes = Vec::new();
        running.engine.take_wakes(&mut wakes);
        let uids: Vec<AppUid> = wakes.iter().filter_map(|id| running.uids.get(id).copied()).collect();
        for uid in uids {
            self.wake_app(host, uid);
        }
        self.settle(host);
    }

    /// The control plane called the engine: it has to look.
    pub(super) fn after_command(&mut self, host: usize) {
        self.after_engine(host);
        self.engine_at(host, self.now + ROUND);
    }

    pub(super) fn on_timer(&mut self, host: usize, life: u32) {
        let now = self.now;
        let Some(running) = self.up_in(host, life) else { return };
        if running.timer_at != Some(now) {
            return;
        }
        running.timer_at = None;
        if running.stalled_until > now {
            let until = running.stalled_until;
            running.timer_at = Some(until);
            return self.queue.push(until, Event::Timer { host, life });
        }
        if running.tap.nic.deadline().is_some_and(|at| at <= now) {
            running.tap.nic.handle_timeout(now);
            self.trace.note(now, "timer of NIC {}", &[host as u64]);
        }
        if self.running(host).asleep && self.running(host).engine.deadline().is_some_and(|at| at <= now) {
            self.engine_at(host, now);
        }
        self.settle(host);
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
        let Some(app) = self.up(host).and_then(|r| r.apps.get_mut(&uid)) else { return };
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
        let Some(running) = self.hosts[host].running.as_mut() else { return };
        let Some(app) = running.apps.get_mut(&uid).filter(|a| a.run_at == Some(now)) else { return };
        app.run_at = None;
        if running.stalled_until > now {
            let until = running.stalled_until;
            return self.app_at(host, uid, until);
        }
        let out = app.run(now, &mut self.checks, address);
        self.trace.note(
            now,
            "application {} on {} runs, {} requests, wakes {}, died {}",
            &[uid.into(), host as u64, out.requests.len() as u64, out.wake_engine.into(), out.died.into()],
        );
        for request in out.requests {
            self.request_of(host, uid, request);
        }
        if out.wake_engine {
            self.wake_engine(host);
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
        self.queue.push(at, Event::Hangup { host, life, app: app.id });
    }
    /// What a process had is nobody's any more.
    pub(super) fn on_process_dead(&mut self, app: &App) {
        self.checks.on_app_dead(app.uid);
        app.bound().for_each(|at| self.checks.datagrams.on_socket_dead(at));
    }
}
