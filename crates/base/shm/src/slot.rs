//! The words of one connection in a session segment. Owns their names, and says which side writes each; `layout` has
//! their places.

use crate::{Word32, Word64};

/// Words of a session slot. The first twelve are the application's, the others the engine's.
#[derive(Debug, Clone)]
pub struct SlotWords {
    /// Absolute offset after the last byte written to the tx ring.
    pub tx_tail: Word64,
    /// Absolute offset of the next byte to read from the rx ring.
    pub rx_head: Word64,
    /// Bits of [`crate::app_flag`].
    pub app_flags: Word32,
    /// Bits of [`crate::waiting`]: advice, the doorbell decides.
    pub app_wait: Word32,
    /// Generation of the connection that the application believes the slot holds.
    pub app_generation: Word32,
    /// Process that uses the slot.
    pub app_owner_pid: Word32,
    /// Whether something may be written behind the tail: see [`crate::begin_rest`].
    pub tx_use: Word32,
    /// Silence of the peer's daemon in milliseconds after which the engine ends the connection; 0: as long as the
    /// daemons wait.
    pub peer_timeout_ms: Word32,
    /// Bytes written to the stream's own TCP connection; for rows only.
    pub direct_tx: Word64,
    /// Bytes read from it.
    pub direct_rx: Word64,
    /// A value of [`crate::slot_verb`]: what the application wants its bytes to travel by.
    pub tx_verb: Word32,
    /// When it wrote a byte that is looked at, and which one: see [`crate::written_word`].
    pub tx_written: Word64,
    /// Bytes of the tx ring before it are free: the peer's application consumed them.
    pub tx_head: Word64,
    /// Absolute offset after the last byte that arrived.
    pub rx_tail: Word64,
    /// A value of [`crate::slot_state`].
    pub state: Word32,
    /// Bits of [`crate::engine_flag`].
    pub engine_flags: Word32,
    /// Why closed or reset (docs/reasons.md).
    pub reason: Word32,
    /// Raised each time the slot is given to another connection.
    pub generation: Word32,
    /// Lane incarnation that carries the connection; of a datagram socket, datagrams that did not fit their path.
    pub epoch: Word64,
    /// 1 while the engine gives pages of the tx ring back.
    pub tx_rest: Word32,
    /// Absolute offset from which on the tx ring uses all of its bytes; 0: not yet.
    pub tx_grown_at: Word64,
    /// The same of the rx ring.
    pub rx_grown_at: Word64,
    /// Bytes that the application keeps in the tx ring at most while a TCP connection of the stream's own is to be
    /// expected; 0: as many as fit.
    pub tx_hold: Word32,
    /// Number of the engine of the daemon that carries the connection or socket, from 0.
    pub engine: Word32,
}
