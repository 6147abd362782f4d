//! Two sessions and a connection between them, on the path of choice.

use std::net::SocketAddr;
use std::thread;

use raas::{ConnectOptions, Listener, PathKind, Session, Stream};

use crate::fake_daemon::{FakeDaemon, HERE, THERE};

/// The host part by which a path is chosen.
pub(crate) const PATHS: [(&str, PathKind); 2] = [(HERE, PathKind::Shm), (THERE, PathKind::Lane)];

/// Two ends of a connection, in two sessions.
pub(crate) struct Two {
    pub(crate) daemon: FakeDaemon,
    pub(crate) sessions: [Session; 2],
    pub(crate) client: Stream,
    pub(crate) server: Stream,
}

/// Two processes' sessions and a connection between them, with rings of `ring_bytes`.
pub(crate) fn two(host: &str, ring_bytes: u32) -> Two {
    let daemon = FakeDaemon::start();
    let sessions = [daemon.session(), daemon.session()];
    let (client, server) = connect(&sessions, host, ring_bytes);
    Two { daemon, sessions, client, server }
}

/// A connection from the first session to the second.
pub(crate) fn connect(sessions: &[Session; 2], host: &str, ring_bytes: u32) -> (Stream, Stream) {
    let listener = Listener::bind_with(&sessions[1], "0.0.0.0:0").unwrap();
    let to = SocketAddr::new(host.parse().unwrap(), listener.local_addr().unwrap().port());
    // A pair needs both sides to answer the daemon, so somebody must wait at the listener meanwhile.
    thread::scope(|s| {
        let server = s.spawn(|| listener.accept().unwrap().0);
        let client = ConnectOptions::new().ring_bytes(ring_bytes).connect(&sessions[0], to).unwrap();
        (client, server.join().unwrap())
    })
}

/// Bytes that differ from each other, and for each seed.
pub(crate) fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2_654_435_761) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x.to_le_bytes()[0]
        })
        .collect()
}
