//! What the demo's parent process and its application processes say to each other: one JSON object on each line,
//! commands on the application's stdin, one answer to each on its stdout. The end of either stream means that the other
//! process has ended.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::corpus::SourceFile;

/// A place in the demo: application `app` of host `host`, both counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Seat {
    /// 0 or 1.
    pub(crate) host: u32,
    /// 0 to apps - 1.
    pub(crate) app: u32,
}

/// How an application makes its connections.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Via {
    /// Through the daemon at this socket.
    Raas(PathBuf),
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
    /// Files to send, one after another.
    pub(crate) send: Vec<SourceFile>,
    /// Sizes of the files to receive.
    pub(crate) receive: Vec<u64>,
}

/// Everything an application needs to begin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Name in messages and in `raas stat`.
    pub(crate) name: String,
    pub(crate) via: Via,
    /// Address of its host.
    pub(crate) ip: IpAddr,
    /// Its connections, by number.
    pub(crate) links: Vec<AppLink>,
}

/// From the parent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Listen. Answered by [`Answer::Listening`].
    Setup(Box<Setup>),
    /// Make all connections that are not open, to applications that listen there. Answered by [`Answer::Opened`].
    Open(Vec<(Seat, SocketAddr)>),
    /// Measure small messages on one connection. Both ends answer with [`Answer::Small`].
    Small(u32),
    /// Have bytes flow on every connection until [`Command::Stop`]. Answered by [`Answer::Flowed`] after that.
    Flow,
    /// End the flow.
    Stop,
    /// Send and receive all files. Answered by [`Answer::Transferred`].
    Transfer,
    /// Close everything and end. Answered by [`Answer::Bye`].
    Finish,
}

/// Small messages on one connection.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Small {
    /// Half round trips.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Messages one way that were compared on arrival.
    pub(crate) messages: u64,
    pub(crate) msgs_per_s: f64,
}

/// A time in which nothing came.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Gap {
    /// Its begin, by the monotonic clock that all processes share.
    pub(crate) begin_ns: u64,
    pub(crate) length_ns: u64,
}

/// A connection that failed while bytes moved.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lost {
    pub(crate) connection: u32,
    /// When that was noticed, by the monotonic clock that all processes share.
    pub(crate) at_ns: u64,
    /// The error that the application got.
    pub(crate) error: String,
    /// Bytes came that are not those that were sent.
    pub(crate) is_unverified: bool,
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
}

/// The files that came on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arrived {
    pub(crate) connection: u32,
    /// SHA-256 of the bytes of each file, in the order in which they came, in hexadecimal.
    pub(crate) sha256: Vec<String>,
}

/// What an application did in a transfer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Transferred {
    pub(crate) arrived: Vec<Arrived>,
    /// Processor time of the process during the transfer.
    pub(crate) cpu_seconds: f64,
}

/// To the parent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Ready to be connected to, there.
    Listening(SocketAddr),
    /// Every connection of this application is open.
    Opened,
    /// Of the measuring end only.
    Small(Option<Small>),
    Flowed(Flowed),
    /// So many bytes of files came so far. Said now and then, and answers nothing.
    Received(u64),
    Transferred(Transferred),
    /// Everything is closed.
    Bye,
    /// The application cannot go on.
    Failed {
        message: String,
        /// Bytes came that are not those that were sent.
        is_unverified: bool,
    },
}
