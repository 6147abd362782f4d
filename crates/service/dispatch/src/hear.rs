//! What an engine's word is to the control plane.

use std::net::IpAddr;

use control::{KernelEnd, Reason, Reply};
use engine::{Admission, AppId, BulkStream, Event, RingSize};
use plane::{Admitted, BulkOf, ClientId, ConnectRequest, ConnectionOver, Daemon, Names, Supply};
use verbs::Time;

use crate::{Command, Report};

/// What a report leaves for the driver to do.
#[derive(Debug)]
pub enum Left {
    /// Tell the engine that spoke.
    Command(Command),
    /// Make memory for rings of a program.
    Rings {
        /// The program.
        client: ClientId,
        /// What the engine calls it.
        app: AppId,
        /// Of each ring.
        size: RingSize,
        /// How many.
        rings: u32,
    },
    /// Detach a program, which broke the rules.
    Fault {
        /// The program.
        client: ClientId,
        /// What it did.
        detail: String,
    },
}

/// The control plane hears an engine. What only a driver can do comes back.
pub fn hear<F, S>(
    daemon: &mut Daemon<F, S>,
    names: &mut Names<AppId>,
    (now, engine): (Time, u32),
    report: Report,
    supply: &mut dyn Supply<F>,
) -> Option<Left> {
    match report {
        Report::Event(event) => return hear_event(daemon, names, (now, engine), event, supply),
        Report::Attached { client, result } => {
            result.iter().for_each(|app| names.add(client, engine, *app));
            let is_here = daemon.on_taken(client, engine, result.map(drop));
            forget_if_gone(daemon, names, Some(client));
            let app = result.ok().filter(|_| !is_here)?;
            return Some(Left::Command(Command::Detach { app, reason: Reason::PeerAppDied }));
        }
        Report::Lane { peer, lane, answer } => daemon.on_answer(now, peer, lane, answer),
        Report::StreamOfRoute { peer, number, stream } => {
            let of = stream.and_then(|stream| bulk_of(daemon, names, engine, &stream));
            daemon.on_route(peer, number, of);
        }
        Report::LaneWasReset { client, request, found } => daemon.on_lane_was_reset(client, request, found),
        Report::RegionGranted { peer, open, result, not_registered } => {
            daemon.on_granted((peer, open), result, not_registered);
        }
        Report::RegionDeregistered { region } => daemon.on_deregistered(region),
        Report::RegionOpened { open, result } => daemon.on_region_opened(open, result),
        Report::RegionAttached { app, number, result } => {
            if let Some(client) = names.program(engine, app) {
                daemon.on_region_attached(client, number, result);
            }
        }
        Report::KernelInstalled { client, request, result } => {
            daemon.tell(client, Reply::RegionInstalled { request, result });
        }
    }
    None
}

/// Events of a program that the driver does not know any more are of none.
fn hear_event<F, S>(
    daemon: &mut Daemon<F, S>,
    names: &mut Names<AppId>,
    (now, engine): (Time, u32),
    event: Event,
    supply: &mut dyn Supply<F>,
) -> Option<Left> {
    let of = |app| names.program(engine, app);
    match event {
        Event::PeerWanted { peer, lane } => daemon.handle_wanted(now, peer, lane),
        Event::ChunksWanted { app, size, rings } => {
            return of(app).map(|client| Left::Rings { client, app, size, rings });
        }
        Event::Connected { app, request, result } => daemon.on_connected(of(app)?, request, result),
        Event::DatagramPath { app, request, result } => daemon.on_path(now, of(app)?, request, result),
        Event::Incoming { app, port, connection } => daemon.on_incoming(of(app)?, port, connection),
        Event::ConnectRequest { open, from, to_port: port, kind, ring_bytes } => {
            let asked = ConnectRequest { engine, from, to_port: port, kind, ring_bytes };
            let answer = daemon.on_connect_request(&asked).and_then(|admitted| {
                let Admitted { client, connection, ring_bytes, kind } = admitted;
                let app = names.app(client, engine).ok_or(Reason::NoListener)?;
                Ok(Admission { app, connection, ring_bytes, kind, from, port })
            });
            return Some(Left::Command(Command::Admit { open, answer }));
        }
        Event::ConnectionOver { app, connection, peer, port } => {
            let client = of(app);
            daemon.on_connection_over(client, ConnectionOver { engine, connection, peer, port });
            forget_if_gone(daemon, names, client);
        }
        Event::StreamIsBulk(stream) => {
            let of = bulk_of(daemon, names, engine, &stream)?;
            daemon.on_bulk(of, supply);
        }
        Event::SocketOver { app, .. } => {
            let client = of(app)?;
            daemon.on_socket_over(client);
            forget_if_gone(daemon, names, Some(client));
        }
        Event::AppFault { app, detail } => return of(app).map(|client| Left::Fault { client, detail }),
        Event::LaneFailed { peer, lane, reason, detail } => {
            log_lane_failed(peer, lane, reason, &detail);
            daemon.on_lane_failed(now, peer, lane, reason);
        }
        Event::LaneRests { peer, lane } => daemon.on_lane_rests(now, peer, lane),
        Event::LaneReset { peer, lane, detail, is_renewal } => {
            log_lane_reset(peer, lane, &detail, is_renewal);
            daemon.on_lane_reset(now, peer, lane);
        }
        Event::RegionClosed { peer, handle, .. } => daemon.on_region_closed(peer, handle),
        Event::RegionStopped { peer, region, epoch } => daemon.on_region_stopped(peer, region, epoch),
        Event::StrangePort { peer, found, expected } => log_strange_port(peer, engine, (found, expected)),
        Event::KernelRan { app, request, result } => {
            let end = result.map_or_else(KernelEnd::Failed, KernelEnd::Answered);
            daemon.tell(of(app)?, Reply::RegionRan { request, result: Ok(end) });
        }
        Event::TakenBack { app } => daemon.on_taken_back(of(app)?),
        Event::AppGone { app } => {
            tracing::debug!(?app, engine, "nothing of a detached program is in use any more");
            let client = of(app)?;
            daemon.on_program_gone(client, engine);
            forget_if_gone(daemon, names, Some(client));
        }
        Event::ChunkGone { app, chunk } => daemon.tell(of(app)?, Reply::ChunkGone { chunk }),
    }
    None
}

fn log_lane_failed(peer: IpAddr, lane: u32, reason: Reason, detail: &str) {
    if matches!(reason, Reason::Closed | Reason::LaneRevoked | Reason::Superseded) {
        tracing::info!(%peer, lane, detail, "the lane is given up");
    } else {
        tracing::warn!(%peer, lane, %reason, detail, "the lane failed");
    }
}

fn log_lane_reset(peer: IpAddr, lane: u32, detail: &str, is_renewal: bool) {
    if is_renewal {
        tracing::info!(%peer, lane, detail, "the lane is made anew; its connections wait for a new queue pair");
    } else {
        tracing::warn!(%peer, lane, detail, "the lane is reset; its connections wait for a new queue pair");
    }
}

fn log_strange_port(peer: IpAddr, lane: u32, (found, expected): (u16, u16)) {
    tracing::warn!(
        %peer,
        lane,
        found,
        expected,
        "packets for the lane come from another UDP port than the peer's and are dropped (`wrong_port` among \
         the drops of `raas stat`): another user of that host forges them, or something between the hosts changes ports, which \
         lanes between software NICs do not survive"
    );
}

/// The stream, with the program that has it; none: the program is gone.
fn bulk_of<F, S>(daemon: &Daemon<F, S>, names: &Names<AppId>, engine: u32, stream: &BulkStream) -> Option<BulkOf> {
    let client = names.program(engine, stream.app)?;
    let uid = daemon.party(client)?.uid;
    let &BulkStream { connection, slot, peer, peer_route, .. } = stream;
    Some(BulkOf { client, uid, connection, slot, peer, lane: engine, peer_route })
}

/// Forgets the engines' names of a program of which nothing is left.
fn forget_if_gone<F, S>(daemon: &Daemon<F, S>, names: &mut Names<AppId>, client: Option<ClientId>) {
    client.filter(|client| !daemon.knows(*client)).into_iter().for_each(|client| names.forget(client));
}
