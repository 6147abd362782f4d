//! A wire that is silent: what the software NIC notices, which wire it avoids then, and its tries.
//!
//! What is avoided, when TCP is tried and what the engine is told are shipped (`softnic::wires::{Unreached, Elsewhere}`).
//! Owns in the place of the kernel when a connection counts as silent, and in the place of sockets the tries.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use roce::Nic;
use softnic::wires::{Choice, TcpPart, Wanted, Wires, choose, question};
use verbs::{AsyncEvent, Qpn, Time};

use super::{Here, Link, Stage, TcpSide};
use crate::address::{host_of, path_of};
use crate::streams::{EndId, Standing, Streams};

/// Silence that the software NIC tells, with the pause between two looks, and how often it tells it again.
const QUIET: Duration = Duration::from_millis(350);
const QUIET_ROUND_TRIPS: u32 = 3;
const AGAIN: Duration = Duration::from_millis(250);
/// How long a try may take, and how many there are at a time.
const TRY_PATIENCE: Duration = Duration::from_secs(1);
const TRIES_MAX: usize = 16;

/// The silence of one connection.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    told_at: Option<Time>,
    look_at: Option<Time>,
}

impl Quiet {
    pub(super) fn deadline(&self) -> Option<Time> {
        self.look_at
    }
}

/// A try whether TCP leads to a host.
#[derive(Debug)]
pub(super) struct Try {
    host: IpAddr,
    in_turn: bool,
    has_asked: bool,
    until: Time,
}

/// Whether two ends whose lane is on TCP have RoCEv2 as well.
pub(super) fn has_other_wire(own: Wires, peer: Wires) -> bool {
    let without = |wires: Wires| {
        let tcp = wires.tcp.map(|tcp| TcpPart { is_preferred: false, ..tcp });
        Wires { tcp, ..wires }
    };
    matches!(choose(&without(own), &without(peer)), Ok((Choice::Roce(..), _)))
}

impl Link {
    /// Tells the engine that the peer's kernel acknowledges nothing, if that is so for long enough.
    pub(super) fn look_for_silence(&mut self, now: Time, nic: &mut Nic, streams: &Streams) {
        let (Some(quiet), Stage::Connecting(end) | Stage::Open(end)) = (&mut self.quiet, &self.stage) else { return };
        quiet.look_at = None;
        let Some(since) = streams.unanswered_since(*end) else { return quiet.told_at = None };
        let first = since + QUIET + QUIET_ROUND_TRIPS * streams.round_trip;
        let due = quiet.told_at.map_or(first, |at| at + AGAIN);
        if due > now {
            quiet.look_at = Some(due);
            return;
        }
        (quiet.told_at, quiet.look_at) = (Some(now), Some(now + AGAIN));
        nic.device_mut().raise(AsyncEvent::WireSilent(self.own.qpn));
    }
}

impl TcpSide {
    /// [`verbs::Provider::leave_wire`].
    pub(crate) fn leave_wire(&mut self, qpn: Qpn, now: Time) -> bool {
        if let Some(link) = self.links.get(&qpn).filter(|link| link.quiet.is_some()) {
            self.unreached.leave(now, link.peer.gid.ip(), &mut self.rng);
            return true;
        }
        let Some(host) = self.elsewhere.host_of(qpn) else { return false };
        self.unreached.leave_roce(now, host);
        true
    }

    /// Whether a queue pair is on RoCEv2 only because this host avoided TCP.
    pub(crate) fn is_away(&self) -> bool {
        !self.away.is_empty()
    }

    /// A queue pair is on RoCEv2, whose peer can be reached over TCP too.
    pub(super) fn watch_roce(&mut self, now: Time, qpn: Qpn, own: &TcpPart, peer: &TcpPart) {
        self.elsewhere.add(now, qpn, (own.address(), peer.address()), !own.is_preferred);
        if !own.is_preferred {
            self.away.insert(qpn);
        }
    }

    pub(super) fn forget_roce(&mut self, qpn: Qpn) {
        self.elsewhere.remove(qpn);
        self.away.remove(&qpn);
    }

    pub(super) fn tries_deadline(&self) -> Option<Time> {
        self.tries.values().map(|one| one.until).chain(self.elsewhere.deadline()).min()
    }

    /// Looks at queue pairs on RoCEv2, and goes on with tries. Says whether anything moved.
    pub(super) fn look_elsewhere(&mut self, here: Here, nic: &mut Nic, streams: &mut Streams) -> bool {
        let (mut wanted, mut events) = (Vec::new(), Vec::new());
        let silent_since = |qpn| nic.silent_since(qpn);
        self.elsewhere.look(here.now, &self.unreached, silent_since, &mut wanted, &mut events);
        let mut moved = !events.is_empty();
        for event in events {
            nic.device_mut().raise(event);
        }
        for Wanted { way, in_turn } in wanted {
            moved |= self.begin_try(here, way, in_turn, streams);
        }
        for (end, mut one) in std::mem::take(&mut self.tries) {
            match one.go_on(here.now, end, streams) {
                None => _ = self.tries.insert(end, one),
                Some(answered) => {
                    streams.close(end);
                    self.unreached.on_tried(here.now, one.host, answered, one.in_turn, &mut self.rng);
                    moved = true;
                }
            }
        }
        moved
    }

    fn begin_try(
        &mut self,
        here: Here,
        (own, peer): (SocketAddr, SocketAddr),
        in_turn: bool,
        streams: &mut Streams,
    ) -> bool {
        let host = peer.ip();
        if self.tries.len() >= TRIES_MAX || self.tries.values().any(|one| one.host == host) {
            return false;
        }
        let end = streams.connect(here.host, here.life, host_of(host), path_of(own.ip()));
        self.tries.insert(end, Try { host, in_turn, has_asked: false, until: here.now + TRY_PATIENCE });
        true
    }
}

impl Try {
    /// Whether it was answered, if that is known.
    fn go_on(&mut self, now: Time, end: EndId, streams: &mut Streams) -> Option<bool> {
        match streams.standing(end) {
            Standing::Broken => return Some(self.has_asked),
            Standing::AtEnd => return Some(true),
            Standing::Open if !self.has_asked => self.ask(end, streams),
            Standing::Open | Standing::Dialing => {}
        }
        (self.until <= now).then_some(false)
    }

    /// Says whom it does not mean.
    fn ask(&mut self, end: EndId, streams: &mut Streams) {
        streams.send(end, &question(), || usize::MAX);
        self.has_asked = true;
    }
}
