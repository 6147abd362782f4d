//! A hostile network: any bytes, and any packets with a right ICRC, from the peer and from strangers. Nothing panics,
//! every packet is counted, memory outside of the granted region stays as it was, and the NIC goes on.

use std::net::SocketAddr;

use crate::pair::*;
use proptest::prelude::*;
use roce::wire::{AtomicEth, Bth, Header, Opcode, PseudoHeader, Reth};
use verbs::*;

/// A packet as an attacker makes it.
#[derive(Debug, Clone)]
struct Forged {
    opcode: u8,
    flags: u8,
    psn_offset: i32,
    ack_request: bool,
    extension: Vec<u8>,
    key_is_real: bool,
    addr: u64,
    len: u32,
    payload_len: usize,
    id: u16,
}

fn forged() -> impl Strategy<Value = Forged> {
    let near = prop_oneof![4 => Just(0i32), 3 => -4..8i32, 1 => -0x80_0000..0x80_0000i32];
    let payload = prop_oneof![3 => Just(256usize), 2 => 0..300usize, 1 => 0..5000usize];
    let addr = prop_oneof![3 => 0..4096u64, 1 => any::<u64>()];
    let len = prop_oneof![3 => 0..2000u32, 1 => any::<u32>()];
    (
        (prop_oneof![5 => 0..0x18u8, 1 => any::<u8>()], any::<u8>(), near, any::<bool>()),
        (proptest::collection::vec(any::<u8>(), 0..32), prop::bool::weighted(0.8), addr, len, payload, any::<u16>()),
    )
        .prop_map(
            |((opcode, flags, psn_offset, ack_request), (extension, key_is_real, addr, len, payload_len, id))| Forged {
                opcode,
                flags,
                psn_offset,
                ack_request,
                extension,
                key_is_real,
                addr,
                len,
                payload_len,
                id,
            },
        )
}

impl Forged {
    /// The bytes, with the headers that the opcode promises and a right ICRC.
    fn bytes(&self, qpn: Qpn, psn: Psn, rkey: Rkey, route: &PseudoHeader) -> Vec<u8> {
        let rkey = if self.key_is_real { rkey } else { Rkey(rkey.0 ^ 1) };
        let bth = Bth {
            opcode: self.opcode,
            solicited: self.flags & 1 != 0,
            pad: if self.flags & 6 == 0 { self.flags >> 6 } else { 0 },
            version: if self.flags & 0x3e == 0x3e { 1 } else { 0 },
            pkey: if self.flags & 0x3e == 0x3c { 5 } else { 0xffff },
            dest_qpn: qpn,
            ack_request: self.ack_request,
            psn: psn.plus(self.psn_offset as u32),
        };
        let (addr, len) = (self.addr, self.len);
        let reth = Reth { addr, rkey, dma_len: len };
        let header = match Opcode::from_byte(self.opcode) {
            Ok(Opcode::WriteFirst | Opcode::WriteOnly | Opcode::ReadRequest) => Header::new(&bth).with_reth(reth),
            Ok(Opcode::WriteOnlyImm) => Header::new(&bth).with_reth(reth).with_imm(len),
            Ok(Opcode::CompareSwap | Opcode::FetchAdd) => {
                Header::new(&bth).with_atomic(AtomicEth { addr, rkey, swap_or_add: len.into(), compare: 0 })
            }
            _ => Header::new(&bth),
        };
        let mut bytes = header.as_bytes().to_vec();
        let promised = Opcode::from_byte(self.opcode).map_or(0, Opcode::extension_bytes);
        let missing = (Bth::BYTES + promised).saturating_sub(bytes.len());
        bytes.extend(self.extension.iter().chain(std::iter::repeat(&0x1f)).take(missing));
        bytes.extend(pattern(self.payload_len & !3, 1));
        let icrc = route.icrc(&bytes, self.id);
        bytes.extend(icrc);
        bytes
    }
}

/// A world in which side 1's region has a granted middle between two pieces that nobody may touch.
fn victim() -> (World, End, End) {
    let mut world = World::new(Setup { mtu: PathMtu::Mtu256, ..Setup::default() });
    let wish = Wish { memory_bytes: 4096, retry_cnt: 2, timeout: 8, ..Wish::default() };
    let [mut a, mut b] = connect_with(&mut world, [&wish, &wish]);
    for end in [&mut a, &mut b] {
        let nic = &mut world.nics[end.side];
        nic.dereg_mr(end.mr.id).expect("registered");
        end.region = Region::anonymous(3 * 4096).expect("memory");
        end.fill(0, 3 * 4096, 99);
        end.mr = nic.reg_mr(&end.region, 4096, 4096, Access::all()).expect("an MR");
        for i in 0..3 {
            end.recv(&mut world, i, 0, 1000);
        }
    }
    (world, a, b)
}

fn assert_fence_intact(end: &End) {
    let whole = pattern(3 * 4096, 99);
    assert!(end.read(0, 4096) == whole[..4096], "before the region");
    assert!(end.read(8192, 4096) == whole[8192..], "after the region");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(datagrams in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 1..40)) {
        let (mut world, _, b) = victim();
        for (i, bytes) in datagrams.iter().enumerate() {
            let mut bytes = bytes.clone();
            if i % 2 == 0 && bytes.len() > 8 {
                // Half of them reach the QP.
                bytes[1] &= 0xf0;
                bytes[2..4].fill(0xff);
                bytes[5..8].copy_from_slice(&b.qpn.0.to_be_bytes()[1..]);
            }
            world.nics[1].handle_datagram(world.now, world.addresses[0], &bytes, i as u16);
        }
        let counters = world.nics[1].counters_detail();
        prop_assert_eq!(counters.rx_packets, datagrams.len() as u64);
        prop_assert_eq!(counters.drops(), datagrams.len() as u64);
        prop_assert_eq!(b.state(&world), QpState::Rts);
    }

    #[test]
    fn any_packets(packets in proptest::collection::vec(forged(), 1..60), busy in any::<bool>()) {
        let (mut world, a, b) = victim();
        if busy {
            b.send(&mut world, 1, SendOp::Read(a.remote(0)), 0, 3000);
            b.send(&mut world, 2, SendOp::Write(a.remote(0)), 0, 3000);
            b.send(&mut world, 3, SendOp::FetchAdd { remote: a.remote(0), add: 1 }, 0, 8);
        }
        let route = PseudoHeader::new(world.addresses[0], world.addresses[1]).expect("one family");
        let mut buf = Vec::new();
        for packet in &packets {
            let status = world.nics[1].query_qp(b.qpn).expect("there");
            // Requests around what the responder expects, responses around what the requester has sent.
            let is_response = (0x0d..=0x12).contains(&packet.opcode);
            let psn = if is_response { status.sq_psn } else { status.rq_psn };
            let bytes = packet.bytes(b.qpn, psn, b.mr.rkey, &route);
            let before = world.nics[1].counters_detail().rx_packets;
            world.nics[1].handle_datagram(world.now, world.addresses[0], &bytes, packet.id);
            prop_assert_eq!(world.nics[1].counters_detail().rx_packets, before + 1);
            // The answers are small; nobody makes the NIC send without end.
            let mut sends = 0;
            while world.nics[1].poll_transmit(world.now, &mut buf).is_some() {
                sends += 1;
                prop_assert!(sends < 1000);
            }
            world.now = world.now + std::time::Duration::from_micros(50);
            world.nics[1].handle_timeout(world.now);
        }
        assert_fence_intact(&b);
        // Whatever became of this QP, the NIC serves another one.
        let [c, d] = connect(&mut world);
        c.send(&mut world, 1, SendOp::Write(d.remote(0)), 0, 5000);
        world.run_until("a write of another QP", |w| !c.poll(w).is_empty());
        prop_assert_eq!(c.state(&world), QpState::Rts);
    }

    #[test]
    fn flipped_bits(bits in proptest::collection::vec(any::<u16>(), 1..30)) {
        let (mut world, a, b) = victim();
        let mut bits = bits.into_iter();
        for i in 0..10 {
            a.send(&mut world, i, SendOp::Write(b.remote(0)), 0, 1000);
        }
        let mut buf = Vec::new();
        while let Some(transmit) = world.nics[0].poll_transmit(world.now, &mut buf) {
            let stride = transmit.segment_bytes.map_or(buf.len(), usize::from);
            for (index, segment) in buf.chunks_mut(stride).enumerate() {
                let flipped = bits.next().map(|bit| usize::from(bit) % (segment.len() * 8));
                if let Some(bit) = flipped {
                    segment[bit / 8] ^= 1 << (bit % 8);
                }
                let before = world.nics[1].counters_detail().drops();
                world.nics[1].handle_datagram(world.now, world.addresses[0], segment, index as u16);
                // The fifth byte of the BTH may change on the way and is not covered.
                if flipped.is_some_and(|bit| bit / 8 != 4) {
                    prop_assert_eq!(world.nics[1].counters_detail().drops(), before + 1);
                }
            }
        }
        let done = a.wait(&mut world, 10);
        prop_assert!(done.iter().all(|c| c.status == Status::Success));
    }
}

#[test]
fn strangers_are_dropped_and_counted() {
    let (mut world, _, b) = victim();
    let good = Forged {
        opcode: Opcode::WriteOnly.byte(),
        flags: 0,
        psn_offset: 0,
        ack_request: true,
        extension: Vec::new(),
        key_is_real: true,
        addr: 0,
        len: 8,
        payload_len: 8,
        id: 0,
    };
    let psn = Psn::new(Wish::default().sq_psn);
    let stranger: SocketAddr = "10.0.0.77:4791".parse().expect("an address");
    let route = PseudoHeader::new(stranger, world.addresses[1]).expect("one family");
    let bytes = good.bytes(b.qpn, psn, b.mr.rkey, &route);
    world.nics[1].handle_datagram(world.now, stranger, &bytes, 0);
    assert_eq!(world.nics[1].counters_detail().drop_wrong_source, 1);

    // Another source port of the peer is as good as 4791: real NICs vary it.
    let other_port: SocketAddr = "10.0.0.1:50000".parse().expect("an address");
    let route = PseudoHeader::new(other_port, world.addresses[1]).expect("one family");
    let bytes = good.bytes(b.qpn, psn, b.mr.rkey, &route);
    world.nics[1].handle_datagram(world.now, other_port, &bytes, 0);
    assert_eq!(world.nics[1].counters_detail().served_write, 1);

    let unknown = good.bytes(Qpn(b.qpn.0 ^ 1), psn, b.mr.rkey, &route);
    world.nics[1].handle_datagram(world.now, other_port, &unknown, 0);
    assert_eq!(world.nics[1].counters_detail().drop_unknown_qp, 1);

    world.nics[1].modify_qp(b.qpn, &QpModify::Err).expect("to error");
    world.nics[1].handle_datagram(world.now, other_port, &bytes, 0);
    assert_eq!(world.nics[1].counters_detail().drop_wrong_state, 1);
    let names: Vec<&str> = world.nics[1].counters().iter().map(|(name, _)| *name).collect();
    for name in
        ["drop_bad_icrc", "drop_truncated", "drop_unknown_opcode", "drop_unknown_qp", "drop_wrong_source", "drop_pkey"]
    {
        assert!(names.contains(&name));
    }
}

#[test]
fn datagrams_of_any_length_are_counted() {
    let (mut world, _, b) = victim();
    let psn = Psn::new(Wish::default().sq_psn);
    let route = PseudoHeader::new(world.addresses[0], world.addresses[1]).expect("one family");
    let forged = Forged {
        opcode: Opcode::WriteMiddle.byte(),
        flags: 0,
        psn_offset: 0,
        ack_request: true,
        extension: Vec::new(),
        key_is_real: true,
        addr: 0,
        len: 8,
        payload_len: 0,
        id: 0,
    };
    let whole = forged.bytes(b.qpn, psn, b.mr.rkey, &route);
    for len in (0..40).chain([65_492, 65_504, 65_507, 65_508, 65_524, 65_528, 65_536, 70_000, 200_000]) {
        let mut bytes = whole.clone();
        bytes.resize(len, 0x55);
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        let before = world.nics[1].counters_detail().drops();
        world.nics[1].handle_datagram(world.now, world.addresses[0], &bytes, 0xffff);
        assert_eq!(world.nics[1].counters_detail().drops(), before + 1, "{len} bytes");
    }
    assert_eq!(b.state(&world), QpState::Rts);
}

#[test]
fn invalidation_is_refused() {
    let (mut world, _, b) = victim();
    let route = PseudoHeader::new(world.addresses[0], world.addresses[1]).expect("one family");
    let send = Forged {
        opcode: Opcode::SendOnlyInvalidate.byte(),
        flags: 0,
        psn_offset: 0,
        ack_request: true,
        extension: b.mr.rkey.0.to_be_bytes().to_vec(),
        key_is_real: true,
        addr: 0,
        len: 0,
        payload_len: 8,
        id: 0,
    };
    let bytes = send.bytes(b.qpn, Psn::new(Wish::default().sq_psn), b.mr.rkey, &route);
    world.nics[1].handle_datagram(world.now, world.addresses[0], &bytes, 0);
    assert_eq!(b.state(&world), QpState::Err);
    let mut buf = Vec::new();
    world.nics[1].poll_transmit(world.now, &mut buf).expect("a NAK");
    assert_eq!((buf[0], buf[12]), (0x11, 0x61));
    world.nics[1].dereg_mr(b.mr.id).expect("the key is still there");
}
