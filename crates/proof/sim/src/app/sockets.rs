//! The datagram sockets of a process: when they are bound, what it asks about paths, and their turns.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use control::{Connection, Reason, SocketTicket, TicketRing};
use raas_core::{Answer, DaemonMessage};
use shm::{DatagramRecord, RECORD_HEADER_BYTES, Word64};
use verbs::Time;

use super::{App, Outbox, Request};
use crate::address::address;
use crate::check::{Asked, Checks, InRings, SocketAt};
use crate::conn::Died;
use crate::plan::AppPlan;
use crate::socket::Socket;

/// What a process has of datagrams.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    /// Those of the plan that were not bound yet, soonest last.
    to_bind: Vec<usize>,
    /// Binds without an answer, by request.
    binding: BTreeMap<u64, usize>,
    /// By slot.
    open: BTreeMap<u32, Socket>,
    /// Paths that are wanted, for the socket in a slot.
    to_ask: Vec<(u32, usize)>,
    /// Questions without an answer, by request.
    asking: BTreeMap<u64, (u32, Asked)>,
}

impl Sockets {
    pub(super) fn new(plan: &AppPlan) -> Self {
        let mut to_bind: Vec<usize> = (0..plan.sockets.len()).collect();
        to_bind.sort_by_key(|i| std::cmp::Reverse((plan.sockets[*i].at, *i)));
        Self { to_bind, ..Self::default() }
    }

    /// Whether nothing is asked, and all that was sent is taken by the daemon.
    pub(super) fn is_idle(&self) -> bool {
        self.to_bind.is_empty()
            && self.binding.is_empty()
            && self.to_ask.is_empty()
            && self.asking.is_empty()
            && self.open.values().all(Socket::is_idle)
    }

    /// What was asked of a daemon that died, by request, is asked again of the next one. Says whether it was a path.
    fn lose(&mut self, request: u64) -> Option<Asked> {
        // A program that comes to its end asks for nothing more.
        self.to_bind.extend(self.binding.remove(&request));
        self.asking.remove(&request).map(|(_, asked)| asked)
    }

    /// The paths that sockets want to know, of the next daemon; and all of them run.
    fn ask_again(&mut self) {
        self.to_ask.clear();
        for (slot, socket) in &mut self.open {
            socket.forget_paths();
            self.to_ask.extend(socket.questions().into_iter().map(|host| (*slot, host)));
        }
    }

    /// Nothing more is bound or sent; the slots of those that are there.
    pub(super) fn end(&mut self) -> Vec<u32> {
        self.to_bind.clear();
        self.open.values_mut().for_each(Socket::end);
        self.open.keys().copied().collect()
    }

    /// When the next one closes by itself; binds are in the plan.
    pub(super) fn next_at(&self) -> Option<Time> {
        self.open.values().filter_map(Socket::close_at).min()
    }
}

impl App {
    /// Sockets that are bound.
    pub(crate) fn bound(&self) -> impl Iterator<Item = SocketAt> {
        self.sockets.open.values().map(|socket| (self.plan.host, socket.id()))
    }

    /// The daemon died before it answered, if the request was about datagrams.
    pub(super) fn lose_for_sockets(&mut self, now: Time, request: u64, checks: &mut Checks) {
        if let Some(asked) = self.sockets.lose(request) {
            checks.on_refused(now, &asked, Reason::DaemonLost);
        }
        if self.is_ending {
            self.sockets.to_bind.clear();
        }
    }

    /// The sockets go on with the next daemon.
    pub(super) fn return_sockets(&mut self) {
        if self.is_ending {
            self.sockets.to_ask.clear();
        } else {
            self.sockets.ask_again();
        }
        self.ready.extend(self.sockets.open.keys());
    }

    /// What lies in the rings of a socket.
    pub(crate) fn rings_of(&self, ticket: &SocketTicket) -> Result<InRings, String> {
        let words = self.session.slot(ticket.slot);
        let count = |ring: TicketRing, tail: &Word64, head: &Word64| {
            let (_, region) = self.chunks.get(&ring.chunk).ok_or("a ticket of no chunk")?;
            let (mut at, tail) = (head.load(Ordering::Acquire), tail.load(Ordering::Acquire));
            let mut count = 0;
            while at < tail {
                let mut header = [0; RECORD_HEADER_BYTES];
                for (byte, at) in header.iter_mut().zip(at..) {
                    let offset = ring.offset + at % u64::from(ticket.ring_bytes);
                    region.read(offset, std::slice::from_mut(byte)).map_err(|e| e.to_string())?;
                }
                at += DatagramRecord::parse(&header).ok_or("bytes that are no record")?.ring_bytes();
                count += 1;
            }
            if at == tail { Ok(count) } else { Err("a record is torn".to_owned()) }
        };
        Ok(InRings {
            to_send: count(ticket.tx, &words.tx_tail, &words.tx_head)?,
            to_take: count(ticket.rx, &words.rx_tail, &words.rx_head)?,
        })
    }

    /// Binds that are due, and questions for paths.
    pub(super) fn ask_for_sockets(&mut self, now: Time, checks: &mut Checks, out: &mut Outbox) -> Result<(), Died> {
        while let Some(&index) = self.sockets.to_bind.last()
            && self.plan.sockets[index].at <= now
        {
            self.sockets.to_bind.pop();
            let plan = &self.plan.sockets[index];
            let (id, _) = self.client.bind_datagram(plan.port, plan.ring_bytes);
            self.requests.insert(id.number(), id);
            self.sockets.binding.insert(id.number(), index);
            checks.datagrams.on_bind((self.plan.host, plan.port));
            let (port, ring_bytes) = (plan.port, plan.ring_bytes);
            out.requests.push(Request::Bind { request: id.number(), port, ring_bytes });
            self.fuse.point()?;
        }
        for (slot, host) in std::mem::take(&mut self.sockets.to_ask) {
            let (id, _) = self.client.datagram_path(address(host));
            self.requests.insert(id.number(), id);
            let asked = Asked { at: now, from: self.plan.host, to: (host, 0), timeout: self.timeout };
            self.sockets.asking.insert(id.number(), (slot, asked));
            out.requests.push(Request::Path { request: id.number(), to: address(host) });
            self.fuse.point()?;
        }
        if let Some(&index) = self.sockets.to_bind.last() {
            // Nobody wakes a process for its own plans.
            self.timers.insert((self.plan.sockets[index].at, u32::MAX));
        }
        Ok(())
    }

    /// A refusal may be that of a bind.
    pub(super) fn is_bind_refused(
        &mut self,
        now: Time,
        request: u64,
        refusal: Option<&Reason>,
        checks: &mut Checks,
    ) -> bool {
        let (Some(reason), Some(index)) = (refusal, self.sockets.binding.remove(&request)) else { return false };
        self.hear(now, DaemonMessage::Connected { request, result: Err(*reason) }, checks);
        drop(self.answer(request));
        checks.on_bind_refused(now, (self.plan.host, self.plan.sockets[index].port), *reason);
        true
    }

    pub(super) fn on_bound(&mut self, now: Time, request: u64, connection: Connection, checks: &mut Checks) {
        let Some(index) = self.sockets.binding.remove(&request) else {
            return checks.fail(now, "connect", format!("bind {request} of application {} answered twice", self.uid));
        };
        let plan = &self.plan.sockets[index];
        if connection.local.port() != plan.port {
            checks.fail(now, "datagrams", format!("port {} was asked for, {} is given", plan.port, connection.local));
        }
        self.hear(now, DaemonMessage::Connected { request, result: Ok(connection) }, checks);
        let connection = match self.answer(request) {
            Some(Answer::Connected(Ok(connection))) => *connection,
            other => return checks.fail(now, "connect", format!("the answer to a bind was {other:?}")),
        };
        let (slot, mut socket) = Socket::new(connection, &self.plan.sockets[index], &mut self.rng);
        let is_taken = self.conns.get(&slot).is_some_and(|c| !c.closed);
        if is_taken || self.sockets.open.contains_key(&slot) {
            checks.fail(now, "connect", format!("slot {slot} was given to a socket too"));
        }
        checks.datagrams.on_bound((self.plan.host, socket.id()), socket.own().1, !self.is_away);
        if self.is_ending {
            socket.end();
        }
        self.sockets.to_ask.extend(socket.questions().into_iter().map(|host| (slot, host)));
        self.sockets.open.insert(slot, socket);
        self.ready.insert(slot);
    }

    pub(super) fn on_path(&mut self, now: Time, request: u64, checks: &mut Checks) {
        let answer = self.answer(request);
        let Some((slot, asked)) = self.sockets.asking.remove(&request) else {
            let detail = format!("question {request} of application {} answered twice", self.uid);
            return checks.fail(now, "connect", detail);
        };
        match answer {
            Some(Answer::Path(Ok(payload_max))) => {
                checks.on_path_told(now, (self.plan.host, asked.to.0), payload_max);
                if let Some(socket) = self.sockets.open.get_mut(&slot).filter(|_| !self.is_ending) {
                    socket.on_path(now, asked.to.0, payload_max);
                    self.ready.insert(slot);
                }
            }
            Some(Answer::Path(Err(reason))) => checks.on_refused(now, &asked, reason),
            other => checks.fail(now, "connect", format!("the answer to a question was {other:?}")),
        }
    }

    /// The turn of the socket in a slot; false if there is none.
    pub(super) fn run_socket(&mut self, now: Time, slot: u32, checks: &mut Checks) -> Result<bool, Died> {
        let Some(socket) = self.sockets.open.get_mut(&slot) else { return Ok(slot == u32::MAX) };
        let progress = socket.run(now, checks, &mut self.fuse, &mut self.scratch)?;
        if socket.closed {
            self.sockets.open.remove(&slot);
        }
        if let Some(at) = progress.again {
            self.timers.insert((at, slot));
        }
        Ok(true)
    }
}
