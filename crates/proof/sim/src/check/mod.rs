//! The checkers: what must hold in every run. They are separate from the world that runs.
//!
//! The world reports what happened, in the terms of applications and daemons. A checker compares it with what was
//! promised and reports a [`Violation`]. It must never look at the inside of engine or NIC, nor change a run.

mod bounds;
mod causes;
mod datagrams;
mod links;
mod pairs;
mod streams;

use std::collections::{BTreeMap, BTreeSet};

use control::{Connection, Reason};
use histories::Histories;
use serde::Serialize;
use verbs::Time;

use crate::address::host_of;
use crate::plan::Plan;

pub(crate) use bounds::Limits;
pub(crate) use causes::{Asked, Causes};
pub use datagrams::Datagrams;
pub(crate) use datagrams::{End, InRings, SocketAt};
pub(crate) use links::{LinkAtRest, Links};
pub(crate) use streams::{Carries, Record};

/// Violations of one run that are kept.
const VIOLATIONS_MAX: usize = 16;

/// An application process of the run; a process that is started again has another number.
pub(crate) type AppUid = u32;

/// A connection, as both ends know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId(pub u32);

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The end that connected.
    Connector = 0,
    /// The end that listened.
    Acceptor = 1,
}

impl Side {
    /// The other end.
    pub fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

/// A promise that did not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which promise, as docs/proof/testing.md names it.
    pub kind: &'static str,
    /// Virtual time in nanoseconds.
    pub at_ns: u64,
    /// What was found.
    pub detail: String,
}

/// The two ends of a connection on the wire: connecting host and port, listening host and port.
pub(crate) type Ports = (usize, u16, usize, u16);

/// All checkers of a run.
#[derive(Debug)]
pub struct Checks {
    violations: Vec<Violation>,
    records: Vec<Record>,
    by_ports: BTreeMap<Ports, RecordId>,
    by_app: BTreeMap<AppUid, Vec<RecordId>>,
    /// Processes that are gone; their daemon may still give them connections.
    dead: BTreeSet<AppUid>,
    pub(crate) causes: Causes,
    pub(crate) links: Links,
    pub(crate) pairs: pairs::Pairs,
    /// Datagrams and their sockets.
    pub datagrams: Datagrams,
    /// What programs did with words of regions.
    pub(crate) histories: Histories,
    /// Regions that are with the next daemon, with their bytes.
    pub regions_returned: u64,
    /// Handles that went on by another one.
    pub handles_reopened: u64,
    /// Operations that were done with local memory, and by a lease.
    pub with_local: u64,
    /// See there.
    pub by_lease: u64,
    /// Reads of memory of a program's own host by a lease.
    pub by_near_lease: u64,
    /// Take-overs of regions that somebody had taken over before.
    pub superseded: u64,
    /// Messages of conversations that came by a TCP connection, and by a ring.
    said_by_tcp: u64,
    said_by_ring: u64,
    /// Ends under `raas run` that left kernel TCP, and those that came back.
    left_tcp: u64,
    ways_back: u64,
    /// Ends of kernel TCP connections that became streams, and that stayed.
    pub ends_met: u64,
    /// See `ends_met`.
    pub ends_on_tcp: u64,
    seed: u64,
    has_conversations: bool,
    has_upgrades: bool,
    /// Messages that could be lost: sent, and received.
    pub messages_sent: u64,
    /// See `messages_sent`.
    pub messages_received: u64,
    /// Bytes read and found right.
    pub bytes_checked: u64,
    /// Failures that a fault explains, by reason.
    pub explained: BTreeMap<&'static str, u64>,
}

impl Checks {
    pub(crate) fn new(plan: &Plan, mtus: Vec<usize>) -> Self {
        let (seed, has_conversations) = (plan.seed, plan.has_conversations);
        Self {
            violations: Vec::new(),
            records: Vec::new(),
            by_ports: BTreeMap::new(),
            by_app: BTreeMap::new(),
            dead: BTreeSet::new(),
            causes: Causes::new(plan.has_tight_limits()),
            links: Links::default(),
            pairs: pairs::Pairs::default(),
            datagrams: Datagrams::new(seed, mtus),
            histories: Histories::default(),
            regions_returned: 0,
            handles_reopened: 0,
            with_local: 0,
            by_lease: 0,
            by_near_lease: 0,
            superseded: 0,
            said_by_tcp: 0,
            said_by_ring: 0,
            left_tcp: 0,
            ways_back: 0,
            has_conversations,
            has_upgrades: plan.has_upgrades,
            ends_met: 0,
            ends_on_tcp: 0,
            seed,
            messages_sent: 0,
            messages_received: 0,
            bytes_checked: 0,
            explained: BTreeMap::new(),
        }
    }

    /// What was found so far.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    pub(crate) fn into_violations(self) -> Vec<Violation> {
        self.violations
    }

    /// Operations on regions that ended with what they did, and those of which nobody knows.
    pub fn operations(&self) -> (u64, u64) {
        (self.histories.ended, self.histories.unknown)
    }

    /// How often what seeds draw came to pass: what has 0 in many seeds is no draw.
    pub fn drawn(&self) -> BTreeMap<&'static str, u64> {
        let drawn = [
            ("operations_with_local_memory", self.with_local),
            ("operations_by_a_lease", self.by_lease),
            ("reads_by_a_lease_of_one_host", self.by_near_lease),
            ("take_overs_from_another_writer", self.superseded),
            ("messages_by_a_ring", self.said_by_ring),
            ("messages_by_tcp", self.said_by_tcp),
            ("ends_that_left_tcp", self.left_tcp),
            ("ways_back", self.ways_back),
        ];
        drawn.into_iter().collect()
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn fail(&mut self, now: Time, kind: &'static str, detail: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { kind, at_ns: now.as_nanos(), detail });
        }
    }

    // ---- connections come to be

    /// A listener was given a connection.
    pub(crate) fn on_incoming(&mut self, now: Time, host: usize, app: AppUid, connection: &Connection) -> RecordId {
        let id = RecordId(self.records.len() as u32);
        let ports = (host_of(connection.peer.ip()), connection.peer.port(), host, connection.local.port());
        self.records.push(Record::new(self.seed, id, ports, now, app));
        self.by_ports.insert(ports, id);
        self.belongs(id, app);
        id
    }

    /// A connect was answered by a connection: the other end must know of it, and have no other partner.
    pub(crate) fn on_connected(
        &mut self,
        now: Time,
        host: usize,
        app: AppUid,
        connection: &Connection,
    ) -> Option<RecordId> {
        let ports = (host, connection.local.port(), host_of(connection.peer.ip()), connection.peer.port());
        let found = self.by_ports.get(&ports).copied();
        let Some(record) = found.and_then(|id| self.records.get_mut(id.0 as usize)).filter(|r| !r.is_joined()) else {
            self.fail(now, "connect", format!("connected as {ports:?}, but no listener has that connection"));
            return None;
        };
        record.join(app);
        let id = record.id();
        self.belongs(id, app);
        Some(id)
    }

    /// An end of a connection is a process's.
    fn belongs(&mut self, id: RecordId, app: AppUid) {
        self.by_app.entry(app).or_default().push(id);
        if self.dead.contains(&app) {
            self.on_app_dead(app);
        }
    }

    /// A connect was answered by a refusal.
    pub(crate) fn on_refused(&mut self, now: Time, asked: &Asked, reason: Reason) {
        *self.explained.entry(reason.key()).or_default() += 1;
        if let Err(why) = self.causes.explain_refusal(now, asked, reason) {
            self.fail(now, "unexplained", format!("connect of host {} to {:?} failed: {why}", asked.from, asked.to));
        }
    }

    /// A bind of a datagram socket was refused.
    pub(crate) fn on_bind_refused(&mut self, now: Time, at: End, reason: Reason) {
        *self.explained.entry(reason.key()).or_default() += 1;
        let is_explained = match reason {
            Reason::PortInUse => self.datagrams.explains_port_in_use(at),
            Reason::LocalLimit => self.causes.has_tight_limits(),
            _ => false,
        };
        if !is_explained {
            let detail = format!("bind of {at:?} failed: `{}`, for which there is no cause", reason.key());
            self.fail(now, "unexplained", detail);
        }
    }

    /// A process is gone, and with it its ends of connections.
    pub(crate) fn on_app_dead(&mut self, app: AppUid) {
        self.dead.insert(app);
        for id in self.by_app.remove(&app).unwrap_or_default() {
            if let Some(record) = self.records.get_mut(id.0 as usize) {
                record.on_app_dead(app);
            }
        }
    }

    /// The promises about connections that only the end of a run shows.
    pub(crate) fn on_rest(&mut self, now: Time) {
        let findings: Vec<String> = self.records.iter().flat_map(Record::unfinished).collect();
        for finding in findings {
            self.fail(now, "liveness", finding);
        }
    }
}
