//! What the engine says.

use control::{InspectAnswer, Reply};
use engine::Event;

use super::{Hub, Stage};
use crate::command::{ClientId, EngineView, FromEngine};
use crate::inspect::{self, DaemonStat};

impl Hub {
    pub(super) fn on_engine(&mut self, from: FromEngine) {
        let now = self.now();
        match from {
            FromEngine::Attached { client, result } => self.on_attached(client, result),
            FromEngine::Listening { client, request, result } => {
                self.send(client, Reply::Listening { request, result }, Vec::new());
            }
            FromEngine::LaneOffered { peer, round, result } => {
                let result = result.map_err(|error| {
                    tracing::warn!(%peer, %error, "the device makes no lane");
                    control::Reason::LocalLimit
                });
                self.peers.on_offer_made(now, peer, round, result);
            }
            FromEngine::LaneAccepted { peer, round, result } => {
                let result = result.map_err(|error| {
                    tracing::warn!(%peer, %error, "the peer's offer of a lane cannot be used");
                    control::Reason::LaneFailed
                });
                self.peers.on_accepted(now, peer, round, result);
            }
            FromEngine::LaneRoutesTold { peer, round, routes, done } => {
                self.peers.on_routes_told(now, peer, round, routes, done);
            }
            FromEngine::LaneRoutesTaken { peer, round, result } => {
                let result = result.map_err(|error| {
                    tracing::warn!(%peer, %error, "the connections of a lane cannot go on");
                    control::Reason::LaneFailed
                });
                self.peers.on_routes_taken(now, peer, round, result);
            }
            FromEngine::Inspected { client, request, view } => self.on_inspected(client, request, view),
            FromEngine::WakeHangup { app } => {
                if let Some(&client) = self.apps.get(&app) {
                    self.on_wake_hangup(client);
                }
            }
            FromEngine::Event(event) => self.on_event(event),
        }
    }

    fn on_event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::PeerWanted { peer } => self.peers.handle_wanted(now, peer),
            Event::ChunksWanted { app, ring_bytes, rings } => self.on_chunks_wanted(app, ring_bytes, rings),
            Event::Connected { app, request, result } => {
                if let Some(&client) = self.apps.get(&app) {
                    self.send(client, Reply::Connected { request, result }, Vec::new());
                }
            }
            Event::DatagramPath { app, request, result } => {
                if let Some(&client) = self.apps.get(&app) {
                    self.send(client, Reply::DatagramPath { request, result }, Vec::new());
                }
            }
            Event::Incoming { app, port, connection } => {
                if let Some(&client) = self.apps.get(&app) {
                    self.send(client, Reply::Incoming { port, connection }, Vec::new());
                }
            }
            Event::LocalConnect { from, request, to, port, ring_bytes, connection } => {
                self.on_local_connect(from, to, (request, port, ring_bytes, connection));
            }
            Event::AppFault { app, detail } => {
                if let Some(client) = self.apps.remove(&app) {
                    // The engine has detached it already.
                    if let Some(client) = self.clients.get_mut(&client) {
                        client.stage = Stage::Inspector;
                    }
                    self.throw_out(client, &detail);
                }
            }
            Event::LaneFailed { peer, reason, detail } => {
                tracing::warn!(%peer, %reason, detail, "the lane failed");
                self.peers.on_lane_failed(now, peer, reason);
            }
            Event::LaneReset { peer, detail } => {
                self.peers.on_lane_reset(now, peer, &detail);
            }
            Event::AppGone { app } => tracing::debug!(?app, "nothing of a detached program is in use any more"),
            Event::ChunkGone { app, chunk } => {
                if let Some(&client) = self.apps.get(&app) {
                    self.send(client, Reply::ChunkGone { chunk }, Vec::new());
                }
            }
        }
    }

    fn on_inspected(&mut self, id: ClientId, request: u64, view: EngineView) {
        let parts = match view {
            EngineView::Connections(mut rows) => {
                rows.extend(self.pairs.rows());
                rows.extend(self.fallbacks.rows());
                inspect::connections(rows)
            }
            EngineView::Datagrams(rows) => inspect::datagrams(rows),
            EngineView::LaneReset(found) => vec![InspectAnswer::LaneReset(found)],
            EngineView::Stat(engine) => inspect::stat(*engine, self.daemon_stat()),
        };
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.questions = client.questions.saturating_sub(1);
        let last = parts.len().saturating_sub(1);
        for (i, answer) in parts.into_iter().enumerate() {
            let answer: InspectAnswer = answer;
            self.send(id, Reply::Inspected { request, answer, more: i < last }, Vec::new());
        }
    }

    fn daemon_stat(&self) -> DaemonStat {
        let shm = |(&client, pid): (&ClientId, u32)| (pid, self.pairs.connections_of(client));
        DaemonStat {
            uptime_seconds: self.started.elapsed().as_secs(),
            pairs: self.pairs.count(),
            links: u64::try_from(self.links.len()).unwrap_or(u64::MAX),
            shm_connections: self.clients.iter().map(|(id, c)| (id, c.who.pid)).map(shm).filter(|s| s.1 > 0).collect(),
        }
    }
}
