//! A process whose daemon was killed: what it does meanwhile, and what it brings to the next one (docs/operate/restart.md).

use std::net::SocketAddr;

use control::{Reason, Ticket};
use engine::{Returned, ReturnedChunk, SlotSet};
use raas_core::DaemonMessage;
use verbs::Time;

use super::{App, Outbox, Request};
use crate::check::Checks;

impl App {
    /// Whether it can go on with another daemon, which has so many engines.
    pub(crate) fn may_return(&self, engines: usize) -> bool {
        !self.left && self.session.shape().engines as usize == engines
    }

    /// Whether it has not said that it leaves.
    pub(crate) fn outlives_its_daemon(&self) -> bool {
        !self.left
    }

    /// Its daemon is gone. What that said before is still on its way.
    pub(crate) fn part(&mut self) {
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

    /// What it brings, for each engine. `open`: what a daemon finds in a ticket.
    pub(crate) fn bring(&mut self, open: impl Fn(&[u8]) -> Option<Ticket>) -> Result<Vec<Returned>, String> {
        let shape = self.session.shape();
        let used: SlotSet = self.client.used_slots().collect();
        let mut engines = vec![Returned { used, ..Returned::default() }; shape.engines as usize];
        for sealed in self.client.live_tickets() {
            let ticket = open(&sealed).ok_or("a ticket that no daemon of the host gave to it")?;
            let engine = engines.get_mut((ticket.slot() / shape.slots_per_engine()) as usize);
            let engine = engine.ok_or("a ticket of no engine")?;
            match ticket {
                Ticket::Lane(ticket) => engine.connections.push(ticket),
                Ticket::Socket(ticket) => engine.sockets.push(ticket),
            }
        }
        for (&chunk, (kind, region)) in &self.chunks {
            let has = |engine: &Returned| engine.tickets().any(|ticket| ticket.is_in(chunk));
            let owner = engines.iter().position(has).unwrap_or(0);
            engines[owner].chunks.push(ReturnedChunk { chunk, kind: *kind, region: region.clone() });
        }
        Ok(engines)
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
