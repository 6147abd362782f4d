//! The control plane's part in ports and connections: the shipped `plane::Admission`, driven as the daemon drives it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use control::{Kind, LaneTicket, Reason};
use engine::{Admission as Granted, AppId, DatagramBind, Dial, EngineConfig, Event, OpenId};
use plane::{
    Admission, AdmissionConfig, ClientId, Connect, ConnectRequest, Connecting, ConnectionOver, Listen, ProgramFacts,
};
use verbs::Time;

use super::{Host, QUEUE_NUMBERS};

/// What tests change of a host.
#[derive(Debug)]
pub(crate) struct HostConfig {
    pub(crate) engine: EngineConfig,
    pub(crate) admission: AdmissionConfig,
}

impl HostConfig {
    pub(super) fn new(addr: IpAddr, owner_uid: u32) -> Self {
        let admission = AdmissionConfig { owner_uid, ..AdmissionConfig::new(vec![addr]) };
        Self { engine: EngineConfig { owner_uid, ..EngineConfig::new(vec![addr]) }, admission }
    }

    pub(crate) fn lanes_max(&mut self, max: u32) {
        (self.engine.lanes_max, self.admission.lanes_max) = (max, max);
    }

    pub(crate) fn ring_bytes_max(&mut self, max: u32) {
        (self.engine.ring_bytes_max, self.admission.ring_bytes_max) = (max, max);
    }

    pub(crate) fn connections_max(&mut self, max: u32) {
        (self.engine.connections_max, self.admission.connections_max) = (max, max);
    }
}

/// A connect to a listener of the same host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) from: AppId,
    pub(crate) request: u64,
    pub(crate) to: AppId,
    pub(crate) port: u16,
    pub(crate) ring_bytes: u32,
    pub(crate) connection: u64,
}

/// A host's programs as the control plane knows them.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) admission: Admission,
    clients: BTreeMap<AppId, ClientId>,
    next_client: u64,
    /// Numbers that the engine has and did not give back.
    numbers: BTreeMap<u64, AppId>,
}

impl Desk {
    pub(crate) fn new(config: AdmissionConfig) -> Self {
        let admission = Admission::new(config, 0).unwrap();
        Self { admission, clients: BTreeMap::new(), next_client: 1, numbers: BTreeMap::new() }
    }

    /// Before the engine takes a program in.
    pub(crate) fn attach(&mut self, uid: u32) -> ClientId {
        let client = ClientId(self.next_client);
        self.next_client += 1;
        self.admission.attach(client, ProgramFacts { uid, ..ProgramFacts::default() }).unwrap();
        client
    }

    pub(crate) fn on_attached(&mut self, client: ClientId, app: AppId) {
        self.clients.insert(app, client);
    }

    fn app(&self, client: ClientId) -> AppId {
        self.clients.iter().find(|(_, c)| **c == client).map(|(app, _)| *app).unwrap()
    }

    pub(crate) fn listen(&mut self, app: AppId, listen: Listen) -> Result<SocketAddr, Reason> {
        self.admission.listen(self.clients.get(&app).copied().unwrap_or(ClientId(0)), listen)
    }

    pub(crate) fn left(&mut self, app: AppId) {
        self.admission.handle_left(self.clients[&app]);
    }

    /// A program brings a connection along.
    pub(crate) fn adopt(&mut self, app: AppId, ticket: &LaneTicket) {
        self.admission.begin_after(ticket.id);
        self.admission.adopt(self.clients[&app], ticket.peer.ip(), 0, ticket.is_outgoing).unwrap();
        self.numbers.insert(ticket.id, app);
    }

    /// Answers an engine's question.
    pub(crate) fn on_connect_request(&mut self, asked: &ConnectRequest) -> Result<Granted, Reason> {
        let admitted = self.admission.handle_connect_request(asked)?;
        let (app, connection) = (self.app(admitted.client), admitted.connection);
        self.numbers.insert(connection, app);
        let (ring_bytes, kind) = (admitted.ring_bytes, admitted.kind);
        Ok(Granted { app, connection, ring_bytes, kind, from: asked.from, port: asked.to_port })
    }

    pub(crate) fn on_connection_over(&mut self, app: AppId, over: ConnectionOver) {
        assert_eq!(self.numbers.remove(&over.connection), Some(app), "{over:?} is over twice, or never was");
        self.admission.on_connection_over(self.clients[&app], over);
    }

    pub(crate) fn on_socket_over(&mut self, app: AppId, socket: u64) {
        assert_eq!(self.numbers.remove(&socket), Some(app), "socket {socket} is over twice, or never was");
        self.admission.on_socket_over(self.clients[&app]);
    }

    pub(crate) fn on_app_gone(&mut self, app: AppId) {
        self.admission.on_program_gone(self.clients[&app], 0);
    }

    /// What the engine holds, as far as the control plane knows.
    pub(crate) fn numbers(&self) -> usize {
        self.numbers.len()
    }
}

impl Host {
    pub(crate) fn listen(
        &mut self,
        app: AppId,
        port: u16,
        backlog: u32,
        ring_bytes: u32,
    ) -> Result<SocketAddr, Reason> {
        self.desk.listen(app, Listen { port, backlog, ring_bytes, kind: Kind::Stream })
    }

    pub(crate) fn unlisten(&mut self, now: Time, app: AppId, port: u16) {
        if self.desk.admission.unlisten(self.desk.clients[&app], port) {
            self.engine.unlisten(now, &mut self.nic, app, port);
        }
    }

    pub(crate) fn accepted(&mut self, app: AppId, port: u16, connection: u64) {
        if self.desk.admission.accepted(self.desk.clients[&app], port, connection).is_some() {
            self.engine.accepted(app, port, connection);
        }
    }

    pub(super) fn connect(&mut self, now: Time, app: AppId, request: u64, connect: Connect) {
        match self.desk.admission.connect(self.desk.clients[&app], connect, |_| None) {
            Ok(Connecting::ThroughLane { to, local, ring_bytes, connection, .. }) => {
                self.desk.numbers.insert(connection, app);
                let dial = Dial { connection, to, local, ring_bytes, kind: connect.kind };
                self.engine.connect(now, &mut self.nic, app, request, dial);
            }
            Ok(Connecting::Here { to, port, ring_bytes, connection }) => {
                let to = self.desk.app(to);
                self.locals.push(Local { from: app, request, to, port, ring_bytes, connection });
            }
            Err(reason) => self.answer(app, request, Err(reason)),
        }
    }

    pub(crate) fn bind(&mut self, app: AppId, request: u64, port: u16, ring_bytes: u32) {
        match self.desk.admission.bind(self.desk.clients[&app], port) {
            Ok(socket) => {
                self.desk.numbers.insert(socket, app);
                let bind = DatagramBind { socket, port, ring_bytes };
                self.engine.bind_datagram(app, request, bind);
            }
            Err(reason) => self.answer(app, request, Err(reason)),
        }
    }

    fn answer(&mut self, app: AppId, request: u64, answer: Result<u32, Reason>) {
        let Some(sim) = self.apps.get_mut(&app) else { return };
        assert!(sim.answers.insert(request, answer).is_none(), "request {request} was answered twice");
    }

    /// Takes what the engine says of ports and connections; anything else is given back.
    pub(super) fn on_admission_event(&mut self, now: Time, event: Event) -> Option<Event> {
        match event {
            Event::ConnectRequest { open, from, to_port, kind, ring_bytes } => {
                self.on_connect_request(now, open, &ConnectRequest { engine: 0, from, to_port, kind, ring_bytes });
            }
            Event::ConnectionOver { app, connection, peer, port } => {
                self.desk.on_connection_over(app, ConnectionOver { engine: 0, connection, peer, port });
            }
            Event::SocketOver { socket, .. } if socket >= QUEUE_NUMBERS => self.queues_over.push(socket),
            Event::SocketOver { app, socket } => self.desk.on_socket_over(app, socket),
            Event::AppGone { app } => {
                self.desk.on_app_gone(app);
                self.gone.push(app);
            }
            Event::TakenBack { .. } => {}
            other => return Some(other),
        }
        None
    }

    fn on_connect_request(&mut self, now: Time, open: OpenId, asked: &ConnectRequest) {
        let answer = self.desk.on_connect_request(asked);
        self.engine.admit(now, &mut self.nic, open, answer);
    }
}
