//! What a connection lends: bytes that arrived with the reading end, room with the writing end.
//!
//! Owns nothing but the guards. It must never outlive the connection.

use std::sync::MutexGuard;

use raas_core::{End, Reserved, Rx, Tx};

/// Bytes of a connection that arrived, lent with the reading end.
#[derive(Debug)]
pub(crate) struct Lent<'a> {
    pub(crate) rx: MutexGuard<'a, Rx>,
    /// How many there are, more than 0.
    pub(crate) bytes: u64,
}

/// Room in a connection's transmit ring, kept until it is dropped.
pub(crate) type Room<'a> = Reserved<MutexGuard<'a, Tx>>;

/// Takes or counts bytes of a connection, 0 if there are none.
pub(super) type Attempt<'a> = dyn FnMut(&mut Rx) -> Result<usize, End> + 'a;
