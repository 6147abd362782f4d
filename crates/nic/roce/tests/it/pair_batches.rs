//! What a send holds: equal segments, one shorter at the end, ACKs that ride along, and the identification that the
//! ICRC takes for granted.

use crate::pair::*;
use roce::Ipv4IdMode;
use verbs::*;

#[test]
fn a_long_write_fills_batches() {
    let limits = roce::NicLimits { window_packets: 1000, window_bytes: 4 << 20, ..Default::default() };
    let mut world = World::new(Setup { limits, ..Setup::default() });
    let [a, b] = connect(&mut world);
    // The window opens.
    for _ in 0..3 {
        a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 256 * 1024);
        a.wait_ok(&mut world);
    }
    world.sends.clear();
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 256 * 1024);
    a.wait_ok(&mut world);
    // First and one shorter Middle; 62 Middles of 1040 bytes are what 65,507 bytes hold.
    let sends: Vec<usize> = world.sends.iter().copied().filter(|n| *n > 1).collect();
    assert_eq!(sends, [2, 62, 62, 62, 62, 6]);
}

#[test]
fn between_our_own_a_write_and_its_notice_are_one_send() {
    let limits = roce::NicLimits { window_packets: 1000, window_bytes: 4 << 20, ..Default::default() };
    let mut world = World::new(Setup { limits, ..Setup::default() });
    let wish = Wish { budget: Some(4 << 20), ..Wish::default() };
    let [a, b] = connect_with(&mut world, [&wish, &wish]);
    b.recv(&mut world, 1, 0, 0);
    let data = a.fill(0, 60 * 1024, 1);
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 60 * 1024);
    a.send(&mut world, 2, SendOp::WriteImm(b.remote(60 * 1024), 7), 0, 0);
    a.wait(&mut world, 2);
    assert_eq!(world.sends[0], 61);
    assert!(b.read(0, 60 * 1024) == data);
    let got = b.poll(&mut world);
    assert_eq!(
        got.iter().map(|c| (c.imm, c.byte_len)).collect::<Vec<_>>(),
        [(Some(7), 0)],
        "a plain WRITE takes no receive"
    );
}

#[test]
fn writes_that_are_cut_survive_a_storm() {
    for seed in 0..20 {
        let mut world = World::new(Setup { seed, conditions: LinkConditions::STORM, ..Setup::default() });
        let wish = Wish { budget: Some(1 << 20), ..Wish::default() };
        let [a, b] = connect_with(&mut world, [&wish, &wish]);
        for i in 0..8u32 {
            let (at, len) = (u64::from(i) * 32_768, 20_000 + 1_111 * i);
            b.recv(&mut world, i.into(), 0, 0);
            a.fill(at, len as usize, u64::from(i) + 9);
            a.send(&mut world, 1, SendOp::Write(b.remote(at)), at, len);
            a.send(&mut world, 2, SendOp::WriteImm(b.remote(at + u64::from(len)), i), at + u64::from(len), 100);
        }
        a.wait(&mut world, 16);
        for i in 0..8u32 {
            let (at, len) = (u64::from(i) * 32_768, 20_000 + 1_111 * i);
            assert!(b.read(at, len as usize) == pattern(len as usize, u64::from(i) + 9), "seed {seed}, WRITE {i}");
        }
        let imms: Vec<_> = b.poll(&mut world).iter().map(|c| c.imm).collect();
        assert_eq!(imms, (0..8).map(Some).collect::<Vec<_>>());
    }
}

#[test]
fn small_messages_of_one_size_share_a_send() {
    let mut world = World::new(Setup::default());
    let [a, b] = connect(&mut world);
    for i in 0..40 {
        b.recv(&mut world, i, 0, 0);
        a.send(&mut world, i, SendOp::WriteImm(b.remote(i * 64), i as u32), 0, 64);
    }
    a.wait(&mut world, 40);
    assert_eq!(world.sends[0], 40);
    assert_eq!(b.poll(&mut world).len(), 40);
    assert_eq!(world.nics[1].counters_detail().acks_sent, 1, "one ACK for all of them");
}

#[test]
fn an_ack_rides_with_data() {
    let mut world = World::new(Setup::default());
    world.record = true;
    let [a, b] = connect(&mut world);
    b.recv(&mut world, 1, 0, 100);
    a.send(&mut world, 1, SendOp::Send, 0, 100);
    // The answer is posted before the ACK has left.
    world.run_until("the request", |w| {
        let got = b.poll(w);
        if got.len() == 1 {
            a.recv(w, 1, 0, 200);
            b.send(w, 2, SendOp::Send, 0, 200);
        }
        got.len() == 1
    });
    a.wait(&mut world, 2);
    assert_eq!(world.sends[..2], [1, 2]);
    let from_b: Vec<u8> = world.seen.iter().filter(|s| s.from == 1).map(Seen::opcode).collect();
    assert_eq!(from_b[..2], [0x04, 0x11]);
}

#[test]
fn without_batching_each_packet_is_a_send() {
    let mut world = World::new(Setup { id_mode: Ipv4IdMode::Zero, max_gso_segments: 1, ..Setup::default() });
    let [a, b] = connect(&mut world);
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 50_000);
    a.wait_ok(&mut world);
    assert!(world.sends.iter().all(|n| *n == 1));
    // Even if the caller would allow more: the id is always 0 in this mode.
    let mut world = World::new(Setup { id_mode: Ipv4IdMode::Zero, ..Setup::default() });
    let [a, b] = connect(&mut world);
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 50_000);
    a.wait_ok(&mut world);
    assert!(world.sends.iter().all(|n| *n == 1));
}

/// Sends 100,000 bytes whose segments arrive one by one, each with the identification that `id` makes of its own; says
/// how many segments there were, and for how many all check bits were spent.
fn one_by_one(mut id: impl FnMut(u16) -> u16) -> (u64, u64) {
    use roce::wire::{ICRC_BYTES, PseudoHeader};
    let mut world = World::new(Setup::default());
    let [a, b] = connect(&mut world);
    let data = a.fill(0, 100_000, 1);
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 100_000);
    let mut buf = Vec::new();
    let mut segments = 0;
    for _ in 0..100 {
        for side in 0..2 {
            while let Some(transmit) = world.nics[side].poll_transmit(world.now, &mut buf) {
                let stride = transmit.segment_bytes.map_or(buf.len(), usize::from);
                let (from, to) = (world.addresses[side], world.addresses[1 - side]);
                for (index, segment) in buf.chunks_mut(stride).enumerate() {
                    let (covered, icrc) = segment.split_last_chunk_mut::<ICRC_BYTES>().expect("an ICRC");
                    *icrc = PseudoHeader::new(from, to).expect("one family").icrc(covered, id(index as u16));
                    segments += 1;
                    world.nics[1 - side].handle_datagram(world.now, from, segment, 0);
                }
            }
        }
    }
    a.wait_ok(&mut world);
    assert!(b.read(0, 100_000) == data);
    (segments, world.nics.iter().map(|n| n.counters_detail().icrc_id_recovered).sum())
}

#[test]
fn identifications_of_a_path_that_segments_are_foreseen() {
    let (segments, recovered) = one_by_one(|index| index);
    assert!(segments > 90 && recovered == 0, "{recovered} of {segments}");
}

#[test]
fn unknown_identifications_are_solved_for() {
    let mut last = 1_u16;
    let (segments, recovered) = one_by_one(|_| {
        last = last.wrapping_mul(25_173).wrapping_add(13_849);
        last
    });
    assert!(recovered > segments * 8 / 10, "{recovered} of {segments}");
}

#[test]
fn merged_segments_are_split() {
    let mut world = World::new(Setup::default());
    let [a, b] = connect(&mut world);
    let data = a.fill(0, 60_000, 1);
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 60_000);
    let mut buf = Vec::new();
    while let Some(transmit) = world.nics[0].poll_transmit(world.now, &mut buf) {
        let stride = transmit.segment_bytes.map_or(buf.len(), usize::from);
        world.nics[1].handle_batch(world.now, world.addresses[0], &buf, stride);
    }
    a.wait_ok(&mut world);
    assert!(b.read(0, 60_000) == data);
    let counters = world.nics[1].counters_detail();
    assert_eq!((counters.drops(), counters.icrc_id_recovered), (0, 0));
    world.nics[1].handle_batch(world.now, world.addresses[0], &[0; 100], 0);
}

#[test]
fn the_window_holds_and_the_budget_caps_it() {
    for (budget, most) in [(None, 256), (Some(20 * 1152), 20), (Some(1), 1)] {
        let mut world = World::new(Setup::default());
        let wish = Wish { budget, ..Wish::default() };
        let [a, b] = connect_with(&mut world, [&wish, &Wish::default()]);
        a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 1_000_000);
        a.wait_ok(&mut world);
        a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 1_000_000);
        let mut buf = Vec::new();
        let (mut packets, mut last) = (0, Vec::new());
        while let Some(transmit) = world.nics[0].poll_transmit(world.now, &mut buf) {
            for segment in buf.chunks(transmit.segment_bytes.map_or(buf.len(), usize::from)) {
                packets += 1;
                last = segment.to_vec();
            }
        }
        assert_eq!(packets, most);
        assert!(!world.nics[0].has_transmit());
        assert_eq!(last[8] & 0x80, 0x80, "the last packet of the window asks for an ACK");
    }
}
