//! Programs that come back with the session that a daemon before this one made (docs/operate/restart.md).
//!
//! Owns the checks of what they bring. It must never use memory of theirs that was not checked, as it would any
//! stranger's.

use std::collections::BTreeMap;

use control::{LaneTicket, RETURNED_MAX, Reason, Request, Ticket};
use engine::{Returned, ReturnedChunk, SlotSet};
use plane::{ClientId, ConnectionOver, DATAGRAM_ENGINE, Party};
use receivers::Verdict;
use shm::{Region, Segment, Session, SessionShape, Sharing};

use super::{Adopted, Attaching, Client, Hub, ReturnedSession, Stage};
use crate::receiving::{With, memory_of};

/// Chunks of one session.
const CHUNKS_MAX: usize = 4096;
/// Bytes of one of them. By far the most are room to grow, which nobody has touched; the engine bounds its rings.
const CHUNK_BYTES_MAX: u64 = 16 << 30;

impl Hub {
    /// A message of a program that brings its session along. An error is what it did wrong.
    pub(super) fn on_return(&mut self, party: Party, request: Request, with: With) -> Result<(), String> {
        let Some(Client { stage: Stage::Returning(returned), next_chunk: chunks, .. }) =
            self.clients.get_mut(&party.client)
        else {
            return Ok(());
        };
        match request {
            Request::Return { slots, engines, session_bytes, next_chunk, used } => {
                if returned.is_some() {
                    return Err("it brings two sessions along".into());
                }
                if matches!(with, Verdict::NoRoom) {
                    self.refuse_return(party, "this daemon is at its limit of open descriptors");
                    return Ok(());
                }
                let shape = SessionShape { slots, engines };
                if shape != self.shape {
                    let (is, own) = (shape, self.shape);
                    let words = format!("its session is for {is:?}, and this daemon has {own:?}");
                    self.refuse_return(party, &words);
                    return Ok(());
                }
                let session = adopt((shape, session_bytes), &with, self.epoch)?;
                let used = slots_of(&used, slots)?;
                *chunks = next_chunk;
                *returned = Some(Box::new(ReturnedSession {
                    session,
                    used,
                    engines: vec![Returned::default(); engines as usize],
                    chunks: BTreeMap::new(),
                    owners: BTreeMap::new(),
                    ticketed: SlotSet::default(),
                }));
                Ok(())
            }
            Request::ReturnChunk { chunk, kind, bytes } => {
                let returned = returned.as_mut().ok_or("a chunk without a session")?;
                // Without a descriptor of this daemon's its connections end.
                if !matches!(with, Verdict::NoRoom) {
                    let chunk = ReturnedChunk { chunk, kind, region: region_of(bytes, &with)? };
                    returned.add_chunk(chunk)?;
                }
                Ok(())
            }
            Request::ReturnConnections { tickets } if returned.is_some() && tickets.len() <= RETURNED_MAX => {
                for sealed in tickets {
                    self.on_ticket(party, &sealed);
                }
                Ok(())
            }
            Request::ReturnPairs { ends } if returned.is_some() && ends.len() <= RETURNED_MAX => {
                for end in ends {
                    self.daemon.handle_returned_pair(party, &end)?;
                }
                Ok(())
            }
            Request::ReturnEnd => {
                let session = returned.take().ok_or("ReturnEnd without a session")?;
                self.attach_returned(party, *session);
                Ok(())
            }
            _ => Err("only its session may be said before ReturnEnd".into()),
        }
    }

    /// A connection or datagram socket that the program brings along. One that is not admitted, or whose ticket is
    /// none, ends with the rest of what it leaves.
    fn on_ticket(&mut self, party: Party, sealed: &[u8]) {
        let Some(ticket) = self.daemon.open_ticket(party.client, sealed) else {
            if let Some(left_out) = self.may_log() {
                let (pid, uid) = (party.pid, party.uid);
                tracing::warn!(
                    pid,
                    uid,
                    left_out,
                    "a program brings a ticket that no daemon of this socket gave to its user or process"
                );
            }
            return;
        };
        let each = self.shape.slots_per_engine();
        let engine = ticket.slot() / each.max(1);
        let Some(Client { stage: Stage::Returning(Some(returned)), .. }) = self.clients.get_mut(&party.client) else {
            return;
        };
        let Some(place) = returned.engines.get_mut(engine as usize) else { return };
        if !returned.ticketed.insert(ticket.slot()) {
            return;
        }
        for ring in ticket.rings() {
            returned.owners.entry(ring.chunk).or_insert(engine);
        }
        let client = party.client;
        match ticket {
            Ticket::Lane(lane)
                if self.daemon.admission_mut().adopt(client, lane.peer.ip(), engine, lane.is_outgoing).is_ok() =>
            {
                place.connections.push(lane);
            }
            // Only one engine has the port space of datagrams.
            Ticket::Socket(socket)
                if engine == DATAGRAM_ENGINE
                    && self.daemon.admission_mut().adopt_socket(client, socket.local.port()).is_ok() =>
            {
                place.sockets.push(socket);
            }
            refused => place.refused.push(refused),
        }
    }

    fn attach_returned(&mut self, party: Party, returned: ReturnedSession) {
        let (session, engines) = returned.shared();
        let adopted = overs(&engines);
        let id = party.client;
        let Some(who) = self.clients.get(&id).map(|client| client.who.clone()) else { return };
        match self.ask_engines(id, &who, &session, engines) {
            Ok(fds) => {
                let (unanswered, networks) = (2 * self.engines.count(), self.networks_of(id));
                if let Some(client) = self.clients.get_mut(&id) {
                    client.stage = Stage::Attaching(Attaching {
                        fds,
                        unanswered,
                        returns: true,
                        refused: None,
                        networks,
                        adopted,
                        held: Vec::new(),
                    });
                }
            }
            Err(error) => {
                adopted.into_iter().for_each(|adopted| self.forget_adopted(id, adopted));
                self.refuse_return(party, &error.to_string());
            }
        }
    }

    /// Nothing comes of what a program brought along.
    pub(super) fn not_adopted(&mut self, client: ClientId, engines: &[Returned]) {
        overs(engines).into_iter().for_each(|adopted| self.forget_adopted(client, adopted));
    }

    /// An engine does not take what was counted for it.
    pub(super) fn forget_adopted(&mut self, client: ClientId, adopted: Adopted) {
        for over in adopted.connections {
            self.daemon.admission_mut().on_connection_over(client, over);
        }
        for _ in 0..adopted.sockets {
            self.daemon.admission_mut().on_socket_over(client);
        }
    }

    /// The program's session is not taken, and it is not the program's fault.
    fn refuse_return(&mut self, party: Party, why: &str) {
        if let Some(left_out) = self.may_log() {
            tracing::warn!(pid = party.pid, uid = party.uid, why, left_out, "the session of a program cannot go on");
        }
        self.send(party.client, self.refused(Reason::DaemonLost), Vec::new());
        self.forget(party.client);
    }
}

impl ReturnedSession {
    fn add_chunk(&mut self, chunk: ReturnedChunk) -> Result<(), String> {
        let number = chunk.chunk;
        if self.chunks.len() >= CHUNKS_MAX || self.chunks.insert(number, chunk).is_some() {
            return Err(format!("chunk {number} is one too many, or came before"));
        }
        Ok(())
    }

    /// The session, and for each engine what is its: of the chunks those in which its connections lie, and for the
    /// first those without any, which it drops.
    fn shared(mut self) -> (Session, Vec<Returned>) {
        for engine in &mut self.engines {
            engine.used = self.used.clone();
        }
        for (number, chunk) in self.chunks {
            let owner = self.owners.get(&number).copied().unwrap_or(0);
            if let Some(engine) = self.engines.get_mut(owner as usize) {
                engine.chunks.push(chunk);
            }
        }
        (self.session, self.engines)
    }
}

/// What ends for each engine if it does not take the program.
fn overs(engines: &[Returned]) -> Vec<Adopted> {
    let over = |engine, ticket: &LaneTicket| ConnectionOver {
        engine,
        connection: ticket.id,
        peer: ticket.peer.ip(),
        port: (!ticket.is_outgoing).then_some(ticket.local.port()),
    };
    let of = |(engine, returned): (u32, &Returned)| Adopted {
        connections: returned.connections.iter().map(|t| over(engine, t)).collect(),
        sockets: returned.sockets.len(),
    };
    (0..).zip(engines).map(of).collect()
}

/// The memory of a chunk that a program brings along.
fn region_of(bytes: u64, with: &With) -> Result<Region, String> {
    let fd = memory_of(with, "a chunk")?;
    if bytes > CHUNK_BYTES_MAX {
        return Err(format!("a chunk of {bytes} bytes is longer than {CHUNK_BYTES_MAX}"));
    }
    let segment = Segment::accept(fd, bytes, Sharing::ReadWrite).map_err(|e| e.to_string())?;
    Ok(segment.into_region())
}

/// The session segment that a program brings along.
fn adopt((shape, bytes): (SessionShape, u64), with: &With, epoch: u64) -> Result<Session, String> {
    let fd = memory_of(with, "a session")?;
    if bytes != Session::bytes(shape) {
        return Err(format!("a session of {shape:?} has {} bytes, not {bytes}", Session::bytes(shape)));
    }
    let segment = Segment::accept(fd, bytes, Sharing::ReadWrite).map_err(|e| e.to_string())?;
    Session::adopt(segment.into_region(), shape, epoch).map_err(|e| e.to_string())
}

/// The slots that a bitmap names.
fn slots_of(bitmap: &[u8], slots: u32) -> Result<SlotSet, String> {
    let used = SlotSet::from_bitmap(bitmap);
    match used.last_below(u32::MAX) {
        Some(last) if last >= slots => Err(format!("slot {last} of {slots}")),
        _ => Ok(used),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_names_slots_that_there_are() {
        let of = |bitmap: &[u8]| {
            slots_of(bitmap, 64).map(|used| (0..64).filter(|slot| used.contains(*slot)).collect::<Vec<u32>>())
        };
        assert_eq!(of(&[]), Ok(vec![]));
        assert_eq!(of(&[0b101, 0, 0, 0, 0, 0, 0, 0x80]), Ok(vec![0, 2, 63]));
        assert!(of(&[0, 0, 0, 0, 0, 0, 0, 0, 1]).is_err());
    }
}
