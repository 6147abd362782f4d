//! Datagrams over real sockets: runs that share a send, destinations that do not, drops that stop nobody.

use std::time::Instant;

use crate::rig::{PATIENCE, config};
use softnic::{Progress, SoftNic, SoftNicConfig};
use verbs::*;

const QKEY: Qkey = Qkey(0x1357);
const REGION_BYTES: u64 = 4 << 20;
/// Bytes from one receive to the next.
const STRIDE: u64 = 2048;

struct Ud {
    nic: SoftNic,
    cq: CqId,
    qpn: Qpn,
    region: Region,
    mr: Mr,
}

fn open(config: SoftNicConfig) -> Ud {
    let mut nic = SoftNic::open(config).unwrap();
    let cq = nic.create_cq(8192).unwrap();
    let qpn = nic.create_qp(&QpInit::new(QpType::Ud, cq, 1024)).unwrap();
    let region = Region::anonymous(REGION_BYTES as usize).unwrap();
    let mr = nic.reg_mr(&region, 0, REGION_BYTES, Access::LOCAL_WRITE).unwrap();
    let av = AddressVector::new(nic.device().gid);
    nic.modify_qp(qpn, &QpModify::Init { access: Access::empty(), qkey: QKEY }).unwrap();
    nic.modify_qp(qpn, &QpModify::Rtr(RtrAttr::new(Qpn(0), av))).unwrap();
    nic.modify_qp(qpn, &QpModify::Rts(RtsAttr::default())).unwrap();
    Ud { nic, cq, qpn, region, mr }
}

impl Ud {
    fn handle_to(&mut self, peer: &Self) -> UdDest {
        let udp_port = peer.nic.local_address().port();
        let av = AddressVector { udp_port, ..AddressVector::new(peer.nic.device().gid) };
        UdDest { ah: self.nic.create_ah(&av).unwrap(), qpn: peer.qpn, qkey: QKEY }
    }

    fn recv(&mut self, ids: std::ops::Range<u64>) {
        for wr_id in ids {
            let sges = [Sge { addr: wr_id * STRIDE, len: STRIDE as u32, lkey: self.mr.lkey }];
            self.nic.post_recv(self.qpn, &[RecvWr { wr_id, sges: &sges }]).unwrap();
        }
    }

    fn send(&mut self, wrs: &[(u64, UdDest)], len: usize) {
        let data: Vec<Vec<u8>> = wrs.iter().map(|(id, _)| vec![*id as u8; len]).collect();
        let mut posts = Vec::new();
        for ((id, dest), data) in wrs.iter().zip(&data) {
            let (op, payload, dest) = (SendOp::SendImm(*id as u32), Payload::Inline(data), Some(*dest));
            posts.push(SendWr { wr_id: *id, op, payload, flags: SendFlags::SIGNALED, dest });
        }
        self.nic.post_send(self.qpn, &posts).unwrap();
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        self.nic.poll_cq(self.cq, out, 8192).unwrap();
    }

    fn datagram(&self, wr_id: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(wr_id * STRIDE + GRH_BYTES as u64, &mut bytes).unwrap();
        bytes
    }

    fn counter(&self, name: &str) -> u64 {
        self.nic.counters().into_iter().find(|(n, _)| *n == name).map(|(_, value)| value).unwrap()
    }
}

/// Polls all until the condition holds.
fn until(ends: &mut [&mut Ud], outs: &mut [Vec<Completion>], mut done: impl FnMut(&[Vec<Completion>]) -> bool) {
    let start = Instant::now();
    while !done(outs) {
        assert!(start.elapsed() < PATIENCE, "{:?}", outs.iter().map(Vec::len).collect::<Vec<_>>());
        for (end, out) in ends.iter_mut().zip(outs.iter_mut()) {
            end.poll(out);
        }
    }
}

#[test]
fn runs_to_one_destination_share_a_send() {
    for address in ["127.0.0.1", "::1"] {
        let (mut a, mut b) = (open(config(address)), open(config(address)));
        let to = a.handle_to(&b);
        b.recv(0..200);
        let wrs: Vec<_> = (0..200).map(|id| (id, to)).collect();
        a.send(&wrs, 64);
        let mut outs = [Vec::new(), Vec::new()];
        until(&mut [&mut a, &mut b], &mut outs, |outs| outs[0].len() == 200 && outs[1].len() == 200);
        assert!(a.counter("gso_batches") > 0, "{:?}", a.nic.counters());
        for (i, c) in outs[1].iter().enumerate() {
            assert_eq!((c.wr_id, c.imm, c.src_qpn), (i as u64, Some(i as u32), Some(a.qpn)));
            assert_eq!((c.byte_len, b.datagram(c.wr_id, 64)), (104, vec![i as u8; 64]));
        }
        let mut area = [0; GRH_BYTES];
        b.region.read(0, &mut area).unwrap();
        assert_eq!(Grh::parse(&area).unwrap().source, a.nic.local_address().ip());
        assert_eq!((b.counter("drop_bad_icrc"), b.counter("tx_packets")), (0, 0));
    }
}

#[test]
fn one_queue_pair_reaches_several_hosts() {
    let address = "127.0.0.1";
    let (mut a, mut b, mut c) = (open(config(address)), open(config(address)), open(config(address)));
    let to = [a.handle_to(&b), a.handle_to(&c)];
    b.recv(0..50);
    c.recv(0..50);
    let wrs: Vec<_> = (0..100).map(|id| (id, to[id as usize % 2])).collect();
    a.send(&wrs, 32);
    let mut outs = [Vec::new(), Vec::new(), Vec::new()];
    until(&mut [&mut a, &mut b, &mut c], &mut outs, |outs| outs.iter().map(Vec::len).sum::<usize>() == 200);
    for (side, out) in outs[1..].iter().enumerate() {
        let imms: Vec<u32> = out.iter().filter_map(|c| c.imm).collect();
        assert_eq!(imms, (0..50).map(|i| 2 * i + side as u32).collect::<Vec<_>>());
    }
}

/// A flood that nobody receives is dropped and counted; what comes after it arrives, also while nobody polls the
/// receiver.
#[test]
fn a_flood_is_dropped_and_counted() {
    let helper = SoftNicConfig { progress: Progress::Helper, ..config("127.0.0.1") };
    let (mut a, mut b) = (open(helper.clone()), open(helper));
    let to = a.handle_to(&b);
    let mut outs = [Vec::new(), Vec::new()];
    for round in 0..20 {
        let wrs: Vec<_> = (0..500).map(|id| (id, to)).collect();
        a.send(&wrs, 64);
        until(&mut [&mut a], &mut outs[..1], |outs| outs[0].len() == 500 * (round + 1));
    }
    let start = Instant::now();
    while b.counter("drop_no_receive") + b.counter("rx_socket_overflow") < 10_000 {
        assert!(start.elapsed() < PATIENCE, "{:?}", b.nic.counters());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    b.recv(0..1);
    a.send(&[(7, to)], 16);
    until(&mut [&mut b], &mut outs[1..], |outs| outs[0].len() == 1);
    assert_eq!((outs[1][0].imm, b.datagram(0, 16)), (Some(7), vec![7; 16]));
}

#[test]
fn the_interface_limits_a_datagram() {
    let small = SoftNicConfig { mtu: Some(PathMtu::Mtu512), ..config("127.0.0.1") };
    let (mut a, b) = (open(small), open(config("127.0.0.1")));
    let dest = Some(a.handle_to(&b));
    let sges = [Sge { addr: 0, len: 513, lkey: a.mr.lkey }];
    let (op, payload, flags) = (SendOp::Send, Payload::Sges(&sges), SendFlags::SIGNALED);
    let refused = a.nic.post_send(a.qpn, &[SendWr { wr_id: 1, op, payload, flags, dest }]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "work request 0 was refused: length of a datagram, which the port's path MTU limits, is 513, allowed are 0..=512"
    );
}
