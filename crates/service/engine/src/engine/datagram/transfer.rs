//! Datagrams on their way: out of transmit rings by turns, to the device or straight into a ring of this host; from the
//! device into receive rings.
//!
//! Owns the order of turns and every decision to drop. It must never wait: what cannot leave now stays in its ring, and
//! the completion that makes room lets it go on. Its work in one round is bounded.

use std::net::{IpAddr, SocketAddr};

use shm::DatagramRecord;
use verbs::{Completion, GRH_BYTES, Grh, Provider, Status};

use super::path::is_host;
use crate::app::App;
use crate::datagram::drops::DropReason;
use crate::datagram::header::Header;
use crate::datagram::socket::SocketFault;
use crate::engine::Engine;
use crate::ids::SocketId;
use crate::limits::{COMPLETIONS_PER_RUN, DATAGRAMS_PER_RUN, DRAIN_POLLS};
use crate::recvpool::RECV_WR;
use crate::tenants::Waits;

/// What a turn of a socket ended with.
enum SocketTurn {
    /// It has nothing more to send.
    Drained,
    /// It used its quantum.
    Spent,
    /// The device takes no more.
    Blocked,
}

/// What became of one datagram.
enum Outcome {
    Sent,
    Dropped(DropReason),
    Blocked,
}

impl Engine {
    /// Sends what sockets have, as far as the bounds of a round and of the device allow. Says whether anything was
    /// done.
    pub(in crate::engine) fn run_datagrams<P: Provider>(&mut self, nic: &mut P) -> bool {
        let mut worked = self.revive_datagrams(nic);
        let mut left = DATAGRAMS_PER_RUN;
        while left > 0
            && let Some(id) = self.datagrams.drr.front()
        {
            if let Some(tenant) = self.datagrams.drr.tenant()
                && !self.tenants.may_send(tenant, self.now, Waits::Datagrams)
            {
                self.datagrams.drr.set_aside();
                continue;
            }
            let before = left;
            let turn = self.socket_turn(nic, id, &mut left);
            worked |= left < before;
            match turn {
                Ok(SocketTurn::Blocked) => break,
                Ok(SocketTurn::Spent) => {
                    let deficit = self.datagrams.sockets.get(id).map_or(0, |s| s.deficit());
                    self.datagrams.drr.rotate(deficit);
                }
                Ok(SocketTurn::Drained) => {
                    self.datagrams.drr.leave();
                    self.on_drained(id);
                }
                Err(fault) => {
                    self.datagrams.drr.leave();
                    self.on_socket_fault(id, &fault);
                    worked = true;
                }
            }
        }
        self.flush_datagrams(nic);
        worked
    }

    /// Sends datagrams of one socket until its turn ends, and shows its application the room.
    fn socket_turn<P: Provider>(
        &mut self,
        nic: &mut P,
        id: SocketId,
        left: &mut usize,
    ) -> Result<SocketTurn, SocketFault> {
        let before = *left;
        let turn = self.socket_turn_quietly(nic, id, left);
        if *left < before
            && let Some(socket) = self.datagrams.sockets.get_mut(id)
        {
            let (at, awaited) = (socket.at(), socket.slot_mut().show_room());
            self.apps.mark(at, awaited);
        }
        turn
    }

    fn socket_turn_quietly<P: Provider>(
        &mut self,
        nic: &mut P,
        id: SocketId,
        left: &mut usize,
    ) -> Result<SocketTurn, SocketFault> {
        let datagrams = &mut self.datagrams;
        let Some(socket) = datagrams.sockets.get_mut(id) else { return Ok(SocketTurn::Drained) };
        datagrams.drr.begin_turn(socket.deficit_mut(), &self.tenants);
        while *left > 0 {
            let Some(socket) = self.datagrams.sockets.get_mut(id) else { return Ok(SocketTurn::Drained) };
            let Some(record) = socket.front()? else { return Ok(SocketTurn::Drained) };
            if self.datagrams.drr.allowance(socket.deficit()) == 0 {
                return Ok(SocketTurn::Spent);
            }
            let dropped = match self.send_datagram(nic, id, &record) {
                Outcome::Blocked => return Ok(SocketTurn::Blocked),
                Outcome::Sent => None,
                Outcome::Dropped(reason) => {
                    self.datagrams.drops.count(reason, 1);
                    Some(reason)
                }
            };
            *left -= 1;
            // A receiver of the same application may have cost it its session.
            let Some(socket) = self.datagrams.sockets.get_mut(id) else { return Ok(SocketTurn::Drained) };
            let cost = u32::try_from(record.ring_bytes()).unwrap_or(u32::MAX);
            self.datagrams.drr.spend(socket.deficit_mut(), cost);
            self.tenants.charge(self.datagrams.drr.tenant(), cost.into(), self.now);
            socket.take_front(dropped);
        }
        Ok(SocketTurn::Blocked)
    }

    /// The first datagram to a host makes the daemon dial it, if the socket's user may have that.
    fn dial_for_datagrams<P: Provider>(&mut self, nic: &mut P, id: SocketId, host: IpAddr) {
        let Some(app) = self.datagrams.sockets.get(id).map(|s| s.at().app) else { return };
        let Some(uid) = self.apps.get(app).map(App::uid) else { return };
        if self.datagrams.has_port()
            && self.check_way(app, host).is_ok()
            && let Some(lane) = self.lane_in_passing(nic, host)
        {
            self.want_link_in_passing(lane, uid);
        }
    }

    fn send_datagram<P: Provider>(&mut self, nic: &mut P, id: SocketId, record: &DatagramRecord) -> Outcome {
        let to = record.addr;
        if to.port() == 0 || !is_host(to.ip()) {
            return Outcome::Dropped(DropReason::BadAddress);
        }
        let app = self.datagrams.sockets.get(id).and_then(|socket| self.apps.get(socket.at().app));
        if app.is_some_and(|app| !app.may_reach(to.ip())) {
            return Outcome::Dropped(DropReason::Policy);
        }
        let is_own = self.is_own(to.ip());
        let peer = self.lanes.to(to.ip()).and_then(|lane| self.datagram_peer(lane));
        let peer = peer.map(|peer| (peer.dest(), peer.mtu()));
        let payload_max = match peer {
            _ if is_own => self.local_payload_max(),
            Some((_, mtu)) => self.payload_max(mtu),
            None => {
                self.dial_for_datagrams(nic, id, to.ip());
                return Outcome::Dropped(DropReason::NoPeer);
            }
        };
        if u32::from(record.bytes) > payload_max {
            return Outcome::Dropped(DropReason::TooLong);
        }
        if self.datagrams.port.as_ref().is_some_and(|port| port.is_batch_full()) {
            self.flush_datagrams(nic);
        }
        if !is_own {
            match &self.datagrams.port {
                Some(port) if port.has_failed() => return Outcome::Dropped(DropReason::Device),
                Some(port) if port.has_room(record.bytes.into()) => {}
                Some(_) => return Outcome::Blocked,
                None => return Outcome::Dropped(DropReason::NoPeer),
            }
        }
        let mut payload = self.datagrams.take_scratch();
        let Some(socket) = self.datagrams.sockets.get_mut(id) else { return Outcome::Blocked };
        socket.take_payload(record, &mut payload);
        let from = socket.slot().local();
        let dropped = match peer {
            Some((dest, _)) if !is_own => {
                let header = Header {
                    source_port: from.port(),
                    destination_port: to.port(),
                    bytes: record.bytes,
                    token: self.datagrams.token(),
                };
                let port = self.datagrams.port.as_mut();
                let staged = port.is_some_and(|port| port.stage(&header.to_bytes(), &payload, dest));
                (!staged).then_some(DropReason::Device)
            }
            _ => self.deliver(to.port(), from, &payload),
        };
        self.datagrams.put_back_scratch(payload);
        match dropped {
            None => {
                self.datagrams.count_sent(is_own);
                Outcome::Sent
            }
            // The sender's part is done. The receiver counts which socket did not get it, and why.
            Some(reason @ (DropReason::NoSocket | DropReason::RingFull)) => {
                self.datagrams.drops.count(reason, 1);
                Outcome::Sent
            }
            Some(reason) => Outcome::Dropped(reason),
        }
    }

    fn flush_datagrams<P: Provider>(&mut self, nic: &mut P) {
        if let Some(Err(refused)) = self.datagrams.port.as_mut().map(|port| port.flush(nic)) {
            self.datagrams.drops.count(DropReason::Device, refused);
        }
    }

    /// A socket has nothing more to send.
    fn on_drained(&mut self, id: SocketId) {
        let Some(socket) = self.datagrams.sockets.get_mut(id) else { return };
        socket.leave_ready();
        if socket.is_closed() {
            self.release_socket(id);
        }
    }

    fn revive_datagrams<P: Provider>(&mut self, nic: &mut P) -> bool {
        let Some(port) = &mut self.datagrams.port else { return false };
        let completions = &mut self.completions.waiting;
        let mut received = 0;
        let lost = port.try_revive(self.now, nic, |nic, cq, qpn| {
            for _ in 0..DRAIN_POLLS {
                match nic.poll_cq(cq, completions, COMPLETIONS_PER_RUN) {
                    Ok(n) if n > 0 => {}
                    _ => break,
                }
            }
            let arrived = |c: &&Completion| c.qpn == qpn && c.wr_id & RECV_WR != 0 && c.status == Status::Success;
            received = completions.iter().filter(arrived).count() as u64;
            completions.retain(|c| c.qpn != qpn);
        });
        self.datagrams.drops.count(DropReason::Device, lost + received);
        lost + received > 0
    }

    // ---- receiving

    /// A completion of the UD queue pair.
    pub(in crate::engine) fn on_datagram_completion(&mut self, c: &Completion) {
        let Some(port) = &mut self.datagrams.port else { return };
        let ok = c.status == Status::Success;
        if c.wr_id & RECV_WR == 0 {
            return if ok { port.on_sent(c.wr_id) } else { port.fail() };
        }
        let Some(entry) = port.receives.entry_of(c.wr_id) else {
            self.counters.device_refusals += 1;
            return;
        };
        if ok {
            let mut datagram = self.datagrams.take_arrived();
            let read =
                self.datagrams.port.as_ref().is_some_and(|port| port.receives.read(entry, c.byte_len, &mut datagram));
            let dropped = if read { self.on_datagram(&datagram, c) } else { Some(DropReason::Malformed) };
            self.datagrams.put_back_arrived(datagram);
            match dropped {
                Some(reason) => self.datagrams.drops.count(reason, 1),
                None => self.datagrams.count_received(),
            }
        } else {
            port.fail();
        }
        if let Some(port) = &mut self.datagrams.port {
            port.receives.give_back(entry);
        }
    }

    /// A datagram, its header area first. Says why it is dropped, if it is.
    fn on_datagram(&mut self, datagram: &[u8], c: &Completion) -> Option<DropReason> {
        let parsed = datagram.split_first_chunk::<GRH_BYTES>().and_then(|(area, rest)| {
            let (header, payload) = Header::parse(rest)?;
            Some((Grh::parse(area)?, header, payload))
        });
        let Some((grh, header, payload)) = parsed else { return Some(DropReason::Malformed) };
        let lane = self.datagrams.lane_of(header.token).and_then(|id| Some((id, self.lanes.get(id)?)));
        let linked = lane.and_then(|(id, lane)| Some((id, lane.peer(), lane.on.datagrams.as_ref()?)));
        let Some((id, host, peer)) = linked.filter(|(.., peer)| peer.sent(grh.source, c.src_qpn)) else {
            return Some(DropReason::Stranger);
        };
        if !peer.is_ready() {
            // It sends, so it has taken the offer, whose confirmation is still on its way over the control link.
            self.on_datagram_peer_ready(id);
        }
        let from = SocketAddr::new(host, header.source_port);
        self.deliver(header.destination_port, from, payload)
    }

    /// Puts a datagram into the ring of the socket at a port. Says why not, if it cannot.
    fn deliver(&mut self, port: u16, from: SocketAddr, payload: &[u8]) -> Option<DropReason> {
        let Some(id) = self.datagrams.socket_at(port) else { return Some(DropReason::NoSocket) };
        let Some(socket) = self.datagrams.sockets.get_mut(id) else { return Some(DropReason::NoSocket) };
        match socket.deliver(from, payload) {
            Ok(true) => {
                let (at, awaited) = (socket.at(), socket.slot().is_awaited());
                self.apps.mark(at, awaited);
                None
            }
            Ok(false) => {
                socket.count_drop(DropReason::RingFull);
                Some(DropReason::RingFull)
            }
            Err(fault) => {
                self.on_socket_fault(id, &fault.into());
                Some(DropReason::NoSocket)
            }
        }
    }
}
