//! The wire over TCP: which wire two ends choose, connections that come early, break or belong to nobody, and peers that
//! are gone.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::rig::{ACCEPT, End, PATIENCE, config, connect_by_endpoints, cross, pair, pattern, run};
use softnic::{Progress, SoftNic, SoftNicConfig};
use verbs::*;

const TCP: WirePolicy = WirePolicy::Only(Wire::Iwarp);

fn with(wire: WirePolicy, progress: Progress) -> SoftNicConfig {
    SoftNicConfig { wire, progress, ..config("127.0.0.1") }
}

fn tcp() -> SoftNicConfig {
    with(TCP, Progress::Inline)
}

/// Where an end's listener is: its endpoint says so.
fn listener(endpoint: &Endpoint) -> SocketAddr {
    let bytes = endpoint.as_bytes();
    assert_eq!(bytes[0], 3, "an endpoint of TCP alone");
    SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([bytes[21], bytes[22]])))
}

/// Polls until the end's QP is in error; gives its completions.
fn until_broken(end: &mut End) -> Vec<Completion> {
    let begin = Instant::now();
    let mut got = Vec::new();
    while end.nic.query_qp(end.qpn).unwrap().state != QpState::Err {
        got.extend(end.poll());
        end.nic.progress();
        assert!(begin.elapsed() < PATIENCE, "the QP still works: {:?}", end.nic.counters());
        std::thread::sleep(Duration::from_millis(1));
    }
    got.extend(end.poll());
    got
}

#[test]
fn each_pair_of_policies_leads_to_one_wire() {
    let roce = WirePolicy::Only(Wire::Roce);
    let table = [
        (WirePolicy::Auto, WirePolicy::Auto, Some(Wire::Iwarp)),
        (TCP, WirePolicy::Auto, Some(Wire::Iwarp)),
        (WirePolicy::Auto, TCP, Some(Wire::Iwarp)),
        (TCP, TCP, Some(Wire::Iwarp)),
        (roce, WirePolicy::Auto, Some(Wire::Roce)),
        (roce, TCP, None),
    ];
    for (of_a, of_b, expected) in table {
        let (mut a, mut b) = (End::open(with(of_a, Progress::Inline)), End::open(with(of_b, Progress::Inline)));
        let Some(expected) = expected else {
            let (own, peer) = (a.offer(), b.offer());
            let refused = a.nic.accept(a.qpn, &own, &peer, &ACCEPT);
            assert!(matches!(refused, Err(VerbsError::NoCommonWire { .. })), "{refused:?}");
            assert_eq!(a.nic.query_qp(a.qpn).unwrap().state, QpState::Init, "nothing changed");
            continue;
        };
        let link = connect_by_endpoints(&mut a, &mut b, ACCEPT);
        assert_eq!(link.wire, expected, "{of_a} and {of_b}");
        assert!(!link.wire_reason.is_empty());
        let data = pattern(1, 200_000);
        a.fill(0, &data);
        b.post_recv(5, 0, 0);
        let to = b.remote(9);
        a.post(1, SendOp::WriteImm(to, 77), 0, 200_000);
        let (_, got) = run(&mut a, &mut b, 1, 1);
        assert_eq!((got[0].imm, got[0].byte_len), (Some(77), 200_000), "{of_a} and {of_b}");
        assert_eq!(got[0].placed, Placed::Piece { rkey: to.rkey, addr: 9, len: 200_000 });
        assert!(b.bytes(9, 200_000) == data, "{of_a} and {of_b}");
        assert_eq!(a.counter("tx_bytes") > 200_000, expected == Wire::Roce);
    }
}

/// Where TCP does not get through, `auto` goes back to RoCEv2 after two connections that did not come up.
#[test]
fn a_way_that_is_closed_to_tcp_is_left_to_rocev2() {
    let mut end = End::open(with(WirePolicy::Auto, Progress::Inline));
    let mut chosen = Vec::new();
    for _ in 0..4 {
        // The end with the smaller address connects.
        let mut peer = End::open(SoftNicConfig { wire: WirePolicy::Auto, ..config("127.0.0.2") });
        let to = peer.nic.local_address().ip();
        let (own, offered) = (end.offer_to(Some(to)), peer.offer());
        // Nobody listens any more where the peer said that it listens: that is what a firewall answers, too.
        drop(peer);
        let link = end.nic.accept(end.qpn, &own, &offered, &ACCEPT).unwrap();
        chosen.push(link.wire);
        if link.wire == Wire::Iwarp {
            until_broken(&mut end);
        }
        end.nic.modify_qp(end.qpn, &QpModify::Reset).unwrap();
    }
    assert_eq!(chosen, [Wire::Iwarp, Wire::Iwarp, Wire::Roce, Wire::Roce]);
}

/// A connection that shows its token before the consumer brought the other end's endpoint waits for it.
#[test]
fn an_end_may_be_accepted_late() {
    for late in [0, 1] {
        let mut ends = [End::open(tcp()), End::open(tcp())];
        let offers = [0, 1].map(|i: usize| ends[i].offer());
        let first = &mut ends[1 - late];
        first.nic.accept(first.qpn, &offers[1 - late], &offers[late], &ACCEPT).unwrap();
        ends[1 - late].post(1, SendOp::Send, 0, 100);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {
            for end in &mut ends {
                assert!(end.poll().is_empty());
            }
        }
        let second = &mut ends[late];
        second.post_recv(2, 0, 100);
        second.nic.accept(second.qpn, &offers[late], &offers[1 - late], &ACCEPT).unwrap();
        let [a, b] = &mut ends;
        run(a, b, 1, 1);
    }
}

/// All bytes of big transfers arrive, both ways at once, whatever pieces TCP makes of them.
#[test]
fn megabytes_cross_each_other() {
    for progress in [Progress::Inline, Progress::Helper] {
        let (mut a, mut b) = pair(with(TCP, progress), with(TCP, progress));
        cross(&mut a, &mut b, 2 << 20, 8);
    }
}

/// Lists of places for the kernel keep no memory mapped that nobody has registered any more.
#[test]
fn memory_that_is_deregistered_is_unmapped() {
    let (mut a, mut b) = pair(tcp(), tcp());
    let bytes = 1 << 20;
    let made = ["softnic-unmapped-a", "softnic-unmapped-b"].map(|name| {
        let segment = shm::Segment::create(name, bytes, shm::Sharing::PeerReadOnly).unwrap();
        segment.allocate(bytes).unwrap();
        segment.into_region()
    });
    let [of_a, of_b] = made;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let source = a.nic.reg_mr(&of_a, 0, bytes, access).unwrap();
    let target = b.nic.reg_mr(&of_b, 0, bytes, access).unwrap();
    b.post_recv(1, 0, 0);
    let sges = [Sge { addr: 0, len: 900_000, lkey: source.lkey }];
    let op = SendOp::WriteImm(RemoteAddr { addr: 0, rkey: target.rkey }, 1);
    let wr = SendWr { wr_id: 1, op, payload: Payload::Sges(&sges), flags: SendFlags::SIGNALED, dest: None };
    a.nic.post_send(a.qpn, &[wr]).unwrap();
    run(&mut a, &mut b, 1, 1);
    a.nic.dereg_mr(source.id).unwrap();
    b.nic.dereg_mr(target.id).unwrap();
    drop((of_a, of_b));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let left: Vec<&str> = maps.lines().filter(|line| line.contains("softnic-unmapped")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_peer_that_goes_breaks_the_queue_pair() {
    let (mut a, mut b) = pair(tcp(), tcp());
    b.post_recv(1, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    run(&mut a, &mut b, 1, 1);
    a.post(7, SendOp::Write(b.remote(0)), 0, 10);
    a.post(8, SendOp::Write(b.remote(0)), 0, 10);
    drop(b);
    let got = until_broken(&mut a);
    let ended: Vec<_> = got.iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ended, [(7, Status::RetryExcErr), (8, Status::WrFlushErr)]);
    assert_eq!(a.nic.poll_event(), Some(AsyncEvent::QpFatal(a.qpn)));
}

/// What the peer's device has not got does not complete with success, though TCP took its bytes.
#[test]
fn a_completion_means_that_the_peer_has_it() {
    let (mut a, mut b) = pair(tcp(), tcp());
    b.post_recv(1, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    run(&mut a, &mut b, 1, 1);
    // From here on the peer's device stands still: its socket takes bytes, and nobody reads them.
    a.post(2, SendOp::Write(b.remote(0)), 0, 1_000);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(100) {
        assert!(a.poll().is_empty(), "completed without the peer");
    }
    let (done, _) = run(&mut a, &mut b, 1, 0);
    assert_eq!(done[0].wr_id, 2);
}

#[test]
fn strangers_cost_themselves_alone() {
    let (mut a, mut b) = (End::open(tcp()), End::open(tcp()));
    let (of_a, of_b) = (a.offer(), b.offer());
    let mut strangers = Vec::new();
    let mut greeting = b"MPA ID Req Frame\x00\x01\x00\x28".to_vec();
    greeting.extend([7; 40]);
    for first in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"MPA ID Req Frame\xff\xff\xff\xff", &greeting, b"MPA ID R", b""] {
        for at in [&of_a, &of_b] {
            let mut stranger = TcpStream::connect(listener(at)).unwrap();
            stranger.write_all(first).unwrap();
            strangers.push((stranger, first.len()));
        }
    }
    for _ in 0..20 {
        a.nic.progress();
        b.nic.progress();
        std::thread::sleep(Duration::from_millis(1));
    }
    a.nic.accept(a.qpn, &of_a, &of_b, &ACCEPT).unwrap();
    b.nic.accept(b.qpn, &of_b, &of_a, &ACCEPT).unwrap();
    b.post_recv(1, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    run(&mut a, &mut b, 1, 1);
    // Wrong first bytes go at once; an unfinished greeting and silence, after their time.
    let begin = Instant::now();
    for (stranger, bytes) in &mut strangers {
        stranger.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        while matches!(stranger.read(&mut [0; 64]), Err(e) if e.kind() == ErrorKind::WouldBlock) {
            a.nic.progress();
            b.nic.progress();
            assert!(begin.elapsed() < PATIENCE, "a stranger with {bytes} bytes is still there");
        }
    }
    let refused = a.counter("tcp_refused") + b.counter("tcp_refused");
    let dropped = a.counter("tcp_strangers_dropped") + b.counter("tcp_strangers_dropped");
    assert_eq!((refused, dropped), (6, 4));
    // The queue pair did not notice.
    b.post_recv(2, 0, 8);
    a.post(2, SendOp::Send, 0, 8);
    run(&mut a, &mut b, 1, 1);
}

#[test]
fn a_crowd_of_strangers_keeps_no_peer_out() {
    let (mut a, mut b) = (End::open(tcp()), End::open(tcp()));
    let (of_a, of_b) = (a.offer(), b.offer());
    let mut crowd = Vec::new();
    for _ in 0..100 {
        for at in [&of_a, &of_b] {
            crowd.push(TcpStream::connect(listener(at)).unwrap());
        }
        a.nic.progress();
        b.nic.progress();
    }
    a.nic.accept(a.qpn, &of_a, &of_b, &ACCEPT).unwrap();
    b.nic.accept(b.qpn, &of_b, &of_a, &ACCEPT).unwrap();
    b.post_recv(1, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    run(&mut a, &mut b, 1, 1);
    assert!(a.counter("tcp_strangers_dropped") + b.counter("tcp_strangers_dropped") >= 100);
}

/// An owner that sleeps on the NIC's descriptor is woken by what comes over TCP.
#[test]
fn a_sleeper_is_woken() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (mut a, mut b) = pair(tcp(), tcp());
    b.post_recv(1, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    run(&mut a, &mut b, 1, 1);
    b.post_recv(2, 0, 8);
    let (nic, cq) = (&mut b.nic, b.cq);
    let sending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        a.post(2, SendOp::Send, 0, 8);
        let begin = Instant::now();
        while a.poll().is_empty() {
            assert!(begin.elapsed() < PATIENCE, "the send does not complete");
        }
    });
    let begin = Instant::now();
    let mut got = Vec::new();
    loop {
        nic.req_notify_cq(cq, false).unwrap();
        if nic.poll_cq(cq, &mut got, 1).unwrap() > 0 {
            break;
        }
        let bound = nic.deadline().unwrap_or(PATIENCE).min(PATIENCE);
        let mut fds = Vec::new();
        nic.wait_fds(&mut fds);
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: bound.as_secs() as i64, tv_nsec: bound.subsec_nanos().into() };
        poll(&mut fds, Some(&timeout)).unwrap();
        nic.progress();
        assert!(begin.elapsed() < PATIENCE, "never woken");
    }
    // The sender's completion needs this end once more.
    while !sending.is_finished() {
        nic.progress();
    }
    sending.join().unwrap();
}

#[test]
fn a_taken_tcp_port_is_told_with_iwarp_and_done_without_with_auto() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let udp_port = held.local_addr().unwrap().port();
    let open = |wire| SoftNic::open(SoftNicConfig { udp_port, ..with(wire, Progress::Inline) });
    assert!(matches!(open(TCP), Err(softnic::OpenError::TcpPortInUse(at)) if at.port() == udp_port));
    let nic = open(WirePolicy::Auto).unwrap();
    assert_eq!(nic.local_address().port(), udp_port);
    assert!(nic.counters().iter().all(|(name, _)| *name != "tcp_links"), "there is no wire over TCP");
}

/// A timer of one connection is no reason to look at the others.
#[test]
fn timers_look_at_their_own_connections_alone() {
    const LINKS: usize = 64;
    let mut ends = [End::open(tcp()), End::open(tcp())];
    let first = ends.each_ref().map(|end| end.qpn);
    let mut qpns = Vec::new();
    for _ in 0..LINKS {
        let made = ends.each_mut().map(|end| {
            let cq = end.cq;
            end.qpn = end
                .nic
                .create_qp(&QpInit {
                    pd: verbs::PdId::default(),
                    qp_type: QpType::Rc,
                    send_cq: cq,
                    recv_cq: cq,
                    srq: None,
                    max_send_wr: 4,
                    max_recv_wr: 4,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_bytes: 0,
                    sq_sig_all: false,
                })
                .unwrap();
            end.qpn
        });
        let [a, b] = &mut ends;
        connect_by_endpoints(a, b, ACCEPT);
        b.post_recv(1, 0, 100);
        a.post(1, SendOp::Send, 0, 100);
        run(a, b, 1, 1);
        qpns.push(made);
    }
    assert_eq!(ends.each_ref().map(|end| end.counter("tcp_links")), [LINKS as u64; 2]);
    // They close one after the other, and the waits for the last byte are timers too.
    for [a, b] in qpns {
        ends[0].nic.destroy_qp(a).unwrap();
        ends[1].nic.destroy_qp(b).unwrap();
        ends.iter_mut().for_each(|end| _ = end.poll());
    }
    for (end, qpn) in ends.iter_mut().zip(first) {
        end.qpn = qpn;
        let fired = end.counter("tcp_timers_fired");
        assert!(fired <= 4 * LINKS as u64, "{fired} looks at {LINKS} connections");
    }
}
