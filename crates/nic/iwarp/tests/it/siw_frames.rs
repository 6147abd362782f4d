//! Frames that the Linux kernel's siw sent (6.1 and 6.12), read by the codecs here: `siw.frames`, one a line, written by
//! `tests/vm/fpdu-check.py --vectors` from captures of the suite `siw-smoke`.

use iwarp::ddp::{DDP_VERSION, Header};
use iwarp::mpa::{FrameKind, LENGTH_BYTES, Parsed, Revision, Startup, crc, fpdu_bytes, pad_bytes};
use iwarp::rdmap::{Opcode, RDMAP_VERSION, ReadRequest, version_of};
use iwarp::terminate::{Code, Terminate};

/// Kind and bytes of each frame.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let line = |line: &'static str| {
        let (kind, hex) = line.split_once(' ').expect("a kind and a frame");
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal"));
        (kind, bytes.collect())
    };
    include_str!("siw.frames").lines().map(line).collect()
}

fn of_kind(prefix: &str) -> Vec<(&'static str, Vec<u8>)> {
    let found: Vec<_> = frames().into_iter().filter(|(kind, _)| kind.starts_with(prefix)).collect();
    assert!(!found.is_empty(), "no frame of kind {prefix}");
    found
}

/// Length, header and what follows the header of a frame, after its framing was judged.
fn segment(kind: &str, frame: &[u8]) -> (Header, Vec<u8>) {
    let length = usize::from(u16::from_be_bytes([frame[0], frame[1]]));
    assert_eq!(fpdu_bytes(length), frame.len(), "{kind}");
    let (covered, field) = frame.split_at(frame.len() - 4);
    let expected = if kind.ends_with("-crc") { crc(covered) } else { [0; 4] };
    assert_eq!(field, expected, "CRC field of {kind}");
    let ulpdu = &frame[LENGTH_BYTES..LENGTH_BYTES + length];
    assert_eq!(ulpdu[0] & 3, DDP_VERSION, "{kind}");
    let header = Header::parse(ulpdu).expect("a header");
    assert_eq!(version_of(header.ulp()), RDMAP_VERSION, "{kind}");
    let mut written = [0; 18];
    let bytes = header.write(&mut written);
    assert_eq!(&written[..bytes], &ulpdu[..bytes], "the header of {kind} written again");
    (header, ulpdu[header.len()..].to_vec())
}

#[test]
fn requests_and_replies() {
    for (prefix, which) in [("request", FrameKind::Request), ("reply", FrameKind::Reply)] {
        for (kind, frame) in of_kind(prefix) {
            let parsed = Startup::parse(which, &frame).expect(kind);
            let Parsed::Whole(startup, used) = parsed else { panic!("{kind} is not whole: {parsed:?}") };
            assert_eq!(used, frame.len(), "{kind}");
            assert_eq!(startup.to_bytes(), frame, "{kind} written again");
            let says = |part: &str| kind.split('-').any(|known| known == part);
            assert_eq!(startup.revision, if says("rev1") { Revision::One } else { Revision::Two }, "{kind}");
            assert!(!startup.wants_markers, "{kind}");
            assert_eq!(startup.wants_crc, says("crc"), "{kind}");
            assert_eq!(startup.is_rejected, says("reject"), "{kind}");
            assert_eq!(startup.enhanced.is_some(), says("enhanced"), "{kind}");
            assert_eq!(startup.enhanced.is_some_and(|words| words.peer_to_peer), says("p2p"), "{kind}");
            for cut in 0..frame.len() {
                let early = Startup::parse(which, &frame[..cut]);
                assert!(matches!(early, Ok(Parsed::More(more)) if more > cut), "{kind} cut at {cut}: {early:?}");
            }
        }
    }
}

#[test]
fn a_refusal_carries_its_private_data() {
    let (_, frame) = of_kind("reply-rev2-reject").remove(0);
    let Ok(Parsed::Whole(reply, _)) = Startup::parse(FrameKind::Reply, &frame) else { panic!("a reply") };
    assert_eq!(reply.private_data, b"not today");
}

#[test]
fn segments() {
    let kinds = [
        ("write", Opcode::Write),
        ("read-request", Opcode::ReadRequest),
        ("read-response", Opcode::ReadResponse),
        ("send", Opcode::Send),
        ("terminate", Opcode::Terminate),
    ];
    for (prefix, opcode) in kinds {
        for (kind, frame) in of_kind(prefix) {
            let (header, _) = segment(kind, &frame);
            assert_eq!(header.ulp(), opcode.control(), "{kind}");
            match (header, opcode.queue()) {
                (Header::Tagged(tagged), None) => assert!(tagged.is_last, "{kind}"),
                (Header::Untagged(untagged), Some(queue)) => {
                    assert_eq!((untagged.queue, untagged.offset, untagged.is_last), (queue, 0, true), "{kind}");
                    assert!(untagged.msn >= 1, "{kind}");
                }
                other => panic!("{kind} is in the wrong buffer model: {other:?}"),
            }
        }
    }
}

#[test]
fn read_requests() {
    for (kind, frame) in of_kind("read-request") {
        let (_, body) = segment(kind, &frame);
        let request = ReadRequest::parse(body.first_chunk().expect("28 bytes"));
        assert_eq!(request.to_bytes()[..], body[..], "{kind} written again");
    }
}

/// siw pads with what lies in its buffer: padding is covered by the CRC, and otherwise looked past.
#[test]
fn padding_is_not_zero() {
    let (_, frame) = of_kind("write").into_iter().find(|(kind, _)| *kind == "write").expect("a WRITE");
    let length = usize::from(u16::from_be_bytes([frame[0], frame[1]]));
    let pad = &frame[LENGTH_BYTES + length..][..pad_bytes(length)];
    assert!(pad.iter().any(|byte| *byte != 0), "{pad:02x?}");
}

/// siw lays the first byte of a Terminate message out as C bit fields of a little-endian machine: layer and type change
/// places, and the flags are at the other end of their byte. The message is read all the same, as a code that means
/// something else or nothing, and without the header.
#[test]
fn terminates() {
    let seen: Vec<Code> = of_kind("terminate")
        .into_iter()
        .map(|(kind, frame)| {
            let (_, body) = segment(kind, &frame);
            let terminate = Terminate::parse(&body).expect(kind);
            assert_eq!(terminate.offender, None, "{kind}");
            terminate.code
        })
        .collect();
    let swapped = |layer, etype, code| Code { layer: etype, etype: layer, code };
    // Wrong STag and bounds of a READ; of a WRITE; a SEND that is longer than its receive.
    for code in [swapped(0, 1, 0), swapped(0, 1, 1), swapped(1, 1, 0), swapped(1, 1, 1), swapped(1, 2, 2)] {
        assert!(seen.contains(&code), "{code:?} in {seen:?}");
    }
}
