//! Frames that break a rule: each is answered by the Terminate message that the RFCs name, and costs its stream alone.

use crate::pair::{End, MEMORY, Pair, Setup};
use crate::raw::{Raw, frame, request, tagged, untagged};
use iwarp::ddp::Header;
use iwarp::rdmap::{AtomicCode, AtomicRequest, AtomicResponse, Immediate, ImmediateOf, Opcode, ReadRequest};
use iwarp::terminate::Cause;
use iwarp::{Ending, Extensions};
use verbs::*;

/// What a hostile peer sends, after the frames that were fine; and how the receive in progress ends.
struct Case {
    name: &'static str,
    setup: Setup,
    cause: Cause,
    frames: Vec<Vec<u8>>,
    receive: Status,
}

/// Keys that the peer knows.
struct Keys {
    /// Of memory with all rights.
    all: u32,
    /// Of memory that only this end may write.
    local: u32,
}

/// Each case has a receive of 100 bytes posted, unless its name says otherwise.
fn cases(keys: &Keys) -> Vec<Case> {
    let mut cases = headers();
    cases.extend(writes(keys));
    cases.extend(sends());
    cases.extend(requests(keys));
    cases.extend(extensions(keys));
    cases
}

fn case(name: &'static str, cause: Cause, frames: Vec<Vec<u8>>) -> Case {
    Case { name, setup: Setup::default(), cause, frames, receive: Status::WrFlushErr }
}

fn changed(mut bytes: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    bytes[at] = byte;
    bytes
}

fn without(extensions: Extensions) -> Setup {
    Setup { extensions: Extensions::all().difference(extensions), ..Setup::default() }
}

fn send(msn: u32, offset: u32, is_last: bool, payload: &[u8]) -> Vec<u8> {
    let header = untagged(Opcode::Send, 0, msn, offset);
    frame(&changed(header, 0, if is_last { 0x41 } else { 0x01 }), payload)
}

fn headers() -> Vec<Case> {
    let write = || tagged(Opcode::Write, true, 0, 0);
    let send = || untagged(Opcode::Send, 0, 1, 0);
    let no_atomics = without(Extensions::ATOMICS);
    let mut cases = vec![
        case("tagged segment of DDP version 0", Cause::TaggedVersion, vec![frame(&changed(write(), 0, 0xc0), &[])]),
        case("tagged segment of DDP version 2", Cause::TaggedVersion, vec![frame(&changed(write(), 0, 0xc2), &[])]),
        case("untagged segment of DDP version 3", Cause::UntaggedVersion, vec![frame(&changed(send(), 0, 0x43), &[])]),
        case("tagged message of RDMAP version 0", Cause::RdmapVersion, vec![frame(&changed(write(), 1, 0x00), &[])]),
        case("untagged message of RDMAP version 2", Cause::RdmapVersion, vec![frame(&changed(send(), 1, 0x83), &[])]),
        case("opcode without a meaning", Cause::RdmapOpcode, vec![frame(&changed(send(), 1, 0x4c), &[])]),
        case("tagged opcode without a meaning", Cause::RdmapOpcode, vec![frame(&changed(write(), 1, 0x4f), &[])]),
        case("Send that is tagged", Cause::RdmapOpcode, vec![frame(&tagged(Opcode::Send, true, 0, 0), &[])]),
        case("Write that is untagged", Cause::RdmapOpcode, vec![frame(&untagged(Opcode::Write, 0, 1, 0), &[])]),
        case("Send in the queue of requests", Cause::RdmapOpcode, vec![frame(&untagged(Opcode::Send, 1, 1, 0), &[])]),
        case(
            "Read Request among Sends",
            Cause::RdmapOpcode,
            vec![frame(&untagged(Opcode::ReadRequest, 0, 1, 0), &[0; 28])],
        ),
        case("queue 4", Cause::UntaggedQueue, vec![frame(&untagged(Opcode::Send, 4, 1, 0), &[])]),
        case("queue of all ones", Cause::UntaggedQueue, vec![frame(&untagged(Opcode::Send, u32::MAX, 1, 0), &[])]),
        case("length 0", Cause::MarkerMismatch, vec![[vec![0, 0], send(), vec![0; 4]].concat()]),
        case("length of less than the header", Cause::MarkerMismatch, vec![[vec![0, 17], send(), vec![0; 9]].concat()]),
    ];
    let queue = case(
        "queue 3 where there are no atomics",
        Cause::UntaggedQueue,
        vec![frame(&untagged(Opcode::Send, 3, 1, 0), &[])],
    );
    cases.push(Case { setup: no_atomics, ..queue });
    let wrong_crc = changed(frame(&send(), b"abcd"), 22, b'x');
    let crc = case("CRC that does not match", Cause::Crc, vec![wrong_crc]);
    cases.push(Case { setup: Setup { wants_crc: [true; 2], ..Setup::default() }, ..crc });
    cases
}

fn writes(keys: &Keys) -> Vec<Case> {
    let write = |stag, offset| frame(&tagged(Opcode::Write, true, stag, offset), &[7; 16]);
    let no_rights = Setup { access: Access::REMOTE_READ, ..Setup::default() };
    vec![
        case("Write to a key that is none", Cause::TaggedInvalidStag, vec![write(keys.all ^ 1, 0)]),
        case("Write beyond the region", Cause::TaggedBounds, vec![write(keys.all, MEMORY - 15)]),
        case("Write that wraps", Cause::TaggedWrap, vec![write(keys.all, u64::MAX - 14)]),
        case("Write to memory that peers may not write", Cause::RdmapRights, vec![write(keys.local, 0)]),
        Case {
            setup: no_rights,
            ..case("Write where the stream has no right", Cause::RdmapRights, vec![write(keys.all, 0)])
        },
        case(
            "Read Response to nothing",
            Cause::RdmapOpcode,
            vec![frame(&tagged(Opcode::ReadResponse, true, keys.all, 0), &[1])],
        ),
    ]
}

fn sends() -> Vec<Case> {
    let invalidate = |opcode| frame(&untagged(opcode, 0, 1, 0), &[]);
    let immediate = |msn, of| frame(&untagged(Opcode::Immediate, 0, msn, 0), &Immediate::new(1, of).to_bytes());
    let too_long = |frames| Case {
        receive: Status::LocLenErr,
        ..case("Send longer than the receive", Cause::UntaggedTooLong, frames)
    };
    vec![
        case("first Send with number 0", Cause::UntaggedMsn, vec![send(0, 0, true, b"x")]),
        case("first Send with number 2", Cause::UntaggedMsn, vec![send(2, 0, true, b"x")]),
        case("second Send with number 1", Cause::UntaggedMsn, vec![send(1, 0, true, b"x"), send(1, 0, true, b"x")]),
        case("first segment at offset 1", Cause::UntaggedOffset, vec![send(1, 1, true, b"x")]),
        case("gap between segments", Cause::UntaggedOffset, vec![send(1, 0, false, b"xyz"), send(1, 4, true, b"x")]),
        case(
            "segment that comes twice",
            Cause::UntaggedOffset,
            vec![send(1, 0, false, b"xyz"), send(1, 0, true, b"x")],
        ),
        too_long(vec![send(1, 0, true, &[1; 101])]),
        too_long(vec![send(1, 0, false, &[1; 60]), send(1, 60, true, &[1; 41])]),
        case(
            "Send for which no receive is left",
            Cause::UntaggedNoBuffer,
            vec![send(1, 0, true, b"x"), send(2, 0, true, b"x")],
        ),
        case(
            "Immediate Data for which no receive is left",
            Cause::UntaggedNoBuffer,
            vec![send(1, 0, true, b"x"), immediate(2, ImmediateOf::Write)],
        ),
        case("Send with Invalidate", Cause::RdmapNotInvalidatable, vec![invalidate(Opcode::SendInvalidate)]),
        case(
            "solicited Send with Invalidate",
            Cause::RdmapNotInvalidatable,
            vec![invalidate(Opcode::SendSolicitedInvalidate)],
        ),
        case(
            "Immediate Data amid a Send",
            Cause::RdmapOpcode,
            vec![send(1, 0, false, b""), immediate(1, ImmediateOf::Write)],
        ),
        case(
            "another opcode amid a Send",
            Cause::RdmapOpcode,
            vec![send(1, 0, false, b"x"), frame(&untagged(Opcode::SendSolicited, 0, 1, 1), b"y")],
        ),
        case(
            "two immediates of one Send",
            Cause::RdmapOpcode,
            vec![immediate(1, ImmediateOf::Send), immediate(2, ImmediateOf::Send)],
        ),
        case(
            "Immediate Data of four bytes",
            Cause::RdmapStream,
            vec![frame(&untagged(Opcode::Immediate, 0, 1, 0), &[0; 4])],
        ),
        case(
            "Immediate Data of nine bytes",
            Cause::UntaggedTooLong,
            vec![frame(&untagged(Opcode::Immediate, 0, 1, 0), &[0; 9])],
        ),
    ]
}

fn read(keys: &Keys, change: impl Fn(&mut ReadRequest)) -> Vec<u8> {
    let mut request = ReadRequest { sink_stag: 1, sink_offset: 2, len: 16, source_stag: keys.all, source_offset: 0 };
    change(&mut request);
    frame(&untagged(Opcode::ReadRequest, 1, 1, 0), &request.to_bytes())
}

fn requests(keys: &Keys) -> Vec<Case> {
    let no_rights = Setup { access: Access::REMOTE_WRITE, ..Setup::default() };
    let one_at_a_time = Setup { ird: 1, ..Setup::default() };
    let second = frame(&untagged(Opcode::ReadRequest, 1, 2, 0), &[0; 28]);
    vec![
        case("READ of a key that is none", Cause::RdmapInvalidStag, vec![read(keys, |r| r.source_stag ^= 1)]),
        case("READ beyond the region", Cause::RdmapBounds, vec![read(keys, |r| r.source_offset = MEMORY - 15)]),
        case("READ that wraps", Cause::RdmapWrap, vec![read(keys, |r| r.source_offset = u64::MAX - 14)]),
        case("READ longer than a message", Cause::RdmapBounds, vec![read(keys, |r| r.len = (1 << 20) + 1)]),
        case(
            "READ of memory that peers may not read",
            Cause::RdmapRights,
            vec![read(keys, |r| r.source_stag = keys.local)],
        ),
        Case {
            setup: no_rights,
            ..case("READ where the stream has no right", Cause::RdmapRights, vec![read(keys, |_| ())])
        },
        Case {
            setup: one_at_a_time,
            ..case("more READs than allowed", Cause::UntaggedNoBuffer, vec![read(keys, |_| ()), second])
        },
        case(
            "Read Request of 27 bytes",
            Cause::RdmapStream,
            vec![frame(&untagged(Opcode::ReadRequest, 1, 1, 0), &[0; 27])],
        ),
        case(
            "Read Request of 29 bytes",
            Cause::UntaggedTooLong,
            vec![frame(&untagged(Opcode::ReadRequest, 1, 1, 0), &[0; 29])],
        ),
        case(
            "Read Request in two segments",
            Cause::RdmapStream,
            vec![frame(&changed(untagged(Opcode::ReadRequest, 1, 1, 0), 0, 0x01), &[0; 28])],
        ),
        case(
            "Read Request at offset 4",
            Cause::UntaggedOffset,
            vec![frame(&untagged(Opcode::ReadRequest, 1, 1, 4), &[0; 28])],
        ),
        case(
            "first Read Request with number 2",
            Cause::UntaggedMsn,
            vec![frame(&untagged(Opcode::ReadRequest, 1, 2, 0), &[0; 28])],
        ),
        case(
            "Terminate of three bytes",
            Cause::RdmapStream,
            vec![frame(&untagged(Opcode::Terminate, 2, 1, 0), &[0; 3])],
        ),
        case(
            "Terminate shorter than its flags say",
            Cause::RdmapStream,
            vec![frame(&untagged(Opcode::Terminate, 2, 1, 0), &[0, 0, 0xe0, 0, 0])],
        ),
        case(
            "Terminate that is longer than any",
            Cause::UntaggedTooLong,
            vec![frame(&untagged(Opcode::Terminate, 2, 1, 0), &[0; 53])],
        ),
    ]
}

fn atomic(keys: &Keys, change: impl Fn(&mut AtomicRequest)) -> Vec<Vec<u8>> {
    let mut request = AtomicRequest {
        code: AtomicCode::FetchAdd,
        id: 1,
        stag: keys.all,
        offset: 0,
        add_or_swap: 1,
        add_or_swap_mask: 0,
        compare: 0,
        compare_mask: 0,
    };
    change(&mut request);
    vec![frame(&untagged(Opcode::AtomicRequest, 1, 1, 0), &request.to_bytes())]
}

fn extensions(keys: &Keys) -> Vec<Case> {
    let no_atomics = without(Extensions::ATOMICS);
    let no_immediate = without(Extensions::IMMEDIATE);
    let no_rights = Setup { access: Access::REMOTE_READ, ..Setup::default() };
    let answer = frame(&untagged(Opcode::AtomicResponse, 3, 1, 0), &AtomicResponse { id: 1, original: 2 }.to_bytes());
    let immediate = frame(&untagged(Opcode::Immediate, 0, 1, 0), &[0; 8]);
    vec![
        case("atomic on a key that is none", Cause::RdmapInvalidStag, atomic(keys, |a| a.stag ^= 1)),
        case("atomic beyond the region", Cause::RdmapBounds, atomic(keys, |a| a.offset = MEMORY)),
        case("atomic that wraps", Cause::RdmapWrap, atomic(keys, |a| a.offset = u64::MAX - 3)),
        case("atomic on memory without the right", Cause::RdmapRights, atomic(keys, |a| a.stag = keys.local)),
        Case {
            setup: no_rights,
            ..case("atomic where the stream has no right", Cause::RdmapRights, atomic(keys, |_| ()))
        },
        case("atomic on a word that is not aligned", Cause::RdmapOperation, atomic(keys, |a| a.offset = 4)),
        case("atomic of a reserved code", Cause::RdmapOpcode, atomic(keys, |a| a.code = AtomicCode::Reserved(1))),
        case("addition with a mask", Cause::RdmapOperation, atomic(keys, |a| a.add_or_swap_mask = 1)),
        case(
            "swap with a mask",
            Cause::RdmapOperation,
            atomic(keys, |a| {
                a.code = AtomicCode::CompareSwap;
                (a.add_or_swap_mask, a.compare_mask) = (u64::MAX, 1);
            }),
        ),
        case("Atomic Response to nothing", Cause::RdmapOpcode, vec![answer]),
        Case { setup: no_atomics, ..case("atomic where there are none", Cause::RdmapOpcode, atomic(keys, |_| ())) },
        Case { setup: no_immediate, ..case("immediate where there is none", Cause::RdmapOpcode, vec![immediate]) },
    ]
}

/// Keys follow from the seed of an end, so that they are known before there is one.
fn keys() -> Keys {
    let end = End::new(0, &Setup::default());
    Keys { all: end.mr.rkey.0, local: end.local.rkey.0 }
}

#[test]
fn each_broken_rule_is_answered_by_its_terminate_message() {
    for case in cases(&keys()) {
        let name = case.name;
        let mut raw = Raw::open(&case.setup);
        raw.end.fill(0, &[0x55; 64]);
        raw.end.recv(1, 1000, 100);
        for frame in &case.frames {
            raw.input(frame);
        }
        let (last, before) = case.frames.split_last().expect("a frame");
        let answers: Vec<_> = crate::raw::split(&raw.output());
        let terminate = crate::raw::parse_terminate(answers.last().unwrap_or_else(|| panic!("{name}: no answer")));
        assert_eq!(terminate.code, case.cause.code(), "{name}: {terminate}");
        // The message names the frame at fault, unless that has no segment.
        let named = terminate.offender.map(|offender| (offender.ulpdu_bytes, offender.header));
        let header = Header::parse(&last[2..]).map(|header| (u16::from_be_bytes([last[0], last[1]]), header));
        assert_eq!(named, header.filter(|_| case.cause.code().layer < 2), "{name}");
        assert_eq!(raw.end.ending(), Some(Ending::Violated(case.cause)), "{name}");
        assert_eq!(raw.end.async_events(), [AsyncEvent::QpFatal(Qpn(10))], "{name}");
        let received: Vec<Status> = raw.end.completions().iter().map(|c| c.status).collect();
        let is_send = |bytes: &Vec<u8>| bytes[3] == Opcode::Send.control() && bytes[2] == 0x41;
        let expected = if before.iter().any(is_send) { Status::Success } else { case.receive };
        assert_eq!(received, [expected], "{name}");
        assert!(raw.end.bytes(0, 64) == [0x55; 64], "{name}: nothing was placed");
        assert!(raw.end.qp.is_shutdown_due() && !raw.end.qp.is_over(), "{name}");
        raw.end.qp.on_eof(&mut raw.end.dev);
        assert!(raw.end.qp.is_over(), "{name}");
    }
}

#[test]
fn the_same_bytes_in_pieces_are_answered_the_same() {
    for case in cases(&keys()) {
        let mut raw = Raw::open(&case.setup);
        raw.end.recv(1, 1000, 100);
        for byte in case.frames.concat() {
            raw.input(&[byte]);
        }
        let answers = crate::raw::split(&raw.output());
        let terminate =
            crate::raw::parse_terminate(answers.last().unwrap_or_else(|| panic!("{}: no answer", case.name)));
        assert_eq!(terminate.code, case.cause.code(), "{}", case.name);
    }
}

#[test]
fn a_read_request_at_fault_goes_back_whole() {
    let keys = keys();
    let mut raw = Raw::open(&Setup::default());
    raw.input(&read(&keys, |r| r.source_stag ^= 1));
    let offender = raw.terminate().offender.expect("a segment");
    let expected = ReadRequest { sink_stag: 1, sink_offset: 2, len: 16, source_stag: keys.all ^ 1, source_offset: 0 };
    assert_eq!((offender.ulpdu_bytes, offender.request), (46, Some(expected)));
}

#[test]
fn a_broken_rule_costs_its_stream_alone() {
    let mut pair = Pair::new(&Setup::default());
    // A second stream on the device of end 1, whose peer is hostile.
    let mut hostile = End::new(1, &Setup::default());
    std::mem::swap(&mut hostile.dev, &mut pair.ends[1].dev);
    hostile.qp.accept(&request(), b"").expect("idle");
    let mut wire = frame(&tagged(Opcode::Write, true, 0xdead_beef, 0), &[1; 8]).into();
    hostile.receive(1 << 20, &mut wire);
    assert_eq!(hostile.ending(), Some(Ending::Violated(Cause::TaggedInvalidStag)));
    std::mem::swap(&mut hostile.dev, &mut pair.ends[1].dev);
    pair.ends[1].recv(5, 0, 10);
    pair.ends[0].send_inline(6, SendOp::Send, b"goes on").expect("it is allowed");
    pair.settle();
    assert_eq!(pair.ends[1].bytes(0, 7), b"goes on");
    assert_eq!(pair.ends.each_mut().map(|end| end.ending()), [None, None]);
}

#[test]
fn a_receive_into_memory_that_is_gone_ends_the_stream_and_says_whose_fault_it_is() {
    let mut raw = Raw::open(&Setup::default());
    raw.end.recv(1, 0, 100);
    let mr = raw.end.mr.id;
    raw.end.dev.mrs.deregister(mr).expect("it is there");
    raw.input(&send(1, 0, true, b"abc"));
    assert_eq!(raw.terminate().code, Cause::DdpLocal.code());
    assert_eq!(raw.end.ending(), Some(Ending::Local));
    assert_eq!(raw.end.completions()[0].status, Status::LocProtErr);
}

#[test]
fn memory_that_is_deregistered_amid_a_write_takes_no_more_of_it() {
    let mut raw = Raw::open(&Setup::default());
    let bytes = frame(&tagged(Opcode::Write, true, raw.end.mr.rkey.0, 0), &[9; 8_000]);
    raw.input(&bytes[..4_016]);
    assert_eq!(raw.end.bytes(3_999, 2), [9, 0], "what came is placed");
    let mr = raw.end.mr.id;
    raw.end.dev.mrs.deregister(mr).expect("it is there");
    raw.input(&bytes[4_016..]);
    assert_eq!(raw.terminate().code, Cause::TaggedInvalidStag.code());
    assert_eq!(raw.end.bytes(4_000, 4_000), vec![0; 4_000]);
}
