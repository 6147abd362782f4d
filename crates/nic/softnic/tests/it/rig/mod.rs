//! Two software NICs on loopback addresses, connected queue pairs, and bounded waits.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use softnic::{SoftNic, SoftNicConfig};
use verbs::*;

/// No wait of a test lasts longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of each end's registered memory.
pub(crate) const REGION_BYTES: u64 = 4 << 20;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) nic: SoftNic,
    pub(crate) cq: CqId,
    pub(crate) qpn: Qpn,
    pub(crate) region: Region,
    pub(crate) mr: Mr,
    pub(crate) wire: WirePolicy,
}

/// A NIC at an address that is not this test's alone, so the system chooses the port.
pub(crate) fn config(address: &str) -> SoftNicConfig {
    let mut config = SoftNicConfig::new(address.parse().unwrap());
    config.udp_port = 0;
    config
}

impl End {
    /// Opens a NIC and makes an end of it.
    pub(crate) fn open(config: SoftNicConfig) -> Self {
        let wire = config.wire;
        Self { wire, ..Self::of(SoftNic::open(config).unwrap()) }
    }

    /// Makes a CQ, a QP in Reset and a registered region on a NIC.
    pub(crate) fn of(nic: SoftNic) -> Self {
        Self::of_service(nic, QpType::Rc)
    }

    /// The same with a QP of that transport service.
    pub(crate) fn of_service(mut nic: SoftNic, qp_type: QpType) -> Self {
        let cq = nic.create_cq(4096).unwrap();
        let init = QpInit {
            pd: verbs::PdId::default(),
            qp_type,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: 512,
            max_recv_wr: 512,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_bytes: 64,
            sq_sig_all: false,
        };
        let qpn = nic.create_qp(&init).unwrap();
        let region = Region::anonymous(REGION_BYTES as usize).unwrap();
        let mr = nic.reg_mr(&region, 0, REGION_BYTES, Access::all()).unwrap();
        Self { nic, cq, qpn, region, mr, wire: WirePolicy::Only(Wire::Roce) }
    }

    pub(crate) fn address_vector(&self) -> AddressVector {
        let device = self.nic.device();
        AddressVector { udp_port: self.nic.local_address().port(), ..AddressVector::new(device.gid) }
    }

    /// Takes the QP from Reset to RTS towards the given peer.
    pub(crate) fn connect(&mut self, peer_qpn: Qpn, av: AddressVector, mtu: PathMtu, sq_psn: Psn, rq_psn: Psn) {
        let qpn = self.qpn;
        let access = Access::all();
        self.nic.modify_qp(qpn, &QpModify::Init { access, qkey: Qkey(0x1234) }).unwrap();
        let rtr =
            RtrAttr { dest_qpn: peer_qpn, rq_psn, av, mtu, max_dest_rd_atomic: 8, min_rnr_timer: 1, source_port: None };
        self.nic.modify_qp(qpn, &QpModify::Rtr(rtr)).unwrap();
        let rts = RtsAttr {
            sq_psn,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 8,
            peer_rx_budget_bytes: u32::MAX,
            peer: verbs::Capabilities::empty(),
        };
        self.nic.modify_qp(qpn, &QpModify::Rts(rts)).unwrap();
    }

    /// What the peer needs to know of the QP, which goes to Init.
    pub(crate) fn offer(&mut self) -> Endpoint {
        self.offer_to(None)
    }

    /// The same for a peer at that address.
    pub(crate) fn offer_to(&mut self, peer: Option<IpAddr>) -> Endpoint {
        let (access, mtu_max) = (Access::all(), PathMtu::Mtu4096);
        self.try_offer(access, mtu_max, peer, verbs::Encrypt::Off).unwrap()
    }

    /// The same for a connection that is encrypted, or is not.
    pub(crate) fn offer_encrypted(&mut self, encrypt: verbs::Encrypt) -> Result<Endpoint, verbs::VerbsError> {
        self.try_offer(Access::all(), PathMtu::Mtu4096, None, encrypt)
    }

    fn try_offer(
        &mut self,
        access: Access,
        mtu_max: PathMtu,
        peer: Option<IpAddr>,
        encrypt: verbs::Encrypt,
    ) -> Result<Endpoint, verbs::VerbsError> {
        let attr = OfferAttr { access, mtu_max, entropy: 7, wire: WirePolicy::Auto, peer, encrypt, local: None };
        self.nic.offer(self.qpn, &attr)
    }

    pub(crate) fn sge(&self, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.mr.lkey }
    }

    pub(crate) fn remote(&self, addr: u64) -> RemoteAddr {
        RemoteAddr { addr, rkey: self.mr.rkey }
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, addr: u64, len: u32) {
        let sges = [self.sge(addr, len)];
        self.nic.post_recv(self.qpn, &[RecvWr { wr_id, sges: &sges }]).unwrap();
    }

    /// Posts one signalled work request on registered memory.
    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, addr: u64, len: u32) {
        let sges = [self.sge(addr, len)];
        let payload = Payload::Sges(&sges);
        let wr = SendWr { wr_id, op, payload, flags: SendFlags::SIGNALED, dest: None };
        self.nic.post_send(self.qpn, &[wr]).unwrap();
    }

    /// Polls once.
    pub(crate) fn poll(&mut self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.nic.poll_cq(self.cq, &mut out, 64).unwrap();
        out
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let counters = self.nic.counters();
        counters.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    pub(crate) fn fill(&self, addr: u64, bytes: &[u8]) {
        self.region.write(addr, bytes).unwrap();
    }

    pub(crate) fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.region.read(addr, &mut out).unwrap();
        out
    }
}

/// Two connected ends, both opened from their configurations.
pub(crate) fn pair(a: SoftNicConfig, b: SoftNicConfig) -> (End, End) {
    connected(End::open(a), End::open(b))
}

/// Connects two ends.
pub(crate) fn connected(mut a: End, mut b: End) -> (End, End) {
    if a.wire == WirePolicy::Only(Wire::Iwarp) {
        let link = connect_by_endpoints(&mut a, &mut b, ACCEPT);
        assert_eq!(link.wire, Wire::Iwarp);
        return (a, b);
    }
    let mtu = a.nic.device().mtu.min(b.nic.device().mtu);
    let (to_a, to_b) = (a.address_vector(), b.address_vector());
    let (psn_a, psn_b) = (Psn::new(0xff_fff0), Psn::new(77));
    a.connect(b.qpn, to_b, mtu, psn_a, psn_b);
    b.connect(a.qpn, to_a, mtu, psn_b, psn_a);
    (a, b)
}

/// How connections are accepted: a peer that is gone is given up after the least silence.
pub(crate) const ACCEPT: AcceptAttr =
    AcceptAttr { peer: Capabilities::SOFTWARE_NIC, timeout: 14, retry_cnt: 7, rnr_retry: 7, min_rnr_timer: 1 };

/// Offers at both ends and accepts at both; gives what the first end says of the connection.
pub(crate) fn connect_by_endpoints(a: &mut End, b: &mut End, attr: AcceptAttr) -> Link {
    let (of_a, of_b) = (a.offer(), b.offer());
    let link = a.nic.accept(a.qpn, &of_a, &of_b, &attr).unwrap();
    let other = b.nic.accept(b.qpn, &of_b, &of_a, &attr).unwrap();
    assert_eq!((link.wire, link.mtu), (other.wire, other.mtu));
    link
}

/// Polls both ends until each has given so many completions.
pub(crate) fn run(a: &mut End, b: &mut End, want_a: usize, want_b: usize) -> (Vec<Completion>, Vec<Completion>) {
    let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    while from_a.len() < want_a || from_b.len() < want_b {
        from_a.extend(a.poll());
        from_b.extend(b.poll());
        assert!(
            begin.elapsed() < PATIENCE,
            "{}/{want_a} and {}/{want_b} completions\n{:?}\n{:?}",
            from_a.len(),
            from_b.len(),
            a.nic.counters(),
            b.nic.counters()
        );
    }
    for c in from_a.iter().chain(&from_b) {
        assert_eq!(c.status, Status::Success, "{c:?}");
    }
    (from_a, from_b)
}

/// Waits until `done`, letting `step` make progress meanwhile.
pub(crate) fn until(what: &str, mut step: impl FnMut(), mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        step();
        assert!(begin.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::yield_now();
    }
}

/// `len` bytes that differ from place to place and seed to seed.
/// WRITEs of both ends at once, each of half of the region into the other half of the peer's.
pub(crate) fn cross(a: &mut End, b: &mut End, half: usize, rounds: u64) {
    let (of_a, of_b) = (pattern(1, half), pattern(2, half));
    a.fill(0, &of_a);
    b.fill(0, &of_b);
    for round in 0..rounds {
        let (to_b, to_a) = (b.remote(half as u64), a.remote(half as u64));
        a.post_recv(100, 0, 0);
        b.post_recv(100, 0, 0);
        a.post(round, SendOp::WriteImm(to_b, 1), 0, half as u32);
        b.post(round, SendOp::WriteImm(to_a, 2), 0, half as u32);
        run(a, b, 2, 2);
        assert!(b.bytes(half as u64, half) == of_a && a.bytes(half as u64, half) == of_b, "round {round}");
        for end in [&*a, &*b] {
            end.region.write(half as u64, &vec![0; half]).unwrap();
        }
    }
}

pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(&mut next).take(len).collect()
}
