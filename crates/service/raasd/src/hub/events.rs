//! What the engine says.

use control::{KernelEnd, Reason, Reply};
use engine::{Admission, AppId, Event, OpenId};
use plane::{Admitted, ClientId, ConnectRequest, ConnectionOver};

use super::Hub;
use crate::command::{Command, EngineReport, FromEngine};

impl Hub {
    pub(super) fn on_engine(&mut self, report: EngineReport) {
        let (now, EngineReport { engine, what }) = (self.now(), report);
        match what {
            FromEngine::Attached { client, result } => self.on_attached(client, engine, result),
            FromEngine::Lane { peer, lane, answer } => self.daemon.on_answer(now, peer, lane, answer),
            FromEngine::Inspected { number, view } => self.on_inspected(engine, number, view),
            FromEngine::StreamOfRoute { peer, number, stream } => {
                self.on_stream_of_route(engine, peer, number, stream);
            }
            FromEngine::LaneWasReset { client, request, found } => self.on_lane_was_reset(client, request, found),
            FromEngine::RegionGranted { peer, open, result, not_registered } => {
                self.daemon.on_granted((peer, open), result, not_registered);
            }
            FromEngine::RegionDeregistered { region } => self.daemon.on_deregistered(region),
            FromEngine::RegionOpened { open, result } => self.daemon.on_region_opened(open, result),
            FromEngine::KernelInstalled { client, request, result } => self.installed(client, request, result),
            FromEngine::RegionAttached { client, number, result } => {
                self.daemon.on_region_attached(client, number, result);
            }
            FromEngine::WakeHangup { app } => {
                if let Some(client) = self.names.program(engine, app) {
                    self.on_wake_hangup(client);
                }
            }
            FromEngine::Event(event) => self.on_event(engine, event),
        }
    }

    /// A reply to a program that an engine names.
    fn send_to(&mut self, engine: u32, app: AppId, reply: Reply) {
        if let Some(client) = self.names.program(engine, app) {
            self.send(client, reply, Vec::new());
        }
    }

    fn on_event(&mut self, engine: u32, event: Event) {
        let now = self.now();
        match event {
            Event::PeerWanted { peer, lane } => self.daemon.handle_wanted(now, peer, lane),
            Event::ChunksWanted { app, size, rings } => self.on_chunks_wanted(engine, app, size, rings),
            Event::Connected { app, request, result } => {
                let result = result.map(|connection| self.sealed(engine, app, connection));
                self.send_to(engine, app, Reply::Connected { request, result });
            }
            Event::DatagramPath { app, request, result } => {
                let client = self.names.program(engine, app);
                let is_taken = client.is_some_and(|client| self.daemon.on_path(now, client, request, result));
                if !is_taken {
                    self.send_to(engine, app, Reply::DatagramPath { request, result });
                }
            }
            Event::Incoming { app, port, connection } => {
                let connection = self.sealed(engine, app, connection);
                self.send_to(engine, app, Reply::Incoming { port, connection });
            }
            Event::ConnectRequest { open, from, to_port, kind, ring_bytes } => {
                self.on_connect_request(open, &ConnectRequest { engine, from, to_port, kind, ring_bytes });
            }
            Event::ConnectionOver { app, connection, peer, port } => {
                self.on_connection_over(app, ConnectionOver { engine, connection, peer, port });
            }
            Event::StreamIsBulk(stream) => self.on_bulk(engine, stream),
            Event::SocketOver { app, .. } => self.on_socket_over(engine, app),
            Event::AppFault { app, detail } => {
                if let Some(client) = self.names.program(engine, app) {
                    self.throw_out(client, &detail);
                }
            }
            Event::LaneFailed { peer, lane, reason, detail } => {
                if matches!(reason, Reason::Closed | Reason::LaneRevoked) {
                    tracing::info!(%peer, lane, detail, "the lane is given up");
                } else {
                    tracing::warn!(%peer, lane, %reason, detail, "the lane failed");
                }
                self.daemon.on_lane_failed(now, peer, lane, reason);
            }
            Event::LaneRests { peer, lane } => self.daemon.on_lane_rests(now, peer, lane),
            Event::LaneReset { peer, lane, detail, is_renewal } => {
                if is_renewal {
                    tracing::info!(%peer, lane, detail, "the lane is made anew; its connections wait for a new queue pair");
                } else {
                    tracing::warn!(%peer, lane, detail, "the lane is reset; its connections wait for a new queue pair");
                }
                self.daemon.on_lane_reset(now, peer, lane);
            }
            Event::RegionClosed { peer, handle, .. } => self.daemon.on_region_closed(peer, handle),
            Event::RegionStopped { peer, region, epoch } => self.daemon.on_region_stopped(peer, region, epoch),
            Event::RegionNotified { region, notify, .. } => self.daemon.on_region_notified(region, notify),
            Event::StrangePort { peer, found, expected } => tracing::warn!(
                %peer,
                lane = engine,
                found,
                expected,
                "packets for the lane come from another UDP port than the peer's and are dropped (`wrong_port` among \
                 the drops of `raas stat`): another user of that host forges them, or something between the hosts changes ports, which \
                 lanes between software NICs do not survive"
            ),
            Event::KernelRan { app, request, result } => {
                let end = result.map_or_else(KernelEnd::Failed, KernelEnd::Answered);
                self.send_to(engine, app, Reply::RegionRan { request, result: Ok(end) });
            }
            Event::TakenBack { app } => self.on_taken_back(engine, app),
            Event::AppGone { app } => self.on_app_gone(engine, app),
            Event::ChunkGone { app, chunk } => self.send_to(engine, app, Reply::ChunkGone { chunk }),
        }
    }

    /// Another host asks for a connection.
    fn on_connect_request(&mut self, open: OpenId, asked: &ConnectRequest) {
        let &ConnectRequest { engine, from, to_port: port, .. } = asked;
        let answer = self.daemon.on_connect_request(asked).and_then(|admitted| {
            let Admitted { client, connection, ring_bytes, kind } = admitted;
            let app = self.names.app(client, engine).ok_or(Reason::NoListener)?;
            Ok(Admission { app, connection, ring_bytes, kind, from, port })
        });
        self.command(engine, Command::Admit { open, answer });
    }

    fn on_connection_over(&mut self, app: AppId, over: ConnectionOver) {
        let client = self.names.program(over.engine, app);
        self.daemon.on_connection_over(client, over);
        self.forget_names(client);
    }

    fn on_socket_over(&mut self, engine: u32, app: AppId) {
        let client = self.names.program(engine, app);
        client.into_iter().for_each(|client| self.daemon.on_socket_over(client));
        self.forget_names(client);
    }

    /// An engine has nothing of a program any more.
    fn on_app_gone(&mut self, engine: u32, app: AppId) {
        tracing::debug!(?app, engine, "nothing of a detached program is in use any more");
        let client = self.names.program(engine, app);
        client.into_iter().for_each(|client| self.daemon.on_program_gone(client, engine));
        self.forget_names(client);
    }

    /// Forgets the engines' names of a program of which nothing is left.
    fn forget_names(&mut self, client: Option<ClientId>) {
        if let Some(client) = client.filter(|client| !self.daemon.knows(*client)) {
            self.names.forget(client);
        }
    }
}
