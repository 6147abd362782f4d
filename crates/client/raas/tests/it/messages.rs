//! Messages: boundaries, limits, kinds, not waiting. On both paths.

use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Duration;

use raas::{
    ConnectError, ConnectOptions, ListenOptions, Listener, MessageError, MessageListener, MessageStream, Readiness,
    Reason, Session, Stream,
};

use crate::Watchdog;
use crate::fake_daemon::FakeDaemon;
use crate::world::{PATHS, pattern};

struct Two {
    _daemon: FakeDaemon,
    client: MessageStream,
    server: MessageStream,
}

fn two(host: &str, rings: [u32; 2]) -> Two {
    let daemon = FakeDaemon::start();
    let far = Session::builder().socket(daemon.path()).background(true).connect().unwrap();
    let options = ListenOptions::new().ring_bytes(rings[1]);
    let listener = MessageListener::bind_with(&far, "0.0.0.0:0", options).unwrap();
    let to = SocketAddr::new(host.parse().unwrap(), listener.local_addr().unwrap().port());
    let options = ConnectOptions::new().ring_bytes(rings[0]);
    let client = MessageStream::connect_with(&daemon.session(), to, options).unwrap();
    let (server, _) = listener.accept().unwrap();
    Two { _daemon: daemon, client, server }
}

fn error_of(e: &std::io::Error) -> MessageError {
    *e.get_ref().unwrap().downcast_ref().unwrap()
}

#[test]
fn messages_keep_their_boundaries() {
    let _watchdog = Watchdog::start("messages_keep_their_boundaries");
    for (host, path) in PATHS {
        let t = two(host, [8192, 8192]);
        assert_eq!((t.client.path(), t.server.path()), (path, path));
        let lens = |i: usize| [0, 1, 7, 700, 4000, t.client.len_max()][i % 6];
        thread::scope(|s| {
            s.spawn(|| {
                for i in 0..600 {
                    t.client.send(&pattern(lens(i), i as u32)).unwrap();
                }
                t.client.shutdown(Shutdown::Write).unwrap();
            });
            let mut buffer = vec![0; 8192];
            for i in 0..600 {
                let len = t.server.receive(&mut buffer).unwrap().unwrap();
                assert!(buffer[..len] == pattern(lens(i), i as u32), "message {i} of {len} bytes");
            }
            assert_eq!(t.server.receive(&mut buffer).unwrap(), None);
        });
    }
}

#[test]
fn the_first_message_may_be_as_long_as_the_whole_ring() {
    let _watchdog = Watchdog::start("the_first_message_may_be_as_long_as_the_whole_ring");
    for (host, _) in PATHS {
        let t = two(host, [1 << 20, 1 << 20]);
        let len = t.client.len_max();
        assert_eq!(len, (1 << 20) - 4);
        thread::scope(|s| {
            s.spawn(|| (0..40).for_each(|i| t.client.send(&pattern(len - i, i as u32)).unwrap()));
            for i in 0..40 {
                let got = t.server.receive_vec().unwrap().unwrap();
                assert!(got == pattern(len - i, i as u32), "message {i} of {} bytes", got.len());
            }
        });
    }
}

#[test]
fn too_long_is_refused_and_too_small_is_kept() {
    let _watchdog = Watchdog::start("too_long_is_refused_and_too_small_is_kept");
    for (host, _) in PATHS {
        let t = two(host, [4096, 4096]);
        assert_eq!(t.client.len_max(), 4092);
        let e = t.client.send(&[0; 4093]).unwrap_err();
        assert_eq!((e.kind(), error_of(&e)), (ErrorKind::InvalidInput, MessageError::TooLong { len: 4093, max: 4092 }));
        t.client.send(b"twelve bytes").unwrap();
        t.client.send(b"next").unwrap();
        for _ in 0..2 {
            let e = t.server.receive(&mut [0; 11]).unwrap_err();
            assert_eq!(error_of(&e), MessageError::BufferTooSmall { len: 12, buffer: 11 });
        }
        assert_eq!(t.server.receive_vec().unwrap().unwrap(), b"twelve bytes");
        let parts = [std::io::IoSlice::new(b"a"), std::io::IoSlice::new(b""), std::io::IoSlice::new(b"bc")];
        t.server.send_vectored(&parts).unwrap();
        assert_eq!(t.client.receive_vec().unwrap().unwrap(), b"abc");
        assert_eq!(t.server.receive_vec().unwrap().unwrap(), b"next");
    }
}

#[test]
fn nonblocking_sends_are_whole_or_not_at_all() {
    let _watchdog = Watchdog::start("nonblocking_sends_are_whole_or_not_at_all");
    for (host, _) in PATHS {
        let t = two(host, [4096, 4096]);
        t.client.set_nonblocking(true).unwrap();
        t.server.set_nonblocking(true).unwrap();
        let mut buffer = [0; 4096];
        assert_eq!(t.server.receive(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        let (mut sent, mut got) = (0u32, 0u32);
        while got < 2000 {
            while sent < 2000 {
                match t.client.send(&pattern(1500, sent)) {
                    Ok(()) => sent += 1,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => panic!("{e}"),
                }
            }
            match t.server.receive(&mut buffer) {
                Ok(len) => {
                    assert!(buffer[..len.unwrap()] == pattern(1500, got), "message {got}");
                    got += 1;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => panic!("{e}"),
            }
        }
        assert!(!t.server.readiness().unwrap().contains(Readiness::READ));
    }
}

#[test]
fn a_message_longer_than_the_receivers_ring_arrives_in_parts() {
    let _watchdog = Watchdog::start("a_message_longer_than_the_receivers_ring_arrives_in_parts");
    let t = two(crate::fake_daemon::THERE, [65_536, 4096]);
    let message = pattern(60_000, 5);
    t.server.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    thread::scope(|s| {
        s.spawn(|| t.client.send(&message).unwrap());
        let got = loop {
            match t.server.receive_vec() {
                Ok(got) => break got.unwrap(),
                Err(e) => assert_eq!(e.kind(), ErrorKind::TimedOut, "{e}"),
            }
        };
        assert!(got == message);
    });
}

#[test]
fn kinds_must_agree() {
    let _watchdog = Watchdog::start("kinds_must_agree");
    for (host, _) in PATHS {
        let daemon = FakeDaemon::start();
        let session = daemon.session();
        let streams = Listener::bind_with(&session, "0.0.0.0:0").unwrap();
        let messages = MessageListener::bind_with(&session, "0.0.0.0:0", ListenOptions::new()).unwrap();
        let to = |port| SocketAddr::new(host.parse().unwrap(), port);
        let refused = Stream::connect_with(&session, to(messages.local_addr().unwrap().port())).unwrap_err();
        assert!(matches!(refused, ConnectError::Refused { reason: Reason::WrongKind, .. }), "{refused}");
        let to = to(streams.local_addr().unwrap().port());
        let refused = MessageStream::connect_with(&session, to, ConnectOptions::new()).unwrap_err();
        assert!(matches!(refused, ConnectError::Refused { reason: Reason::WrongKind, .. }), "{refused}");
    }
}
