//! The protocol state machine on its socket: what arrived goes in, what is to be sent goes out, timers fire. The holder
//! of the lock around a [`Port`] makes progress with it. Nothing here blocks or waits.

use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use roce::wire::{ICRC_BYTES, PseudoHeader, SEALED_EXTRA_BYTES, sealed_bth};
use roce::{Nic, Transmit};
use verbs::{Counters, PathMtu, Time};

use crate::clock::Clock;
use crate::pcap::{PcapWriter, Seen};
use crate::sealing::Secrets;
use crate::socket::{ECN_CAPABLE, Sent, Socket};
use crate::sys::{MESSAGES_PER_CALL, Outgoing};
use crate::tcp::{Looked, TcpWire};

mod verbs_calls;

/// Receive calls of one round of progress, each up to [`RECV_PER_CALL`] merged batches.
const RECV_CALLS_PER_ROUND: usize = 4;
/// Merged batches of one receive call: what they hold should stay in the second-level cache until it is processed.
const RECV_PER_CALL: usize = 8;
/// Send calls of one round of progress.
const SEND_CALLS_PER_ROUND: usize = 16;
/// Bytes built before they are sent: they should stay in the second-level cache until the kernel copies them.
const OUTBOX_BYTES: usize = 128 * 1024;
/// How soon an owner is told again what fits the way to a peer.
const MTU_TOLD_AGAIN: Duration = Duration::from_secs(1);
/// Peers of which that is told within that time; of others in the second after it.
const MTU_TOLD_MAX: usize = 64;
/// How long the listener of the TCP wire waits for a look while no connection is expected and its owner does not sleep.
const TCP_LOOK_PAUSE: Duration = Duration::from_micros(200);
/// How soon a full send buffer is tried again by an owner that sleeps.
const SEND_RETRY: Duration = Duration::from_micros(200);

/// The capture of a port.
pub(crate) type Capture = PcapWriter<BufWriter<File>>;

/// Protocol, socket and capture of one software NIC.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) nic: Nic,
    /// The wire over TCP, if connections may use it.
    pub(crate) tcp: Option<TcpWire>,
    /// Of endpoints that encrypt.
    secrets: Secrets,
    /// Largest path MTU of sealed packets, which are longer.
    sealed_mtu: PathMtu,
    /// When the TCP wire is looked at again although nothing is expected there.
    tcp_look_at: Time,
    socket: Socket,
    capture: Option<Capture>,
    outbox: Outbox,
    local: SocketAddr,
    clock: Clock,
    send_blocked: bool,
    offload_failed: bool,
    notify: bool,
    resigned_batches: u64,
    /// The last words about path MTUs: when, and the way to whom.
    mtu_told: Vec<(Time, IpAddr)>,
    /// Batches that the next receive call takes at most: more after each call that was full.
    recv_depth: usize,
}

/// Sends that were built and have not left.
#[derive(Debug)]
struct Outbox {
    slots: Vec<Slot>,
    /// The first slot that has not left.
    first: usize,
    /// One after the last slot that is filled.
    end: usize,
}

#[derive(Debug)]
struct Slot {
    bytes: Vec<u8>,
    transmit: Transmit,
}

impl Port {
    pub(crate) fn new(
        (nic, tcp): (Nic, Option<TcpWire>),
        (secrets, sealed_mtu): (Secrets, PathMtu),
        socket: Socket,
        capture: Option<Capture>,
        clock: Clock,
    ) -> Self {
        let local = socket.local();
        let empty = || Slot {
            bytes: Vec::new(),
            transmit: Transmit { destination: local, segment_bytes: None, traffic_class: 0, hop_limit: 0 },
        };
        let slots = std::iter::repeat_with(empty).take(MESSAGES_PER_CALL).collect();
        Self {
            nic,
            tcp,
            secrets,
            sealed_mtu,
            tcp_look_at: Time::ZERO,
            socket,
            capture,
            outbox: Outbox { slots, first: 0, end: 0 },
            local,
            clock,
            send_blocked: false,
            offload_failed: false,
            notify: false,
            resigned_batches: 0,
            mtu_told: Vec::new(),
            recv_depth: 1,
        }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Now, as the protocol counts time.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// One bounded round: input, timers, output. Says whether anything was done.
    pub(crate) fn progress(&mut self, now: Time) -> bool {
        let received = self.receive(now);
        let sent = self.transmit(now);
        if !received && !sent {
            self.flush_capture();
        }
        received || sent
    }

    /// Takes what arrived, up to a bound, and fires timers that are due. Says whether anything was done.
    pub(crate) fn receive(&mut self, now: Time) -> bool {
        let looked = self.look_at_tcp(now);
        let mut any = looked.any;
        if looked.udp {
            any |= self.receive_datagrams(now);
        }
        if self.nic.deadline().is_some_and(|at| at <= now) {
            self.nic.handle_timeout(now);
            any = true;
        }
        self.notify |= self.nic.take_notify();
        any
    }

    /// Input of the TCP wire; also says whether datagrams may wait.
    fn look_at_tcp(&mut self, now: Time) -> Looked {
        let Self { nic, tcp, tcp_look_at, .. } = self;
        match tcp {
            Some(tcp) if tcp.is_active() || *tcp_look_at <= now => {
                *tcp_look_at = now + TCP_LOOK_PAUSE;
                for event in tcp.look_elsewhere(now, |qpn| nic.silent_since(qpn)) {
                    nic.device_mut().raise(event);
                }
                let looked = tcp.receive(now, nic.device_mut());
                nic.settle_overflows();
                looked
            }
            _ => Looked { any: false, udp: true },
        }
    }

    fn receive_datagrams(&mut self, now: Time) -> bool {
        let mut any = false;
        let Self { nic, socket, capture, local, recv_depth, .. } = self;
        for _ in 0..RECV_CALLS_PER_ROUND {
            let depth = *recv_depth;
            let got = socket.recv(depth, |source, payload, stride, is_marked| {
                if let Some(capture) = capture {
                    let packet = Seen { source, destination: *local, traffic_class: 0, hop_limit: 0, id: 0, payload };
                    capture.capture(packet, stride);
                }
                match stride {
                    stride if is_marked => nic.handle_marked(now, source, payload, stride.unwrap_or(payload.len())),
                    Some(stride) => nic.handle_batch(now, source, payload, stride),
                    None => nic.handle_datagram(now, source, payload, 0),
                }
            });
            any |= got > 0;
            // If messages come one at a time, one message must not wait until buffers for many are laid out, or for a
            // call that finds no second one.
            *recv_depth = if got < depth { 1 } else { (depth * 2).min(RECV_PER_CALL) };
            if got < depth || depth == 1 {
                break;
            }
        }
        any
    }

    /// Sends what the protocols have to send, up to a bound or until the sockets are full. Says whether anything left.
    pub(crate) fn transmit(&mut self, now: Time) -> bool {
        let mut any = false;
        if let Some(tcp) = &mut self.tcp {
            any = tcp.transmit(now, self.nic.device_mut());
        }
        any |= self.transmit_datagrams(now);
        self.notify |= self.nic.take_notify();
        any
    }

    fn transmit_datagrams(&mut self, now: Time) -> bool {
        let mut any = false;
        for _ in 0..SEND_CALLS_PER_ROUND {
            if self.outbox.is_empty() && !self.outbox.fill(&mut self.nic, now) {
                break;
            }
            match self.send_outbox() {
                Sent::Gone(n) => any |= n > 0,
                Sent::WouldBlock => {
                    self.send_blocked = true;
                    return any;
                }
                Sent::NoOffload => {
                    self.split_first();
                    any = true;
                }
                Sent::TooLong => {
                    self.drop_first(now);
                    any = true;
                }
            }
        }
        self.send_blocked = false;
        any
    }

    /// Whether datagrams wait to be sent.
    pub(crate) fn has_output(&self) -> bool {
        !self.outbox.is_empty() || self.nic.has_transmit()
    }

    /// Whether the TCP wire has something to send.
    pub(crate) fn has_tcp_work(&self) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.has_output())
    }

    /// Whether output waits for room in the socket's send buffer.
    pub(crate) fn is_send_blocked(&self) -> bool {
        self.send_blocked
    }

    /// Whether an armed CQ got its completion since the last call.
    pub(crate) fn take_notify(&mut self) -> bool {
        std::mem::take(&mut self.notify)
    }

    /// How long this port needs no progress if nothing arrives; `None` for ever.
    pub(crate) fn sleep_bound(&self, now: Time) -> Option<Duration> {
        if self.notify {
            return Some(Duration::ZERO);
        }
        let timer = self.nic.deadline().map(|at| at.saturating_since(now));
        let output = self.has_output().then_some(if self.send_blocked { SEND_RETRY } else { Duration::ZERO });
        let tcp_timer = self.tcp.as_ref().and_then(TcpWire::deadline).map(|at| at.saturating_since(now));
        let tcp_work = self.has_tcp_work().then_some(Duration::ZERO);
        [timer, output, tcp_timer, tcp_work].into_iter().flatten().min()
    }

    pub(crate) fn flush_capture(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
    }

    /// Counters of socket and capture, by name.
    pub(crate) fn append_counters(&self, out: &mut Counters) {
        let c = &self.socket.counters;
        out.extend([
            ("rx_socket_overflow", self.socket.drops()),
            ("rx_socket_errors", c.rx_socket_errors),
            ("tx_socket_errors", c.tx_socket_errors),
            ("tx_too_long", c.tx_too_long),
            ("rx_syscalls", c.rx_syscalls),
            ("tx_syscalls", c.tx_syscalls),
            ("tx_would_block", c.tx_would_block),
            ("gso_batches", c.gso_batches),
            ("gro_batches", c.gro_batches),
            ("gso_batches_resigned", self.resigned_batches),
            ("udp_port_open", self.socket.is_port_open().into()),
        ]);
        if let Some(tcp) = &self.tcp {
            tcp.append_counters(out);
        }
        if let Some(capture) = &self.capture {
            out.extend([("pcap_packets", capture.packets), ("pcap_left_out", capture.left_out)]);
        }
    }

    /// One send call with what the outbox holds.
    fn send_outbox(&mut self) -> Sent {
        if self.offload_failed && self.outbox.first_is_batch() {
            return Sent::NoOffload;
        }
        let Outbox { slots, first, end } = &mut self.outbox;
        let filled = slots.get(*first..*end).unwrap_or(&[]);
        let sent = match filled {
            [slot] => self.socket.send(&mut [slot.outgoing()]),
            _ => {
                let mut items = [Outgoing::EMPTY; MESSAGES_PER_CALL];
                for (item, slot) in items.iter_mut().zip(filled) {
                    *item = slot.outgoing();
                }
                self.socket.send(&mut items[..filled.len().min(MESSAGES_PER_CALL)])
            }
        };
        if let Sent::Gone(n) = sent {
            if let Some(capture) = &mut self.capture {
                for item in filled.iter().take(n).map(Slot::outgoing) {
                    capture.capture(seen(self.local, &item), item.segment_bytes.map(usize::from));
                }
            }
            *first += n;
        }
        sent
    }

    /// The head of the outbox does not fit its way: it is lost, and the owner is told what fits.
    fn drop_first(&mut self, now: Time) {
        let Some(slot) = self.outbox.slots.get(self.outbox.first) else { return };
        self.outbox.first += 1;
        let destination = slot.transmit.destination;
        let extra = sealed_bth(&slot.bytes).map_or(0, |_| SEALED_EXTRA_BYTES);
        // What is sent again does not fit either, and each look costs a socket.
        self.mtu_told.retain(|(at, _)| now.saturating_since(*at) < MTU_TOLD_AGAIN);
        if self.mtu_told.len() >= MTU_TOLD_MAX || self.mtu_told.iter().any(|(_, peer)| *peer == destination.ip()) {
            return;
        }
        let Some(bytes) = self.socket.path_mtu_bytes(destination) else { return };
        // Below the least the lane is lost, which its retries will tell.
        let mtu = PathMtu::for_link(bytes.saturating_sub(extra)).unwrap_or(PathMtu::Mtu256);
        self.mtu_told.push((now, destination.ip()));
        tracing::warn!(to = %destination.ip(), bytes, path_mtu = mtu.bytes(), "the way to a peer takes shorter packets");
        self.nic.path_shrank(destination.ip(), mtu);
    }

    /// Sends the segments of the batch at the head of the outbox one by one, after the kernel said that it cannot
    /// segment on this way out. Alone each has identification 0, so its ICRC is computed again; a sealed one has none.
    fn split_first(&mut self) {
        if !std::mem::replace(&mut self.offload_failed, true) {
            tracing::warn!("the kernel refuses segmentation offload on this path: one packet a send from now on");
        }
        self.resigned_batches += 1;
        let Some(slot) = self.outbox.slots.get_mut(self.outbox.first) else { return };
        self.outbox.first += 1;
        let destination = slot.transmit.destination;
        let segment_bytes = slot.transmit.segment_bytes.map_or(slot.bytes.len(), usize::from).max(1);
        let Some(header) = PseudoHeader::new(self.local, destination) else { return };
        for segment in slot.bytes.chunks_mut(segment_bytes) {
            let Some((packet, icrc)) = segment.split_last_chunk_mut::<ICRC_BYTES>() else { continue };
            if sealed_bth(packet).is_none() {
                *icrc = header.icrc(packet, 0);
            }
            let Transmit { traffic_class, hop_limit, .. } = slot.transmit;
            let traffic_class = Some(traffic_class);
            let mut item = [Outgoing { payload: segment, destination, segment_bytes: None, traffic_class, hop_limit }];
            let sent = self.socket.send(&mut item);
            if let (Sent::Gone(1), Some(capture)) = (sent, &mut self.capture) {
                capture.capture(seen(self.local, &item[0]), None);
            }
        }
    }
}

fn seen<'a>(source: SocketAddr, item: &Outgoing<'a>) -> Seen<'a> {
    let Outgoing { payload, destination, traffic_class, hop_limit, .. } = *item;
    // The socket's own, if the item says none.
    let traffic_class = traffic_class.unwrap_or(ECN_CAPABLE);
    Seen { source, destination, traffic_class, hop_limit, id: 0, payload }
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.first == self.end
    }

    fn first_is_batch(&self) -> bool {
        self.slots.get(self.first).is_some_and(|s| s.transmit.segment_bytes.is_some())
    }

    /// Builds sends until all slots or [`OUTBOX_BYTES`] are full; says whether there are any. Call only when empty.
    fn fill(&mut self, nic: &mut Nic, now: Time) -> bool {
        self.first = 0;
        self.end = 0;
        let mut bytes = 0;
        for slot in &mut self.slots {
            // Not cleared: bytes that are there already need not be zeroed again.
            let Some(transmit) = nic.poll_transmit(now, &mut slot.bytes) else { break };
            slot.transmit = transmit;
            self.end += 1;
            bytes += slot.bytes.len();
            if bytes >= OUTBOX_BYTES {
                break;
            }
        }
        self.end > 0
    }
}

impl Slot {
    fn outgoing(&self) -> Outgoing<'_> {
        Outgoing {
            payload: &self.bytes,
            destination: self.transmit.destination,
            segment_bytes: self.transmit.segment_bytes,
            traffic_class: Some(self.transmit.traffic_class),
            hop_limit: self.transmit.hop_limit,
        }
    }
}

#[cfg(test)]
mod tests;
