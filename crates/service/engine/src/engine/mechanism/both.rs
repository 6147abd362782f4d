//! Two mechanisms as one, of which a list is made.

use std::marker::PhantomData;

use control::Reason;
use verbs::{Completion, Provider, Qpn, Time};

use super::{Counter, Mechanism};
use crate::engine::Engine;
use crate::frame::{FrameError, FrameRecord, FrameWriter, RawRecord};
use crate::ids::{AppId, LaneId};
use crate::tenants::{TenantPlace, Waits};
use crate::violation::Violation;

/// Two mechanisms, or one and a list.
#[derive(Debug)]
pub(in crate::engine) struct Both<A, B>(PhantomData<(A, B)>);

/// A record of one of the two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

impl<A: FrameRecord, B: FrameRecord> FrameRecord for Either<A, B> {
    #[inline]
    fn read(raw: &RawRecord<'_>) -> Result<Option<Self>, FrameError> {
        match A::read(raw)? {
            Some(record) => Ok(Some(Self::First(record))),
            None => Ok(B::read(raw)?.map(Self::Second)),
        }
    }

    fn write(&self, frame: &mut FrameWriter<'_>) -> bool {
        match self {
            Self::First(record) => record.write(frame),
            Self::Second(record) => record.write(frame),
        }
    }
}

impl<A: Mechanism, B: Mechanism> Mechanism for Both<A, B> {
    type Record = Either<A::Record, B::Record>;

    #[inline]
    fn on_record<P: Provider>(
        engine: &mut Engine,
        nic: &mut P,
        lane: LaneId,
        record: Self::Record,
    ) -> Result<(), Violation> {
        match record {
            Either::First(record) => A::on_record(engine, nic, lane, record),
            Either::Second(record) => B::on_record(engine, nic, lane, record),
        }
    }

    #[inline]
    fn is_use(record: &Self::Record) -> bool {
        match record {
            Either::First(record) => A::is_use(record),
            Either::Second(record) => B::is_use(record),
        }
    }

    #[inline]
    fn on_completion(engine: &mut Engine, lane: Option<LaneId>, completion: &Completion) -> bool {
        A::on_completion(engine, lane, completion) || B::on_completion(engine, lane, completion)
    }

    #[inline]
    fn repost<P: Provider>(engine: &mut Engine, nic: &mut P) {
        A::repost(engine, nic);
        B::repost(engine, nic);
    }

    #[inline]
    fn on_sent(engine: &mut Engine, lane: LaneId, wr: u64) {
        A::on_sent(engine, lane, wr);
        B::on_sent(engine, lane, wr);
    }

    fn on_qp_failed(engine: &mut Engine, qpn: Qpn) -> bool {
        A::on_qp_failed(engine, qpn) || B::on_qp_failed(engine, qpn)
    }

    fn bring_back(engine: &mut Engine, tenant: TenantPlace, waits: Waits) {
        A::bring_back(engine, tenant, waits);
        B::bring_back(engine, tenant, waits);
    }

    #[inline]
    fn run(engine: &mut Engine) -> bool {
        A::run(engine) | B::run(engine)
    }

    #[inline]
    fn run_behind_lanes<P: Provider>(engine: &mut Engine, nic: &mut P) -> bool {
        A::run_behind_lanes(engine, nic) | B::run_behind_lanes(engine, nic)
    }

    #[inline]
    fn settle(engine: &mut Engine) -> bool {
        A::settle(engine) | B::settle(engine)
    }

    #[inline]
    fn run_last<P: Provider>(engine: &mut Engine, nic: &mut P, is_calm: bool) -> bool {
        A::run_last(engine, nic, is_calm) | B::run_last(engine, nic, is_calm)
    }

    fn has_work(engine: &Engine) -> bool {
        A::has_work(engine) || B::has_work(engine)
    }

    fn deadline(engine: &Engine) -> Option<Time> {
        [A::deadline(engine), B::deadline(engine)].into_iter().flatten().min()
    }

    fn on_lane_up(engine: &mut Engine, lane: LaneId) {
        A::on_lane_up(engine, lane);
        B::on_lane_up(engine, lane);
    }

    fn before_qp_goes<P: Provider>(engine: &mut Engine, nic: &mut P, lane: LaneId) {
        A::before_qp_goes(engine, nic, lane);
        B::before_qp_goes(engine, nic, lane);
    }

    fn on_lane_kept(engine: &mut Engine, lane: LaneId) {
        A::on_lane_kept(engine, lane);
        B::on_lane_kept(engine, lane);
    }

    fn on_heard(engine: &mut Engine, lane: LaneId, frames: u64, is_fresh: bool) {
        A::on_heard(engine, lane, frames, is_fresh);
        B::on_heard(engine, lane, frames, is_fresh);
    }

    fn on_severed(engine: &mut Engine, lane: LaneId, reason: Reason) {
        A::on_severed(engine, lane, reason);
        B::on_severed(engine, lane, reason);
    }

    fn on_link_lost<P: Provider>(engine: &mut Engine, nic: &mut P, lane: LaneId, reason: Reason) {
        A::on_link_lost(engine, nic, lane, reason);
        B::on_link_lost(engine, nic, lane, reason);
    }

    fn on_chunk_not_taken(engine: &mut Engine, app: AppId, chunk: u32) {
        A::on_chunk_not_taken(engine, app, chunk);
        B::on_chunk_not_taken(engine, app, chunk);
    }

    fn on_departure(engine: &mut Engine, app: AppId, reason: Reason) {
        A::on_departure(engine, app, reason);
        B::on_departure(engine, app, reason);
    }

    fn on_overdue<P: Provider>(engine: &mut Engine, nic: &mut P, app: AppId) {
        A::on_overdue(engine, nic, app);
        B::on_overdue(engine, nic, app);
    }

    fn on_app_gone(engine: &mut Engine, app: AppId) {
        A::on_app_gone(engine, app);
        B::on_app_gone(engine, app);
    }

    fn memory(engine: &Engine) -> (u32, u64) {
        let (a, b) = (A::memory(engine), B::memory(engine));
        (a.0 + b.0, a.1 + b.1)
    }

    fn counters(engine: &Engine, out: &mut Vec<Counter>) {
        A::counters(engine, out);
        B::counters(engine, out);
    }
}
