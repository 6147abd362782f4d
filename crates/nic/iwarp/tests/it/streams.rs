//! Any operations in both directions at a time, over a byte stream that cuts anywhere: everything completes in order,
//! and every byte is where it belongs.

use crate::pair::{End, MEMORY, Pair, Setup};
use iwarp::Extensions;
use proptest::prelude::*;
use verbs::*;

/// Parts of each end's memory: what is sent and read, what peers write, where receives and answers land, words.
const WRITTEN: u64 = 256 << 10;
const RECEIVED: u64 = 512 << 10;
const ANSWERED: u64 = 768 << 10;
const WORD: u64 = MEMORY - 64;
const ORIGINALS: u64 = MEMORY - 4096;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CmpSwap,
}

#[derive(Debug, Clone, Copy)]
struct Op {
    kind: Kind,
    /// Bytes.
    len: u32,
    /// Where the payload begins in the first part.
    from: u32,
    is_inline: bool,
    has_fence: bool,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let kind = prop_oneof![
        Just(Kind::Send),
        Just(Kind::SendImm),
        Just(Kind::Write),
        Just(Kind::WriteImm),
        Just(Kind::Read),
        Just(Kind::FetchAdd),
        Just(Kind::CmpSwap),
    ];
    let len = prop_oneof![4 => 0..80u32, 3 => 0..5_000u32, 1 => 60_000..140_000u32];
    let op = (kind, len, 0..100_000u32, any::<bool>(), prop::bool::weighted(0.1));
    let op = op.prop_map(|(kind, len, from, is_inline, has_fence)| Op { kind, len, from, is_inline, has_fence });
    prop::collection::vec(op, 0..24)
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    let cut = prop_oneof![3 => 1..40usize, 2 => 1..700usize, 2 => 1..20_000usize, 1 => Just(1 << 20)];
    prop::collection::vec(cut, 1..40)
}

/// What one end was told to do, and what must come of it.
#[derive(Default)]
struct Plan {
    posted: usize,
    completions: Vec<(WcOpcode, u32)>,
    /// Receive completions of the peer: opcode, bytes, immediate.
    arrivals: Vec<(WcOpcode, u32, Option<u32>)>,
    /// Places and contents in the peer's memory, and in the own.
    at_peer: Vec<(u64, Vec<u8>)>,
    at_home: Vec<(u64, Vec<u8>)>,
    written: u64,
    received: u64,
    answered: u64,
    originals: u64,
    word: u64,
}

fn pattern(side: usize) -> Vec<u8> {
    (0..WRITTEN as usize).map(|i| (i as u64).wrapping_mul(0x9e37_79b9 + side as u64).to_le_bytes()[2]).collect()
}

impl Plan {
    /// Posts an operation of `end` toward `peer`.
    fn post(&mut self, side: usize, op: Op, end: &mut End, peer: &mut End) {
        let wr_id = self.posted as u64;
        self.posted += 1;
        let room = |used: u64| ((192 << 10) as u64 - used.min(192 << 10)) as u32;
        let mut len = op.len;
        let imm = op.from;
        let (own, theirs) = (pattern(side), pattern(1 - side));
        let payload = |len: u32| own[op.from as usize..][..len as usize].to_vec();
        let (work, opcode, home) = match op.kind {
            Kind::Send | Kind::SendImm => {
                len = len.min(room(self.received));
                let at = RECEIVED + self.received;
                peer.recv(wr_id, at, len);
                self.received += u64::from(len);
                self.at_peer.push((at, payload(len)));
                let with = matches!(op.kind, Kind::SendImm).then_some(imm);
                self.arrivals.push((WcOpcode::Recv, len, with));
                (with.map_or(SendOp::Send, SendOp::SendImm), WcOpcode::Send, None)
            }
            Kind::Write | Kind::WriteImm => {
                len = len.min(room(self.written));
                let at = WRITTEN + self.written;
                self.written += u64::from(len);
                self.at_peer.push((at, payload(len)));
                let remote = peer.remote(at);
                let work = if matches!(op.kind, Kind::WriteImm) {
                    peer.recv(wr_id, 0, 0);
                    self.arrivals.push((WcOpcode::RecvWriteImm, len, Some(imm)));
                    SendOp::WriteImm(remote, imm)
                } else {
                    SendOp::Write(remote)
                };
                (work, WcOpcode::Write, None)
            }
            Kind::Read => {
                len = len.min(room(self.answered));
                let at = ANSWERED + self.answered;
                self.answered += u64::from(len);
                self.at_home.push((at, theirs[op.from as usize..][..len as usize].to_vec()));
                (SendOp::Read(peer.remote(op.from.into())), WcOpcode::Read, Some(at))
            }
            Kind::FetchAdd | Kind::CmpSwap => {
                len = 8;
                let at = ORIGINALS + self.originals;
                self.originals += 8;
                self.at_home.push((at, self.word.to_ne_bytes().to_vec()));
                let remote = peer.remote(WORD);
                if matches!(op.kind, Kind::FetchAdd) {
                    self.word = self.word.wrapping_add(imm.into());
                    (SendOp::FetchAdd { remote, add: imm.into() }, WcOpcode::FetchAdd, Some(at))
                } else {
                    // Every other one finds what it expects.
                    let compare = self.word.wrapping_add(u64::from(imm & 1));
                    if compare == self.word {
                        self.word = imm.into();
                    }
                    (SendOp::CmpSwap { remote, compare, swap: imm.into() }, WcOpcode::CmpSwap, Some(at))
                }
            }
        };
        let answered = home.is_some();
        self.completions.push((opcode, if answered { len } else { 0 }));
        let at = home.unwrap_or(op.from.into());
        // Two pieces in two lists, where there is something to cut.
        let first = len / 3;
        let sges = [end.sge(at, first), end.sge(at + u64::from(first), len - first)];
        let bytes = payload(len.min(64));
        let payload =
            if op.is_inline && !answered && len <= 64 { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
        let flags = if op.has_fence { SendFlags::FENCE } else { SendFlags::empty() };
        let wr = SendWr { wr_id, op: work, payload, flags, dest: None };
        end.qp.post_send(&wr, &mut end.dev).expect("it is allowed");
    }

    fn judge(mut self, end: &mut End, peer: &mut End, own: &[Completion], theirs: &[Completion]) {
        let sent: Vec<_> = own.iter().map(|c| (c.status, c.wr_id, c.opcode, c.byte_len)).collect();
        let expected: Vec<_> = (0..).zip(&self.completions).map(|(i, c)| (Status::Success, i, c.0, c.1)).collect();
        assert_eq!(sent, expected, "in order, and each once");
        let arrived: Vec<_> = theirs.iter().map(|c| (c.status, c.opcode, c.byte_len, c.imm)).collect();
        let expected: Vec<_> = self.arrivals.iter().map(|a| (Status::Success, a.0, a.1, a.2)).collect();
        assert_eq!(arrived, expected);
        self.at_peer.push((WORD, self.word.to_ne_bytes().to_vec()));
        for (memory, places) in [(&*peer, &self.at_peer), (&*end, &self.at_home)] {
            for (at, bytes) in places {
                assert!(memory.bytes(*at, bytes.len()) == *bytes, "{} bytes at {at}", bytes.len());
            }
        }
    }
}

fn run(wants_crc: bool, confirms: bool, has_srq: bool, ird: u16, ops: [Vec<Op>; 2], cuts: &[usize], gap: usize) {
    let setup = Setup { wants_crc: [wants_crc, false], confirms, has_srq, ird, ..Setup::default() };
    let mut pair = Pair::unconnected(&setup);
    for side in [0, 1] {
        pair.ends[side].fill(0, &pattern(side));
    }
    pair.connect(b"a", b"b");
    let mut plans = [Plan::default(), Plan::default()];
    let mut cut = cuts.iter().copied().cycle();
    let mut next = move || cut.next().expect("an endless list");
    let mut rounds = 0;
    while plans.iter().zip(&ops).any(|(plan, ops)| plan.posted < ops.len()) {
        for side in [0, 1] {
            if let Some(op) = ops[side].get(plans[side].posted) {
                let [a, b] = &mut pair.ends;
                let (end, peer) = if side == 0 { (a, b) } else { (b, a) };
                plans[side].post(side, *op, end, peer);
            }
        }
        for _ in 0..gap {
            pair.step(rounds % 2, next(), next());
            rounds += 1;
        }
    }
    pair.settle_by(next);
    assert_eq!(pair.ends.each_mut().map(|end| end.ending()), [None, None]);
    let is_receive = |c: &Completion| matches!(c.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm);
    let [first, second] =
        pair.ends.each_mut().map(|end| end.completions().into_iter().partition::<Vec<_>, _>(is_receive));
    let [a, b] = &mut pair.ends;
    let [plan_a, plan_b] = plans;
    plan_a.judge(a, b, &first.1, &second.0);
    plan_b.judge(b, a, &second.1, &first.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_operations_over_any_cuts(
        wants_crc in any::<bool>(),
        confirms in any::<bool>(),
        has_srq in any::<bool>(),
        ird in 1..4u16,
        first in ops(),
        second in ops(),
        cuts in cuts(),
        gap in 0..12usize,
    ) {
        run(wants_crc, confirms, has_srq, ird, [first, second], &cuts, gap);
    }
}

/// The worst cut there is, over every operation and every phase of a frame.
#[test]
fn one_byte_at_a_time() {
    let kinds = [Kind::Write, Kind::WriteImm, Kind::Send, Kind::SendImm, Kind::Read, Kind::FetchAdd, Kind::CmpSwap];
    let all: Vec<Op> = (0..28)
        .map(|i| Op { kind: kinds[i % 7], len: i as u32 * 5, from: i as u32, is_inline: i % 2 == 0, has_fence: false })
        .collect();
    for (wants_crc, confirms) in [(false, true), (true, false)] {
        run(wants_crc, confirms, false, 2, [all.clone(), all.clone()], &[1], 1);
    }
}

#[test]
fn a_message_of_a_megabyte_crosses_in_both_directions() {
    let mut pair = Pair::new(&Setup { extensions: Extensions::empty(), ..Setup::default() });
    for side in [0, 1] {
        pair.ends[side].fill(0, &pattern(side));
        let remote = pair.ends[1 - side].remote(WRITTEN);
        let end = &mut pair.ends[side];
        let sges = [end.sge(0, 200 << 10), end.sge(0, 200 << 10), end.sge(0, 100 << 10)];
        end.send(1, SendOp::Write(remote), &sges).expect("it is allowed");
    }
    let mut cut = [100_000, 1, 70_001, 33, 4096].into_iter().cycle();
    pair.settle_by(|| cut.next().expect("an endless list"));
    for side in [0, 1] {
        let mut expected = pattern(1 - side)[..200 << 10].repeat(2);
        expected.extend_from_slice(&pattern(1 - side)[..100 << 10]);
        assert!(pair.ends[side].bytes(WRITTEN, expected.len()) == expected);
        assert_eq!(pair.ends[side].completions().len(), 1);
    }
}
