//! The ring sizes that an application may ask for.
//!
//! Owns the check. It must never let a size through that the daemon would refuse.

use shm::{RING_BYTES_MAX, RING_BYTES_MIN};

/// Whether `bytes` may be asked for: 0 for the daemon's default, or a power of two within the limits; else the size.
pub(crate) fn check_ring_bytes(bytes: u32) -> Result<(), u32> {
    let fits = bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes);
    if bytes == 0 || fits { Ok(()) } else { Err(bytes) }
}
