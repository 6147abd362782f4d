//! Tests that need to reach into a session: what a forked child may do.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};

use crate::fake_daemon::{FakeDaemon, HERE, THERE};
use crate::{AcceptError, ConnectError, Listener, SessionError, Stream};

/// A child has its parent's memory and another number; here the number is changed instead.
#[test]
fn a_forked_child_can_neither_use_nor_harm_its_parents_session() {
    for host in [HERE, THERE] {
        let daemon = FakeDaemon::start();
        let session = daemon.session();
        let other = daemon.session();
        let pid = std::process::id();
        let listener = Listener::bind_with(&other, "0.0.0.0:0").unwrap();
        let to = SocketAddr::new(host.parse().unwrap(), listener.local_addr().unwrap().port());
        let accepting = std::thread::spawn(move || {
            let accepted = [(); 2].map(|()| listener.accept().unwrap().0);
            (listener, accepted)
        });
        let mut kept = Stream::connect_with(&session, to).unwrap();
        let dropped = Stream::connect_with(&session, to).unwrap();
        let (listener, [mut kept_peer, mut dropped_peer]) = accepting.join().unwrap();

        session.inner.pretend_pid(pid + 1);
        assert!(!session.is_usable());
        let forked = |e: &SessionError| matches!(e, SessionError::Forked { owner } if *owner == pid + 1);
        assert!(matches!(Stream::connect_with(&session, to), Err(ConnectError::Session(e)) if forked(&e)));
        assert!(Listener::bind_with(&session, "0.0.0.0:0").is_err());
        let error = kept.read(&mut [0]).unwrap_err();
        let inner = error.get_ref().unwrap().downcast_ref::<SessionError>().unwrap();
        assert!(forked(inner) && inner.to_string().contains("fork"), "{inner}");
        assert_eq!(kept.shutdown(Shutdown::Both).unwrap_err().kind(), ErrorKind::Unsupported);
        // The child's end of its copy: the parent's connection stays as it was.
        drop(dropped);
        session.inner.pretend_pid(pid);

        dropped_peer.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        assert_eq!(dropped_peer.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut, "not closed");
        kept.write_all(b"parent").unwrap();
        let mut got = [0; 6];
        kept_peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"parent");

        other.inner.pretend_pid(pid + 1);
        assert!(matches!(listener.accept(), Err(AcceptError::Session(e)) if forked(&e)));
        drop(listener);
        other.inner.pretend_pid(pid);
        assert_eq!(daemon.facts().listeners, 1, "the parent still listens");
    }
}
