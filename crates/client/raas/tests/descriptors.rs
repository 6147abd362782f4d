//! What connections cost in descriptors; alone in its process, since it counts all of them.

#[path = "it/fake_daemon/mod.rs"]
#[allow(dead_code)] // This test needs little of it.
mod fake_daemon;

use std::net::SocketAddr;

use fake_daemon::{FakeDaemon, HERE, Options, THERE};
use raas::{Listener, Session, Stream};

/// Of connections: a chunk of rings keeps one for the next daemon, and this daemon makes chunks of one ring.
fn descriptors() -> usize {
    let is_chunk = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"))
    };
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter(|entry| !entry.as_ref().is_ok_and(|e| is_chunk(&e.path())))
        .count()
}

#[test]
fn a_connection_has_no_descriptor_until_it_is_asked_for_one() {
    let daemon = FakeDaemon::start_with(Options { ring_bytes: 4096, ..Options::default() });
    let server = Session::builder().socket(daemon.path()).background(true).connect().unwrap();
    let client = daemon.session();
    let listener = Listener::bind_with(&server, "0.0.0.0:0").unwrap();
    for host in [HERE, THERE] {
        let to = SocketAddr::new(host.parse().unwrap(), listener.local_addr().unwrap().port());
        let connect = || (Stream::connect_with(&client, to).unwrap(), listener.accept().unwrap().0);
        // The first makes the pair.
        let mut streams = vec![connect()];
        let before = descriptors();
        streams.extend((0..40).map(|_| connect()));
        assert_eq!(descriptors(), before, "{host}");
        for (one, _) in &streams {
            one.ready_fd().unwrap();
            one.ready_fd().unwrap();
        }
        assert_eq!(descriptors(), before + streams.len(), "{host}");
        drop(streams);
        assert_eq!(descriptors(), before, "{host}");
    }
}
