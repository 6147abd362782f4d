//! Values of the flag words of docs/inside/shared-memory.md: the description of each word says which side may set them.

/// Bits of `app_flags` and of a pair slot's `flags`.
pub mod app_flag {
    /// No bytes after the tail; stored after the final tail, with release.
    pub const FIN: u32 = 1;
    /// Will not read any more.
    pub const STOP: u32 = 2;
    /// The slot is given back.
    pub const CLOSED: u32 = 4;
    /// Reset: bytes in flight are dropped. In a pair's flags a FIN beside it came before it, and the reader gets the
    /// end in order.
    pub const ABORT: u32 = 8;
}

/// Bits of `engine_flags`.
pub mod engine_flag {
    /// No bytes after `rx_tail`; stored after the final tail, with release.
    pub const FIN: u32 = 1;
    /// The peer will not read any more.
    pub const STOP: u32 = 2;
    /// The connection was reset; `reason` says why. A FIN beside it stays true for the reader.
    pub const RESET: u32 = 4;
}

/// Values of a session slot's `state`.
pub mod slot_state {
    /// Not in use.
    pub const FREE: u32 = 0;
    /// Being set up.
    pub const CONNECTING: u32 = 1;
    /// Usable.
    pub const ESTABLISHED: u32 = 2;
    /// Over; the application gives the slot back.
    pub const CLOSED: u32 = 3;
}

/// Values of a session slot's `tx_verb`. Any other value means [`slot_verb::CHOOSE`].
pub mod slot_verb {
    /// The engine chooses.
    pub const CHOOSE: u32 = 0;
    /// SEND with immediate, into the shared receive queue of the peer.
    pub const SEND: u32 = 1;
    /// WRITE with immediate, into the receive ring of the peer.
    pub const WRITE: u32 = 2;
    /// The peer's engine READs the bytes out of the transmit ring.
    pub const READ: u32 = 3;
}

/// Bits of a pair slot's `waiting`, and of `app_wait`.
pub mod waiting {
    /// Until there are bytes to read.
    pub const READABLE: u32 = 1;
    /// Until there is room to write.
    pub const WRITABLE: u32 = 2;
    /// Either: what FIN, STOP and ABORT end.
    pub const ANY: u32 = READABLE | WRITABLE;
    /// One sleep, counted in the bits above: a pair's peer answers each with one message.
    pub const SLEEP: u32 = ANY + 1;
}

/// Bits of the `flags` of an owner word.
pub mod owner_flag {
    /// The end is attached.
    pub const ATTACHED: u32 = 1;
    /// The end said that it is gone.
    pub const DETACHED: u32 = 2;
    /// The end lost its rights.
    pub const REVOKED: u32 = 4;
    /// A restarted daemon is taking the segment over.
    pub const ADOPTING: u32 = 8;
}
