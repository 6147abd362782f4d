//! Numbers of one width as those of another, each with the reason why nothing is lost.
//!
//! Owns nothing. `as` may stand here alone in this crate.

use std::time::Duration;

/// A length, or a place in a table: tables and messages here are bounded far below 2^32.
pub(crate) fn count(n: usize) -> u32 {
    debug_assert!(u32::try_from(n).is_ok());
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A place in memory: this crate is for machines of 64 bits, as the daemon is.
pub(crate) fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// As [`count`], of what is measured in 64 bits.
pub(crate) fn few(n: u64) -> u32 {
    debug_assert!(u32::try_from(n).is_ok());
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The low 32 bits, of a count that the wire has in so many.
pub(crate) fn low(n: u64) -> u32 {
    let [.., a, b, c, d] = n.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The low 16 bits.
pub(crate) fn low16(n: u64) -> u16 {
    let [.., a, b] = n.to_be_bytes();
    u16::from_be_bytes([a, b])
}

/// Microseconds: 584,000 years of them fit.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Nanoseconds: 584 years of them fit.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
