//! Requests for ports and connections: what `plane::Admission` decides, carried out by pairs and engines.

use control::{Reason, Reply};
use engine::{Admission, AppId, DatagramBind, Dial, OpenId, OperationsOpen};
use plane::{Admitted, ClientId, Connect, ConnectRequest, Connecting, ConnectionOver, Listen, LocalConnect, Party};
use shm::WakeSocket;

use super::{DATAGRAM_ENGINE, Hub};
use crate::command::Command;

impl Hub {
    pub(super) fn on_listen(&mut self, client: ClientId, request: u64, listen: Listen) {
        let result = self.admission.listen(client, listen);
        self.send(client, Reply::Listening { request, result }, Vec::new());
    }

    pub(super) fn on_unlisten(&mut self, client: ClientId, port: u16) {
        if self.admission.unlisten(client, port) {
            self.command_all_of(client, |app| Command::Unlisten { app, port });
        }
    }

    pub(super) fn on_accepted(&mut self, client: ClientId, port: u16, connection: u64) {
        self.pairs.on_accepted(client, connection);
        if let Some(engine) = self.admission.accepted(client, port, connection) {
            self.command_of(client, engine, |app| Command::Accepted { app, port, connection });
        }
    }

    pub(super) fn on_connect(&mut self, from: Party, request: u64, connect: Connect) {
        match self.admission.connect(from.client, connect, |peer| self.peers.lanes_to(peer)) {
            Ok(Connecting::ThroughLane { engine, to, local, ring_bytes, connection }) => {
                let dial = Dial { connection, to, local, ring_bytes, kind: connect.kind };
                self.command_of(from.client, engine, |app| Command::Connect { app, request, dial });
            }
            Ok(Connecting::Here { to, port, ring_bytes, connection }) => {
                let Some(listener) =
                    self.clients.get(&to).map(|c| Party { client: to, pid: c.who.pid, uid: c.who.uid })
                else {
                    self.admission.accepted(to, port, connection);
                    return self.refuse_connect(from.client, request, Reason::PeerAppDied);
                };
                let wake = || {
                    let made = WakeSocket::pair().map(|(a, b)| (a.into_fd().into(), b.into_fd().into()));
                    made.inspect_err(|error| tracing::warn!(%error, "no wake socket for two processes")).ok()
                };
                let connect = LocalConnect { from, to: listener, request, port, ring_bytes, connection };
                self.pairs.handle_connect(self.link_context.now(), connect, wake);
            }
            Err(reason) => self.refuse_connect(from.client, request, reason),
        }
    }

    /// Refuses a connect, or a bind of a datagram socket.
    fn refuse_connect(&mut self, client: ClientId, request: u64, reason: Reason) {
        self.send(client, Reply::Connected { request, result: Err(reason) }, Vec::new());
    }

    pub(super) fn on_bind(&mut self, client: ClientId, request: u64, (port, ring_bytes): (u16, u32)) {
        match self.admission.bind(client, port) {
            Ok(socket) => {
                let bind = DatagramBind { socket, port, ring_bytes };
                self.command_of(client, DATAGRAM_ENGINE, |app| Command::BindDatagram { app, request, bind });
            }
            Err(reason) => self.refuse_connect(client, request, reason),
        }
    }

    /// An operation queue counts as a socket. It is in the engine that has the regions.
    pub(super) fn on_open_operations(&mut self, client: ClientId, request: u64, ring_bytes: u32) {
        match self.admission.bind(client, 0) {
            Ok(queue) => {
                let open = OperationsOpen { queue, ring_bytes };
                self.command_of(client, DATAGRAM_ENGINE, |app| Command::OpenOperations { app, request, open });
            }
            Err(reason) => self.refuse_connect(client, request, reason),
        }
    }

    // ---- what the engine says

    /// Another host asks for a connection.
    pub(super) fn on_connect_request(&mut self, open: OpenId, asked: &ConnectRequest) {
        let &ConnectRequest { engine, from, to_port: port, .. } = asked;
        let answer = self.admission.handle_connect_request(asked).and_then(|admitted| {
            let Admitted { client, connection, ring_bytes, kind } = admitted;
            match self.app_of(client, engine) {
                Some(app) => Ok(Admission { app, connection, ring_bytes, kind, from, port }),
                None => {
                    let over = ConnectionOver { engine, connection, peer: from, port: Some(port) };
                    self.admission.on_connection_over(client, over);
                    Err(Reason::NoListener)
                }
            }
        });
        self.command(engine, Command::Admit { open, answer });
    }

    pub(super) fn on_connection_over(&mut self, app: AppId, over: ConnectionOver) {
        self.directs.handle_over(over.connection);
        if let Some(client) = self.names.program(over.engine, app) {
            self.admission.on_connection_over(client, over);
            self.forget_names(client);
        }
    }

    pub(super) fn on_socket_over(&mut self, engine: u32, app: AppId) {
        if let Some(client) = self.names.program(engine, app) {
            self.admission.on_socket_over(client);
            self.forget_names(client);
        }
    }

    /// An engine has nothing of a program any more.
    pub(super) fn on_app_gone(&mut self, engine: u32, app: AppId) {
        tracing::debug!(?app, engine, "nothing of a detached program is in use any more");
        if let Some(client) = self.names.program(engine, app) {
            self.admission.on_program_gone(client, engine);
            self.forget_names(client);
        }
    }

    /// Forgets the engines' names of a program of which nothing is left.
    pub(super) fn forget_names(&mut self, client: ClientId) {
        if !self.admission.knows(client) {
            self.names.forget(client);
        }
    }
}
