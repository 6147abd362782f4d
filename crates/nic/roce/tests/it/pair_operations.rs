//! Every operation between two NICs, all path MTUs, sizes around packet boundaries, IPv4 and IPv6, data checked.

use crate::pair::*;
use roce::Ipv4IdMode;
use verbs::*;

fn sizes(mtu: usize) -> Vec<usize> {
    let mut sizes = vec![0, 1, 2, 3, 4, 5, 63, 64];
    for n in [1, 2, 3, 7] {
        sizes.extend([n * mtu - 1, n * mtu, n * mtu + 1, n * mtu + 3]);
    }
    sizes.push(100_000);
    sizes
}

fn each_setup(mut body: impl FnMut(Setup)) {
    for mtu in PathMtu::ALL {
        for ipv6 in [false, true] {
            for id_mode in [Ipv4IdMode::SegmentIndex, Ipv4IdMode::Zero] {
                let max_gso_segments = if id_mode == Ipv4IdMode::Zero { 1 } else { 64 };
                body(Setup { mtu, ipv6, id_mode, max_gso_segments, ..Setup::default() });
            }
        }
    }
}

fn assert_clean(world: &World) {
    for nic in &world.nics {
        let counters = nic.counters_detail();
        assert_eq!(counters.drops(), 0, "{counters:?}");
        assert_eq!((counters.retransmits, counters.icrc_id_recovered), (0, 0));
    }
}

#[test]
fn sends_of_all_sizes() {
    each_setup(|setup| {
        let mtu = setup.mtu.bytes();
        let mut world = World::new(setup);
        let [a, b] = connect(&mut world);
        for (i, len) in sizes(mtu).into_iter().enumerate() {
            for imm in [None, Some(0xdead_0000 + i as u32)] {
                let data = a.fill(0, len, i as u64);
                b.recv(&mut world, 7, 4096, 200_000);
                a.send(&mut world, 9, imm.map_or(SendOp::Send, SendOp::SendImm), 0, len as u32);
                let got = b.wait_ok(&mut world);
                assert_eq!((got.wr_id, got.opcode, got.byte_len, got.imm), (7, WcOpcode::Recv, len as u32, imm));
                assert_eq!(b.read(4096, len), data);
                let sent = a.wait_ok(&mut world);
                assert_eq!((sent.wr_id, sent.opcode), (9, WcOpcode::Send));
            }
        }
        assert_clean(&world);
    });
}

#[test]
fn writes_of_all_sizes() {
    each_setup(|setup| {
        let mtu = setup.mtu.bytes();
        let mut world = World::new(setup);
        let [a, b] = connect(&mut world);
        for (i, len) in sizes(mtu).into_iter().enumerate() {
            for imm in [None, Some(i as u32)] {
                let data = a.fill(64, len, i as u64 ^ 0x55);
                let at = 1000 + i as u64;
                let op = match imm {
                    Some(imm) => {
                        b.recv(&mut world, 70 + i as u64, 0, 0);
                        SendOp::WriteImm(b.remote(at), imm)
                    }
                    None => SendOp::Write(b.remote(at)),
                };
                a.send(&mut world, 9, op, 64, len as u32);
                assert_eq!(a.wait_ok(&mut world).opcode, WcOpcode::Write);
                assert_eq!(b.read(at, len), data);
                let got = b.poll(&mut world);
                match imm {
                    None => assert!(got.is_empty()),
                    Some(_) => {
                        assert_eq!(got.len(), 1);
                        assert_eq!(got[0].status, Status::Success);
                        let fields = (got[0].wr_id, got[0].opcode, got[0].byte_len, got[0].imm);
                        assert_eq!(fields, (70 + i as u64, WcOpcode::RecvWriteImm, len as u32, imm));
                    }
                }
            }
        }
        assert_clean(&world);
    });
}

#[test]
fn reads_of_all_sizes() {
    each_setup(|setup| {
        let mtu = setup.mtu.bytes();
        let mut world = World::new(setup);
        let [a, b] = connect(&mut world);
        for (i, len) in sizes(mtu).into_iter().chain([900_000]).enumerate() {
            let data = b.fill(333, len, i as u64 ^ 0x99);
            a.send(&mut world, 5, SendOp::Read(b.remote(333)), 77, len as u32);
            let done = a.wait_ok(&mut world);
            assert_eq!((done.opcode, done.byte_len), (WcOpcode::Read, len as u32));
            assert_eq!(a.read(77, len), data);
        }
        assert_clean(&world);
    });
}

#[test]
fn atomics() {
    each_setup(|setup| {
        let mut world = World::new(setup);
        let [a, b] = connect(&mut world);
        let word = |end: &End, at| u64::from_ne_bytes(end.read(at, 8).try_into().expect("8 bytes"));
        let mut expected = 0u64;
        for add in [1, 1 << 40, u64::MAX, 7] {
            a.send(&mut world, 1, SendOp::FetchAdd { remote: b.remote(64), add }, 16, 8);
            let done = a.wait_ok(&mut world);
            assert_eq!((done.opcode, done.byte_len), (WcOpcode::FetchAdd, 8));
            assert_eq!(word(&a, 16), expected);
            expected = expected.wrapping_add(add);
            assert_eq!(word(&b, 64), expected);
        }
        for (compare, hit) in [(expected ^ 1, false), (expected, true)] {
            a.send(&mut world, 1, SendOp::CmpSwap { remote: b.remote(64), compare, swap: 42 }, 24, 8);
            assert_eq!(a.wait_ok(&mut world).opcode, WcOpcode::CmpSwap);
            assert_eq!(word(&a, 24), expected);
            assert_eq!(word(&b, 64), if hit { 42 } else { expected });
        }
        assert_clean(&world);
    });
}
