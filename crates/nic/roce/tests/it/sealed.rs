//! Two NICs whose packets are sealed, and somebody between them who has all packets in his hands.

use std::net::{IpAddr, SocketAddr};

use records::{PacketKeys, Purpose, REPLAY_WINDOW_PACKETS, Secret};
use roce::wire::{Bth, SEALED_EXTRA_BYTES, SEALED_OPCODE};
use roce::{DatagramSeal, Ipv4IdMode, Nic, NicConfig, NicLimits};
use verbs::*;

const BYTES: u64 = 1 << 20;
const QKEY: Qkey = Qkey(77);
const ACCEPT: AcceptAttr =
    AcceptAttr { peer: Capabilities::SOFTWARE_NIC, timeout: 14, retry_cnt: 7, rnr_retry: 7, min_rnr_timer: 1 };

struct End {
    /// Of its address; its secret too.
    last: u8,
    nic: Nic,
    at: SocketAddr,
    cq: CqId,
    qpn: Qpn,
    region: Region,
    mr: Mr,
}

impl End {
    fn new(last: u8, qp_type: QpType) -> Self {
        let at = SocketAddr::new(IpAddr::from([10, 0, 0, last]), ROCE_UDP_PORT);
        let config = NicConfig {
            local: at,
            standby: Vec::new(),
            mtu: PathMtu::Mtu1024,
            limits: NicLimits::default(),
            rx_budget_bytes: u32::MAX,
            capabilities: Capabilities::SOFTWARE_NIC,
            name: "sealed".into(),
            max_gso_segments: 16,
            id_mode: Ipv4IdMode::SegmentIndex,
        };
        let mut nic = Nic::new(config, [last; 32]);
        let cq = nic.create_cq(4096).unwrap();
        let qpn = nic.create_qp(&QpInit::new(qp_type, cq, 512)).unwrap();
        let region = Region::anonymous(BYTES as usize).unwrap();
        let mr = nic.reg_mr(&region, 0, BYTES, Access::all()).unwrap();
        Self { last, nic, at, cq, qpn, region, mr }
    }

    fn keys(&self, peer: &Self, purpose: Purpose) -> PacketKeys {
        PacketKeys::new(&Secret([self.last; 32]), &Secret([peer.last; 32]), purpose).unwrap()
    }

    fn count(&self, name: &str) -> u64 {
        self.nic.counters().iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.nic.poll_cq(self.cq, &mut out, 4096).unwrap();
        out
    }

    fn sge(&self, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.mr.lkey }
    }
}

/// Offers both ends and connects those that are to be, with keys or without.
fn connected(qp_type: QpType, is_sealed: [bool; 2]) -> [End; 2] {
    let mut ends = [End::new(1, qp_type), End::new(2, qp_type)];
    let attr = OfferAttr {
        access: Access::all(),
        mtu_max: PathMtu::Mtu1024,
        entropy: 5,
        wire: WirePolicy::Auto,
        peer: None,
        encrypt: Encrypt::Off,
        local: None,
    };
    let offers = [0, 1].map(|i: usize| {
        let End { nic, qpn, .. } = &mut ends[i];
        nic.offer(*qpn, &attr).unwrap()
    });
    for i in 0..2 {
        let (keys, to) = (ends[i].keys(&ends[1 - i], Purpose::Connection), ends[1 - i].qpn);
        let End { nic, qpn, .. } = &mut ends[i];
        if is_sealed[i] {
            nic.seal_qp(*qpn, keys, to).unwrap();
        }
        nic.accept(*qpn, &offers[i], &offers[1 - i], &ACCEPT).unwrap();
    }
    ends
}

/// What the network does with the packets that one end sends at a time: they are what arrives. The first argument is
/// the sender.
type Network<'a> = &'a mut dyn FnMut(usize, &mut Vec<Vec<u8>>);

/// Lets packets and timers go on until both have come to rest.
fn run(ends: &mut [End; 2], network: Network<'_>) {
    let (mut now, mut buf) = (Time(1), Vec::new());
    for _ in 0..1_000_000 {
        let mut any = false;
        for from in 0..2 {
            let mut packets = Vec::new();
            while let Some(sent) = ends[from].nic.poll_transmit(now, &mut buf) {
                packets.extend(buf.chunks(sent.segment_bytes.map_or(buf.len(), usize::from)).map(<[u8]>::to_vec));
            }
            any |= !packets.is_empty();
            network(from, &mut packets);
            let at = ends[from].at;
            for packet in packets {
                ends[1 - from].nic.handle_datagram(now, at, &packet, 0);
            }
        }
        if any {
            now = Time(now.as_nanos() + 1_000);
            continue;
        }
        let due = ends.iter().filter_map(|end| Nic::deadline(&end.nic)).min();
        let Some(due) = due else { return };
        now = Time(due.as_nanos().max(now.as_nanos() + 1));
        for end in ends.iter_mut().filter(|end| Nic::deadline(&end.nic).is_some_and(|at| at <= now)) {
            end.nic.handle_timeout(now);
        }
    }
    panic!("they do not come to rest");
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i % 249) as u8 ^ (i / 1000) as u8 ^ seed).collect()
}

/// A WRITE of `len` bytes, which has to arrive as it was.
fn write(ends: &mut [End; 2], len: u32, seed: u8, network: Network<'_>) {
    let data = pattern(len as usize, seed);
    ends[0].region.write(0, &data).unwrap();
    let remote = RemoteAddr { addr: 0, rkey: ends[1].mr.rkey };
    let sges = [ends[0].sge(0, len)];
    let wr = SendWr {
        wr_id: 9,
        op: SendOp::Write(remote),
        payload: Payload::Sges(&sges),
        flags: SendFlags::SIGNALED,
        dest: None,
    };
    let qpn = ends[0].qpn;
    ends[0].nic.post_send(qpn, &[wr]).unwrap();
    run(ends, network);
    let done = ends[0].poll();
    assert_eq!((done.len(), done[0].status), (1, Status::Success), "{done:?}");
    let mut landed = vec![0; len as usize];
    ends[1].region.read(0, &mut landed).unwrap();
    assert!(landed == data, "other bytes were placed");
}

#[test]
fn each_packet_both_ways_is_a_sealed_one_and_shows_nothing() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut ends = connected(qp_type, [true; 2]);
        let (mut seen, mut lengths) = ([0; 2], Vec::new());
        let words = pattern(16, 3);
        write(&mut ends, 100_001, 3, &mut |from, packets| {
            for packet in packets {
                seen[from] += 1;
                let bth = Bth::parse(packet.first_chunk().unwrap());
                assert_eq!((bth.opcode, bth.version, packet.len() % 4), (SEALED_OPCODE, 0, 0));
                assert!(!packet.windows(16).any(|w| w == words), "plain bytes are on the wire");
                lengths.push(packet.len());
            }
        });
        assert!(seen[0] >= 98 && (seen[1] > 0) == (qp_type == QpType::Rc), "{seen:?}");
        assert_eq!(ends[0].count("tx_sealed"), seen[0]);
        assert_eq!(ends[1].count("rx_sealed"), seen[0]);
        assert!(lengths.iter().all(|len| *len <= 1024 + 12 + 16 + 4 + SEALED_EXTRA_BYTES), "{lengths:?}");
        assert_eq!(ends[1].nic.counters_detail().drops(), 0);
    }
}

/// A deterministic stranger who changes, repeats, leaves out, reorders and adds.
#[test]
fn whatever_somebody_on_the_path_does_bytes_arrive_as_they_were_and_the_connection_goes_on() {
    let mut ends = connected(QpType::Rc, [true; 2]);
    let (mut turn, mut old) = (0_usize, Vec::<Vec<u8>>::new());
    let mut attack = |_: usize, packets: &mut Vec<Vec<u8>>| {
        let mut out = Vec::new();
        for mut packet in packets.drain(..) {
            turn += 1;
            let at = turn * 31 % packet.len();
            match turn % 23 {
                3 => packet[at] ^= 1 << (turn % 8),
                5 => packet.truncate(packet.len() / 8 * 4),
                7 => continue,
                9 => out.push(packet.clone()),
                11 => out.extend(old.pop()),
                13 => {
                    let mut made = packet[..20].to_vec();
                    made.extend(pattern(at / 4 * 4, 1));
                    out.push(made);
                }
                15 => {
                    let last = out.len().saturating_sub(2);
                    out.insert(last, packet.clone());
                    continue;
                }
                _ => {}
            }
            old.push(packet.clone());
            out.push(packet);
        }
        *packets = out;
    };
    for round in 0..6 {
        write(&mut ends, 300_000, round, &mut attack);
    }
    let sum = |name: &str| ends.iter().map(|end| end.count(name)).sum::<u64>();
    assert!(sum("drop_forged") > 50, "{}", sum("drop_forged"));
    assert!(sum("drop_replayed") > 50, "{}", sum("drop_replayed"));
    assert_eq!(ends[0].nic.query_qp(ends[0].qpn).unwrap().state, QpState::Rts);
}

#[test]
fn packets_in_the_clear_for_a_sealed_one_and_sealed_ones_for_another_are_dropped_and_counted() {
    for is_sealed in [[true, false], [false, true]] {
        let mut ends = connected(QpType::Rc, is_sealed);
        let (qpn, sges) = (ends[0].qpn, [ends[0].sge(0, 10)]);
        let op = SendOp::Write(RemoteAddr { addr: 0, rkey: ends[1].mr.rkey });
        ends[0].region.write(0, &[1; 10]).unwrap();
        let wr = SendWr { wr_id: 1, op, payload: Payload::Sges(&sges), flags: SendFlags::SIGNALED, dest: None };
        ends[0].nic.post_send(qpn, &[wr]).unwrap();
        run(&mut ends, &mut |_, _| {});
        assert_eq!(ends[0].poll()[0].status, Status::RetryExcErr);
        let (dropped, other) = if is_sealed[0] {
            (ends[1].count("drop_no_key"), ends[1].count("drop_in_the_clear"))
        } else {
            (ends[1].count("drop_in_the_clear"), ends[1].count("drop_no_key"))
        };
        assert!(dropped > 1 && other == 0, "{is_sealed:?}: {dropped} {other}");
        let mut landed = [0; 10];
        ends[1].region.read(0, &mut landed).unwrap();
        assert_eq!(landed, [0; 10]);
    }
}

#[test]
fn keys_are_for_one_connection_and_go_with_it() {
    let mut ends = connected(QpType::Rc, [true; 2]);
    let mut kept = Vec::new();
    write(&mut ends, 5_000, 1, &mut |from, packets| {
        if from == 0 {
            kept.extend_from_slice(packets);
        }
    });
    let (qpn, to, from) = (ends[1].qpn, ends[0].qpn, ends[0].at);
    let keys = |ends: &[End; 2]| ends[1].keys(&ends[0], Purpose::Connection);
    let again = keys(&ends);
    assert!(matches!(ends[1].nic.seal_qp(qpn, again, to), Err(VerbsError::WrongState { .. })), "it is connected");
    // What was recorded is of no use for the same connection, nor for a later one of the same QP.
    for packet in &kept {
        ends[1].nic.handle_datagram(Time(1 << 40), from, packet, 0);
    }
    assert_eq!(ends[1].count("drop_replayed"), kept.len() as u64);
    ends[1].nic.modify_qp(qpn, &QpModify::Reset).unwrap();
    let again = keys(&ends);
    assert!(matches!(ends[1].nic.seal_qp(qpn, again, to), Err(VerbsError::WrongState { .. })), "it was not offered");
    ends[1].nic.modify_qp(qpn, &QpModify::Init { access: Access::all(), qkey: Qkey(0) }).unwrap();
    let other = PacketKeys::new(&Secret([8; 32]), &Secret([9; 32]), Purpose::Connection).unwrap();
    ends[1].nic.seal_qp(qpn, other, to).unwrap();
    let rtr = RtrAttr::new(to, AddressVector::new(Gid::from(from.ip())));
    ends[1].nic.modify_qp(qpn, &QpModify::Rtr(rtr)).unwrap();
    for packet in &kept {
        ends[1].nic.handle_datagram(Time(1 << 40), from, packet, 0);
    }
    assert_eq!(ends[1].count("drop_forged"), kept.len() as u64);
}

/// A UD QP of each end, the keys of both, and address handles that seal.
fn datagram_ends(is_sealed: bool) -> ([End; 2], [AhId; 2]) {
    let mut ends = [End::new(1, QpType::Ud), End::new(2, QpType::Ud)];
    let ahs = [0, 1].map(|i: usize| {
        let keys = ends[i].keys(&ends[1 - i], Purpose::Datagrams);
        let (peer_qpn, av) = (ends[1 - i].qpn, AddressVector::new(Gid::from(ends[1 - i].at.ip())));
        let [own_key, peer_key] = [Psn::new(100 + i as u32), Psn::new(101 - i as u32)];
        let End { nic, qpn, mr, .. } = &mut ends[i];
        let rtr = RtrAttr::new(Qpn(0), av);
        for to in [
            QpModify::Init { access: Access::empty(), qkey: QKEY },
            QpModify::Rtr(rtr),
            QpModify::Rts(RtsAttr::default()),
        ] {
            nic.modify_qp(*qpn, &to).unwrap();
        }
        for at in 0..64 {
            let sges = [Sge { addr: at * 2048, len: 2048, lkey: mr.lkey }];
            nic.post_recv(*qpn, &[RecvWr { wr_id: at, sges: &sges }]).unwrap();
        }
        if is_sealed {
            nic.create_sealed_ah(&av, DatagramSeal { keys, own_key, peer_key, peer_qpn }).unwrap()
        } else {
            nic.create_ah(&av).unwrap()
        }
    });
    (ends, ahs)
}

fn send_datagrams(ends: &mut [End; 2], ah: AhId, count: u64) {
    let (qpn, to) = (ends[0].qpn, ends[1].qpn);
    let at = 512 << 10;
    ends[0].region.write(at, &pattern(1000, 4)).unwrap();
    for wr_id in 0..count {
        let sges = [ends[0].sge(at, 1000)];
        let dest = Some(UdDest { ah, qpn: to, qkey: QKEY });
        let (payload, flags) = (Payload::Sges(&sges), SendFlags::SIGNALED);
        ends[0].nic.post_send(qpn, &[SendWr { wr_id, op: SendOp::Send, payload, flags, dest }]).unwrap();
    }
}

#[test]
fn datagrams_arrive_untouched_or_not_at_all() {
    let (mut ends, ahs) = datagram_ends(true);
    send_datagrams(&mut ends, ahs[0], 40);
    let (mut turn, mut kept) = (0, Vec::new());
    run(&mut ends, &mut |_, packets| {
        let mut out = Vec::new();
        for mut packet in packets.drain(..) {
            assert!(!packet.windows(16).any(|w| w == &pattern(1000, 4)[..16]));
            turn += 1;
            kept.push(packet.clone());
            match turn % 4 {
                0 => packet[turn] ^= 4,
                1 => out.push(packet.clone()),
                2 => continue,
                _ => {}
            }
            out.push(packet);
        }
        *packets = out;
    });
    let got = ends[1].poll();
    assert_eq!(got.len(), 20, "10 changed ones, and 10 that were left out, of 40");
    for c in &got {
        assert_eq!((c.status, c.byte_len, c.src_qpn), (Status::Success, 1040, Some(ends[0].qpn)));
        let mut bytes = vec![0; 1000];
        ends[1].region.read(c.wr_id * 2048 + 40, &mut bytes).unwrap();
        assert!(bytes == pattern(1000, 4));
    }
    assert_eq!((ends[1].count("drop_forged") + ends[1].count("drop_no_key"), ends[1].count("drop_replayed")), (10, 10));
    // Those that were left out may come late, once; from another address they are not that peer's.
    let [from, elsewhere] = [ends[0].at, "10.0.0.9:4791".parse().unwrap()];
    ends[1].nic.handle_datagram(Time(9), elsewhere, &kept[1], 0);
    assert_eq!((ends[1].count("drop_wrong_source"), ends[1].poll().len()), (1, 0));
    ends[1].nic.handle_datagram(Time(9), from, &kept[5], 0);
    assert_eq!(ends[1].poll().len(), 1);
    assert!(kept.len() < REPLAY_WINDOW_PACKETS as usize);
}

#[test]
fn a_peer_that_seals_its_datagrams_sends_none_in_the_clear_and_keys_go_with_the_handle() {
    let (mut ends, ahs) = datagram_ends(true);
    let av = AddressVector::new(Gid::from(ends[1].at.ip()));
    let clear = ends[0].nic.create_ah(&av).unwrap();
    send_datagrams(&mut ends, clear, 2);
    run(&mut ends, &mut |_, _| {});
    assert_eq!((ends[1].count("drop_in_the_clear"), ends[1].poll().len()), (2, 0));
    // A handle that goes before the datagram has left takes it along: it never leaves in the clear.
    send_datagrams(&mut ends, ahs[0], 1);
    ends[0].nic.destroy_ah(ahs[0]).unwrap();
    run(&mut ends, &mut |_, packets| assert!(packets.is_empty()));
    assert_eq!(ends[0].count("tx_unsealed"), 1);
    let (own_key, peer_key, peer_qpn) = (Psn::new(100), Psn::new(101), ends[1].qpn);
    for is_first in [true, false] {
        let keys = PacketKeys::new(&Secret([8; 32]), &Secret([9; 32]), Purpose::Datagrams).unwrap();
        let made = ends[0].nic.create_sealed_ah(&av, DatagramSeal { keys, own_key, peer_key, peer_qpn });
        assert_eq!(made.is_ok(), is_first, "two of one name");
    }
    // Once the other end has given its handle up too, those in the clear are taken again.
    ends[1].nic.destroy_ah(ahs[1]).unwrap();
    send_datagrams(&mut ends, clear, 1);
    run(&mut ends, &mut |_, _| {});
    assert_eq!(ends[1].poll().len(), 1);
    let (mut mixed, ahs) = datagram_ends(false);
    send_datagrams(&mut mixed, ahs[0], 1);
    run(&mut mixed, &mut |_, _| {});
    assert_eq!(mixed[1].poll().len(), 1);
}
