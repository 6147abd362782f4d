//! Why a daemon did not start, or ended. Owns the messages that a person sees; each says what to do next.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ConfigError;
use crate::neighbours::{self, Protocol};

/// The daemon did not start, or ended other than in order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another daemon serves the socket.
    #[error(
        "another daemon serves {}{who}: use it, stop it, or give this one a socket and an address of its own (--socket, --listen)",
        .socket.display()
    )]
    AlreadyRunning {
        /// The socket.
        socket: PathBuf,
        /// Its user and process in parentheses, as far as they can be seen.
        who: String,
    },
    /// The daemon that serves the socket was told to end, said that it does, and still serves.
    #[error(
        "the daemon that serves {} said that it makes way, and is still there after {waited:?}: end it with `kill -9` (its programs wait for the next one), and start this one without --replace",
        .socket.display()
    )]
    NotEnded {
        /// The socket.
        socket: PathBuf,
        /// How long it had.
        waited: Duration,
    },
    /// The socket's place is another user's, so this process cannot serve there after that user's daemon.
    #[error(
        "{}: {source}; a daemon is replaced by one of the same user: start this one as that user (`user` in the configuration)",
        .socket.display()
    )]
    ForeignPlace {
        /// The socket.
        socket: PathBuf,
        /// What cannot be used.
        source: io::Error,
    },
    /// The control socket or its directory cannot be used.
    #[error("control socket {}: {what}: {source}", .socket.display())]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// What was tried, or what to do.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// `socket_group` cannot be used.
    #[error("socket_group {group}: {what}")]
    Group {
        /// The group.
        group: String,
        /// Why not, and what to do.
        what: String,
    },
    /// `user` or `group` cannot be used.
    #[error("user {user}: {what}")]
    User {
        /// The user.
        user: String,
        /// Why not, and what to do.
        what: String,
    },
    /// The kernel does not hold the daemon as the configuration requires.
    #[error("sandbox: {what}")]
    Sandbox {
        /// Why not, and what to do.
        what: String,
    },
    /// The cluster key cannot be used.
    #[error("cluster key {}: {what}", .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why not, and what to do.
        what: String,
    },
    /// The device cannot be opened.
    #[error("device {device}: {what}")]
    Device {
        /// The device.
        device: String,
        /// Why not, and what to do.
        what: String,
    },
    /// The port for other daemons cannot be opened.
    #[error("cannot listen for other daemons on TCP {address}: {source}: {what}")]
    PeerPort {
        /// Where.
        address: SocketAddr,
        /// Who has it, and what to do.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// The engine did not start on the device.
    #[error("engine: {0}")]
    Setup(#[from] engine::SetupError),
    /// A system call that a running daemon needs failed.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A shared-memory segment of the daemon's own could not be made.
    #[error(transparent)]
    Segment(#[from] shm::SegmentError),
    /// A thread of the daemon panicked: a bug.
    #[error("the {thread} thread died: {what}; this is a bug in raasd")]
    ThreadDied {
        /// Which.
        thread: &'static str,
        /// Its last words.
        what: String,
    },
}

impl DaemonError {
    /// Another daemon serves `socket`.
    pub(crate) fn already_running(socket: &Path) -> Self {
        let who = neighbours::server(socket).map(|server| format!(" ({server})")).unwrap_or_default();
        Self::AlreadyRunning { socket: socket.to_path_buf(), who }
    }

    /// TCP cannot listen at `address`.
    pub(crate) fn peer_port(address: SocketAddr, source: io::Error) -> Self {
        let what = neighbours::who_has(Protocol::Tcp, address, &source);
        Self::PeerPort { address, what, source }
    }

    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// What a panic said.
pub(crate) fn panic_words(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without words".into())
}
