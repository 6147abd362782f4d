//! Two queue pairs and a byte stream between them that cuts anywhere. The part of the kernel is played by copies.
#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

use std::collections::VecDeque;
use std::net::IpAddr;

use iwarp::{Ending, Extensions, Gather, GatherPiece, Qp, QpAttr, QpEvent, Scatter};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rnic::{Device, DeviceLimits, ReceiveQueue};
use verbs::*;

/// Bytes of each end's memory.
pub const MEMORY: u64 = 1 << 20;

#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub access: Access,
    pub extensions: Extensions,
    pub wants_crc: [bool; 2],
    pub confirms: bool,
    pub ird: u16,
    pub ord: u16,
    pub has_srq: bool,
    /// Every send is signalled, whatever its flags say.
    pub sig_all: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            access: Access::all(),
            extensions: Extensions::all(),
            wants_crc: [false; 2],
            confirms: false,
            ird: 16,
            ord: 16,
            has_srq: false,
            sig_all: true,
        }
    }
}

/// One host: a device with one queue pair.
pub struct End {
    pub dev: Device,
    pub qp: Qp,
    pub cq: CqId,
    pub srq: Option<SrqId>,
    pub region: Region,
    pub mr: Mr,
    /// Registered with all rights except those of peers.
    pub local: Mr,
    pub events: Vec<QpEvent>,
    pub is_shut: bool,
    rng: SmallRng,
}

fn attr(name: &str) -> DeviceAttr {
    DeviceAttr {
        name: name.to_owned(),
        gid: Gid::from(IpAddr::from([127, 0, 0, 1])),
        udp_port: 4791,
        mtu: PathMtu::Mtu1024,
        max_msg_bytes: 1 << 31,
        max_inline_bytes: 256,
        max_qp_wr: 1024,
        max_srq_wr: 1024,
        max_cqe: 4096,
        max_sge: 4,
        max_rd_atomic: 16,
        max_qp: 16,
        max_mr: 64,
        capabilities: Capabilities::SOFTWARE_NIC,
        rx_budget_bytes: u32::MAX,
    }
}

impl End {
    pub fn new(side: u8, setup: &Setup) -> Self {
        let mut rng = SmallRng::seed_from_u64(side.into());
        let mut dev = Device::new(attr(&format!("end{side}")), DeviceLimits { max_cq: 8, max_srq: 8 });
        let cq = dev.create_cq(4096).expect("a CQ");
        let region = Region::anonymous(MEMORY as usize).expect("memory");
        let mr = dev.register(&verbs::MrInit::new(&region, 0, MEMORY, Access::all()), &mut rng).expect("an MR");
        let local =
            dev.register(&verbs::MrInit::new(&region, 0, MEMORY, Access::LOCAL_WRITE), &mut rng).expect("an MR");
        let srq =
            setup.has_srq.then(|| dev.create_srq(&SrqInit { max_wr: 256, max_sge: 4, limit: 0 }).expect("an SRQ"));
        let init = QpInit { srq, max_inline_bytes: 64, sq_sig_all: setup.sig_all, ..QpInit::new(QpType::Rc, cq, 128) };
        let attr = QpAttr {
            qpn: Qpn(10 + u32::from(side)),
            init,
            access: setup.access,
            max_msg_bytes: 1 << 20,
            ird: setup.ird,
            ord: setup.ord,
            wants_crc: setup.wants_crc[usize::from(side)],
            extensions: setup.extensions,
            confirms: setup.confirms,
        };
        let qp = Qp::new(attr, ReceiveQueue::new(128, 4));
        Self { dev, qp, cq, srq, region, mr, local, events: Vec::new(), is_shut: false, rng }
    }

    pub fn sge(&self, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.mr.lkey }
    }

    pub fn remote(&self, addr: u64) -> RemoteAddr {
        RemoteAddr { addr, rkey: self.mr.rkey }
    }

    pub fn fill(&self, addr: u64, bytes: &[u8]) {
        self.region.write(addr, bytes).expect("in the region");
    }

    pub fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(addr, &mut bytes).expect("in the region");
        bytes
    }

    pub fn send(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) -> Result<(), VerbsError> {
        self.send_flagged(wr_id, op, sges, SendFlags::SIGNALED)
    }

    pub fn send_flagged(&mut self, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) -> Result<(), VerbsError> {
        self.qp.post_send(&SendWr { wr_id, op, payload: Payload::Sges(sges), flags, dest: None }, &mut self.dev)
    }

    pub fn send_inline(&mut self, wr_id: u64, op: SendOp, bytes: &[u8]) -> Result<(), VerbsError> {
        let (payload, flags) = (Payload::Inline(bytes), SendFlags::SIGNALED);
        self.qp.post_send(&SendWr { wr_id, op, payload, flags, dest: None }, &mut self.dev)
    }

    pub fn recv(&mut self, wr_id: u64, addr: u64, len: u32) {
        let sges = [self.sge(addr, len)];
        let wr = RecvWr { wr_id, sges: &sges };
        match self.srq {
            Some(srq) => self.dev.post_srq_recv(srq, &[wr]).expect("room in the SRQ"),
            None => self.qp.post_recv(&wr, &mut self.dev).expect("room in the receive queue"),
        }
    }

    pub fn completions(&mut self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.dev.poll_cq(self.cq, &mut out, 4096).expect("the CQ is there");
        out
    }

    pub fn async_events(&mut self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.dev.take_event()).collect()
    }

    /// What ended the stream, if it ended.
    pub fn ending(&mut self) -> Option<Ending> {
        self.note_events();
        self.events.iter().find_map(|event| match event {
            QpEvent::Ended(ending) => Some(ending.clone()),
            _ => None,
        })
    }

    pub fn note_events(&mut self) {
        self.events.extend(std::iter::from_fn(|| self.qp.poll_event()));
    }

    /// Writes up to `most` of what is to be sent; says how many bytes that were.
    pub fn transmit(&mut self, gather: &mut Gather, most: usize, wire: &mut VecDeque<u8>) -> usize {
        self.qp.poll_transmit(&mut self.dev, gather);
        let mut left = most;
        for piece in gather.pieces() {
            let bytes = match piece {
                GatherPiece::Own(range) => gather.own_bytes(range).to_vec(),
                GatherPiece::Memory(range) => {
                    let mut bytes = vec![0; range.len as usize];
                    range.region.read(range.offset, &mut bytes).expect("a checked range");
                    bytes
                }
            };
            let taken = bytes.len().min(left);
            wire.extend(&bytes[..taken]);
            left -= taken;
        }
        let sent = most - left;
        self.qp.sent(&mut self.dev, sent as u64);
        sent
    }

    /// Reads up to `most` bytes; says how many.
    pub fn receive(&mut self, most: usize, wire: &mut VecDeque<u8>) -> usize {
        let mut scatter = Scatter::new();
        self.qp.want(&mut self.dev, &mut scatter);
        let memory = scatter.memory_bytes() as usize;
        let count = most.min(wire.len()).min(memory + scatter.buffer_bytes);
        let bytes: Vec<u8> = wire.drain(..count).collect();
        let placed = count.min(memory);
        let mut at = 0;
        for piece in &scatter.pieces {
            let len = (placed - at).min(piece.len as usize);
            piece.region.write(piece.offset, &bytes[at..at + len]).expect("a checked range");
            at += len;
        }
        if count > 0 {
            self.qp.received(&mut self.dev, placed as u64, &bytes[placed..]);
        }
        count
    }
}

/// Two ends and what is between them.
pub struct Pair {
    pub ends: [End; 2],
    /// Bytes on their way to the end of that index.
    pub wires: [VecDeque<u8>; 2],
    gather: Gather,
}

impl Pair {
    /// Ends with a TCP connection, before the first byte.
    pub fn unconnected(setup: &Setup) -> Self {
        let ends = [End::new(0, setup), End::new(1, setup)];
        Self { ends, wires: Default::default(), gather: Gather::new(64, 1 << 18) }
    }

    /// End 0 has connected to end 1.
    pub fn new(setup: &Setup) -> Self {
        let mut pair = Self::unconnected(setup);
        pair.connect(b"request", b"reply");
        pair.settle();
        pair
    }

    /// The MPA exchange up to the acceptance.
    pub fn connect(&mut self, request: &[u8], reply: &[u8]) {
        self.ends[0].qp.connect(request).expect("idle");
        while self.ends[0].transmit(&mut self.gather, 7, &mut self.wires[1]) > 0 {}
        let mut bytes = Vec::new();
        let startup = loop {
            match iwarp::mpa::Startup::parse(iwarp::mpa::FrameKind::Request, &bytes).expect("a request") {
                iwarp::mpa::Parsed::More(wanted) => bytes.extend(self.wires[1].drain(..wanted - bytes.len())),
                iwarp::mpa::Parsed::Whole(startup, used) => {
                    assert_eq!(used, bytes.len());
                    break startup;
                }
            }
        };
        assert_eq!(startup.private_data, request);
        self.ends[1].qp.accept(&startup, reply).expect("idle");
    }

    /// One step of one end, with cuts at these numbers of bytes. Says whether anything moved.
    pub fn step(&mut self, side: usize, transmit: usize, receive: usize) -> bool {
        let sent = self.ends[side].transmit(&mut self.gather, transmit, &mut self.wires[1 - side]);
        let received = self.ends[side].receive(receive, &mut self.wires[side]);
        if self.ends[side].qp.is_shutdown_due() {
            self.ends[side].is_shut = true;
        }
        let at_end = self.ends[1 - side].is_shut && self.wires[side].is_empty();
        if at_end && !self.ends[side].qp.is_over() {
            let end = &mut self.ends[side];
            end.qp.on_eof(&mut end.dev);
        }
        self.ends[side].note_events();
        sent + received > 0
    }

    /// Lets everything happen that can.
    pub fn settle(&mut self) {
        self.settle_by(|| 1 << 20);
    }

    /// As [`Self::settle`], with cuts.
    pub fn settle_by(&mut self, mut cut: impl FnMut() -> usize) {
        let mut still = 0;
        for round in 0.. {
            assert!(round < 2_000_000, "it never ends");
            let moved = self.step(round % 2, cut().max(1), cut().max(1));
            still = if moved { 0 } else { still + 1 };
            if still == 6 {
                return;
            }
        }
    }
}
