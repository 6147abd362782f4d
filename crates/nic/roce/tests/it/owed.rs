//! Acknowledgements that were not asked for, and when a requester asks for them.

use std::time::Duration;

use crate::script::*;
use Opcode::{Acknowledge, ReadResponseOnly};
use roce::wire::*;
use verbs::*;

#[test]
fn acks_that_nobody_asked_for_are_owed() {
    let mut s = Script::new();
    s.write(100, false);
    s.wait(Duration::from_micros(400));
    s.write(101, false);
    assert_eq!(s.lines(), [], "not yet");
    s.wait(Duration::from_micros(100));
    assert_eq!(s.lines(), [(Acknowledge, 101, ack(2))], "the oldest is owed for half a millisecond");
    s.wait(Duration::from_secs(1));
    assert_eq!(s.lines(), [], "once");

    s.write(102, false);
    s.write(103, true);
    assert_eq!(s.lines(), [(Acknowledge, 103, ack(4))]);
    s.wait(Duration::from_secs(1));
    assert_eq!(s.lines(), [], "paid with the one that was asked for");

    s.write(104, false);
    s.read(105, 0, 10);
    assert_eq!(s.lines(), [(ReadResponseOnly, 105, ack(6))]);
    s.wait(Duration::from_secs(1));
    assert_eq!(s.lines(), [], "paid with an answer");
}

#[test]
fn who_arms_a_cq_or_takes_a_qp_down_pays_what_is_owed() {
    let mut s = Script::new();
    s.write(100, false);
    s.nic.req_notify_cq(s.cq, false).expect("the CQ");
    assert_eq!(s.lines(), [(Acknowledge, 100, ack(1))]);
    s.nic.req_notify_cq(s.cq, false).expect("the CQ");
    assert_eq!(s.lines(), []);
    s.write(101, false);
    s.nic.pay_acknowledgements();
    assert_eq!(s.lines(), [(Acknowledge, 101, ack(2))]);
}

#[test]
fn who_arms_again_and_again_pays_once_in_half_a_millisecond() {
    let mut s = Script::new();
    s.write(100, false);
    s.nic.req_notify_cq(s.cq, false).expect("the CQ");
    assert_eq!(s.lines(), [(Acknowledge, 100, ack(1))], "a sleep after a pause pays at once");
    for psn in 101..105 {
        s.wait(Duration::from_micros(90));
        s.write(psn, false);
        s.nic.req_notify_cq(s.cq, false).expect("the CQ");
        assert_eq!(s.lines(), [], "not each batch");
    }
    let due = s.nic.deadline().map(|at| at - s.now);
    assert!(due.is_some_and(|due| due <= Duration::from_micros(230)), "it is woken for the oldest: {due:?}");
    s.write(105, true);
    assert_eq!(s.lines(), [(Acknowledge, 105, ack(6))], "who asks is answered at once");
    s.write(106, false);
    s.nic.req_notify_cq(s.cq, false).expect("the CQ");
    assert_eq!(s.lines(), []);
    s.wait(Duration::from_micros(500));
    assert_eq!(s.lines(), [(Acknowledge, 106, ack(7))], "what is owed is paid without another sleep");
    s.write(107, false);
    s.nic.req_notify_cq(s.cq, false).expect("the CQ");
    assert_eq!(s.lines(), [(Acknowledge, 107, ack(8))], "the next sleep pays at once again");
}

#[test]
fn a_full_window_asks_a_peer_of_our_own_once_in_a_quarter() {
    let mut s = Script::towards_our_own(64);
    for _ in 0..24 {
        s.post_with(SendOp::Write(s.remote()), 8, SendFlags::empty());
    }
    assert_eq!(s.asks(), [false, true, false, true, false, true, false, true]);
    // An ACK that nobody asked for opens the window for one packet, which is the first behind a request.
    s.acknowledge(OUR_PSN, Syndrome::Ack(CREDITS_UNLIMITED));
    assert_eq!(s.asks(), [false]);
    s.acknowledge(OUR_PSN + 1, Syndrome::Ack(CREDITS_UNLIMITED));
    assert_eq!(s.asks(), [true]);
}

#[test]
fn a_full_window_always_asks_a_foreign_peer() {
    let mut s = Script::new();
    s.post(SendOp::Write(s.remote()), 256 * 24);
    let asks = s.asks();
    assert_eq!((asks.len(), asks.last()), (8, Some(&true)));
    for psn in OUR_PSN..OUR_PSN + 4 {
        s.acknowledge(psn, Syndrome::Ack(CREDITS_UNLIMITED));
        assert_eq!(s.asks(), [true], "it may answer nobody who does not ask");
    }
}

#[test]
fn a_refusal_is_not_held_back_by_what_is_owed() {
    let mut s = Script::new();
    s.write(100, false);
    s.write(102, true);
    let refusal = (Acknowledge, 101, nak(NakCode::SequenceError, 1));
    assert_eq!(s.lines(), [(Acknowledge, 100, ack(1)), refusal], "an ACK gives rxe its retries back, a NAK does not");
    s.wait(Duration::from_secs(1));
    assert_eq!(s.lines(), [], "all is paid");
    s.write(104, true);
    assert_eq!(s.lines(), [], "one NAK a gap");
}

#[test]
fn only_awaited_messages_ask_a_peer_of_our_own() {
    let mut s = Script::towards_our_own(32);
    let (signaled, quiet) = (SendFlags::SIGNALED, SendFlags::empty());
    for flags in [quiet, signaled, quiet] {
        s.post_with(SendOp::Write(s.remote()), 300, flags);
    }
    // Of a window of 8 packets every second asks at the latest.
    assert_eq!(s.asks(), [false, true, false, true, false, true]);
    s.acknowledge(OUR_PSN + 5, Syndrome::Ack(CREDITS_UNLIMITED));
    s.post_with(SendOp::Write(s.remote()), 8, quiet);
    assert_eq!(s.asks(), [false]);
    s.wait(Duration::from_secs(1));
    assert_eq!(s.asks(), [true], "sent again it asks");
}

#[test]
fn a_short_send_queue_asks_before_it_is_full() {
    let mut s = Script::towards_our_own(2);
    for _ in 0..2 {
        s.post_with(SendOp::Write(s.remote()), 8, SendFlags::empty());
    }
    assert_eq!(s.asks(), [true, true]);
}
