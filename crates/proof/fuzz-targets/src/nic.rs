//! The whole NIC, compared with the model: packets of the peer, of strangers, garbage, time and verbs, as the input
//! says.
//!
//! Promises that are judged after every step: nothing panics; memory is the model's, and outside of the granted region
//! what it was; the expected PSN and the state are the model's; receives complete as in the model; what leaves goes to
//! the peer, has a right ICRC and acknowledges nothing that did not arrive; a stranger's packet is counted once and
//! changes nothing.

use std::net::SocketAddr;
use std::time::Duration;

use roce::wire::{AtomicEth, Body, Bth, Header, NakCode, Opcode, Packet, PseudoHeader, Response, Reth, Syndrome};
use roce::{Ipv4IdMode, Nic, NicConfig, NicLimits};
use verbs::{
    Access, AddressVector, CqId, Gid, Mr, PathMtu, Payload, Provider, Psn, Qkey, QpInit, QpModify, QpState, QpType,
    Qpn, RecvWr, Region, RemoteAddr, Rkey, RtrAttr, RtsAttr, SendFlags, SendOp, SendWr, Sge, Status, Time, WcOpcode,
};

use crate::input::Input;
use crate::model::{Asked, GRANTED, MTU, Model, Outcome, PSN_MODULUS, Place, RECEIVE_BYTES};

/// Steps of one input.
const STEPS_MAX: usize = 200;
/// Places for receives.
const RECEIVES: usize = 16;
const PEER_QPN: Qpn = Qpn(0x12_3456);
/// Pages: one before the granted memory, the granted one, one behind.
const PAGE: usize = 4096;
/// Sends of one drain: a READ of all granted memory and some.
const TRANSMITS_MAX: usize = 256;

/// The target with a reliable connection.
pub(crate) fn nic(bytes: &[u8]) {
    run(bytes, QpType::Rc);
}

/// The target with an unreliable connection, which answers nothing.
pub(crate) fn nic_unreliable(bytes: &[u8]) {
    run(bytes, QpType::Uc);
}

fn run(bytes: &[u8], qp_type: QpType) {
    let mut input = Input::new(bytes);
    let mut bench = Bench::new(input.byte(), qp_type);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        bench.step(&mut input);
    }
}

struct Bench {
    nic: Nic,
    model: Model,
    now: Time,
    local: SocketAddr,
    peer: SocketAddr,
    qpn: Qpn,
    cq: CqId,
    /// The granted memory between two pages that nobody may touch.
    region: Region,
    fence: Vec<u8>,
    granted: Mr,
    receives: Region,
    receive_mr: Mr,
    next_receive: u64,
    /// Work of the own requester may end the QP too, by wrong answers or by none.
    has_asked: bool,
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 4791))
}

impl Bench {
    fn new(choice: u8, qp_type: QpType) -> Self {
        let (local, peer) = (address(1), address(2));
        let config = NicConfig {
            local,
            standby: Vec::new(),
            mtu: PathMtu::Mtu256,
            limits: NicLimits::default(),
            rx_budget_bytes: u32::MAX,
            capabilities: verbs::Capabilities::ROCE,
            name: "fuzzed".into(),
            max_gso_segments: 1 + usize::from(choice % 8),
            id_mode: if choice & 8 == 0 { Ipv4IdMode::SegmentIndex } else { Ipv4IdMode::Zero },
        };
        let mut nic = Nic::new(config, [choice; 32]);
        let cq = nic.create_cq(1024).expect("a CQ");
        let init = QpInit {
            pd: verbs::PdId::default(),
            qp_type,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: 64,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_bytes: 64,
            sq_sig_all: true,
        };
        let qpn = nic.create_qp(&init).expect("a QP");
        // Just below the end of the PSN space, so that it is crossed.
        let epsn = PSN_MODULUS - 1 - u32::from(choice >> 4);
        nic.modify_qp(qpn, &QpModify::Init { access: Access::all(), qkey: Qkey(0) }).expect("Init");
        let rtr = RtrAttr {
            dest_qpn: PEER_QPN,
            rq_psn: Psn::new(epsn),
            av: AddressVector::new(Gid::from(peer.ip())),
            mtu: PathMtu::Mtu256,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            source_port: None,
        };
        nic.modify_qp(qpn, &QpModify::Rtr(rtr)).expect("RTR");
        let rts = RtsAttr {
            sq_psn: Psn::new(77),
            timeout: 8,
            retry_cnt: 2,
            rnr_retry: 2,
            max_rd_atomic: 4,
            peer_rx_budget_bytes: u32::MAX,
            peer: verbs::Capabilities::empty(),
        };
        nic.modify_qp(qpn, &QpModify::Rts(rts)).expect("RTS");
        let fence: Vec<u8> = (0..3 * PAGE).map(|i| (i % 251) as u8).collect();
        let region = Region::anonymous(3 * PAGE).expect("memory");
        region.write(0, &fence).expect("inside");
        let granted = nic.reg_mr(&region, PAGE as u64, GRANTED as u64, Access::all()).expect("an MR");
        let receives = Region::anonymous(RECEIVES * RECEIVE_BYTES).expect("memory");
        let receive_mr = nic.reg_mr(&receives, 0, receives.len(), Access::LOCAL_WRITE).expect("an MR");
        let model = Model::new(epsn, fence[PAGE..2 * PAGE].to_vec(), qp_type == QpType::Uc);
        Self {
            nic,
            model,
            now: Time(1),
            local,
            peer,
            qpn,
            cq,
            region,
            fence,
            granted,
            receives,
            receive_mr,
            next_receive: 0,
            has_asked: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let mut expected = Outcome::Ignored;
        let psn_before = self.model.epsn;
        match input.byte() % 16 {
            0..=8 => expected = self.request(input),
            9 => self.garbage(input),
            10 => self.stranger(input),
            11 | 12 => self.post_receive(),
            13 => self.wait(input),
            14 => self.post_send(input),
            _ => self.respond(input),
        }
        self.judge(&expected, psn_before);
    }

    /// A request with a right ICRC, from the peer.
    fn request(&mut self, input: &mut Input<'_>) -> Outcome {
        let (psn, asked, bytes) = self.forge(input, self.peer);
        let outcome = self.model.handle(psn, &asked);
        let before = self.nic.counters_detail().drops();
        self.nic.handle_datagram(self.now, self.peer, &bytes, 0);
        if self.model.is_unreliable {
            let counted = self.nic.counters_detail().drops() - before;
            assert_eq!(
                counted,
                u64::from(outcome == Outcome::Dropped),
                "what has no effect is counted once: {outcome:?}"
            );
        }
        outcome
    }

    fn forge(&self, input: &mut Input<'_>, from: SocketAddr) -> (u32, Asked, Vec<u8>) {
        const OPCODES: [Opcode; 15] = [
            Opcode::WriteOnly,
            Opcode::SendOnly,
            Opcode::ReadRequest,
            Opcode::FetchAdd,
            Opcode::CompareSwap,
            Opcode::WriteFirst,
            Opcode::WriteMiddle,
            Opcode::WriteLast,
            Opcode::WriteLastImm,
            Opcode::WriteOnlyImm,
            Opcode::SendFirst,
            Opcode::SendMiddle,
            Opcode::SendLast,
            Opcode::SendLastImm,
            Opcode::SendOnlyImm,
        ];
        let opcode = match usize::from(input.byte()) {
            // Those that unreliable connections have: the first two, and the messages behind the requests for data.
            choice if self.model.is_unreliable => OPCODES[[0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14][choice % 12]],
            choice => OPCODES[choice % OPCODES.len()],
        };
        let shape = input.byte();
        let delta = if shape & 3 == 3 { i32::from(input.byte() as i8) } else { 0 };
        let psn = self.model.epsn.wrapping_add_signed(delta) % PSN_MODULUS;
        let len = match shape >> 2 & 3 {
            0 | 1 => MTU,
            2 => usize::from(input.byte()),
            _ => usize::from(input.word() % 600),
        };
        let payload: Vec<u8> = (0..len).map(|i| (i as u8) ^ shape ^ (psn as u8)).collect();
        // Mostly a length that fits the packet, or two packets.
        let claimed = match shape >> 4 & 3 {
            0 => len as u32,
            1 => len as u32 + MTU as u32,
            2 => u32::from(input.word()),
            _ => input.long(),
        };
        let (key, opens) = match shape >> 6 {
            0 | 1 => (self.granted.rkey, true),
            2 => (self.receive_mr.rkey, false),
            _ => (Rkey(self.granted.rkey.0 ^ 0x100), false),
        };
        let reach = input.byte();
        let addr = match reach {
            0..=127 => u64::from(input.byte()) * 8,
            128..=240 => u64::from(input.word() % 4200),
            _ => u64::from(input.long()) << (reach & 15),
        };
        let place = Place { addr, len: claimed, opens };
        let imm = 0x0102_0304;
        let (asked, payload) = match opcode {
            Opcode::ReadRequest => (Asked::Read(place), Vec::new()),
            Opcode::FetchAdd => (Asked::Atomic { place, compare: None, operand: claimed.into() }, Vec::new()),
            Opcode::CompareSwap => {
                (Asked::Atomic { place, compare: Some(u64::from(claimed) >> 8), operand: claimed.into() }, Vec::new())
            }
            _ => (message(opcode, place, imm, payload.clone()), payload),
        };
        let bth = Bth {
            opcode: if self.model.is_unreliable { opcode.on_unreliable() } else { opcode }.byte(),
            solicited: shape & 1 != 0,
            pad: (payload.len().wrapping_neg() & 3) as u8,
            version: 0,
            pkey: 0xffff,
            dest_qpn: self.qpn,
            ack_request: shape & 2 != 0,
            psn: Psn::new(psn),
        };
        let mut header = Header::new(&bth);
        if matches!(opcode, Opcode::WriteOnly | Opcode::WriteFirst | Opcode::WriteOnlyImm | Opcode::ReadRequest) {
            header = header.with_reth(Reth { addr, rkey: key, dma_len: claimed });
        }
        if let Asked::Atomic { compare, operand, .. } = asked {
            let eth = AtomicEth { addr, rkey: key, swap_or_add: operand, compare: compare.unwrap_or(0) };
            header = header.with_atomic(eth);
        }
        if opcode_has_imm(opcode) {
            header = header.with_imm(imm);
        }
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(&payload);
        bytes.resize(bytes.len() + usize::from(bth.pad), 0);
        let icrc = PseudoHeader::new(from, self.local).expect("both are IPv4").icrc(&bytes, 0);
        bytes.extend(icrc);
        (psn, asked, bytes)
    }

    /// Any bytes, from the peer: dropped and counted. One in 2^32 has a right ICRC; no input is judged by that.
    fn garbage(&mut self, input: &mut Input<'_>) {
        let mut bytes = input.byte().to_be_bytes().to_vec();
        bytes.extend_from_slice(input.bytes(64));
        if bytes.len() > 8 {
            bytes[5..8].copy_from_slice(&self.qpn.0.to_be_bytes()[1..]);
        }
        self.dropped(self.peer, &bytes);
    }

    /// A right packet from somebody else.
    fn stranger(&mut self, input: &mut Input<'_>) {
        let from = address(3 + input.byte() % 200);
        let (_, _, bytes) = self.forge(input, from);
        self.dropped(from, &bytes);
    }

    fn dropped(&mut self, from: SocketAddr, bytes: &[u8]) {
        let before = self.nic.counters_detail().drops();
        self.nic.handle_datagram(self.now, from, bytes, 0);
        let counted = self.nic.counters_detail().drops() - before;
        assert_eq!(counted, 1, "a packet that means nothing is dropped and counted once");
    }

    fn post_receive(&mut self) {
        if self.model.ended || self.model.receives.len() + self.model.received.len() >= RECEIVES {
            return;
        }
        let wr_id = self.next_receive;
        let place = Sge {
            addr: (wr_id as usize % RECEIVES * RECEIVE_BYTES) as u64,
            len: RECEIVE_BYTES as u32,
            lkey: self.receive_mr.lkey,
        };
        if self.nic.post_recv(self.qpn, &[RecvWr { wr_id, sges: &[place] }]).is_ok() {
            self.next_receive += 1;
            self.model.receives.push_back(wr_id);
        }
    }

    fn wait(&mut self, input: &mut Input<'_>) {
        self.now = self.now + Duration::from_micros(1 << (input.byte() % 20));
        if self.nic.deadline().is_some_and(|at| at <= self.now) {
            self.nic.handle_timeout(self.now);
        }
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        let remote = RemoteAddr { addr: u64::from(input.word()), rkey: Rkey(input.long()) };
        let op = match input.byte() % 4 {
            0 => SendOp::Send,
            1 => SendOp::Write(remote),
            2 => SendOp::WriteImm(remote, 9),
            _ => SendOp::SendImm(9),
        };
        let payload = [0x5a; 64];
        let length = usize::from(input.byte() % 65);
        let wr = SendWr {
            wr_id: 1 << 32,
            op,
            payload: Payload::Inline(&payload[..length]),
            flags: SendFlags::SIGNALED,
            dest: None,
        };
        self.has_asked |= self.nic.post_send(self.qpn, &[wr]).is_ok();
    }

    /// An acknowledgement of something, asked for or not, with a right ICRC.
    fn respond(&mut self, input: &mut Input<'_>) {
        let psn = Psn::new(77u32.wrapping_add_signed(i32::from(input.byte() as i8)));
        let syndrome = match input.byte() % 4 {
            0 | 1 => Syndrome::Ack(31),
            2 => Syndrome::RnrNak(1),
            _ => Syndrome::Nak(NakCode::SequenceError),
        };
        let opcode = if input.byte().is_multiple_of(4) { Opcode::ReadResponseOnly } else { Opcode::Acknowledge };
        let bth = Bth {
            opcode: opcode.byte(),
            solicited: false,
            pad: 0,
            version: 0,
            pkey: 0xffff,
            dest_qpn: self.qpn,
            ack_request: false,
            psn,
        };
        let aeth = roce::wire::Aeth { syndrome, msn: input.byte().into() };
        let mut bytes = Header::new(&bth).with_aeth(aeth).as_bytes().to_vec();
        bytes.extend(PseudoHeader::new(self.peer, self.local).expect("both are IPv4").icrc(&bytes, 0));
        if self.model.is_unreliable {
            return self.dropped(self.peer, &bytes);
        }
        self.nic.handle_datagram(self.now, self.peer, &bytes, 0);
    }

    // ---- judging

    fn judge(&mut self, expected: &Outcome, psn_before: u32) {
        let answered = self.drain(expected);
        let status = self.nic.query_qp(self.qpn).expect("the QP is there");
        if status.state == QpState::Err && self.has_asked {
            self.model.ended = true;
        }
        let wanted = if self.model.ended { QpState::Err } else { QpState::Rts };
        assert_eq!(status.state, wanted, "after {expected:?}");
        assert_eq!(status.rq_psn.get(), self.model.epsn, "expected PSN after {expected:?}");
        let mut found = vec![0; 3 * PAGE];
        self.region.read(0, &mut found).expect("inside");
        assert!(found[..PAGE] == self.fence[..PAGE], "memory before the granted region changed");
        assert!(found[2 * PAGE..] == self.fence[2 * PAGE..], "memory behind the granted region changed");
        assert!(
            found[PAGE..2 * PAGE] == self.model.memory[..],
            "granted memory is not as it must be after {expected:?}"
        );
        self.judge_receives();
        if let Outcome::Executed(Some(wanted)) = expected
            && !self.model.ended
        {
            assert!(answered == *wanted, "the READ at {psn_before} answered {} other bytes", answered.len());
        }
    }

    /// Takes everything that leaves; the payload of READ responses that belong to the request just executed.
    fn drain(&mut self, expected: &Outcome) -> Vec<u8> {
        let route = PseudoHeader::new(self.local, self.peer).expect("both are IPv4");
        let (mut buffer, mut answered) = (Vec::new(), Vec::new());
        let packets = match expected {
            Outcome::Executed(Some(bytes)) => bytes.len().div_ceil(MTU).max(1) as u32,
            _ => 0,
        };
        for _ in 0..TRANSMITS_MAX {
            let Some(transmit) = self.nic.poll_transmit(self.now, &mut buffer) else { return answered };
            assert_eq!(transmit.destination, self.peer, "answers go to the peer alone");
            let stride = transmit.segment_bytes.map_or(buffer.len(), usize::from);
            for (index, segment) in buffer.chunks(stride).enumerate() {
                let (covered, icrc) = segment.split_at(segment.len() - 4);
                assert_eq!(route.icrc(covered, index as u16), icrc, "ICRC of segment {index}");
                let packet = Packet::parse(segment).expect("what leaves is a packet");
                assert_eq!(packet.bth.dest_qpn, PEER_QPN);
                let behind = self.model.epsn.wrapping_sub(packet.bth.psn.get()) % PSN_MODULUS;
                self.judge_answer(&packet, behind, expected);
                if let Body::Response(Response::Read { payload, .. }) = packet.body
                    && (1..=packets).contains(&behind)
                {
                    answered.extend_from_slice(payload);
                }
            }
        }
        panic!("it never stops sending");
    }

    /// `behind`: PSNs from the packet's to the expected one.
    fn judge_answer(&self, packet: &Packet<'_>, behind: u32, expected: &Outcome) {
        if self.model.is_unreliable {
            let service = Opcode::from_byte(packet.bth.opcode).map(Opcode::service);
            assert_eq!(service, Ok(Some(QpType::Uc)));
            assert!(
                self.has_asked && matches!(packet.body, Body::Request(_)),
                "{packet:?} of a QP that answers nothing"
            );
            return;
        }
        let has_arrived = (1..PSN_MODULUS / 2).contains(&behind);
        let aeth = match packet.body {
            Body::Request(_) => return assert!(self.has_asked, "a request that nobody posted"),
            Body::Datagram(_) => panic!("a datagram of an RC QP"),
            Body::Congestion => panic!("a notification, and nothing was marked"),
            Body::Response(Response::Read { .. } | Response::Atomic(..)) => {
                return assert!(has_arrived, "an answer to a request that did not arrive");
            }
            Body::Response(Response::Acknowledge(aeth)) => aeth,
        };
        match aeth.syndrome {
            Syndrome::Ack(_) => assert!(has_arrived, "acknowledged what did not arrive"),
            Syndrome::RnrNak(_) => assert_eq!((behind, expected), (0, &Outcome::NotReady)),
            Syndrome::Nak(NakCode::SequenceError) => {
                assert_eq!(behind, 0, "the NAK names the missing packet");
                assert_ne!(*expected, Outcome::Duplicate, "nothing is missing before a packet seen before");
            }
            Syndrome::Nak(_) => assert!(behind == 0 && self.model.ended, "a fatal NAK of a living QP"),
            Syndrome::Reserved(byte) => panic!("reserved syndrome {byte:#x}"),
        }
    }

    fn judge_receives(&mut self) {
        let mut completions = Vec::new();
        self.nic.poll_cq(self.cq, &mut completions, usize::MAX).expect("the CQ is there");
        for done in completions {
            let is_receive = matches!(done.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm);
            if done.status != Status::Success {
                assert!(self.model.ended || self.has_asked, "{done:?} of a living QP");
                continue;
            }
            if !is_receive {
                assert!(self.has_asked, "{done:?} of work that nobody posted");
                continue;
            }
            let wanted = self.model.received.pop_front().expect("no receive completes that must not");
            assert_eq!((done.wr_id, done.byte_len, done.imm), (wanted.wr_id, wanted.bytes, wanted.imm));
            if let Some(content) = wanted.content {
                let mut found = vec![0; content.len()];
                let at = wanted.wr_id as usize % RECEIVES * RECEIVE_BYTES;
                self.receives.read(at as u64, &mut found).expect("inside");
                assert!(found == content, "the SEND's bytes lie in its receive");
            }
        }
        assert!(self.model.received.is_empty(), "a receive did not complete: {:?}", self.model.received);
    }
}

fn opcode_has_imm(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::WriteOnlyImm | Opcode::WriteLastImm | Opcode::SendOnlyImm | Opcode::SendLastImm)
}

fn message(opcode: Opcode, place: Place, imm: u32, payload: Vec<u8>) -> Asked {
    let imm = opcode_has_imm(opcode).then_some(imm);
    let start = matches!(
        opcode,
        Opcode::WriteOnly
            | Opcode::WriteOnlyImm
            | Opcode::WriteFirst
            | Opcode::SendOnly
            | Opcode::SendOnlyImm
            | Opcode::SendFirst
    );
    let end = !matches!(opcode, Opcode::WriteFirst | Opcode::WriteMiddle | Opcode::SendFirst | Opcode::SendMiddle);
    match opcode {
        Opcode::SendFirst
        | Opcode::SendMiddle
        | Opcode::SendLast
        | Opcode::SendLastImm
        | Opcode::SendOnly
        | Opcode::SendOnlyImm => Asked::Send { start, end, imm, payload },
        _ => Asked::Write { place: start.then_some(place), end, imm, payload },
    }
}
