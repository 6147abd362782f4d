//! What the engine says.

use control::{Reason, Reply};
use engine::Event;

use super::{Hub, Stage};
use crate::command::FromEngine;

impl Hub {
    pub(super) fn on_engine(&mut self, from: FromEngine) {
        let now = self.now();
        match from {
            FromEngine::Attached { client, result } => self.on_attached(client, result),
            FromEngine::Listening { client, request, result } => {
                self.send(client, Reply::Listening { request, result }, Vec::new());
            }
            FromEngine::Lane { peer, answer } => self.peers.on_answer(now, peer, answer),
            FromEngine::Inspected { number, view } => self.on_inspected(number, view),
            FromEngine::LaneWasReset { client, request, found } => self.on_lane_was_reset(client, request, found),
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
            Event::ChunksWanted { app, size, rings } => self.on_chunks_wanted(app, size, rings),
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
                if reason == Reason::Closed {
                    tracing::info!(%peer, detail, "the lane is given up");
                } else {
                    tracing::warn!(%peer, %reason, detail, "the lane failed");
                }
                self.peers.on_lane_failed(now, peer, reason);
            }
            Event::LaneRests { peer } => self.peers.on_lane_rests(now, peer),
            Event::LaneReset { peer, detail } => {
                self.peers.on_lane_reset(now, peer, &detail);
            }
            Event::StrangePort { peer, found, expected } => tracing::warn!(
                %peer,
                found,
                expected,
                "packets for the lane come from another UDP port than the peer's and are dropped (`wrong_port` among \
                 the drops of `raas stat`): another user of that host forges them, or something between the hosts changes ports, which \
                 lanes between software NICs do not survive"
            ),
            Event::AppGone { app } => tracing::debug!(?app, "nothing of a detached program is in use any more"),
            Event::ChunkGone { app, chunk } => {
                if let Some(&client) = self.apps.get(&app) {
                    self.send(client, Reply::ChunkGone { chunk }, Vec::new());
                }
            }
        }
    }
}
