//! Requests that arrived before one that is missing: kept, and executed in their turn, so that their sender repeats
//! only what was lost.
//!
//! They are copies. Nothing of them is placed before its turn, because the order of WRITEs shows in memory. What a peer
//! can make us keep is bounded for its QP and for the NIC.

use std::collections::BTreeMap;

use verbs::Psn;

use super::ranges::Ranges;
use crate::limits::{HELD_CHARGE_BYTES, HELD_NIC_BYTES_MAX, HELD_QP_BYTES_MAX, HELD_UNTOLD_MAX, REORDER_PACKETS};
use crate::wire::{Bth, Request, write_report};

/// One of them.
#[derive(Debug)]
pub(crate) struct HeldRequest {
    pub(crate) bth: Bth,
    /// Without its payload.
    request: Request<'static>,
    payload: Vec<u8>,
}

impl HeldRequest {
    pub(crate) fn request(&self) -> Request<'_> {
        match self.request {
            Request::Send { start, end, imm, invalidate, .. } => {
                Request::Send { start, end, imm, invalidate, payload: &self.payload }
            }
            Request::Write { reth, end, imm, .. } => Request::Write { reth, end, imm, payload: &self.payload },
            other => other,
        }
    }

    fn charge(&self) -> u64 {
        self.payload.len() as u64 + HELD_CHARGE_BYTES
    }
}

/// What a QP keeps. Packets are counted from the first that it expected.
#[derive(Debug, Default)]
pub(crate) struct Held {
    requests: BTreeMap<u64, HeldRequest>,
    present: Ranges,
    bytes: u64,
    /// Packets kept since the peer was told.
    untold: u32,
    /// The next report begins here, because the one before had no place for all.
    tell_from: u64,
    /// A PSN that was expected, and its count.
    expected: (Psn, u64),
}

impl Held {
    pub(crate) fn new(expected: Psn) -> Self {
        Self { expected: (expected, 0), ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The count of the packet that is expected now. It never goes back.
    fn count_of(&mut self, expected: Psn) -> u64 {
        let (psn, count) = self.expected;
        self.expected = (expected, count + u64::from(expected.since(psn)));
        self.expected.1
    }

    /// Keeps a request that is ahead of the expected one, if it is a SEND or WRITE and there is room. `nic_bytes` is
    /// what all QPs of the NIC keep. True if it is kept, or was.
    pub(crate) fn keep(&mut self, expected: Psn, bth: &Bth, request: &Request<'_>, nic_bytes: &mut u64) -> bool {
        let (request, payload) = match *request {
            Request::Send { start, end, imm, invalidate, payload } => {
                (Request::Send { start, end, imm, invalidate, payload: &[] }, payload)
            }
            Request::Write { reth, end, imm, payload } => (Request::Write { reth, end, imm, payload: &[] }, payload),
            // Of READs and atomics the sender knows by their answers that they arrived.
            _ => return false,
        };
        let packet = self.count_of(expected) + u64::from(bth.psn.since(expected));
        if self.present.contains(packet) {
            return true;
        }
        let charge = payload.len() as u64 + HELD_CHARGE_BYTES;
        if self.bytes + charge > HELD_QP_BYTES_MAX || *nic_bytes + charge > HELD_NIC_BYTES_MAX {
            return false;
        }
        self.bytes += charge;
        *nic_bytes += charge;
        self.present.insert(packet..packet + 1, |_| {});
        self.requests.insert(packet, HeldRequest { bth: *bth, request, payload: payload.to_vec() });
        true
    }

    /// Takes the request that is expected, if it is here. Those before it, which came again meanwhile, go.
    pub(crate) fn take(&mut self, expected: Psn, nic_bytes: &mut u64) -> Option<HeldRequest> {
        if self.requests.is_empty() {
            return None;
        }
        let packet = self.count_of(expected);
        self.present.remove(0..packet + 1, |_| {});
        while let Some(entry) = self.requests.first_entry().filter(|entry| *entry.key() <= packet) {
            let key = *entry.key();
            let held = entry.remove();
            self.bytes -= held.charge();
            *nic_bytes -= held.charge();
            if key == packet {
                return Some(held);
            }
        }
        None
    }

    /// Whether the peer should be told that this one was kept: it shows a new gap, or as many packets behind one as make
    /// it a loss, or many were not told.
    pub(crate) fn is_to_be_told(&mut self) -> bool {
        let highest = self.present.last().map_or(0, |range| range.end - range.start);
        self.untold += 1;
        let told = highest == 1 || highest == REORDER_PACKETS || self.untold >= HELD_UNTOLD_MAX;
        if told {
            self.untold = 0;
        }
        told
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self, nic_bytes: &mut u64) {
        *nic_bytes -= self.bytes;
        *self = Self::default();
    }

    /// Writes what is kept, as a report behind the packet before `expected`, into `to`; says how many bytes it takes.
    /// What one report has no place for, the next one tells.
    pub(crate) fn report(&mut self, expected: Psn, to: &mut [u8]) -> usize {
        let count = self.count_of(expected);
        let start = self.tell_from.max(count);
        let distance = |packet: u64| u32::try_from(packet - count).unwrap_or(u32::MAX);
        let highest = self.present.last().map_or(count, |range| range.end);
        let (mut from, mut ends) = (start, Vec::new());
        let runs = self.present.iter_from(start).map(|range| {
            let run = (distance(range.start) - distance(from), distance(range.end) - distance(range.start));
            from = range.end;
            ends.push(from);
            run
        });
        let head = std::iter::once((distance(highest), distance(start)));
        let (pairs, bytes) = write_report(head.chain(runs), to);
        let told = pairs.checked_sub(2).and_then(|last| ends.get(last)).copied().unwrap_or(highest);
        self.tell_from = if told < highest { told } else { 0 };
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{DEFAULT_PKEY, Report};
    use verbs::Qpn;

    fn send(psn: u32, payload: &[u8]) -> (Bth, Request<'_>) {
        let (dest_qpn, psn) = (Qpn(1), Psn::new(psn));
        let bth = Bth {
            opcode: 4,
            solicited: false,
            pad: 0,
            version: 0,
            pkey: DEFAULT_PKEY,
            dest_qpn,
            ack_request: false,
            psn,
        };
        (bth, Request::Send { start: true, end: true, imm: Some(psn.get()), invalidate: None, payload })
    }

    fn runs(held: &mut Held, expected: Psn) -> Vec<(u32, u32)> {
        let mut bytes = [0; 64];
        let used = held.report(expected, &mut bytes);
        Report::parse(&bytes[..used]).expect("a report").runs().collect()
    }

    #[test]
    fn what_does_not_fit_one_report_is_in_the_next() {
        let (mut nic, expected) = (0, Psn::new(0));
        let mut held = Held::new(expected);
        for psn in (1..40).filter(|psn| psn % 4 != 0) {
            let (bth, request) = send(psn, b"");
            assert!(held.keep(expected, &bth, &request, &mut nic));
        }
        let mut all = Vec::new();
        for _ in 0..4 {
            let mut bytes = [0; 10];
            let used = held.report(expected, &mut bytes);
            let report = Report::parse(&bytes[..used]).expect("a report");
            assert_eq!(report.highest, 40);
            all.push((report.left_out, report.runs().count()));
        }
        assert_eq!(all, [(0, 4), (16, 4), (32, 2), (0, 4)]);
    }

    #[test]
    fn requests_come_back_in_their_turn() {
        let (mut nic, expected) = (0, Psn::new(0xff_fffe));
        let mut held = Held::new(expected);
        for psn in [1, 0xff_ffff, 2] {
            let (bth, request) = send(psn, b"abcd");
            assert!(held.keep(expected, &bth, &request, &mut nic));
            assert!(held.keep(expected, &bth, &request, &mut nic), "a copy is kept already");
        }
        assert_eq!(runs(&mut held, expected), [(1, 1), (1, 2)]);
        assert!(held.take(expected, &mut nic).is_none());
        let first = held.take(expected.plus(1), &mut nic).expect("kept");
        assert_eq!(first.request(), send(0xff_ffff, b"abcd").1);
        assert_eq!(runs(&mut held, Psn::new(0)), [(1, 2)]);
        assert!(held.take(Psn::new(2), &mut nic).is_some(), "1 came again meanwhile");
        assert!(held.is_empty() && nic == 0 && held.bytes == 0);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (mut nic, expected, payload) = (0, Psn::new(0), vec![0; 4096]);
        let mut held = Held::new(expected);
        let mut kept = 0;
        for psn in 1..100_000 {
            let (bth, request) = send(psn, &payload);
            kept += u64::from(held.keep(expected, &bth, &request, &mut nic));
        }
        assert_eq!(kept, HELD_QP_BYTES_MAX / (4096 + HELD_CHARGE_BYTES));
        assert_eq!((runs(&mut held, expected).len(), nic), (1, held.bytes));
        let (mut others, mut full) = (Held::new(expected), HELD_NIC_BYTES_MAX);
        let (bth, request) = send(1, &payload);
        assert!(!others.keep(expected, &bth, &request, &mut full), "of the NIC too");
        held.clear(&mut nic);
        assert_eq!(nic, 0);
    }
}
