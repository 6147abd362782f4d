//! What runs after `fork` in the child: it is refused everywhere, harms nothing of its parent's, and can begin anew.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Duration;

use raas::{
    AcceptError, ConnectError, ConnectOptions, Listener, MessageListener, MessageStream, Session, SessionError, Stream,
};
use shm::run_in_fork;

use crate::Watchdog;
use crate::fake_daemon::FakeDaemon;
use crate::world::{PATHS, connect};

/// Whether an error is that of a child of process `owner`.
fn is_forked<T>(result: io::Result<T>, owner: u32) -> bool {
    let Err(error) = result else { return false };
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    error.kind() == ErrorKind::Unsupported && matches!(inner, Some(SessionError::Forked { owner: o }) if *o == owner)
}

/// Every call on a stream of the parent's.
fn assert_is_refused(stream: &Stream, owner: u32) {
    let mut both = stream;
    assert!(is_forked(both.read(&mut [0; 4]), owner), "bytes that are there are the parent's");
    assert!(is_forked(both.write(b"child"), owner), "so is the room");
    assert!(is_forked(both.write_vectored(&[io::IoSlice::new(b"child")]), owner));
    assert!(is_forked(stream.peek(&mut [0; 4]), owner) && is_forked(stream.unread_bytes(), owner));
    assert!(is_forked(stream.reserve(4), owner) && is_forked(stream.loan(), owner));
    assert!(is_forked(stream.readiness(), owner) && is_forked(stream.ready_fd(), owner));
    assert!(is_forked(stream.try_clone(), owner) && is_forked(stream.shutdown(Shutdown::Both), owner));
    assert!(is_forked(stream.set_peer_timeout(Some(Duration::from_secs(9))), owner));
    assert!(stream.failure().is_none(), "a fork breaks nothing");
}

fn echo(mut stream: Stream) {
    let mut got = [0; 5];
    stream.read_exact(&mut got).unwrap();
    stream.write_all(&got).unwrap();
    // Until the other side has closed.
    assert_eq!(stream.read(&mut got).unwrap(), 0);
}

#[test]
fn a_forked_child_is_refused_harms_nothing_and_begins_anew() {
    let _watchdog = Watchdog::start("a_forked_child_is_refused_harms_nothing_and_begins_anew");
    for (host, _) in PATHS {
        let daemon = FakeDaemon::start();
        let sessions = [daemon.session(), daemon.session()];
        let owner = std::process::id();
        let (mut kept, mut kept_peer) = connect(&sessions, host, 0);
        let (dropped, mut dropped_peer) = connect(&sessions, host, 0);
        let (busy, mut busy_peer) = connect(&sessions, host, 0);
        let listener = Listener::bind_with(&sessions[1], "0.0.0.0:0").unwrap();
        let to = SocketAddr::new(host.parse().unwrap(), listener.local_addr().unwrap().port());
        kept_peer.write_all(b"for the parent").unwrap();
        // Bytes are there, so that a read would not have to wait.
        while kept.unread_bytes().unwrap() < 14 {
            thread::yield_now();
        }
        let mut dropped = Some(dropped);
        thread::scope(|s| {
            // A thread of the parent sits in a read, with the lock that a read takes.
            let mut reading = &busy;
            let reader = s.spawn(move || reading.read(&mut [0; 8]).unwrap());
            // It answers the child, whose session is another one.
            let answering = s.spawn(|| echo(listener.accept().unwrap().0));
            // Both are surely waiting when the session needs nobody else to answer the daemon; the child may be early.
            thread::sleep(Duration::from_millis(50));
            let exit = run_in_fork(|| {
                assert!(!sessions[0].is_usable());
                let refused = Stream::connect_with(&sessions[0], to);
                assert!(matches!(refused, Err(ConnectError::Session(SessionError::Forked { owner: o })) if o == owner));
                assert!(Listener::bind_with(&sessions[0], "0.0.0.0:0").is_err());
                assert!(matches!(listener.accept(), Err(AcceptError::Session(SessionError::Forked { .. }))));
                assert!(matches!(sessions[0].reattach(), Err(SessionError::Forked { .. })));
                assert_is_refused(&kept, owner);
                assert!(is_forked((&busy).read(&mut [0; 8]), owner), "the lock is held by a thread of the parent's");
                drop(dropped.take());
                let own = Session::connect(daemon.path()).unwrap();
                let mut stream = Stream::connect_with(&own, to).unwrap();
                stream.write_all(b"child").unwrap();
                let mut got = [0; 5];
                stream.read_exact(&mut got).unwrap();
                assert_eq!(&got, b"child");
            });
            assert_eq!(exit.unwrap(), 0, "the child's panic is above");
            answering.join().unwrap();
            busy_peer.write_all(b"8 bytes.").unwrap();
            assert_eq!(reader.join().unwrap(), 8, "the parent's read goes on");
        });
        // Nothing of the parent's was touched.
        let mut got = [0; 14];
        kept.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"for the parent");
        kept.write_all(b"parent").unwrap();
        kept_peer.read_exact(&mut got[..6]).unwrap();
        assert_eq!(&got[..6], b"parent");
        dropped_peer.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert_eq!(dropped_peer.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut, "not closed");
        dropped.as_mut().unwrap().write_all(b"still").unwrap();
        dropped_peer.set_read_timeout(None).unwrap();
        dropped_peer.read_exact(&mut got[..5]).unwrap();
        assert_eq!(daemon.facts().listeners, 1, "the parent still listens");
    }
}

#[test]
fn messages_of_the_parent_are_not_the_childs() {
    let _watchdog = Watchdog::start("messages_of_the_parent_are_not_the_childs");
    for (host, _) in PATHS {
        let daemon = FakeDaemon::start();
        let sessions = [daemon.session(), daemon.session()];
        let owner = std::process::id();
        let listener = MessageListener::bind_with(&sessions[1], "0.0.0.0:0", raas::ListenOptions::new()).unwrap();
        let to = SocketAddr::new(host.parse().unwrap(), listener.local_addr().unwrap().port());
        let (client, server) = thread::scope(|s| {
            let server = s.spawn(|| listener.accept().unwrap().0);
            let client = MessageStream::connect_with(&sessions[0], to, ConnectOptions::new()).unwrap();
            (client, server.join().unwrap())
        });
        server.send(b"reply").unwrap();
        let exit = run_in_fork(|| {
            assert!(is_forked(client.receive(&mut [0; 8]), owner) && is_forked(client.receive_vec(), owner));
            assert!(is_forked(client.send(b"child"), owner) && is_forked(client.call_vec(b"child"), owner));
        });
        assert_eq!(exit.unwrap(), 0, "the child's panic is above");
        client.send(b"parent").unwrap();
        assert_eq!(server.receive_vec().unwrap().as_deref(), Some(&b"parent"[..]));
        assert_eq!(client.receive_vec().unwrap().as_deref(), Some(&b"reply"[..]));
    }
}
