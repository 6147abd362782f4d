//! What a process and its daemon say to each other, and what the world learns of a run of the process.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use control::{ChunkKind, Connection, Reason};
use verbs::{Region, Time};

use crate::check::RecordId;
use crate::direct::SimSocket;

/// From the application to its daemon.
#[derive(Debug)]
pub(crate) enum Request {
    Listen { port: u16, backlog: u32, ring_bytes: u32 },
    Unlisten { port: u16 },
    Connect { request: u64, to: SocketAddr, ring_bytes: u32 },
    Cancel { request: u64 },
    Accepted { port: u16, connection: u64 },
    Bind { request: u64, port: u16, ring_bytes: u32 },
    Path { request: u64, to: IpAddr },
    Bye,
}

/// From the daemon to an application.
#[derive(Debug)]
pub(crate) enum Reply {
    Chunk {
        number: u32,
        kind: ChunkKind,
        region: Region,
    },
    ChunkGone {
        number: u32,
    },
    Listening {
        port: u16,
        result: Result<(), Reason>,
    },
    Connected {
        request: u64,
        /// With the process's end of the kernel TCP connection, if it has one.
        result: Result<(Connection, RecordId, Option<SimSocket>), Reason>,
    },
    /// A bind of a datagram socket succeeded; the refusal of one is that of a connect.
    Bound {
        request: u64,
        connection: Connection,
    },
    Path {
        request: u64,
        result: Result<u32, Reason>,
    },
    /// A connect to this host was paired: its bytes take another way.
    Paired {
        request: u64,
    },
    /// The daemon has made a TCP connection for a stream.
    Direct {
        connection: u64,
        slot: u32,
        socket: SimSocket,
    },
    Incoming {
        port: u16,
        connection: Connection,
        record: RecordId,
        /// As of `Connected`.
        tcp: Option<SimSocket>,
    },
}

/// What a run of the process led to.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) requests: Vec<Request>,
    /// Engines that are to be woken.
    pub(crate) wakes: Vec<u32>,
    pub(crate) died: bool,
    /// When it runs again by itself.
    pub(crate) again: Option<Time>,
}

/// How the answers to connects came out.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// Connections.
    pub connected: u64,
    /// Refusals.
    pub refused: BTreeMap<&'static str, u64>,
}

impl Answers {
    pub(crate) fn add(&mut self, more: &Self) {
        self.connected += more.connected;
        for (reason, count) in &more.refused {
            *self.refused.entry(reason).or_default() += count;
        }
    }
}
