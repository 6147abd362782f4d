//! A clock that all processes of the demo share, so that one can say when another one noticed something.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the kernel's monotonic clock.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
