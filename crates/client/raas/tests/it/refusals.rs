//! What the library says when it cannot.

use std::io::ErrorKind;
use std::time::Duration;

use control::{Reason, Reply};
use raas::{BindError, ConnectError, ConnectOptions, ListenOptions, Listener, Session, SessionError, Stream};

use crate::Watchdog;
use crate::fake_daemon::{Command, FakeDaemon, Options};

#[test]
fn no_daemon_names_the_socket_and_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nobody.sock");
    let error = Session::connect(&path).unwrap_err();
    assert!(matches!(&error, SessionError::NoDaemon { path: p, .. } if *p == path));
    let words = error.to_string();
    assert!(words.contains("raas daemon") && words.contains("nobody.sock"), "{words}");
    // A socket file that a dead daemon left behind says the same.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(matches!(Session::connect(&path), Err(SessionError::NoDaemon { .. })));
}

#[test]
fn version_mismatch_names_both() {
    let refuse = Reply::Refused {
        version: 77,
        layout: 78,
        release: "9.9".into(),
        reason: Reason::PeerVersion,
        detail: String::new(),
    };
    let daemon = FakeDaemon::start_with(Options { refuse: Some(refuse), ..Options::default() });
    let error = Session::connect(daemon.path()).unwrap_err();
    let words = error.to_string();
    let ours = format!("protocol {} and memory layout {}", control::APP_VERSION, shm::LAYOUT_VERSION);
    assert!(words.contains(&ours) && words.contains("77 and 78") && words.contains("9.9"), "{words}");
}

#[test]
fn a_refusal_keeps_its_reason() {
    let refuse = Reply::Refused {
        version: control::APP_VERSION,
        layout: shm::LAYOUT_VERSION,
        release: "1".into(),
        reason: Reason::LocalLimit,
        detail: "too many applications".into(),
    };
    let daemon = FakeDaemon::start_with(Options { refuse: Some(refuse), ..Options::default() });
    let error = Session::connect(daemon.path()).unwrap_err();
    assert!(matches!(&error, SessionError::Refused { reason: Reason::LocalLimit, .. }), "{error:?}");
    assert!(error.to_string().contains("too many applications"));
}

#[test]
fn connects_that_cannot_be() {
    let _watchdog = Watchdog::start("connects_that_cannot_be");
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let refused = |addr: &str| match Stream::connect_with(&session, addr).unwrap_err() {
        ConnectError::Refused { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused("127.0.0.1:9"), Reason::NoListener);
    assert_eq!(refused("127.0.0.2:9"), Reason::NoListener);
    assert_eq!(refused("10.1.2.3:9"), Reason::PeerUnreachable);
    let io: std::io::Error = Stream::connect_with(&session, "127.0.0.1:9").unwrap_err().into();
    assert_eq!(io.kind(), ErrorKind::ConnectionRefused);
    assert!(matches!(Stream::connect_with(&session, "no port"), Err(ConnectError::Resolve(_))));
    let odd = ConnectOptions::new().ring_bytes(5000).connect(&session, "127.0.0.1:9");
    assert!(matches!(odd, Err(ConnectError::RingBytes(5000))));
}

#[test]
fn a_silent_daemon_is_given_up() {
    let _watchdog = Watchdog::start("a_silent_daemon_is_given_up");
    let daemon = FakeDaemon::start_with(Options { mute: true, ..Options::default() });
    let session = daemon.session();
    let listener = Listener::bind_with(&session, "0.0.0.0:0").unwrap();
    let options = ConnectOptions::new().timeout(Duration::from_millis(50));
    let error = options.connect(&session, listener.local_addr().unwrap()).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    while daemon.facts().cancelled == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn binds_that_cannot_be() {
    let _watchdog = Watchdog::start("binds_that_cannot_be");
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let listener = Listener::bind_with(&session, "127.0.0.1:0").unwrap();
    let error = Listener::bind_with(&session, listener.local_addr().unwrap()).unwrap_err();
    assert!(matches!(error, BindError::Refused { reason: Reason::PortInUse, .. }), "{error:?}");
    assert_eq!(std::io::Error::from(error).kind(), ErrorKind::AddrInUse);
    let error = Listener::bind_with(&session, "10.9.9.9:80").unwrap_err();
    assert!(error.to_string().contains("127.0.0.1"), "it names this host's addresses: {error}");
    let odd = ListenOptions::new().ring_bytes(1).bind(&session, "127.0.0.1:0");
    assert!(matches!(odd, Err(BindError::RingBytes(1))));
    drop(listener);
    while daemon.facts().listeners > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_full_backlog_refuses() {
    let _watchdog = Watchdog::start("a_full_backlog_refuses");
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let listener = ListenOptions::new().backlog(1).bind(&session, "127.0.0.1:0").unwrap();
    let _first = Stream::connect_with(&session, listener.local_addr().unwrap()).unwrap();
    let error = Stream::connect_with(&session, listener.local_addr().unwrap()).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::BacklogFull));
    listener.accept().unwrap();
    let _second = Stream::connect_with(&session, listener.local_addr().unwrap()).unwrap();
}

#[test]
fn accept_has_a_timeout() {
    let _watchdog = Watchdog::start("accept_has_a_timeout");
    let daemon = FakeDaemon::start();
    let listener = Listener::bind_with(&daemon.session(), "127.0.0.1:0").unwrap();
    let error = listener.accept_timeout(Duration::from_millis(30)).unwrap_err();
    assert_eq!(std::io::Error::from(error).kind(), ErrorKind::TimedOut);
}

#[test]
fn a_daemon_that_talks_nonsense_ends_the_session() {
    let _watchdog = Watchdog::start("a_daemon_that_talks_nonsense_ends_the_session");
    let unknown_chunk = Reply::Connected {
        request: 999,
        result: Ok(control::Connection {
            id: 1,
            local: "127.0.0.1:1".parse().unwrap(),
            peer: "127.0.0.1:1".parse().unwrap(),
            path: control::Path::Lane {
                slot: 70_000,
                generation: 1,
                tx_chunk: 5,
                tx_offset: u64::MAX,
                rx_chunk: 6,
                rx_offset: 3,
                ring_bytes: 12,
                grown_bytes: 12,
            },
            ticket: Vec::new(),
        }),
    };
    let wanted = Reply::PairSegmentWanted { pair: 1, index: 0, slots: 3, ring_bytes: 1 << 31 };
    for (command, survives) in [
        (Command::Say(unknown_chunk), true),
        (Command::Say(wanted), false),
        (Command::Say(Reply::PairOpened { pair: u64::MAX, peer_pid: 0 }), false),
        (Command::Say(Reply::PairSegment { pair: 9, index: 9, slots: 64, ring_bytes: 4096 }), false),
        (Command::Say(Reply::ChunkGone { chunk: 77 }), true),
        (Command::Say(Reply::Listening { request: 1000, result: Err(Reason::Policy) }), true),
        (Command::Say(Reply::Detached { reason: Reason::Policy, detail: "enough".into() }), false),
        (Command::Say(Reply::Chunk { chunk: 0, kind: control::ChunkKind::Tx, bytes: 1 }), false),
        (Command::Garble, false),
    ] {
        let daemon = FakeDaemon::start();
        let session = daemon.session();
        let listener = Listener::bind_with(&session, "127.0.0.1:0").unwrap();
        daemon.command(command);
        let outcome = listener.accept_timeout(Duration::from_secs(if survives { 1 } else { 60 }));
        assert_eq!(matches!(outcome, Err(raas::AcceptError::TimedOut(_))), survives, "{outcome:?}");
        assert_eq!(session.is_usable(), survives);
    }
}

#[test]
fn inspectors_get_all_parts() {
    let _watchdog = Watchdog::start("inspectors_get_all_parts");
    let daemon = FakeDaemon::start();
    let rows = raas::inspect::connections(Some(daemon.path())).unwrap();
    assert_eq!(rows.iter().map(|r| r.id).collect::<Vec<_>>(), [1, 2]);
    assert!(raas::inspect::stat(Some(daemon.path())).is_err(), "rows are no state");
}

#[test]
fn names_stand_for_addresses_each_of_which_is_tried() {
    let _watchdog = Watchdog::start("names_stand_for_addresses_each_of_which_is_tried");
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let listener = Listener::bind_with(&session, "127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let list = |hosts: [[u8; 4]; 3]| hosts.map(|host| std::net::SocketAddr::from((host, port)));
    // The first two have no daemon.
    let stream = Stream::connect_with(&session, &list([[10, 1, 2, 3], [10, 1, 2, 4], [127, 0, 0, 1]])[..]).unwrap();
    assert_eq!(stream.peer_addr().unwrap().port(), port);
    // The system's resolver: with IPv6 first, if it likes.
    Stream::connect_with(&session, ("localhost", port)).unwrap();
    let error = Stream::connect_with(&session, &list([[10, 1, 2, 3], [10, 1, 2, 4], [10, 1, 2, 5]])[..]).unwrap_err();
    let text = error.to_string();
    assert!(matches!(&error, ConnectError::All(all) if all.len() == 3), "{text}");
    assert!(["10.1.2.3", "10.1.2.4", "10.1.2.5"].iter().all(|a| text.contains(a)), "{text}");
    assert_eq!(error.reason(), Some(Reason::PeerUnreachable));
    let nobody: &[std::net::SocketAddr] = &[];
    assert!(matches!(Stream::connect_with(&session, nobody), Err(ConnectError::Resolve(_))));
    let error = Listener::bind_with(&session, &list([[10, 1, 2, 3], [10, 1, 2, 4], [10, 1, 2, 5]])[..]).unwrap_err();
    assert!(matches!(&error, BindError::All(all) if all.len() == 3), "{error}");
}
