//! Completion queues (IBTA 10.8, 11.4.2): bounded, armed for one notification at a time, fatal on overflow.

use std::collections::VecDeque;

use verbs::{Completion, Status};

/// What wakes the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// What became of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// Queued; nobody needs to be woken.
    Quiet,
    /// Queued; the armed consumer is to be woken.
    Notify,
    /// No room: the CQ is in error from now on. Said once.
    Overflow,
    /// The CQ was in error already.
    Lost,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    entries: VecDeque<Completion>,
    capacity: usize,
    armed: Armed,
    failed: bool,
    /// QPs that use it, once for each of their queues.
    users: u32,
}

impl Cq {
    /// An empty one of so many entries.
    pub fn new(capacity: u32) -> Self {
        Self { entries: VecDeque::new(), capacity: capacity as usize, armed: Armed::No, failed: false, users: 0 }
    }

    /// Queues a completion. `solicited`: its message asked for an event; errors always do.
    pub fn push(&mut self, completion: Completion, solicited: bool) -> Pushed {
        if self.failed {
            return Pushed::Lost;
        }
        if self.entries.len() >= self.capacity {
            self.failed = true;
            return Pushed::Overflow;
        }
        self.entries.push_back(completion);
        let wakes = match self.armed {
            Armed::No => false,
            Armed::Solicited => solicited || completion.status != Status::Success,
            Armed::Any => true,
        };
        if wakes {
            self.armed = Armed::No;
            return Pushed::Notify;
        }
        Pushed::Quiet
    }

    /// Arms one notification. Asking for every completion is not narrowed by asking for solicited ones later.
    pub fn arm(&mut self, solicited_only: bool) {
        self.armed = match (self.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
    }

    /// Whether it overflowed. Its QPs cannot go on.
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether a QP uses it.
    pub const fn is_used(&self) -> bool {
        self.users > 0
    }

    /// Counts one queue of a QP in, or out.
    pub(crate) fn adjust_users(&mut self, up: bool) {
        self.users = if up { self.users + 1 } else { self.users.saturating_sub(1) };
    }

    /// Whether no completion waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Moves up to `max` completions to `out`.
    pub fn poll(&mut self, out: &mut Vec<Completion>, max: usize) -> usize {
        let n = max.min(self.entries.len());
        let (head, tail) = self.entries.as_slices();
        let from_head = n.min(head.len());
        out.extend_from_slice(&head[..from_head]);
        out.extend_from_slice(&tail[..n - from_head]);
        self.entries.drain(..n);
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Placed, Qpn, WcOpcode};

    fn completion(status: Status) -> Completion {
        Completion {
            wr_id: 0,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            qpn: Qpn(2),
            imm: None,
            src_qpn: None,
            placed: Placed::Untold,
        }
    }

    #[test]
    fn arming() {
        let ok = completion(Status::Success);
        let mut cq = Cq::new(16);
        assert_eq!(cq.push(ok, true), Pushed::Quiet);
        cq.arm(true);
        assert_eq!(cq.push(ok, false), Pushed::Quiet);
        assert_eq!(cq.push(ok, true), Pushed::Notify);
        assert_eq!(cq.push(ok, true), Pushed::Quiet, "once");
        cq.arm(true);
        assert_eq!(cq.push(completion(Status::WrFlushErr), false), Pushed::Notify);
        cq.arm(false);
        cq.arm(true);
        assert_eq!(cq.push(ok, false), Pushed::Notify, "not narrowed");
    }

    #[test]
    fn overflow_is_said_once_and_loses_nothing_queued() {
        let mut cq = Cq::new(2);
        let ok = completion(Status::Success);
        assert_eq!([cq.push(ok, false), cq.push(ok, false)], [Pushed::Quiet; 2]);
        assert_eq!([cq.push(ok, false), cq.push(ok, false)], [Pushed::Overflow, Pushed::Lost]);
        let mut out = Vec::new();
        assert_eq!((cq.poll(&mut out, 1), cq.poll(&mut out, 9), out.len()), (1, 1, 2));
        assert_eq!(cq.push(ok, false), Pushed::Lost);
    }
}
