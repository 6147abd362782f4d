//! Literal bytes of requests and replies, and what is none.

use super::*;

fn request() -> Startup {
    Startup {
        kind: FrameKind::Request,
        revision: Revision::One,
        wants_markers: false,
        wants_crc: true,
        is_rejected: false,
        enhanced: None,
        private_data: b"hi".to_vec(),
    }
}

/// RFC 5044 section 7.1.1, figure 9.
#[test]
fn frames_of_revision_1() {
    let mut bytes = b"MPA ID Req Frame".to_vec();
    bytes.extend([0x40, 1, 0, 2, b'h', b'i']);
    assert_eq!(request().to_bytes(), bytes);
    assert_eq!(Startup::parse(FrameKind::Request, &bytes), Ok(Parsed::Whole(request(), 22)));

    let refusal = request().refusal(b"no");
    let mut bytes = b"MPA ID Rep Frame".to_vec();
    bytes.extend([0x60, 1, 0, 2, b'n', b'o']);
    assert_eq!(refusal.to_bytes(), bytes);
    assert_eq!(Startup::parse(FrameKind::Reply, &bytes), Ok(Parsed::Whole(refusal, 22)));
}

/// RFC 6581 section 5: flag S, and IRD and ORD with their upper bits in front of the private data.
#[test]
fn frames_of_revision_2() {
    let enhanced =
        Enhanced { ird: 16, ord: 0x3ffe, peer_to_peer: true, rtr_send: false, rtr_write: true, rtr_read: false };
    let frame = Startup {
        kind: FrameKind::Reply,
        revision: Revision::Two,
        wants_markers: true,
        wants_crc: false,
        enhanced: Some(enhanced),
        ..request()
    };
    let mut bytes = b"MPA ID Rep Frame".to_vec();
    bytes.extend([0x90, 2, 0, 6, 0x80, 16, 0xbf, 0xfe, b'h', b'i']);
    assert_eq!(frame.to_bytes(), bytes);
    assert_eq!(Startup::parse(FrameKind::Reply, &bytes), Ok(Parsed::Whole(frame, 26)));
    let all = Enhanced { rtr_send: true, rtr_read: true, ..enhanced };
    assert_eq!(all.to_bytes(), [0xc0, 16, 0xff, 0xfe]);
    assert_eq!(Enhanced::parse(all.to_bytes()), all);
}

#[test]
fn every_piece_says_how_much_is_missing() {
    let bytes = request().to_bytes();
    for cut in 0..bytes.len() {
        let missing = if cut < 20 { 20 } else { 22 };
        assert_eq!(Startup::parse(FrameKind::Request, &bytes[..cut]), Ok(Parsed::More(missing)), "{cut}");
    }
}

#[test]
fn what_cannot_be_is_refused_as_soon_as_it_shows() {
    let bytes = request().to_bytes();
    let refused = |kind, at: usize, byte: u8| {
        let mut changed = bytes.clone();
        changed[at] = byte;
        Startup::parse(kind, &changed[..=at.max(19).min(changed.len() - 1)]).unwrap_err()
    };
    assert_eq!(Startup::parse(FrameKind::Request, b"GET / HTTP"), Err(StartupFault::Key(FrameKind::Request)));
    assert_eq!(Startup::parse(FrameKind::Reply, &bytes[..10]), Err(StartupFault::Key(FrameKind::Reply)));
    assert_eq!(refused(FrameKind::Request, 17, 0), StartupFault::Revision(0));
    assert_eq!(refused(FrameKind::Request, 17, 3), StartupFault::Revision(3));
    assert_eq!(refused(FrameKind::Request, 18, 2), StartupFault::PrivateDataTooLong(514));
    let mut enhanced = bytes.clone();
    (enhanced[16], enhanced[17]) = (0x10, 2);
    assert_eq!(Startup::parse(FrameKind::Request, &enhanced), Err(StartupFault::EnhancedMissing(2)));
    // Revision 1 knows no such flag: it is a reserved bit there.
    enhanced[17] = 1;
    assert!(matches!(Startup::parse(FrameKind::Request, &enhanced), Ok(Parsed::Whole(..))));
    // A request cannot reject.
    enhanced[16] = 0x20;
    let Ok(Parsed::Whole(frame, _)) = Startup::parse(FrameKind::Request, &enhanced) else { panic!() };
    assert!(!frame.is_rejected);
}

#[test]
fn the_longest_private_data_fits() {
    let longest = Startup { private_data: vec![7; 512], ..request() };
    let bytes = longest.to_bytes();
    assert_eq!(bytes.len(), 532);
    assert_eq!(Startup::parse(FrameKind::Request, &bytes), Ok(Parsed::Whole(longest, 532)));
}
