//! The network of a [`super::Fabric`]: NICs, packets on their way, faults, virtual time.
//!
//! One order of events for one seed: by time, then by the order of sending. It never looks at a real clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use roce::{Ipv4IdMode, Nic, NicConfig, Transmit};
use verbs::Time;

use super::{FabricCounters, FabricError, Faults, HostConfig};
use wires::Secrets;

/// Hosts of one fabric at most.
const HOSTS_MAX: usize = 4_096;
/// Sends on their way at most: more are lost, as in a full switch.
const FLYING_MAX: usize = 1 << 20;
/// Sends of one host before the others get their turn; nothing but this bounds the answer to a long READ.
const SENDS_PER_TURN: usize = 256;
/// Every packet takes some time, or two hosts could answer each other for ever without time moving.
const LATENCY_MIN: Duration = Duration::from_nanos(100);
/// How much later the second of a repeated packet arrives.
const DUPLICATE_AFTER: Duration = Duration::from_micros(50);

/// Names a host within its fabric; never used again.
pub(super) type HostId = u32;

#[derive(Debug)]
pub(super) struct Host {
    pub(super) nic: Nic,
    /// Of endpoints that encrypt.
    pub(super) secrets: Secrets,
    address: SocketAddr,
    /// An armed CQ got its completion, or an event came, since the host last asked.
    pub(super) notified: bool,
}

/// A send on its way: one packet, or a batch of segments of `stride` bytes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at: Time,
    sequence: u64,
    from: SocketAddr,
    to: SocketAddr,
    stride: usize,
    payload: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Net {
    now: Time,
    seed: u64,
    rng: SmallRng,
    hosts: BTreeMap<HostId, Host>,
    by_address: BTreeMap<SocketAddr, HostId>,
    next_id: HostId,
    flying: BinaryHeap<Reverse<Flying>>,
    sequence: u64,
    faults: Faults,
    links: BTreeMap<(IpAddr, IpAddr), Faults>,
    parted: BTreeSet<(IpAddr, IpAddr)>,
    counters: FabricCounters,
    buf: Vec<u8>,
}

impl Net {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: Time(1),
            seed,
            rng: SmallRng::seed_from_u64(seed),
            hosts: BTreeMap::new(),
            by_address: BTreeMap::new(),
            next_id: 0,
            flying: BinaryHeap::new(),
            sequence: 0,
            faults: Faults::default(),
            links: BTreeMap::new(),
            parted: BTreeSet::new(),
            counters: FabricCounters::default(),
            buf: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, config: HostConfig) -> Result<HostId, FabricError> {
        let ip = config.address.ip().to_canonical();
        let address = SocketAddr::new(ip, config.address.port());
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(FabricError::NotSpecific(ip));
        }
        if self.by_address.contains_key(&address) {
            return Err(FabricError::AddressTaken(address));
        }
        if self.hosts.len() >= HOSTS_MAX {
            return Err(FabricError::TooManyHosts(HOSTS_MAX));
        }
        let id = self.next_id;
        self.next_id += 1;
        let mut entropy = [0; 32];
        entropy[..8].copy_from_slice(&self.seed.to_le_bytes());
        entropy[8..12].copy_from_slice(&id.to_le_bytes());
        let nic = Nic::new(
            NicConfig {
                local: address,
                standby: Vec::new(),
                mtu: config.mtu,
                limits: config.limits,
                rx_budget_bytes: u32::MAX,
                capabilities: verbs::Capabilities::SOFTWARE_NIC,
                name: "fabric".into(),
                max_gso_segments: config.max_gso_segments,
                id_mode: Ipv4IdMode::SegmentIndex,
            },
            entropy,
        );
        let secrets = Secrets::new(entropy.map(|byte| byte ^ 0x5a));
        self.hosts.insert(id, Host { nic, secrets, address, notified: false });
        self.by_address.insert(address, id);
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: HostId) {
        if let Some(host) = self.hosts.remove(&id) {
            self.by_address.remove(&host.address);
        }
    }

    pub(super) fn host(&mut self, id: HostId) -> Option<&mut Host> {
        self.hosts.get_mut(&id)
    }

    pub(super) const fn now(&self) -> Time {
        self.now
    }

    pub(super) const fn counters(&self) -> FabricCounters {
        self.counters
    }

    pub(super) const fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    pub(super) fn set_link(&mut self, from: IpAddr, to: IpAddr, faults: Faults) {
        self.links.insert((from.to_canonical(), to.to_canonical()), faults);
    }

    pub(super) fn part(&mut self, a: IpAddr, b: IpAddr) {
        self.parted.extend(both_ways(a, b));
    }

    pub(super) fn heal(&mut self, a: IpAddr, b: IpAddr) {
        for way in both_ways(a, b) {
            self.parted.remove(&way);
        }
    }

    /// How long until the next event; `None` if there is none.
    pub(super) fn next_event(&self) -> Option<Duration> {
        if self.hosts.values().any(|host| host.nic.has_transmit()) {
            return Some(Duration::ZERO);
        }
        self.next_at().map(|at| at.saturating_since(self.now))
    }

    /// When the next packet arrives or timer fires.
    fn next_at(&self) -> Option<Time> {
        let arrival = self.flying.peek().map(|Reverse(flying)| flying.at);
        let timer = self.hosts.values().filter_map(|host| host.nic.deadline()).min();
        arrival.into_iter().chain(timer).min()
    }

    /// Sends what is to be sent, moves to the next event and lets it happen; false if there is none.
    pub(super) fn step(&mut self) -> bool {
        let mut sent = false;
        while self.transmit() {
            sent = true;
        }
        match self.next_at() {
            Some(at) => {
                self.now = self.now.max(at);
                self.happen();
                true
            }
            None => sent,
        }
    }

    /// Lets so much time pass.
    pub(super) fn advance(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            while self.transmit() {}
            match self.next_at() {
                Some(at) if at <= until => {
                    self.now = self.now.max(at);
                    self.happen();
                }
                _ => break,
            }
        }
        self.now = until;
    }

    /// What a poll does: input and output that are due, without time. Says whether there was any.
    pub(super) fn progress(&mut self) -> bool {
        let sent = self.transmit();
        let due = self.next_at().is_some_and(|at| at <= self.now);
        if due {
            self.happen();
        }
        self.transmit() || sent || due
    }

    /// Lets everything happen that is due.
    fn happen(&mut self) {
        while let Some(Reverse(next)) = self.flying.peek()
            && next.at <= self.now
            && let Some(Reverse(flying)) = self.flying.pop()
        {
            self.deliver(&flying);
        }
        for host in self.hosts.values_mut() {
            if host.nic.deadline().is_some_and(|at| at <= self.now) {
                host.nic.handle_timeout(self.now);
            }
            host.notified |= host.nic.take_notify();
        }
    }

    fn deliver(&mut self, flying: &Flying) {
        let packets = flying.payload.chunks(flying.stride).len() as u64;
        if self.parted.contains(&(flying.from.ip(), flying.to.ip())) {
            self.counters.parted += packets;
            return;
        }
        let id = self.by_address.get(&flying.to);
        let Some(host) = id.and_then(|id| self.hosts.get_mut(id)) else {
            self.counters.to_nobody += packets;
            return;
        };
        self.counters.delivered += packets;
        host.nic.handle_batch(self.now, flying.from, &flying.payload, flying.stride);
        host.notified |= host.nic.take_notify();
    }

    /// One turn of sending for each host; whether anything left.
    fn transmit(&mut self) -> bool {
        let mut any = false;
        let ids: Vec<HostId> = self.hosts.iter().filter(|(_, h)| h.nic.has_transmit()).map(|(id, _)| *id).collect();
        let mut buf = std::mem::take(&mut self.buf);
        for id in ids {
            for _ in 0..SENDS_PER_TURN {
                let Some(host) = self.hosts.get_mut(&id) else { break };
                let Some(transmit) = host.nic.poll_transmit(self.now, &mut buf) else { break };
                // A send may complete a datagram or end a QP.
                host.notified |= host.nic.take_notify();
                let from = transmit.source;
                any = true;
                self.launch(from, &transmit, &buf);
            }
        }
        self.buf = buf;
        any
    }

    fn launch(&mut self, from: SocketAddr, transmit: &Transmit, payload: &[u8]) {
        let to = SocketAddr::new(transmit.destination.ip().to_canonical(), transmit.destination.port());
        let stride = transmit.segment_bytes.map_or(payload.len(), usize::from).max(1);
        let faults = self.links.get(&(from.ip(), to.ip())).copied().unwrap_or(self.faults);
        if !faults.any() {
            self.fly(from, to, payload, stride, faults.latency);
            return;
        }
        // Faults hit single packets, each of which then arrives by itself.
        for segment in payload.chunks(stride) {
            if self.hit(faults.loss_per_mille) {
                self.counters.lost += 1;
                continue;
            }
            let mut after = faults.latency;
            if self.hit(faults.late_per_mille) {
                self.counters.late += 1;
                after += faults.late_by;
            }
            self.fly(from, to, segment, segment.len(), after);
            if self.hit(faults.duplicate_per_mille) {
                self.counters.duplicated += 1;
                self.fly(from, to, segment, segment.len(), after + DUPLICATE_AFTER);
            }
        }
    }

    fn hit(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.random_range(0..1000) < per_mille
    }

    fn fly(&mut self, from: SocketAddr, to: SocketAddr, payload: &[u8], stride: usize, after: Duration) {
        if self.flying.len() >= FLYING_MAX {
            self.counters.overflowed += payload.chunks(stride.max(1)).len() as u64;
            return;
        }
        self.sequence += 1;
        let at = self.now + after.max(LATENCY_MIN);
        let payload = payload.to_vec();
        self.flying.push(Reverse(Flying { at, sequence: self.sequence, from, to, stride: stride.max(1), payload }));
    }
}

fn both_ways(a: IpAddr, b: IpAddr) -> [(IpAddr, IpAddr); 2] {
    let (a, b) = (a.to_canonical(), b.to_canonical());
    [(a, b), (b, a)]
}
