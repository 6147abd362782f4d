//! What `raas ss` and `raas stat` show.
//!
//! Owns the counters, and the pages of the engine's tables. A page must never look at more places of a table than its caller
//! allows, nor have a row that its viewer may not see; no page is made in a round of the data path.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::{AppRow, ConnectionRow, DatagramRow, LaneRow, PathKind, Reason};
use verbs::Time;

use crate::AppId;
use crate::app::App;
use crate::engine::Engine;
use crate::event::EngineTotals;
use crate::lane::{Lane, LaneState};
use crate::vqp::{Phase, Vqp};

/// Whose rows somebody may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Viewer {
    /// Everybody's: root, or the daemon's user.
    All,
    /// Those of this user.
    User(u32),
}

impl Viewer {
    /// Whether what belongs to a user may be seen.
    pub fn sees(self, uid: u32) -> bool {
        self == Self::All || self == Self::User(uid)
    }
}

/// Part of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// Rows, each with its place in the table.
    pub rows: Vec<(u32, T)>,
    /// The place after those that were looked at, if there are more.
    pub next: Option<u32>,
}

/// Events counted since the engine was made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes of ring data sent and received.
    pub(crate) data_bytes: u64,
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
    pub(crate) connects_displaced: u64,
    pub(crate) accepts: u64,
    pub(crate) opens_refused: u64,
    pub(crate) closed: u64,
    pub(crate) rests: u64,
    pub(crate) peer_timeouts: u64,
    pub(crate) ring_rests: u64,
}

impl Engine {
    /// Connections that go through lanes, at `looks` places of their table from `from` on.
    pub fn connections_page(&self, viewer: Viewer, from: u32, looks: u32) -> Page<ConnectionRow> {
        let (live, next) = self.vqps.page(from, looks);
        let seen = live.filter(|(_, _, v)| self.may_see(viewer, v.app));
        Page { rows: seen.map(|(place, _, v)| (place, self.connection_row(v))).collect(), next }
    }

    /// Datagram sockets, likewise.
    pub fn datagrams_page(&self, viewer: Viewer, from: u32, looks: u32) -> Page<DatagramRow> {
        let (live, next) = self.datagrams.sockets_page(from, looks);
        let seen = live.filter(|(_, _, s)| self.may_see(viewer, s.app));
        let pid = |app| self.apps.get(app).map_or(0, |a| a.pid);
        Page { rows: seen.map(|(place, _, s)| (place, s.row(pid(s.app)))).collect(), next }
    }

    /// Lanes, those that are down included, at a time: the engine may have slept since it was last told one. A user sees those
    /// that its programs use or last had dialed, with its own connections and without the numbers of queue pairs.
    pub fn lanes_page(&self, now: Time, viewer: Viewer, from: u32, looks: u32) -> Page<LaneRow> {
        let (live, next) = self.lanes.page(from, looks);
        let row = |(place, id, lane): (u32, _, &Lane)| match viewer {
            Viewer::All => Some((place, lane_row(lane, now))),
            Viewer::User(uid) => {
                let connections = self.users.connections_with(uid, lane.peer);
                let own = LaneRow { qpn: None, peer_qpn: None, connections, ..lane_row(lane, now) };
                (connections > 0 || self.users.has_dialed(uid, id)).then_some((place, own))
            }
        };
        Page { rows: live.filter_map(row).collect(), next }
    }

    /// Counts what the connections at these places carried for their applications; the next place, if there are more. The rows
    /// of [`Engine::apps_page`] are right as of a pass over all places.
    pub fn count_bytes(&mut self, from: u32, looks: u32) -> Option<u32> {
        let (live, next) = self.vqps.page_mut(from, looks);
        for v in live {
            if let Some(tenant) = self.apps.get_mut(v.app) {
                let (tx, rx) = v.take_uncounted();
                tenant.count_bytes(tx, rx);
            }
        }
        next
    }

    /// Applications, those whose memory is in quarantine included, likewise.
    pub fn apps_page(&self, viewer: Viewer, from: u32, looks: u32) -> Page<(AppId, AppRow)> {
        let (live, next) = self.apps.page(from, looks);
        let seen = live.filter(|(_, _, a)| viewer.sees(a.uid));
        Page { rows: seen.map(|(place, id, a)| (place, (id, app_row(a, 0, 0)))).collect(), next }
    }

    fn may_see(&self, viewer: Viewer, app: AppId) -> bool {
        viewer == Viewer::All || self.apps.get(app).is_some_and(|a| viewer.sees(a.uid))
    }

    /// All connections that go through lanes, in one go: for judges that have the engine to themselves.
    pub fn connections(&self) -> Vec<ConnectionRow> {
        self.vqps.iter().map(|(_, v)| self.connection_row(v)).collect()
    }

    fn connection_row(&self, v: &Vqp) -> ConnectionRow {
        let lane = v.lane.and_then(|id| self.lanes.get(id));
        ConnectionRow {
            id: v.id,
            local: v.local,
            peer: v.peer,
            state: v.state(),
            lane: lane.map(lane_name),
            route_id: (!matches!(v.phase, Phase::Opening(_))).then_some(v.own_route),
            path: PathKind::Lane,
            reason: if lane.is_some_and(|l| l.stall.is_some()) { Reason::Stalled } else { Reason::OtherHost },
            tx_bytes: v.tx_sent,
            rx_bytes: v.rx_tail,
            tx_queued_bytes: v.tx_queued_bytes(),
            rx_queued_bytes: v.rx_queued_bytes(),
            app_pid: self.apps.get(v.app).map_or(0, |a| a.pid),
        }
    }

    /// All lanes in one go, those that are down included, at the engine's last time.
    pub fn lanes(&self) -> Vec<LaneRow> {
        self.lanes.iter().map(|(_, lane)| lane_row(lane, self.now)).collect()
    }

    /// All applications in one go, those whose memory is in quarantine included.
    pub fn apps(&self) -> Vec<AppRow> {
        let mut live: BTreeMap<AppId, (u64, u64)> = BTreeMap::new();
        for (_, v) in self.vqps.iter() {
            let sums = live.entry(v.app).or_default();
            let (tx, rx) = v.uncounted();
            (sums.0, sums.1) = (sums.0.wrapping_add(tx), sums.1.wrapping_add(rx));
        }
        let row = |(id, a): (AppId, &App)| {
            let (tx, rx) = live.get(&id).copied().unwrap_or_default();
            app_row(a, tx, rx)
        };
        self.apps.iter().map(row).collect()
    }

    /// Totals of the engine.
    pub fn totals(&self) -> EngineTotals {
        let c = &self.counters;
        let (recv_mrs, recv_bytes) = self.recv.registered();
        let frames = self.lanes.iter().filter_map(|(_, l)| l.frames.as_ref()).map(|f| (1, f.bytes()));
        let datagrams = std::iter::once(self.datagrams.port.registered());
        let (mrs, pinned_bytes) = frames
            .chain(datagrams)
            .chain([(self.ring_mrs, self.ring_mr_bytes)])
            .fold((recv_mrs, recv_bytes), |sum, x| (sum.0 + x.0, sum.1 + x.1));
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
                ("connects_displaced", c.connects_displaced),
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

/// With bytes of connections that are not counted yet.
fn app_row(a: &App, tx: u64, rx: u64) -> AppRow {
    AppRow {
        pid: a.pid,
        uid: a.uid,
        name: a.name.clone(),
        connections: a.connections,
        tx_bytes: a.tx_bytes.wrapping_add(tx),
        rx_bytes: a.rx_bytes.wrapping_add(rx),
        pinned_bytes: a.pool.bytes(),
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
        qpn: Some(if lane.has_qp() { lane.qpn.0 } else { 0 }),
        peer_qpn: Some(if lane.has_qp() { lane.peer_qpn.0 } else { 0 }),
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
