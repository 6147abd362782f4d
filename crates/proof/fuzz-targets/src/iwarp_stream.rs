//! The TCP wire: the frames of its startup, and a whole queue pair whose peer is the input.
//!
//! Promises that are judged: nothing panics; memory outside of what the peer was granted and of the posted receives stays
//! what it was; each work request completes once, and all have when the stream is over; what leaves are whole frames with
//! a right CRC, a Terminate message last and once; and bytes that come one at a time do the same as bytes that come at
//! once.

use std::collections::VecDeque;
use std::net::IpAddr;

use iwarp::ddp::{Header, Tagged, Untagged};
use iwarp::mpa::{CRC_BYTES, Enhanced, FrameKind, LENGTH_BYTES, Parsed, Revision, Startup, crc, fpdu_bytes};
use iwarp::rdmap::Opcode;
use iwarp::{Extensions, Gather, GatherPiece, Qp, QpAttr, QpEvent, Scatter};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rnic::{Device, DeviceLimits, ReceiveQueue};
use verbs::{
    Access, Capabilities, Completion, CqId, DeviceAttr, Gid, Mr, PathMtu, Payload, QpInit, QpType, Qpn, RecvWr, Region,
    RemoteAddr, Rkey, SendFlags, SendOp, SendWr, Sge, Status, Time,
};

use crate::input::Input;

/// Steps of one input.
const STEPS_MAX: usize = 100;
/// Bytes of each part of memory: a fence, the granted part, a fence, places of receives, places of answers.
const PART: u64 = 4096;
const GRANTED: u64 = PART;
const RECEIVES: u64 = 3 * PART;
const ANSWERS: u64 = 4 * PART;
const RECEIVE_BYTES: u64 = 256;

/// No bytes make the parser panic, and what it accepts says the same when it is written again.
pub(crate) fn mpa_startup(bytes: &[u8]) {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        match Startup::parse(kind, bytes) {
            Ok(Parsed::Whole(frame, used)) => {
                let written = frame.to_bytes();
                assert_eq!(written.len(), used, "no byte is left over");
                assert_eq!(Startup::parse(kind, &written), Ok(Parsed::Whole(frame, used)));
            }
            Ok(Parsed::More(wanted)) => assert!(wanted > bytes.len() && wanted <= 532),
            Err(_) => {}
        }
    }
}

/// The target.
pub(crate) fn iwarp_stream(bytes: &[u8]) {
    let at_once = Bench::run(bytes, usize::MAX);
    let in_bytes = Bench::run(bytes, 1);
    assert_eq!(at_once.completions, in_bytes.completions, "pieces make no difference");
    assert_eq!(at_once.events, in_bytes.events);
    assert_eq!(at_once.output, in_bytes.output);
    assert!(at_once.memory() == in_bytes.memory());
}

struct Bench {
    dev: Device,
    qp: Qp,
    cq: CqId,
    region: Region,
    granted: Mr,
    own: Mr,
    fence: Vec<u8>,
    is_active: bool,
    posted: [u64; 2],
    completions: Vec<Completion>,
    events: Vec<QpEvent>,
    output: Vec<u8>,
    /// Messages that the peer sent whole, by queue: guesses at what is expected.
    msn: [u32; 4],
    to_qp: VecDeque<u8>,
    cut: usize,
}

fn device() -> Device {
    let attr = DeviceAttr {
        name: "fuzzed".into(),
        gid: Gid::from(IpAddr::from([127, 0, 0, 1])),
        udp_port: 4791,
        mtu: PathMtu::Mtu1024,
        max_msg_bytes: 1 << 20,
        max_inline_bytes: 64,
        max_qp_wr: 256,
        max_srq_wr: 16,
        max_cqe: 1024,
        max_sge: 2,
        max_rd_atomic: 16,
        max_qp: 1,
        max_mr: 4,
        capabilities: Capabilities::SOFTWARE_NIC,
        rx_budget_bytes: u32::MAX,
    };
    Device::new(attr, DeviceLimits { max_cq: 1, max_srq: 1 })
}

impl Bench {
    fn run(bytes: &[u8], cut: usize) -> Self {
        let mut input = Input::new(bytes);
        let mut bench = Self::new(input.byte(), cut);
        for _ in 0..STEPS_MAX {
            if input.is_empty() {
                break;
            }
            bench.step(&mut input);
        }
        bench.finish();
        bench
    }

    fn new(choice: u8, cut: usize) -> Self {
        let mut dev = device();
        let cq = dev.create_cq(1024).expect("a CQ");
        let fence: Vec<u8> = (0..5 * PART).map(|i| (i % 251) as u8).collect();
        let region = Region::anonymous(fence.len()).expect("memory");
        region.write(0, &fence).expect("inside");
        let mut keys = SmallRng::seed_from_u64(1);
        let granted =
            dev.register(&verbs::MrInit::new(&region, GRANTED, PART, Access::all()), &mut keys).expect("an MR");
        let own = dev
            .register(&verbs::MrInit::new(&region, RECEIVES, 2 * PART, Access::LOCAL_WRITE), &mut keys)
            .expect("an MR");
        let has_crc = choice & 1 != 0;
        let is_active = choice & 2 != 0;
        let access = if choice & 4 != 0 { Access::REMOTE_WRITE } else { Access::all() };
        let attr = QpAttr {
            qpn: Qpn(2),
            init: QpInit { sq_sig_all: true, max_send_sge: 1, ..QpInit::new(QpType::Rc, cq, 64) },
            access,
            max_msg_bytes: 2048,
            ird: 2,
            ord: 2,
            wants_crc: has_crc,
            extensions: Extensions::from_bits_truncate(!(choice >> 3)),
            confirms: choice & 0x40 != 0,
        };
        let qp = Qp::new(attr, ReceiveQueue::new(16, 1));
        let mut bench = Self {
            dev,
            qp,
            cq,
            region,
            granted,
            own,
            fence,
            is_active,
            posted: [0; 2],
            completions: Vec::new(),
            events: Vec::new(),
            output: Vec::new(),
            msn: [1; 4],
            to_qp: VecDeque::new(),
            cut,
        };
        bench.start(choice & 0x80 != 0);
        bench
    }

    /// The exchange before the first frame. The active end gets its reply in the first step.
    fn start(&mut self, has_markers: bool) {
        if self.is_active {
            self.qp.connect(b"fuzz").expect("idle");
            self.transmit();
            return;
        }
        let request = Startup { wants_markers: has_markers, ..startup(FrameKind::Request) };
        self.qp.accept(&request, b"fuzz").expect("idle");
        self.transmit();
        self.output.clear();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 10 {
            0 => {
                let count = usize::from(input.byte());
                let bytes = input.bytes(count).to_vec();
                self.to_qp.extend(bytes);
            }
            1 => {
                let is_request = input.byte() & 1 != 0;
                let reply = startup(if is_request { FrameKind::Request } else { FrameKind::Reply });
                let mut bytes = reply.to_bytes();
                let (at, value) = (usize::from(input.byte()), input.byte());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
                self.to_qp.extend(bytes);
            }
            2 | 3 => self.tagged(input),
            4 | 5 => self.untagged(input),
            6 => self.post_recv(input),
            7 | 8 => self.post_send(input),
            _ => self.rare(input),
        }
        self.deliver();
        self.transmit();
        self.judge();
    }

    fn rare(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        self.deliver();
        match choice % 6 {
            0 => self.qp.close(&mut self.dev),
            1 => self.qp.abort(&mut self.dev),
            2 => self.qp.on_eof(&mut self.dev),
            3 => self.qp.handle_timeout(&mut self.dev, Time(u64::from(choice) << 30)),
            4 => self.qp.fatal(&mut self.dev),
            _ => {
                let _ = self.dev.mrs.deregister(self.granted.id);
            }
        }
    }

    fn frame(&mut self, header: &Header, payload: &[u8], damage: u8) {
        let mut bytes = [0; 18];
        let header_bytes = header.write(&mut bytes);
        let ulpdu_bytes = header_bytes + payload.len();
        let mut frame = u16::try_from(ulpdu_bytes).unwrap_or(u16::MAX).to_be_bytes().to_vec();
        frame.extend(&bytes[..header_bytes]);
        frame.extend(payload);
        frame.resize(fpdu_bytes(ulpdu_bytes) - CRC_BYTES, 0);
        if damage == 0xdd {
            frame[LENGTH_BYTES] ^= 0x01;
        }
        let field = crc(&frame);
        frame.extend(field);
        if damage == 0xcc {
            frame[LENGTH_BYTES + 1] ^= 0x10;
        }
        self.to_qp.extend(frame);
    }

    fn tagged(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        let stag = match input.byte() % 4 {
            0 => 0,
            1 => self.own.rkey.0,
            _ => self.granted.rkey.0,
        };
        let offset = match input.byte() {
            0xff => u64::MAX - u64::from(input.byte()),
            high => u64::from(high % 17) << 8 | u64::from(input.byte()),
        };
        let opcode = if kind & 4 == 0 { Opcode::Write } else { Opcode::ReadResponse };
        let ulp = if kind & 0x70 == 0x70 { kind } else { opcode.control() };
        let len = usize::from(input.byte()) * if kind & 2 == 0 { 1 } else { 20 };
        let payload = vec![input.byte(); len];
        let header = Tagged { is_last: kind & 1 == 0, ulp, stag, offset };
        self.frame(&Header::Tagged(header), &payload, input.byte());
    }

    fn untagged(&mut self, input: &mut Input<'_>) {
        let (number, choice) = (input.byte(), input.byte());
        let opcode = Opcode::ALL[usize::from(number % 12)];
        let queue = opcode.queue().unwrap_or(0) + u32::from(choice & 0xc0 == 0xc0);
        let expected = self.msn.get(queue as usize).copied().unwrap_or(1);
        let msn = expected.wrapping_add(u32::from(choice & 0x30 == 0x30));
        let is_last = choice & 1 == 0;
        let offset = if choice & 2 == 0 { 0 } else { u32::from(input.byte()) };
        let mut payload = match opcode {
            Opcode::ReadRequest => vec![0; 28],
            Opcode::AtomicRequest => vec![0; 52],
            Opcode::AtomicResponse => vec![0; 12],
            Opcode::Immediate | Opcode::ImmediateSolicited => vec![0; 8],
            Opcode::Terminate => vec![0; usize::from(input.byte() % 60)],
            _ => vec![number; usize::from(input.byte()) * 2],
        };
        let given = input.byte() % 28;
        for (slot, byte) in payload.iter_mut().zip(input.bytes(given.into())) {
            *slot = *byte;
        }
        let key = self.granted.rkey.0.to_be_bytes();
        match opcode {
            Opcode::ReadRequest => payload[16..20].copy_from_slice(&key),
            Opcode::AtomicRequest => payload[8..12].copy_from_slice(&key),
            _ => {}
        }
        if is_last && let Some(count) = self.msn.get_mut(queue as usize) {
            *count = count.wrapping_add(1);
        }
        let header = Untagged { is_last, ulp: opcode.control(), ulp_word: 0, queue, msn, offset };
        self.frame(&Header::Untagged(header), &payload, input.byte());
    }

    fn post_recv(&mut self, input: &mut Input<'_>) {
        let slot = u64::from(input.byte() % 16);
        let sges = [Sge { addr: slot * RECEIVE_BYTES, len: RECEIVE_BYTES as u32, lkey: self.own.lkey }];
        let wr = RecvWr { wr_id: self.posted[1], sges: &sges };
        if self.qp.post_recv(&wr, &mut self.dev).is_ok() {
            self.posted[1] += 1;
        }
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        let (kind, len) = (input.byte(), u32::from(input.byte()) * 8);
        let remote = RemoteAddr { addr: input.byte().into(), rkey: Rkey(input.byte().into()) };
        let (op, len) = match kind % 7 {
            0 => (SendOp::Send, len),
            1 => (SendOp::SendImm(len), len),
            2 => (SendOp::Write(remote), len),
            3 => (SendOp::WriteImm(remote, len), len),
            4 => (SendOp::Read(remote), len),
            5 => (SendOp::FetchAdd { remote, add: 1 }, 8),
            _ => (SendOp::CmpSwap { remote, compare: 1, swap: 2 }, 8),
        };
        let addr = ANSWERS - RECEIVES + u64::from(input.byte());
        let sges = [Sge { addr, len, lkey: self.own.lkey }];
        let flags = SendFlags::from_bits_truncate(kind >> 4);
        let wr = SendWr { wr_id: self.posted[0], op, payload: Payload::Sges(&sges), flags, dest: None };
        if self.qp.post_send(&wr, &mut self.dev).is_ok() {
            self.posted[0] += 1;
        }
    }

    /// Hands the peer's bytes in, in pieces.
    fn deliver(&mut self) {
        let mut scatter = Scatter::new();
        while !self.to_qp.is_empty() {
            self.qp.want(&mut self.dev, &mut scatter);
            let memory = scatter.memory_bytes() as usize;
            let count = self.to_qp.len().min(self.cut).min(memory + scatter.buffer_bytes);
            if count == 0 {
                self.to_qp.clear();
                return;
            }
            let bytes: Vec<u8> = self.to_qp.drain(..count).collect();
            let placed = count.min(memory);
            let mut at = 0;
            for piece in &scatter.pieces {
                let len = (placed - at).min(piece.len as usize);
                piece.region.write(piece.offset, &bytes[at..at + len]).expect("a checked range");
                at += len;
            }
            self.qp.received(&mut self.dev, placed as u64, &bytes[placed..]);
        }
    }

    fn transmit(&mut self) {
        let mut gather = Gather::new(16, 1 << 16);
        loop {
            self.qp.poll_transmit(&mut self.dev, &mut gather);
            if gather.is_empty() {
                break;
            }
            for piece in gather.pieces() {
                match piece {
                    GatherPiece::Own(range) => self.output.extend_from_slice(gather.own_bytes(range)),
                    GatherPiece::Memory(range) => {
                        let mut bytes = vec![0; range.len as usize];
                        range.region.read(range.offset, &mut bytes).expect("a checked range");
                        self.output.extend(bytes);
                    }
                }
            }
            self.qp.sent(&mut self.dev, gather.bytes());
        }
        self.qp.is_shutdown_due();
        self.events.extend(std::iter::from_fn(|| self.qp.poll_event()));
    }

    fn memory(&self) -> Vec<u8> {
        let mut seen = vec![0; self.fence.len()];
        self.region.read(0, &mut seen).expect("inside");
        seen
    }

    fn judge(&mut self) {
        let seen = self.memory();
        for fence in [0..GRANTED as usize, 2 * PART as usize..RECEIVES as usize] {
            assert!(seen[fence.clone()] == self.fence[fence], "the peer reached what it was not granted");
        }
        self.dev.poll_cq(self.cq, &mut self.completions, 1024).expect("the CQ");
        let has_ended = self.events.iter().any(|event| matches!(event, QpEvent::Ended(_)));
        let is_receive = |c: &&Completion| matches!(c.opcode, verbs::WcOpcode::Recv | verbs::WcOpcode::RecvWriteImm);
        let receives: Vec<u64> = self.completions.iter().filter(is_receive).map(|c| c.wr_id).collect();
        let sends: Vec<u64> = self.completions.iter().filter(|c| !is_receive(c)).map(|c| c.wr_id).collect();
        for (done, posted) in [(sends, self.posted[0]), (receives, self.posted[1])] {
            assert!(done.iter().copied().eq(0..done.len() as u64), "in order, and each once: {done:?}");
            assert!(done.len() as u64 <= posted && (!has_ended || done.len() as u64 == posted), "{done:?} of {posted}");
        }
    }

    fn finish(&mut self) {
        self.qp.broke(&mut self.dev);
        self.transmit();
        self.judge();
        let late = self.completions.iter().filter(|c| c.status == Status::Success).count();
        assert!(late as u64 <= self.posted[0] + self.posted[1]);
        assert!(self.qp.is_over());
        self.judge_output();
    }

    /// What left are whole frames, and nothing follows a Terminate message.
    fn judge_output(&self) {
        let mut bytes = &self.output[..];
        if self.is_active {
            let Ok(Parsed::Whole(_, used)) = Startup::parse(FrameKind::Request, bytes) else { panic!("no request") };
            bytes = &bytes[used..];
        }
        // A peer may have asked for markers, which stand every 512 bytes, and which CRCs cover.
        let without_markers = bytes.chunks(512).flat_map(|chunk| chunk.iter().skip(4)).copied().collect::<Vec<u8>>();
        assert!(are_frames(bytes, true) || are_frames(&without_markers, false), "{bytes:02x?}");
    }
}

/// Whether these are whole frames, of which none follows a Terminate message.
fn are_frames(mut bytes: &[u8], checks_crc: bool) -> bool {
    let mut has_ended = false;
    while let Some((length, _)) = bytes.split_first_chunk::<LENGTH_BYTES>() {
        let whole = fpdu_bytes(u16::from_be_bytes(*length).into());
        let Some((frame, later)) = bytes.split_at_checked(whole).filter(|_| !has_ended) else { return false };
        let (covered, field) = frame.split_at(frame.len() - CRC_BYTES);
        let Some(header) = Header::parse(&covered[LENGTH_BYTES..]) else { return false };
        if checks_crc && field != [0; CRC_BYTES] && field != crc(covered) {
            return false;
        }
        has_ended = header.ulp() == Opcode::Terminate.control();
        bytes = later;
    }
    bytes.is_empty()
}

fn startup(kind: FrameKind) -> Startup {
    let enhanced = Enhanced { ird: 2, ord: 2, peer_to_peer: true, rtr_send: false, rtr_write: true, rtr_read: false };
    Startup {
        kind,
        revision: Revision::Two,
        wants_markers: false,
        wants_crc: false,
        is_rejected: false,
        enhanced: Some(enhanced),
        private_data: Vec::new(),
    }
}
