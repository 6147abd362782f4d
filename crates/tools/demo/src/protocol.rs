//! What the demo's parent process and its application processes say to each other: one JSON object on each line,
//! commands on the application's stdin, events on its stdout. The end of either stream means that the other process has
//! ended.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::corpus::SourceFile;
use super::plan::Seat;

/// How an application makes its connections.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Via {
    /// Through the daemon at this socket.
    Raas {
        /// Path of the daemon's control socket.
        socket: PathBuf,
    },
    /// Kernel TCP.
    Tcp,
}

/// A connection as one application sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AppLink {
    /// Its number in the demo.
    pub(crate) connection: u32,
    /// The application at the other end.
    pub(crate) peer: Seat,
    /// Whether this application connects; otherwise it accepts.
    pub(crate) connects: bool,
    /// Files to send, indices into [`Setup::files`]' first parts.
    pub(crate) files: Vec<u32>,
}

/// Everything an application needs to begin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Name in messages and in `raas stat`.
    pub(crate) name: String,
    /// How.
    pub(crate) via: Via,
    /// Address of its host.
    pub(crate) ip: IpAddr,
    /// Files it sends, with their numbers.
    pub(crate) files: Vec<(u32, SourceFile)>,
    /// Its connections, by number.
    pub(crate) links: Vec<AppLink>,
    /// Bound of each wait on a connection.
    pub(crate) timeout_seconds: u64,
}

/// From the parent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Listen, and compute the digests of the files to send. Answered by [`Event::Listening`].
    Setup(Box<Setup>),
    /// Make all connections. Answered by [`Event::Opened`].
    Open {
        /// Where the applications listen, by host and number.
        peers: [Vec<SocketAddr>; 2],
    },
    /// Measure the latency on one connection. Both ends answer with [`Event::Pinged`].
    Ping {
        /// The connection; its connecting end measures.
        connection: u32,
    },
    /// Measure the rate of messages on one connection. Both ends answer with [`Event::Rated`].
    Rate {
        /// The connection; its connecting end sends.
        connection: u32,
    },
    /// Have bytes flow on every connection until [`Command::Stop`]. Answered by [`Event::Flowed`] after that.
    Flow,
    /// End the flow.
    Stop,
    /// Send and receive everything. Answered by [`Event::Transferred`].
    Transfer,
    /// Close everything and end. Answered by [`Event::Bye`].
    Finish,
}

/// A file that an application sent or received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    /// The connection.
    pub(crate) connection: u32,
    /// The file's number.
    pub(crate) file: u32,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Its SHA-256 as this side computed it, in hexadecimal.
    pub(crate) sha256: String,
    /// The receiver's view of the sender's trailer; the same as `sha256` at the sender.
    pub(crate) announced: String,
}

/// What an application did in a transfer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Transferred {
    /// Files sent, with the digest computed from the file before the transfer.
    pub(crate) sent: Vec<FileRecord>,
    /// Files received, with the digest computed from the bytes that arrived.
    pub(crate) received: Vec<FileRecord>,
    /// Processor time of the process during the transfer.
    pub(crate) cpu_seconds: f64,
}

/// A time in which nothing came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gap {
    /// Its begin, by the monotonic clock that all processes share.
    pub(crate) begin_ns: u64,
    /// Its length.
    pub(crate) length_ns: u64,
}

/// A connection that failed in a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lost {
    /// Its number.
    pub(crate) connection: u32,
    /// When that was noticed, by the monotonic clock that all processes share.
    pub(crate) at_ns: u64,
    /// The error that the application got.
    pub(crate) error: String,
}

/// What an application saw of a flow.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Flowed {
    /// Bytes that arrived and were compared.
    pub(crate) received_bytes: u64,
    /// Times in which nothing came, the longer ones.
    pub(crate) gaps: Vec<Gap>,
    /// Connections that failed.
    pub(crate) lost: Vec<Lost>,
    /// Bytes that are not those that were sent.
    pub(crate) findings: Vec<String>,
}

/// To the parent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Event {
    /// Ready to be connected to.
    Listening {
        /// Where.
        at: SocketAddr,
    },
    /// Every connection of this application is open.
    Opened,
    /// The ping-pong is over.
    Pinged {
        /// Half round trips in nanoseconds, of the measuring end only.
        half_round_trips_ns: Vec<u64>,
    },
    /// The messages are over.
    Rated {
        /// Messages that arrived as they were sent, and nanoseconds; of the sending end only.
        messages: Option<(u64, u64)>,
    },
    /// The flow has ended.
    Flowed(Box<Flowed>),
    /// So many payload and framing bytes arrived so far.
    Progress {
        /// Since the transfer began.
        received_bytes: u64,
    },
    /// Everything was sent and received; the parent's clock stops here.
    Complete,
    /// The records of the transfer, after [`Event::Complete`].
    Transferred(Box<Transferred>),
    /// Everything is closed.
    Bye,
    /// The application cannot go on.
    Error {
        /// Why.
        message: String,
        /// Bytes arrived that are not those that were sent.
        is_unverified: bool,
    },
}
