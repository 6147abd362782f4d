//! Programs go on with the daemon that comes after one that ended without a word (docs/operate/restart.md).

use std::io::{Read, Write};
use std::time::Duration;

use raas::{Listener, PathKind, Reason, Session, SessionError, Stream};

use crate::hosts::{Host, PATIENCE, bounded, eventually};

/// Two programs of a host, and a connection between them.
struct Two {
    host: Host,
    sessions: [Session; 2],
    listener: Listener,
    client: Stream,
    server: Stream,
}

fn two() -> Two {
    let host = Host::started();
    // Each is followed by a thread of its own, as that of a program that sleeps in its own poll.
    let builder = || Session::builder().socket(&host.config.socket).daemon_wait(PATIENCE);
    let followed = || builder().background(true).connect().unwrap();
    let sessions = [followed(), followed()];
    let listener = Listener::bind_with(&sessions[1], (host.address(), 0)).unwrap();
    let (client, server) = connect(&sessions[0], &listener);
    Two { host, sessions, listener, client, server }
}

/// A connection, as soon as the port is open at the daemon that is there.
fn connect(from: &Session, listener: &Listener) -> (Stream, Stream) {
    let mut client = None;
    eventually("the port is open", || {
        client = Stream::connect_with(from, listener.local_addr().unwrap()).ok();
        client.is_some()
    });
    (client.unwrap(), listener.accept_timeout(PATIENCE).unwrap().0)
}

impl Two {
    fn exchange(&mut self) {
        for seed in 0..20_u8 {
            let sent = vec![seed; 30_000];
            self.client.write_all(&sent).unwrap();
            let mut got = vec![0; sent.len()];
            self.server.read_exact(&mut got).unwrap();
            assert!(got == sent);
            self.server.write_all(&got[..9]).unwrap();
            self.client.read_exact(&mut got[..9]).unwrap();
        }
    }

    /// Ids of the rows of same-host connections.
    fn rows(&self) -> Vec<u64> {
        let rows = self.host.connections();
        rows.iter().filter(|row| row.path == PathKind::Shm).map(|row| row.id).collect()
    }
}

#[test]
fn connections_of_a_host_go_on_and_are_shown_by_the_next_daemon() {
    bounded(|| {
        let mut t = two();
        t.exchange();
        let ids = t.rows();
        assert_eq!(ids.len(), 2);
        for restarts in 1..=3_u64 {
            t.host.hand_over();
            assert!(t.sessions.iter().all(|session| !session.is_usable()));
            t.exchange();
            t.host.start();
            eventually("both came back", || t.sessions.iter().all(Session::is_usable));
            let mut shown = t.rows();
            shown.sort_unstable();
            assert_eq!(shown.len(), 2, "{shown:?} of {ids:?}");
            let row = t.host.connections().into_iter().find(|row| row.tx_bytes > 0).unwrap();
            assert!(row.tx_bytes >= 600_000 * (restarts + 1) || row.rx_bytes > 0, "{row:?}");
            t.exchange();
            // What is new has numbers that nothing old has.
            let (more, mut accepted) = connect(&t.sessions[0], &t.listener);
            (&more).write_all(b"hello").unwrap();
            let mut got = [0; 5];
            accepted.read_exact(&mut got).unwrap();
            assert_eq!((&got, t.rows().len()), (b"hello", 4));
            drop((more, accepted));
            eventually("the new one is over", || t.rows().len() == 2);
        }
        assert_eq!(t.host.stat().apps.len(), 2);
        let Two { host, sessions: _sessions, client, server, .. } = t;
        drop((client, server));
        eventually("the old ones are over", || {
            raas::inspect::connections(Some(&host.config.socket)).unwrap().is_empty()
        });
    });
}

#[test]
fn a_listener_that_waits_hears_nothing_of_a_restart() {
    bounded(|| {
        let mut t = two();
        let at = t.listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| t.listener.accept_timeout(PATIENCE).unwrap().0);
            std::thread::sleep(Duration::from_millis(50));
            let daemon = t.host.daemon.take().unwrap();
            daemon.hand_over().unwrap();
            std::thread::sleep(Duration::from_millis(50));
            t.host.daemon = Some(raasd::Daemon::start(t.host.config.clone()).unwrap());
            let mut client = None;
            eventually("the port is open again", || {
                client = Stream::connect_with(&t.host.session(), at).ok();
                client.is_some()
            });
            client.as_mut().unwrap().write_all(b"hello").unwrap();
            let mut got = [0; 5];
            accepting.join().unwrap().read_exact(&mut got).unwrap();
            assert_eq!(&got, b"hello");
        });
    });
}

#[test]
fn a_port_that_another_took_meanwhile_is_told() {
    bounded(|| {
        let mut host = Host::started();
        // Nothing follows this session, so it comes back at its next call, and the thief is first.
        let session = Session::builder().socket(&host.config.socket).daemon_wait(PATIENCE).connect().unwrap();
        let listener = Listener::bind_with(&session, (host.address(), 0)).unwrap();
        let at = listener.local_addr().unwrap();
        host.hand_over();
        host.start();
        let thief = Listener::bind_with(&host.session(), at).unwrap();
        let error = listener.accept_timeout(PATIENCE).unwrap_err();
        assert!(matches!(error, raas::AcceptError::NotListening(_)), "{error}");
        drop(thief);
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept_timeout(PATIENCE).unwrap().0);
            eventually("the port is open again", || Stream::connect_with(&host.session(), at).is_ok());
            accepting.join().unwrap();
        });
    });
}

#[test]
fn without_a_daemon_the_wait_ends_and_says_so() {
    bounded(|| {
        let mut host = Host::started();
        let session =
            Session::builder().socket(&host.config.socket).daemon_wait(Duration::from_millis(300)).connect().unwrap();
        let listener = Listener::bind_with(&session, (host.address(), 0)).unwrap();
        host.hand_over();
        let error = listener.accept_timeout(PATIENCE).unwrap_err();
        let lost = matches!(error, raas::AcceptError::Session(SessionError::Lost { reason: Reason::DaemonLost }));
        assert!(lost, "{error}");
        let refused = Stream::connect_with(&session, listener.local_addr().unwrap()).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::DaemonLost), "{refused}");
    });
}

#[test]
fn what_is_asked_when_the_daemon_ends_fails_and_can_be_asked_again() {
    bounded(|| {
        let mut t = two();
        // Nobody is there, and the daemon looks for it for a while.
        let nowhere = (std::net::IpAddr::from([127, 250, 250, 250]), 9);
        std::thread::scope(|scope| {
            let session = t.sessions[0].clone();
            let connecting = scope.spawn(move || Stream::connect_with(&session, nowhere).unwrap_err());
            std::thread::sleep(Duration::from_millis(30));
            t.host.hand_over();
            let error = connecting.join().unwrap();
            assert!(matches!(error.reason(), Some(Reason::DaemonLost | Reason::PeerUnreachable)), "{error}");
        });
        t.host.start();
        let again = t.sessions[0].reattach().unwrap();
        connect(&again, &t.listener);
    });
}

#[test]
fn what_finds_its_daemon_dead_is_asked_of_the_next_one() {
    bounded(|| {
        let mut host = Host::started();
        // Nothing follows these sessions, so each learns of a death in its next call.
        let unfollowed = || Session::builder().socket(&host.config.socket).daemon_wait(PATIENCE).connect().unwrap();
        let (binds, connects, owns) = (unfollowed(), unfollowed(), unfollowed());
        let listener = Listener::bind_with(&binds, (host.address(), 0)).unwrap();
        let first = listener.local_addr().unwrap();
        for is_there in [true, false] {
            host.hand_over();
            let begin = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let calls = scope.spawn(|| {
                    begin.wait();
                    let second = Listener::bind_with(&binds, (first.ip(), 0)).unwrap();
                    // The port of before is open again by then, and so is the new one.
                    for (listener, to) in [(&listener, first), (&second, second.local_addr().unwrap())] {
                        let (client, server) = std::thread::scope(|scope| {
                            let accepting = scope.spawn(|| listener.accept_timeout(PATIENCE).unwrap().0);
                            (Stream::connect_with(&connects, to).unwrap(), accepting.join().unwrap())
                        });
                        (&client).write_all(b"hello").unwrap();
                        let mut got = [0; 5];
                        (&server).read_exact(&mut got).unwrap();
                        assert_eq!(&got, b"hello");
                    }
                });
                if is_there {
                    host.start();
                }
                begin.wait();
                if !is_there {
                    // The call looks for a daemon meanwhile, and finds none.
                    std::thread::sleep(Duration::from_millis(50));
                    host.start();
                }
                calls.join().unwrap();
            });
            let name = format!("region of round {is_there}");
            let region = raas::RegionOptions::new().create(&owns, &name, 4096);
            drop(region.unwrap());
        }
    });
}

#[test]
fn what_is_started_without_a_daemon_is_finished_by_the_next_one() {
    bounded(|| {
        let mut t = two();
        let at = t.listener.local_addr().unwrap();
        t.host.hand_over();
        let mut dropped = raas::ConnectOptions::new().start(&t.sessions[0], at).unwrap();
        assert!(dropped.try_finish().unwrap().is_none());
        drop(dropped);
        let start = || raas::ConnectOptions::new().start(&t.sessions[0], at).unwrap();
        let mut connecting = start();
        assert!(connecting.try_finish().unwrap().is_none());
        t.host.start();
        let mut client = None;
        eventually("the connect has an answer", || match connecting.try_finish() {
            Ok(stream) => {
                client = stream;
                client.is_some()
            }
            // Both programs come back by themselves, and the one with the port may be later.
            Err(error) => {
                assert_eq!(error.reason(), Some(Reason::NoListener), "{error}");
                connecting = start();
                false
            }
        });
        let client = client.unwrap();
        let mut server = t.listener.accept_timeout(PATIENCE).unwrap().0;
        (&client).write_all(b"hello").unwrap();
        let mut got = [0; 5];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    });
}
