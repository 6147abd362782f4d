//! The RaaS daemon inside the process: for tests, and for programs that bring their own.
//!
//! [`embedded`] starts a daemon with its two threads, a socket in a directory of its own that only this user can enter,
//! and ports of the system's choice, so that it disturbs no other daemon of the host. It differs from a separate daemon
//! in two ways: its connections to other hosts end with the process, and a program that attaches to it needs the path
//! of the socket ([`Embedded::socket`], for instance in `RAAS_SOCKET`).
//!
//! It makes child processes by `fork` (`raas-spawner`, and `raas-receiver` for each user whose programs attach), which
//! end with it. They show the memory of this process as it was when they were made; a program that waits for any child
//! sees them end.
//!
//! ```
//! use std::io::{Read, Write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = raas_embedded::embedded()?;
//! let listener = raas::Listener::bind_with(host.session(), "127.0.0.1:0")?;
//! let mut client = raas::Stream::connect_with(host.session(), listener.local_addr()?)?;
//! let (mut server, _) = listener.accept()?;
//! client.write_all(b"hello")?;
//! let mut got = [0; 5];
//! server.read_exact(&mut got)?;
//! assert_eq!(&got, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! Two of them, on two addresses and with one key, are two hosts to each other:
//!
//! ```
//! use std::io::{Read, Write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = [7; 32];
//! let here = raas_embedded::builder("127.88.1.1".parse()?).key(&key).start()?;
//! let there = raas_embedded::builder("127.88.1.2".parse()?).key(&key).start()?;
//! let listener = raas::Listener::bind_with(there.session(), "127.88.1.2:0")?;
//! let mut client = raas::Stream::connect_with(here.session(), listener.local_addr()?)?;
//! assert_eq!(client.path(), raas::PathKind::Lane);
//! let (mut server, _) = listener.accept()?;
//! client.write_all(b"over the lane")?;
//! let mut got = [0; 13];
//! server.read_exact(&mut got)?;
//! assert_eq!(&got, b"over the lane");
//! # Ok(())
//! # }
//! ```
//!
//! Owns the daemon's directory and the order of the end: the session first, then the daemon, then the directory. It
//! must never use a place or port that a daemon of the host uses, unless told to.
//!
//! May use `raas`, `raasd`. Order of calls: [`embedded`] or [`builder`], then sessions; the host is dropped last.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use raas::{Session, SessionError};
use raasd::DaemonError;
/// What a daemon in this process is made of, for programs that want it at a place of their own choice.
pub use raasd::{Config, Daemon};

/// The daemon could not be put inside this process.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// Its directory or key file could not be made.
    #[error("the embedded daemon's directory: {0}; is there room where TMPDIR points to?")]
    Directory(#[from] io::Error),
    /// It did not start.
    #[error("the embedded daemon did not start: {0}")]
    Daemon(#[from] DaemonError),
    /// It started, and this process could not attach to it.
    #[error("the embedded daemon started, but: {0}")]
    Session(#[from] SessionError),
}

raas::debug_says_the_words!(EmbeddedError);

/// A daemon in this process and a session with it. Dropping it stops the daemon in order; streams that it carried to
/// other hosts fail then, those between processes of this host go on.
#[derive(Debug)]
pub struct Embedded {
    session: Option<Session>,
    daemon: Option<Daemon>,
    _directory: tempfile::TempDir,
}

/// Starts a daemon for `127.0.0.1` on ports of the system's choice: for connections within this process, and with
/// others that are given its socket.
pub fn embedded() -> Result<Embedded, EmbeddedError> {
    builder(IpAddr::V4(Ipv4Addr::LOCALHOST)).configure(|c| (c.peer_port, c.udp_port) = (0, 0)).start()
}

/// A daemon for the host address `listen`, on the usual ports, to be reached by daemons of other hosts.
pub fn builder(listen: IpAddr) -> Builder {
    Builder { config: Config::new(listen), key: None }
}

/// Settings of an embedded daemon.
#[derive(Debug)]
pub struct Builder {
    config: Config,
    key: Option<Vec<u8>>,
}

impl Builder {
    /// The cluster key, 32 to 1024 bytes, the same on every host. Default: one of its own, with which no other host can
    /// be reached.
    #[must_use]
    pub fn key(mut self, key: &[u8]) -> Self {
        self.key = Some(key.to_vec());
        self
    }

    /// Any other setting of the daemon; socket and key file are set by [`Builder::start`].
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Starts the daemon and attaches to it.
    pub fn start(mut self) -> Result<Embedded, EmbeddedError> {
        let directory = tempfile::Builder::new().prefix("raas-embedded-").tempdir()?;
        self.config.socket = directory.path().join("raasd.sock");
        if let Some(key) = &self.key {
            let path = directory.path().join("key");
            std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?.write_all(key)?;
            self.config.key_file = Some(path);
        }
        let daemon = Daemon::start(self.config)?;
        let session = Session::builder().socket(daemon.socket()).background(true).connect()?;
        Ok(Embedded { session: Some(session), daemon: Some(daemon), _directory: directory })
    }
}

impl Embedded {
    /// The session with it, in which streams and listeners are made. It has a watcher thread: nobody has to wait in the
    /// library for others to connect.
    pub fn session(&self) -> &Session {
        self.session.as_ref().expect("it is taken only by `drop`")
    }

    /// The control socket, for other programs and the `raas` command: `RAAS_SOCKET=...`.
    pub fn socket(&self) -> &Path {
        self.session().socket()
    }

    /// Where other daemons reach this one.
    pub fn peer_address(&self) -> std::net::SocketAddr {
        self.daemon.as_ref().expect("it is taken only by `drop`").peer_address()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.session.take());
        drop(self.daemon.take());
    }
}
