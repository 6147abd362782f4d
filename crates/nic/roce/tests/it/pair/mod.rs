//! Two NICs and a network between them in virtual time. Everything follows from one seed.
#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use roce::{Ipv4IdMode, Nic, NicConfig, NicLimits};
use verbs::*;

/// What the network does to packets, in thousandths.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkConditions {
    pub loss: u32,
    pub duplicate: u32,
    pub reorder: u32,
    /// One bit of the packet is flipped.
    pub damage: u32,
}

impl LinkConditions {
    pub const CALM: Self = Self { loss: 0, duplicate: 0, reorder: 0, damage: 0 };
    pub const STORM: Self = Self { loss: 30, duplicate: 20, reorder: 30, damage: 10 };
}

#[derive(Debug, Clone)]
pub struct Setup {
    pub seed: u64,
    pub conditions: LinkConditions,
    pub mtu: PathMtu,
    pub ipv6: bool,
    pub id_mode: Ipv4IdMode,
    pub max_gso_segments: usize,
    pub limits: NicLimits,
    /// One way.
    pub delay: Duration,
    /// Bytes per second of each direction; `None` for no limit.
    pub rate: Option<u64>,
    /// Packets that wait for the line at most, where there is a rate; others are lost.
    pub queue_packets: usize,
    /// A packet that finds more packets than these before it is marked, where there is a rate.
    pub mark_above: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seed: 1,
            conditions: LinkConditions::CALM,
            mtu: PathMtu::Mtu1024,
            ipv6: false,
            id_mode: Ipv4IdMode::SegmentIndex,
            max_gso_segments: 64,
            limits: NicLimits::default(),
            delay: Duration::from_micros(10),
            rate: None,
            queue_packets: usize::MAX,
            mark_above: usize::MAX,
        }
    }
}

struct Flying {
    to: usize,
    id: u16,
    is_marked: bool,
    bytes: Vec<u8>,
}

/// Says whether a packet passes.
pub type Filter = Box<dyn FnMut(&Seen) -> bool>;

/// A packet as the wire saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub from: usize,
    pub bytes: Vec<u8>,
}

impl Seen {
    pub fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    pub fn psn(&self) -> u32 {
        u32::from_be_bytes([0, self.bytes[9], self.bytes[10], self.bytes[11]])
    }
}

pub struct World {
    pub nics: [Nic; 2],
    pub addresses: [SocketAddr; 2],
    pub now: Time,
    pub setup: Setup,
    /// Every packet that was sent, lost or not.
    pub seen: Vec<Seen>,
    /// (segments, destination) of each send.
    pub sends: Vec<usize>,
    pub record: bool,
    flying: BTreeMap<(Time, u64), Flying>,
    line_free: [Time; 2],
    /// Packets that found the line's queue full.
    pub overflowed: u64,
    sequence: u64,
    rng: SmallRng,
    /// Decides the fate of single packets before the conditions do: false drops.
    pub filter: Option<Filter>,
}

pub fn address(side: usize, ipv6: bool) -> SocketAddr {
    let n = side + 1;
    if ipv6 { format!("[fd00::{n}]:4791") } else { format!("10.0.0.{n}:4791") }.parse().expect("an address")
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let addresses = [address(0, setup.ipv6), address(1, setup.ipv6)];
        let nic = |side: usize| {
            let config = NicConfig {
                local: addresses[side],
                standby: Vec::new(),
                mtu: setup.mtu,
                limits: setup.limits.clone(),
                rx_budget_bytes: u32::MAX,
                capabilities: verbs::Capabilities::ROCE,
                name: format!("nic{side}"),
                max_gso_segments: setup.max_gso_segments,
                id_mode: setup.id_mode,
            };
            let mut entropy = [side as u8; 32];
            entropy[8..16].copy_from_slice(&setup.seed.to_le_bytes());
            Nic::new(config, entropy)
        };
        Self {
            nics: [nic(0), nic(1)],
            addresses,
            now: Time(1),
            rng: SmallRng::seed_from_u64(setup.seed),
            setup,
            seen: Vec::new(),
            sends: Vec::new(),
            record: false,
            flying: BTreeMap::new(),
            line_free: [Time::ZERO; 2],
            overflowed: 0,
            sequence: 0,
            filter: None,
        }
    }

    fn chance(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.rng.random_range(0..1000) < thousandths
    }

    /// Puts a packet on the wire now.
    pub fn inject(&mut self, to: usize, id: u16, bytes: Vec<u8>) {
        let at = self.now + self.setup.delay;
        self.sequence += 1;
        self.flying.insert((at, self.sequence), Flying { to, id, is_marked: false, bytes });
    }

    fn carry(&mut self, from: usize, id: u16, bytes: &[u8]) {
        let seen = Seen { from, bytes: bytes.to_vec() };
        let passes = self.filter.as_mut().is_none_or(|f| f(&seen));
        if self.record {
            self.seen.push(seen);
        }
        let conditions = self.setup.conditions;
        if !passes || self.chance(conditions.loss) {
            return;
        }
        let copies = 1 + u32::from(self.chance(conditions.duplicate));
        for _ in 0..copies {
            let mut bytes = bytes.to_vec();
            if self.chance(conditions.damage) {
                let bit = self.rng.random_range(0..bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let mut at = self.now.max(self.line_free[from]);
            let mut is_marked = false;
            if let Some(rate) = self.setup.rate {
                // Those before it are taken to be as long as it is.
                let line = Duration::from_nanos((bytes.len() as u64 + 60) * 1_000_000_000 / rate);
                let is_above =
                    |packets| at - self.now > line.saturating_mul(u32::try_from(packets).unwrap_or(u32::MAX));
                if is_above(self.setup.queue_packets) {
                    self.overflowed += 1;
                    continue;
                }
                is_marked = is_above(self.setup.mark_above);
                at = at + line;
                self.line_free[from] = at;
            }
            at = at + self.setup.delay;
            if self.chance(conditions.reorder) {
                at = at + Duration::from_nanos(self.rng.random_range(0..200_000));
            }
            self.sequence += 1;
            self.flying.insert((at, self.sequence), Flying { to: 1 - from, id, is_marked, bytes });
        }
    }

    fn transmit(&mut self) {
        let mut buf = Vec::new();
        for side in 0..2 {
            while let Some(transmit) = self.nics[side].poll_transmit(self.now, &mut buf) {
                assert_eq!(transmit.destination, self.addresses[1 - side]);
                let stride = transmit.segment_bytes.map_or(buf.len(), usize::from);
                let segments: Vec<&[u8]> = buf.chunks(stride).collect();
                assert_eq!(transmit.segment_bytes.is_some(), segments.len() > 1);
                assert!(segments.len() <= self.setup.max_gso_segments && buf.len() <= 65_507);
                self.sends.push(segments.len());
                for (index, segment) in segments.iter().enumerate() {
                    self.carry(side, index as u16, segment);
                }
            }
            assert!(!self.nics[side].has_transmit());
        }
    }

    /// Sends what is to be sent, moves to the next event and lets it happen. False if there is none.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.flying.first_key_value().map(|((at, _), _)| *at);
        let timer = self.nics.iter().filter_map(Nic::deadline).min();
        let Some(next) = arrival.into_iter().chain(timer).min() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let packet = entry.remove();
            let from = self.addresses[1 - packet.to];
            let nic = &mut self.nics[packet.to];
            if packet.is_marked {
                nic.handle_marked(self.now, from, &packet.bytes, packet.bytes.len());
            } else {
                nic.handle_datagram(self.now, from, &packet.bytes, packet.id);
            }
        }
        for nic in &mut self.nics {
            if nic.deadline().is_some_and(|at| at <= self.now) {
                nic.handle_timeout(self.now);
            }
        }
        true
    }

    /// Steps until the condition holds.
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        const MAX_STEPS: usize = 4_000_000;
        for _ in 0..MAX_STEPS {
            if done(self) {
                return;
            }
            if !self.step() {
                assert!(done(self), "nothing left to happen, and not: {what} (seed {})", self.setup.seed);
                return;
            }
        }
        panic!("not within {MAX_STEPS} steps: {what} (seed {})", self.setup.seed);
    }

    /// Steps until nothing is left to happen.
    pub fn settle(&mut self) {
        const MAX_STEPS: usize = 1_000_000;
        for _ in 0..MAX_STEPS {
            if !self.step() {
                return;
            }
        }
        panic!("not quiet within {MAX_STEPS} steps (seed {})", self.setup.seed);
    }

    /// Steps until nothing is left to happen, or the time comes.
    pub fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end && self.step() {}
    }
}

/// One end of a connection with memory of its own.
#[derive(Clone)]
pub struct End {
    pub side: usize,
    pub qpn: Qpn,
    pub cq: CqId,
    pub srq: Option<SrqId>,
    pub region: Region,
    pub mr: Mr,
}

#[derive(Debug, Clone)]
pub struct Wish {
    pub qp_type: QpType,
    pub memory_bytes: usize,
    pub srq: Option<SrqId>,
    pub cq: Option<CqId>,
    pub cqe: u32,
    pub max_wr: u32,
    pub qp_access: Access,
    pub mr_access: Access,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub rd_atomic: u8,
    pub sq_psn: u32,
    pub sig_all: bool,
    pub budget: Option<u32>,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            memory_bytes: 1 << 20,
            srq: None,
            cq: None,
            cqe: 4096,
            max_wr: 256,
            qp_access: Access::all(),
            mr_access: Access::all(),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            rnr_timer: 12,
            rd_atomic: 4,
            sq_psn: 0xff_fff0,
            sig_all: false,
            budget: None,
        }
    }
}

pub fn make_end(world: &mut World, side: usize, wish: &Wish) -> End {
    let nic = &mut world.nics[side];
    let cq = wish.cq.unwrap_or_else(|| nic.create_cq(wish.cqe).expect("a CQ"));
    let init = QpInit {
        pd: verbs::PdId::default(),
        qp_type: wish.qp_type,
        send_cq: cq,
        recv_cq: cq,
        srq: wish.srq,
        max_send_wr: wish.max_wr,
        max_recv_wr: wish.max_wr,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_bytes: 256,
        sq_sig_all: wish.sig_all,
    };
    let qpn = nic.create_qp(&init).expect("a QP");
    nic.modify_qp(qpn, &QpModify::Init { access: wish.qp_access, qkey: Qkey(0) }).expect("Init");
    let region = Region::anonymous(wish.memory_bytes).expect("memory");
    let mr = nic.reg_mr(&region, 0, wish.memory_bytes as u64, wish.mr_access).expect("an MR");
    End { side, qpn, cq, srq: wish.srq, region, mr }
}

pub fn rtr(world: &World, peer: &End, peer_wish: &Wish, wish: &Wish) -> RtrAttr {
    RtrAttr {
        dest_qpn: peer.qpn,
        rq_psn: Psn::new(peer_wish.sq_psn),
        av: AddressVector::new(Gid::from(world.addresses[peer.side].ip())),
        mtu: world.setup.mtu,
        max_dest_rd_atomic: wish.rd_atomic,
        min_rnr_timer: wish.rnr_timer,
        source_port: None,
    }
}

pub fn rts(wish: &Wish) -> RtsAttr {
    RtsAttr {
        sq_psn: Psn::new(wish.sq_psn),
        timeout: wish.timeout,
        retry_cnt: wish.retry_cnt,
        rnr_retry: wish.rnr_retry,
        max_rd_atomic: wish.rd_atomic,
        peer_rx_budget_bytes: wish.budget.unwrap_or(u32::MAX),
        // Software NICs give their budget, in these tests.
        peer: if wish.budget.is_some() { verbs::Capabilities::SOFTWARE_NIC } else { verbs::Capabilities::ROCE },
    }
}

/// A connection between side 0 and side 1.
pub fn connect_with(world: &mut World, wishes: [&Wish; 2]) -> [End; 2] {
    let ends = [make_end(world, 0, wishes[0]), make_end(world, 1, wishes[1])];
    for side in 0..2 {
        let to_rtr = rtr(world, &ends[1 - side], wishes[1 - side], wishes[side]);
        let nic = &mut world.nics[side];
        nic.modify_qp(ends[side].qpn, &QpModify::Rtr(to_rtr)).expect("RTR");
        nic.modify_qp(ends[side].qpn, &QpModify::Rts(rts(wishes[side]))).expect("RTS");
    }
    ends
}

pub fn connect(world: &mut World) -> [End; 2] {
    connect_with(world, [&Wish::default(), &Wish::default()])
}

impl End {
    pub fn sge(&self, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.mr.lkey }
    }

    pub fn remote(&self, addr: u64) -> RemoteAddr {
        RemoteAddr { addr, rkey: self.mr.rkey }
    }

    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(addr, &mut bytes).expect("inside");
        bytes
    }

    pub fn fill(&self, addr: u64, len: usize, seed: u64) -> Vec<u8> {
        let bytes = pattern(len, seed);
        self.region.write(addr, &bytes).expect("inside");
        bytes
    }

    pub fn try_send(
        &self,
        world: &mut World,
        wr_id: u64,
        op: SendOp,
        addr: u64,
        len: u32,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let sges = [self.sge(addr, len)];
        let payload = Payload::Sges(if len == 0 { &[] } else { &sges });
        world.nics[self.side].post_send(self.qpn, &[SendWr { wr_id, op, payload, flags, dest: None }])
    }

    pub fn send(&self, world: &mut World, wr_id: u64, op: SendOp, addr: u64, len: u32) {
        self.try_send(world, wr_id, op, addr, len, SendFlags::SIGNALED).expect("posted");
    }

    pub fn recv(&self, world: &mut World, wr_id: u64, addr: u64, len: u32) {
        let sges = [self.sge(addr, len)];
        let wr = [RecvWr { wr_id, sges: if len == 0 { &[] } else { &sges } }];
        match self.srq {
            Some(srq) => world.nics[self.side].post_srq_recv(srq, &wr).expect("posted"),
            None => world.nics[self.side].post_recv(self.qpn, &wr).expect("posted"),
        }
    }

    pub fn poll(&self, world: &mut World) -> Vec<Completion> {
        let mut out = Vec::new();
        world.nics[self.side].poll_cq(self.cq, &mut out, usize::MAX).expect("the CQ is there");
        out
    }

    /// Runs until `n` completions have come.
    pub fn wait(&self, world: &mut World, n: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        world.run_until(&format!("{n} completions on side {}", self.side), |w| {
            all.extend(self.poll(w));
            all.len() >= n
        });
        assert_eq!(all.len(), n, "{all:?}");
        all
    }

    /// Runs until one completion has come, which must be a success.
    pub fn wait_ok(&self, world: &mut World) -> Completion {
        let completion = self.wait(world, 1)[0];
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        assert_eq!(completion.qpn, self.qpn);
        completion
    }

    pub fn state(&self, world: &World) -> QpState {
        world.nics[self.side].query_qp(self.qpn).expect("the QP is there").state
    }
}

/// Bytes that differ for each place and seed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes[..]);
    bytes
}
