//! What the engine says.

use control::{Reason, Reply};
use engine::Event;
use plane::{ConnectRequest, ConnectionOver};

use super::{Hub, Stage};
use crate::command::FromEngine;

impl Hub {
    pub(super) fn on_engine(&mut self, from: FromEngine) {
        let now = self.now();
        match from {
            FromEngine::Attached { client, result } => self.on_attached(client, result),
            FromEngine::Lane { peer, answer } => self.peers.on_answer(now, peer, 0, answer),
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
            Event::PeerWanted { peer } => self.peers.handle_wanted(now, peer, 0),
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
            Event::ConnectRequest { open, from, to_port, kind, ring_bytes } => {
                self.on_connect_request(open, &ConnectRequest { engine: 0, from, to_port, kind, ring_bytes });
            }
            Event::ConnectionOver { app, connection, peer, port } => {
                self.on_connection_over(app, ConnectionOver { engine: 0, connection, peer, port });
            }
            Event::SocketOver { app, .. } => self.on_socket_over(app),
            Event::AppFault { app, detail } => {
                if let Some(&client) = self.apps.get(&app) {
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
                self.peers.on_lane_failed(now, peer, 0, reason);
            }
            Event::LaneRests { peer } => self.peers.on_lane_rests(now, peer, 0),
            Event::LaneReset { peer, detail } => {
                self.peers.on_lane_reset(now, peer, 0, &detail);
            }
            Event::StrangePort { peer, found, expected } => tracing::warn!(
                %peer,
                found,
                expected,
                "packets for the lane come from another UDP port than the peer's and are dropped (`wrong_port` among \
                 the drops of `raas stat`): another user of that host forges them, or something between the hosts changes ports, which \
                 lanes between software NICs do not survive"
            ),
            Event::AppGone { app } => self.on_app_gone(app),
            Event::ChunkGone { app, chunk } => {
                if let Some(&client) = self.apps.get(&app) {
                    self.send(client, Reply::ChunkGone { chunk }, Vec::new());
                }
            }
        }
    }
}
