//! Timers of QPs: one entry per QP at most, in order of time.
//!
//! An ACK pushes its QP's deadline back many times for each time that one fires. So the entry is moved only when a
//! deadline comes nearer; one that fires too early is armed again.

use std::collections::{BTreeMap, BTreeSet};

use verbs::{Qpn, Time};

/// Deadlines by QP.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: BTreeSet<(Time, Qpn)>,
    queued: BTreeMap<Qpn, Time>,
}

impl Timers {
    /// Makes sure that the QP's entry fires at `deadline` or before.
    pub(crate) fn arm(&mut self, qpn: Qpn, deadline: Time) {
        match self.queued.get(&qpn) {
            Some(&at) if at <= deadline => return,
            Some(&at) => {
                self.queue.remove(&(at, qpn));
            }
            None => {}
        }
        self.queue.insert((deadline, qpn));
        self.queued.insert(qpn, deadline);
    }

    /// Forgets the QP's entry.
    pub(crate) fn cancel(&mut self, qpn: Qpn) {
        if let Some(at) = self.queued.remove(&qpn) {
            self.queue.remove(&(at, qpn));
        }
    }

    /// When the first entry fires.
    pub(crate) fn first(&self) -> Option<Time> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes the QP of an entry that is due.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Qpn> {
        let &(at, qpn) = self.queue.first().filter(|(at, _)| *at <= now)?;
        self.queue.remove(&(at, qpn));
        self.queued.remove(&qpn);
        Some(qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_entry_each_and_never_later_than_asked() {
        let mut timers = Timers::default();
        timers.arm(Qpn(1), Time(10));
        timers.arm(Qpn(1), Time(20));
        timers.arm(Qpn(2), Time(15));
        timers.arm(Qpn(2), Time(5));
        assert_eq!(timers.first(), Some(Time(5)));
        assert_eq!(timers.pop_due(Time(4)), None);
        assert_eq!(timers.pop_due(Time(30)), Some(Qpn(2)));
        assert_eq!(timers.pop_due(Time(30)), Some(Qpn(1)));
        assert_eq!((timers.pop_due(Time(30)), timers.first()), (None, None));
        timers.arm(Qpn(3), Time(1));
        timers.cancel(Qpn(3));
        timers.cancel(Qpn(3));
        assert_eq!(timers.first(), None);
    }
}
