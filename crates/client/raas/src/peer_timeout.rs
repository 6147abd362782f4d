//! How long a peer may be silent, in the unit that slots and sockets have.
//!
//! Owns the rounding. It must never make a time shorter than asked for.

use std::io;
use std::time::Duration;

/// Whole milliseconds, not less than asked for; 0 for none.
pub(crate) fn peer_timeout_ms(timeout: Option<Duration>) -> io::Result<u32> {
    match timeout {
        Some(Duration::ZERO) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a peer timeout of 0 is not allowed: use None to wait as long as the daemons do",
        )),
        Some(t) => Ok(u32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)),
        None => Ok(0),
    }
}
