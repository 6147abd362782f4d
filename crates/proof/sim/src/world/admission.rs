//! Ports and connections: the shipped `plane::Admission`, and how its decisions come to processes and engines.

use control::{Kind, Reason};
use engine::{Admission, AppId, DatagramBind, Dial, OpenId};
use plane::{Admitted, ClientId, Connect, ConnectRequest, Connecting, ConnectionOver, Listen};

use super::{Event, World};
use crate::address::At;
use crate::app::{Reply, Request};
use crate::check::AppUid;
use crate::links::Input;

impl World {
    /// A request for a port or a connection. Requests come to control plane and engine in one step: nothing comes
    /// between the two in the daemon either.
    pub(super) fn on_admission_request(&mut self, host: usize, uid: AppUid, request: Request) {
        let now = self.now;
        let Some(running) = self.up(host) else { return };
        let client = ClientId(uid.into());
        let admission = &mut running.control.admission;
        match request {
            Request::Listen { port, backlog, ring_bytes } => {
                let listen = Listen { port, backlog, ring_bytes, kind: Kind::Stream };
                let result = admission.listen(client, listen).map(drop);
                if result.is_ok() {
                    self.checks.causes.on_listening(now, uid, (host, port), backlog);
                }
                self.reply_to(host, uid, Reply::Listening { port, result });
            }
            Request::Unlisten { port } => {
                if admission.unlisten(client, port) {
                    let known = running.engines.iter_mut().filter_map(|d| Some((d.id_of(uid)?, d)));
                    known.for_each(|(app, d)| d.engine.unlisten(now, &mut d.tap, app, port));
                }
                self.checks.causes.on_unlistened(now, host, port);
            }
            Request::Accepted { port, connection } => {
                let engine = admission.accepted(client, port, connection);
                if let Some(d) = engine.and_then(|engine| running.engine(engine))
                    && let Some(app) = d.id_of(uid)
                {
                    d.engine.accepted(app, port, connection);
                }
            }
            Request::Connect { request, to, ring_bytes } => {
                let connect = Connect { to, ring_bytes, kind: Kind::Stream };
                match admission.connect(client, connect, |peer| running.control.peers.lanes_to(peer)) {
                    Ok(Connecting::ThroughLane { engine, to, local, ring_bytes, connection }) => {
                        running.control.numbers.insert(connection);
                        let dial = Dial { connection, to, local, ring_bytes, kind: Kind::Stream };
                        if let Some(d) = running.engine(engine)
                            && let Some(app) = d.id_of(uid)
                        {
                            d.engine.connect(now, &mut d.tap, app, request, dial);
                        }
                    }
                    Ok(Connecting::Here { to, port, ring_bytes, connection }) => {
                        self.on_local_connect(host, client, to, (request, port, ring_bytes, connection));
                    }
                    Err(reason) => self.refuse_connect(host, uid, request, reason),
                }
            }
            Request::Bind { request, port, ring_bytes } => match admission.bind(client, port) {
                Ok(socket) => {
                    running.control.numbers.insert(socket);
                    let bind = DatagramBind { socket, port, ring_bytes };
                    // The first engine has the datagrams.
                    if let Some(d) = running.engine(0)
                        && let Some(app) = d.id_of(uid)
                    {
                        d.engine.bind_datagram(app, request, bind);
                    }
                }
                Err(reason) => self.refuse_connect(host, uid, request, reason),
            },
            Request::Cancel { .. } | Request::Path { .. } | Request::Bye => {}
        }
    }

    /// The control plane refuses a connect, or a bind.
    fn refuse_connect(&mut self, host: usize, uid: AppUid, request: u64, reason: Reason) {
        self.trace.note(self.now, "connect {} of {} is refused, {}", &[request, uid.into(), reason.code().into()]);
        self.reply_to(host, uid, Reply::Connected { request, result: Err(reason) });
    }

    /// The control plane hears of the engine that another host asks for a connection. The engine gets the answer before
    /// anything that the control plane decides later.
    pub(super) fn on_connect_request(&mut self, host: usize, open: OpenId, asked: &ConnectRequest) {
        let &ConnectRequest { engine, from, to_port: port, .. } = asked;
        let Some(running) = self.up(host) else { return };
        let control = &mut running.control;
        let answer = control.admission.handle_connect_request(asked).map(|admitted| {
            let Admitted { client, connection, ring_bytes, kind } = admitted;
            let app =
                control.names.iter().find(|((at, _), c)| *at == engine && **c == client).map(|((_, app), _)| *app);
            control.numbers.insert(connection);
            let app = app.expect("a program that listens is the engine's");
            Admission { app, connection, ring_bytes, kind, from, port }
        });
        let life = self.life(host);
        self.on_admit(At { host, engine }, life, open, answer);
    }

    pub(super) fn on_admit(&mut self, at: At, life: u32, open: OpenId, answer: Result<Admission, Reason>) {
        if let Some(until) = self.paused(at.host) {
            return self.queue.push(until, Event::Admit { at, life, open, answer: Box::new(answer) });
        }
        let now = self.now;
        let Some(driven) = self.driven_in(at, life) else { return };
        driven.engine.admit(now, &mut driven.tap, open, answer);
        self.after_command(at);
    }

    // ---- what the engine says is over

    /// Something of a program is over, which the control plane hears in order.
    pub(super) fn on_over(&mut self, at: At, app: AppId, over: impl FnOnce(ClientId) -> Input) {
        let name = (at.engine, app);
        let Some(client) = self.up(at.host).and_then(|r| r.control.names.get(&name).copied()) else { return };
        self.tell_plane(at.host, over(client));
    }

    pub(super) fn on_connection_over(&mut self, host: usize, client: ClientId, over: ConnectionOver) {
        let Some(running) = self.up(host) else { return };
        running.control.admission.on_connection_over(client, over);
        running.control.directs.handle_over(over.connection);
        self.take_number(host, over.connection);
    }

    pub(super) fn on_socket_over(&mut self, host: usize, client: ClientId, socket: u64) {
        let Some(running) = self.up(host) else { return };
        running.control.admission.on_socket_over(client);
        self.take_number(host, socket);
    }

    /// Each number that the engine got comes back once.
    fn take_number(&mut self, host: usize, number: u64) {
        if self.up(host).is_some_and(|r| !r.control.numbers.remove(&number)) {
            let detail = format!("host {host}: number {number} is over twice, or was never the engine's");
            self.checks.fail(self.now, "release", detail);
        }
    }
}
