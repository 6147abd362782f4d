//! Sessions and their slots: many connections, used again, and a daemon that fails.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use raas::{Listener, Reason, Session, Stream, StreamError};

use crate::Watchdog;
use crate::fake_daemon::{Command, FakeDaemon, HERE, THERE};
use crate::world::{PATHS, connect, pattern, two};

#[test]
fn many_blocked_threads_each_get_their_own_bytes() {
    let _watchdog = Watchdog::start("many_blocked_threads_each_get_their_own_bytes");
    for (host, _) in PATHS {
        let daemon = FakeDaemon::start();
        let sessions = [daemon.session(), daemon.session()];
        let pairs: Vec<_> = (0..40).map(|_| connect(&sessions, host, 4096)).collect();
        let (clients, servers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let echoes: Vec<_> = servers
            .into_iter()
            .map(|mut server| {
                thread::spawn(move || {
                    let mut buffer = [0; 512];
                    while let Ok(n @ 1..) = server.read(&mut buffer) {
                        server.write_all(&buffer[..n]).unwrap();
                    }
                })
            })
            .collect();
        let askers: Vec<_> = clients
            .into_iter()
            .zip(0u32..)
            .map(|(mut client, i)| {
                thread::spawn(move || {
                    for round in 0..20 {
                        let message = pattern(300, i * 1000 + round);
                        client.write_all(&message).unwrap();
                        thread::sleep(Duration::from_micros(u64::from((i * 37 + round) % 300)));
                        let mut answer = [0; 300];
                        client.read_exact(&mut answer).unwrap();
                        assert_eq!(answer[..], message[..]);
                    }
                })
            })
            .collect();
        for thread in askers.into_iter().chain(echoes) {
            thread.join().unwrap();
        }
        wait_until_unused(&daemon, &sessions);
    }
}

/// All slots go back to the daemon; somebody must look at the sockets for it.
fn wait_until_unused(daemon: &FakeDaemon, sessions: &[Session; 2]) {
    loop {
        let facts = daemon.facts();
        if facts.lane_slots_used == 0 && facts.pair_slots_used == 0 {
            return;
        }
        for session in sessions {
            let listener = Listener::bind_with(session, "127.0.0.1:0").unwrap();
            assert!(listener.accept_timeout(Duration::from_millis(5)).is_err());
        }
    }
}

#[test]
fn slots_are_used_again_and_start_fresh() {
    let _watchdog = Watchdog::start("slots_are_used_again_and_start_fresh");
    for (host, _) in PATHS {
        let daemon = FakeDaemon::start();
        let sessions = [daemon.session(), daemon.session()];
        for round in 0..150u32 {
            let (mut client, mut server) = connect(&sessions, host, 4096);
            let data = pattern(round as usize * 20, round);
            client.write_all(&data).unwrap();
            drop(client);
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            assert!(got == data, "round {round}");
        }
        wait_until_unused(&daemon, &sessions);
    }
}

#[test]
fn more_connections_than_one_segment_holds() {
    let _watchdog = Watchdog::start("more_connections_than_one_segment_holds");
    let daemon = FakeDaemon::start();
    let sessions = [daemon.session(), daemon.session()];
    let mut open: Vec<_> = (0..150).map(|_| connect(&sessions, HERE, 4096)).collect();
    for (i, (client, server)) in open.iter_mut().enumerate() {
        let message = pattern(100, u32::try_from(i).unwrap());
        client.write_all(&message).unwrap();
        let mut got = [0; 100];
        server.read_exact(&mut got).unwrap();
        assert_eq!(got[..], message[..]);
    }
}

#[test]
fn a_session_can_connect_to_itself() {
    let _watchdog = Watchdog::start("a_session_can_connect_to_itself");
    for (host, _) in PATHS {
        let daemon = FakeDaemon::start();
        let session = daemon.session();
        let listener = Listener::bind_with(&session, "0.0.0.0:0").unwrap();
        let to = SocketAddr::new(host.parse().unwrap(), listener.local_addr().unwrap().port());
        let mut client = Stream::connect_with(&session, to).unwrap();
        client.write_all(b"to myself").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut got = [0; 9];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"to myself");
    }
}

#[test]
fn connections_nobody_accepted_are_reset() {
    let _watchdog = Watchdog::start("connections_nobody_accepted_are_reset");
    for (host, _) in PATHS {
        let daemon = FakeDaemon::start();
        let session = daemon.session();
        let listener = Listener::bind_with(&session, "0.0.0.0:0").unwrap();
        let to = SocketAddr::new(host.parse().unwrap(), listener.local_addr().unwrap().port());
        let mut client = Stream::connect_with(&session, to).unwrap();
        drop(listener);
        let error = client.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_daemons_death_ends_lanes_and_spares_pairs() {
    let _watchdog = Watchdog::start("a_daemons_death_ends_lanes_and_spares_pairs");
    let mut t = two(HERE, 4096);
    let (mut far_client, far_server) = connect(&t.sessions, THERE, 4096);
    far_client.write_all(b"last words").unwrap();
    while far_server.unread_bytes().unwrap() < 10 {
        thread::yield_now();
    }
    let listener = Listener::bind_with(&t.sessions[0], "127.0.0.1:0").unwrap();
    thread::scope(|s| {
        let blocked = s.spawn(|| (&far_client).read(&mut [0; 1]).unwrap_err());
        let accepting = s.spawn(|| listener.accept().unwrap_err());
        thread::sleep(Duration::from_millis(20));
        t.daemon.die();
        let error = blocked.join().unwrap();
        assert_eq!(StreamError::reason_of(&error), Some(Reason::DaemonLost));
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        let error = accepting.join().unwrap();
        assert!(matches!(error, raas::AcceptError::Session(raas::SessionError::Lost { .. })), "{error:?}");
    });
    let mut got = [0; 10];
    (&far_server).read_exact(&mut got).unwrap();
    let error = (&far_server).read(&mut got).unwrap_err();
    assert_eq!(StreamError::reason_of(&error), Some(Reason::DaemonLost), "after what had arrived");
    assert!(far_client.write(b"x").is_err());
    assert!(!t.sessions[0].is_usable());
    let refused = Stream::connect_with(&t.sessions[0], "127.0.0.1:1").unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::DaemonLost));
    // The same-host connection does not notice.
    for i in 0..200u32 {
        let message = pattern(3000, i);
        t.client.write_all(&message).unwrap();
        let mut got = vec![0; 3000];
        t.server.read_exact(&mut got).unwrap();
        assert!(got == message);
    }
    drop(t.client);
    assert_eq!(t.server.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_lanes_failure_is_told_with_its_reason() {
    let _watchdog = Watchdog::start("a_lanes_failure_is_told_with_its_reason");
    let mut t = two(THERE, 4096);
    t.daemon.command(Command::ResetLanes(Reason::PeerLost));
    let error = t.client.read(&mut [0; 1]).unwrap_err();
    assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerLost));
    // The other end learns of it a moment later.
    let error = t.server.read(&mut [0; 1]).unwrap_err();
    assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerLost));
    let error = t.server.write(&[0; 1]).unwrap_err();
    assert_eq!(StreamError::reason_of(&error), Some(Reason::PeerLost));
}

/// A reader rings for what it has read only before it sleeps. This one finds each message there, and never sleeps.
#[test]
fn small_messages_ring_for_data_alone() {
    let _watchdog = Watchdog::start("small_messages_ring_for_data_alone");
    let mut t = two(THERE, 65536);
    let (rounds, before) = (20, t.daemon.facts().doorbells);
    for round in 1..=rounds {
        t.client.write_all(&[1; 64]).unwrap();
        // The daemon that has seen the bell has carried the message.
        while t.daemon.facts().doorbells < before + round {
            thread::yield_now();
        }
        t.server.read_exact(&mut [0; 64]).unwrap();
    }
    let rung = t.daemon.facts().doorbells - before;
    assert!(rung <= rounds + 2, "{rung} doorbells for {rounds} messages of 64 bytes");
}
