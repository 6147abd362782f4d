//! What `raas ss` and `raas stat` show.
//!
//! Owns the pages of the engine's tables. A page must never look at more places of a table than its caller allows, and
//! must have no row that its viewer may not see. No page is made in a round of the data path.

use std::collections::BTreeMap;

use control::{AppRow, ConnectionRow, DatagramRow, LaneRow, TraceRow};
use verbs::Time;

use super::Engine;
use super::mechanism::Mechanism;
use super::mechanisms::Mechanisms;
use crate::app::{App, Carried};
use crate::choice::Why;
use crate::event::EngineTotals;
use crate::ids::AppId;
use crate::lane::Lane;
use crate::numbers::count;
use crate::page::{LaneView, Page, Viewer};
use crate::vqp::Vqp;
use crate::vqp::row::LaneSeen;

impl Engine {
    /// Connections that go through lanes, at `looks` places of their table from `from` on.
    pub fn connections_page(&self, viewer: Viewer, from: u32, looks: u32) -> Page<ConnectionRow> {
        let (live, next) = self.vqps.page(from, looks);
        let seen = live.filter(|(_, _, v)| self.may_see(viewer, v.app()));
        Page { rows: seen.map(|(place, _, v)| (place, self.connection_row(v))).collect(), next }
    }

    /// Datagram sockets, likewise.
    pub fn datagrams_page(&self, viewer: Viewer, from: u32, looks: u32) -> Page<DatagramRow> {
        let (live, next) = self.datagrams.sockets.page(from, looks);
        let seen = live.filter(|(_, _, s)| self.may_see(viewer, s.at().app));
        Page { rows: seen.map(|(place, _, s)| (place, s.row(self.apps.pid(s.at().app)))).collect(), next }
    }

    /// Lanes, those that are down included, at a time: the engine may have slept since it was last given one. For a user
    /// the rows have no connections, because the control plane counts those of users, and no numbers of queue pairs.
    pub fn lanes_page(&self, now: Time, viewer: Viewer, from: u32, looks: u32) -> Page<LaneView> {
        let now = now.max(self.now);
        let (live, next) = self.lanes.page(from, looks);
        let row = |(place, id, lane): (u32, _, &Lane)| match viewer {
            Viewer::All => (place, LaneView { row: lane.row(now), is_dialed: lane.dialing.is_wanted() }),
            Viewer::User(uid) => {
                let row = LaneRow { qpn: None, peer_qpn: None, connections: 0, ..lane.row(now) };
                (place, LaneView { row, is_dialed: self.dials.has(uid, id) })
            }
        };
        Page { rows: live.map(row).collect(), next }
    }

    /// Counts what the connections at these places carried for their applications; the next place, if there are more.
    /// The rows of [`Engine::apps_page`] are right as of a pass over all places.
    pub fn count_bytes(&mut self, from: u32, looks: u32) -> Option<u32> {
        let (live, next) = self.vqps.page_mut(from, looks);
        for v in live {
            if let Some(tenant) = self.apps.get_mut(v.app()) {
                tenant.count_bytes(v.take_uncounted());
            }
        }
        next
    }

    /// Applications, those whose memory is in quarantine included, likewise.
    pub fn apps_page(&self, viewer: Viewer, from: u32, looks: u32) -> Page<(AppId, AppRow)> {
        let (live, next) = self.apps.page(from, looks);
        let seen = live.filter(|(_, _, a)| viewer.sees(a.uid()));
        Page { rows: seen.map(|(place, id, a)| (place, (id, self.app_row(id, a, Carried::default())))).collect(), next }
    }

    fn app_row(&self, id: AppId, app: &App, live: Carried) -> AppRow {
        let row = app.row(live, self.ops.verbs(id));
        AppRow { pinned_bytes: row.pinned_bytes + self.ops.locals.pins().bytes_of(id), ..row }
    }

    /// Messages that were looked at, from number `from` on, at most `looks`, and the number behind them, if there are
    /// more.
    pub fn trace_page(&self, viewer: Viewer, from: u64, looks: u32) -> (Vec<(u64, TraceRow)>, Option<u64>) {
        let (seen, next) = self.stages.page(from, looks);
        let seen = seen.filter(|(app, _)| self.may_see(viewer, *app));
        let row = |(_, row): (_, TraceRow)| (row.number, TraceRow { engine: self.config.number, ..row });
        (seen.map(row).collect(), next)
    }

    pub(super) fn may_see(&self, viewer: Viewer, app: AppId) -> bool {
        viewer == Viewer::All || self.apps.get(app).is_some_and(|a| viewer.sees(a.uid()))
    }

    /// All connections that go through lanes, in one go: for judges that have the engine to themselves.
    pub fn connections(&self) -> Vec<ConnectionRow> {
        self.vqps.iter().map(|(_, v)| self.connection_row(v)).collect()
    }

    fn connection_row(&self, v: &Vqp) -> ConnectionRow {
        let lane = v.place.lane().and_then(|id| self.lanes.get(id));
        let seen = lane.map(|l| LaneSeen { name: Some(l.name()), link: l.qp.link(), is_silent: l.stall.is_some() });
        v.row(seen.unwrap_or_default(), self.apps.pid(v.app()))
    }

    /// All lanes in one go, those that are down included, at the engine's last time.
    pub fn lanes(&self) -> Vec<LaneRow> {
        self.lanes.iter().map(|(_, lane)| lane.row(self.now)).collect()
    }

    /// All applications in one go, those whose memory is in quarantine included.
    pub fn apps(&self) -> Vec<AppRow> {
        let mut live: BTreeMap<AppId, Carried> = BTreeMap::new();
        for (_, v) in self.vqps.iter() {
            let sums = live.entry(v.app()).or_default();
            let carried = v.uncounted();
            *sums = Carried { tx: sums.tx.wrapping_add(carried.tx), rx: sums.rx.wrapping_add(carried.rx) };
        }
        let row = |(id, a): (AppId, &App)| self.app_row(id, a, live.get(&id).copied().unwrap_or_default());
        self.apps.iter().map(row).collect()
    }

    /// Totals of the engine.
    pub fn totals(&self) -> EngineTotals {
        let c = &self.counters;
        let (recv_mrs, recv_bytes) = self.recv.registered();
        let mechanisms = Mechanisms::memory(self);
        let mrs = recv_mrs + mechanisms.0 + self.ring_memory.chunks;
        let pinned_bytes = recv_bytes + mechanisms.1 + self.ring_memory.bytes;
        let mut totals = EngineTotals {
            rc_qps: self.lanes.queue_pairs(),
            ud_qps: count(self.datagrams.port.iter().len()),
            cqs: self.completions.queues,
            srqs: self.recv.queues() + u32::from(self.unreliable.memory.is_some()),
            srq_free: self.recv.free(),
            mrs,
            pinned_bytes,
            stages: self.stages.rows(),
            unknown: Vec::new(),
            counters: vec![
                ("credit_stalls", c.credit_stalls),
                ("rate_stops", self.tenants.stops()),
                ("credit_shortages", c.credit_shortages),
                ("stale_frames", c.stale_frames),
                ("app_faults", c.app_faults),
                ("violations", c.violations),
                ("lane_failures", c.lane_failures),
                ("lane_resets", c.lane_resets),
                ("lane_rests", c.lane_rests),
                ("keys_renewed", c.keys_renewed),
                ("device_refusals", c.device_refusals + self.recv.failures()),
                ("frames_sent", c.frames_sent),
                ("frames_received", c.frames_received),
                ("writes_sent", c.writes_sent),
                ("writes_received", c.writes_received),
                ("sends_sent", c.sends_sent),
                ("sends_received", c.sends_received),
                ("reads_posted", c.reads_posted),
                ("rendezvous", c.rendezvous),
                ("operations_posted", c.operations_posted),
                ("connects", c.connects),
                ("connects_failed", c.connects_failed),
                ("connects_displaced", c.connects_displaced),
                ("accepts", c.accepts),
                ("opens_refused", c.opens_refused),
                ("closed", c.closed),
                ("rests", c.rests),
                ("peer_timeouts", c.peer_timeouts),
                ("connections_parted", c.connections_parted),
                ("connections_returned", c.connections_returned),
                ("connections_given_up", c.connections_given_up),
                ("connections_adopted", c.connections_adopted),
                ("ring_rests", c.ring_rests),
                ("rings_grown", c.rings_grown),
                ("ring_held_bytes", self.rests.held()),
                ("srq_regions", recv_mrs.into()),
                ("srq_bytes", recv_bytes),
                ("ring_bytes", self.apps.iter().map(|(_, app)| app.pool.bytes()).sum()),
                ("leased_lanes", self.lanes.leased().into()),
                ("lent_chunks", self.ring_memory.lent.into()),
                ("lent_bytes", self.ring_memory.lent_bytes),
            ],
        };
        match c.rnr_naks {
            Some(naks) => totals.counters.push(("rnr_naks", naks)),
            None => totals.unknown.push("rnr_naks"),
        }
        totals.counters.extend(Why::ALL.map(|why| (why.counter(), c.choices[why as usize])));
        Mechanisms::counters(self, &mut totals.counters);
        totals
    }
}
