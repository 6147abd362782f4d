//! Packets that somebody other than the peer sends from the peer's address, with a right ICRC: from another UDP port,
//! or far ahead of what the peer can have sent.

use std::net::SocketAddr;

use crate::script::*;
use roce::wire::*;
use verbs::*;

use Opcode::Acknowledge;

/// The peer's address at another port.
const STRANGER: &str = "10.0.0.1:40000";

fn stranger() -> SocketAddr {
    STRANGER.parse().expect("an address")
}

/// From now on packets come from there.
fn send_as(s: &mut Script, from: SocketAddr) {
    let local = "10.0.0.2:4791".parse().expect("an address");
    (s.peer, s.to_nic) = (from, PseudoHeader::new(from, local).expect("one family"));
}

fn written(s: &Script) -> u64 {
    let mut bytes = [0; 8];
    s.region.read(0, &mut bytes).expect("inside");
    u64::from_ne_bytes(bytes)
}

#[test]
fn from_another_port_of_a_software_nic_nothing_is_believed() {
    let mut s = Script::towards_our_own(8);
    let peer = s.peer;
    s.post_with(SendOp::Write(s.remote()), 16, SendFlags::SIGNALED);
    assert_eq!(s.packets().len(), 1);
    send_as(&mut s, stranger());
    // The right numbers, all of them: a request, a duplicate, what is ahead, and the answer that the send waits for.
    for psn in [THEIR_PSN, THEIR_PSN - 1, THEIR_PSN + 1, THEIR_PSN + 5] {
        s.write(psn, true);
    }
    s.read(THEIR_PSN, 0, 8);
    s.add(THEIR_PSN);
    s.acknowledge(OUR_PSN, Syndrome::Ack(CREDITS_UNLIMITED));
    s.acknowledge(OUR_PSN, Syndrome::Nak(NakCode::RemoteAccess));
    assert_eq!(s.nic.counters_detail().drop_wrong_port, 8);
    assert_eq!((s.nic.counters_detail().drops(), s.nic.counters_detail().drop_out_of_order), (8, 0));
    assert_eq!(written(&s), 0);
    assert_eq!(s.statuses(), []);
    let status = s.nic.query_qp(s.qpn).expect("the QP");
    assert_eq!((status.state, status.rq_psn, status.sq_outstanding), (QpState::Rts, Psn::new(THEIR_PSN), 1));
    send_as(&mut s, peer);
    assert_eq!(s.packets(), Vec::<Vec<u8>>::new(), "no answer to anyone");
    // Told once, whatever the number of packets.
    assert_eq!(s.nic.poll_event(), Some(AsyncEvent::StrangePort { qpn: s.qpn, found: 40_000 }));
    assert_eq!(s.nic.poll_event(), None);
    // The peer itself is served as usual.
    s.write(THEIR_PSN, true);
    assert_eq!(s.lines(), [(Acknowledge, THEIR_PSN, ack(1))]);
    s.acknowledge(OUR_PSN, Syndrome::Ack(CREDITS_UNLIMITED));
    assert_eq!(s.statuses(), [Status::Success]);
    assert_eq!(s.nic.counters_detail().drop_wrong_port, 8);
}

#[test]
fn a_foreign_stack_may_vary_its_port() {
    let mut s = Script::new();
    let peer = s.peer;
    send_as(&mut s, stranger());
    s.write(THEIR_PSN, true);
    assert_ne!(written(&s), 0);
    send_as(&mut s, peer);
    s.write(THEIR_PSN + 1, true);
    assert_eq!(s.lines(), [(Acknowledge, THEIR_PSN + 1, ack(2))]);
    assert_eq!((s.nic.counters_detail().drops(), s.nic.poll_event()), (0, None));
}

#[test]
fn what_is_too_far_ahead_to_be_the_peers_is_dropped_and_not_answered() {
    const WINDOW: u32 = 1 << 16;
    let mut s = Script::with_access(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let beyond = [WINDOW + 1, WINDOW * 3, Psn::MODULUS / 4, Psn::MODULUS / 2 - 1];
    for ahead in beyond {
        s.write(THEIR_PSN + ahead, true);
        assert_eq!(s.lines(), [], "{ahead} ahead");
    }
    assert_eq!(s.nic.counters_detail().drop_beyond_window, beyond.len() as u64);
    assert_eq!((s.nic.counters_detail().drop_out_of_order, s.nic.counters_detail().naks_sent), (0, 0));
    // Half of the PSN space and more is behind: a duplicate, acknowledged again (IBTA 9.7.5.1.1).
    s.write(THEIR_PSN, true);
    s.lines();
    s.write(THEIR_PSN + 1 + Psn::MODULUS / 2, true);
    assert_eq!(s.nic.counters_detail().duplicates, 1);
    s.lines();
    // At the furthest that the peer can be ahead, the gap counts as a loss and is answered.
    s.write(THEIR_PSN + 1 + WINDOW, true);
    assert_eq!(s.lines(), [(Acknowledge, THEIR_PSN + 1, nak(NakCode::SequenceError, 1))]);
    assert_eq!(s.nic.counters_detail().drop_beyond_window, beyond.len() as u64);
}

#[test]
fn answers_to_reads_may_span_any_distance() {
    // A READ that was lost took as many PSNs as its answer has packets, up to 2^31 bytes.
    let mut s = Script::new();
    let ahead = Psn::MODULUS / 2 - 1;
    s.write(THEIR_PSN + ahead, true);
    assert_eq!(s.lines(), [(Acknowledge, THEIR_PSN, nak(NakCode::SequenceError, 0))]);
    assert_eq!((s.nic.counters_detail().drop_out_of_order, s.nic.counters_detail().drop_beyond_window), (1, 0));
}
