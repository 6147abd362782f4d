//! What all QPs of a NIC share: memory, completion and receive queues, address handles, counters, events.
//!
//! A QP gets it as an argument, so that no QP can reach another one.

use std::collections::VecDeque;

use genslab::GenSlab;
use verbs::{AsyncEvent, Completion, CqId, DeviceAttr, QpInit, SrqId};

use crate::counters::NicCounters;
use crate::cq::{Cq, Pushed};
use crate::limits::{MAX_EVENTS, NicLimits};
use crate::memory::MrTable;
use crate::path::Path;
use crate::receive_queue::{RecvWqe, Srq};
use crate::wire::IcrcChecker;

/// Shared state of a NIC.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) attr: DeviceAttr,
    pub(crate) mrs: MrTable,
    pub(crate) cqs: GenSlab<u32, Cq>,
    pub(crate) srqs: GenSlab<u32, Srq>,
    pub(crate) ahs: GenSlab<u32, Path>,
    pub(crate) counters: NicCounters,
    pub(crate) icrc: IcrcChecker,
    /// CQs that overflowed and whose QPs are not yet in error.
    pub(crate) overflowed: Vec<CqId>,
    /// An armed CQ got its completion.
    pub(crate) notify: bool,
    events: VecDeque<AsyncEvent>,
}

impl Device {
    pub(crate) fn new(attr: DeviceAttr, limits: &NicLimits) -> Self {
        Self {
            mrs: MrTable::new(attr.max_mr),
            cqs: GenSlab::new(limits.max_cq),
            srqs: GenSlab::new(limits.max_srq),
            ahs: GenSlab::new(limits.max_ah),
            counters: NicCounters::default(),
            icrc: IcrcChecker::default(),
            overflowed: Vec::new(),
            notify: false,
            events: VecDeque::new(),
            attr,
        }
    }

    /// Gives a completion to the consumer.
    pub(crate) fn complete(&mut self, cq: CqId, completion: Completion, solicited: bool) {
        if completion.status != verbs::Status::Success {
            self.counters.completions_failed += 1;
        }
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        match queue.push(completion, solicited) {
            Pushed::Quiet => {}
            Pushed::Notify => self.notify = true,
            Pushed::Lost => self.counters.cq_overflows += 1,
            Pushed::Overflow => {
                self.counters.cq_overflows += 1;
                self.overflowed.push(cq);
                self.raise(AsyncEvent::CqError(cq));
            }
        }
    }

    /// Queues an asynchronous event. A sleeping consumer is woken for it.
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        if self.events.len() >= MAX_EVENTS {
            self.counters.events_lost += 1;
            return;
        }
        self.events.push_back(event);
        self.notify = true;
    }

    pub(crate) fn take_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// Takes a receive from a shared queue, raising its limit event.
    pub(crate) fn take_shared(&mut self, srq: SrqId) -> Option<RecvWqe> {
        let (wqe, limit_reached) = self.srqs.get_mut(srq.0)?.take();
        if limit_reached {
            self.raise(AsyncEvent::SrqLimit(srq));
        }
        wqe
    }

    /// Counts a QP into, or out of, the objects that it uses.
    pub(crate) fn adjust_users(&mut self, init: &QpInit, up: bool) {
        let step = |users: &mut u32| *users = if up { *users + 1 } else { users.saturating_sub(1) };
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(cq) = self.cqs.get_mut(cq.0) {
                step(&mut cq.users);
            }
        }
        if let Some(srq) = init.srq.and_then(|srq| self.srqs.get_mut(srq.0)) {
            step(&mut srq.users);
        }
    }
}
