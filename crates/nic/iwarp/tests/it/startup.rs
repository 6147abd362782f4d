//! The MPA exchange with peers that are not ours: byte for byte, in both revisions, and refused in both directions.

use std::time::Duration;

use crate::pair::{Pair, Setup};
use crate::raw::{Raw, frame, request, split, tagged, untagged};
use iwarp::mpa::{Enhanced, FrameKind, Revision, STARTUP_BYTES, Startup, StartupFault, crc};
use iwarp::rdmap::Opcode;
use iwarp::terminate::{Cause, Terminate};
use iwarp::{Ending, QpEvent, STARTUP_MAX};
use verbs::*;

fn reply() -> Startup {
    Startup { kind: FrameKind::Reply, ..request() }
}

fn connecting(setup: &Setup) -> Raw {
    let mut raw = Raw::idle(setup);
    raw.end.qp.connect(b"hello").expect("idle");
    let mut bytes = b"MPA ID Req Frame".to_vec();
    let flags = if setup.wants_crc[0] { 0x50 } else { 0x10 };
    // IRD and ORD 16; peer to peer; a Write may be the first message.
    bytes.extend([flags, 2, 0, 9, 0x80, 16, 0x80, 16]);
    bytes.extend(b"hello");
    assert_eq!(raw.output(), bytes);
    raw
}

#[test]
fn the_active_end_sends_a_write_without_bytes_first() {
    let mut raw = connecting(&Setup::default());
    raw.input(&reply().to_bytes());
    assert_eq!(raw.output(), frame_without_crc(&tagged(Opcode::Write, true, 0, 0)));
    raw.end.note_events();
    assert_eq!(raw.end.events, [QpEvent::Established { private_data: Vec::new(), has_crc: false }]);
}

fn frame_without_crc(header: &[u8]) -> Vec<u8> {
    let mut bytes = frame(header, &[]);
    let len = bytes.len();
    bytes[len - 4..].fill(0);
    bytes
}

#[test]
fn either_end_may_ask_for_crcs() {
    for (own, theirs) in [(false, true), (true, false), (true, true)] {
        let mut raw = connecting(&Setup { wants_crc: [own, false], ..Setup::default() });
        raw.input(&Startup { wants_crc: theirs, ..reply() }.to_bytes());
        assert_eq!(raw.output(), frame(&tagged(Opcode::Write, true, 0, 0), &[]));

        let mut raw = Raw::idle(&Setup { wants_crc: [own, false], ..Setup::default() });
        raw.end.qp.accept(&Startup { wants_crc: theirs, ..request() }, b"").expect("idle");
        assert_eq!(raw.output()[16], 0x50, "CRC and RFC 6581");
    }
}

/// RFC 5044 section 4.3: the first marker stands before the first frame. And every 512 bytes one follows.
#[test]
fn a_peer_that_asks_for_markers_gets_them() {
    let mut raw = connecting(&Setup::default());
    raw.input(&Startup { wants_markers: true, wants_crc: true, ..reply() }.to_bytes());
    let mut first = vec![0, 0, 0, 0];
    first.extend(&frame(&tagged(Opcode::Write, true, 0, 0), &[])[..16]);
    let field = crc(&first);
    first.extend(field);
    raw.end.fill(0, &[7; 3000]);
    raw.end.send(1, SendOp::Send, &[raw.end.sge(0, 3000)]).expect("it is allowed");
    let bytes = raw.output();
    assert_eq!(bytes[..24], first);
    let head = first.len();
    for at in (512..bytes.len()).step_by(512) {
        let back = (at - head) as u16;
        assert_eq!(bytes[at..at + 4], [[0, 0], back.to_be_bytes()].concat(), "{at}");
    }
    let plain: Vec<u8> = bytes.chunks(512).flat_map(|chunk| &chunk[4..]).copied().collect();
    let frames = split(&plain);
    assert_eq!((frames.len(), &frames[1].1[..]), (2, &[7; 3000][..]));
    assert_eq!(raw.end.completions().len(), 1);
}

#[test]
fn what_is_no_reply_ends_the_attempt_by_name() {
    let bytes = |reply: Startup| reply.to_bytes();
    let enhanced = reply().enhanced.unwrap();
    let with = |enhanced| bytes(Startup { enhanced: Some(enhanced), ..reply() });
    let mut http = b"HTTP/1.1 400 Bad Request\r\n".to_vec();
    http.resize(40, b' ');
    let mut revision_3 = bytes(reply());
    revision_3[17] = 3;
    let mut long = bytes(reply());
    long[18] = 3;
    let irds = StartupFault::InsufficientIrd { wanted: 17, allowed: 16 };
    let table: [(Vec<u8>, StartupFault, Cause); 7] = [
        (http, StartupFault::Key(FrameKind::Reply), Cause::Startup),
        (bytes(request()), StartupFault::Key(FrameKind::Reply), Cause::Startup),
        (revision_3, StartupFault::Revision(3), Cause::Startup),
        (long, StartupFault::PrivateDataTooLong(0x304), Cause::Startup),
        (
            bytes(Startup { revision: Revision::One, enhanced: None, ..reply() }),
            StartupFault::NotEnhanced,
            Cause::Startup,
        ),
        (with(Enhanced { ord: 17, ..enhanced }), irds, Cause::InsufficientIrd),
        (
            with(Enhanced { rtr_write: false, rtr_read: true, ..enhanced }),
            StartupFault::NoMatchingRtr,
            Cause::NoMatchingRtr,
        ),
    ];
    for (bytes, fault, cause) in table {
        let mut raw = connecting(&Setup::default());
        raw.end.send_inline(3, SendOp::Send, b"waits").expect("it waits");
        raw.input(&bytes);
        assert_eq!(raw.end.ending(), Some(Ending::Startup(fault)), "{fault}");
        assert_eq!(raw.terminate(), Terminate::new(cause, None), "{fault}");
        assert_eq!(raw.end.completions()[0].status, Status::WrFlushErr);
        assert_eq!(raw.end.qp.take_counters().tcp_startups_failed, 1);
    }
}

/// A peer may not send before it got a frame, but it does no harm.
#[test]
fn a_frame_right_behind_the_reply_is_taken() {
    let mut raw = connecting(&Setup::default());
    raw.end.recv(1, 0, 10);
    let mut bytes = reply().to_bytes();
    bytes.extend(frame(&untagged(Opcode::Send, 0, 1, 0), b"early"));
    raw.input(&bytes);
    assert_eq!((raw.end.bytes(0, 5), raw.end.completions().len()), (b"early".to_vec(), 1));
}

#[test]
fn a_refusal_brings_the_peers_reason() {
    let mut raw = connecting(&Setup::default());
    raw.input(&request().refusal(b"not here").to_bytes());
    let rejected = Ending::Rejected { private_data: b"not here".to_vec() };
    assert_eq!(raw.end.ending(), Some(rejected));
    assert_eq!(raw.output(), [0; 0], "there is nothing to add");
}

#[test]
fn fewer_reads_are_outstanding_than_the_reply_allows() {
    let mut raw = connecting(&Setup::default());
    let enhanced = Enhanced { ird: 1, ..reply().enhanced.unwrap() };
    raw.input(&Startup { enhanced: Some(enhanced), ..reply() }.to_bytes());
    for wr_id in 0..2 {
        let sges = [raw.end.sge(0, 8)];
        raw.end.send(wr_id, SendOp::Read(RemoteAddr { addr: 0, rkey: Rkey(9) }), &sges).expect("it is allowed");
    }
    let frames = split(&raw.output());
    assert_eq!(frames.len(), 2, "the first Write and one Read Request");
    let answer = frame(&tagged(Opcode::ReadResponse, true, raw.end.mr.lkey.0, 0), &[1; 8]);
    raw.input(&answer);
    assert_eq!(split(&raw.output()).len(), 1);
}

#[test]
fn a_peer_of_revision_1_is_answered_in_kind_and_speaks_first() {
    let old = Startup { revision: Revision::One, enhanced: None, private_data: b"old".to_vec(), ..request() };
    let mut raw = Raw::idle(&Setup::default());
    raw.end.qp.accept(&old, b"fine").expect("idle");
    let mut expected = b"MPA ID Rep Frame".to_vec();
    expected.extend([0, 1, 0, 4]);
    expected.extend(b"fine");
    assert_eq!(raw.output(), expected);
    raw.end.recv(1, 0, 10);
    raw.end.send_inline(2, SendOp::Send, b"after you").expect("it waits");
    assert_eq!(raw.output(), [0; 0], "the passive end waits for a frame");
    assert_eq!(raw.end.qp.deadline(), None, "for as long as the peer likes");
    raw.input(&frame(&untagged(Opcode::Send, 0, 1, 0), b"first"));
    assert_eq!(split(&raw.output())[0].1, b"after you");
}

#[test]
fn the_first_message_is_chosen_among_those_that_are_offered() {
    let offered = |rtr_send, rtr_write, rtr_read| {
        let enhanced = Enhanced { rtr_send, rtr_write, rtr_read, ..request().enhanced.unwrap() };
        let mut raw = Raw::idle(&Setup::default());
        raw.end.qp.accept(&Startup { enhanced: Some(enhanced), ..request() }, b"").expect("idle");
        let reply = raw.output();
        (reply[STARTUP_BYTES] & 0xc0, reply[STARTUP_BYTES + 2] & 0xc0)
    };
    assert_eq!(offered(false, true, true), (0x80, 0x80), "a Write");
    assert_eq!(offered(false, false, true), (0x80, 0x40), "a Read Request");
    assert_eq!(offered(false, false, false), (0x80, 0x80), "a Write for want of anything");
    assert_eq!(offered(true, false, false), (0x80, 0), "a Send would take a receive");
}

#[test]
fn a_read_request_of_no_bytes_may_be_the_first_message() {
    let enhanced = Enhanced { rtr_write: false, rtr_read: true, ..request().enhanced.unwrap() };
    // The peer need not have the right to read.
    for access in [Access::all(), Access::empty()] {
        let setup = Setup { access, ..Setup::default() };
        let mut raw = Raw::accepted(&setup, &Startup { enhanced: Some(enhanced), ..request() });
        raw.input(&frame(&untagged(Opcode::ReadRequest, 1, 1, 0), &[0; 28]));
        assert_eq!(raw.output(), frame_without_crc(&tagged(Opcode::ReadResponse, true, 0, 0)));
    }
}

#[test]
fn a_peer_that_does_not_finish_the_exchange_is_given_up() {
    let start = Time(7_000_000_000);
    let after = |raw: &mut Raw, wait| raw.end.qp.handle_timeout(&mut raw.end.dev, start + wait);
    for is_active in [true, false] {
        let setup = Setup::default();
        let mut raw = if is_active { connecting(&setup) } else { Raw::accepted(&setup, &request()) };
        raw.input(&reply().to_bytes()[..if is_active { 19 } else { 0 }]);
        assert_eq!(raw.end.qp.deadline(), Some(Time::ZERO), "the clock is to be looked at");
        after(&mut raw, Duration::ZERO);
        assert_eq!(raw.end.qp.deadline(), Some(start + STARTUP_MAX));
        after(&mut raw, STARTUP_MAX - Duration::from_nanos(1));
        assert_eq!(raw.end.ending(), None);
        after(&mut raw, STARTUP_MAX);
        assert_eq!(raw.end.ending(), Some(Ending::StartupTimeout));
    }
    let mut raw = Raw::open(&Setup::default());
    after(&mut raw, STARTUP_MAX * 9);
    assert_eq!((raw.end.ending(), raw.end.qp.deadline()), (None, None), "an open stream may be silent");
}

#[test]
fn private_data_up_to_508_bytes_crosses_and_more_is_refused() {
    let mut pair = Pair::unconnected(&Setup::default());
    let refused = VerbsError::OutOfRange { what: "bytes of private data", value: 509, min: 0, max: 508 };
    assert_eq!(pair.ends[0].qp.connect(&[1; 509]), Err(refused.clone()));
    assert_eq!(pair.ends[0].qp.accept(&request(), &[1; 509]), Err(refused));
    pair.connect(&[1; 508], &[2; 508]);
    pair.settle();
    let established = QpEvent::Established { private_data: vec![2; 508], has_crc: false };
    assert_eq!(pair.ends[0].events, [established]);
    let twice = pair.ends[0].qp.connect(b"");
    assert_eq!(twice, Err(VerbsError::WrongState { state: QpState::Rts, what: "connecting a second time" }));
}
