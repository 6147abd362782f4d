//! The protocol state machine on its socket: what arrived goes in, what is to be sent goes out, timers fire. The holder
//! of the lock around a [`Port`] makes progress with it. Nothing here blocks or waits.

use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use roce::wire::{ICRC_BYTES, PseudoHeader, SEALED_EXTRA_BYTES, sealed_bth};
use roce::{Arrived, Nic, Transmit};
use verbs::{Counters, PathMtu, Time};

use crate::clock::Clock;
use crate::pcap::{PcapWriter, Seen};
use crate::socket::{ECN_CAPABLE, Sent, Socket};
use crate::sys::{MESSAGES_PER_CALL, Outgoing};
use crate::tcp::{Looked, TcpWire};
use sockets::{At, Sockets};
use wires::Secrets;

pub(crate) mod sockets;
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
    sockets: Sockets,
    capture: Option<Capture>,
    outbox: Outbox,
    clock: Clock,
    send_blocked: bool,
    notify: bool,
    resigned_batches: u64,
    /// The last words about path MTUs: when, and the way to whom.
    mtu_told: Vec<(Time, IpAddr)>,
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
        sockets: Sockets,
        capture: Option<Capture>,
        clock: Clock,
    ) -> Self {
        let (source, destination) = (sockets.first.socket.local(), sockets.first.socket.local());
        let transmit = Transmit { source, destination, segment_bytes: None, traffic_class: 0, hop_limit: 0 };
        let empty = || Slot { bytes: Vec::new(), transmit };
        let slots = std::iter::repeat_with(empty).take(MESSAGES_PER_CALL).collect();
        Self {
            nic,
            tcp,
            secrets,
            sealed_mtu,
            tcp_look_at: Time::ZERO,
            sockets,
            capture,
            outbox: Outbox { slots, first: 0, end: 0 },
            clock,
            send_blocked: false,
            notify: false,
            resigned_batches: 0,
            mtu_told: Vec::new(),
        }
    }

    /// That of the NIC's first address.
    pub(crate) fn socket(&self) -> &Socket {
        &self.sockets.first.socket
    }

    pub(crate) fn sockets(&self) -> &Sockets {
        &self.sockets
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
                let looked = tcp.receive(now, nic.device_mut());
                nic.settle_overflows();
                looked
            }
            _ => Looked { any: false, udp: true },
        }
    }

    fn receive_datagrams(&mut self, now: Time) -> bool {
        let Self { nic, sockets, capture, .. } = self;
        let mut any = receive_at(&mut sockets.first, capture, |source, _, payload, stride, is_marked| match stride {
            stride if is_marked => nic.handle_marked(now, source, payload, stride.unwrap_or(payload.len())),
            Some(stride) => nic.handle_batch(now, source, payload, stride),
            None => nic.handle_datagram(now, source, payload, 0),
        });
        if sockets.look_aside(now) {
            let mut came = false;
            for at in &mut sockets.standby {
                came |= receive_at(at, capture, |source, local, payload, stride, is_marked| {
                    let arrived = Arrived { from: source, to: local, place: 0, is_marked };
                    nic.handle_arrived(now, &arrived, payload, stride.unwrap_or(payload.len()));
                });
            }
            if came {
                sockets.note_use(now);
            }
            any |= came;
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
            match self.send_outbox(now) {
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

    /// Whether output waits for room in the send buffer of [`Self::socket`]. For that of another one it waits a moment.
    pub(crate) fn is_send_blocked(&self) -> bool {
        let head = self.outbox.slots.get(self.outbox.first);
        self.send_blocked && head.is_none_or(|slot| self.sockets.is_first(slot.transmit.source))
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
        self.sockets.append_counters(out);
        out.extend([
            ("gso_batches_resigned", self.resigned_batches),
            ("udp_port_open", self.sockets.is_port_open().into()),
        ]);
        if let Some(tcp) = &self.tcp {
            tcp.append_counters(out);
        }
        if let Some(capture) = &self.capture {
            out.extend([("pcap_packets", capture.packets), ("pcap_left_out", capture.left_out)]);
        }
    }

    /// One send call with what the outbox holds, as far as it leaves through one socket.
    fn send_outbox(&mut self, now: Time) -> Sent {
        let Outbox { slots, first, end } = &mut self.outbox;
        let mut filled = slots.get(*first..*end).unwrap_or(&[]);
        let Some(source) = filled.first().map(|slot| slot.transmit.source) else { return Sent::Gone(0) };
        if !self.sockets.standby.is_empty() {
            let same = filled.iter().take_while(|slot| slot.transmit.source == source).count();
            filled = &filled[..same];
            if !self.sockets.is_first(source) {
                self.sockets.note_use(now);
            }
        }
        let at = self.sockets.of(source);
        if at.offload_failed && filled.first().is_some_and(Slot::is_batch) {
            return Sent::NoOffload;
        }
        let sent = match filled {
            [slot] => at.socket.send(&mut [slot.outgoing()]),
            _ => {
                let mut items = [Outgoing::EMPTY; MESSAGES_PER_CALL];
                for (item, slot) in items.iter_mut().zip(filled) {
                    *item = slot.outgoing();
                }
                at.socket.send(&mut items[..filled.len().min(MESSAGES_PER_CALL)])
            }
        };
        if let Sent::Gone(n) = sent {
            if let Some(capture) = &mut self.capture {
                for item in filled.iter().take(n).map(Slot::outgoing) {
                    capture.capture(seen(source, &item), item.segment_bytes.map(usize::from));
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
        let Some(bytes) = self.sockets.of(slot.transmit.source).socket.path_mtu_bytes(destination) else { return };
        // Below the least the lane is lost, which its retries will tell.
        let mtu = PathMtu::for_link(bytes.saturating_sub(extra)).unwrap_or(PathMtu::Mtu256);
        self.mtu_told.push((now, destination.ip()));
        tracing::warn!(to = %destination.ip(), bytes, path_mtu = mtu.bytes(), "the way to a peer takes shorter packets");
        self.nic.path_shrank(destination.ip(), mtu);
    }

    /// Sends the segments of the batch at the head of the outbox one by one, after the kernel said that it cannot
    /// segment on this way out. Alone each has identification 0, so its ICRC is computed again; a sealed one has none.
    /// A kernel that refuses the first one too did not refuse it for its length: the batch is lost, as in the network.
    fn split_first(&mut self) {
        self.resigned_batches += 1;
        let Some(slot) = self.outbox.slots.get_mut(self.outbox.first) else { return };
        self.outbox.first += 1;
        let Transmit { source, destination, traffic_class, hop_limit, .. } = slot.transmit;
        let segment_bytes = slot.transmit.segment_bytes.map_or(slot.bytes.len(), usize::from).max(1);
        let Some(header) = PseudoHeader::new(source, destination) else { return };
        let at = self.sockets.of(source);
        let refused_before = at.socket.counters.tx_socket_errors;
        for segment in slot.bytes.chunks_mut(segment_bytes) {
            let Some((packet, icrc)) = segment.split_last_chunk_mut::<ICRC_BYTES>() else { continue };
            if sealed_bth(packet).is_none() {
                *icrc = header.icrc(packet, 0);
            }
            let traffic_class = Some(traffic_class);
            let mut item = [Outgoing { payload: segment, destination, segment_bytes: None, traffic_class, hop_limit }];
            let sent = at.socket.send(&mut item);
            if at.socket.counters.tx_socket_errors != refused_before {
                return;
            }
            if sent == Sent::Gone(1) && !std::mem::replace(&mut at.offload_failed, true) {
                tracing::warn!(
                    from = %source.ip(),
                    "the kernel refuses segmentation offload on this path: one packet a send from now on"
                );
            }
            if let (Sent::Gone(1), Some(capture)) = (sent, &mut self.capture) {
                capture.capture(seen(source, &item[0]), None);
            }
        }
    }
}

/// Takes what arrived at one address, up to a bound; says whether anything did. `each` gets source, address, payload,
/// stride and mark.
fn receive_at(
    at: &mut At,
    capture: &mut Option<Capture>,
    mut each: impl FnMut(SocketAddr, IpAddr, &[u8], Option<usize>, bool),
) -> bool {
    let mut any = false;
    let At { socket, recv_depth, .. } = at;
    let local = socket.local();
    for _ in 0..RECV_CALLS_PER_ROUND {
        let depth = *recv_depth;
        let got = socket.recv(depth, |source, payload, stride, is_marked| {
            if let Some(capture) = capture {
                let packet = Seen { source, destination: local, traffic_class: 0, hop_limit: 0, id: 0, payload };
                capture.capture(packet, stride);
            }
            each(source, local.ip(), payload, stride, is_marked);
        });
        any |= got > 0;
        // If messages come one at a time, one message must not wait until buffers for many are laid out, or for a call
        // that finds no second one.
        *recv_depth = if got < depth { 1 } else { (depth * 2).min(RECV_PER_CALL) };
        if got < depth || depth == 1 {
            break;
        }
    }
    any
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
    fn is_batch(&self) -> bool {
        self.transmit.segment_bytes.is_some()
    }

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
