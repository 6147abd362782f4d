//! Two ends of a connection, and who stands between them.

use records::{
    Keys, Opener, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, RECORD_TAIL_BYTES, RECORDS_PER_KEY, RecordError, RecordLimit,
    SealError, Sealer, Secret,
};

fn ends() -> (Keys, Keys) {
    let (a, b) = (Secret([1; 32]), Secret([2; 32]));
    (Keys::new(&a, &b).unwrap(), Keys::new(&b, &a).unwrap())
}

fn record(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
    let mut out = [&[0; RECORD_HEAD_BYTES], bytes, &[0; RECORD_TAIL_BYTES]].concat();
    sealer.seal(&mut out).unwrap();
    out
}

/// Puts bytes in by pieces of that length, and takes what comes out.
fn feed(opener: &mut Opener, mut bytes: &[u8], piece: usize) -> Result<Vec<u8>, RecordError> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let room = opener.room();
        let taken = bytes.len().min(piece).min(room.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        opener.fill(taken);
        bytes = &bytes[taken..];
        while opener.open()? {
            // In two steps, as a machine does that wants less than there is.
            let half = opener.bytes().len().div_ceil(2);
            all.extend_from_slice(&opener.bytes()[..half]);
            opener.consume(half);
        }
    }
    Ok(all)
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i % 251) as u8).collect()
}

#[test]
fn streams_of_all_cuts_pass_both_ways_and_show_nothing() {
    for piece in [1, 7, 4096, 1 << 20] {
        let (mut a, mut b) = ends();
        for (sealer, opener) in [(&mut a.sealer, &mut b.opener), (&mut b.sealer, &mut a.opener)] {
            let mut sent = Vec::new();
            let mut wire = Vec::new();
            for bytes in [1, 2, 1000, RECORD_BYTES_MAX, 31] {
                let part = pattern(bytes);
                wire.extend(record(sealer, &part));
                sent.extend(part);
            }
            assert_eq!(wire.len(), sent.len() + 5 * (RECORD_HEAD_BYTES + RECORD_TAIL_BYTES));
            assert!(!wire.windows(16).any(|w| w == &pattern(16)[..]), "plain bytes are on the wire");
            assert_eq!(feed(opener, &wire, piece).unwrap(), sent);
            assert_eq!(opener.end(), Ok(()));
        }
    }
}

#[test]
fn records_are_neither_empty_nor_too_long() {
    let (mut a, _) = ends();
    for bytes in [0, RECORD_BYTES_MAX + 1] {
        let mut out = vec![9; RECORD_HEAD_BYTES + bytes + RECORD_TAIL_BYTES];
        let bytes = out.len();
        assert_eq!(a.sealer.seal(&mut out), Err(SealError::Length { bytes }));
        assert!(out.iter().all(|byte| *byte == 9), "nothing was done");
    }
    for bytes in 0..RECORD_HEAD_BYTES + RECORD_TAIL_BYTES {
        assert_eq!(a.sealer.seal(&mut vec![0; bytes]), Err(SealError::Length { bytes }), "no room for head and tail");
    }
}

#[test]
fn the_same_bytes_never_look_the_same() {
    let (mut a, mut b) = ends();
    let records = [record(&mut a.sealer, b"same"), record(&mut a.sealer, b"same"), record(&mut b.sealer, b"same")];
    assert!(records[0] != records[1] && records[0] != records[2] && records[1] != records[2]);
    // Other secrets, another key.
    let mut c = Keys::new(&Secret([1; 32]), &Secret([3; 32])).unwrap();
    assert_ne!(record(&mut c.sealer, b"same"), records[0]);
    assert!(Keys::new(&Secret([1; 32]), &Secret([1; 32])).is_none(), "a peer that reflects the secret");
    assert!(!format!("{a:?} {:?}", Secret([77; 32])).contains("77"));
}

#[test]
fn each_changed_bit_and_each_cut_is_found_and_the_stream_is_over() {
    let first = record(&mut ends().0.sealer, b"hello");
    for at in 0..first.len() * 8 {
        let (mut a, mut b) = ends();
        let mut forged = record(&mut a.sealer, b"hello");
        forged[at / 8] ^= 1 << (at % 8);
        forged.extend(record(&mut a.sealer, b"next"));
        // A length that grew makes it wait for what does not come; the next record does not pass for it either.
        let got = feed(&mut b.opener, &forged, 1000);
        assert!(got.as_ref().map_or(true, Vec::is_empty), "bit {at}: {got:?}");
        if got.is_err() {
            assert!(feed(&mut b.opener, &record(&mut a.sealer, b"later"), 1000).is_err());
        }
        assert!(got.is_err() || b.opener.end().is_err(), "bit {at}");
    }
    for cut in 1..first.len() {
        let (_, mut b) = ends();
        assert_eq!(feed(&mut b.opener, &first[..cut], 1000), Ok(Vec::new()));
        assert_eq!(b.opener.end(), Err(RecordError::Cut { number: 0 }));
    }
}

#[test]
fn repeated_left_out_reordered_and_reflected_records_are_told() {
    let forged = |records: &[&[u8]], opener: &mut Opener| feed(opener, &records.concat(), 1000).unwrap_err();
    let (mut a, mut b) = ends();
    let [x, y] = [record(&mut a.sealer, b"x"), record(&mut a.sealer, b"y")];
    let told = |number| RecordError::Forged { number, bytes: 18 };
    assert_eq!(forged(&[&x, &x], &mut b.opener), told(1));
    assert_eq!(forged(&[&y], &mut ends().1.opener), told(0));
    assert_eq!(forged(&[&y, &x], &mut ends().1.opener), told(0));
    assert_eq!(forged(&[&x], &mut ends().0.opener), told(0), "sent back to its sender");
    for (length, bytes) in [([0xff; 2], 0xffff), ([0x40, 0x12], 0x4012), ([0, 17], 17), ([0, 0], 0)] {
        let record = [&[23, 3, 3], &length[..], &[0; 100]].concat();
        assert_eq!(forged(&[&record], &mut ends().1.opener), RecordError::Length { number: 0, bytes });
    }
    // Others of TLS: a handshake and an alert in the clear, and another version.
    for found in [[22, 3, 3], [21, 3, 3], [23, 3, 1], [23, 2, 3]] {
        let record = [&found[..], &[0, 40], &[0; 40]].concat();
        assert_eq!(forged(&[&record], &mut ends().1.opener), RecordError::Head { number: 0, found });
    }
}

/// A kernel that begins with record 0 is given a direction only while nothing was done with it.
#[test]
fn a_direction_is_handed_over_whole_or_not_at_all() {
    let (mut a, mut b) = ends();
    let mut shown = Vec::new();
    assert!(!a.sealer.hand_over(|_| false));
    assert!(b.opener.hand_over(|key| {
        shown.push(key.clone());
        true
    }));
    let first = record(&mut a.sealer, b"sealed here");
    assert!(!a.sealer.hand_over(|_| panic!("number 0 is used")));
    b.opener.room()[..3].copy_from_slice(&first[..3]);
    b.opener.fill(3);
    assert!(!b.opener.hand_over(|_| panic!("three bytes came already")));
    let mut other = ends().0.sealer;
    assert!(other.hand_over(|key| {
        shown.push(key.clone());
        true
    }));
    assert_eq!(shown[0], shown[1], "both ends have the key of the direction");
    assert_eq!(other.seal(&mut first.clone()), Err(SealError::HandedOver), "nothing is sealed with the key of another");
    assert_eq!(format!("{:?}", shown[0]), "RecordKey(..)");
}

/// The last record that a key may protect passes, and the next one neither leaves nor comes in, whoever made it.
#[test]
fn one_key_protects_so_many_records_and_no_more() {
    let limit = RecordLimit::lowered_to(3, 5);
    let [mut a, mut b] = <[Keys; 2]>::from(ends()).map(|keys| keys.limited(limit));
    let wire: Vec<u8> = (0..5).flat_map(|n| record(&mut a.sealer, &[n])).collect();
    let mut sixth = vec![9; RECORD_HEAD_BYTES + 1 + RECORD_TAIL_BYTES];
    for _ in 0..2 {
        assert_eq!(a.sealer.seal(&mut sixth), Err(SealError::KeyUsedUp { most: 5 }));
    }
    assert!(sixth.iter().all(|byte| *byte == 9), "nothing was done");
    assert_eq!(feed(&mut b.opener, &wire, 7).unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!((a.sealer.sealed(), b.opener.opened()), (5, 5));
    // A peer that counts otherwise.
    let mut liar = ends().0.sealer;
    let all: Vec<u8> = (0..6).flat_map(|n| record(&mut liar, &[n])).collect();
    let further = &all[wire.len()..];
    assert_eq!(feed(&mut b.opener, further, further.len()), Err(RecordError::KeyUsedUp { number: 5 }));
    assert_eq!(feed(&mut b.opener, &[], 1), Ok(Vec::new()));
    assert_eq!(b.opener.open(), Err(RecordError::KeyUsedUp { number: 5 }), "and for good");
}

#[test]
fn limits_are_the_rfcs_or_lower() {
    let limit = RecordLimit::default();
    assert_eq!((limit.until_worn(), limit.most()), (1 << 24, RECORDS_PER_KEY));
    assert_eq!(RECORDS_PER_KEY, 2_f64.powf(24.5) as u64);
    assert_eq!(RecordLimit::lowered_to(u64::MAX, u64::MAX), limit);
    assert_eq!(RecordLimit::lowered_to(9, 4).until_worn(), 4, "worn before it is used up");
}
