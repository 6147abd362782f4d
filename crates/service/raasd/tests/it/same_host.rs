//! Two programs of one host: shared memory, no daemon on the path.

use std::io::{Read, Write};
use std::time::Duration;

use raas::{Listener, PathKind, Reason, Session, Stream, StreamError};

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually};

#[test]
fn programs_of_one_host_share_memory() {
    bounded(|| {
        let host = Host::started();
        let (client, server) = (host.session(), host.session());
        let port = host.echo(&server);
        let streams: Vec<_> =
            (0..100).map(|_| Stream::connect_with(&client, (host.address(), port)).unwrap()).collect();
        assert_eq!((streams[0].path(), streams[0].reason()), (PathKind::Shm, Reason::SameHost));
        let rows = host.connections();
        assert_eq!(rows.len(), 200);
        assert!(rows.iter().all(|r| r.path == PathKind::Shm && r.reason == Reason::SameHost && r.lane.is_none()));
        let ids: std::collections::BTreeSet<u64> = rows.iter().map(|r| r.id).collect();
        assert_eq!(ids.len(), 200);
        assert!(streams.iter().all(|s| ids.contains(&s.id())));
        let stat = host.stat();
        assert_eq!((stat.rc_qps, stat.apps.len()), (0, 2), "{stat:?}");
        assert!(stat.apps.iter().all(|a| a.connections == 100), "{stat:?}");
        for (seed, stream) in (0..).zip(streams) {
            check_echo(stream, 20_000, seed);
        }
        eventually("closed connections leave the table", || host.connections().is_empty());
        // Slots are used again.
        for seed in 0..100 {
            check_echo(Stream::connect_with(&client, (host.address(), port)).unwrap(), 100, seed);
        }
    });
}

#[test]
fn a_program_connects_to_itself() {
    bounded(|| {
        let host = Host::started();
        let session = host.session();
        let port = host.echo(&session);
        for seed in 0..10 {
            check_echo(Stream::connect_with(&session, (host.address(), port)).unwrap(), 50_000, seed);
        }
    });
}

/// A connection and its other end. A process takes part in pairs while it is in the library, as in `accept`.
fn join(client: &Session, listener: &Listener) -> (Stream, Stream) {
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept_timeout(PATIENCE).unwrap().0);
        (Stream::connect_with(client, listener.local_addr().unwrap()).unwrap(), accepting.join().unwrap())
    })
}

#[test]
fn rows_count_bytes_and_what_is_queued() {
    bounded(|| {
        let host = Host::started();
        let (client, server) = (host.session(), host.session());
        let listener = Listener::bind_with(&server, (host.address(), 0)).unwrap();
        // The pair is there, so that the next connect needs nobody in `accept`.
        let _first = join(&client, &listener);
        let mut stream = Stream::connect_with(&client, listener.local_addr().unwrap()).unwrap();
        let states = || host.connections().iter().map(|r| r.state).collect::<Vec<_>>();
        assert_eq!(states().iter().filter(|s| **s == control::ConnectionState::Backlog).count(), 1);
        let (mut accepted, _) = listener.accept_timeout(PATIENCE).unwrap();
        eventually("the daemon hears of the accept", || {
            states().iter().all(|s| *s == control::ConnectionState::Established)
        });
        stream.write_all(&[1; 1000]).unwrap();
        accepted.read_exact(&mut [0; 400]).unwrap();
        let row = |id: u64| host.connections().into_iter().find(|r| r.id == id).unwrap();
        let (sent, arrived) = (row(stream.id()), row(accepted.id()));
        assert_eq!((sent.tx_bytes, arrived.rx_bytes), (1000, 1000));
        // A reader says how far it is now and then, and before it waits.
        assert!((600..=1000).contains(&sent.tx_queued_bytes), "{sent:?}");
        accepted.read_exact(&mut [0; 600]).unwrap();
        accepted.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        assert!(accepted.read(&mut [0]).is_err(), "there is nothing more to read");
        let (sent, arrived) = (row(stream.id()), row(accepted.id()));
        assert_eq!((sent.tx_queued_bytes, arrived.rx_queued_bytes), (0, 0));
        assert_eq!(sent.local, arrived.peer);
    });
}

#[test]
fn connections_of_one_host_outlive_its_daemon() {
    bounded(|| {
        let mut host = Host::started();
        let (client, server) = (host.session(), host.session());
        let listener = Listener::bind_with(&server, (host.address(), 0)).unwrap();
        let (mut stream, mut accepted) = join(&client, &listener);
        host.stop();
        accepted.set_read_timeout(Some(PATIENCE)).unwrap();
        for _ in 0..100 {
            stream.write_all(b"still here").unwrap();
            let mut buffer = [0; 10];
            accepted.read_exact(&mut buffer).unwrap();
            assert_eq!(&buffer, b"still here");
        }
        drop(stream);
        assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn the_other_programs_death_is_noticed() {
    bounded(|| {
        let host = Host::started();
        let server = host.session();
        let listener = Listener::bind_with(&server, (host.address(), 0)).unwrap();
        let mut program = crate::control_socket::RawClient::attached(&host);
        program.connect(1, listener.local_addr().unwrap(), 0);
        let mut accepted = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept_timeout(PATIENCE).unwrap().0);
            program.play_pairs_until_connected();
            accepting.join().unwrap()
        });
        assert_eq!(host.connections().len(), 2);
        drop(program);
        accepted.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = accepted.read(&mut [0]).unwrap_err();
        assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerAppDied));
        eventually("its rows are gone", || host.connections().is_empty());
    });
}

#[test]
fn an_ipv6_host() {
    bounded(|| {
        let mut host = Host::new();
        // The one IPv6 address that every machine has, so at ports of the system's choice.
        host.config.listen = "::1".parse().unwrap();
        (host.config.peer_port, host.config.udp_port) = (0, 0);
        host.start();
        let session = host.session();
        let port = host.echo(&session);
        let stream = Stream::connect_with(&session, (host.address(), port)).unwrap();
        assert!(stream.local_addr().unwrap().is_ipv6() && stream.peer_addr().unwrap().is_ipv6());
        check_echo(stream, 10_000, 6);
    });
}
