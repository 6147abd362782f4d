//! The wish for a lane: whether the daemon was asked to dial, who waits for it, and how often it was in vain.

use std::collections::VecDeque;
use std::time::Duration;

use rand::RngExt;
use verbs::Time;

use crate::ids::ConnectId;
use crate::redial::Redial;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Dialing {
    /// The daemon was asked to dial, or to replace the queue pair.
    is_wanted: bool,
    /// Dials that failed, and when datagrams may have the host dialed again.
    redial: Redial,
    /// Connects that wait for the lane.
    parked: VecDeque<ConnectId>,
}

impl Dialing {
    /// Whether the daemon was asked to dial, or to replace the queue pair.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Somebody wants the lane, which is down. True: the daemon must dial.
    pub(super) fn want(&mut self) -> bool {
        !std::mem::replace(&mut self.is_wanted, true)
    }

    /// Whether the daemons make the next queue pair by themselves.
    pub(super) fn set_wanted(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
    }

    /// A connect waits for the lane.
    pub(crate) fn park(&mut self, connect: ConnectId) {
        self.parked.push_back(connect);
    }

    /// Whether connects wait.
    pub(super) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Nothing wants the lane any more. Returns the connects that waited for it.
    pub(crate) fn give_up(&mut self) -> VecDeque<ConnectId> {
        self.is_wanted = false;
        std::mem::take(&mut self.parked)
    }

    /// Whether a datagram may have the host dialed now.
    pub(crate) fn may_redial(&self, now: Time) -> bool {
        self.redial.is_due(now)
    }

    /// Failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.redial.failures()
    }

    /// How long datagrams have to wait for the next dial.
    pub(super) fn wait(&self, now: Time) -> Duration {
        self.redial.wait(now)
    }

    /// The lane ended, this long after it had come up.
    pub(super) fn on_lost(&mut self, now: Time, lasted: Duration, rng: &mut impl RngExt) {
        self.redial.on_lost(now, lasted, rng);
    }

    /// The lane did not come. Without a wish for it that is no failed dial.
    pub(super) fn on_not_made(&mut self, now: Time, rng: &mut impl RngExt) {
        if self.is_wanted {
            self.redial.on_failed(now, rng);
        }
    }
}
