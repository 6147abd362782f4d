//! Timers of QPs: one entry per QP at most, in order of time.
//!
//! An ACK pushes its QP's deadline back many times for each time that one fires. So the entry is moved only when a
//! deadline comes nearer; one that fires too early is armed again.

use std::collections::BTreeSet;

use verbs::{Qpn, Time};

/// Deadlines by QP. Each QP keeps the time of its own entry, so that most calls need no search.
#[derive(Debug, Default)]
pub struct Timers {
    queue: BTreeSet<(Time, Qpn)>,
}

impl Timers {
    /// Makes sure that the QP's entry, which is at `queued`, fires at `deadline` or before.
    pub fn arm(&mut self, qpn: Qpn, queued: &mut Option<Time>, deadline: Time) {
        if queued.is_some_and(|at| at <= deadline) {
            return;
        }
        self.cancel(qpn, queued.replace(deadline));
        self.queue.insert((deadline, qpn));
    }

    /// Forgets the QP's entry.
    pub fn cancel(&mut self, qpn: Qpn, queued: Option<Time>) {
        if let Some(at) = queued {
            self.queue.remove(&(at, qpn));
        }
    }

    /// When the first entry fires.
    pub fn first(&self) -> Option<Time> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes the QP of an entry that is due, and removes the entry.
    pub fn pop_due(&mut self, now: Time) -> Option<Qpn> {
        let &(at, qpn) = self.queue.first().filter(|(at, _)| *at <= now)?;
        self.queue.remove(&(at, qpn));
        Some(qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_entry_each_and_never_later_than_asked() {
        let mut timers = Timers::default();
        let (mut one, mut two) = (None, None);
        timers.arm(Qpn(1), &mut one, Time(10));
        timers.arm(Qpn(1), &mut one, Time(20));
        timers.arm(Qpn(2), &mut two, Time(15));
        timers.arm(Qpn(2), &mut two, Time(5));
        assert_eq!((one, two, timers.first()), (Some(Time(10)), Some(Time(5)), Some(Time(5))));
        assert_eq!(timers.pop_due(Time(4)), None);
        assert_eq!(timers.pop_due(Time(30)), Some(Qpn(2)));
        assert_eq!(timers.pop_due(Time(30)), Some(Qpn(1)));
        assert_eq!((timers.pop_due(Time(30)), timers.first()), (None, None));
        let mut three = None;
        timers.arm(Qpn(3), &mut three, Time(1));
        timers.cancel(Qpn(3), three);
        timers.cancel(Qpn(3), three);
        assert_eq!(timers.first(), None);
    }
}
