//! Same-host connections: the shipped `plane::Pairs`, and processes that answer it as the client library does. Their
//! bytes go through memory that no engine sees, so only slots, answers and ends are simulated.

use std::time::Duration;

use control::{NotTaken, Reason};
use plane::{ClientId, LocalConnect, PairAction, Party, SegmentLost};
use rand::RngExt;
use shm::Pair;
use verbs::Region;

use super::{Event, World};
use crate::app::Reply;
use crate::check::AppUid;

/// Of so many segments that a process is asked for, one is refused and one never comes.
const SEGMENTS_PER_FAULT: u32 = 12;

impl World {
    /// A connect of one process of a host to another one. Numbers: request, port, ring bytes, connection.
    pub(super) fn on_local_connect(
        &mut self,
        host: usize,
        from: ClientId,
        to: ClientId,
        connect: (u64, u16, u32, u64),
    ) {
        let now = self.now;
        let (request, port, ring_bytes, connection) = connect;
        let Some(running) = self.up(host) else { return };
        let party = |client: ClientId| {
            let uid = client.0 as AppUid;
            running.control.clients.contains(&uid).then_some(Party { client, pid: 1000 + uid, uid: 1 })
        };
        match (party(from), party(to)) {
            (Some(from), Some(to)) => {
                let connect = LocalConnect { from, to, request, port, ring_bytes, connection };
                running.control.pairs.handle_connect(now, connect, || Some(((), ())));
            }
            (Some(from), None) => {
                let result = Err(Reason::PeerAppDied);
                self.send_of_pair(host, from.client, control::Reply::Connected { request, result });
            }
            (None, _) => _ = running.control.admission.accepted(to, port, connection),
        }
        self.settle_pairs(host);
    }

    pub(super) fn settle_pairs(&mut self, host: usize) {
        while let Some(action) = self.up(host).and_then(|r| r.control.pairs.poll_action()) {
            match action {
                PairAction::Send { client, reply, fds: _ } => self.send_of_pair(host, client, reply),
                PairAction::Started { to, incoming, from, connected } => {
                    self.send_of_pair(host, to, incoming);
                    self.send_of_pair(host, from, connected);
                }
                PairAction::Return { client, port, connection } => {
                    let Some(running) = self.up(host) else { return };
                    running.control.admission.accepted(client, port, connection);
                }
            }
        }
        self.arm_plane(host);
    }

    fn send_of_pair(&mut self, host: usize, client: ClientId, reply: control::Reply) {
        let delay = self.plan.daemon_delay_max;
        let at = self.now + self.some(delay);
        let (life, uid) = (self.life(host), client.0 as AppUid);
        let Some(app) = self.up(host).and_then(|r| r.apps.get_mut(&uid)) else { return };
        app.to_app_at = app.to_app_at.max(at);
        let at = app.to_app_at;
        self.queue.push(at, Event::OfPair { host, life, app: uid, reply: Box::new(reply) });
    }

    // ---- the client library's part

    pub(super) fn on_reply_of_pair(&mut self, host: usize, life: u32, uid: AppUid, reply: control::Reply) {
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
        let now = self.now;
        if self.life(host) != life {
            return;
        }
        if let Some(until) = self.paused(host) {
            return self.queue.push(until, Event::ToPairs { host, life, app: uid, request: Box::new(request) });
        }
        if let control::Request::PairClosed { connection } = request {
            self.checks.pairs.on_closed(uid, connection);
        }
        let client = ClientId(uid.into());
        let Some(running) = self.up(host).filter(|r| r.control.clients.contains(&uid)) else { return };
        let pairs = &mut running.control.pairs;
        let fault = match request {
            control::Request::PairSegment { pair, index, slots, ring_bytes } => {
                match pairs.expects(client, pair, index, (slots, ring_bytes)) {
                    Ok(true) => match segment(slots, ring_bytes) {
                        Ok(view) => {
                            pairs.handle_segment(pair, index, (), view);
                            None
                        }
                        Err(why) => Some(why),
                    },
                    Ok(false) => None,
                    Err(fault) => Some(fault),
                }
            }
            control::Request::NotTaken { what: NotTaken::PairSegment { pair, index }, .. } => {
                pairs.handle_segment_not_taken(client, pair, index, SegmentLost::ByProgram).err()
            }
            control::Request::PairClosed { connection } => {
                pairs.handle_closed(client, connection);
                None
            }
            control::Request::Accepted { port, connection } => {
                pairs.on_accepted(client, connection);
                running.control.admission.accepted(client, port, connection);
                None
            }
            other => Some(format!("{other:?} is nothing of pairs")),
        };
        if let Some(fault) = fault {
            let detail = format!("application {uid}, which keeps to the rules, broke them: {fault}");
            self.checks.fail(now, "pairs", detail);
        }
        self.settle_pairs(host);
        self.after_commands(host);
    }
}

fn segment(slots: u32, ring_bytes: u32) -> Result<Pair, String> {
    let bytes = usize::try_from(Pair::bytes(slots, ring_bytes)).map_err(|e| e.to_string())?;
    let region = Region::anonymous(bytes).map_err(|e| e.to_string())?;
    Pair::format(region, slots, ring_bytes).map_err(|e| e.to_string())
}
