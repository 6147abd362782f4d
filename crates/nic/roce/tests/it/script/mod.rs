//! One NIC whose peer is played by the test, packet by packet.
#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

use std::net::SocketAddr;
use std::time::Duration;

use roce::wire::{Aeth, Body, DEFAULT_PKEY, Response};
use roce::wire::{AtomicEth, Bth, Header, NakCode, Opcode, Packet, PseudoHeader, Reth, Syndrome};
use roce::{Ipv4IdMode, Nic, NicConfig, NicLimits};
use verbs::*;

pub const MTU: usize = 256;
pub const PEER_QPN: Qpn = Qpn(0x11_2233);
/// What the peer starts with; what the NIC starts with.
pub const THEIR_PSN: u32 = 100;
pub const OUR_PSN: u32 = 200;

pub struct Script {
    pub nic: Nic,
    pub qpn: Qpn,
    pub cq: CqId,
    pub region: Region,
    pub mr: Mr,
    pub now: Time,
    pub peer: SocketAddr,
    pub to_nic: PseudoHeader,
    pub from_nic: PseudoHeader,
}

/// Opcode, PSN, and the AETH if there is one.
pub type Line = (Opcode, u32, Option<Aeth>);

/// Of an end that has no receive posted.
pub fn ack(msn: u32) -> Option<Aeth> {
    Some(Aeth { syndrome: Syndrome::Ack(0), msn })
}

pub fn nak(code: NakCode, msn: u32) -> Option<Aeth> {
    Some(Aeth { syndrome: Syndrome::Nak(code), msn })
}

impl Script {
    /// Towards a foreign peer, every send signalled.
    pub fn new() -> Self {
        Self::towards(None, true)
    }

    /// The same; the peer may do less.
    pub fn with_access(access: Access) -> Self {
        Self::connected(None, true, access, NicLimits { window_packets: 8, ..NicLimits::default() })
    }

    /// The same; the device does more, and the way has a traffic class.
    pub fn with_capabilities(capabilities: verbs::Capabilities, traffic_class: u8) -> Self {
        Self::made(None, true, Access::all(), NicLimits::default(), capabilities, traffic_class)
    }

    /// The same; the device holds less.
    pub fn with_limits(limits: NicLimits) -> Self {
        Self::connected(None, true, Access::all(), limits)
    }

    /// Towards a peer of our own, with so many send work requests, none signalled by default.
    pub fn towards_our_own(max_send_wr: u32) -> Self {
        Self::towards(Some(max_send_wr), false)
    }

    pub fn towards(own_peer_max_send_wr: Option<u32>, sq_sig_all: bool) -> Self {
        let limits = NicLimits { window_packets: 8, ..NicLimits::default() };
        Self::connected(own_peer_max_send_wr, sq_sig_all, Access::all(), limits)
    }

    fn connected(own_peer_max_send_wr: Option<u32>, sq_sig_all: bool, access: Access, limits: NicLimits) -> Self {
        Self::made(own_peer_max_send_wr, sq_sig_all, access, limits, verbs::Capabilities::ROCE, 0)
    }

    fn made(
        own_peer_max_send_wr: Option<u32>,
        sq_sig_all: bool,
        access: Access,
        limits: NicLimits,
        capabilities: verbs::Capabilities,
        traffic_class: u8,
    ) -> Self {
        let local: SocketAddr = "10.0.0.2:4791".parse().expect("an address");
        let peer: SocketAddr = "10.0.0.1:4791".parse().expect("an address");
        let mut nic = Nic::new(
            NicConfig {
                local,
                standby: Vec::new(),
                mtu: PathMtu::Mtu256,
                limits,
                rx_budget_bytes: u32::MAX,
                capabilities,
                name: "nic".into(),
                max_gso_segments: 1,
                id_mode: Ipv4IdMode::Zero,
            },
            [3; 32],
        );
        let cq = nic.create_cq(64).expect("a CQ");
        let init = QpInit {
            pd: verbs::PdId::default(),
            qp_type: QpType::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: own_peer_max_send_wr.unwrap_or(32),
            max_recv_wr: 32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            sq_sig_all,
        };
        let qpn = nic.create_qp(&init).expect("a QP");
        let region = Region::anonymous(1 << 16).expect("memory");
        let mr = nic.reg_mr(&region, 0, 1 << 16, Access::all()).expect("an MR");
        nic.modify_qp(qpn, &QpModify::Init { access, qkey: Qkey(0) }).expect("Init");
        let rtr = RtrAttr {
            dest_qpn: PEER_QPN,
            rq_psn: Psn::new(THEIR_PSN),
            av: AddressVector { traffic_class, ..AddressVector::new(Gid::from(peer.ip())) },
            mtu: PathMtu::Mtu256,
            max_dest_rd_atomic: 3,
            min_rnr_timer: 10,
            source_port: own_peer_max_send_wr.map(|_| peer.port()),
        };
        nic.modify_qp(qpn, &QpModify::Rtr(rtr)).expect("RTR");
        let rts = RtsAttr {
            sq_psn: Psn::new(OUR_PSN),
            timeout: 14,
            retry_cnt: 3,
            rnr_retry: 3,
            max_rd_atomic: 3,
            peer_rx_budget_bytes: own_peer_max_send_wr.map_or(u32::MAX, |_| 1 << 20),
            peer: own_peer_max_send_wr.map_or(verbs::Capabilities::ROCE, |_| verbs::Capabilities::SOFTWARE_NIC),
        };
        nic.modify_qp(qpn, &QpModify::Rts(rts)).expect("RTS");
        let to_nic = PseudoHeader::new(peer, local).expect("one family");
        let from_nic = PseudoHeader::new(local, peer).expect("one family");
        Self { nic, qpn, cq, region, mr, now: Time(1), peer, to_nic, from_nic }
    }

    pub fn bth(&self, opcode: Opcode, psn: u32, ack_request: bool) -> Bth {
        let (dest_qpn, psn) = (self.qpn, Psn::new(psn));
        Bth {
            opcode: opcode.byte(),
            solicited: false,
            pad: 0,
            version: 0,
            pkey: DEFAULT_PKEY,
            dest_qpn,
            ack_request,
            psn,
        }
    }

    pub fn deliver(&mut self, header: Header, payload: &[u8]) {
        let mut bytes = [header.as_bytes(), payload].concat();
        let icrc = self.to_nic.icrc(&bytes, 0);
        bytes.extend(icrc);
        self.nic.handle_datagram(self.now, self.peer, &bytes, 0);
    }

    /// An only WRITE of 8 bytes to address 0.
    pub fn write(&mut self, psn: u32, ack_request: bool) {
        let reth = Reth { addr: 0, rkey: self.mr.rkey, dma_len: 8 };
        let header = Header::new(&self.bth(Opcode::WriteOnly, psn, ack_request)).with_reth(reth);
        self.deliver(header, &[7; 8]);
    }

    pub fn read(&mut self, psn: u32, addr: u64, len: u32) {
        let reth = Reth { addr, rkey: self.mr.rkey, dma_len: len };
        self.deliver(Header::new(&self.bth(Opcode::ReadRequest, psn, true)).with_reth(reth), &[]);
    }

    pub fn add(&mut self, psn: u32) {
        let eth = AtomicEth { addr: 64, rkey: self.mr.rkey, swap_or_add: 1, compare: 0 };
        self.deliver(Header::new(&self.bth(Opcode::FetchAdd, psn, true)).with_atomic(eth), &[]);
    }

    pub fn acknowledge(&mut self, psn: u32, syndrome: Syndrome) {
        let aeth = Aeth { syndrome, msn: 0 };
        self.deliver(Header::new(&self.bth(Opcode::Acknowledge, psn, false)).with_aeth(aeth), &[]);
    }

    pub fn post(&mut self, op: SendOp, len: u32) {
        self.post_with(op, len, SendFlags::empty());
    }

    pub fn post_with(&mut self, op: SendOp, len: u32, flags: SendFlags) {
        let sges = [Sge { addr: 0, len, lkey: self.mr.lkey }];
        let wr = SendWr { wr_id: 1, op, payload: Payload::Sges(&sges), flags, dest: None };
        self.nic.post_send(self.qpn, &[wr]).expect("posted");
    }

    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: 0x1000, rkey: Rkey(0x77) }
    }

    /// Everything that the NIC sends now, each packet judged by its ICRC.
    pub fn packets(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let mut buf = Vec::new();
        while let Some(transmit) = self.nic.poll_transmit(self.now, &mut buf) {
            assert_eq!((transmit.destination, transmit.segment_bytes), (self.peer, None));
            let (covered, icrc) = buf.split_last_chunk().expect("an ICRC");
            assert_eq!(self.from_nic.icrc(covered, 0), *icrc);
            packets.push(buf.clone());
        }
        packets
    }

    pub fn lines(&mut self) -> Vec<Line> {
        let line = |bytes: &Vec<u8>| {
            let packet = Packet::parse(bytes).expect("a packet");
            assert_eq!(packet.bth.dest_qpn, PEER_QPN);
            let aeth = match packet.body {
                Body::Response(Response::Acknowledge(aeth) | Response::Atomic(aeth, _)) => Some(aeth),
                Body::Response(Response::Read { aeth, .. }) => aeth,
                Body::Request(_) | Body::Datagram(_) | Body::Congestion => None,
            };
            (Opcode::from_byte(packet.bth.opcode).expect("known"), packet.bth.psn.get(), aeth)
        };
        self.packets().iter().map(line).collect()
    }

    /// Which of the packets that the NIC sends now ask for an ACK.
    pub fn asks(&mut self) -> Vec<bool> {
        self.packets().iter().map(|bytes| Packet::parse(bytes).expect("a packet").bth.ack_request).collect()
    }

    pub fn psns(&mut self) -> Vec<u32> {
        self.lines().iter().map(|(_, psn, _)| *psn).collect()
    }

    pub fn statuses(&mut self) -> Vec<Status> {
        let mut out = Vec::new();
        self.nic.poll_cq(self.cq, &mut out, 100).expect("the CQ");
        out.iter().map(|c| c.status).collect()
    }

    pub fn wait(&mut self, span: Duration) {
        self.now = self.now + span;
        self.nic.handle_timeout(self.now);
    }
}
