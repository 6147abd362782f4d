//! The fabric by itself: equal seeds, faults, parted hosts, crashes, timers in virtual time.

use super::*;
use verbs::*;

struct End {
    nic: FabricHost,
    cq: CqId,
    qpn: Qpn,
    region: Region,
    mr: Mr,
}

const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const QKEY: Qkey = Qkey(7);

fn end(fabric: &Fabric, ip: IpAddr, qp_type: QpType) -> End {
    let mut nic = fabric.host(ip).unwrap();
    let cq = nic.create_cq(64).unwrap();
    let qpn = nic.create_qp(&QpInit::new(qp_type, cq, 32)).unwrap();
    let region = Region::anonymous(1 << 20).unwrap();
    let mr = nic.reg_mr(&region, 0, 1 << 20, Access::all()).unwrap();
    End { nic, cq, qpn, region, mr }
}

fn connect(ends: &mut [End; 2]) {
    for i in 0..2 {
        let (peer, gid) = (ends[1 - i].qpn, ends[1 - i].nic.device().gid);
        let End { nic, qpn, .. } = &mut ends[i];
        nic.modify_qp(*qpn, &QpModify::Init { access: Access::all(), qkey: QKEY }).unwrap();
        nic.modify_qp(*qpn, &QpModify::Rtr(RtrAttr::new(peer, AddressVector::new(gid)))).unwrap();
        nic.modify_qp(*qpn, &QpModify::Rts(RtsAttr::default())).unwrap();
    }
}

fn pair(fabric: &Fabric, qp_type: QpType) -> [End; 2] {
    let mut ends = [end(fabric, A, qp_type), end(fabric, B, qp_type)];
    connect(&mut ends);
    ends
}

impl End {
    fn write(&mut self, to: &Self, len: u32) {
        let (op, sge) = (SendOp::Write(RemoteAddr { addr: 0, rkey: to.mr.rkey }), self.mr.lkey);
        let sges = [Sge { addr: 0, len, lkey: sge }];
        let (payload, flags) = (Payload::Sges(&sges), SendFlags::SIGNALED);
        self.nic.post_send(self.qpn, &[SendWr { wr_id: 1, op, payload, flags, dest: None }]).unwrap();
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.nic.poll_cq(self.cq, &mut out, 64).unwrap();
        out
    }
}

#[test]
fn a_seed_says_everything() {
    let run = |seed| {
        let fabric = Fabric::new(seed);
        fabric.set_faults(Faults::per_mille(50));
        let [mut a, mut b] = pair(&fabric, QpType::Rc);
        let data: Vec<u8> = (0..1 << 20).map(|i: u32| (i >> 4) as u8).collect();
        a.region.write(0, &data).unwrap();
        a.write(&b, 1 << 20);
        assert!(fabric.run_until_idle());
        assert_eq!(a.poll()[0].status, Status::Success);
        let mut landed = vec![0; 1 << 20];
        b.region.read(0, &mut landed).unwrap();
        assert!(landed == data && b.poll().is_empty());
        (fabric.now(), fabric.counters(), a.nic.counters(), a.qpn)
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn time_moves_only_when_told() {
    let fabric = Fabric::new(1);
    fabric.set_faults(Faults { latency: Duration::from_millis(10), ..Faults::default() });
    let [mut a, b] = pair(&fabric, QpType::Rc);
    let start = fabric.now();
    assert_eq!(fabric.next_event(), None);
    a.write(&b, 64);
    assert_eq!(fabric.next_event(), Some(Duration::ZERO));
    assert!(a.nic.progress(), "the packet leaves");
    assert!(a.poll().is_empty() && fabric.now() == start);
    assert!(fabric.next_event().is_some_and(|next| next <= Duration::from_millis(10)));
    fabric.advance(Duration::from_millis(19));
    assert!(a.poll().is_empty());
    fabric.advance(Duration::from_millis(1));
    assert_eq!((a.poll().len(), fabric.now() - start), (1, Duration::from_millis(20)));
}

#[test]
fn parted_hosts_run_into_their_retries_and_healed_ones_do_not() {
    let fabric = Fabric::new(1);
    let [mut a, b] = pair(&fabric, QpType::Rc);
    fabric.part(A, B);
    a.write(&b, 64);
    fabric.advance(Duration::from_millis(200));
    assert!(a.poll().is_empty() && fabric.counters().parted > 0);
    fabric.heal(B, A);
    assert!(fabric.run_until_idle());
    assert_eq!(a.poll()[0].status, Status::Success);
    fabric.part(A, B);
    a.write(&b, 64);
    let before = fabric.now();
    assert!(fabric.run_until_idle());
    assert_eq!(a.poll()[0].status, Status::RetryExcErr);
    assert!(fabric.now() - before > Duration::from_millis(400), "seven timeouts of 67 ms, without waiting for one");
}

#[test]
fn a_dropped_host_is_gone() {
    let fabric = Fabric::new(1);
    let [mut a, b] = pair(&fabric, QpType::Rc);
    a.write(&b, 64);
    drop(b);
    assert!(fabric.run_until_idle());
    assert_eq!(a.poll()[0].status, Status::RetryExcErr);
    assert!(fabric.counters().to_nobody > 7);
    assert!(fabric.host(B).is_ok(), "its address is free again");
}

#[test]
fn one_way_of_a_link() {
    let fabric = Fabric::new(1);
    let [mut a, mut b] = pair(&fabric, QpType::Rc);
    fabric.set_link(A, B, Faults { loss_per_mille: 1000, ..Faults::default() });
    b.write(&a, 64);
    fabric.advance(Duration::from_millis(1));
    assert!(b.poll().is_empty(), "the ACK is lost");
    let mut landed = [1; 4];
    a.region.read(0, &mut landed).unwrap();
    assert_eq!((landed, a.poll().len(), a.nic.nic_counters().served_write), ([0; 4], 0, 1));
}

#[test]
fn an_endless_wait_is_told() {
    let fabric = Fabric::new(1);
    let [mut a, b] = pair(&fabric, QpType::Rc);
    let (payload, flags) = (Payload::Inline(b"x"), SendFlags::SIGNALED);
    a.nic.post_send(a.qpn, &[SendWr { wr_id: 1, op: SendOp::Send, payload, flags, dest: None }]).unwrap();
    assert!(!fabric.run_until_idle(), "no receive is ever posted on {}", b.qpn);
}

#[test]
fn datagrams_between_many_hosts() {
    let fabric = Fabric::new(1);
    let mut ends: Vec<End> = (1..=6).map(|i| end(&fabric, IpAddr::from([10, 0, 1, i]), QpType::Ud)).collect();
    for end in &mut ends {
        let av = AddressVector::new(end.nic.device().gid);
        end.nic.modify_qp(end.qpn, &QpModify::Init { access: Access::empty(), qkey: QKEY }).unwrap();
        end.nic.modify_qp(end.qpn, &QpModify::Rtr(RtrAttr::new(Qpn(0), av))).unwrap();
        end.nic.modify_qp(end.qpn, &QpModify::Rts(RtsAttr::default())).unwrap();
    }
    let (last, senders) = ends.split_last_mut().unwrap();
    last.nic.req_notify_cq(last.cq, false).unwrap();
    for (i, sender) in senders.iter_mut().enumerate() {
        let sges = [Sge { addr: i as u64 * 256, len: 256, lkey: last.mr.lkey }];
        last.nic.post_recv(last.qpn, &[RecvWr { wr_id: i as u64, sges: &sges }]).unwrap();
        let ah = sender.nic.create_ah(&AddressVector::new(last.nic.device().gid)).unwrap();
        let (payload, dest) = (Payload::Inline(&[i as u8; 8]), Some(UdDest { ah, qpn: last.qpn, qkey: QKEY }));
        let wr = SendWr { wr_id: 1, op: SendOp::Send, payload, flags: SendFlags::empty(), dest };
        sender.nic.post_send(sender.qpn, &[wr]).unwrap();
    }
    assert!(!last.nic.take_notify());
    assert!(fabric.run_until_idle());
    assert!(last.nic.take_notify() && !last.nic.take_notify());
    for (i, (c, sender)) in last.poll().iter().zip(senders.iter()).enumerate() {
        assert_eq!((c.wr_id, c.src_qpn), (i as u64, Some(sender.qpn)));
        let mut area = [0; GRH_BYTES];
        last.region.read(c.wr_id * 256, &mut area).unwrap();
        assert_eq!(Grh::parse(&area).unwrap().source, sender.nic.device().gid.ip());
    }
}

#[test]
fn hosts_that_cannot_be() {
    let fabric = Fabric::new(1);
    let a = fabric.host(A).unwrap();
    assert_eq!(a.device().gid.ip(), A);
    assert_eq!(fabric.host(A).unwrap_err(), FabricError::AddressTaken("10.0.0.1:4791".parse().unwrap()));
    assert!(matches!(fabric.host("0.0.0.0".parse().unwrap()), Err(FabricError::NotSpecific(_))));
    let other = HostConfig { address: "10.0.0.1:4792".parse().unwrap(), ..HostConfig::new(A) };
    assert_eq!(fabric.host_with(other).unwrap().device().udp_port, 4792);
}

const ACCEPT: AcceptAttr =
    AcceptAttr { peer: Capabilities::empty(), timeout: 14, retry_cnt: 7, rnr_retry: 7, min_rnr_timer: 1 };

#[test]
fn ends_that_are_set_up_by_offers_use_what_both_devices_can() {
    let fabric = Fabric::new(3);
    let mut ends = [end(&fabric, A, QpType::Rc), end(&fabric, B, QpType::Rc)];
    let attr = OfferAttr {
        access: Access::all(),
        mtu_max: PathMtu::Mtu1024,
        entropy: 0x1234_5678,
        wire: WirePolicy::Auto,
        peer: None,
        encrypt: verbs::Encrypt::Off,
        local: None,
    };
    let offers = [0, 1].map(|i: usize| {
        let End { nic, qpn, .. } = &mut ends[i];
        assert_eq!(nic.device().capabilities, Capabilities::SOFTWARE_NIC);
        nic.offer(*qpn, &attr).unwrap()
    });
    for i in 0..2 {
        let (peer_qpn, peer) = (ends[1 - i].qpn.0, SocketAddr::new([B, A][i], ROCE_UDP_PORT));
        let End { nic, qpn, .. } = &mut ends[i];
        let attr = AcceptAttr { peer: Capabilities::SOFTWARE_NIC, ..ACCEPT };
        let link = nic.accept(*qpn, &offers[i], &offers[1 - i], &attr).unwrap();
        assert_eq!((link.peer, link.peer_qpn, link.mtu, link.wire), (peer, peer_qpn, PathMtu::Mtu1024, Wire::Roce));
    }
    let [a, b] = &mut ends;
    a.write(b, 10_000);
    assert!(fabric.run_until_idle());
    assert_eq!(a.poll()[0].status, Status::Success);
    // Even WRITEs are single packets for the peer, one for each path MTU; others are one message.
    assert_eq!(b.nic.nic_counters().served_write, 10);
}

#[test]
fn an_offer_that_cannot_be_changes_nothing() {
    let fabric = Fabric::new(4);
    let mut ends = [end(&fabric, A, QpType::Rc), end(&fabric, B, QpType::Rc)];
    let attr = OfferAttr {
        access: Access::all(),
        mtu_max: PathMtu::Mtu4096,
        entropy: 1,
        wire: WirePolicy::Auto,
        peer: None,
        encrypt: verbs::Encrypt::Off,
        local: None,
    };
    let [own, good] = [0, 1].map(|i: usize| {
        let End { nic, qpn, .. } = &mut ends[i];
        nic.offer(*qpn, &attr).unwrap()
    });
    let End { nic, qpn, .. } = &mut ends[0];
    for at in 0..good.as_bytes().len() {
        let bytes = good.as_bytes()[..at].to_vec();
        let Ok(cut) = Endpoint::new(bytes) else { continue };
        assert!(nic.accept(*qpn, &own, &cut, &ACCEPT).is_err(), "{at} bytes");
    }
    assert_eq!(nic.query_qp(*qpn).unwrap().state, QpState::Init);
    assert!(matches!(
        nic.accept_datagrams(&good, *qpn, &verbs::DatagramAttr::new(verbs::Encrypt::Off)),
        Err(VerbsError::ForeignEndpoint { found: 1, expected: 2 })
    ));
    nic.accept(*qpn, &own, &good, &ACCEPT).unwrap();
}
