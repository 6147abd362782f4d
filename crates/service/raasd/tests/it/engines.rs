//! Daemons with several engines: connections are spread, and sums are right.

use std::collections::BTreeMap;

use plane::SpreadBy;
use raas::{ConnectError, Reason, Session, Stream};
use raasd::Daemon;

use crate::hosts::{Host, bounded, check_echo, eventually};

fn host(engines: u32) -> Host {
    let mut host = Host::new();
    host.config.engines = engines;
    host.start();
    host
}

fn connect(from: &Session, to: &Host, port: u16) -> Stream {
    Stream::connect_with(from, (to.address(), port)).unwrap()
}

/// Connections of a host by the number of their lane.
fn by_lane(host: &Host) -> BTreeMap<String, usize> {
    let mut lanes = BTreeMap::new();
    for row in host.connections() {
        let lane = row.lane.unwrap();
        *lanes.entry(lane.rsplit('/').next().unwrap().to_owned()).or_default() += 1;
    }
    lanes
}

fn expected(counts: &[usize]) -> BTreeMap<String, usize> {
    counts.iter().enumerate().map(|(lane, count)| (lane.to_string(), *count)).collect()
}

#[test]
fn connections_are_spread_over_the_engines_of_both_hosts() {
    bounded(|| {
        let (a, b) = (host(2), host(2));
        let (client, server) = (a.session(), b.session());
        let port = b.echo(&server);
        let streams: Vec<_> = (0..8).map(|_| connect(&client, &b, port)).collect();
        for host in [&a, &b] {
            eventually("rows", || by_lane(host) == expected(&[4, 4]));
            let stat = host.stat();
            assert_eq!((stat.rc_qps, stat.ud_qps, stat.srqs, stat.cqs), (2, 1, 2, 2), "{stat:?}");
            let lanes: Vec<_> = stat.lanes.iter().map(|lane| (lane.name.clone(), lane.connections)).collect();
            let peer = if host.address() == a.address() { b.address() } else { a.address() };
            assert_eq!(lanes, [0, 1].map(|n| (format!("{peer}/{n}"), 4)));
            assert_eq!(stat.apps.len(), 1, "one row for a program, whatever number of engines it has: {stat:?}");
            assert_eq!(stat.apps[0].connections, 8);
        }
        std::thread::scope(|scope| {
            for (seed, stream) in (0..).zip(streams) {
                scope.spawn(move || check_echo(stream, 300_000, seed));
            }
        });
        let all_over = || a.connections().is_empty() && b.connections().is_empty();
        eventually("closed connections leave both tables", all_over);
        let app = &a.stat().apps[0];
        assert_eq!((app.connections, app.tx_bytes, app.rx_bytes), (0, 8 * 300_000, 8 * 300_000), "sums of both");
        // A reset is one of all lanes to the host.
        let streams = [(); 2].map(|()| connect(&client, &b, port));
        assert!(a.reset_lane(b.address()));
        eventually("resets", || a.stat().lanes.iter().all(|lane| lane.resets == 1 && lane.state == "up"));
        streams.into_iter().for_each(|stream| check_echo(stream, 10_000, 7));
        assert!(!a.reset_lane([127, 0, 0, 9].into()));
        drop(client);
        eventually("nothing of the program is left at any engine", || a.stat().apps.is_empty());
    });
}

#[test]
fn programs_have_engines_of_their_own_on_both_hosts() {
    bounded(|| {
        let mut a = Host::new();
        (a.config.engines, a.config.engines_by) = (2, SpreadBy::Programs);
        a.start();
        // The host that connects decides for both.
        let b = host(2);
        let server = b.session();
        let port = b.echo(&server);
        let (flood, polite) = (a.session(), a.session());
        let mut streams: Vec<_> = (0..7).map(|_| connect(&flood, &b, port)).collect();
        streams.push(connect(&polite, &b, port));
        for host in [&a, &b] {
            eventually("rows", || by_lane(host) == expected(&[7, 1]));
        }
        std::thread::scope(|scope| {
            for (seed, stream) in (0..).zip(streams) {
                scope.spawn(move || check_echo(stream, 100_000, seed));
            }
        });
        // Who leaves makes room: the flood's engine has nobody, and the next program gets it.
        drop(flood);
        eventually("the flood is over", || a.connections().is_empty() && a.stat().apps.len() == 1);
        let next = a.session();
        let streams = [&polite, &next].map(|program| connect(program, &b, port));
        eventually("rows", || by_lane(&a) == expected(&[1, 1]));
        streams.into_iter().for_each(|stream| check_echo(stream, 10_000, 9));
    });
}

#[test]
fn hosts_with_different_numbers_use_the_smaller_one() {
    bounded(|| {
        for (here, there, lanes) in [(3, 2, 2), (1, 3, 1), (2, 1, 1)] {
            let (a, b) = (host(here), host(there));
            let (client, server) = (a.session(), b.session());
            let ports = [a.echo(&client), b.echo(&server)];
            let streams: Vec<_> = (0..6).map(|_| connect(&client, &b, ports[1])).collect();
            eventually("spread", || by_lane(&a) == expected(&vec![6 / lanes; lanes]));
            streams.into_iter().for_each(|stream| check_echo(stream, 20_000, 3));
            // From the other side too.
            check_echo(connect(&server, &a, ports[0]), 20_000, 4);
        }
    });
}

#[test]
fn a_daemon_that_comes_back_with_fewer_engines_is_connected_to() {
    bounded(|| {
        let (a, mut b) = (host(3), host(3));
        let client = a.session();
        let server = b.session();
        let port = b.echo(&server);
        let streams: Vec<_> = (0..3).map(|_| connect(&client, &b, port)).collect();
        eventually("spread", || by_lane(&a) == expected(&[1, 1, 1]));
        b.stop();
        eventually("all are reset", || {
            a.connections().iter().all(|row| row.lane.is_none()) || a.connections().is_empty()
        });
        drop(streams);
        b.config.engines = 1;
        b.start();
        let server = b.session();
        let port = b.echo(&server);
        let connect = || Stream::connect_with(&client, (b.address(), port));
        // A connect that was under way when the link went may fail with it; none hangs.
        eventually("a connect", || match connect() {
            Ok(stream) => {
                check_echo(stream, 10_000, 5);
                true
            }
            Err(ConnectError::Refused { reason: Reason::PeerLost | Reason::ShuttingDown, .. }) => false,
            Err(e) => panic!("{e}"),
        });
        let streams: Vec<_> = (0..4).map(|_| connect().unwrap()).collect();
        eventually("all on the lane that there is", || by_lane(&a) == expected(&[4]));
        streams.into_iter().for_each(|stream| check_echo(stream, 10_000, 6));
    });
}

/// Nothing of a program stays at any engine, nor in the daemon.
#[test]
fn a_program_that_leaves_is_forgotten_by_all_engines() {
    bounded(|| {
        let (a, b) = (host(4), host(4));
        let server = b.session();
        let port = b.echo(&server);
        for _ in 0..3 {
            let client = a.session();
            let streams: Vec<_> = (0..8).map(|_| connect(&client, &b, port)).collect();
            eventually("spread", || by_lane(&a).len() == 4);
            drop(streams);
            drop(client);
            eventually("gone", || a.stat().apps.is_empty() && a.connections().is_empty());
        }
        let fds = a.stat().fds;
        for _ in 0..20 {
            drop(a.session());
        }
        eventually("descriptors are closed", || a.stat().apps.is_empty() && a.stat().fds <= fds + 2);
    });
}

#[test]
fn the_check_refuses_ports_that_the_start_refuses() {
    let mut host = Host::new();
    (host.config.engines, host.config.udp_port) = (3, u16::MAX - 1);
    let refused = [raasd::check(&host.config).unwrap_err(), Daemon::start(host.config.clone()).unwrap_err()];
    for error in refused {
        assert!(error.to_string().contains("udp_port is 65534: 3 engines") && error.to_string().contains("65533"));
    }
    host.config.udp_port = u16::MAX - 2;
    raasd::check(&host.config).unwrap();
    host.config.engines = 17;
    let refused = raasd::check(&host.config).unwrap_err().to_string();
    assert!(refused.contains("engines is 17: use 1 to 16"), "{refused}");
}
