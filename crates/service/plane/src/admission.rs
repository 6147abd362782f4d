//! What programs may have of a host: ports and backlogs, numbers of connections, and each user's share of all tables.
//!
//! Decides whether a program may attach, listen, connect or bind, and whether a connection of another host finds a
//! listener and a place; no I/O. Each decision is made here once, whatever number of engines carries it out. It must
//! never count a connection twice, and must give each place back when the engine says that nothing of it is in use.
//!
//! Every connection through a lane, and every datagram socket, gets its number here. The engine that got the number
//! says once that it is over ([`Admission::on_connection_over`], [`Admission::on_socket_over`]), whatever became of it.

mod config;
mod listeners;
mod question;
mod spread;
mod tenants;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use control::{Kind, Reason};

use crate::ClientId;
use crate::policy::{Policy, ProgramFacts};
use listeners::{Came, Ephemeral, Listener, Listeners};
use spread::Spread;
use users::{Far, Users};

pub use config::{AdmissionConfig, AdmissionConfigError};
pub use question::{Admitted, Connect, ConnectRequest, Connecting, ConnectionOver, Listen};
pub use spread::SpreadBy;
pub use tenants::TenantUse;

/// What a program holds.
#[derive(Debug)]
struct Program {
    uid: u32,
    facts: ProgramFacts,
    /// The place of its tenant in the policy.
    tenant: usize,
    /// Connections through lanes, and what waits to become one.
    connections: u32,
    /// Datagram sockets, and binds that wait.
    sockets: u32,
    listeners: BTreeSet<u16>,
    spread: Spread,
    /// It asks for nothing more.
    has_left: bool,
    /// Engines that have something of it beside connections that were admitted and did not arrive there: a bit each.
    engines: u32,
}

/// Counts of decisions, for `raas stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdmissionCounters {
    /// Connects to listeners of this host.
    pub connects_local: u64,
    /// Connects that were refused.
    pub connects_refused: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Admission {
    config: AdmissionConfig,
    policy: Policy,
    programs: BTreeMap<ClientId, Program>,
    listeners: Listeners,
    ports: Ephemeral,
    users: Users,
    /// Connections through lanes, and what waits to become one, of all programs.
    connections: u32,
    /// The same by engine.
    load: Vec<u32>,
    /// Number of the last connection or socket.
    last: u64,
    counters: AdmissionCounters,
}

impl Admission {
    /// Nothing is taken yet. `any` is where ports that nobody chose begin: randomness, in production.
    pub fn new(mut config: AdmissionConfig, any: u16) -> Result<Self, AdmissionConfigError> {
        config.check()?;
        config.addresses.iter_mut().for_each(|a| *a = a.to_canonical());
        Ok(Self {
            users: Users::new(&config),
            policy: Policy::default(),
            programs: BTreeMap::new(),
            listeners: Listeners::default(),
            ports: Ephemeral::new(any),
            connections: 0,
            load: vec![0; config.engines as usize],
            last: 0,
            counters: AdmissionCounters::default(),
            config,
        })
    }

    // ---- programs

    /// Takes a program in. [`Reason::LocalLimit`] if there are as many as there may be, [`Reason::UserPrograms`] if the
    /// user's share is taken, [`Reason::TenantLimit`] if the tenant's is.
    pub fn attach(&mut self, client: ClientId, facts: ProgramFacts) -> Result<(), Reason> {
        let (uid, tenant) = (facts.uid, self.policy.place_of(&facts));
        if self.programs.len() as u64 >= u64::from(self.config.apps_max) {
            return Err(Reason::LocalLimit);
        }
        self.users.check_app(uid)?;
        self.check_tenant_program(tenant)?;
        let program = Program {
            uid,
            facts,
            tenant,
            connections: 0,
            sockets: 0,
            listeners: BTreeSet::new(),
            spread: Spread::default(),
            has_left: false,
            engines: (1 << self.config.engines) - 1,
        };
        if self.programs.insert(client, program).is_none() {
            self.users.add_app(uid);
        }
        Ok(())
    }

    /// A program has left, or was detached: its ports are free. The engine ends what waits there with everything else
    /// of the program.
    pub fn handle_left(&mut self, client: ClientId) {
        let Some(program) = self.programs.get_mut(&client) else { return };
        program.has_left = true;
        let uid = program.uid;
        for port in std::mem::take(&mut program.listeners) {
            if self.listeners.remove_of(client, port).is_some() {
                self.users.drop_listener(uid);
            }
        }
    }

    /// An engine has nothing of a program any more, or did not take it in. The program is forgotten when all engines have
    /// said so.
    pub fn on_program_gone(&mut self, client: ClientId, engine: u32) {
        self.handle_left(client);
        if let Some(program) = self.programs.get_mut(&client) {
            program.engines &= !(1_u32.checked_shl(engine).unwrap_or(0));
        }
        self.forget_if_gone(client);
    }

    /// No engine was asked to take a program in.
    pub fn on_not_attached(&mut self, client: ClientId) {
        (0..self.config.engines).for_each(|engine| self.on_program_gone(client, engine));
    }

    /// Whether a program, or a connection of it, holds anything still.
    pub fn knows(&self, client: ClientId) -> bool {
        self.programs.contains_key(&client)
    }

    fn forget_if_gone(&mut self, client: ClientId) {
        let over = |p: &Program| p.engines == 0 && p.connections == 0 && p.sockets == 0;
        if self.programs.get(&client).is_some_and(over)
            && let Some(program) = self.programs.remove(&client)
        {
            self.users.drop_app(program.uid);
        }
    }

    /// A program that may ask for something.
    fn here(&self, client: ClientId) -> Result<&Program, Reason> {
        self.programs.get(&client).filter(|p| !p.has_left).ok_or(Reason::AppFault)
    }

    /// The first number that is given is the one behind this: what outlived a daemon before this one has lower ones.
    pub fn begin_after(&mut self, number: u64) {
        self.last = self.last.max(number);
    }

    /// A number for a connection or socket of this host: no two have the same.
    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    // ---- listeners

    /// Listens on a port.
    pub fn listen(&mut self, client: ClientId, listen: Listen) -> Result<SocketAddr, Reason> {
        let Listen { port, backlog, ring_bytes, kind } = listen;
        let uid = self.here(client)?.uid;
        if self.listeners.len() as u64 >= u64::from(self.config.listeners_max) {
            return Err(Reason::LocalLimit);
        }
        self.users.check_listener(uid)?;
        self.check_tenant_listener(client)?;
        let port = match port {
            0 => self.free_port(client)?,
            port => port,
        };
        self.check_port(client, port)?;
        if self.listeners.is_taken(port) {
            return Err(Reason::PortInUse);
        }
        let ring_bytes = self.config.listener_ring_bytes(ring_bytes);
        let backlog = backlog.clamp(1, self.config.backlog_max);
        self.listeners.insert(port, Listener::new(client, backlog, ring_bytes, kind));
        self.users.add_listener(uid);
        if let Some(program) = self.programs.get_mut(&client) {
            program.listeners.insert(port);
        }
        Ok(SocketAddr::new(self.config.local_address(), port))
    }

    /// Stops listening. True: the engines must end what waits there.
    pub fn unlisten(&mut self, client: ClientId, port: u16) -> bool {
        let Some(listener) = self.listeners.remove_of(client, port) else { return false };
        if let Some(program) = self.programs.get_mut(&client) {
            program.listeners.remove(&port);
            self.users.drop_listener(program.uid);
        }
        listener.has_of_lanes()
    }

    /// A connection left the backlog: the program took it, or it will not come. The engine that has it, which must be
    /// told; `None` if none has.
    pub fn accepted(&mut self, client: ClientId, port: u16, connection: u64) -> Option<u32> {
        match self.listeners.of(client, port)?.give_up_place(connection)? {
            Came::ThroughLane(engine) => Some(engine),
            Came::FromHere => None,
        }
    }

    // ---- connections

    /// A program connects. `lanes` says how many lanes there are to another host, as far as that is known
    /// ([`crate::Peers`]): until it is, engine 0 carries the connections, which every host has.
    pub fn connect(
        &mut self,
        client: ClientId,
        connect: Connect,
        lanes: impl FnOnce(IpAddr) -> Option<u32>,
    ) -> Result<Connecting, Reason> {
        let result = self.try_connect(client, connect, lanes);
        match result {
            Ok(Connecting::Here { .. }) => self.counters.connects_local += 1,
            Ok(Connecting::ThroughLane { .. }) => {}
            Err(_) => self.counters.connects_refused += 1,
        }
        result
    }

    fn try_connect(
        &mut self,
        client: ClientId,
        connect: Connect,
        lanes: impl FnOnce(IpAddr) -> Option<u32>,
    ) -> Result<Connecting, Reason> {
        let Connect { to, ring_bytes, kind } = connect;
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        self.here(client)?;
        if to.port() == 0 || to.ip().is_unspecified() || to.ip().is_multicast() || is_broadcast(to.ip()) {
            return Err(Reason::BadAddress);
        }
        self.check_connect(client, to.ip())?;
        if self.config.addresses.contains(&to.ip()) {
            let asked = self.config.local_ring_bytes(ring_bytes);
            return self.connect_here(to.port(), asked, kind);
        }
        let lanes = lanes(to.ip()).unwrap_or(1).min(self.config.engines);
        let engine = self.choose_engine(client, to.ip(), lanes);
        let far = Far { host: to.ip(), engine, is_outgoing: true };
        self.take_connection(client, far)?;
        Ok(Connecting::ThroughLane {
            engine,
            to,
            local: SocketAddr::new(self.config.local_address(), self.ports.next_port()),
            ring_bytes,
            connection: self.next_number(),
        })
    }

    fn connect_here(&mut self, port: u16, asked: u32, kind: Kind) -> Result<Connecting, Reason> {
        let connection = self.last + 1;
        let listener = self.listeners.get_mut(port).ok_or(Reason::NoListener)?;
        listener.check(kind.code())?;
        listener.take_place(connection, Came::FromHere);
        let (to, ring_bytes) = (listener.client(), listener.ring_bytes_for(asked));
        self.last = connection;
        Ok(Connecting::Here { to, port, ring_bytes, connection })
    }

    /// Another host asks for a connection.
    pub fn handle_connect_request(&mut self, asked: &ConnectRequest) -> Result<Admitted, Reason> {
        let &ConnectRequest { engine, from, to_port, kind, ring_bytes } = asked;
        let ring_bytes_max = self.config.ring_bytes_max;
        let listener = self.listeners.get_mut(to_port).ok_or(Reason::NoListener)?;
        listener.check(kind)?;
        let (client, kind) = (listener.client(), listener.kind());
        let ring_bytes = listener.ring_bytes_for(ring_bytes).min(ring_bytes_max);
        self.take_connection(client, Far { host: from, engine, is_outgoing: false })?;
        let connection = self.next_number();
        if let Some(listener) = self.listeners.get_mut(to_port) {
            listener.take_place(connection, Came::ThroughLane(engine));
        }
        Ok(Admitted { client, connection, ring_bytes, kind })
    }

    /// Counts one more connection of a program, if it may have it.
    fn take_connection(&mut self, client: ClientId, far: Far) -> Result<(), Reason> {
        let program = self.programs.get(&client).filter(|p| !p.has_left).ok_or(Reason::NoListener)?;
        let is_full = self.connections >= self.config.connections_max;
        if is_full || program.connections >= self.config.connections_per_app_max {
            return Err(Reason::LocalLimit);
        }
        let uid = program.uid;
        self.users.check_connection(uid)?;
        self.check_tenant_connection(client)?;
        if far.is_outgoing {
            self.users.check_host(uid, far.host)?;
        }
        if let Some(program) = self.programs.get_mut(&client) {
            program.connections += 1;
            if self.config.engines > 1 {
                program.spread.add(far.host, far.engine);
            }
        }
        self.connections += 1;
        if let Some(load) = self.load.get_mut(far.engine as usize) {
            *load += 1;
        }
        self.users.add_connection(uid, far);
        Ok(())
    }

    /// A program brings a connection along that a daemon before this one admitted: it counts as any other.
    pub fn adopt(&mut self, client: ClientId, host: IpAddr, engine: u32, is_outgoing: bool) -> Result<(), Reason> {
        self.take_connection(client, Far { host, engine, is_outgoing })
    }

    /// The engine says of a connection that had a number that nothing of it is in use.
    pub fn on_connection_over(&mut self, client: ClientId, over: ConnectionOver) {
        let ConnectionOver { engine, connection, peer, port } = over;
        if let Some(port) = port {
            self.accepted(client, port, connection);
        }
        let Some(program) = self.programs.get_mut(&client) else { return };
        program.connections = program.connections.saturating_sub(1);
        if self.config.engines > 1 {
            program.spread.drop(peer, engine);
        }
        self.connections = self.connections.saturating_sub(1);
        if let Some(load) = self.load.get_mut(engine as usize) {
            *load = load.saturating_sub(1);
        }
        self.users.drop_connection(program.uid, Far { host: peer, engine, is_outgoing: port.is_none() });
        self.forget_if_gone(client);
    }

    // ---- datagram sockets

    /// A program binds a datagram socket at a port, 0 for any, and gets a number for it. It counts as a listener in its
    /// user's share. The engine that has the port space of datagrams decides whether the port is free.
    pub fn bind(&mut self, client: ClientId, port: u16) -> Result<u64, Reason> {
        self.adopt_socket(client, port)?;
        Ok(self.next_number())
    }

    /// A program brings a datagram socket along that a daemon before this one admitted: it counts as any other, and is
    /// refused where its program could not bind it now.
    pub fn adopt_socket(&mut self, client: ClientId, port: u16) -> Result<(), Reason> {
        let program = self.here(client)?;
        if program.connections.saturating_add(program.sockets) >= self.config.connections_per_app_max {
            return Err(Reason::LocalLimit);
        }
        let uid = program.uid;
        self.users.check_listener(uid)?;
        self.check_tenant_listener(client)?;
        self.check_port(client, port)?;
        self.users.add_listener(uid);
        if let Some(program) = self.programs.get_mut(&client) {
            program.sockets += 1;
        }
        Ok(())
    }

    /// The engine says of a socket that had a number that nothing of it is in use.
    pub fn on_socket_over(&mut self, client: ClientId) {
        let Some(program) = self.programs.get_mut(&client) else { return };
        program.sockets = program.sockets.saturating_sub(1);
        self.users.drop_listener(program.uid);
        self.forget_if_gone(client);
    }

    // ---- looking

    /// Connections of a user with a host through an engine, and what waits to become one.
    pub fn connections_with(&self, uid: u32, host: IpAddr, engine: u32) -> u32 {
        self.users.connections_with(uid, host, engine)
    }

    /// The same of all users with all hosts, by engine.
    pub fn load(&self) -> &[u32] {
        &self.load
    }

    /// Connections through lanes that are counted, of all programs.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Counts of decisions.
    pub fn counters(&self) -> AdmissionCounters {
        self.counters
    }
}

fn is_broadcast(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(v4) if v4.is_broadcast())
}

#[cfg(test)]
mod tests;
