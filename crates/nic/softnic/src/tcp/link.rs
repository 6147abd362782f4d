//! One queue pair on TCP: its connection from the first SYN to the last byte, and the bytes between socket and machine.
//!
//! Owns the socket. The machine ([`iwarp::Qp`]) says what leaves and where what comes goes; nothing here knows a frame.

mod keys;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use iwarp::mpa::Startup;
use iwarp::{Gather, GatherPiece, Qp, QpEvent, Scatter};
use records::{RecordError, SealError};
use rnic::Device;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use verbs::{Qpn, Time};
use wires::{KeyUse, Opened, SealFault, Sealed, TcpPart, Unreached};

use super::congestion::Congestion;
use super::counters::TcpCounters;
use super::in_kernel::{InKernel, KernelState};
use super::socket;
use super::socket::SocketOptions;
use crate::sys::kernel_tls::{self, Direction};
use crate::sys::pieces::{self, Piece};

/// Calls in one direction of one connection in one round of progress.
const CALLS_PER_ROUND: usize = 16;
/// Longest time from the choice of the wire to the end of MPA's startup, however patient the connection is later.
const ESTABLISH_MIN: Duration = Duration::from_secs(5);

/// Where the connection is.
#[derive(Debug)]
enum State {
    /// The peer connects.
    Waiting,
    /// The SYN is on its way.
    Connecting(OwnedFd),
    /// MPA, and then the stream.
    Open(OwnedFd),
    /// Nothing comes or goes any more.
    Over,
}

/// A queue pair and its connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) qp: Qp,
    /// Of one that is encrypted, unless the kernel does both directions.
    sealed: Option<Sealed>,
    in_kernel: InKernel,
    /// Of one that is encrypted.
    key_use: Option<KeyUse>,
    qpn: Qpn,
    own: TcpPart,
    peer: TcpPart,
    local: SocketAddr,
    options: SocketOptions,
    stage: State,
    /// MPA's startup has to be over by then; `None`: it is.
    establish_by: Option<Time>,
    congestion: Congestion,
    /// What the epoll set looks for.
    interest: EventFlags,
    /// The machine takes bytes of the peer.
    is_reading: bool,
    /// The send buffer is full.
    is_blocked: bool,
    /// The machine may have something to send.
    may_send: bool,
    /// The link is in the list of those that may have something to send.
    pub(crate) is_scheduled: bool,
    /// When its entry among the timers fires.
    pub(crate) timer_at: Option<Time>,
}

/// What the calls of a link share.
pub(crate) struct Shared<'a> {
    pub(crate) epoll: &'a OwnedFd,
    pub(crate) gather: &'a mut Gather,
    pub(crate) scatter: &'a mut Scatter,
    /// Takes what lies behind a payload.
    pub(crate) buffer: &'a mut Vec<u8>,
    pub(crate) counters: &'a mut TcpCounters,
    pub(super) kernel_tls: &'a mut KernelState,
    pub(super) unreached: &'a mut Unreached,
    pub(crate) now: Time,
}

impl Link {
    /// A link that begins to connect, or waits for the peer to.
    pub(crate) fn new(
        qp: Qp,
        own: TcpPart,
        peer: TcpPart,
        local: SocketAddr,
        options: SocketOptions,
        now: Time,
    ) -> Self {
        Self {
            qp,
            sealed: None,
            in_kernel: InKernel::default(),
            key_use: None,
            qpn: own.qpn,
            own,
            peer,
            local,
            options,
            stage: State::Waiting,
            establish_by: Some(now + options.silence.unwrap_or(ESTABLISH_MIN).max(ESTABLISH_MIN)),
            congestion: Congestion::Unknown,
            interest: EventFlags::empty(),
            is_reading: true,
            is_blocked: false,
            may_send: false,
            is_scheduled: false,
            timer_at: None,
        }
    }

    /// Begins, if this is the end that connects.
    pub(crate) fn begin(&mut self, dev: &mut Device, shared: &mut Shared<'_>) {
        if !self.own.connects_to(&self.peer) {
            return;
        }
        shared.counters.tcp_connects += 1;
        match socket::connect(self.local, self.peer.address(), self.options) {
            Ok(fd) => {
                let watched = self.watch_new(&fd, EventFlags::OUT, shared);
                self.stage = State::Connecting(fd);
                if let Err(error) = watched {
                    self.fail(error, dev, shared);
                }
            }
            Err(error) => self.fail_to_connect(error, dev, shared),
        }
    }

    /// Whether a request that was shown at the listener is the peer's.
    pub(crate) fn is_meant_by(&self, private_data: &[u8]) -> bool {
        *private_data == self.peer.hello_to(&self.own)
    }

    /// The peer's connection, which began with this request.
    pub(crate) fn adopt(&mut self, fd: OwnedFd, request: &Startup, dev: &mut Device, shared: &mut Shared<'_>) {
        if !matches!(self.stage, State::Waiting) || self.own.connects_to(&self.peer) {
            shared.counters.tcp_refused += 1;
            return;
        }
        let opened = socket::set_options(&fd, self.local.is_ipv4(), self.options)
            .and_then(|()| self.watch_new(&fd, EventFlags::IN | EventFlags::RDHUP, shared));
        self.stage = State::Open(fd);
        if let Err(error) = opened {
            return self.fail(error, dev, shared);
        }
        shared.counters.tcp_accepts += 1;
        // The request was read to its last byte and no further, and all that this end sends is in records.
        self.leave_to_kernel(Direction::Receives, shared);
        self.leave_to_kernel(Direction::Sends, shared);
        if let Err(error) = self.qp.accept(request, &self.own.hello_to(&self.peer)) {
            tracing::warn!(peer = %self.peer.address(), qpn = %self.qpn, %error, "the peer's MPA request cannot be taken");
            return self.fail(Errno::PROTO, dev, shared);
        }
        self.may_send = true;
        self.settle(dev, shared);
    }

    /// What the epoll set says of the connection.
    pub(crate) fn on_ready(&mut self, flags: EventFlags, dev: &mut Device, shared: &mut Shared<'_>) {
        if let State::Connecting(fd) = &self.stage {
            match socket::connected(fd) {
                None => return,
                Some(Err(error)) => return self.fail_to_connect(error, dev, shared),
                Some(Ok(())) => {
                    let State::Connecting(fd) = std::mem::replace(&mut self.stage, State::Over) else { return };
                    self.stage = State::Open(fd);
                    self.leave_to_kernel(Direction::Receives, shared);
                    if self.qp.connect(&self.own.hello_to(&self.peer)).is_err() {
                        return self.fail(Errno::PROTO, dev, shared);
                    }
                }
            }
        }
        if flags.contains(EventFlags::OUT) {
            self.is_blocked = false;
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            self.receive(dev, shared);
        }
        self.may_send = true;
        self.settle(dev, shared);
    }

    /// Takes what came, up to a bound. Says whether anything did.
    pub(crate) fn receive(&mut self, dev: &mut Device, shared: &mut Shared<'_>) -> bool {
        if self.sealed.is_some() && !self.in_kernel.opens {
            return self.receive_records(dev, shared);
        }
        let mut any = false;
        for _ in 0..CALLS_PER_ROUND {
            let State::Open(fd) = &self.stage else { break };
            self.qp.want(dev, shared.scatter);
            self.is_reading = !shared.scatter.is_empty();
            if !self.is_reading {
                break;
            }
            let behind = shared.scatter.buffer_bytes;
            if shared.buffer.len() < behind {
                shared.buffer.resize(behind, 0);
            }
            let Some(buffer) = shared.buffer.get_mut(..behind) else { break };
            shared.counters.tcp_rx_syscalls += 1;
            let into = shared.scatter.pieces.iter().map(|p| (&p.region, p.offset, p.len as usize));
            match pieces::recv(fd.as_fd(), into, buffer) {
                Ok(0) => {
                    self.qp.on_eof(dev);
                    any = true;
                    break;
                }
                Ok(got) => {
                    any = true;
                    shared.counters.tcp_rx_bytes += got as u64;
                    if let Some(used) = self.key_use.as_mut().filter(|_| self.in_kernel.opens)
                        && !used.may_take(got as u64, || kernel_tls::records(fd.as_fd(), Direction::Receives).ok())
                    {
                        self.fail_used_up(dev, shared);
                        break;
                    }
                    let memory = shared.scatter.memory_bytes();
                    let placed = memory.min(got as u64);
                    let rest = got - placed as usize;
                    self.qp.received(dev, placed, buffer.get(..rest).unwrap_or(&[]));
                    if (got as u64) < memory + behind as u64 {
                        break;
                    }
                }
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::WOULDBLOCK) => break,
                    Some(Errno::INTR) => {}
                    other => {
                        self.note_forgery(other, shared);
                        self.fail(other.unwrap_or(Errno::FAULT), dev, shared);
                        break;
                    }
                },
            }
        }
        shared.scatter.clear();
        any
    }

    /// As [`Self::receive`], of an encrypted connection. What was opened is handed on before more is read, so that nothing
    /// waits here when the socket has no more.
    fn receive_records(&mut self, dev: &mut Device, shared: &mut Shared<'_>) -> bool {
        let (mut any, mut reads) = (false, 0);
        while let (State::Open(fd), Some(sealed)) = (&self.stage, &mut self.sealed) {
            self.qp.want(dev, shared.scatter);
            self.is_reading = !shared.scatter.is_empty();
            if !self.is_reading {
                break;
            }
            let step = sealed.hand_on(&mut self.qp, dev, shared.scatter);
            let failed = match step {
                Ok(Opened::HandedOn) => {
                    any = true;
                    continue;
                }
                Ok(Opened::WantsMore) if reads == CALLS_PER_ROUND => break,
                Ok(Opened::WantsMore) => {
                    (reads, shared.counters.tcp_rx_syscalls) = (reads + 1, shared.counters.tcp_rx_syscalls + 1);
                    match pieces::recv(fd.as_fd(), std::iter::empty(), sealed.opener().room()) {
                        Ok(0) => {
                            any = true;
                            match sealed.opener().end() {
                                Ok(()) => {
                                    self.qp.on_eof(dev);
                                    break;
                                }
                                Err(cut) => {
                                    tracing::debug!(peer = %self.peer.address(), qpn = %self.qpn, %cut, "a stream ended early");
                                    Errno::CONNRESET
                                }
                            }
                        }
                        Ok(got) => {
                            sealed.opener().fill(got);
                            shared.counters.tcp_rx_bytes += got as u64;
                            continue;
                        }
                        Err(error) => match Errno::from_io_error(&error) {
                            Some(Errno::WOULDBLOCK) => break,
                            Some(Errno::INTR) => continue,
                            other => other.unwrap_or(Errno::FAULT),
                        },
                    }
                }
                Err(fault @ RecordError::KeyUsedUp { .. }) => {
                    tracing::debug!(peer = %self.peer.address(), qpn = %self.qpn, %fault, "the peer goes on");
                    self.fail_used_up(dev, shared);
                    break;
                }
                Err(fault) => {
                    shared.counters.tcp_forged += 1;
                    tracing::warn!(peer = %self.peer.address(), qpn = %self.qpn, %fault, "an encrypted stream was forged");
                    Errno::BADMSG
                }
            };
            self.fail(failed, dev, shared);
            break;
        }
        shared.scatter.clear();
        any
    }

    /// As [`Self::transmit`], of an encrypted connection.
    fn transmit_records(&mut self, dev: &mut Device, shared: &mut Shared<'_>) -> bool {
        let mut any = false;
        for _ in 0..CALLS_PER_ROUND {
            let (State::Open(fd), Some(sealed)) = (&self.stage, &mut self.sealed) else { break };
            if self.is_blocked {
                break;
            }
            if sealed.unsent().is_empty() {
                self.qp.poll_transmit(dev, shared.gather);
                if shared.gather.is_empty() {
                    self.may_send = false;
                    break;
                }
                match sealed.seal(shared.gather) {
                    Ok(taken) => self.qp.sent(dev, taken),
                    Err(SealFault::Record(SealError::KeyUsedUp { .. })) => {
                        self.fail_used_up(dev, shared);
                        break;
                    }
                    Err(fault) => {
                        tracing::debug!(peer = %self.peer.address(), qpn = %self.qpn, %fault, "nothing more can be sealed");
                        self.fail(Errno::FAULT, dev, shared);
                        break;
                    }
                }
            }
            shared.counters.tcp_tx_syscalls += 1;
            let bytes = sealed.unsent();
            match pieces::send(fd.as_fd(), std::iter::once(Piece::Own(bytes))) {
                Ok(sent) => {
                    any = true;
                    shared.counters.tcp_tx_bytes += sent as u64;
                    self.is_blocked = sent < bytes.len();
                    self.congestion.on_sent(fd, shared.now, sent as u64, shared.counters);
                    sealed.on_sent(sent);
                }
                Err(error) => {
                    if !self.goes_on_after(&error, dev, shared) {
                        break;
                    }
                }
            }
        }
        shared.gather.clear();
        self.settle(dev, shared);
        any
    }

    /// What follows from a send that took nothing. False: the connection failed.
    fn goes_on_after(&mut self, error: &io::Error, dev: &mut Device, shared: &mut Shared<'_>) -> bool {
        match Errno::from_io_error(error) {
            Some(Errno::WOULDBLOCK) => {
                shared.counters.tcp_tx_would_block += 1;
                self.is_blocked = true;
            }
            Some(Errno::INTR) => {}
            other => {
                // What is wrong with a record that came is told to whoever calls next.
                self.note_forgery(other, shared);
                self.fail(other.unwrap_or(Errno::FAULT), dev, shared);
                return false;
            }
        }
        true
    }

    /// Whether bytes that the machine takes for sent wait for room in the socket's buffer. Then the link waits too.
    fn has_unsent(&mut self) -> bool {
        if self.sealed.as_ref().is_some_and(|sealed| !sealed.unsent().is_empty()) {
            return true;
        }
        // The kernel's TLS takes a record more than TCP has room for.
        let waits = match &self.stage {
            State::Open(fd) if self.in_kernel.seals => !socket::has_room(fd),
            _ => false,
        };
        self.is_blocked |= waits;
        waits
    }

    /// Sends what there is, up to a bound or until the socket is full. Says whether anything left.
    pub(crate) fn transmit(&mut self, dev: &mut Device, shared: &mut Shared<'_>) -> bool {
        if self.sealed.is_some() && !self.in_kernel.seals {
            return self.transmit_records(dev, shared);
        }
        let mut any = false;
        for _ in 0..CALLS_PER_ROUND {
            if self.is_blocked {
                break;
            }
            let State::Open(fd) = &self.stage else { break };
            self.qp.poll_transmit(dev, shared.gather);
            let gather = &*shared.gather;
            if gather.is_empty() {
                self.may_send = false;
                break;
            }
            if let Some(used) = self.key_use.as_mut().filter(|_| self.in_kernel.seals)
                && !used.may_send(gather.bytes(), || kernel_tls::records(fd.as_fd(), Direction::Sends).ok())
            {
                self.fail_used_up(dev, shared);
                break;
            }
            shared.counters.tcp_tx_syscalls += 1;
            let gathered = gather.pieces().iter().map(|piece| match piece {
                GatherPiece::Own(range) => Piece::Own(gather.own_bytes(range)),
                GatherPiece::Memory(range) => Piece::Mapped(&range.region, range.offset, range.len as usize),
            });
            match pieces::send(fd.as_fd(), gathered) {
                Ok(sent) => {
                    any = true;
                    shared.counters.tcp_tx_bytes += sent as u64;
                    // One call takes no more than so many pieces; only a full buffer takes less than those.
                    self.congestion.on_sent(fd, shared.now, sent as u64, shared.counters);
                    self.is_blocked = (sent as u64) < gather.bytes() && gather.pieces().len() <= pieces::PIECES_MAX;
                    self.qp.sent(dev, sent as u64);
                }
                Err(error) => {
                    if !self.goes_on_after(&error, dev, shared) {
                        break;
                    }
                }
            }
        }
        shared.gather.clear();
        self.settle(dev, shared);
        any
    }

    /// Brings the epoll set, and the connection's end, in line with what the machine says.
    pub(crate) fn settle(&mut self, dev: &mut Device, shared: &mut Shared<'_>) {
        while let Some(event) = self.qp.poll_event() {
            self.on_event(event, dev, shared);
        }
        self.look_at_keys(dev, shared);
        // What waits leaves first: the machine took it for sent.
        if self.qp.is_over() && !self.has_unsent() {
            return self.close();
        }
        let is_shut = self.qp.is_shutdown_due() && !self.has_unsent();
        let State::Open(fd) = &self.stage else { return };
        if is_shut {
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
        }
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN | EventFlags::RDHUP, self.is_reading);
        interest.set(EventFlags::OUT, self.is_blocked);
        if interest != self.interest {
            let data = EventData::new_u64(super::Watched::Link(self.qpn).to_u64());
            if epoll::modify(shared.epoll, fd, data, interest).is_ok() {
                self.interest = interest;
            }
        }
    }

    fn on_event(&mut self, event: QpEvent, dev: &mut Device, shared: &mut Shared<'_>) {
        match event {
            QpEvent::Established { private_data, .. } => {
                self.establish_by = None;
                // Of the passive end the listener has seen it already.
                let is_right = !self.own.connects_to(&self.peer) || private_data == self.peer.hello_to(&self.own);
                if is_right {
                    self.leave_to_kernel(Direction::Sends, shared);
                    if let Some(sealed) = &mut self.sealed {
                        sealed.begin_sealing();
                    }
                    shared.unreached.forget(self.peer.address().ip());
                    if let State::Open(fd) = &self.stage {
                        self.congestion.on_connected(fd, shared.now, shared.counters);
                    }
                } else {
                    tracing::warn!(peer = %self.peer.address(), qpn = %self.qpn, "another queue pair answered in the peer's place");
                    self.fail(Errno::PROTO, dev, shared);
                }
            }
            QpEvent::Ended(ending) => {
                self.establish_by = None;
                tracing::debug!(peer = %self.peer.address(), qpn = %self.qpn, %ending, "a queue pair on TCP ended");
            }
            _ => {}
        }
    }

    /// A verbs call gave the machine something to do.
    pub(crate) fn on_call(&mut self, dev: &mut Device, shared: &mut Shared<'_>) {
        self.may_send = true;
        self.settle(dev, shared);
    }

    /// Whether the machine may have something to send and the socket may take it.
    pub(crate) fn has_output(&self) -> bool {
        self.may_send && !self.is_blocked && matches!(self.stage, State::Open(_))
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        [self.establish_by, self.qp.deadline()].into_iter().flatten().min()
    }

    /// Fires what is due.
    pub(crate) fn handle_timeout(&mut self, dev: &mut Device, shared: &mut Shared<'_>) {
        if self.establish_by.is_some_and(|by| by <= shared.now) {
            return self.fail_to_connect(Errno::TIMEDOUT, dev, shared);
        }
        self.qp.handle_timeout(dev, shared.now);
        self.may_send = true;
        self.settle(dev, shared);
    }

    /// No connection came up: another wire may lead there.
    fn fail_to_connect(&mut self, error: Errno, dev: &mut Device, shared: &mut Shared<'_>) {
        let peer = self.peer.address();
        tracing::debug!(%peer, qpn = %self.qpn, %error, "a TCP connection did not come up");
        shared.unreached.note(shared.now, peer.ip());
        self.fail(error, dev, shared);
    }

    /// The connection is broken: the queue pair goes to error.
    fn fail(&mut self, error: Errno, dev: &mut Device, shared: &mut Shared<'_>) {
        shared.counters.tcp_broken += 1;
        if error == Errno::TIMEDOUT && self.establish_by.is_none() {
            // The kernel gave a connection up that stood.
            shared.unreached.note(shared.now, self.peer.address().ip());
        }
        tracing::debug!(peer = %self.peer.address(), qpn = %self.qpn, %error, "the TCP connection of a queue pair broke");
        self.establish_by = None;
        self.qp.broke(dev);
        self.sealed = None;
        self.close();
    }

    /// Gives the socket up. What TCP holds still goes to the peer.
    fn close(&mut self) {
        self.establish_by = None;
        self.is_blocked = false;
        self.stage = State::Over;
    }

    fn watch_new(&mut self, fd: &OwnedFd, interest: EventFlags, shared: &Shared<'_>) -> rustix::io::Result<()> {
        self.interest = interest;
        let data = EventData::new_u64(super::Watched::Link(self.qpn).to_u64());
        epoll::add(shared.epoll, fd, data, interest)
    }
}
