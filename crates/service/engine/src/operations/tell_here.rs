//! Notices of programs of this host: what they wrote, or copied into a region that they have mapped, is done, and the
//! owner is to be told.
//!
//! Owns the submissions whose notice waits for room. Each has its completion when the notice is in the owner's ring, or is
//! refused. A program that has as many waiting as it may is held back at its queue, where only its own operations wait.

use std::collections::{BTreeMap, BTreeSet};

use shm::{Notice, Opcode, OperationStatus, Submission};
use verbs::Time;

use super::kernels::To;
use super::{Operations, Outcome};
use crate::ids::{AppId, HandleId, QueueId};

/// A submission that is done but for its notice.
#[derive(Debug)]
struct Told {
    queue: QueueId,
    submission: Submission,
    chain: u64,
    handle: HandleId,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Tellings {
    last: u64,
    by_number: BTreeMap<u64, Told>,
    /// Queues whose front submission waits for a place.
    held_back: BTreeSet<QueueId>,
}

impl Operations {
    /// Whether the front submission of a queue has to wait until fewer notices of its program do.
    pub(super) fn is_held_back(&mut self, id: QueueId, front: &Submission) -> bool {
        let Some(app) = self.queues.get_mut(id).map(|queue| queue.at().app) else { return false };
        let waits = front.opcode == Opcode::WriteNotify && !self.notices.has_place(app);
        if waits {
            self.tellings.held_back.insert(id);
        }
        waits
    }

    /// The bytes of the front submission of a queue are there: the owner of the region is told.
    pub(super) fn tell_here(&mut self, id: QueueId, front: &Submission, (handle, region): (HandleId, u64), now: Time) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        let app = queue.at().app;
        let chain = queue.take_front();
        queue.begin();
        self.regions.begin(handle);
        self.tellings.last += 1;
        let request = self.tellings.last;
        self.tellings.by_number.insert(request, Told { queue: id, submission: *front, chain, handle });
        let (offset, bytes) = front.told();
        let notice = Notice { tag: front.notify, offset, bytes: bytes.into(), from: None };
        self.tell_owner(region, notice, To::Program { app, request }, now);
    }

    /// The owner has the notice, or will not get it.
    pub(crate) fn on_told_here(&mut self, request: u64, outcome: Outcome) {
        let Some(Told { queue: id, submission, chain, handle }) = self.tellings.by_number.remove(&request) else {
            return;
        };
        self.regions.end(handle);
        if let Some(queue) = self.queues.get_mut(id) {
            queue.end();
            if outcome.status != OperationStatus::Ok {
                queue.on_failed(chain);
            }
        }
        self.tell(id, &submission, outcome, &[]);
        self.note_closed(id);
        self.note_due(id);
        for queue in std::mem::take(&mut self.tellings.held_back) {
            self.note_due(queue);
        }
    }

    /// A program is gone: nobody hears what becomes of its notices.
    pub(crate) fn drop_told_here(&mut self, app: AppId) {
        self.notices.drop_program(app);
        let is_its = |(_, told): &(u64, Told)| self.queues.get(told.queue).is_none_or(|queue| queue.at().app == app);
        let (over, kept) = std::mem::take(&mut self.tellings.by_number).into_iter().partition(is_its);
        self.tellings.by_number = kept;
        for told in BTreeMap::<u64, Told>::into_values(over) {
            self.regions.end(told.handle);
            if let Some(queue) = self.queues.get_mut(told.queue) {
                queue.end();
            }
            self.note_closed(told.queue);
        }
    }
}
