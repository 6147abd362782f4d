//! A peer that has the key and breaks the protocol.

use std::net::IpAddr;
use std::time::Duration;

use control::{DatagramOffer, LaneOffer, PeerMessage, Reason, WIRE_VERSION};
use raas::Stream;
use verbs::{Capabilities, Gid, PathMtu, Psn, Qkey, Qpn, RoceEndpoint, RocePort, Wire};

use crate::frames::{read_message, write_message};
use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually};
use crate::link_end::{LinkEnd, write_unsealed};
use crate::middle::connect_from;

/// A link that is up, from `address`.
fn join(host: &Host, address: IpAddr, instance: u64) -> LinkEnd {
    let stream = connect_from(address, host.daemon.as_ref().unwrap().peer_address());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (link, peer) = LinkEnd::dial(stream, instance, address, 1).expect("the daemon takes who has the key");
    assert_eq!((peer.address, peer.engines), (host.address(), host.config.engines));
    link
}

fn offer(address: IpAddr) -> LaneOffer {
    let gid = Gid::from(address);
    let endpoint = RoceEndpoint {
        qp_type: verbs::QpType::Rc,
        qpn: Qpn(77),
        psn: Psn::new(1),
        gid,
        udp_port: 4791,
        mtu: PathMtu::Mtu1024,
        max_rd_atomic: 1,
        rx_budget_bytes: u32::MAX,
    };
    let port = RocePort { qpn: Qpn(78), qkey: Qkey(1), gid, udp_port: 4791 };
    LaneOffer {
        lane: 0,
        incarnation: 1,
        endpoint: endpoint.to_endpoint().into_bytes(),
        capabilities: Capabilities::ROCE.bits(),
        max_msg_bytes: 1 << 30,
        credits: 64,
        send_bytes_max: 4096,
        datagrams: Some(DatagramOffer { endpoint: port.to_endpoint().into_bytes(), token: 1 }),
    }
}

fn check_service(host: &Host) {
    let (peer, server) = (Host::started(), host.session());
    let port = host.echo(&server);
    check_echo(Stream::connect_with(&peer.session(), (host.address(), port)).unwrap(), 1000, 1);
}

#[test]
fn messages_out_of_order_end_the_link() {
    bounded(|| {
        let host = Host::started();
        let us = Host::new().address();
        let ready = PeerMessage::LaneReady { lane: 0, incarnation: 0 };
        let reset =
            PeerMessage::LaneReset { lane: 0, incarnation: 0, reason: Reason::Closed, resumes: false, rests: false };
        let hello =
            PeerMessage::Hello { version: 1, release: String::new(), instance: 1, address: us, challenge: [0; 32] };
        for (n, message) in (1..).zip([ready, reset, hello, PeerMessage::Noise { message: vec![0; 49] }]) {
            let mut link = join(&host, us, n);
            link.say(&message);
            let bye = link.last();
            assert!(matches!(bye, PeerMessage::Bye { reason: Reason::PeerLost, .. }), "{bye:?}");
        }
        check_service(&host);
    });
}

/// One without the key who got into the TCP connection of a link that is up, and speaks as daemons did without a seal.
#[test]
fn a_message_without_a_seal_ends_the_link() {
    bounded(|| {
        let host = Host::started();
        let us = Host::new().address();
        for (n, message) in (1..).zip([PeerMessage::Heartbeat, PeerMessage::LaneOffer(offer(us))]) {
            let mut link = join(&host, us, n);
            write_unsealed(&mut link.stream, &message);
            let bye = link.last();
            assert!(
                matches!(&bye, PeerMessage::Bye { reason: Reason::PeerAuth, detail } if detail.contains("frame 0")),
                "{bye:?}"
            );
        }
        assert_eq!(host.stat().rc_qps, 0);
        check_service(&host);
    });
}

#[test]
fn offers_that_cannot_be_used_are_answered_by_a_reset() {
    bounded(|| {
        let host = Host::started();
        let us = Host::new().address();
        let changes: [fn(&mut LaneOffer); 8] = [
            // Queue pair, path MTU, address and PSN of the endpoint.
            |o| o.endpoint[1..5].fill(0xff),
            |o| o.endpoint[28] = 77,
            |o| o.endpoint[9..25].fill(0),
            |o| o.endpoint[5..9].fill(0xff),
            |o| o.send_bytes_max = 0,
            |o| o.credits = 0,
            |o| o.endpoint = vec![9; 5000],
            |o| o.datagrams = Some(DatagramOffer { endpoint: Vec::new(), token: 0 }),
        ];
        for (n, change) in (1..).zip(changes) {
            let mut link = join(&host, us, n);
            let mut bad = offer(us);
            change(&mut bad);
            link.say(&PeerMessage::LaneOffer(bad.clone()));
            let first = link.hear();
            assert!(matches!(first, Some(PeerMessage::LaneOffer(_))), "{first:?}");
            match link.hear() {
                Some(PeerMessage::LaneReset { reason, .. }) => assert_eq!(reason, Reason::LaneFailed),
                other => panic!("{bad:?} was answered by {other:?}"),
            }
        }
        eventually("no queue pair of them is left", || host.stat().rc_qps == 0);
        check_service(&host);
    });
}

#[test]
fn a_second_offer_and_a_second_link() {
    bounded(|| {
        // What is offered to it is RoCEv2.
        let host = Host::started_on(Wire::Roce);
        let us = Host::new().address();
        let mut link = join(&host, us, 5);
        link.say(&PeerMessage::LaneOffer(offer(us)));
        assert!(matches!(link.hear(), Some(PeerMessage::LaneOffer(_))));
        assert!(matches!(link.hear(), Some(PeerMessage::LaneReady { .. })));
        // The same process again: refused before any proof. A restarted one: replaces.
        let mut again = connect_from(us, host.daemon.as_ref().unwrap().peer_address());
        again.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = PeerMessage::Hello {
            version: WIRE_VERSION,
            release: "x".into(),
            instance: 5,
            address: us,
            challenge: [1; 32],
        };
        write_message(&mut again, &hello);
        let mut said = Vec::new();
        while let Some(message) = read_message(&mut again) {
            said.push(message);
        }
        assert!(matches!(said.last(), Some(PeerMessage::Bye { reason: Reason::Closed, .. })), "{said:?}");
        let mut restarted = join(&host, us, 6);
        let bye = link.last();
        assert!(matches!(bye, PeerMessage::Bye { reason: Reason::Closed, .. }), "{bye:?}");
        restarted.say(&PeerMessage::LaneOffer(offer(us)));
        assert!(matches!(restarted.hear(), Some(PeerMessage::LaneOffer(_))));
        assert!(matches!(restarted.hear(), Some(PeerMessage::LaneReady { .. })));
        restarted.say(&PeerMessage::LaneOffer(offer(us)));
        let bye = restarted.last();
        assert!(matches!(&bye, PeerMessage::Bye { detail, .. } if detail.contains("second offer")), "{bye:?}");
        eventually("its queue pair is gone", || host.stat().rc_qps == 0);
    });
}

#[test]
fn a_lane_left_half_made_ends_the_link() {
    bounded(|| {
        for (speaks, misses, why) in [(true, 1000, Reason::TimedOut), (false, 20, Reason::PeerLost)] {
            let mut host = Host::new();
            host.config.limits.lane_setup_ms = 200;
            host.config.heartbeat = raasd::Heartbeat { interval: Duration::from_millis(100), misses };
            host.start();
            let us = Host::new().address();
            let mut link = join(&host, us, 1);
            link.say(&PeerMessage::LaneOffer(offer(us)));
            let mut writer = link.again();
            let beats = std::thread::spawn(move || {
                while speaks && writer.say(&PeerMessage::Heartbeat) {
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            // One that stands still is waited for, as long as its link is kept.
            let ended = link.last();
            let told = if let PeerMessage::Bye { reason, .. } = ended { reason } else { Reason::PeerLost };
            assert_eq!(told, why, "{ended:?}");
            drop(link);
            beats.join().unwrap();
            eventually("its queue pair is gone", || host.stat().rc_qps == 0);
        }
    });
}

/// Someone who listens where a daemon should, answers each link with `first`, and then reads to its end.
fn listen_as(address: IpAddr, first: Option<PeerMessage>) {
    let listener = std::net::TcpListener::bind((address, raasd::PEER_PORT)).unwrap();
    std::thread::spawn(move || {
        for link in listener.incoming() {
            let mut link = link.unwrap();
            if let Some(message) = &first {
                write_message(&mut link, message);
            }
            while read_message(&mut link).is_some() {}
        }
    });
}

#[test]
fn what_answers_in_a_daemons_place_is_told_apart() {
    bounded(|| {
        // What answers at all may take its time on a busy machine; what does not is waited for in vain.
        let [hasty, patient] = [300, 30_000].map(|handshake_ms| {
            let mut host = Host::new();
            host.config.limits.handshake_ms = handshake_ms;
            host.config.limits.dial_attempts_max = 2;
            host.config.set_limit("connect_timeout_ms", 2 * handshake_ms.max(5000)).unwrap();
            host.start();
            host
        });
        let hello = |version, address| {
            let release = String::from("9");
            Some(PeerMessage::Hello { version, release, instance: 3, address, challenge: [0; 32] })
        };
        type Claim = fn(IpAddr) -> (u32, IpAddr);
        let cases: [(Claim, &Host, Reason); 3] = [
            (|a| (WIRE_VERSION + 1, a), &patient, Reason::PeerVersion),
            (|_| (WIRE_VERSION, IpAddr::from([192, 0, 2, 9])), &patient, Reason::BadAddress),
            // It never proves anything.
            (|a| (WIRE_VERSION, a), &hasty, Reason::PeerBusy),
        ];
        let mut places: Vec<(IpAddr, &Host, Reason)> = Vec::new();
        for (what, asks, expected) in cases {
            let address = Host::new().address();
            let (version, claimed) = what(address);
            listen_as(address, hello(version, claimed));
            places.push((address, asks, expected));
        }
        let bye = |reason| Some(PeerMessage::Bye { reason, detail: "full".into() });
        for (message, asks, expected) in [
            (None, &hasty, Reason::PeerBusy),
            (Some(PeerMessage::Heartbeat), &patient, Reason::PeerUnreachable),
            (bye(Reason::PeerLimit), &patient, Reason::PeerLimit),
            // A daemon that gave the place to another: it says so, or its words are lost with the connection.
            (bye(Reason::PeerBusy), &patient, Reason::PeerBusy),
        ] {
            let address = Host::new().address();
            listen_as(address, message);
            places.push((address, asks, expected));
        }
        let address = Host::new().address();
        let closes = std::net::TcpListener::bind((address, raasd::PEER_PORT)).unwrap();
        std::thread::spawn(move || closes.incoming().for_each(drop));
        places.push((address, &patient, Reason::PeerBusy));
        for (address, asks, expected) in places {
            let error = Stream::connect_with(&asks.session(), (address, 9)).unwrap_err();
            assert_eq!(error.reason(), Some(expected), "{address}");
            assert_eq!(error.to_string().contains("running"), expected == Reason::PeerUnreachable, "{error}");
        }
        check_service(&patient);
    });
}
