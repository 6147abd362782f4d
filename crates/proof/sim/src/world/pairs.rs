//! Same-host connections: processes that answer the shipped control plane as the client library does. Their
//! bytes go through memory that no engine sees, so only slots, answers and ends are simulated.

use std::time::Duration;

use control::NotTaken;
use plane::ClientId;
use rand::RngExt;
use shm::Pair;
use verbs::Region;

use super::actions::listen_of;
use super::{Event, World};
use crate::app::Reply;
use crate::check::AppUid;

/// Of so many segments that a process is asked for, one is refused and one never comes.
const SEGMENTS_PER_FAULT: u32 = 12;

impl World {
    // ---- the client library's part

    pub(super) fn on_reply_of_plane(&mut self, host: usize, life: u32, uid: AppUid, reply: control::Reply) {
        let now = self.now;
        if self.up_in(host, life).is_none_or(|r| !r.apps.contains_key(&uid)) {
            return;
        }
        match reply {
            control::Reply::PairSegmentWanted { pair, index, slots, ring_bytes } => {
                let fate = if self.quiet { 0 } else { self.rng.random_range(0..SEGMENTS_PER_FAULT) };
                let request = control::Request::PairSegment { pair, index, slots, ring_bytes };
                match fate {
                    1 => {
                        self.checks.causes.on_segment_refused(host);
                        let what = NotTaken::PairSegment { pair, index };
                        self.ask_of_pair(host, uid, control::Request::NotTaken { what, limit: 64 }, Duration::ZERO);
                    }
                    2 => self.checks.causes.on_segment_refused(host),
                    _ => self.ask_of_pair(host, uid, request, Duration::ZERO),
                }
            }
            control::Reply::Listening { request, result } => {
                let reply = Reply::Listening { port: listen_of(request).0, result: result.map(drop) };
                self.on_reply(host, life, uid, reply);
            }
            control::Reply::Incoming { port, connection } => {
                self.checks.on_pair_slot(now, uid, &connection);
                let accepted = control::Request::Accepted { port, connection: connection.id };
                self.ask_of_pair(host, uid, accepted, Duration::ZERO);
                self.close_of_pair(host, uid, &connection);
            }
            control::Reply::Connected { request, result } => {
                let reply = match result {
                    Ok(connection) => {
                        self.checks.on_pair_slot(now, uid, &connection);
                        self.close_of_pair(host, uid, &connection);
                        Reply::Paired { request }
                    }
                    Err(reason) => Reply::Connected { request, result: Err(reason) },
                };
                self.on_reply(host, life, uid, reply);
            }
            _ => {}
        }
    }

    fn close_of_pair(&mut self, host: usize, uid: AppUid, connection: &control::Connection) {
        let used = self.some(Duration::from_millis(20));
        self.ask_of_pair(host, uid, control::Request::PairClosed { connection: connection.id }, used);
    }

    fn ask_of_pair(&mut self, host: usize, uid: AppUid, request: control::Request, later: Duration) {
        let delay = self.plan.daemon_delay_max;
        let at = self.now + self.some(delay);
        let life = self.life(host);
        let Some(app) = self.up(host).and_then(|r| r.apps.get_mut(&uid)) else { return };
        app.to_daemon_at = app.to_daemon_at.max(at);
        let at = app.to_daemon_at + later;
        self.queue.push(at, Event::ToPairs { host, life, app: uid, request: Box::new(request) });
    }

    // ---- the daemon's part

    pub(super) fn on_request_of_pair(&mut self, host: usize, life: u32, uid: AppUid, request: control::Request) {
        if self.life(host) != life {
            return;
        }
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::ToPairs { host, life, app: uid, request: Box::new(request) });
        }
        if let control::Request::PairClosed { connection } = request {
            self.checks.pairs.on_closed(uid, connection);
        }
        self.ask_plane(host, ClientId(uid.into()), request);
    }

    /// A request that needs memory.
    pub(super) fn on_system_request(
        &mut self,
        host: usize,
        client: ClientId,
        request: control::Request,
    ) -> Result<(), String> {
        if let control::Request::Meet { end, .. } = request {
            return self.meet(host, client, end);
        }
        if let control::Request::Return { .. } | control::Request::ReturnChunk { .. } = request {
            // Its memory is here.
            return Ok(());
        }
        let control::Request::PairSegment { pair, index, slots, ring_bytes } = request else {
            return Err(format!("{request:?} is nothing that is simulated"));
        };
        let Some(running) = self.up(host) else { return Ok(()) };
        let daemon = &mut running.control.daemon;
        if daemon.expects_segment(client, pair, index, (slots, ring_bytes))? {
            daemon.handle_segment(pair, index, (), segment(slots, ring_bytes)?);
        }
        Ok(())
    }
}

fn segment(slots: u32, ring_bytes: u32) -> Result<Pair, String> {
    let bytes = usize::try_from(Pair::bytes(slots, ring_bytes)).map_err(|e| e.to_string())?;
    let region = Region::anonymous(bytes).map_err(|e| e.to_string())?;
    Pair::format(region, slots, ring_bytes).map_err(|e| e.to_string())
}
