//! Ports and connections: what admission decides, carried out by pairs and engines.

use std::net::IpAddr;

use control::{Connection, Reason, Reply};
use verbs::Time;

use super::{Action, DATAGRAM_ENGINE, Daemon, Supply};
use crate::{
    Admitted, ClientId, Connect, ConnectRequest, Connecting, ConnectionOver, Listen, LocalConnect, PairAction, Party,
    ProgramCommand, SegmentLost,
};

/// What another host hears that is refused: the shares of this host's users and tenants are none of its own.
fn for_peer(reason: Reason) -> Reason {
    match reason {
        Reason::LocalLimit | Reason::UserConnections | Reason::TenantLimit => Reason::PeerLimit,
        other => other,
    }
}

impl<F, S> Daemon<F, S> {
    pub(super) fn listen(&mut self, client: ClientId, request: u64, listen: Listen) {
        let result = self.admission.listen(client, listen);
        self.reply(client, Reply::Listening { request, result });
    }

    pub(super) fn unlisten(&mut self, client: ClientId, port: u16) {
        if self.admission.unlisten(client, port) {
            self.command_all(client, ProgramCommand::Unlisten { port });
        }
    }

    pub(super) fn accepted(&mut self, client: ClientId, port: u16, connection: u64) {
        self.pairs.on_accepted(client, connection);
        if let Some(engine) = self.admission.accepted(client, port, connection) {
            self.command(engine, client, ProgramCommand::Accepted { port, connection });
        }
    }

    pub(super) fn connect(
        &mut self,
        now: Time,
        from: Party,
        request: u64,
        connect: Connect,
        supply: &mut dyn Supply<F>,
    ) {
        let kind = connect.kind;
        match self.admission.connect(from.client, connect, |peer| self.peers.lanes_to(peer)) {
            Ok(Connecting::ThroughLane { engine, to, local, ring_bytes, connection }) => {
                let command = ProgramCommand::Connect { request, connection, to, local, ring_bytes, kind };
                self.command(engine, from.client, command);
            }
            Ok(Connecting::Here { to, port, ring_bytes, connection }) => {
                let Some(listener) = self.party(to) else {
                    self.admission.accepted(to, port, connection);
                    return self.refuse(from.client, request, Reason::PeerAppDied);
                };
                let connect = LocalConnect { from, to: listener, request, port, ring_bytes, connection };
                self.pairs.handle_connect(now, connect, || supply.wake());
            }
            Err(reason) => self.refuse(from.client, request, reason),
        }
    }

    /// Refuses a connect, or a bind.
    fn refuse(&mut self, client: ClientId, request: u64, reason: Reason) {
        self.reply(client, Reply::Connected { request, result: Err(reason) });
    }

    pub(super) fn bind(&mut self, client: ClientId, request: u64, (port, ring_bytes): (u16, u32)) {
        match self.admission.bind(client, port) {
            Ok(socket) => {
                self.command(DATAGRAM_ENGINE, client, ProgramCommand::Bind { request, socket, port, ring_bytes });
            }
            Err(reason) => self.refuse(client, request, reason),
        }
    }

    /// An operation queue counts as a socket. It is in the engine that has the regions.
    pub(super) fn open_operations(&mut self, client: ClientId, request: u64, ring_bytes: u32) {
        match self.admission.bind(client, 0) {
            Ok(queue) => {
                self.command(DATAGRAM_ENGINE, client, ProgramCommand::OpenOperations { request, queue, ring_bytes });
            }
            Err(reason) => self.refuse(client, request, reason),
        }
    }

    pub(super) fn path(&mut self, client: ClientId, request: u64, to: IpAddr) {
        self.command(DATAGRAM_ENGINE, client, ProgramCommand::Path { request, to });
    }

    // ---- segments of pairs

    /// Whether a segment of a pair that a program made, with so many slots and bytes of each ring, is one that was asked
    /// for. An error is what the program did wrong.
    pub fn expects_segment(&self, client: ClientId, pair: u64, index: u32, shape: (u32, u32)) -> Result<bool, String> {
        self.pairs.expects(client, pair, index, shape)
    }

    /// The segment, checked.
    pub fn handle_segment(&mut self, pair: u64, index: u32, fd: F, view: shm::Pair) {
        self.pairs.handle_segment(pair, index, fd, view);
    }

    /// The daemon had no descriptor for the segment: not the program's fault.
    pub fn on_segment_lost(&mut self, client: ClientId, pair: u64, index: u32) {
        // One that was not asked for is refused when it comes whole.
        let _ = self.pairs.handle_segment_not_taken(client, pair, index, SegmentLost::ByDaemon);
    }

    pub(super) fn on_pair_action(&mut self, action: PairAction<F>) {
        match action {
            PairAction::Send { client, reply, fds } => self.actions.push_back(Action::Reply { client, reply, fds }),
            PairAction::Started { to, incoming, from, connected } => {
                self.actions.push_back(Action::Started { to, incoming, from, connected });
            }
            PairAction::Return { client, port, connection } => {
                self.admission.accepted(client, port, connection);
            }
        }
    }

    // ---- what engines say

    /// Another host asks for a connection. The driver tells the engine the answer.
    pub fn on_connect_request(&mut self, asked: &ConnectRequest) -> Result<Admitted, Reason> {
        let admitted = self.admission.handle_connect_request(asked).map_err(for_peer)?;
        if self.is_attached(admitted.client) {
            return Ok(admitted);
        }
        let &ConnectRequest { engine, from: peer, to_port, .. } = asked;
        let over = ConnectionOver { engine, connection: admitted.connection, peer, port: Some(to_port) };
        self.admission.on_connection_over(admitted.client, over);
        Err(Reason::NoListener)
    }

    /// An engine's answer to a connect, a bind, or a wish for an operation queue.
    pub fn on_connected(&mut self, client: ClientId, request: u64, result: Result<Connection, Reason>) {
        let result = result.map(|connection| self.sealed(client, connection));
        self.reply(client, Reply::Connected { request, result });
    }

    /// An engine has a connection for a listener of a program.
    pub fn on_incoming(&mut self, client: ClientId, port: u16, connection: Connection) {
        let connection = self.sealed(client, connection);
        self.reply(client, Reply::Incoming { port, connection });
    }

    /// A connection between hosts is over at an engine. `client`: none of a program that the driver does not know.
    pub fn on_connection_over(&mut self, client: Option<ClientId>, over: ConnectionOver) {
        self.directs.handle_over(over.connection);
        if let Some(client) = client {
            self.admission.on_connection_over(client, over);
        }
    }

    /// A datagram socket or an operation queue is over.
    pub fn on_socket_over(&mut self, client: ClientId) {
        self.admission.on_socket_over(client);
    }

    /// An engine has nothing of a program any more, or did not take it in.
    pub fn on_program_gone(&mut self, client: ClientId, engine: u32) {
        self.admission.on_program_gone(client, engine);
    }

    /// Whether anything of a program is left at an engine.
    pub fn knows(&self, client: ClientId) -> bool {
        self.admission.knows(client)
    }
}
