//! Opens on their way over a lane, in both directions.
//!
//! Owns how many may be unanswered. Each Open is answered once, and a refusal needs no connection.

use std::collections::VecDeque;

use crate::frame::{FrameWriter, StreamRecord};
use crate::ids::RouteId;
use crate::limits::OPENS_PENDING_MAX;
use crate::violation::Violation;
use crate::vqp::table::Connections;

/// An answer that has no connection.
#[derive(Debug, Clone, Copy)]
struct Nak {
    route: u32,
    reason: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    /// Connections whose Open is to be sent.
    opens: VecDeque<RouteId>,
    /// Opens sent and not answered.
    sent: u32,
    /// Opens received and not answered.
    received: u32,
    naks: VecDeque<Nak>,
}

impl Opening {
    // ---- of this host

    /// A connection's Open is to be sent.
    pub(crate) fn push(&mut self, route: RouteId) {
        self.opens.push_back(route);
    }

    /// The peer answered an Open.
    pub(crate) fn on_answered(&mut self) {
        self.sent = self.sent.saturating_sub(1);
    }

    /// So many Opens that the peer knows of still wait for its answer.
    pub(crate) fn on_gone_on(&mut self, sent: u32) {
        self.sent = sent;
    }

    // ---- of the peer

    /// An Open of the peer arrived: it waits for an answer.
    pub(crate) fn on_received(&mut self) -> Result<(), Violation> {
        if self.received >= OPENS_PENDING_MAX {
            return Err(Violation::TooManyOpens(OPENS_PENDING_MAX));
        }
        self.received += 1;
        Ok(())
    }

    /// After a reset an Open of the peer waits for its answer once more.
    pub(crate) fn owe_answer_again(&mut self) {
        self.received += 1;
    }

    /// An Open of the peer is refused.
    pub(crate) fn refuse(&mut self, route: u32, reason: u32) {
        self.naks.push_back(Nak { route, reason });
    }

    /// An answer is in a frame.
    pub(crate) fn on_answer_sent(&mut self) {
        self.received = self.received.saturating_sub(1);
    }

    // ---- both

    /// Whether a frame should leave for it.
    #[inline]
    pub(crate) fn wants_frame(&self) -> bool {
        !self.naks.is_empty() || (!self.opens.is_empty() && self.sent < OPENS_PENDING_MAX)
    }

    /// Whether a connection is about to be.
    pub(crate) fn has_opens(&self) -> bool {
        !self.opens.is_empty() || self.sent > 0 || self.received > 0
    }

    /// Whether nothing is to be sent or answered.
    pub(crate) fn is_quiet(&self) -> bool {
        self.naks.is_empty() && !self.has_opens()
    }

    /// Writes the refusals. False: the frame is full.
    pub(crate) fn write_naks(&mut self, frame: &mut FrameWriter<'_>) -> bool {
        while let Some(&Nak { route, reason }) = self.naks.front() {
            if !frame.push(&StreamRecord::OpenNak { route, reason }) {
                return false;
            }
            self.naks.pop_front();
            self.on_answer_sent();
        }
        true
    }

    /// Writes the Opens, as many as may be unanswered. False: the frame is full.
    pub(crate) fn write_opens(&mut self, vqps: &mut Connections, frame: &mut FrameWriter<'_>) -> bool {
        while self.sent < OPENS_PENDING_MAX
            && let Some(&route) = self.opens.front()
        {
            if let Some(vqp) = vqps.get_mut(route) {
                if !frame.push(&vqp.open_record()) {
                    return false;
                }
                vqp.on_open_sent();
                self.sent += 1;
            }
            self.opens.pop_front();
        }
        true
    }

    /// The queue pair is destroyed.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// What is left after that: `unsent`, whose Open never left, the oldest last; and how many Opens of the peer still
    /// wait for an answer.
    pub(crate) fn keep(&mut self, unsent: Vec<RouteId>, unanswered: u32) {
        self.received = unanswered;
        self.opens.extend(unsent.into_iter().rev());
    }
}
