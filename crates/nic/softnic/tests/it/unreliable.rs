//! Unreliable connections over sockets: set up by endpoints, on the one wire that has them.

use crate::rig::{ACCEPT, End, config, connect_by_endpoints, pattern, run};
use softnic::{Progress, SoftNic, SoftNicConfig};
use verbs::*;

fn open(wire: WirePolicy, progress: Progress, qp_type: QpType) -> End {
    let nic = SoftNic::open(SoftNicConfig { wire, progress, ..config("127.0.0.1") }).unwrap();
    End::of_service(nic, qp_type)
}

const AUTO: WirePolicy = WirePolicy::Auto;

#[test]
fn messages_cross_by_endpoints_in_both_progress_modes() {
    for progress in [Progress::Inline, Progress::Helper] {
        let [mut a, mut b] = [AUTO, WirePolicy::Only(Wire::Roce)].map(|wire| open(wire, progress, QpType::Uc));
        let link = connect_by_endpoints(&mut a, &mut b, ACCEPT);
        assert_eq!(link.wire, Wire::Roce);
        let data = pattern(3, 50_000);
        a.fill(0, &data);
        for round in 0..20 {
            b.post_recv(round, 100_000, 50_000);
            a.post(round, SendOp::SendImm(5), 0, 50_000);
            let (sent, got) = run(&mut a, &mut b, 1, 1);
            assert_eq!((sent[0].wr_id, got[0].wr_id, got[0].imm, got[0].byte_len), (round, round, Some(5), 50_000));
            assert!(b.bytes(100_000, 50_000) == data);
            b.post_recv(round, 0, 0);
            let to = b.remote(300_000);
            a.post(round, SendOp::WriteImm(to, 6), 0, 50_000);
            let (_, got) = run(&mut a, &mut b, 1, 1);
            assert_eq!((got[0].opcode, got[0].imm), (WcOpcode::RecvWriteImm, Some(6)));
            assert_eq!(got[0].placed, Placed::Piece { rkey: to.rkey, addr: 300_000, len: 50_000 });
            assert!(b.bytes(300_000, 50_000) == data);
        }
        let names = ["acks_sent", "naks_sent", "retransmits", "messages_abandoned"];
        assert_eq!(names.map(|name| a.counter(name) + b.counter(name)), [0; 4], "nothing is answered");
    }
}

#[test]
fn the_wire_over_tcp_refuses_them_by_name() {
    let attr = |wire| OfferAttr {
        access: Access::all(),
        mtu_max: PathMtu::Mtu4096,
        entropy: 7,
        wire,
        peer: None,
        encrypt: verbs::Encrypt::Off,
        local: None,
    };
    let tcp = WirePolicy::Only(Wire::Iwarp);
    let refused = VerbsError::NotOnWire { wire: Wire::Iwarp, qp_type: QpType::Uc };
    for (of_device, of_offer) in [(tcp, AUTO), (AUTO, tcp)] {
        let mut a = open(of_device, Progress::Inline, QpType::Uc);
        assert_eq!(a.nic.offer(a.qpn, &attr(of_offer)).map(|_| ()), Err(refused.clone()));
        assert_eq!(a.nic.query_qp(a.qpn).unwrap().state, QpState::Reset, "nothing changed");
    }
    assert!(refused.to_string().contains("the wire iwarp does not carry UC queue pairs"), "{refused}");
    let mut datagrams = open(AUTO, Progress::Inline, QpType::Ud);
    let refused = datagrams.nic.offer(datagrams.qpn, &attr(AUTO)).map(|_| ());
    assert_eq!(refused, Err(VerbsError::NoSuch("connected QP")));
}

/// An end that may use TCP toward one of the other service: refused by name, and nothing changed.
#[test]
fn ends_of_different_services_are_not_connected() {
    let (mut a, mut b) = (open(AUTO, Progress::Inline, QpType::Uc), open(AUTO, Progress::Inline, QpType::Rc));
    let (of_a, of_b) = (a.offer(), b.offer());
    let refused = a.nic.accept(a.qpn, &of_a, &of_b, &ACCEPT).map(|_| ());
    assert_eq!(refused, Err(VerbsError::ForeignEndpoint { found: 1, expected: 4 }));
    let refused = b.nic.accept(b.qpn, &of_b, &of_a, &ACCEPT).map(|_| ());
    assert_eq!(refused, Err(VerbsError::ForeignEndpoint { found: 4, expected: 1 }));
    for end in [&a, &b] {
        assert_eq!(end.nic.query_qp(end.qpn).unwrap().state, QpState::Init);
    }
}
