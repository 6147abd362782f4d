//! Programs that come back with the session that a daemon before this one made (docs/operate/restart.md).
//!
//! Owns what each has said of its session, and in which order it may: first that there is one, then chunks, tickets and
//! pairs, then the end. It must believe no ticket whose seal was not checked. The memory is the driver's.

use control::{RETURNED_MAX, Reason, Request, ReturnedEnd, Ticket};
use shm::SessionShape;

use super::program::{Program, Stage};
use super::{Action, DATAGRAM_ENGINE, Daemon};
use crate::{Brought, ClientId, ConnectionOver, Party};

/// Rows of connections that programs brought back have the connections' numbers with this bit.
pub(super) const RETURNED_ROW: u64 = 1 << 61;

impl<F, S> Daemon<F, S> {
    /// As [`Daemon::handle_request`], of a program that brings its session along. What comes back is memory that the driver
    /// is to check.
    pub(super) fn handle_returning(&mut self, party: Party, request: Request) -> Result<Option<Request>, String> {
        let client = party.client;
        let Some(Program { stage: Stage::Returning(brings), .. }) = self.programs.get_mut(&client) else {
            return Ok(None);
        };
        match request {
            Request::Return { .. } if brings.has_session() => return Err("it brings two sessions along".into()),
            Request::Return { slots, engines, .. } if (SessionShape { slots, engines }) != self.shape => {
                let (is, own) = (SessionShape { slots, engines }, self.shape);
                self.refuse_return(client, format!("its session is for {is:?}, and this daemon has {own:?}"));
            }
            Request::Return { engines, .. } => {
                brings.engines = vec![Brought::default(); engines as usize];
                return Ok(Some(request));
            }
            Request::ReturnChunk { chunk, .. } => {
                brings.add_chunk(chunk)?;
                return Ok(Some(request));
            }
            Request::ReturnConnections { tickets } if brings.has_session() && tickets.len() <= RETURNED_MAX => {
                tickets.iter().for_each(|sealed| self.on_ticket(client, sealed));
            }
            Request::ReturnPairs { ends } if brings.has_session() && ends.len() <= RETURNED_MAX => {
                for end in ends {
                    self.handle_returned_pair(party, &end)?;
                }
            }
            Request::ReturnEnd if brings.has_session() => {
                let brought = std::mem::take(&mut **brings).finish();
                let stage = self.attaching(client, true);
                self.programs.entry(client).and_modify(|program| program.stage = stage);
                let rights = self.rights_of(client);
                self.actions.push_back(Action::Attach { client, rights, brought: Some(brought) });
            }
            Request::ReturnEnd => return Err("ReturnEnd without a session".into()),
            _ => return Err("only its session may be said before ReturnEnd".into()),
        }
        Ok(None)
    }

    /// The program's session is not taken, and it is not the program's fault.
    pub fn refuse_return(&mut self, client: ClientId, why: String) {
        if let Some(Program { stage: Stage::Returning(_), .. }) = self.programs.get(&client) {
            self.refuse_program(client, Reason::DaemonLost, why);
        }
    }

    /// A connection or datagram socket that the program brings along. One that is not admitted, or whose ticket is none,
    /// ends with the rest of what it leaves.
    fn on_ticket(&mut self, client: ClientId, sealed: &[u8]) {
        let ticket = self.holder(client).and_then(|holder| self.tickets.open(holder, sealed));
        let Some(ticket) = ticket else {
            let words = "it brings a ticket that no daemon of this socket gave to its user or process".into();
            return self.actions.push_back(Action::Warn { client, words });
        };
        let engine = ticket.slot() / self.shape.slots_per_engine().max(1);
        let Some(Program { stage: Stage::Returning(brings), .. }) = self.programs.get_mut(&client) else { return };
        let Some(place) = brings.engines.get_mut(engine as usize) else { return };
        if !brings.ticketed.insert(ticket.slot()) {
            return;
        }
        for ring in ticket.rings() {
            brings.owners.entry(ring.chunk).or_insert(engine);
        }
        match ticket {
            Ticket::Lane(lane) if self.admission.adopt(client, lane.peer.ip(), engine, lane.is_outgoing).is_ok() => {
                place.connections.push(lane);
                let port = (!lane.is_outgoing).then_some(lane.local.port());
                let over = ConnectionOver { engine, connection: lane.id, peer: lane.peer.ip(), port };
                self.adopted.entry((client, engine)).or_default().connections.push(over);
            }
            // Only one engine has the port space of datagrams.
            Ticket::Socket(socket)
                if engine == DATAGRAM_ENGINE && self.admission.adopt_socket(client, socket.local.port()).is_ok() =>
            {
                place.sockets.push(socket);
                self.adopted.entry((client, engine)).or_default().sockets += 1;
            }
            refused => place.refused.push(refused),
        }
    }

    /// A connection with another program of this host, from the time of a daemon before this one.
    fn handle_returned_pair(&mut self, party: Party, end: &ReturnedEnd) -> Result<(), String> {
        let row = (end.connection | RETURNED_ROW, (end.local, end.peer), (end.tx_bytes, end.rx_bytes));
        self.fallbacks.handle_returned(party, row).map(drop)
    }
}
