//! Unreliable connections under any packets of their peer, and any messages.

use crate::pair::*;
use proptest::prelude::*;
use roce::wire::{Bth, DEFAULT_PKEY, Header, Opcode, PseudoHeader, Reth, pad_field};
use verbs::*;

fn connected(world: &mut World) -> [End; 2] {
    let wish = Wish { qp_type: QpType::Uc, ..Wish::default() };
    connect_with(world, [&wish, &wish])
}

/// A packet of the peer with any place, opcode and length, right ICRC.
fn forged(world: &World, b: &End, opcode: Opcode, psn: u32, reth: Reth, payload: &[u8]) -> Vec<u8> {
    let (solicited, version, pkey, ack_request) = (psn & 1 != 0, 0, DEFAULT_PKEY, psn & 2 != 0);
    let (pad, psn) = (pad_field(payload.len()), Psn::new(psn));
    let mut header =
        Header::new(&Bth { opcode: opcode.byte(), solicited, pad, version, pkey, dest_qpn: b.qpn, ack_request, psn });
    if matches!(opcode.byte(), 0x26 | 0x2a | 0x2b) {
        header = header.with_reth(reth);
    }
    if matches!(opcode.byte(), 0x23 | 0x25 | 0x29 | 0x2b) {
        header = header.with_imm(7);
    }
    let mut bytes = [header.as_bytes(), payload].concat();
    bytes.resize(bytes.len() + usize::from(pad), 0);
    let route = PseudoHeader::new(world.addresses[0], world.addresses[1]).expect("one family");
    bytes.extend(route.icrc(&bytes, 0));
    bytes
}

const FIRST: u8 = 0x20;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// A peer may send anything: it takes effect within its rights, or it is counted once; nothing is answered.
    #[test]
    fn any_packets(
        packets in proptest::collection::vec(
            (0u8..12, 0u32..6, prop_oneof![3 => Just(1024usize), 2 => 0usize..1400], 0u64..9_000, 0u32..4_000, prop::bool::weighted(0.8)),
            1..80,
        ),
        receives in proptest::collection::vec(0u32..3_000, 0..20),
    ) {
        let mut world = World::new(Setup::default());
        let [_, b] = connected(&mut world);
        let granted = world.nics[1].reg_mr(&b.region, 65_536, 8_192, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let granted = granted.expect("an MR");
        let fence = pattern(1 << 20, 7);
        b.region.write(0, &fence).expect("inside");
        for (i, len) in receives.iter().enumerate() {
            b.recv(&mut world, i as u64, 131_072 + i as u64 * 4_096, *len);
        }
        let mut buf = Vec::new();
        let (mut psn, mut counted) = (0, 0);
        for &(kind, step, len, addr, dma_len, key_is_right) in &packets {
            // Mostly the next PSN.
            psn = (psn + if step == 5 { 2 } else { 1 }) % Psn::MODULUS;
            let opcode = Opcode::from_byte(FIRST + kind).expect("of UC");
            let rkey = if key_is_right { granted.rkey } else { Rkey(granted.rkey.0 ^ 1) };
            let dma_len = if step & 1 == 0 { len as u32 } else { dma_len };
            let bytes = forged(&world, &b, opcode, psn, Reth { addr, rkey, dma_len }, &pattern(len, 3));
            let before = world.nics[1].counters_detail();
            world.nics[1].handle_datagram(world.now, world.addresses[0], &bytes, 0);
            let after = world.nics[1].counters_detail();
            prop_assert!(after.drops() - before.drops() <= 1);
            counted += after.drops() - before.drops();
            prop_assert!(world.nics[1].poll_transmit(world.now, &mut buf).is_none(), "nothing answers");
        }
        prop_assert!(counted <= packets.len() as u64);
        prop_assert_eq!(b.state(&world), QpState::Rts);
        // Receives complete in order, each with no more than it holds.
        let got = b.poll(&mut world);
        let counters = world.nics[1].counters_detail();
        prop_assert_eq!(counters.served_send + counters.served_write_imm, got.len() as u64);
        for (i, c) in got.iter().enumerate() {
            prop_assert_eq!((c.wr_id, c.status), (i as u64, Status::Success));
            prop_assert!(c.opcode == WcOpcode::RecvWriteImm || c.byte_len <= receives[i]);
        }
        // Outside of the granted memory and the receives nothing changed.
        prop_assert!(b.read(0, 65_536) == fence[..65_536]);
        prop_assert!(b.read(73_728, 57_344) == fence[73_728..131_072]);
        for (i, len) in receives.iter().enumerate() {
            let end = 131_072 + i * 4_096 + *len as usize;
            let next = 131_072 + (i + 1) * 4_096;
            prop_assert!(b.read(end as u64, next - end) == fence[end..next], "behind receive {}", i);
        }
    }

    /// What is sent arrives, in order, for any lengths, however they share sends.
    #[test]
    fn any_lengths(
        lens in proptest::collection::vec(0u32..6_000, 1..40), ipv6 in any::<bool>(), gso in 1usize..64,
    ) {
        let mut world = World::new(Setup { ipv6, max_gso_segments: gso, ..Setup::default() });
        let [a, b] = connected(&mut world);
        for (i, &len) in lens.iter().enumerate() {
            let (id, at) = (i as u64, i as u64 * 6_000);
            b.recv(&mut world, id, at, len);
            a.fill(at, len as usize, id);
            a.send(&mut world, id, SendOp::Send, at, len);
        }
        world.settle();
        let got = b.poll(&mut world);
        prop_assert_eq!(got.len(), lens.len());
        for (i, (c, &len)) in got.iter().zip(&lens).enumerate() {
            prop_assert_eq!((c.wr_id, c.byte_len), (i as u64, len));
            prop_assert!(b.read(i as u64 * 6_000, len as usize) == pattern(len as usize, i as u64));
        }
    }
}
