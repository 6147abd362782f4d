//! Which wire carries the lane between two daemons, by their configurations, and what is shown of it.

use std::io::{Read, Write};
use std::net::SocketAddr;

use raas::{Listener, Stream};
use verbs::{Wire, WirePolicy};

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually};

const TCP: WirePolicy = WirePolicy::Only(Wire::Iwarp);
const ROCE: WirePolicy = WirePolicy::Only(Wire::Roce);

fn host(wire: WirePolicy) -> Host {
    let mut host = Host::new();
    host.config.wire = wire;
    host
}

/// What `host` says of its only lane.
fn wire_of(host: &Host) -> (Option<String>, Option<String>) {
    let lane = host.stat().lanes.into_iter().next().unwrap();
    (lane.wire, lane.wire_reason)
}

#[test]
fn the_configurations_of_both_hosts_choose() {
    bounded(|| {
        let table = [
            (WirePolicy::Auto, WirePolicy::Auto, "iwarp"),
            (TCP, WirePolicy::Auto, "iwarp"),
            (WirePolicy::Auto, TCP, "iwarp"),
            (ROCE, WirePolicy::Auto, "roce"),
        ];
        for (of_a, of_b, expected) in table {
            let (mut a, mut b) = (host(of_a), host(of_b));
            a.start();
            b.start();
            let (client, server) = (a.session(), b.session());
            let to: SocketAddr = (b.address(), b.echo(&server)).into();
            check_echo(Stream::connect_with(&client, to).unwrap(), 300_000, 7);
            let open = Stream::connect_with(&client, to).unwrap();
            for end in [&a, &b] {
                let (wire, reason) = wire_of(end);
                assert_eq!(wire.as_deref(), Some(expected), "{of_a} and {of_b}");
                assert!(!reason.unwrap().is_empty());
                let rows = end.connections();
                assert!(!rows.is_empty());
                assert!(rows.iter().all(|row| row.wire.as_deref() == Some(expected)), "{rows:?}");
            }
            drop(open);
        }
    });
}

#[test]
fn one_peer_may_have_another_wire() {
    bounded(|| {
        let (mut a, mut b, mut c) = (host(ROCE), host(WirePolicy::Auto), host(WirePolicy::Auto));
        let peer = raasd::PeerConfig { wire: Some(TCP), ..raasd::PeerConfig::new(b.address()) };
        a.config.peers.push(peer);
        for host in [&mut a, &mut b, &mut c] {
            host.start();
        }
        let client = a.session();
        for (host, expected) in [(&b, "iwarp"), (&c, "roce")] {
            let server = host.session();
            let to: SocketAddr = (host.address(), host.echo(&server)).into();
            check_echo(Stream::connect_with(&client, to).unwrap(), 100_000, 3);
            let lanes = a.stat().lanes;
            let lane = lanes.iter().find(|lane| lane.peer.ip() == host.address()).unwrap();
            assert_eq!(lane.wire.as_deref(), Some(expected), "{lane:?}");
        }
    });
}

#[test]
fn hosts_without_a_common_wire_get_an_error() {
    bounded(|| {
        let (mut a, mut b) = (host(ROCE), host(TCP));
        a.start();
        b.start();
        let (client, server) = (a.session(), b.session());
        let to: SocketAddr = (b.address(), b.echo(&server)).into();
        let refused = Stream::connect_with(&client, to).unwrap_err();
        assert!(refused.to_string().contains("lane"), "{refused}");
    });
}

/// A daemon that ends takes the lane with it, and the next one makes another.
#[test]
fn a_lane_on_tcp_comes_back_with_the_peers_next_daemon() {
    bounded(|| {
        let (mut a, mut b) = (host(TCP), host(TCP));
        a.start();
        b.start();
        let client = a.session();
        for round in 0..3_u8 {
            let server = b.session();
            let listener = Listener::bind_with(&server, (b.address(), 0)).unwrap();
            let to = listener.local_addr().unwrap();
            let mut stream = Stream::connect_with(&client, to).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&[round; 10_000]).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            let mut got = vec![0; 10_000];
            accepted.read_exact(&mut got).unwrap();
            assert_eq!(got, vec![round; 10_000]);
            assert_eq!(wire_of(&a).0.as_deref(), Some("iwarp"));
            b.stop();
            assert!(stream.read(&mut [0]).is_err(), "the connection ended with the daemon");
            eventually("the lane is gone", || a.stat().rc_qps == 0);
            b.start();
        }
    });
}
