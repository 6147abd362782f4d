//! Sizes of rings and of pair segments that the daemon may describe.
//!
//! Owns their limits, so that nothing is mapped or made before its size was checked.

use shm::{Pair, RING_BYTES_MAX, RING_BYTES_MIN};

use crate::SessionFault;

/// Slots of a pair segment at most.
const PAIR_SLOTS_MAX: u32 = 4096;
/// Bytes of a pair segment at most; its pages come into being when they are used.
const PAIR_BYTES_MAX: u64 = 4 << 30;

/// Whether a ring may have this size.
pub(crate) fn is_ring_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes)
}

/// Bytes of a pair segment that the daemon describes.
pub(crate) fn pair_bytes(slots: u32, ring_bytes: u32) -> Result<u64, SessionFault> {
    if !is_ring_size(ring_bytes) || !(1..=PAIR_SLOTS_MAX).contains(&slots) || !slots.is_power_of_two() {
        return Err(SessionFault::Protocol(format!("pair segment with {slots} rings of {ring_bytes} bytes")));
    }
    let bytes = Pair::bytes(slots, ring_bytes);
    if bytes > PAIR_BYTES_MAX {
        return Err(SessionFault::Protocol(format!("pair segment of {bytes} bytes is longer than {PAIR_BYTES_MAX}")));
    }
    Ok(bytes)
}
