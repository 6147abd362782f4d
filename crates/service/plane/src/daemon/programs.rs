//! Programs: they ask and go.
//!
//! Owns which of them all engines have taken in: an engine is asked for nothing of another one.

use control::{Connection, NotTaken, Request};
use verbs::Time;

use super::program::{Program, Stage};
use super::returns::RETURNED_ROW;
use super::{Action, Daemon, Supply};
use crate::{ClientId, Connect, Holder, Listen, ProgramCommand, SegmentLost};

/// What a program is told that asks too early.
const NOT_ATTACHED: &str = "only an attached application may ask for this";

impl<F, S> Daemon<F, S> {
    // ---- they go

    /// A program is gone. The driver has the engines detach it, and [`Daemon::on_program_gone`] comes of each.
    pub fn handle_gone(&mut self, client: ClientId) {
        // The engines answer for one that they were asked about.
        if let Some(Program { stage: Stage::Returning(_), .. }) = self.programs.remove(&client) {
            self.forget_unasked(client);
        }
        self.admission.handle_left(client);
        self.pairs.handle_gone(client);
        self.meetings.handle_gone(client);
        self.own_ends.handle_gone(client);
        self.fallbacks.handle_gone(client);
        self.directory.handle_left(client);
        self.foreign.handle_left(client);
    }

    pub(super) fn is_attached(&self, client: ClientId) -> bool {
        self.programs.get(&client).is_some_and(|program| matches!(program.stage, Stage::Attached))
    }

    /// Nothing is asked of an engine for a program that it does not have.
    pub(super) fn command(&mut self, engine: u32, client: ClientId, command: ProgramCommand) {
        if self.is_attached(client) {
            self.actions.push_back(Action::Program { engine, client, command });
        }
    }

    pub(super) fn command_all(&mut self, client: ClientId, command: ProgramCommand) {
        (0..self.engines).for_each(|engine| self.command(engine, client, command));
    }

    /// What an engine, or the driver, says to a program.
    pub fn tell(&mut self, client: ClientId, reply: control::Reply) {
        self.reply(client, reply);
    }

    /// A connection with its ticket sealed for the program that gets it.
    pub(super) fn sealed(&self, client: ClientId, mut connection: Connection) -> Connection {
        let ticket = std::mem::take(&mut connection.ticket);
        if let Some(holder) = self.holder(client) {
            connection.ticket = self.tickets.seal(holder, ticket);
        }
        connection
    }

    pub(super) fn holder(&self, client: ClientId) -> Option<Holder<'_>> {
        let Program { uid, process, .. } = self.programs.get(&client)?;
        Some(Holder { uid: *uid, process: process.as_deref() })
    }

    pub(super) fn reply(&mut self, client: ClientId, reply: control::Reply) {
        self.actions.push_back(Action::Reply { client, reply, fds: Vec::new() });
    }

    // ---- what they ask

    /// A program asks for something. `Ok(Some)`: what needs more than decisions comes back, for the driver. An error is what
    /// the program did wrong.
    pub fn handle_request(
        &mut self,
        now: Time,
        client: ClientId,
        request: Request,
        supply: &mut dyn Supply<F>,
    ) -> Result<Option<Request>, String> {
        let Some(party) = self.party(client) else { return Err(NOT_ATTACHED.into()) };
        match self.programs.get(&client).map(|program| &program.stage) {
            Some(Stage::Attached) => {}
            Some(Stage::Returning(_)) => return self.handle_returning(party, request),
            Some(Stage::Attaching(_)) | None => return Err(NOT_ATTACHED.into()),
        }
        match request {
            Request::Listen { request, port, backlog, ring_bytes, kind } => {
                self.listen(client, request, Listen { port, backlog, ring_bytes, kind });
            }
            Request::Unlisten { port } => self.unlisten(client, port),
            Request::Accepted { port, connection } => self.accepted(client, port, connection),
            Request::Connect { request, to, ring_bytes, kind } => {
                self.connect(now, party, request, Connect { to, ring_bytes, kind }, supply);
            }
            Request::OpenOperations { request, ring_bytes } => self.open_operations(client, request, ring_bytes),
            Request::BindDatagram { request, port, ring_bytes } => self.bind(client, request, (port, ring_bytes)),
            Request::DatagramPath { request, to } => self.path(client, request, to),
            Request::CancelConnect { request } => {
                if !self.pairs.handle_cancel(client, request) {
                    self.command_all(client, ProgramCommand::CancelConnect { request });
                }
            }
            Request::NotTaken { what, .. } => self.not_taken(client, what)?,
            Request::PairClosed { connection } => {
                self.fallbacks.handle_closed(client, connection | RETURNED_ROW);
                self.pairs.handle_closed(client, connection);
            }
            Request::TcpOpened { number, local, peer } => {
                if !self.fallbacks.handle_opened(party, number, (local, peer))? {
                    let words =
                        format!("too many connections over kernel TCP: `raas ss` leaves the one with {peer} out");
                    self.actions.push_back(Action::Warn { client, words });
                }
            }
            Request::TcpClosed { number } => self.fallbacks.handle_closed(client, number),
            Request::MeetProof { request, proof } => self.meet_proof(client, request, proof, supply),
            Request::Unmeet { request } => self.unmeet(client, request),
            Request::Return { .. }
            | Request::ReturnChunk { .. }
            | Request::ReturnConnections { .. }
            | Request::ReturnPairs { .. }
            | Request::ReturnEnd => return Err("it brings a session along, and has one".into()),
            of_regions => return self.handle_region_request(now, party, of_regions),
        }
        Ok(None)
    }

    /// What it cannot take, for want of a descriptor, is used for nothing.
    fn not_taken(&mut self, client: ClientId, what: NotTaken) -> Result<(), String> {
        match what {
            // Numbers of chunks are the session's: one engine has it.
            NotTaken::Chunk { chunk } => self.command_all(client, ProgramCommand::ChunkNotTaken { chunk }),
            NotTaken::Direct { connection } => self.directs.handle_not_taken(client, connection)?,
            NotTaken::Pair { pair } => self.pairs.handle_pair_not_taken(client, pair)?,
            NotTaken::PairSegment { pair, index } => {
                self.pairs.handle_segment_not_taken(client, pair, index, SegmentLost::ByProgram)?;
            }
        }
        Ok(())
    }
}
