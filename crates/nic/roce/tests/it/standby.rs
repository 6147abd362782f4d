//! NICs with two addresses each: which one packets leave from, and which packets arrive at the wrong one.

use std::net::{IpAddr, SocketAddr};

use records::{PacketKeys, Purpose, Secret};
use roce::wire::{ICRC_BYTES, PseudoHeader};
use roce::{Arrived, DatagramSeal, Ipv4IdMode, Nic, NicConfig, NicLimits, Transmit};
use verbs::*;

const BYTES: u64 = 1 << 20;
const QKEY: Qkey = Qkey(77);
const ACCEPT: AcceptAttr =
    AcceptAttr { peer: Capabilities::SOFTWARE_NIC, timeout: 14, retry_cnt: 7, rnr_retry: 7, min_rnr_timer: 1 };

fn ip(net: u8, host: u8) -> IpAddr {
    IpAddr::from([10, 0, net, host])
}

fn port(net: u8, host: u8) -> SocketAddr {
    SocketAddr::new(ip(net, host), ROCE_UDP_PORT)
}

struct End {
    host: u8,
    nic: Nic,
    cq: CqId,
    qpn: Qpn,
    region: Region,
    mr: Mr,
}

fn arrived(from: SocketAddr, to: IpAddr, is_marked: bool) -> Arrived {
    Arrived { from, to, place: 0, is_marked }
}

/// One UDP payload on its way.
struct Sent {
    way: Transmit,
    /// Its place in its batch, which is its IPv4 identification.
    id: u16,
    packet: Vec<u8>,
}

impl End {
    fn new(host: u8, qp_type: QpType) -> Self {
        let config = NicConfig {
            local: port(0, host),
            standby: vec![ip(1, host)],
            mtu: PathMtu::Mtu1024,
            limits: NicLimits::default(),
            rx_budget_bytes: u32::MAX,
            capabilities: Capabilities::SOFTWARE_NIC,
            name: "standby".into(),
            max_gso_segments: 16,
            id_mode: Ipv4IdMode::SegmentIndex,
        };
        let mut nic = Nic::new(config, [host; 32]);
        let cq = nic.create_cq(4096).unwrap();
        let qpn = nic.create_qp(&QpInit::new(qp_type, cq, 64)).unwrap();
        let region = Region::anonymous(BYTES as usize).unwrap();
        let mr = nic.reg_mr(&region, 0, BYTES, Access::all()).unwrap();
        Self { host, nic, cq, qpn, region, mr }
    }

    /// A datagram QP, ready.
    fn datagram(host: u8) -> Self {
        let mut end = Self::new(host, QpType::Ud);
        end.nic.modify_qp(end.qpn, &QpModify::Init { access: Access::empty(), qkey: QKEY }).unwrap();
        let rtr = RtrAttr::new(Qpn(0), AddressVector::new(Gid::from(ip(0, host))));
        end.nic.modify_qp(end.qpn, &QpModify::Rtr(rtr)).unwrap();
        end.nic.modify_qp(end.qpn, &QpModify::Rts(RtsAttr::default())).unwrap();
        let (addr, lkey) = (4096, end.mr.lkey);
        let receives = [1, 2, 3].map(|n| [Sge { addr: addr * n, len: 2048, lkey }]);
        let posted = receives.each_ref().map(|sges| RecvWr { wr_id: sges[0].addr, sges });
        end.nic.post_recv(end.qpn, &posted).unwrap();
        end
    }

    fn count(&self, name: &str) -> u64 {
        self.nic.counters().iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.nic.poll_cq(self.cq, &mut out, 4096).unwrap();
        out
    }

    fn sends(&mut self, now: Time) -> Vec<Sent> {
        let (mut all, mut buf) = (Vec::new(), Vec::new());
        while let Some(way) = self.nic.poll_transmit(now, &mut buf) {
            let stride = way.segment_bytes.map_or(buf.len(), usize::from);
            let packets = (0..).zip(buf.chunks(stride));
            all.extend(packets.map(|(id, packet)| Sent { way, id, packet: packet.to_vec() }));
        }
        all
    }

    fn take(&mut self, now: Time, sent: &Sent) {
        self.nic.handle_arrived(
            now,
            &arrived(sent.way.source, sent.way.destination.ip(), false),
            &sent.packet,
            usize::MAX,
        );
    }

    fn send_to(&mut self, dest: UdDest) {
        let wr = SendWr {
            wr_id: 9,
            op: SendOp::Send,
            payload: Payload::Sges(&[Sge { addr: 0, len: 64, lkey: self.mr.lkey }]),
            flags: SendFlags::SIGNALED,
            dest: Some(dest),
        };
        self.nic.post_send(self.qpn, &[wr]).unwrap();
    }

    /// The way from an address to one of the peer.
    fn dest(&mut self, peer: &Self, (from, to): (u8, u8)) -> UdDest {
        let av = AddressVector::new(Gid::from(ip(to, peer.host))).from_source(Some(Gid::from(ip(from, self.host))));
        UdDest { ah: self.nic.create_ah(&av).unwrap(), qpn: peer.qpn, qkey: QKEY }
    }

    /// Where datagrams came to, as the area in front of each says.
    fn arrived_at(&mut self) -> Vec<IpAddr> {
        let mut area = [0; GRH_BYTES];
        let of = |c: Completion| {
            assert_eq!(c.status, Status::Success);
            self.region.read(c.wr_id, &mut area).unwrap();
            Grh::parse(&area).expect("a header").destination
        };
        let mut out = Vec::new();
        self.nic.poll_cq(self.cq, &mut out, 16).unwrap();
        out.into_iter().filter(|c| c.opcode == WcOpcode::Recv).map(of).collect()
    }
}

fn offer_at(local: Option<IpAddr>) -> OfferAttr {
    OfferAttr {
        access: Access::all(),
        mtu_max: PathMtu::Mtu1024,
        entropy: 5,
        wire: WirePolicy::Auto,
        peer: None,
        encrypt: Encrypt::Off,
        local,
    }
}

/// Two ends that are connected between their addresses in a network.
fn connected(qp_type: QpType, net: u8) -> [End; 2] {
    let mut ends = [End::new(1, qp_type), End::new(2, qp_type)];
    let offers = [0, 1].map(|i: usize| {
        let End { nic, qpn, host, .. } = &mut ends[i];
        nic.offer(*qpn, &offer_at(Some(ip(net, *host)))).unwrap()
    });
    for i in 0..2 {
        let End { nic, qpn, .. } = &mut ends[i];
        let link = nic.accept(*qpn, &offers[i], &offers[1 - i], &ACCEPT).unwrap();
        assert_eq!(link.peer, port(net, 2 - i as u8));
    }
    ends
}

fn post_write(ends: &mut [End; 2], len: u32) {
    let [a, b] = ends;
    let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    a.region.write(0, &data).unwrap();
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Write(RemoteAddr { addr: 0, rkey: b.mr.rkey }),
        payload: Payload::Sges(&[Sge { addr: 0, len, lkey: a.mr.lkey }]),
        flags: SendFlags::SIGNALED,
        dest: None,
    };
    a.nic.post_send(a.qpn, &[wr]).unwrap();
}

#[test]
fn a_connection_keeps_to_the_addresses_of_its_path() {
    for (qp_type, net) in [(QpType::Rc, 0), (QpType::Rc, 1), (QpType::Uc, 0), (QpType::Uc, 1)] {
        let (mut ends, now, len) = (connected(qp_type, net), Time(1), 10_000);
        post_write(&mut ends, len);
        let [a, b] = &mut ends;
        let (there, back) = ((port(net, 1), port(net, 2)), (port(net, 2), port(net, 1)));
        let route = PseudoHeader::new(there.0, there.1).unwrap();
        for sent in &a.sends(now) {
            assert_eq!((sent.way.source, sent.way.destination), there);
            let (covered, icrc) = sent.packet.split_last_chunk::<ICRC_BYTES>().unwrap();
            assert_eq!(*icrc, route.icrc(covered, sent.id), "the ICRC is of that address");
            b.take(now, sent);
        }
        for sent in b.sends(now) {
            assert_eq!((sent.way.source, sent.way.destination), back);
            a.take(now, &sent);
        }
        assert_eq!(a.poll().len(), 1, "{qp_type:?} {net}");
        let mut written = vec![0; len as usize];
        b.region.read(0, &mut written).unwrap();
        assert!(written.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8));
        assert_eq!([&*a, &*b].map(|end| end.nic.counters_detail().drops()), [0, 0]);
    }
}

#[test]
fn what_comes_to_another_address_than_that_of_the_path_is_dropped_and_counted() {
    for net in [0, 1] {
        let (mut ends, now) = (connected(QpType::Rc, net), Time(1));
        post_write(&mut ends, 100);
        let [a, b] = &mut ends;
        let sent = a.sends(now).remove(0);
        let from = sent.way.source;
        b.nic.handle_arrived(now, &arrived(from, ip(1 - net, 2), false), &sent.packet, usize::MAX);
        b.nic.handle_arrived(now, &arrived(from, ip(1 - net, 2), true), &sent.packet, usize::MAX);
        assert_eq!(b.count("drop_wrong_destination"), 2, "another address of the NIC");
        b.nic.handle_arrived(now, &arrived(from, ip(7, 2), false), &sent.packet, 40);
        assert_eq!(b.count("drop_wrong_destination"), 2 + sent.packet.chunks(40).len() as u64, "none of its own");
        b.nic.handle_arrived(now, &arrived(port(1 - net, 1), ip(net, 2), false), &sent.packet, usize::MAX);
        assert_eq!(b.count("drop_wrong_source"), 1, "the peer's other address");
        assert!(b.sends(now).is_empty(), "nothing of that is answered");
        // Where nothing is said of an address, it is the first.
        b.nic.handle_datagram(now, from, &sent.packet, 0);
        if net == 1 {
            assert!(b.sends(now).is_empty());
            b.take(now, &sent);
        }
        let answer = b.sends(now).remove(0);
        a.take(now, &answer);
        assert_eq!(a.poll().len(), 1);
    }
}

#[test]
fn a_datagram_leaves_from_the_address_of_its_handle() {
    let (mut a, mut b, now) = (End::datagram(1), End::datagram(2), Time(1));
    let (first, second) = (a.dest(&b, (0, 0)), a.dest(&b, (1, 1)));
    let crossed = a.dest(&b, (1, 0));
    [first, second, crossed].into_iter().for_each(|dest| a.send_to(dest));
    let sent = a.sends(now);
    let ways: Vec<_> = sent.iter().map(|s| (s.way.source, s.way.destination, s.way.segment_bytes)).collect();
    let alone = |from: u8, to: u8| (port(from, 1), port(to, 2), None);
    assert_eq!(ways, [alone(0, 0), alone(1, 1), alone(1, 0)], "no batch has two sources");
    sent.iter().for_each(|sent| b.take(now, sent));
    assert_eq!(b.arrived_at(), [ip(0, 2), ip(1, 2), ip(0, 2)]);
    assert_eq!(b.nic.counters_detail().drops(), 0);
    // Of one way they share a batch as ever.
    [second, second].into_iter().for_each(|dest| a.send_to(dest));
    assert!(a.sends(now).iter().all(|s| s.way.source == port(1, 1) && s.way.segment_bytes.is_some()));
}

#[test]
fn datagrams_under_a_peers_keys_come_over_its_path_alone() {
    let (mut a, mut b, now) = (End::datagram(1), End::datagram(2), Time(1));
    let keys = |own: &End, peer: &End| {
        PacketKeys::new(&Secret([own.host; 32]), &Secret([peer.host; 32]), Purpose::Datagrams).unwrap()
    };
    let seal_of = |own: &End, peer: &End| DatagramSeal {
        keys: keys(own, peer),
        own_key: Psn::new(own.host.into()),
        peer_key: Psn::new(peer.host.into()),
        peer_qpn: peer.qpn,
    };
    let (seal_a, seal_b) = (seal_of(&a, &b), seal_of(&b, &a));
    let way = |own: u8, peer: u8| AddressVector::new(Gid::from(ip(1, peer))).from_source(Some(Gid::from(ip(1, own))));
    let ah = a.nic.create_sealed_ah(&way(1, 2), seal_a).unwrap();
    b.nic.create_sealed_ah(&way(2, 1), seal_b).unwrap();
    a.send_to(UdDest { ah, qpn: b.qpn, qkey: QKEY });
    let sent = a.sends(now).remove(0);
    assert_eq!((sent.way.source, sent.way.destination), (port(1, 1), port(1, 2)));
    b.take(now, &sent);
    assert_eq!(b.arrived_at(), [ip(1, 2)]);
    // Each datagram is taken once, so these are others.
    for (from, at, counter) in
        [(port(1, 1), ip(0, 2), "drop_wrong_destination"), (port(0, 1), ip(1, 2), "drop_wrong_source")]
    {
        a.send_to(UdDest { ah, qpn: b.qpn, qkey: QKEY });
        let sent = a.sends(now).remove(0);
        b.nic.handle_arrived(now, &arrived(from, at, false), &sent.packet, usize::MAX);
        assert_eq!((b.arrived_at(), b.count(counter)), (vec![], 1), "{counter}");
    }
    // In the clear in the name of that peer.
    let clear = a.dest(&b, (1, 1));
    a.send_to(clear);
    let sent = a.sends(now).remove(0);
    b.take(now, &sent);
    assert_eq!((b.arrived_at(), b.count("drop_in_the_clear")), (vec![], 1));
}

#[test]
fn an_address_that_is_none_of_the_nics_is_refused() {
    let mut end = End::new(1, QpType::Rc);
    let foreign = Gid::from(ip(7, 1));
    assert!(end.nic.is_at(Gid::from(ip(0, 1))) && end.nic.is_at(Gid::from(ip(1, 1))) && !end.nic.is_at(foreign));
    let refused = end.nic.offer(end.qpn, &offer_at(Some(ip(7, 1)))).unwrap_err();
    assert!(refused.to_string().contains("none of its own"), "{refused}");
    let attr = DatagramAttr { encrypt: Encrypt::Off, local: Some(ip(7, 1)) };
    assert!(matches!(end.nic.offer_datagrams(end.qpn, QKEY, &attr), Err(VerbsError::Unsupported { .. })));
    let av = AddressVector::new(Gid::from(ip(0, 2))).from_source(Some(foreign));
    assert!(matches!(end.nic.create_ah(&av), Err(VerbsError::Unsupported { .. })));
    end.nic.offer(end.qpn, &offer_at(None)).unwrap();
    let refused = end.nic.modify_qp(end.qpn, &QpModify::Rtr(RtrAttr::new(Qpn(5), av))).unwrap_err();
    assert!(matches!(refused, VerbsError::Unsupported { .. }), "{refused}");
    let six = AddressVector::new(Gid::from("fd00::2".parse::<IpAddr>().unwrap())).from_source(Some(ip(1, 1).into()));
    assert!(end.nic.create_ah(&six).unwrap_err().to_string().contains("other IP version"));
    end.nic.modify_qp(end.qpn, &QpModify::Rtr(RtrAttr::new(Qpn(5), AddressVector::new(Gid::from(ip(0, 2)))))).unwrap();
}
