//! Messages by which the two ends of a kernel TCP connection find each other (docs/use/run.md).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Reason;

/// Which end of a kernel TCP connection a program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TcpEnd {
    /// It connected.
    Connected,
    /// It accepted.
    Accepted(Rendezvous),
    /// It is to be no stream: the program uses what kernel TCP alone has. For its row in `raas ss`.
    Stays(Reason),
}

/// Where the end that accepted takes the stream that is to replace the TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendezvous {
    /// Its listener's port at its daemon.
    pub port: u16,
    /// What the other end must say first on the stream. Random, for this connection alone.
    pub token: u64,
}

/// Where the end that connected connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeetingPlace {
    /// The listener of the other end.
    pub at: SocketAddr,
    /// As in [`Rendezvous`].
    pub token: u64,
}

/// What an end does to show that it has the connection, where the other one may be in another network namespace of the
/// host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeetStep {
    /// Open a UDP port at the address of its socket, and say which.
    Open,
    /// Send a word to the address of its socket's peer, and say what comes to its own port.
    Send {
        /// The other end's port.
        port: u16,
        /// Eight bytes, big-endian: all of the datagram.
        word: u64,
    },
    /// Nothing: its bytes may be in the clear, by `encrypt`.
    Clear,
}

/// What an end says of a [`MeetStep`], or of what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeetProof {
    /// Its UDP port is open.
    Port(u16),
    /// This word came to it.
    Heard(u64),
    /// A stream took the place of the connection between these addresses.
    Stream {
        /// Its number.
        connection: u64,
        /// This end.
        local: SocketAddr,
        /// The other one.
        peer: SocketAddr,
    },
    /// No stream will take the place of the connection between these addresses.
    Stays {
        /// Why.
        reason: Reason,
        /// This end.
        local: SocketAddr,
        /// The other one.
        peer: SocketAddr,
    },
}

/// What two daemons say of TCP connections between their hosts. The asker's program connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeetMessage {
    /// A program of the asker has one end, and looks for the other. Answered when that is there.
    Ask {
        /// The asker's number of the question.
        number: u64,
        /// The asker's end.
        from: SocketAddr,
        /// The receiver's end.
        to: SocketAddr,
    },
    /// The question is not asked any more.
    Withdraw {
        /// Its number.
        number: u64,
    },
    /// Answer to [`MeetMessage::Ask`].
    Answer {
        /// The question.
        number: u64,
        /// Where the other end takes the stream, or why it takes none.
        result: Result<Rendezvous, Reason>,
    },
}
