//! What programs for `std::net` and event loops expect of the types: clones, iterators, descriptors, words of errors.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use raas::{
    ConnectError, ConnectOptions, ListenOptions, Listener, MessageError, MessageListener, MessageStream, Readiness,
    Reason, Session, SessionError, Stream, WithFd,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Watchdog;
use crate::fake_daemon::{FakeDaemon, HERE, THERE};
use crate::world::{PATHS, two};

#[test]
fn a_cloned_stream_is_the_same_connection_until_the_last_is_dropped() {
    let _watchdog = Watchdog::start("a_cloned_stream_is_the_same_connection_until_the_last_is_dropped");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        let mut clone = t.client.try_clone().unwrap();
        assert_eq!((clone.id(), clone.local_addr().unwrap()), (t.client.id(), t.client.local_addr().unwrap()));
        assert_eq!(clone.peer_addr().unwrap(), t.client.peer_addr().unwrap());
        t.client.write_all(b"one ").unwrap();
        clone.write_all(b"two ").unwrap();
        drop(t.client);
        clone.write_all(b"three").unwrap();
        let mut got = [0; 13];
        t.server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"one two three");
        t.server.write_all(b"still open").unwrap();
        let mut got = [0; 10];
        clone.read_exact(&mut got).unwrap();
        drop(clone);
        assert_eq!(t.server.read(&mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn a_cloned_listener_has_the_same_port_until_the_last_is_dropped() {
    let _watchdog = Watchdog::start("a_cloned_listener_has_the_same_port_until_the_last_is_dropped");
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let listener = Listener::bind_with(&session, (HERE, 0)).unwrap();
    let clone = listener.try_clone().unwrap();
    let at = clone.local_addr().unwrap();
    assert_eq!(at, listener.local_addr().unwrap());
    drop(listener);
    let clients = [Stream::connect_with(&session, at).unwrap(), Stream::connect_with(&session, at).unwrap()];
    let mut taken = 0;
    for stream in &clone {
        assert!(stream.unwrap().peer_addr().unwrap().port() > 0);
        taken += 1;
        if taken == clients.len() {
            break;
        }
    }
    clone.set_nonblocking(true).unwrap();
    let another = clone.try_clone().unwrap();
    assert!(matches!(another.accept(), Err(raas::AcceptError::WouldBlock)), "the mode holds for both");
    drop((clone, another));
    assert_eq!(Stream::connect_with(&session, at).unwrap_err().reason(), Some(Reason::NoListener));
}

#[test]
fn nodelay_is_accepted_and_always_so() {
    let t = two(HERE, 4096);
    for wanted in [false, true] {
        t.client.set_nodelay(wanted).unwrap();
        assert!(t.client.nodelay().unwrap());
    }
}

#[test]
fn a_descriptor_for_event_loops_tells_changes_and_only_these() {
    let _watchdog = Watchdog::start("a_descriptor_for_event_loops_tells_changes_and_only_these");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        let stream = WithFd::new(t.server).unwrap();
        let is_readable = |wait: Duration| {
            let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
            poll(&mut [PollFd::new(&stream, PollFlags::IN)], Some(&wait)).unwrap() == 1
        };
        assert_eq!(stream.as_raw_fd(), stream.as_fd().as_raw_fd());
        assert!(is_readable(Duration::ZERO), "at first");
        assert!(!stream.get_ref().readiness().unwrap().contains(Readiness::READ));
        assert!(!is_readable(Duration::from_millis(20)), "asking for the descriptor is no change");
        t.client.write_all(b"x").unwrap();
        while !is_readable(Duration::from_millis(500)) {}
        assert!(stream.get_ref().readiness().unwrap().contains(Readiness::READ));
        assert_eq!(stream.into_inner().read(&mut [0; 9]).unwrap(), 1);
    }
}

#[test]
fn errors_print_their_words() {
    let refused = Session::connect("/nonexistent/raasd.sock").unwrap_err();
    assert_eq!(format!("{refused:?}"), refused.to_string());
    assert!(matches!(refused, SessionError::NoDaemon { .. }));
    let words = refused.to_string();
    // What `main() -> io::Result` prints, and what `main() -> Result<(), raas::Error>` does.
    let io: std::io::Error = refused.clone().into();
    assert_eq!(format!("{io:?}"), format!("Custom {{ kind: NotFound, error: {words} }}"));
    let any: raas::Error = ConnectError::from(refused).into();
    assert_eq!((format!("{any:?}"), any.kind()), (words.clone(), ErrorKind::NotFound));
    assert_eq!(format!("{:?}", raas::Error::from(io)), words);
}

fn message_pair(daemon: &FakeDaemon, host: &str) -> (MessageStream, MessageStream) {
    let sessions = [daemon.session(), daemon.session()];
    let listener = MessageListener::bind_with(&sessions[1], "0.0.0.0:0", ListenOptions::new()).unwrap();
    let to = (host, listener.local_addr().unwrap().port());
    thread::scope(|s| {
        let server = s.spawn(|| listener.incoming().next().unwrap().unwrap());
        let client = MessageStream::connect_with(&sessions[0], to, ConnectOptions::new()).unwrap();
        (client, server.join().unwrap())
    })
}

#[test]
fn a_late_reply_answers_no_other_call() {
    let _watchdog = Watchdog::start("a_late_reply_answers_no_other_call");
    for host in [HERE, THERE] {
        let daemon = FakeDaemon::start();
        let (client, server) = message_pair(&daemon, host);
        let clone = client.try_clone().unwrap();
        let (gave_up, has_given_up) = mpsc::channel();
        thread::scope(|s| {
            let server = &server;
            s.spawn(move || {
                for _ in 0..2 {
                    let request = server.receive_vec().unwrap().unwrap();
                    server.send(&[b"re: ", &request[..]].concat()).unwrap();
                }
                // The third one's reply comes after its caller gave up.
                assert_eq!(server.receive_vec().unwrap().unwrap(), b"third");
                has_given_up.recv().unwrap();
                server.send(b"re: third").unwrap();
            });
            assert_eq!(client.call_vec(b"first").unwrap(), b"re: first");
            let mut reply = [0; 64];
            let len = clone.call(b"second", &mut reply).unwrap();
            assert_eq!(&reply[..len], b"re: second");
            client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            assert_eq!(client.call_vec(b"third").unwrap_err().kind(), ErrorKind::TimedOut);
            gave_up.send(()).unwrap();
        });
        for handle in [&client, &clone] {
            let error = handle.call_vec(b"fourth").unwrap_err();
            let inner = error.get_ref().unwrap().downcast_ref::<MessageError>();
            assert_eq!((inner, error.kind()), (Some(&MessageError::OutOfStep), ErrorKind::NotConnected));
        }
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.receive_vec().unwrap_err().kind(), ErrorKind::WouldBlock, "nothing of the fourth was sent");
    }
}

#[test]
fn a_call_whose_peer_ends_says_so() {
    let daemon = FakeDaemon::start();
    let (client, server) = message_pair(&daemon, HERE);
    server.shutdown(std::net::Shutdown::Write).unwrap();
    let error = client.call_vec(b"?").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(error.to_string(), MessageError::NoReply.to_string());
}

/// Does not compile otherwise.
const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<(Session, Stream, Listener, MessageListener, MessageStream, WithFd<Stream>)>();
    is_send_and_sync::<(raas::ReadHalf, raas::WriteHalf, raas::Connecting, raas::DatagramSocket, raas::Error)>();
    is_send_and_sync::<(ConnectError, raas::BindError, raas::AcceptError, SessionError, raas::SessionBuilder)>();
};

#[test]
fn rows_of_an_inspection_have_names() {
    use raas::inspect::{ConnectionRow, Stat, connections, stat};
    let rows: Result<Vec<ConnectionRow>, _> = connections(Some("/nonexistent".as_ref()));
    let told: Result<Stat, _> = stat(Some("/nonexistent".as_ref()));
    assert!(rows.is_err() && told.is_err());
}
