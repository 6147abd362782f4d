//! The two ends of a control link.

/// Which side of the TCP connection one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that opened the link.
    Dialer,
    /// The side that accepted the link.
    Acceptor,
}
