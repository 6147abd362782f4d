//! What leaves the socket and what is let in: batches, captures with checked ICRCs, garbage, wrong sources.

use std::net::UdpSocket;

use crate::rig::{ACCEPT, End, config, connect_by_endpoints, pair, pattern, run, until};
use softnic::{Gso, OpenError, SoftNic, SoftNicConfig};
use verbs::*;

#[test]
fn batches_are_used_and_their_content_is_right() {
    let (mut a, mut b) = pair(config("127.0.0.1"), config("127.0.0.1"));
    let data = pattern(1, 1 << 20);
    a.fill(0, &data);
    for round in 0..4 {
        let to = b.remote(round);
        a.post(round, SendOp::Write(to), 0, 1 << 20);
        run(&mut a, &mut b, 1, 0);
        assert!(b.bytes(round, 1 << 20) == data, "round {round}");
    }
    assert!(a.counter("gso_batches") > 0 && b.counter("gro_batches") > 0);
    assert!(a.counter("tx_packets") > 4 * a.counter("tx_syscalls"), "{:?}", a.nic.counters());
    assert!(b.counter("rx_packets") > 4 * b.counter("gro_batches"), "{:?}", b.nic.counters());
    assert_eq!((b.counter("drop_bad_icrc"), b.counter("rx_socket_overflow")), (0, 0));
}

#[test]
fn without_batches_each_send_is_one_packet() {
    let off = SoftNicConfig { gso: Gso::Off, ..config("127.0.0.1") };
    let (mut a, mut b) = pair(off.clone(), off);
    let data = pattern(2, 200_000);
    a.fill(0, &data);
    let to = b.remote(0);
    a.post(1, SendOp::Write(to), 0, 200_000);
    run(&mut a, &mut b, 1, 0);
    assert!(b.bytes(0, 200_000) == data);
    assert_eq!((a.counter("gso_batches"), b.counter("gro_batches")), (0, 0));
}

/// A packet of a capture: IP source address, identification, and what the ICRC covers before the payload.
struct Captured {
    ip: Vec<u8>,
    udp: Vec<u8>,
    payload: Vec<u8>,
}

/// The packets of a capture, with every header field that the writer promises checked.
fn parse(file: &[u8]) -> Vec<Captured> {
    let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (0xa1b2_3c4d, 101));
    let mut packets = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let len = word(at + 8) as usize;
        assert_eq!(word(at + 12) as usize, len);
        let packet = &file[at + 16..at + 16 + len];
        let ip_len = if packet[0] >> 4 == 4 { 20 } else { 40 };
        let (ip, rest) = packet.split_at(ip_len);
        let (udp, payload) = rest.split_at(8);
        let total = if ip_len == 20 { [ip[2], ip[3]] } else { [ip[4], ip[5]] };
        let total = usize::from(u16::from_be_bytes(total));
        assert_eq!(total, if ip_len == 20 { packet.len() } else { rest.len() });
        assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), rest.len());
        packets.push(Captured { ip: ip.to_vec(), udp: udp.to_vec(), payload: payload.to_vec() });
        at += 16 + len;
    }
    packets
}

/// CRC-32 bit by bit, written from its definition and sharing nothing with the code under test.
fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

/// The ICRC of a captured packet from IBTA annex A17.3.3: eight bytes of ones, then the headers with TOS, TTL and
/// checksum (class, flow label and hop limit) and the UDP checksum and the BTH's fifth byte as ones.
fn icrc(p: &Captured) -> [u8; 4] {
    let (mut ip, mut udp) = (p.ip.clone(), p.udp.clone());
    if ip.len() == 20 {
        for i in [1, 8, 10, 11] {
            ip[i] = 0xff;
        }
    } else {
        ip[0] |= 0x0f;
        ip[1..4].fill(0xff);
        ip[7] = 0xff;
    }
    udp[6..8].fill(0xff);
    let mut covered = p.payload[..p.payload.len() - 4].to_vec();
    covered[4] = 0xff;
    let all = std::iter::repeat_n(0xff, 8).chain(ip).chain(udp).chain(covered);
    crc32(all).to_le_bytes()
}

#[test]
fn a_capture_is_for_its_owner_and_follows_no_link() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let (file, link, victim) = (dir.path().join("own.pcap"), dir.path().join("link.pcap"), dir.path().join("victim"));
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    let open = |path: &std::path::Path| {
        let config = SoftNicConfig { pcap: Some(path.to_path_buf()), ..config("127.0.0.1") };
        SoftNic::open(config).map(drop)
    };
    assert!(matches!(open(&link), Err(OpenError::Capture { .. })));
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    open(&file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn captures_hold_every_packet_with_its_icrc() {
    let folder = tempfile::tempdir().unwrap();
    for (i, address) in ["127.0.0.1", "::1"].into_iter().enumerate() {
        let path = |end: &str| folder.path().join(format!("{i}{end}.pcap"));
        let captured = |end: &str| SoftNicConfig { pcap: Some(path(end)), ..config(address) };
        let (mut a, mut b) = pair(captured("a"), captured("b"));
        let data = pattern(4, 100_001);
        a.fill(0, &data);
        let (to, word) = (b.remote(0), b.remote(1 << 20));
        b.post_recv(1, 0, 0);
        a.post(1, SendOp::WriteImm(to, 1), 0, 100_001);
        a.post(2, SendOp::Read(to), 0, 50_000);
        a.post(3, SendOp::FetchAdd { remote: word, add: 1 }, 0, 8);
        run(&mut a, &mut b, 3, 1);
        let names = ["pcap_packets", "tx_packets", "rx_packets", "pcap_left_out"];
        let [captured, tx, rx, left_out] = names.map(|n| a.counter(n));
        assert_eq!((captured, left_out), (tx + rx, 0));
        let gso = a.counter("gso_batches");
        drop((a, b));

        let packets = parse(&std::fs::read(path("a")).unwrap());
        assert!(packets.len() as u64 >= captured);
        for (n, p) in packets.iter().enumerate() {
            assert_eq!(icrc(p), p.payload[p.payload.len() - 4..], "packet {n} of {address}");
        }
        if address == "127.0.0.1" {
            let ids = packets.iter().map(|p| u16::from_be_bytes([p.ip[4], p.ip[5]]));
            assert!(gso > 0 && ids.max().unwrap() > 4, "no batch was numbered");
        }
        // Both ends saw the same packets, each in its own order.
        let sorted = |end: &str| {
            let mut all: Vec<_> = parse(&std::fs::read(path(end)).unwrap()).into_iter().map(|p| p.payload).collect();
            all.sort();
            all
        };
        assert!(sorted("a") == sorted("b"));
    }
}

#[test]
fn a_capture_stops_at_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.pcap");
    let limited = SoftNicConfig { pcap: Some(path.clone()), pcap_limit_bytes: 20_000, ..config("127.0.0.1") };
    let (mut a, mut b) = pair(limited, config("127.0.0.1"));
    let to = b.remote(0);
    a.post(1, SendOp::Write(to), 0, 500_000);
    run(&mut a, &mut b, 1, 0);
    assert!(a.counter("pcap_left_out") > 0);
    drop(a);
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size > 10_000 && size <= 20_000, "{size}");
}

#[test]
fn garbage_is_dropped_and_counted() {
    let (mut a, b) = pair(config("127.0.0.1"), config("127.0.0.1"));
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut sent = 0;
    for len in [0_usize, 1, 4, 11, 12, 16, 17, 28, 64, 1040, 4132, 60_000] {
        for seed in 0..8 {
            let mut bytes = pattern(seed * 100 + len as u64, len);
            if seed % 2 == 0 && len > 12 {
                // A plausible BTH of the real QP in front, so that the checks behind the first ones are reached.
                bytes[..4].copy_from_slice(&[(seed * 4) as u8, 0x40, 0xff, 0xff]);
                bytes[4..8].copy_from_slice(&b.qpn.0.to_be_bytes());
            }
            stranger.send_to(&bytes, b.nic.local_address()).unwrap();
            sent += 1;
        }
    }
    let dropped = |b: &crate::rig::End| -> u64 {
        b.nic.counters().iter().filter(|(name, _)| name.starts_with("drop_")).map(|(_, n)| n).sum()
    };
    let b = std::cell::RefCell::new(b);
    until("all garbage is counted", || assert!(b.borrow_mut().poll().is_empty()), || dropped(&b.borrow()) >= sent);
    let mut b = b.into_inner();
    b.post_recv(1, 0, 8);
    a.fill(0, b"survived");
    a.post(1, SendOp::Send, 0, 8);
    run(&mut a, &mut b, 1, 1);
    assert_eq!(b.bytes(0, 8), b"survived");
}

#[test]
fn the_right_packet_from_the_wrong_source_is_dropped() {
    // `a` believes to talk to `b`, but `b`'s QP has another peer.
    let (mut a, mut b) = (crate::rig::End::open(config("127.0.0.1")), crate::rig::End::open(config("127.0.0.1")));
    let (to_a, to_b) = (a.address_vector(), b.address_vector());
    let elsewhere = AddressVector { gid: "127.0.0.99".parse::<std::net::IpAddr>().unwrap().into(), ..to_a };
    let (x, y) = (Psn::new(5), Psn::new(6));
    a.connect(b.qpn, to_b, PathMtu::Mtu1024, x, y);
    b.connect(a.qpn, elsewhere, PathMtu::Mtu1024, y, x);
    b.post_recv(1, 0, 8);
    a.fill(0, b"intruder");
    a.post(1, SendOp::Send, 0, 8);
    let b = std::cell::RefCell::new(b);
    until(
        "the packet is dropped",
        || assert!(a.poll().is_empty() && b.borrow_mut().poll().is_empty()),
        || b.borrow().counter("drop_wrong_source") > 0,
    );
    assert_eq!(b.borrow().bytes(0, 8), [0; 8]);
}

#[test]
fn open_checks_address_and_mtu() {
    let error = |config: SoftNicConfig| SoftNic::open(config).expect_err("must not open");
    assert!(matches!(error(config("0.0.0.0")), OpenError::NotSpecific(_)));
    assert!(matches!(error(config("192.0.2.9")), OpenError::NoInterface(_)));
    let mtu = Some(PathMtu::Mtu1024);
    assert!(matches!(error(SoftNicConfig { mtu, ..config("192.0.2.9") }), OpenError::AddressNotAvailable(_)));
    let first = SoftNic::open(config("127.0.0.1")).unwrap();
    let again = SoftNicConfig { udp_port: first.local_address().port(), ..config("127.0.0.1") };
    assert!(matches!(error(again), OpenError::AddressInUse(_)));
    let pcap = Some("/nonexistent/folder/x.pcap".into());
    assert!(matches!(error(SoftNicConfig { pcap, ..config("127.0.0.1") }), OpenError::Capture { .. }));
    let device = first.device();
    assert!((100_000..u32::MAX).contains(&device.rx_budget_bytes), "{:?}", device.rx_budget_bytes);
}

/// What the configuration says of the network's treatment stands in each packet of a connection that endpoints set up.
#[test]
fn packets_carry_the_marks_of_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("marks.pcap");
    let marks = PathMarks::new(26, 3);
    let mut a = End::open(SoftNicConfig { marks, pcap: Some(file.clone()), ..config("127.0.0.1") });
    let mut b = End::open(config("127.0.0.1"));
    connect_by_endpoints(&mut a, &mut b, ACCEPT);
    b.post_recv(1, 0, 100);
    a.post(1, SendOp::Send, 0, 100);
    run(&mut a, &mut b, 1, 1);
    let port = a.nic.local_address().port();
    drop(a);
    let bytes = std::fs::read(&file).unwrap();
    let (mut at, mut seen) = (24, 0);
    while let Some(header) = bytes.get(at..at + 16) {
        let len = u32::from_ne_bytes(header[8..12].try_into().unwrap()) as usize;
        let packet = &bytes[at + 16..at + 16 + len];
        if packet[20..22] == port.to_be_bytes() {
            assert_eq!((packet[1] & !3, packet[8]), (104, 3), "TOS without ECN, and TTL");
            seen += 1;
        }
        at += 16 + len;
    }
    assert!(seen > 0, "no packet of its own in {} bytes", bytes.len());
}
