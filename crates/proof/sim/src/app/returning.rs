//! A process whose daemon was killed: what it does meanwhile, and what it brings to the next one (docs/operate/restart.md).

use std::net::SocketAddr;

use control::{ChunkKind, RETURNED_MAX, Reason, Ticket};
use engine::{ReturnedChunk, SlotSet};
use raas_core::DaemonMessage;
use shm::{Session, SessionShape};
use verbs::{Region, Time};

use super::{App, Entering, Outbox, Request};
use crate::check::Checks;

impl App {
    /// Whether it has not said that it leaves.
    pub(crate) fn outlives_its_daemon(&self) -> bool {
        // One that was not in has nothing to go on with.
        !self.left && self.entering.as_ref().is_none_or(|entering| entering.returns)
    }

    /// Its daemon is gone. What that said before is still on its way.
    pub(crate) fn part(&mut self) {
        self.entering = None;
        self.is_away = true;
        self.run_at = None;
    }

    /// All that the daemon said has come. What was asked of it and not answered fails.
    pub(crate) fn lose_requests(&mut self, now: Time, checks: &mut Checks) {
        for id in self.client.lose_requests(Reason::DaemonLost) {
            let number = id.number();
            self.requests.remove(&number);
            self.cancelled.remove(&number);
            self.patience.remove(&number);
            drop(self.client.finish(id));
            if let Some(asked) = self.asked.remove(&number) {
                *self.answers.refused.entry(Reason::DaemonLost.key()).or_default() += 1;
                checks.on_refused(now, &asked, Reason::DaemonLost);
            }
            self.lose_for_sockets(now, number, checks);
            // A program asks for its ports again.
            let port = self.listens.iter().find(|(_, listen)| **listen == id).map(|(port, _)| *port);
            if let Some(port) = port {
                self.listens.remove(&port);
                self.to_listen.extend(self.plan.listens.iter().position(|listen| listen.port == port));
            }
        }
        self.cancelled.clear();
        self.relists.clear();
    }

    /// What it says of its session to a daemon that started in this life of its host. `open`: what a daemon finds in a
    /// ticket.
    pub(crate) fn bring(
        &mut self,
        life: u32,
        open: impl Fn(&[u8]) -> Option<Ticket>,
    ) -> Result<Vec<control::Request>, String> {
        let SessionShape { slots, engines } = self.session.shape();
        let session = Session::adopt(self.session.region().clone(), self.session.shape(), life.into());
        self.brought = Some(session.map_err(|e| e.to_string())?);
        let tickets: Vec<Vec<u8>> = self.client.live_tickets();
        self.sockets_brought.clear();
        for sealed in &tickets {
            let ticket = open(sealed).ok_or("a ticket that no daemon of the host gave to it, or one for another")?;
            if let Ticket::Socket(socket) = ticket {
                self.sockets_brought.push((socket, self.rings_of(&socket)?));
            }
        }
        (self.life, self.entering) = (life, Some(Entering { returns: true, held: Vec::new() }));
        let chunk = |(chunk, (kind, region)): (&u32, &(ChunkKind, Region))| {
            let bytes = region.len();
            control::Request::ReturnChunk { chunk: *chunk, kind: *kind, bytes }
        };
        let session = control::Request::Return { slots, engines, session_bytes: 0, next_chunk: 0, used: Vec::new() };
        let chunks = self.chunks.iter().map(chunk);
        let parts = tickets
            .chunks(RETURNED_MAX)
            .map(|tickets| control::Request::ReturnConnections { tickets: tickets.to_vec() });
        Ok(std::iter::once(session).chain(chunks).chain(parts).chain([control::Request::ReturnEnd]).collect())
    }

    /// The slots that it uses.
    pub(crate) fn used(&self) -> SlotSet {
        self.client.used_slots().collect()
    }

    /// One of its chunks.
    pub(crate) fn chunk(&self, number: u32) -> Option<ReturnedChunk> {
        let (kind, region) = self.chunks.get(&number)?;
        Some(ReturnedChunk { chunk: number, kind: *kind, region: region.clone() })
    }

    /// Its session as its daemon gets it.
    pub(crate) fn session_for_daemon(&mut self) -> Session {
        self.brought.take().unwrap_or_else(|| self.session.clone())
    }

    /// It goes on with a daemon that started in this life of its host.
    pub(crate) fn on_returned(&mut self, life: u32) {
        (self.life, self.is_away, self.run_at) = (life, false, None);
        self.client.on_returned();
        self.return_sockets();
        self.ready.extend(self.conns.iter().filter(|(_, conn)| !conn.closed).map(|(slot, _)| *slot));
    }

    /// The daemon opened a port again.
    pub(super) fn on_relistened(
        &mut self,
        now: Time,
        request: u64,
        result: Result<SocketAddr, Reason>,
        checks: &mut Checks,
    ) {
        if let Err(reason) = result {
            let detail = format!("application {} lost a port by a restart: {}", self.uid, reason.key());
            checks.fail(now, "connect", detail);
        }
        self.hear(now, DaemonMessage::Listening { request, result }, checks);
    }

    /// Sends what the client core has for the daemon by itself.
    pub(super) fn say_outgoing(&mut self, out: &mut Outbox) {
        while let Some(outgoing) = self.client.next_outgoing() {
            match outgoing.request {
                control::Request::Listen { request, port, backlog, ring_bytes, .. } => {
                    self.relists.insert(port, request);
                    out.requests.push(Request::Listen { port, backlog, ring_bytes });
                }
                control::Request::Unlisten { port } => out.requests.push(Request::Unlisten { port }),
                // Of pairs, whose memory is not here.
                _ => {}
            }
        }
    }
}
