//! The mechanisms of the list as one: each step is asked of all of them in its order, by calls that are known when the
//! engine is compiled.

use control::Reason;
use verbs::{Completion, Provider, Qpn, Time};

use super::Engine;
use super::mechanism::{Counter, Mechanism, Telling};
use crate::frame::{FrameError, FrameRecord, FrameWriter, RawRecord, check_frame_of};
use crate::ids::{AppId, LaneId};
use crate::lane::PeerEnd;
use crate::ringpool::Waiter;
use crate::tenants::{TenantPlace, Waits};
use crate::violation::Violation;

/// All of the list.
#[derive(Debug)]
pub(super) enum Mechanisms {}

/// Makes the records of all, and the ways to ask them: `of_record`, the one that a record is for; `of_all`, each, for
/// their answers; `chain`, until the answer is known.
macro_rules! as_one {
    ($dollar:tt $($(#[$only:meta])? $name:ident: $mechanism:ty, $part:ty;)+) => {
        /// One thing that a frame says, by the mechanism that it is for.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "a variant is called as its mechanism is in the list")]
        pub(super) enum Record {
            $($(#[$only])? $name(<$mechanism as Mechanism>::Record),)+
        }

        impl FrameRecord for Record {
            #[inline]
            fn read(raw: &RawRecord<'_>) -> Result<Option<Self>, FrameError> {
                $($(#[$only])? if let Some(record) = <$mechanism as Mechanism>::Record::read(raw)? {
                    return Ok(Some(Self::$name(record)));
                })+
                Ok(None)
            }

            fn write(&self, frame: &mut FrameWriter<'_>) -> bool {
                match self {
                    $($(#[$only])? Self::$name(record) => record.write(frame),)+
                }
            }
        }

        macro_rules! of_record {
            ($dollar record:expr, $dollar hook:ident($dollar($dollar argument:expr),*)) => {
                match $dollar record {
                    $($(#[$only])? Record::$name(record) => {
                        <$mechanism as Mechanism>::$dollar hook($dollar($dollar argument,)* record)
                    })+
                }
            };
        }

        macro_rules! of_all {
            ($dollar hook:ident($dollar($dollar argument:expr),*)) => {
                [$($(#[$only])? <$mechanism as Mechanism>::$dollar hook($dollar($dollar argument),*),)+]
            };
        }

        macro_rules! chain {
            ($dollar start:literal $dollar and:tt $dollar hook:ident($dollar($dollar argument:expr),*)) => {{
                let mut found = $dollar start;
                $($(#[$only])? {
                    found = found $dollar and <$mechanism as Mechanism>::$dollar hook($dollar($dollar argument),*);
                })+
                found
            }};
        }
    };
}
crate::mechanisms::mechanisms!(as_one $);

impl Mechanism for Mechanisms {
    type Record = Record;

    #[inline]
    fn on_record<P: Provider>(engine: &mut Engine, nic: &mut P, lane: LaneId, record: Record) -> Result<(), Violation> {
        of_record!(record, on_record(engine, nic, lane))
    }

    #[inline]
    fn is_use(record: &Record) -> bool {
        of_record!(record, is_use())
    }

    #[inline]
    fn on_completion(engine: &mut Engine, lane: Option<LaneId>, completion: &Completion) -> bool {
        chain!(false || on_completion(engine, lane, completion))
    }

    #[inline]
    fn repost<P: Provider>(engine: &mut Engine, nic: &mut P) {
        of_all!(repost(engine, nic));
    }

    #[inline]
    fn on_sent(engine: &mut Engine, lane: LaneId, wr: u64) {
        of_all!(on_sent(engine, lane, wr));
    }

    fn on_qp_failed(engine: &mut Engine, qpn: Qpn) -> bool {
        chain!(false || on_qp_failed(engine, qpn))
    }

    fn bring_back(engine: &mut Engine, tenant: TenantPlace, waits: Waits) {
        of_all!(bring_back(engine, tenant, waits));
    }

    #[inline]
    fn run(engine: &mut Engine) -> bool {
        of_all!(run(engine)).contains(&true)
    }

    #[inline]
    fn write(telling: &mut Telling<'_>, frame: &mut FrameWriter<'_>) -> bool {
        chain!(true && write(telling, frame))
    }

    #[inline]
    fn run_behind_lanes<P: Provider>(engine: &mut Engine, nic: &mut P) -> bool {
        of_all!(run_behind_lanes(engine, nic)).contains(&true)
    }

    #[inline]
    fn settle(engine: &mut Engine) -> bool {
        of_all!(settle(engine)).contains(&true)
    }

    #[inline]
    fn run_last<P: Provider>(engine: &mut Engine, nic: &mut P, is_calm: bool) -> bool {
        of_all!(run_last(engine, nic, is_calm)).contains(&true)
    }

    fn has_work(engine: &Engine) -> bool {
        chain!(false || has_work(engine))
    }

    fn deadline(engine: &Engine) -> Option<Time> {
        of_all!(deadline(engine)).into_iter().flatten().min()
    }

    fn on_accepted(engine: &mut Engine, lane: LaneId, peer: &PeerEnd) {
        of_all!(on_accepted(engine, lane, peer));
    }

    fn on_lane_up(engine: &mut Engine, lane: LaneId) {
        of_all!(on_lane_up(engine, lane));
    }

    fn before_qp_goes<P: Provider>(engine: &mut Engine, nic: &mut P, lane: LaneId) {
        of_all!(before_qp_goes(engine, nic, lane));
    }

    fn on_lane_kept(engine: &mut Engine, lane: LaneId) {
        of_all!(on_lane_kept(engine, lane));
    }

    fn on_heard(engine: &mut Engine, lane: LaneId, frames: u64, is_fresh: bool) {
        of_all!(on_heard(engine, lane, frames, is_fresh));
    }

    fn on_severed(engine: &mut Engine, lane: LaneId, reason: Reason) {
        of_all!(on_severed(engine, lane, reason));
    }

    fn on_link_lost<P: Provider>(engine: &mut Engine, nic: &mut P, lane: LaneId, reason: Reason) {
        of_all!(on_link_lost(engine, nic, lane, reason));
    }

    fn on_rings(engine: &mut Engine, waiter: Waiter, rings: Result<(), Reason>) -> bool {
        chain!(false || on_rings(engine, waiter, rings))
    }

    fn on_chunk_not_taken(engine: &mut Engine, app: AppId, chunk: u32) {
        of_all!(on_chunk_not_taken(engine, app, chunk));
    }

    fn on_departure(engine: &mut Engine, app: AppId, reason: Reason) {
        of_all!(on_departure(engine, app, reason));
    }

    fn on_overdue<P: Provider>(engine: &mut Engine, nic: &mut P, app: AppId) {
        of_all!(on_overdue(engine, nic, app));
    }

    fn on_app_gone(engine: &mut Engine, app: AppId) {
        of_all!(on_app_gone(engine, app));
    }

    fn memory(engine: &Engine) -> (u32, u64) {
        of_all!(memory(engine)).into_iter().fold((0, 0), |sum, x| (sum.0 + x.0, sum.1 + x.1))
    }

    fn counters(engine: &Engine, out: &mut Vec<Counter>) {
        of_all!(counters(engine, out));
    }
}

/// Takes a control frame apart as the engine does; how many records it has, or a text that says what is wrong. This is
/// for tools and fuzzers: the engine itself checks each record where it uses it.
pub fn check_frame(frame: &[u8]) -> Result<usize, String> {
    check_frame_of::<Record>(frame)
}

#[cfg(test)]
pub(crate) mod tests;
