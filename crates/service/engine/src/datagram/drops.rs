//! Why datagrams are dropped, and how many were.
//!
//! Owns the reasons and their names in `raas stat` and `raas ss` (docs/use/datagrams.md). A list, no behaviour.

/// Why a datagram was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// Sent to an address that no host has, or to port 0.
    BadAddress,
    /// Sent to a host to which the operator's policy lets the program not send.
    Policy,
    /// Sent to a host to which there is no link (yet).
    NoPeer,
    /// Longer than the path MTU to its host allows.
    TooLong,
    /// The device did not take it, or its queue pair failed.
    Device,
    /// Arrived, and is not what a daemon sends.
    Malformed,
    /// Arrived from a host to which there is no link.
    Stranger,
    /// Arrived for a port at which there is no socket.
    NoSocket,
    /// Arrived for a socket whose ring is full.
    RingFull,
}

impl DropReason {
    pub(crate) const ALL: [Self; 9] = [
        Self::BadAddress,
        Self::Policy,
        Self::NoPeer,
        Self::TooLong,
        Self::Device,
        Self::Malformed,
        Self::Stranger,
        Self::NoSocket,
        Self::RingFull,
    ];

    /// Its name among the counters of the host.
    const fn counter(self) -> &'static str {
        match self {
            Self::BadAddress => "drop_datagram_bad_address",
            Self::Policy => "drop_datagram_policy",
            Self::NoPeer => "drop_datagram_no_peer",
            Self::TooLong => "drop_datagram_too_long",
            Self::Device => "drop_datagram_device",
            Self::Malformed => "drop_datagram_malformed",
            Self::Stranger => "drop_datagram_stranger",
            Self::NoSocket => "drop_datagram_no_socket",
            Self::RingFull => "drop_datagram_ring_full",
        }
    }

    /// Its name in the row of a socket.
    fn key(self) -> &'static str {
        self.counter().trim_start_matches("drop_datagram_")
    }
}

/// Drops by reason.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    pub(crate) fn count(&mut self, reason: DropReason, datagrams: u64) {
        self.0[reason as usize] += datagrams;
    }

    /// All of the host, by the names of counters.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        DropReason::ALL.into_iter().map(|reason| (reason.counter(), self.0[reason as usize]))
    }

    /// Those of a socket that happened, by key.
    pub(crate) fn rows(&self) -> Vec<(String, u64)> {
        let of = |reason: DropReason| (reason.key().to_string(), self.0[reason as usize]);
        DropReason::ALL.into_iter().map(of).filter(|(_, n)| *n > 0).collect()
    }
}
