//! Programs under `raas run`: what the preload library does until its connection is a stream or stays on TCP.
//!
//! Owns which ends there are. It must never tell a program what its daemon, or a word from the other end, did not say.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use control::{MeetProof, MeetStep, MeetingPlace, Reason, Rendezvous, Reply, Request, TcpEnd};
use plane::{ClientId, SocketFacts};
use shm::Session;
use verbs::{Encrypt, Region, Time};

use super::event::MeetingStep;
use super::{Event, World};
use crate::address::address;
use crate::content::mix;
use crate::links::NAMESPACE;
use crate::plan::MeetingPlan;
use crate::regions::UID;

/// What each end calls its one request.
const REQUEST: u64 = 1;
/// The port at which ends that accepted take streams.
const STREAM_PORT: u16 = 7;
/// Until a program looks again whether it is attached.
const PAUSE: Duration = Duration::from_millis(1);
/// A host without a daemon is not asked again for so long, after so long a dial.
const ABSENT: Duration = Duration::from_secs(45);

/// An end whose program lives.
#[derive(Debug)]
pub(super) struct End {
    meeting: usize,
    side: usize,
    host: usize,
    life: u32,
    /// It is attached.
    is_in: bool,
    /// Where it hears words.
    port: Option<u16>,
    answer: Option<Result<(), Reason>>,
    /// An answer to it may be on its way.
    gave_up: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    ends: BTreeMap<ClientId, End>,
    clients: BTreeMap<(usize, usize), ClientId>,
}

impl Meetings {
    pub(super) fn has(&self, client: ClientId) -> bool {
        self.ends.contains_key(&client)
    }

    pub(super) fn remove(&mut self, client: ClientId) -> Option<End> {
        let end = self.ends.remove(&client)?;
        self.clients.remove(&(end.meeting, end.side));
        Some(end)
    }
}

impl MeetingPlan {
    fn addresses(&self) -> [SocketAddr; 2] {
        [0, 1].map(|side| SocketAddr::new(address(self.hosts[side]), self.ports[side]))
    }
}

impl World {
    fn token(&self, meeting: usize) -> u64 {
        mix(self.plan.seed ^ mix(0x70ce ^ (meeting as u64) << 8))
    }

    pub(super) fn plan_meeting(&mut self, meeting: usize) {
        for side in 0..2 {
            let plan = &self.plan.meetings[meeting];
            let (asks, gives_up) = (plan.asks[side], plan.gives_up[side]);
            let step = |step| Event::Meeting { meeting, side, step };
            asks.into_iter().for_each(|at| self.queue.push(at, step(MeetingStep::Ask)));
            gives_up.into_iter().for_each(|(at, dies)| self.queue.push(at, step(MeetingStep::GiveUp { dies })));
        }
    }

    // ---- the program

    pub(super) fn on_meeting(&mut self, meeting: usize, side: usize, step: MeetingStep) {
        if step == MeetingStep::Ask {
            return self.ask_for_meeting(meeting, side);
        }
        let Some(client) = self.meetings.clients.get(&(meeting, side)).copied() else { return };
        let Some(end) = self.meetings.ends.get_mut(&client).filter(|end| end.answer.is_none()) else { return };
        let host = end.host;
        match step {
            MeetingStep::Ask => {}
            MeetingStep::GiveUp { dies: true } => self.end_meeting(client),
            // It asks first.
            MeetingStep::GiveUp { dies: false } if !end.is_in => {
                self.queue.push(self.now + PAUSE, Event::Meeting { meeting, side, step });
            }
            MeetingStep::GiveUp { dies: false } => {
                end.gave_up = true;
                self.ask_of_regions(host, client, Request::Unmeet { request: REQUEST });
            }
            MeetingStep::Word { port, word } if end.port == Some(port) => {
                self.ask_of_regions(
                    host,
                    client,
                    Request::MeetProof { request: REQUEST, proof: MeetProof::Heard(word) },
                );
            }
            MeetingStep::Word { .. } => {}
        }
    }

    fn ask_for_meeting(&mut self, meeting: usize, side: usize) {
        let plan = &self.plan.meetings[meeting];
        let host = plan.hosts[side];
        let Some(shape) = self.up(host).map(|running| running.control.shape) else { return };
        let session = Region::anonymous(Session::bytes(shape) as usize).ok();
        let Some(session) = session.and_then(|region| Session::format(region, shape, 1).ok()) else { return };
        let client = self.users.next_client();
        let life = self.life(host);
        let end = End { meeting, side, host, life, is_in: false, port: None, answer: None, gave_up: false };
        self.meetings.ends.insert(client, end);
        self.meetings.clients.insert((meeting, side), client);
        if !self.take_program(host, (client, UID), Some(session), None) {
            self.meetings.remove(client);
            self.users.forget(client);
        }
    }

    /// The program is attached.
    pub(super) fn ask_to_meet(&mut self, host: usize, client: ClientId) {
        let Some(end) = self.meetings.ends.get_mut(&client) else { return };
        end.is_in = true;
        let end = match (end.meeting, end.side) {
            (_, 0) => TcpEnd::Connected,
            (meeting, _) => TcpEnd::Accepted(Rendezvous { port: STREAM_PORT, token: self.token(meeting) }),
        };
        self.ask_of_regions(host, client, Request::Meet { request: REQUEST, end });
    }

    /// The program dies.
    fn end_meeting(&mut self, client: ClientId) {
        let Some(end) = self.meetings.remove(client) else { return };
        self.users.forget(client);
        if self.life(end.host) == end.life {
            self.leave_regions(end.host, client);
        }
    }

    /// The host or its daemon is dead.
    pub(super) fn lose_meetings(&mut self, host: usize) {
        let lost: Vec<ClientId> =
            self.meetings.ends.iter().filter(|(_, end)| end.host == host).map(|(client, _)| *client).collect();
        for client in lost {
            self.meetings.remove(client);
            self.users.forget(client);
        }
    }

    pub(super) fn finish_meetings(&mut self) {
        let all: Vec<ClientId> = self.meetings.ends.keys().copied().collect();
        all.into_iter().for_each(|client| self.end_meeting(client));
    }

    // ---- its daemon

    /// What the kernel says of the end's socket, for its daemon.
    pub(super) fn meet(&mut self, host: usize, client: ClientId, end: TcpEnd) -> Result<(), String> {
        let now = self.now;
        let Some(&End { meeting, side, .. }) = self.meetings.ends.get(&client) else { return Ok(()) };
        let plan = &self.plan.meetings[meeting];
        let [own, other] = [side, 1 - side].map(|side| plan.addresses()[side]);
        let namespace = Some(plan.namespaces[side].unwrap_or(NAMESPACE));
        let facts = Ok(SocketFacts { local: own, peer: other, namespace });
        let met =
            self.with_plane(host, |daemon, supply| daemon.handle_meet(now, client, (REQUEST, end), facts, supply));
        met.unwrap_or(Ok(()))
    }

    /// The end hears its daemon.
    pub(super) fn on_meeting_reply(&mut self, host: usize, client: ClientId, reply: Reply) {
        let (now, delay) = (self.now, self.plan.daemon_delay_max);
        let Some(end) = self.meetings.ends.get_mut(&client) else { return };
        let (meeting, side) = (end.meeting, end.side);
        match reply {
            Reply::MeetStep { step: MeetStep::Open, .. } => {
                let port = 1000 + (client.0 % 60_000) as u16;
                end.port = Some(port);
                self.ask_of_regions(
                    host,
                    client,
                    Request::MeetProof { request: REQUEST, proof: MeetProof::Port(port) },
                );
            }
            // To the address of its socket's peer: there is the true other end.
            Reply::MeetStep { step: MeetStep::Send { port, word }, .. } => {
                let at = now + self.some(delay);
                let step = MeetingStep::Word { port, word };
                self.queue.push(at, Event::Meeting { meeting, side: 1 - side, step });
            }
            // To a question of its daemon that it has given up: a library takes no notice.
            Reply::MeetStep { step: MeetStep::Clear, .. } | Reply::DatagramPath { .. } => {}
            Reply::Met { result, .. } => {
                if end.answer.is_some() {
                    let detail = format!("end {side} of meeting {meeting} was answered twice");
                    return self.checks.fail(now, "meetings", detail);
                }
                end.answer = Some(result.map(drop));
                let checks = &mut self.checks;
                *if result.is_ok() { &mut checks.ends_met } else { &mut checks.ends_on_tcp } += 1;
                self.judge_meeting(meeting, side, result);
            }
            other => self.checks.fail(now, "meetings", format!("a program under `raas run` hears {other:?}")),
        }
    }

    // ---- the judge

    fn judge_meeting(&mut self, meeting: usize, side: usize, result: Result<MeetingPlace, Reason>) {
        let now = self.now;
        let [connected, accepted] = self.plan.meetings[meeting].hosts;
        let (token, at) = (self.token(meeting), SocketAddr::new(address(accepted), STREAM_PORT));
        let wrong = match result {
            Ok(place) if place != (MeetingPlace { at, token }) => {
                Some(format!("is sent to {place:?}, which is not the other end's"))
            }
            Ok(_) if self.stays_on_tcp(meeting) => Some("leaves TCP, which is faster".into()),
            Ok(_) => None,
            Err(Reason::PolledTcp) => (!self.stays_on_tcp(meeting)).then(|| "stays on TCP, which is not faster".into()),
            Err(reason) => (connected == accepted || !self.explains_no_meeting(connected, accepted, reason))
                .then(|| format!("is refused without a cause: {}", reason.key())),
        };
        if let Some(wrong) = wrong {
            self.checks.fail(now, "meetings", format!("end {side} of meeting {meeting} {wrong}"));
        }
    }

    fn stays_on_tcp(&self, meeting: usize) -> bool {
        let [connected, accepted] = self.plan.meetings[meeting].hosts;
        let plan = &self.plan.hosts[accepted];
        let is_plain = plan.encrypt == Encrypt::Off && !self.plan.has_standby;
        connected != accepted && plan.tcp_is_faster && is_plain
    }

    fn explains_no_meeting(&self, host: usize, peer: usize, reason: Reason) -> bool {
        let (causes, now) = (&self.checks.causes, self.now);
        let recently = Time(now.as_nanos().saturating_sub(ABSENT.as_nanos() as u64));
        match reason {
            // What the other daemon knows of an end of before.
            Reason::Closed => causes.was_troubled(host, peer, Time::ZERO),
            // Whoever does not speak with this daemon is none.
            Reason::PeerUnreachable => causes.was_troubled(host, peer, recently) || !causes.always_fit(host, peer),
            // A question to another host may want a lane, for which its user may have no dial left.
            Reason::UserDials => causes.has_tight_limits(),
            reason => causes.explains_loss(now, host, peer, reason) || causes.was_troubled(host, peer, recently),
        }
    }

    /// When nothing is broken, both ends of a connection between any two hosts whose daemons speak with each other meet.
    pub(super) fn probe_meetings(&mut self) {
        if self.plan.meetings.is_empty() || self.plan.has_tight_limits() {
            return;
        }
        // Nobody takes another host for one without a daemon any more.
        self.pass(ABSENT);
        let first = self.plan.meetings.len();
        let asks = Some(self.after(Duration::from_millis(1)));
        for connected in 0..self.hosts.len() {
            for accepted in 0..self.hosts.len() {
                if !self.checks.causes.fit_together(connected, accepted) {
                    continue;
                }
                let number = self.plan.meetings.len() as u16;
                let (hosts, ports) = ([connected, accepted], [50_000 + number, 9_000 + number]);
                let (asks, gives_up, namespaces) = ([asks; 2], [None; 2], [None; 2]);
                self.plan.meetings.push(MeetingPlan { hosts, ports, asks, gives_up, namespaces });
                self.plan_meeting(self.plan.meetings.len() - 1);
            }
        }
        let end = self.after(super::rest::PROBE);
        let probes = first..self.plan.meetings.len();
        let is_met = |world: &Self, key: (usize, usize)| {
            let end = world.meetings.clients.get(&key).and_then(|client| world.meetings.ends.get(client));
            end.is_some_and(|end| matches!(end.answer, Some(Ok(()) | Err(Reason::PolledTcp))))
        };
        let all_met = |world: &Self| probes.clone().all(|m| is_met(world, (m, 0)) && is_met(world, (m, 1)));
        if !self.run_while(end, |world| !all_met(world)) && self.is_sound() && !self.is_cut_short() {
            let left: Vec<_> = self.meetings.ends.values().filter(|end| end.meeting >= first).collect();
            self.checks.fail(self.now, "liveness", format!("ends of TCP connections did not meet: {left:?}"));
        }
    }

    /// No end is left: what daemons know of them is gone too.
    pub(super) fn check_meetings_at_rest(&mut self) {
        for host in 0..self.hosts.len() {
            let Some(daemon) = self.up(host).map(|running| &running.control.daemon) else { continue };
            let (waiting, rows) = (daemon.meetings(), daemon.fallbacks().rows(|_| true, 0, 10).0.len());
            let directs = daemon.directs().counters().open;
            if (waiting, rows, directs) != (0, 0, 0) {
                let detail = format!(
                    "host {host} has {waiting} ends that wait, {rows} rows, {directs} streams on TCP, without programs"
                );
                self.checks.fail(self.now, "release", detail);
            }
        }
    }
}
