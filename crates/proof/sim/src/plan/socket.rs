//! What an application does with a datagram socket.

use std::time::Duration;

use verbs::Time;

/// A datagram socket.
#[derive(Debug, Clone)]
pub struct SocketPlan {
    /// When it is bound.
    pub at: Time,
    /// Its port.
    pub port: u16,
    /// Ring size, 0 for the default.
    pub ring_bytes: u32,
    /// Hosts and ports that it sends to, one drawn for each datagram. Port 0 and ports that nobody binds are among
    /// them.
    pub to: Vec<(usize, u16)>,
    /// Datagrams that it sends.
    pub count: u32,
    /// Longest datagram.
    pub len_max: u16,
    /// Longest pause between two that it sends.
    pub gap_max: Duration,
    /// Longest pause between two that it takes.
    pub read_gap_max: Duration,
    /// It asks for the paths first, as the client library does, and sends only where there is one.
    pub asks: bool,
    /// To each host whose path it was told it sends so many, the longest that the path carries, after `told_after`.
    pub told: u32,
    /// See `told`.
    pub told_after: Duration,
    /// It is closed.
    pub close_at: Option<Time>,
}

impl SocketPlan {
    /// A socket that takes what comes and sends nothing.
    pub fn new(at: Time, port: u16) -> Self {
        Self {
            at,
            port,
            ring_bytes: 0,
            to: Vec::new(),
            count: 0,
            len_max: 1000,
            gap_max: Duration::ZERO,
            read_gap_max: Duration::ZERO,
            asks: false,
            told: 0,
            told_after: Duration::ZERO,
            close_at: None,
        }
    }

    /// As before, sending `count` datagrams to the sockets at `to`.
    pub fn sending(self, count: u32, to: &[(usize, u16)]) -> Self {
        Self { count, to: to.to_vec(), ..self }
    }
}
