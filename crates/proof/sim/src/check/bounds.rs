//! Promises about resources: every table within its bound, no credit invented or lost, nothing left behind at rest.

use control::LaneRow;
use engine::{Engine, EngineTotals};
use verbs::Time;

use super::Checks;
use crate::address::is_shared;
use crate::plan::HostPlan;
use crate::regions::PROGRAM;
use crate::tap::Tap;

/// SRQ entries, queue pairs and memory that a host may hold.
#[derive(Debug)]
pub(crate) struct Limits {
    host: usize,
    connections_max: u32,
    lanes_max: u32,
    lane_credits: u64,
    /// The largest grant of any host: what a peer may have given.
    credits_max: u64,
    ring_memory_per_app_max: u64,
    receives_max: u64,
}

/// Regions that a lane's frames, and the buffers of its operations, take.
const REGIONS_PER_LANE: usize = 2;
/// Memory for pieces of messages that may be lost, which an engine keeps, and places of a peer's WRITEs.
const REGIONS_OF_PIECES: usize = 2;
const REGIONS_PER_UC_QP: usize = 1;
/// Memory regions of the UD queue pair: receives and sends.
const REGIONS_PER_UD_QP: usize = 2;

/// Bytes of local memory that a program has, or had and an engine still has.
const LOCAL_MAX: u64 = 512 << 10;

fn counter(totals: &EngineTotals, name: &str) -> u64 {
    totals.counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
}

impl Limits {
    pub(crate) fn new(host: usize, plans: &[HostPlan]) -> Self {
        let plan = &plans[host];
        Self {
            host,
            connections_max: plan.connections_max,
            lanes_max: plan.lanes_max,
            lane_credits: plan.lane_credits.into(),
            credits_max: plans.iter().map(|p| p.lane_credits).max().unwrap_or(0).into(),
            ring_memory_per_app_max: plan.ring_memory_per_app_max,
            receives_max: plan.srq_bytes_max / u64::from(plan.send_bytes_max),
        }
    }
}

impl Checks {
    /// What is looked at after every round of an engine, because it is cheap.
    pub(crate) fn on_round(&mut self, now: Time, host: usize, tap: &Tap) {
        let c = tap.nic.counters_detail();
        if (c.rnr_naks_sent, c.rnr_naks_received, c.cq_overflows, c.events_lost) != (0, 0, 0, 0) {
            let detail = format!(
                "host {host}: {} RNR NAKs sent, {} received, {} CQ overflows, {} events lost",
                c.rnr_naks_sent, c.rnr_naks_received, c.cq_overflows, c.events_lost
            );
            self.fail(now, "credits", detail);
        }
    }

    /// What is looked at now and then.
    pub(crate) fn on_sample(&mut self, now: Time, limits: &Limits, engine: &Engine, tap: &Tap) {
        let host = limits.host;
        let totals = engine.totals();
        let mut bound = |what: &str, found: u64, max: u64| {
            if found > max {
                self.fail(now, "bounds", format!("host {host}: {what} is {found}, at most {max} are allowed"));
            }
        };
        for name in ["rnr_naks", "violations", "device_refusals", "app_faults"] {
            bound(name, counter(&totals, name), 0);
        }
        let apps = engine.apps();
        let lanes = engine.lanes();
        let leased = lanes.iter().filter(|lane| !is_shared(lane)).count() as u64;
        let connections: u64 = apps.iter().map(|a| u64::from(a.connections)).sum();
        bound("connections", connections, limits.connections_max.into());
        bound("lanes", lanes.len() as u64 - leased, limits.lanes_max.into());
        bound("receives", totals.srq_free, limits.receives_max);
        // For messages that may be lost a lane has one beside its own.
        let unreliable = counter(&totals, "uc_qps");
        bound("queue pairs for messages", unreliable, lanes.len() as u64);
        let queue_pairs = u64::from(limits.lanes_max) + leased + unreliable + u64::from(totals.ud_qps);
        bound("queue pairs", tap.qps.len() as u64, queue_pairs);
        for app in &apps {
            // Local memory of operations counts too, and stays registered for a while.
            let kept = if app.name.starts_with(PROGRAM) { LOCAL_MAX } else { 0 };
            bound("ring memory of one application", app.pinned_bytes, limits.ring_memory_per_app_max + kept);
        }
        for lane in &lanes {
            bound("credits of a lane", lane.credits, limits.credits_max);
            bound("credits granted to a lane", lane.granted, limits.lane_credits);
        }
        if tap.mrs.len() as u64 != u64::from(totals.mrs) {
            let detail = format!("host {host}: {} regions registered, the engine counts {}", tap.mrs.len(), totals.mrs);
            self.fail(now, "release", detail);
        }
        let qps = totals.rc_qps + totals.ud_qps + unreliable as u32;
        if tap.qps.len() as u64 != u64::from(qps) {
            let detail = format!("host {host}: {} queue pairs, the engine counts {qps}", tap.qps.len());
            self.fail(now, "release", detail);
        }
    }

    /// All applications are gone and nothing is on its way: what is left on a host is its lanes.
    pub(crate) fn on_host_at_rest(&mut self, now: Time, limits: &Limits, engine: &Engine, tap: &Tap) {
        self.on_sample(now, limits, engine, tap);
        let host = limits.host;
        let mut left = |what: &str, found: usize, right: usize| {
            if found != right {
                self.fail(now, "release", format!("host {host} at rest: {found} {what}, {right} expected"));
            }
        };
        left("connections", engine.connections().len(), 0);
        left("applications", engine.apps().len(), 0);
        let lanes = engine.lanes();
        left("leased lanes", lanes.iter().filter(|lane| !is_shared(lane)).count(), 0);
        left("connections of lanes", lanes.iter().map(|l| l.connections as usize).sum(), 0);
        let totals = engine.totals();
        let in_use = lanes.iter().filter(|l| l.qpn.is_some_and(|qpn| qpn != 0)).count();
        let unreliable = counter(&totals, "uc_qps") as usize;
        left("queue pairs", tap.qps.len(), in_use + unreliable + totals.ud_qps as usize);
        // Buffers of receives that no lane needs any more stay registered for the next one.
        let of_receives =
            totals.counters.iter().find(|(name, _)| *name == "srq_regions").map_or(0, |(_, count)| *count);
        let regions_max = limits.lanes_max as usize * REGIONS_PER_LANE
            + of_receives as usize
            + totals.ud_qps as usize * REGIONS_PER_UD_QP
            + REGIONS_OF_PIECES
            + unreliable * REGIONS_PER_UC_QP;
        left("regions beyond those of lanes", tap.mrs.len().saturating_sub(regions_max), 0);
        let granted: u64 = lanes.iter().map(|l| l.granted).sum();
        if totals.srq_free < granted {
            self.fail(now, "credits", format!("host {host}: {} receives for {granted} granted", totals.srq_free));
        }
    }

    /// Both ends of a lane at rest: each credit is at exactly one of them.
    pub(crate) fn on_lane_at_rest(&mut self, now: Time, names: (usize, usize), a: &LaneRow, b: &LaneRow) {
        if a.state != "up" || b.state != "up" || a.peer_qpn != b.qpn || b.peer_qpn != a.qpn {
            let detail = format!("the ends of lane {names:?} do not fit at rest: {a:?} and {b:?}");
            return self.fail(now, "liveness", detail);
        }
        for (sender, receiver) in [(a, b), (b, a)] {
            if sender.credits != receiver.granted {
                let detail = format!(
                    "lane {names:?} at rest: {} has {} credits, {} has granted {}",
                    receiver.peer.ip(),
                    sender.credits,
                    sender.peer.ip(),
                    receiver.granted
                );
                self.fail(now, "credits", detail);
            }
        }
    }
}
