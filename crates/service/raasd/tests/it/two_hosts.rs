//! Two hosts: connecting, data, refusals, the loss of the other host.

use std::io::Read;
use std::sync::Arc;

use raas::{ConnectError, Listener, PathKind, Reason, Stream, StreamError};

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually};

fn reason(result: Result<Stream, ConnectError>) -> Reason {
    result.unwrap_err().reason().unwrap()
}

#[test]
fn many_connections_share_one_queue_pair() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (client, server) = (a.session(), b.session());
        let port = b.echo(&server);
        let streams: Vec<_> = (0..50).map(|_| Stream::connect_with(&client, (b.address(), port)).unwrap()).collect();
        assert_eq!((streams[0].path(), streams[0].reason()), (PathKind::Lane, Reason::OtherHost));
        for host in [&a, &b] {
            let stat = host.stat();
            assert_eq!((stat.rc_qps, stat.srqs, stat.cqs, stat.device.as_str()), (1, 1, 1, "softnic"), "{stat:?}");
            assert_eq!(stat.lanes.len(), 1);
            assert!(stat.fds > 5 && stat.apps.len() == 1, "{stat:?}");
        }
        let rows = a.connections();
        assert_eq!(rows.len(), 50);
        assert!(
            rows.iter().all(|r| r.path == PathKind::Lane && r.route_id.is_some() && r.app_pid == std::process::id())
        );
        std::thread::scope(|scope| {
            for (seed, stream) in (0..).zip(streams) {
                scope.spawn(move || check_echo(stream, 300_000, seed));
            }
        });
        eventually("closed connections leave the table", || a.connections().is_empty() && b.connections().is_empty());
        let stat = a.stat();
        assert!(stat.verbs.write_imm > 0, "{stat:?}");
        assert_eq!(stat.counters.iter().find(|c| c.0 == "rnr_naks").map(|c| c.1), Some(0), "{stat:?}");
    });
}

#[test]
fn both_hosts_connect_at_once() {
    bounded(|| {
        for _ in 0..5 {
            let hosts = [Arc::new(Host::started()), Arc::new(Host::started())];
            let sessions = [hosts[0].session(), hosts[1].session()];
            let ports = [0, 1].map(|i| hosts[i].echo(&sessions[i]));
            std::thread::scope(|scope| {
                for i in 0..8 {
                    let (from, to) = (i % 2, 1 - i % 2);
                    let (session, address) = (&sessions[from], (hosts[to].address(), ports[to]));
                    scope.spawn(move || {
                        let stream = Stream::connect_with(session, address).unwrap();
                        check_echo(stream, 10_000, i as u8);
                    });
                }
            });
            assert_eq!(hosts[0].stat().rc_qps, 1);
        }
    });
}

#[test]
fn refusals_have_their_reasons() {
    bounded(|| {
        let (a, mut b, mut stranger) = (Host::started(), Host::started(), Host::new());
        let session = a.session();
        assert_eq!(reason(Stream::connect_with(&session, (b.address(), 9))), Reason::NoListener);
        assert_eq!(reason(Stream::connect_with(&session, ("127.0.0.250", 9))), Reason::PeerUnreachable);
        stranger.write_key([7; 32]);
        stranger.start();
        let to_stranger = Stream::connect_with(&session, (stranger.address(), 9));
        assert_eq!(reason(to_stranger), Reason::PeerAuth);
        let from_stranger = Stream::connect_with(&stranger.session(), (a.address(), 9));
        assert_eq!(reason(from_stranger), Reason::PeerAuth);
        b.stop();
        eventually("the link's end is noticed", || a.links() == 0);
        assert_eq!(reason(Stream::connect_with(&session, (b.address(), 9))), Reason::PeerUnreachable);
    });
}

#[test]
fn a_stopped_peer_resets_connections_and_may_come_back() {
    bounded(|| {
        let (a, mut b) = (Host::started(), Host::started());
        let client = a.session();
        let server = b.session();
        let listener = Listener::bind_with(&server, (b.address(), 7777)).unwrap();
        let mut stream = Stream::connect_with(&client, (b.address(), 7777)).unwrap();
        let (_accepted, _) = listener.accept_timeout(PATIENCE).unwrap();
        // One that the daemon believes in the backlog would be reset as nobody's.
        eventually("the daemon hears of the accept", || {
            b.connections().iter().all(|r| r.state == control::ConnectionState::Established)
        });
        b.stop();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        let reason = StreamError::reason_of(&error).unwrap();
        assert!(matches!(reason, Reason::ShuttingDown | Reason::PeerLost | Reason::PeerAppDied), "{reason:?}");
        b.start();
        let server = b.session();
        let port = b.echo(&server);
        let stream = Stream::connect_with(&client, (b.address(), port)).unwrap();
        check_echo(stream, 100_000, 3);
    });
}

#[test]
fn a_dead_application_resets_its_connections_and_leaves_nothing() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let server = b.session();
        let listener = Listener::bind_with(&server, (b.address(), 0)).unwrap();
        let to = (b.address(), listener.local_addr().unwrap().port());
        // The lane and its receive buffers stay.
        let first = Stream::connect_with(&a.session(), to).unwrap();
        drop((first, listener.accept_timeout(PATIENCE).unwrap()));
        eventually("the first application is released", || a.stat().apps.is_empty());
        let before = a.stat();
        let mut accepted = Vec::new();
        {
            // A session whose control socket ends without any goodbye, as a killed process's.
            let mut program = crate::control_socket::RawClient::attached(&a);
            for request in 0..10 {
                program.connect(request, to.into(), 0);
                accepted.push(listener.accept_timeout(PATIENCE).unwrap().0);
                program.until_connected();
            }
            assert_eq!(a.connections().len(), 10);
        }
        for stream in &mut accepted {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let error = stream.read(&mut [0]).unwrap_err();
            assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerAppDied));
        }
        drop(accepted);
        eventually("all of the dead application is released", || {
            let now = a.stat();
            now.apps.is_empty() && a.connections().is_empty() && now.pinned_bytes <= before.pinned_bytes
        });
    });
}

#[test]
fn hosts_that_cannot_be_reached_leave_nothing() {
    bounded(|| {
        let mut a = Host::new();
        a.config.set_limit("lanes_max", 4).unwrap();
        a.start();
        let session = a.session();
        for last in 1..=20 {
            let nobody = std::net::SocketAddr::from(([127, 127, 127, last], 9));
            assert_eq!(reason(Stream::connect_with(&session, nobody)), Reason::PeerUnreachable, "{nobody}");
        }
        let b = Host::started();
        let server = b.session();
        let port = b.echo(&server);
        check_echo(Stream::connect_with(&session, (b.address(), port)).unwrap(), 1000, 1);
        assert_eq!(a.stat().rc_qps, 1);
    });
}
