//! What a way to carry something over lanes brings to the engine, beside its own state: streams, operations, datagrams,
//! messages on UC, and the lane itself.
//!
//! A mechanism is a folder with its state, its part of each lane ([`LanePart`]), its records ([`FrameRecord`]) and an
//! `impl Mechanism`, and a line of the list in [`crate::mechanisms`]. The engine asks the list, never one of them by
//! name: for a record of a peer, for a completion, in each step of a round, when a lane comes up or is lost, when a
//! program is gone, and for the sums of `raas stat`; and a lane asks its parts. The list is asked in its order, by calls
//! that are known when the engine is compiled: a hook that a mechanism leaves out costs nothing.
//!
//! [`LanePart`]: crate::lane_part::LanePart
//!
//! Owns what is asked and when. A mechanism must never wait, and must bound its work in each step.
//!
//! | step | hooks |
//! |---|---|
//! | completions | `on_completion`, `on_sent`, `on_record`; then `repost` once |
//! | device events | `on_qp_failed` |
//! | timers | `bring_back` |
//! | the round's own work | `run`, lanes send (`write`), `run_behind_lanes`, lanes are reset, `settle`, `run_last` |
//! | a lane's life | `on_accepted`, `on_lane_up`, `before_qp_goes`, `on_lane_kept`, `on_heard`, `on_severed`, `on_link_lost` |
//! | a program's memory and end | `on_rings`, `on_chunk_not_taken`, `on_departure`, `on_overdue`, `on_app_gone` |
//! | sleep | `has_work`, `deadline` |
//! | rows | `memory`, `counters` |

use control::Reason;
use verbs::{Completion, Provider, Qpn, Time};

use super::Engine;
use crate::frame::{FrameError, FrameRecord, FrameWriter, RawRecord};
use crate::ids::{AppId, LaneId};
use crate::lane::{Lane, PeerEnd};
use crate::operations::Operations;
use crate::ringpool::Waiter;
use crate::tenants::{TenantPlace, Tenants, Waits};
use crate::violation::Violation;
use crate::vqp::table::Connections;

/// A counter of `raas stat`, by its name.
pub(super) type Counter = (&'static str, u64);

/// A lane about to send a frame, and what of the engine a mechanism may ask for it.
pub(super) struct Telling<'a> {
    pub(super) lane: &'a mut Lane,
    pub(super) vqps: &'a mut Connections,
    pub(super) ops: &'a mut Operations,
    pub(super) tenants: &'a Tenants,
    /// The frame's work request.
    pub(super) wr: u64,
    /// Somebody waits until the frame is done.
    pub(super) is_awaited: bool,
}

/// See the module. Each hook that says whether something was done, or whether something was its own, has `false` for
/// nothing.
pub(super) trait Mechanism {
    /// What its two ends say to each other in control frames; [`NoRecord`] if they say nothing there.
    type Record: FrameRecord;

    // ---- completions and events

    /// A peer said something. An error means that it broke the rules, and costs it the lane.
    fn on_record<P: Provider>(
        engine: &mut Engine,
        nic: &mut P,
        lane: LaneId,
        record: Self::Record,
    ) -> Result<(), Violation>;

    /// Whether a record shows that the lane is used.
    #[inline]
    fn is_use(_record: &Self::Record) -> bool {
        true
    }

    /// A completion, of the queue pair of `lane` if that is one. Whether it is of a queue pair, or a receive, of its own.
    #[inline]
    fn on_completion(_engine: &mut Engine, _lane: Option<LaneId>, _completion: &Completion) -> bool {
        false
    }

    /// Posts receives of its own again.
    #[inline]
    fn repost<P: Provider>(_engine: &mut Engine, _nic: &mut P) {}

    /// Work requests of a lane up to this one are done.
    #[inline]
    fn on_sent(_engine: &mut Engine, _lane: LaneId, _wr: u64) {}

    /// The device put a queue pair in error. Whether it is its own.
    fn on_qp_failed(_engine: &mut Engine, _qpn: Qpn) -> bool {
        false
    }

    /// A tenant that was stopped by its rate may send again, and waited here, if `waits` says so.
    fn bring_back(_engine: &mut Engine, _tenant: TenantPlace, _waits: Waits) {}

    // ---- a round

    /// Before the lanes send: what it has for them.
    #[inline]
    fn run(_engine: &mut Engine) -> bool {
        false
    }

    /// Writes what is to be said in a frame of a lane, and what may be said as well. False: the frame is full.
    #[inline]
    fn write(_telling: &mut Telling<'_>, _frame: &mut FrameWriter<'_>) -> bool {
        true
    }

    /// After the lanes have sent: what goes by queue pairs of its own.
    #[inline]
    fn run_behind_lanes<P: Provider>(_engine: &mut Engine, _nic: &mut P) -> bool {
        false
    }

    /// After lanes that failed were reset: what the round left.
    #[inline]
    fn settle(_engine: &mut Engine) -> bool {
        false
    }

    /// At the end of the round; `is_calm`: nothing was done in it before.
    #[inline]
    fn run_last<P: Provider>(_engine: &mut Engine, _nic: &mut P, _is_calm: bool) -> bool {
        false
    }

    /// Whether the driver must not sleep.
    fn has_work(_engine: &Engine) -> bool {
        false
    }

    /// When a round is needed even if nothing happens.
    fn deadline(_engine: &Engine) -> Option<Time> {
        None
    }

    // ---- a lane's life

    /// The lane's queue pair is connected to the peer's.
    fn on_accepted(_engine: &mut Engine, _lane: LaneId, _peer: &PeerEnd) {}

    /// The lane is up.
    fn on_lane_up(_engine: &mut Engine, _lane: LaneId) {}

    /// The lane's queue pair is about to be destroyed, and what is beside it goes first.
    fn before_qp_goes<P: Provider>(_engine: &mut Engine, _nic: &mut P, _lane: LaneId) {}

    /// The lane's queue pair is destroyed, and the lane goes on with another one, or will.
    fn on_lane_kept(_engine: &mut Engine, _lane: LaneId) {}

    /// The peer handled `frames` frames of those that were sent on the old queue pair. If it `is_fresh`, it kept nothing
    /// of what it did.
    fn on_heard(_engine: &mut Engine, _lane: LaneId, _frames: u64, _is_fresh: bool) {}

    /// The lane's queue pair is destroyed, and what was on it ends.
    fn on_severed(_engine: &mut Engine, _lane: LaneId, _reason: Reason) {}

    /// The link to the lane's host is gone, or did not come.
    fn on_link_lost<P: Provider>(_engine: &mut Engine, _nic: &mut P, _lane: LaneId, _reason: Reason) {}

    // ---- a program's memory, and its end

    /// Rings are there for something that waited for them, or will not be. Whether its own waited.
    fn on_rings(_engine: &mut Engine, _waiter: Waiter, _rings: Result<(), Reason>) -> bool {
        false
    }

    /// An application cannot use this chunk of rings.
    fn on_chunk_not_taken(_engine: &mut Engine, _app: AppId, _chunk: u32) {}

    /// An application has left. What it has is in quarantine until nothing of it is in use.
    fn on_departure(_engine: &mut Engine, _app: AppId, _reason: Reason) {}

    /// Something of an application that left is in use for too long.
    fn on_overdue<P: Provider>(_engine: &mut Engine, _nic: &mut P, _app: AppId) {}

    /// Nothing of an application is in use any more.
    fn on_app_gone(_engine: &mut Engine, _app: AppId) {}

    // ---- rows

    /// Regions that are registered, and their bytes.
    fn memory(_engine: &Engine) -> (u32, u64) {
        (0, 0)
    }

    /// Appends its counters.
    fn counters(_engine: &Engine, _out: &mut Vec<Counter>) {}
}

/// Of a mechanism that says nothing in frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoRecord {}

impl FrameRecord for NoRecord {
    fn read(_raw: &RawRecord<'_>) -> Result<Option<Self>, FrameError> {
        Ok(None)
    }

    fn write(&self, _frame: &mut FrameWriter<'_>) -> bool {
        match *self {}
    }
}
