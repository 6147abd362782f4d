//! How far the keys of a lane's queue pair are used, if the device encrypts, and when they can be changed without harm.
//!
//! Owns that state, which begins anew with each queue pair.

use verbs::Time;

use super::Lane;
use crate::limits::KEYS_SETTLE;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct KeysUse {
    /// So far that a peer which gives the queue pair up may do so for that.
    is_used: bool,
    /// Another queue pair has to take its place; since when that is known.
    worn_since: Option<Time>,
}

impl KeysUse {
    /// Whether a peer which gives the queue pair up may do so for that.
    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// They were used for long, or so much (`is_due`) that others have to take their place. True: that was not known.
    fn wear(&mut self, now: Time, is_due: bool) -> bool {
        self.is_used = true;
        let is_news = is_due && self.worn_since.is_none();
        if is_news {
            self.worn_since = Some(now);
        }
        is_news
    }
}

impl Lane {
    /// The keys of the queue pair were used for long, so that its end is no fault; or so much (`is_due`) that another one
    /// has to take its place. True: that was not known.
    pub(crate) fn wear_keys(&mut self, now: Time, is_due: bool) -> bool {
        let is_news = self.keys.wear(now, is_due);
        if is_news {
            self.on.hold();
        }
        is_news
    }

    /// Whether a queue pair with worn keys can be taken down without harm: nothing of this end is under way whose outcome
    /// would be unknown, nor of the peer, if it had the time to do the same.
    pub(crate) fn may_renew_keys(&self, now: Time) -> bool {
        let Some(since) = self.keys.worn_since else { return false };
        let has_settled = !self.on.is_needed() || now.saturating_since(since) >= KEYS_SETTLE;
        self.qp.is_up() && !self.qp.is_failing() && self.on.is_still() && has_settled
    }

    /// When [`Self::may_renew_keys`] has another answer although nothing happens.
    pub(crate) fn renews_keys_at(&self) -> Option<Time> {
        self.keys.worn_since.map(|since| since + KEYS_SETTLE)
    }
}
