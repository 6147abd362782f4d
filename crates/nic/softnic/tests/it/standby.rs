//! NICs with two addresses: connections over either wire and datagrams at the second one, as at the first.

use std::net::IpAddr;
use std::time::Duration;

use crate::rig::{ACCEPT, End, config, pattern, run, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnic::{OpenError, Progress, SoftNic, SoftNicConfig};
use verbs::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Second addresses of two hosts, of a test alone.
fn seconds(test: u8) -> [IpAddr; 2] {
    [1, 2].map(|host| IpAddr::from([127, 77, test, host]))
}

fn with(wire: WirePolicy, progress: Progress, standby: IpAddr) -> SoftNicConfig {
    SoftNicConfig { wire, progress, standby: vec![standby], ..config("127.0.0.1") }
}

fn offer_at(end: &mut End, local: IpAddr, peer: IpAddr, encrypt: Encrypt) -> Endpoint {
    let attr = OfferAttr {
        access: Access::all(),
        mtu_max: PathMtu::Mtu4096,
        entropy: 7,
        wire: WirePolicy::Auto,
        peer: Some(peer),
        encrypt,
        local: Some(local),
    };
    end.nic.offer(end.qpn, &attr).unwrap()
}

/// Connects two ends between these addresses.
fn connect([a, b]: [&mut End; 2], at: [IpAddr; 2], encrypt: Encrypt) -> Link {
    let (of_a, of_b) = (offer_at(a, at[0], at[1], encrypt), offer_at(b, at[1], at[0], encrypt));
    let link = a.nic.accept(a.qpn, &of_a, &of_b, &ACCEPT).unwrap();
    b.nic.accept(b.qpn, &of_b, &of_a, &ACCEPT).unwrap();
    assert_eq!(link.peer.ip(), at[1]);
    link
}

#[test]
fn connections_at_the_second_address_carry_everything_on_either_wire() {
    let at = seconds(1);
    for wire in [Wire::Roce, Wire::Iwarp] {
        for (progress, encrypt) in
            [(Progress::Inline, Encrypt::Off), (Progress::Helper, Encrypt::Off), (Progress::Inline, Encrypt::Required)]
        {
            let open = |own| End::open(with(WirePolicy::Only(wire), progress, own));
            let [mut a, mut b] = at.map(open);
            let link = connect([&mut a, &mut b], at, encrypt);
            assert_eq!((link.wire, link.cipher.is_some()), (wire, encrypt == Encrypt::Required));
            let data = pattern(1, 1 << 20);
            a.fill(0, &data);
            for round in 0..4 {
                let to = b.remote(round);
                a.post(round, SendOp::Write(to), 0, 1 << 20);
                run(&mut a, &mut b, 1, 0);
                assert!(b.bytes(round, 1 << 20) == data, "{wire:?} {progress:?} round {round}");
            }
            crate::rig::cross(&mut a, &mut b, 300_000, 3);
            if wire == Wire::Roce {
                assert!(a.counter("gso_batches") > 0 && b.counter("gro_batches") > 0, "{:?}", a.nic.counters());
                assert!(a.counter("tx_packets") > 2 * a.counter("tx_syscalls"), "{:?}", a.nic.counters());
            }
            for end in [&a, &b] {
                for name in ["drop_bad_icrc", "drop_wrong_destination", "drop_wrong_source", "drop_wrong_port"] {
                    assert_eq!(end.counter(name), 0, "{name}");
                }
            }
        }
    }
}

#[test]
fn connections_at_both_addresses_share_a_nic() {
    let at = seconds(2);
    let open = |own| End::open(with(WirePolicy::Only(Wire::Roce), Progress::Inline, own));
    let [mut a, mut b] = at.map(open);
    connect([&mut a, &mut b], at, Encrypt::Off);
    // A second queue pair of each, at the first addresses.
    let first = [&mut a, &mut b].map(|end| {
        let qpn = end.nic.create_qp(&QpInit::new(QpType::Rc, end.cq, 64)).unwrap();
        std::mem::replace(&mut end.qpn, qpn)
    });
    connect([&mut a, &mut b], [ip("127.0.0.1"); 2], Encrypt::Off);
    let second = [a.qpn, b.qpn];
    let data = [pattern(1, 500_000), pattern(2, 500_000)];
    a.fill(0, &data[0]);
    a.fill(1 << 20, &data[1]);
    for round in 0..8 {
        for (from, qpn) in [(0, first[0]), (1 << 20, second[0])] {
            a.qpn = qpn;
            let to = b.remote(from);
            a.post(round, SendOp::Write(to), from, 500_000);
        }
        run(&mut a, &mut b, 2, 0);
        assert!(b.bytes(0, 500_000) == data[0] && b.bytes(1 << 20, 500_000) == data[1], "round {round}");
        b.fill(0, &[0; 500_000]);
        b.fill(1 << 20, &[0; 500_000]);
    }
    assert_eq!((b.counter("drop_wrong_destination"), b.counter("drop_bad_icrc")), (0, 0));
}

/// A sleeper is woken by what comes to its second address, whichever wires it has.
#[test]
fn who_sleeps_is_woken_at_the_second_address() {
    let at = seconds(3);
    for (policy, progress) in [
        (WirePolicy::Only(Wire::Roce), Progress::Inline),
        (WirePolicy::Only(Wire::Roce), Progress::Helper),
        (WirePolicy::Auto, Progress::Inline),
    ] {
        let [mut a, mut b] = at.map(|own| End::open(with(policy, progress, own)));
        connect([&mut a, &mut b], at, Encrypt::Off);
        b.post_recv(1, 0, 4096);
        // A connection over TCP comes up first.
        for _ in 0..100 {
            a.poll();
            b.poll();
        }
        b.nic.req_notify_cq(b.cq, false).unwrap();
        let (sender, receiver) = (&mut a, &mut b);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                sender.post(1, SendOp::Send, 0, 64);
                until("sent", || (), || !sender.poll().is_empty());
            });
            let got = std::cell::RefCell::new(Vec::new());
            let sleep = || {
                let mut fds = Vec::new();
                receiver.nic.wait_fds(&mut fds);
                let mut watched: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
                // Far longer than the sender's sleep, and without the NIC's timers.
                let timeout = Timespec { tv_sec: 30, tv_nsec: 0 };
                assert!(poll(&mut watched, Some(&timeout)).unwrap() > 0, "nothing wakes it: {policy} {progress:?}");
                drop((watched, fds));
                receiver.nic.progress();
                got.borrow_mut().extend(receiver.poll());
            };
            until("a completion", sleep, || !got.borrow().is_empty());
        });
    }
}

#[test]
fn an_address_that_this_host_does_not_have_costs_the_others_nothing() {
    // TEST-NET-1: the port is held there for when the host has it.
    let (absent, far) = (ip("192.0.2.77"), ip("192.0.2.78"));
    let mut a = End::open(with(WirePolicy::Only(Wire::Roce), Progress::Inline, absent));
    let mut b = End::open(config("127.0.0.1"));
    let own = offer_at(&mut a, absent, far, Encrypt::Off);
    let peer = b.offer();
    // The peer's words, at an address of nobody.
    let there = RoceEndpoint { gid: Gid::from(far), ..RoceEndpoint::parse(&peer).unwrap() };
    let hasty = AcceptAttr { timeout: 8, retry_cnt: 1, ..ACCEPT };
    a.nic.accept(a.qpn, &own, &there.to_endpoint(), &hasty).unwrap();
    a.post(1, SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(1) }), 0, 300_000);
    let ended = std::cell::RefCell::new(Vec::new());
    until("the retries are spent", || ended.borrow_mut().extend(a.poll()), || !ended.borrow().is_empty());
    assert_eq!(ended.borrow()[0].status, Status::RetryExcErr);
    assert!(a.counter("tx_socket_errors") > 0, "{:?}", a.nic.counters());
    // Batches of its other address leave as ever.
    a.qpn = a.nic.create_qp(&QpInit::new(QpType::Rc, a.cq, 64)).unwrap();
    let mut b = End::open(config("127.0.0.1"));
    crate::rig::connect_by_endpoints(&mut a, &mut b, ACCEPT);
    let (before, data) = (a.counter("gso_batches"), pattern(3, 300_000));
    a.fill(0, &data);
    let to = b.remote(0);
    a.post(2, SendOp::Write(to), 0, 300_000);
    run(&mut a, &mut b, 1, 0);
    assert!(b.bytes(0, 300_000) == data && a.counter("gso_batches") > before, "{:?}", a.nic.counters());
}

#[test]
fn datagrams_leave_from_the_second_address_and_come_to_it() {
    let at = seconds(4);
    for encrypt in [Encrypt::Off, Encrypt::Required] {
        let [mut a, mut b] = at.map(|own| End::open(with(WirePolicy::Auto, Progress::Inline, own)));
        connect([&mut a, &mut b], at, encrypt);
        let qkey = Qkey(0x1357);
        let ud = [&mut a, &mut b].map(|end| {
            let qpn = end.nic.create_qp(&QpInit::new(QpType::Ud, end.cq, 64)).unwrap();
            let av = AddressVector::new(end.nic.device().gid);
            end.nic.modify_qp(qpn, &QpModify::Init { access: Access::empty(), qkey }).unwrap();
            end.nic.modify_qp(qpn, &QpModify::Rtr(RtrAttr::new(Qpn(0), av))).unwrap();
            end.nic.modify_qp(qpn, &QpModify::Rts(RtsAttr::default())).unwrap();
            qpn
        });
        let attr = |own| DatagramAttr { encrypt, local: Some(own) };
        let offers = [(&a, 0), (&b, 1)].map(|(end, i)| end.nic.offer_datagrams(ud[i], qkey, &attr(at[i])).unwrap());
        let to_b = a.nic.accept_datagrams(&offers[1], a.qpn, &attr(at[0])).unwrap().expect("a way");
        let to_a = b.nic.accept_datagrams(&offers[0], b.qpn, &attr(at[1])).unwrap().expect("a way");
        assert_eq!((to_b.address, to_a.address, to_b.cipher.is_some()), (at[1], at[0], encrypt == Encrypt::Required));
        let mut area = [0; GRH_BYTES];
        for round in 0..20_u64 {
            for (from, link, here) in [(0, to_b, 1), (1, to_a, 0)] {
                let (sender, receiver) = if from == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
                let sges = [receiver.sge(0, 2048)];
                receiver.nic.post_recv(ud[here], &[RecvWr { wr_id: 5, sges: &sges }]).unwrap();
                let data = pattern(round, 500);
                sender.fill(8192, &data);
                let wr = SendWr {
                    wr_id: 6,
                    op: SendOp::Send,
                    payload: Payload::Sges(&[sender.sge(8192, 500)]),
                    flags: SendFlags::SIGNALED,
                    dest: Some(link.dest),
                };
                sender.nic.post_send(ud[from], &[wr]).unwrap();
                run(sender, receiver, 1, 1);
                receiver.region.read(0, &mut area).unwrap();
                let grh = Grh::parse(&area).unwrap();
                assert_eq!((grh.source, grh.destination), (at[from], at[here]));
                assert!(receiver.bytes(GRH_BYTES as u64, 500) == data);
            }
        }
    }
}

#[test]
fn a_second_address_whose_port_is_taken_is_an_error() {
    let [standby, _] = seconds(5);
    let first = SoftNic::open(with(WirePolicy::Only(Wire::Roce), Progress::Inline, standby)).unwrap();
    let again =
        SoftNicConfig { udp_port: first.local_address().port(), ..with(WirePolicy::Auto, Progress::Inline, standby) };
    let elsewhere = SoftNicConfig { address: ip("127.0.0.9"), ..again };
    let refused = SoftNic::open(elsewhere).expect_err("the port is taken");
    assert!(matches!(refused, OpenError::AddressInUse(at) if at.ip() == standby), "{refused}");
}
