//! Sealed packets between two ends, and who stands between them.

use proptest::prelude::*;
use records::{
    PACKET_HEAD_BYTES, PACKET_NUMBER_BYTES, PACKET_SEAL_BYTES, PacketKeys, PacketOpener, PacketRefused, PacketSealer,
    Purpose, REPLAY_WINDOW_PACKETS, Secret, TAG_BYTES,
};

fn keys(own: u8, peer: u8, purpose: Purpose) -> PacketKeys {
    PacketKeys::new(&Secret([own; 32]), &Secret([peer; 32]), purpose).unwrap()
}

fn ends() -> (PacketKeys, PacketKeys) {
    (keys(1, 2, Purpose::Connection), keys(2, 1, Purpose::Connection))
}

fn packet(sealer: &mut PacketSealer, body: &[u8]) -> Vec<u8> {
    let mut out = [&[7; PACKET_HEAD_BYTES], &[0; PACKET_NUMBER_BYTES][..], body, &[0; TAG_BYTES]].concat();
    assert!(sealer.seal(&mut out));
    out
}

fn open(opener: &mut PacketOpener, packet: &[u8]) -> Result<Vec<u8>, PacketRefused> {
    let mut body = vec![9; 3];
    opener.open(packet, &mut body).map(|()| body)
}

#[test]
fn packets_of_all_lengths_pass_both_ways_and_show_nothing() {
    let (mut a, mut b) = ends();
    for (sealer, opener) in [(&mut a.sealer, &mut b.opener), (&mut b.sealer, &mut a.opener)] {
        for (number, bytes) in [0, 1, 15, 16, 17, 1024, 4096].into_iter().enumerate() {
            let body: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
            let sealed = packet(sealer, &body);
            assert_eq!(sealed.len(), PACKET_HEAD_BYTES + bytes + PACKET_SEAL_BYTES);
            assert_eq!(sealed[..PACKET_HEAD_BYTES], [7; PACKET_HEAD_BYTES], "the head is in the clear");
            assert_eq!(sealed[PACKET_HEAD_BYTES..][..PACKET_NUMBER_BYTES], (number as u64).to_be_bytes());
            if bytes > 8 {
                assert!(!sealed.windows(8).any(|w| w == &body[..8]), "plain bytes are on the wire");
            }
            assert_eq!(open(opener, &sealed), Ok(body));
        }
    }
}

#[test]
fn each_changed_bit_is_found_and_harms_no_other_packet() {
    let (mut a, mut b) = ends();
    let sealed = packet(&mut a.sealer, b"hello");
    for bit in 0..sealed.len() * 8 {
        let mut forged = sealed.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(open(&mut b.opener, &forged), Err(PacketRefused::Forged { .. })), "bit {bit}");
    }
    for bytes in 0..sealed.len() {
        let refused = open(&mut b.opener, &sealed[..bytes]).unwrap_err();
        let is_short = bytes < PACKET_HEAD_BYTES + PACKET_SEAL_BYTES;
        assert_eq!(refused == PacketRefused::Short { bytes }, is_short, "{bytes}: {refused:?}");
    }
    assert!(open(&mut b.opener, &[&sealed[..], &[0]].concat()).is_err());
    assert_eq!(open(&mut b.opener, &sealed), Ok(b"hello".to_vec()), "the true one is taken behind all of them");
    assert_eq!(open(&mut b.opener, &sealed), Err(PacketRefused::Repeated { number: 0 }));
}

#[test]
fn another_direction_purpose_or_secret_is_another_key() {
    let sealed = packet(&mut ends().0.sealer, b"hello");
    let refused = Err(PacketRefused::Forged { number: 0 });
    assert_eq!(open(&mut ends().0.opener, &sealed), refused, "sent back to its sender");
    assert_eq!(open(&mut keys(2, 1, Purpose::Datagrams).opener, &sealed), refused);
    for (own, peer) in [(2, 3), (3, 1), (1, 3)] {
        assert_eq!(open(&mut keys(own, peer, Purpose::Connection).opener, &sealed), refused, "{own} {peer}");
    }
    let same = Secret([1; 32]);
    assert!(PacketKeys::new(&same, &same, Purpose::Connection).is_none(), "a peer that reflects the secret");
    let shown = format!("{:?}", keys(77, 2, Purpose::Connection));
    assert!(!shown.contains("77"), "{shown}");
}

#[test]
fn the_same_bytes_never_look_the_same_and_no_seal_is_made_without_room() {
    let (mut a, mut b) = ends();
    let sealed = [&mut a.sealer, &mut b.sealer].map(|sealer| [packet(sealer, b"same"), packet(sealer, b"same")]);
    let bodies: Vec<&[u8]> = sealed.iter().flatten().map(|p| &p[PACKET_HEAD_BYTES + PACKET_NUMBER_BYTES..]).collect();
    for (at, one) in bodies.iter().enumerate() {
        assert!(bodies[..at].iter().all(|other| other != one));
    }
    for bytes in 0..PACKET_HEAD_BYTES + PACKET_SEAL_BYTES {
        assert!(!a.sealer.seal(&mut vec![0; bytes]), "{bytes}");
    }
    assert_eq!(a.sealer.next_number(), 2, "no number is used up without a packet");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the network does to the order, and however often it repeats: each packet comes at most once and as it
    /// was, and exactly once if it is not later than the window.
    #[test]
    fn a_network_that_reorders_repeats_and_loses(
        picks in prop::collection::vec((0..300_usize, any::<bool>()), 1..400),
        spread in prop_oneof![Just(1_usize), Just(20)],
    ) {
        let (mut a, mut b) = ends();
        let sent: Vec<Vec<u8>> = (0..300 * spread).map(|i| packet(&mut a.sealer, &i.to_be_bytes())).collect();
        let (mut newest, mut taken) = (0, vec![false; sent.len()]);
        for (pick, is_damaged) in picks {
            let at = pick * spread;
            let mut arrives = sent[at].clone();
            if is_damaged {
                arrives[40] ^= 1;
            }
            let is_late = newest as u64 >= at as u64 + REPLAY_WINDOW_PACKETS;
            match open(&mut b.opener, &arrives) {
                Ok(body) => {
                    prop_assert!(!is_damaged && !taken[at] && !is_late);
                    prop_assert_eq!(body, at.to_be_bytes().to_vec());
                    taken[at] = true;
                    newest = newest.max(at);
                }
                Err(PacketRefused::Forged { .. }) => prop_assert!(is_damaged),
                Err(PacketRefused::Repeated { .. }) => prop_assert!(taken[at]),
                Err(PacketRefused::Stale { .. }) => prop_assert!(is_late),
                Err(other) => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
