//! What all parts of a replica work with.

use crate::action::Outbox;
use crate::machine::State;
use crate::settings::Settings;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Context<'r, M> {
    pub(crate) settings: &'r Settings,
    pub(crate) state: &'r mut State<M>,
    pub(crate) outbox: &'r mut Outbox,
    /// Microseconds.
    pub(crate) now: u64,
    /// See [`crate::pace`].
    pub(crate) doublings: u32,
}

impl<M> Context<'_, M> {
    /// The moment in so many periods.
    pub(crate) fn after(&self, periods: u64) -> u64 {
        self.now + periods * self.settings.period_us
    }

    /// The moment in so many periods, or later if no term does anything.
    pub(crate) fn patiently_after(&self, periods: u64) -> u64 {
        self.after(periods << self.doublings)
    }
}
