//! Vectors from outside of this crate: a captured packet that Scapy's own tests use, and values computed with zlib's
//! CRC-32 over headers masked by hand (Scapy's `contrib.roce` gives the same for the IPv4 ones).

use super::*;

const WRITE: [u8; 36] = [
    0x0a, 0xc0, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56, 0x80, 0x00, 0x00, 0x01, 0, 0, 0, 0, 0, 0, 0x10, 0, 0xa1, 0xa2,
    0xa3, 0xa4, 0, 0, 0, 8, b'a', b'b', b'c', b'd', b'e', b'f', b'g', b'h',
];

fn header(source: &str, destination: &str) -> PseudoHeader {
    PseudoHeader::new(source.parse().expect("an address"), destination.parse().expect("an address"))
        .expect("one family")
}

#[test]
fn captured_packet() {
    let header = header("192.168.0.7:49152", "192.168.0.7:4791");
    let mut packet = vec![0x24, 0x60, 0xff, 0xff, 0, 0, 0, 211];
    packet.extend_from_slice(&13_571_856u32.to_be_bytes());
    packet.extend_from_slice(b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P\x00\x00");
    assert_eq!(header.icrc(&packet, 1144), [0x78, 0xf3, 0x53, 0xf3]);
}

#[test]
fn computed_vectors() {
    let to_two = header("10.0.0.1:49152", "10.0.0.2:4791");
    assert_eq!(to_two.icrc(&WRITE, 0), [0xd7, 0x20, 0x72, 0x7f]);
    assert_eq!(to_two.icrc(&WRITE, 0xbeef), [0x15, 0x2e, 0xa8, 0x84]);

    let ack = [0x11, 0x40, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0xfe, 0xdc, 0xba, 0x1f, 0, 0, 7];
    assert_eq!(header("127.0.0.1:4791", "127.0.0.2:4791").icrc(&ack, 0), [0x8d, 0xd9, 0xd1, 0x13]);

    assert_eq!(header("[fd00::1]:49152", "[fd00::2]:4791").icrc(&WRITE, 77), [0x5e, 0x1a, 0x44, 0xa1]);

    let mut middle = vec![0x07, 0x40, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0, 0, 2];
    middle.extend((0..1024u32).map(|i| (i * 7) as u8));
    assert_eq!(header("10.0.0.1:4791", "10.0.0.2:4791").icrc(&middle, 3), [0xc1, 0x94, 0x61, 0x78]);
}

#[test]
fn congestion_bits_are_masked_and_mapped_addresses_are_ipv4() {
    let header = header("10.0.0.1:49152", "[::ffff:10.0.0.2]:4791");
    assert!(header.is_ipv4());
    let mut marked = WRITE;
    marked[4] = 0xc0;
    assert_eq!(header.icrc(&marked, 0), [0xd7, 0x20, 0x72, 0x7f]);
    assert!(
        PseudoHeader::new("10.0.0.1:1".parse().expect("v4"), "[fd00::1]:1".parse().expect("v6")).is_none(),
        "families differ"
    );
}

#[test]
fn any_id_is_recovered_exactly() {
    let header = header("10.0.0.1:49152", "10.0.0.2:4791");
    let mut checker = IcrcChecker::default();
    for len in [12, 16, 20, 36, 40, 1036, 1052, 4108] {
        let packet: Vec<u8> = (0..len as u32).map(|i| (i * 31 + 5) as u8).collect();
        for id in (0..=u16::MAX).step_by(if len == 36 { 1 } else { 251 }) {
            let icrc = header.icrc(&packet, id);
            assert_eq!(checker.check(&header, &packet, icrc, [id; 3]), Some(Checked::Full(id)));
            let expected = if [5, 0, 9].contains(&id) { Checked::Full(id) } else { Checked::WithId(id) };
            assert_eq!(checker.check(&header, &packet, icrc, [5, 0, 9]), Some(expected), "len {len} id {id}");
        }
    }
}

#[test]
fn damage_is_refused() {
    let header = header("10.0.0.1:49152", "10.0.0.2:4791");
    let v6 = super::tests::header("[fd00::1]:49152", "[fd00::2]:4791");
    let mut checker = IcrcChecker::default();
    let (icrc, icrc6) = (header.icrc(&WRITE, 0), v6.icrc(&WRITE, 0));
    for bit in 0..WRITE.len() * 8 {
        let mut bad = WRITE;
        bad[bit / 8] ^= 1 << (bit % 8);
        let masked = bit / 8 == 4;
        assert_eq!(checker.check(&header, &bad, icrc, [0; 3]).is_some(), masked, "bit {bit}");
        assert_eq!(checker.check(&v6, &bad, icrc6, [0; 3]).is_some(), masked, "bit {bit} over IPv6");
    }
    // Over IPv6 nothing is solved for: an ICRC that an IPv4 id could explain is wrong.
    assert_eq!(checker.check(&v6, &WRITE, icrc, [0; 3]), None);
}

#[test]
fn only_ipv4_has_an_identification() {
    let four = header("10.0.0.1:4791", "10.0.0.2:4791");
    let mapped = header("[::ffff:10.0.0.1]:4791", "10.0.0.2:4791");
    let six = header("[fd00::1]:4791", "[fd00::2]:4791");
    assert!(four.is_ipv4() && mapped.is_ipv4() && !six.is_ipv4());
    assert_eq!(six.icrc(&WRITE, 1), six.icrc(&WRITE, 2), "ignored");
    assert_ne!(four.icrc(&WRITE, 1), four.icrc(&WRITE, 2));
    assert_eq!(four.icrc(&WRITE, 1), mapped.icrc(&WRITE, 1));
}

/// The headers as bytes, hashed whole, as the specification has it.
fn by_the_book(source: &str, destination: &str, packet: &[u8], id: u16) -> [u8; 4] {
    let (source, destination): (SocketAddr, SocketAddr) =
        (source.parse().expect("an address"), destination.parse().expect("an address"));
    let udp_len = u16::try_from(8 + packet.len() + 4).expect("short");
    let mut bytes = vec![0xff; 8];
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            bytes.extend([0x45, 0xff]);
            bytes.extend((udp_len + 20).to_be_bytes());
            bytes.extend(id.to_be_bytes());
            bytes.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
            bytes.extend(s.octets().into_iter().chain(d.octets()));
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            bytes.extend([0x6f, 0xff, 0xff, 0xff]);
            bytes.extend(udp_len.to_be_bytes());
            bytes.extend([17, 0xff]);
            bytes.extend(s.octets().into_iter().chain(d.octets()));
        }
        _ => panic!("two families"),
    }
    bytes.extend(source.port().to_be_bytes().into_iter().chain(destination.port().to_be_bytes()));
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0xff; 2]);
    let bth = bytes.len();
    bytes.extend(packet);
    bytes[bth + 4] = 0xff;
    crc32fast::hash(&bytes).to_le_bytes()
}

#[test]
fn headers_that_are_kept_give_what_whole_ones_give() {
    for (source, destination) in [("10.1.2.3:1", "192.168.255.254:4791"), ("[fd00::1]:65535", "[2001:db8::9]:4791")] {
        let header = header(source, destination);
        for len in (12..4_200).step_by(4) {
            let packet: Vec<u8> = (0..len as u32).map(|i| (i * 13 + 7) as u8).collect();
            let id = (len * 7919) as u16;
            assert_eq!(header.icrc(&packet, id), by_the_book(source, destination, &packet, id), "{len} bytes");
        }
    }
}

#[test]
fn numbers_of_segments_are_foreseen() {
    let (mut guess, mut surprises, mut solved) = (IdGuess::default(), 0, 0);
    let mut see = |place: u16, id: u16| {
        let likely = guess.likely(place);
        solved += u32::from(likely[0] != id);
        surprises += u32::from(!likely.contains(&id));
        guess.found(place, id);
    };
    (0..100).for_each(|_| see(0, 0));
    (0..100).for_each(|_| (0..62).for_each(|id| see(id, id)));
    // One by one, as a path delivers that segments.
    (0..100).for_each(|_| (0..62).for_each(|id| see(0, id)));
    // Merged again at other places.
    (0..100).for_each(|_| (0..62).for_each(|id| see(id % 7, id)));
    assert_eq!(surprises, 0);
    assert!(solved <= 420, "two of a send at most: {solved}");
}
