//! Every verb over real sockets, in both progress modes, over both IP versions and both wires.

use crate::rig::{End, config, pair, pattern, run};
use softnic::{Gso, Progress, SoftNicConfig};
use verbs::*;

/// Configurations that must all behave the same.
fn variants() -> Vec<(&'static str, SoftNicConfig)> {
    let with = |address: &str, progress, gso, mtu| SoftNicConfig { progress, gso, mtu, ..config(address) };
    let tcp = |address: &str, progress| SoftNicConfig {
        wire: WirePolicy::Only(Wire::Iwarp),
        ..with(address, progress, Gso::Auto, None)
    };
    vec![
        ("inline", with("127.0.0.1", Progress::Inline, Gso::Auto, None)),
        ("background thread", with("127.0.0.1", Progress::Helper, Gso::Auto, None)),
        ("no batches, smallest MTU", with("127.0.0.1", Progress::Inline, Gso::Off, Some(PathMtu::Mtu256))),
        ("IPv6", with("::1", Progress::Inline, Gso::Auto, Some(PathMtu::Mtu1024))),
        ("IPv6, no batches", with("::1", Progress::Helper, Gso::Off, None)),
        ("TCP", tcp("127.0.0.1", Progress::Inline)),
        ("TCP, background thread", tcp("127.0.0.1", Progress::Helper)),
        ("TCP, IPv6", tcp("::1", Progress::Inline)),
    ]
}

fn each_variant(test: impl Fn(&str, &mut End, &mut End)) {
    for (name, config) in variants() {
        let (mut a, mut b) = pair(config.clone(), config);
        test(name, &mut a, &mut b);
        for end in [&a, &b] {
            for (counter, value) in end.nic.counters() {
                let bad = counter.starts_with("drop_") || counter.starts_with("rx_socket_");
                assert!(!bad || value == 0, "{name}: {counter} is {value}");
            }
        }
    }
}

/// Lengths around every bound: nothing, one byte, one packet, one more, many packets.
const LENGTHS: [u32; 8] = [0, 1, 63, 256, 1025, 4096, 4097, 300_001];

#[test]
fn send_and_send_with_immediate() {
    each_variant(|name, a, b| {
        for (i, len) in LENGTHS.into_iter().enumerate() {
            let data = pattern(i as u64, len as usize);
            a.fill(0, &data);
            b.post_recv(10, 0, 400_000);
            b.post_recv(11, 1 << 20, 400_000);
            a.post(1, SendOp::Send, 0, len);
            a.post(2, SendOp::SendImm(0xdead_0000 + len), 0, len);
            let (sent, got) = run(a, b, 2, 2);
            assert_eq!(sent.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2], "{name}");
            assert_eq!(got.iter().map(|c| (c.wr_id, c.byte_len)).collect::<Vec<_>>(), [(10, len), (11, len)], "{name}");
            assert_eq!((got[0].imm, got[1].imm), (None, Some(0xdead_0000 + len)), "{name}");
            assert!(b.bytes(0, len as usize) == data && b.bytes(1 << 20, len as usize) == data, "{name}: {len} bytes");
        }
    });
}

#[test]
fn write_and_write_with_immediate() {
    each_variant(|name, a, b| {
        for (i, len) in LENGTHS.into_iter().enumerate() {
            let data = pattern(100 + i as u64, len as usize);
            a.fill(0, &data);
            b.post_recv(20, 0, 0);
            let (first, second) = (b.remote(5), b.remote((1 << 20) + 3));
            a.post(1, SendOp::Write(first), 0, len);
            a.post(2, SendOp::WriteImm(second, len), 0, len);
            let (sent, got) = run(a, b, 2, 1);
            assert!(sent.iter().all(|c| c.opcode == WcOpcode::Write), "{name}: {sent:?}");
            assert_eq!(
                (got[0].opcode, got[0].byte_len, got[0].imm),
                (WcOpcode::RecvWriteImm, len, Some(len)),
                "{name}"
            );
            assert!(b.bytes(5, len as usize) == data, "{name}: {len} bytes by WRITE");
            assert!(b.bytes((1 << 20) + 3, len as usize) == data, "{name}: {len} bytes by WRITE with immediate");
        }
    });
}

#[test]
fn read() {
    each_variant(|name, a, b| {
        for (i, len) in LENGTHS.into_iter().enumerate() {
            let data = pattern(200 + i as u64, len as usize);
            b.fill(9, &data);
            let from = b.remote(9);
            a.post(1, SendOp::Read(from), 77, len);
            let (done, _) = run(a, b, 1, 0);
            assert_eq!((done[0].opcode, done[0].byte_len), (WcOpcode::Read, len), "{name}");
            assert!(a.bytes(77, len as usize) == data, "{name}: {len} bytes");
        }
    });
}

#[test]
fn atomics() {
    each_variant(|name, a, b| {
        b.fill(64, &100_u64.to_ne_bytes());
        let word = b.remote(64);
        a.post(1, SendOp::FetchAdd { remote: word, add: 11 }, 0, 8);
        a.post(2, SendOp::CmpSwap { remote: word, compare: 111, swap: 7 }, 8, 8);
        a.post(3, SendOp::CmpSwap { remote: word, compare: 111, swap: 9 }, 16, 8);
        let (done, _) = run(a, b, 3, 0);
        let opcodes: Vec<_> = done.iter().map(|c| c.opcode).collect();
        assert_eq!(opcodes, [WcOpcode::FetchAdd, WcOpcode::CmpSwap, WcOpcode::CmpSwap], "{name}");
        let old: Vec<u8> = [100_u64, 111, 7].iter().flat_map(|v| v.to_ne_bytes()).collect();
        assert_eq!(a.bytes(0, 24), old, "{name}");
        assert_eq!(b.bytes(64, 8), 7_u64.to_ne_bytes(), "{name}");
    });
}

#[test]
fn inline_data_is_copied_at_the_post() {
    each_variant(|name, a, b| {
        b.post_recv(1, 0, 64);
        let mut bytes = *b"gone after the post";
        let payload = Payload::Inline(&bytes);
        let wr = SendWr { wr_id: 9, op: SendOp::Send, payload, flags: SendFlags::SIGNALED, dest: None };
        a.nic.post_send(a.qpn, &[wr]).unwrap();
        bytes.fill(0);
        run(a, b, 1, 1);
        assert_eq!(b.bytes(0, 19), b"gone after the post", "{name}");
    });
}

#[test]
fn the_ports_of_all_stacks_talk_at_4791() {
    // The one test that takes the real port: at addresses of its own, so that no other stack of this host is hit.
    let at = |address: &str| SoftNicConfig::new(address.parse().unwrap());
    let (mut a, mut b) = pair(at("127.47.91.1"), at("127.47.91.2"));
    assert_eq!((a.nic.local_address().port(), a.nic.device().udp_port), (4791, 4791));
    assert_eq!(a.nic.device().mtu, PathMtu::Mtu4096);
    a.fill(0, b"hello");
    b.post_recv(1, 0, 5);
    a.post(1, SendOp::Send, 0, 5);
    run(&mut a, &mut b, 1, 1);
    assert_eq!(b.bytes(0, 5), b"hello");
}
