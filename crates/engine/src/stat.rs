//! What `raas ss` and `raas stat` show.
//!
//! Owns the counters. It must never be called from the data path: it walks all connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::{AppRow, ConnectionRow, LaneRow, PathKind, Reason};
use verbs::Time;

use crate::AppId;
use crate::engine::Engine;
use crate::event::EngineTotals;
use crate::lane::{Lane, LaneState};
use crate::table::Key;
use crate::vqp::{Phase, Vqp};

/// Events counted since the engine was made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) rnr_naks: u64,
    pub(crate) credit_stalls: u64,
    pub(crate) stale_frames: u64,
    pub(crate) app_faults: u64,
    pub(crate) violations: u64,
    pub(crate) lane_failures: u64,
    pub(crate) lane_resets: u64,
    pub(crate) device_refusals: u64,
    pub(crate) frames_sent: u64,
    pub(crate) frames_received: u64,
    pub(crate) writes_sent: u64,
    pub(crate) writes_received: u64,
    pub(crate) connects: u64,
    pub(crate) connects_local: u64,
    pub(crate) connects_failed: u64,
    pub(crate) accepts: u64,
    pub(crate) opens_refused: u64,
    pub(crate) closed: u64,
    pub(crate) rests: u64,
    pub(crate) peer_timeouts: u64,
    pub(crate) ring_rests: u64,
}

impl Engine {
    /// All connections that go through lanes.
    pub fn connections(&self) -> Vec<ConnectionRow> {
        self.vqps.iter().map(|(route, v)| self.connection_row(route.bits(), v)).collect()
    }

    fn connection_row(&self, route: u32, v: &Vqp) -> ConnectionRow {
        let lane = v.lane.and_then(|id| self.lanes.get(id));
        ConnectionRow {
            id: v.id,
            local: v.local,
            peer: v.peer,
            state: v.state(),
            lane: lane.map(lane_name),
            route_id: (!matches!(v.phase, Phase::Opening(_))).then_some(route),
            path: PathKind::Lane,
            reason: if lane.is_some_and(|l| l.stall.is_some()) { Reason::Stalled } else { Reason::OtherHost },
            tx_bytes: v.tx_sent,
            rx_bytes: v.rx_tail,
            tx_queued_bytes: v.tx_queued_bytes(),
            rx_queued_bytes: v.rx_queued_bytes(),
            app_pid: self.apps.get(v.app).map_or(0, |a| a.pid),
        }
    }

    /// All lanes, those that are down included, at the engine's last time.
    pub fn lanes(&self) -> Vec<LaneRow> {
        self.lanes_at(self.now)
    }

    /// As [`Self::lanes`], where the engine may have slept since it was last told the time.
    pub fn lanes_at(&self, now: Time) -> Vec<LaneRow> {
        self.lanes.iter().map(|(_, lane)| lane_row(lane, now)).collect()
    }

    /// All applications, those whose memory is in quarantine included.
    pub fn apps(&self) -> Vec<AppRow> {
        let mut live: BTreeMap<AppId, (u64, u64)> = BTreeMap::new();
        for (_, v) in self.vqps.iter() {
            let sums = live.entry(v.app).or_default();
            sums.0 += v.tx_sent;
            sums.1 += v.rx_tail;
        }
        let row = |(id, a): (AppId, &crate::app::App)| {
            let (tx, rx) = live.get(&id).copied().unwrap_or_default();
            AppRow {
                pid: a.pid,
                uid: a.uid,
                name: a.name.clone(),
                connections: a.connections,
                tx_bytes: a.tx_bytes + tx,
                rx_bytes: a.rx_bytes + rx,
                pinned_bytes: a.pool.bytes(),
            }
        };
        self.apps.iter().map(row).collect()
    }

    /// Totals of the engine.
    pub fn totals(&self) -> EngineTotals {
        let c = &self.counters;
        let (recv_mrs, recv_bytes) = self.recv.registered();
        let chunks = self.apps.iter().map(|(_, a)| (a.pool.chunks(), a.pool.bytes()));
        let frames = self.lanes.iter().filter_map(|(_, l)| l.frames.as_ref()).map(|f| (1, f.bytes()));
        let retired = self.retired.len() as u32;
        let datagrams = std::iter::once(self.datagrams.port.registered());
        let (mrs, pinned_bytes) = chunks
            .chain(frames)
            .chain(datagrams)
            .fold((recv_mrs + retired, recv_bytes), |sum, x| (sum.0 + x.0, sum.1 + x.1));
        let mut totals = EngineTotals {
            rc_qps: self.by_qpn.len() as u32,
            ud_qps: 1,
            cqs: 1,
            srqs: 1,
            srq_free: self.recv.free(),
            mrs,
            pinned_bytes,
            counters: vec![
                ("rnr_naks", c.rnr_naks),
                ("credit_stalls", c.credit_stalls),
                ("stale_frames", c.stale_frames),
                ("app_faults", c.app_faults),
                ("violations", c.violations),
                ("lane_failures", c.lane_failures),
                ("lane_resets", c.lane_resets),
                ("device_refusals", c.device_refusals + self.recv.failures()),
                ("frames_sent", c.frames_sent),
                ("frames_received", c.frames_received),
                ("writes_sent", c.writes_sent),
                ("writes_received", c.writes_received),
                ("connects", c.connects),
                ("connects_local", c.connects_local),
                ("connects_failed", c.connects_failed),
                ("accepts", c.accepts),
                ("opens_refused", c.opens_refused),
                ("closed", c.closed),
                ("rests", c.rests),
                ("peer_timeouts", c.peer_timeouts),
                ("ring_rests", c.ring_rests),
            ],
        };
        totals.counters.extend(self.datagrams.counters());
        totals
    }
}

fn lane_name(lane: &Lane) -> String {
    format!("{}/0", lane.peer)
}

fn lane_row(lane: &Lane, now: Time) -> LaneRow {
    let state = match lane.state {
        _ if lane.stall.is_some() => "stalled",
        LaneState::Up => "up",
        LaneState::Offered | LaneState::Accepted => "connecting",
        LaneState::Down if lane.is_wanted => "connecting",
        LaneState::Down => "failed",
    };
    LaneRow {
        name: lane_name(lane),
        peer: SocketAddr::new(lane.peer, lane.peer_port),
        state: state.into(),
        incarnation: lane.incarnation,
        resets: lane.resets,
        qpn: if lane.has_qp() { lane.qpn.0 } else { 0 },
        peer_qpn: if lane.has_qp() { lane.peer_qpn.0 } else { 0 },
        mtu_bytes: lane.mtu.bytes() as u32,
        connections: lane.connections,
        credits: lane.tx.available(),
        granted: lane.rx.unused(),
        tx_bytes: lane.tx_bytes,
        rx_bytes: lane.rx_bytes,
        dials_failed: lane.redial.failures(),
        redial_in_us: if lane.holds_dials_back(now) { lane.redial.wait(now).as_micros() as u64 } else { 0 },
    }
}
