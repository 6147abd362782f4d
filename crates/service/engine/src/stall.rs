//! How long the connections of a lane wait for a peer that says nothing.
//!
//! Owns the wishes of their applications, soonest first. It must never measure silence itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::RouteId;

/// A lane whose peer says nothing.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// Connections that wait for a bounded time, soonest first. Entries of connections that are over go when they are
    /// due.
    due: BTreeSet<(Duration, RouteId)>,
    patience: BTreeMap<RouteId, Duration>,
}

impl Stall {
    /// The application's wish for a connection, as it is now.
    pub(crate) fn note(&mut self, route: RouteId, patience: Option<Duration>) {
        let old = match patience {
            Some(patience) => self.patience.insert(route, patience),
            None => self.patience.remove(&route),
        };
        if old != patience {
            if let Some(old) = old {
                self.due.remove(&(old, route));
            }
            self.due.extend(patience.map(|patience| (patience, route)));
        }
    }

    /// A connection that does not wait for as long as the peer is silent.
    pub(crate) fn take_due(&mut self, silent: Duration) -> Option<RouteId> {
        let (patience, route) = *self.due.first().filter(|(patience, _)| *patience <= silent)?;
        self.due.remove(&(patience, route));
        self.patience.remove(&route);
        Some(route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Key;

    #[test]
    fn the_last_wish_counts_and_each_is_due_once() {
        let (a, b) = (RouteId::from_bits(1), RouteId::from_bits(2));
        let ms = Duration::from_millis;
        let mut stall = Stall::default();
        stall.note(a, Some(ms(5)));
        stall.note(b, Some(ms(7)));
        stall.note(a, Some(ms(9)));
        assert_eq!(stall.take_due(ms(6)), None);
        assert_eq!(stall.take_due(ms(9)), Some(b));
        stall.note(b, Some(ms(1)));
        stall.note(b, None);
        assert_eq!(stall.take_due(ms(9)), Some(a));
        assert_eq!(stall.take_due(Duration::MAX), None);
        assert!(stall.due.is_empty() && stall.patience.is_empty());
    }
}
