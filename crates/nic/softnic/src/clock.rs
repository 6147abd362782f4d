//! The clock of one software NIC: monotonic time since the NIC was opened, as the protocol takes it.

use std::time::Instant;

use verbs::Time;

/// A monotonic clock with its own origin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
