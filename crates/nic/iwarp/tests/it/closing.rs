//! How a stream ends: in order, at once, by the peer, by a fault of this end. Every work request completes.

use std::time::Duration;

use crate::pair::{Pair, Setup};
use crate::raw::{Raw, frame, parse_terminate, split, tagged, untagged};
use iwarp::ddp::{Header, Untagged};
use iwarp::rdmap::Opcode;
use iwarp::terminate::{Cause, Offender, Terminate};
use iwarp::{Ending, LINGER_MAX};
use verbs::*;

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions.iter().map(|c| (c.wr_id, c.status)).collect()
}

#[test]
fn an_orderly_close_does_what_was_posted_first() {
    let mut pair = Pair::new(&Setup::default());
    let remote = pair.ends[1].remote(0);
    let end = &mut pair.ends[0];
    end.fill(0, &[3; 50_000]);
    end.send(1, SendOp::Write(remote), &[end.sge(0, 50_000)]).unwrap();
    end.send(2, SendOp::Read(remote), &[end.sge(100_000, 50_000)]).unwrap();
    end.recv(3, 0, 10);
    end.qp.close(&mut end.dev);
    let late = end.send_inline(4, SendOp::Send, b"late");
    let what = "posting sends: the connection is being closed";
    assert_eq!(late, Err(VerbsError::WrongState { state: QpState::Sqd, what }));
    pair.settle_by(|| 777);
    assert_eq!(pair.ends.each_mut().map(|end| end.ending()), [Some(Ending::Closed), Some(Ending::ClosedByPeer)]);
    assert!(pair.ends.iter().all(|end| end.qp.is_over()));
    let done = [(1, Status::Success), (2, Status::Success), (3, Status::WrFlushErr)];
    assert_eq!(statuses(&pair.ends[0].completions()), done);
    assert_eq!(pair.ends[0].bytes(100_000, 50_000), vec![3; 50_000]);
    assert_eq!(pair.ends[0].async_events(), [], "it was asked for");
    assert_eq!(pair.ends[1].async_events(), [AsyncEvent::QpFatal(Qpn(11))]);
}

/// The end in order waits for sends that are not signalled, so it asks for them too.
#[test]
fn an_orderly_close_confirms_what_is_not_signalled() {
    for is_built in [false, true] {
        let mut pair = Pair::new(&Setup { confirms: true, sig_all: false, ..Setup::default() });
        let remote = pair.ends[1].remote(0);
        let end = &mut pair.ends[0];
        end.send_flagged(1, SendOp::Write(remote), &[end.sge(0, 5_000)], SendFlags::empty()).unwrap();
        if is_built {
            pair.settle();
        }
        let end = &mut pair.ends[0];
        end.qp.close(&mut end.dev);
        pair.settle();
        let endings = pair.ends.each_mut().map(|end| end.ending());
        assert_eq!(endings, [Some(Ending::Closed), Some(Ending::ClosedByPeer)], "{is_built}");
        assert_eq!(statuses(&pair.ends[0].completions()), []);
    }
}

#[test]
fn both_ends_may_close_at_once() {
    let mut pair = Pair::new(&Setup::default());
    for end in &mut pair.ends {
        end.qp.close(&mut end.dev);
    }
    pair.settle();
    assert_eq!(pair.ends.each_mut().map(|end| end.ending()), [Some(Ending::Closed), Some(Ending::Closed)]);
}

#[test]
fn an_abort_flushes_and_tells_the_peer() {
    let mut pair = Pair::new(&Setup::default());
    let remote = pair.ends[1].remote(0);
    let end = &mut pair.ends[0];
    end.recv(1, 0, 10);
    for wr_id in [2, 3] {
        end.send(wr_id, SendOp::Write(remote), &[end.sge(0, 50_000)]).unwrap();
    }
    end.qp.abort(&mut end.dev);
    let flushed = [2, 3, 1].map(|wr_id| (wr_id, Status::WrFlushErr));
    assert_eq!(statuses(&pair.ends[0].completions()), flushed);
    assert_eq!(pair.ends[0].async_events(), []);
    pair.settle();
    let terminate = Terminate::new(Cause::RdmapLocal, None);
    assert_eq!(pair.ends[1].ending(), Some(Ending::TerminatedByPeer(terminate)));
    assert!(pair.ends.iter().all(|end| end.qp.is_over()));
    // Later work is flushed too.
    let end = &mut pair.ends[0];
    end.send_inline(4, SendOp::Send, b"late").unwrap();
    end.recv(5, 0, 10);
    assert_eq!(statuses(&end.completions()), [(4, Status::WrFlushErr), (5, Status::WrFlushErr)]);
    assert_eq!(end.qp.status().state, QpState::Err);
}

/// A frame that was begun is finished with the bytes of its time, though its buffer belongs to the consumer again: or
/// the Terminate message would be read as payload.
#[test]
fn an_abort_amid_a_frame_finishes_the_frame() {
    for wants_crc in [false, true] {
        let mut raw = Raw::open(&Setup { wants_crc: [wants_crc; 2], ..Setup::default() });
        raw.end.fill(0, &[3; 50_000]);
        let sges = [raw.end.sge(0, 50_000)];
        raw.end.send(1, SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(5) }), &sges).unwrap();
        let mut bytes = raw.output_some(20_000);
        raw.end.qp.abort(&mut raw.end.dev);
        assert_eq!(statuses(&raw.end.completions()), [(1, Status::WrFlushErr)]);
        raw.end.fill(0, &[4; 50_000]);
        bytes.extend(raw.output());
        let frames = split(&bytes);
        assert!(frames.len() == 2 && frames[0].1 == [3; 50_000]);
        assert_eq!(parse_terminate(&frames[1]), Terminate::new(Cause::RdmapLocal, None));
    }
}

#[test]
fn markers_stand_right_after_frames_were_dropped() {
    let request = iwarp::mpa::Startup { wants_markers: true, ..crate::raw::request() };
    // Of these lengths some let a marker fall into the Terminate message.
    for len in (700..1_300).step_by(20) {
        let mut raw = Raw::accepted(&Setup::default(), &request);
        raw.input(&frame(&tagged(Opcode::Write, true, 0, 0), &[]));
        for wr_id in [1, 2] {
            let sges = [raw.end.sge(0, len)];
            raw.end.send(wr_id, SendOp::Send, &sges).unwrap();
        }
        let mut bytes = raw.output_some(600);
        raw.end.qp.abort(&mut raw.end.dev);
        bytes.extend(raw.output());
        let plain: Vec<u8> = bytes.chunks(512).flat_map(|chunk| &chunk[4..]).copied().collect();
        let frames = split(&plain);
        assert_eq!((frames.len(), frames[0].1.len()), (2, len as usize));
        assert_eq!(parse_terminate(&frames[1]), Terminate::new(Cause::RdmapLocal, None));
    }
}

#[test]
fn the_end_of_the_connection_amid_something_is_no_close() {
    type Break = (&'static str, fn(&mut Raw));
    let breaks: [Break; 4] = [
        ("a frame", |raw| raw.input(&frame(&tagged(Opcode::Write, true, 0, 0), &[])[..9])),
        ("a message", |raw| {
            let mut header = untagged(Opcode::Send, 0, 1, 0);
            header[0] = 0x01;
            raw.input(&frame(&header, b"more follows"));
        }),
        ("a READ", |raw| {
            let sges = [raw.end.sge(0, 8)];
            raw.end.send(7, SendOp::Read(RemoteAddr { addr: 0, rkey: Rkey(5) }), &sges).unwrap();
            raw.output();
        }),
        ("the exchange at the start", |raw| *raw = Raw::accepted(&Setup::default(), &crate::raw::request())),
    ];
    for (name, amid) in breaks {
        let mut raw = Raw::open(&Setup::default());
        raw.end.recv(1, 0, 100);
        amid(&mut raw);
        raw.end.qp.on_eof(&mut raw.end.dev);
        assert_eq!(raw.end.ending(), Some(Ending::Broken), "{name}");
        assert!(raw.end.completions().iter().all(|c| c.status == Status::WrFlushErr), "{name}");
        assert!(raw.end.qp.is_over(), "{name}");
    }
}

/// A peer that gives up an idle stream, in whatever way, is no fault of the device; one that gives up work in progress
/// is.
#[test]
fn an_idle_end_is_told_of_the_peers_end_by_its_receives_alone() {
    let last = AsyncEvent::LastWqeReached(Qpn(11));
    for is_busy in [false, true] {
        for how in ["abort", "close", "reset"] {
            let mut pair = Pair::new(&Setup { has_srq: true, confirms: true, ..Setup::default() });
            let remote = pair.ends[0].remote(0);
            let [peer, end] = &mut pair.ends;
            if is_busy {
                end.send(1, SendOp::Write(remote), &[end.sge(0, 100)]).unwrap();
            }
            match how {
                "abort" => peer.qp.abort(&mut peer.dev),
                "close" => peer.qp.close(&mut peer.dev),
                _ => end.qp.broke(&mut end.dev),
            }
            pair.settle();
            let end = &mut pair.ends[1];
            let events = end.async_events();
            let expected = if is_busy { vec![AsyncEvent::QpFatal(Qpn(11)), last] } else { vec![last] };
            assert_eq!(events, expected, "{how}, busy {is_busy}: {:?}", end.ending());
            assert_eq!(end.qp.status().state, QpState::Err, "{how}");
            end.send(2, SendOp::Write(remote), &[end.sge(0, 1)]).unwrap();
            let last = end.completions().pop().map(|c| (c.wr_id, c.status));
            assert_eq!(last, Some((2, Status::WrFlushErr)), "the next send shows it");
        }
    }
}

#[test]
fn a_connection_that_breaks_flushes_everything() {
    let mut pair = Pair::new(&Setup::default());
    let end = &mut pair.ends[0];
    end.recv(1, 0, 10);
    end.send_inline(2, SendOp::Send, b"never").unwrap();
    end.qp.broke(&mut end.dev);
    assert_eq!(statuses(&end.completions()), [(2, Status::WrFlushErr), (1, Status::WrFlushErr)]);
    assert!(end.qp.is_over() && end.ending() == Some(Ending::Broken));
    assert_eq!(end.async_events(), [AsyncEvent::QpFatal(Qpn(10))]);
}

#[test]
fn memory_that_is_gone_fails_its_request_by_name() {
    let operations: [fn(RemoteAddr) -> SendOp; 3] = [|_| SendOp::Send, SendOp::Write, SendOp::Read];
    for wants_crc in [false, true] {
        for op in operations {
            let mut raw = Raw::open(&Setup { wants_crc: [wants_crc; 2], ..Setup::default() });
            let remote = RemoteAddr { addr: 0, rkey: Rkey(5) };
            let sges = [raw.end.sge(0, 8)];
            raw.end.send_inline(1, SendOp::Write(remote), b"goes out").unwrap();
            raw.end.send(2, op(remote), &sges).unwrap();
            raw.end.send_inline(3, SendOp::Send, b"too late").unwrap();
            let mr = raw.end.mr.id;
            raw.end.dev.mrs.deregister(mr).expect("it is there");
            assert_eq!(raw.terminate(), Terminate::new(Cause::RdmapLocal, None));
            assert_eq!(raw.end.ending(), Some(Ending::Local));
            let ended = statuses(&raw.end.completions());
            assert_eq!(ended[1..], [(2, Status::LocProtErr), (3, Status::WrFlushErr)]);
        }
    }
}

#[test]
fn the_peers_terminate_message_names_the_request_that_failed() {
    let mut raw = Raw::open(&Setup::default());
    for wr_id in [1, 2] {
        let sges = [raw.end.sge(0, 8)];
        raw.end.send(wr_id, SendOp::Read(RemoteAddr { addr: 0, rkey: Rkey(5) }), &sges).unwrap();
    }
    raw.output();
    let ulp = Opcode::ReadRequest.control();
    let header = Header::Untagged(Untagged { is_last: true, ulp, ulp_word: 0, queue: 1, msn: 2, offset: 0 });
    let offender = Offender { ulpdu_bytes: 46, header, request: None };
    let terminate = Terminate::new(Cause::RdmapRights, Some(offender));
    let mut payload = [0; Terminate::BYTES_MAX];
    let bytes = terminate.write(&mut payload);
    raw.input(&frame(&untagged(Opcode::Terminate, 2, 1, 0), &payload[..bytes]));
    assert_eq!(raw.output(), [0; 0], "a Terminate message is not answered");
    assert_eq!(raw.end.ending(), Some(Ending::TerminatedByPeer(terminate)));
    assert_eq!(statuses(&raw.end.completions()), [(1, Status::WrFlushErr), (2, Status::RemAccessErr)]);
    assert_eq!(raw.end.qp.take_counters().tcp_terminates_received, 1);
}

#[test]
fn a_peer_that_keeps_its_end_open_is_not_waited_for() {
    for is_orderly in [true, false] {
        let mut raw = Raw::open(&Setup::default());
        if is_orderly {
            raw.end.qp.close(&mut raw.end.dev);
        } else {
            raw.end.qp.abort(&mut raw.end.dev);
        }
        raw.output();
        assert!(raw.end.qp.is_shutdown_due() && !raw.end.qp.is_shutdown_due(), "said once");
        let now = Time(1);
        for wait in [Duration::ZERO, LINGER_MAX - Duration::from_nanos(1)] {
            raw.end.qp.handle_timeout(&mut raw.end.dev, now + wait);
            assert!(!raw.end.qp.is_over());
        }
        raw.end.qp.handle_timeout(&mut raw.end.dev, now + LINGER_MAX);
        assert!(raw.end.qp.is_over());
        let ending = if is_orderly { Ending::Closed } else { Ending::Aborted };
        assert_eq!(raw.end.ending(), Some(ending));
    }
}

#[test]
fn bytes_after_the_end_are_read_and_have_no_effect() {
    let mut raw = Raw::open(&Setup::default());
    raw.end.qp.abort(&mut raw.end.dev);
    raw.input(&frame(&tagged(Opcode::Write, true, raw.end.mr.rkey.0, 0), &[9; 100]));
    assert_eq!(raw.end.bytes(0, 100), vec![0; 100]);
}

#[test]
fn a_fault_outside_of_the_stream_ends_it_with_an_event() {
    let mut raw = Raw::open(&Setup::default());
    raw.end.qp.fatal(&mut raw.end.dev);
    raw.end.qp.fatal(&mut raw.end.dev);
    assert_eq!(raw.end.async_events(), [AsyncEvent::QpFatal(Qpn(10))], "once");
    assert_eq!(raw.terminate(), Terminate::new(Cause::RdmapLocal, None));
}
