//! The UD queue pair: its receives, what is posted to send and not completed, and its recovery.
//!
//! Owns the memory of both. It must never hold more datagrams outstanding than its bounds, and must never post memory
//! of an application: a datagram is copied before it is posted, so an application may do anything with its ring.
//!
//! UD sends complete in order, and that of a signalled one speaks for all before it (IBTA 10.8.5.1). They are numbered;
//! the number is the `wr_id` and, modulo the slots, the slot.

use std::collections::VecDeque;

use verbs::{
    Access, AddressVector, CqId, GRH_BYTES, Payload, PostError, Provider, Psn, Qkey, QpInit, QpModify, QpType, Qpn,
    RtrAttr, RtsAttr, SendFlags, SendOp, SendWr, Sge, Time, UdDest, VerbsError,
};

use super::header::HEADER_BYTES;
use crate::limits::{
    DATAGRAM_BYTES_INFLIGHT_MAX, DATAGRAM_RECEIVES, DATAGRAM_REVIVAL, DATAGRAMS_INFLIGHT_MAX, POST_BATCH,
};
use crate::numbers::{count, index};
use crate::places::{Places, Receives};
use crate::recvpool::RECV_WR;

#[derive(Debug, Clone, Copy)]
struct Staged {
    seq: u64,
    bytes: u32,
    dest: UdDest,
}

/// The queue pair and its memory.
#[derive(Debug)]
pub(crate) struct UdPort {
    qpn: Qpn,
    qkey: Qkey,
    cq: CqId,
    /// Longest datagram, header included, in bytes.
    mtu_bytes: u32,
    gid: verbs::Gid,

    /// The header area of each first.
    pub(crate) receives: Receives,
    sends: Places,
    slots: u64,
    /// Bytes of each that is posted or staged and not completed.
    outstanding: VecDeque<u32>,
    outstanding_bytes: u64,
    /// Number of the first in `outstanding`.
    first: u64,
    staged: Vec<Staged>,

    /// The queue pair is of no use before it was revived, not earlier than this.
    failed: Option<Time>,
    revived_at: Time,
}

impl UdPort {
    /// Makes the queue pair, ready to send, with all its receives posted.
    pub(crate) fn new<P: Provider>(nic: &mut P, cq: CqId, qkey: Qkey) -> Result<Self, VerbsError> {
        let attr = nic.device();
        let (mtu, gid) = (attr.mtu.bytes(), attr.gid);
        let receives = DATAGRAM_RECEIVES.min(attr.max_qp_wr);
        let slots = DATAGRAMS_INFLIGHT_MAX.min(attr.max_qp_wr);
        let qpn = nic.create_qp(&QpInit {
            pd: verbs::PdId::default(),
            qp_type: QpType::Ud,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: slots,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            sq_sig_all: false,
        })?;
        let mut port = Self {
            qpn,
            qkey,
            cq,
            mtu_bytes: count(mtu),
            gid,
            receives: Receives::new(nic, receives, count(GRH_BYTES + mtu), RECV_WR)?,
            sends: Places::new(nic, slots, mtu, Access::empty())?,
            slots: slots.into(),
            outstanding: VecDeque::with_capacity(slots as usize),
            outstanding_bytes: 0,
            first: 0,
            staged: Vec::with_capacity(POST_BATCH),
            failed: None,
            revived_at: Time::ZERO,
        };
        port.start(nic)?;
        Ok(port)
    }

    /// From Reset to ready to send, with receives.
    fn start<P: Provider>(&mut self, nic: &mut P) -> Result<(), VerbsError> {
        nic.modify_qp(self.qpn, &QpModify::Init { access: Access::empty(), qkey: self.qkey })?;
        // A UD queue pair takes only the first PSN of these, which nobody compares.
        let rtr = RtrAttr::new(Qpn(0), AddressVector::new(self.gid));
        nic.modify_qp(self.qpn, &QpModify::Rtr(rtr))?;
        nic.modify_qp(self.qpn, &QpModify::Rts(RtsAttr { sq_psn: Psn::new(0), ..RtsAttr::default() }))?;
        self.repost(nic).map_err(|e| e.cause)
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn qkey(&self) -> Qkey {
        self.qkey
    }

    /// Memory regions registered, and their bytes.
    pub(crate) fn registered(&self) -> (u32, u64) {
        (2, self.receives.registered() + self.sends.region.len())
    }

    // ---- sending

    /// Whether a datagram with a payload of `bytes` may be staged now.
    pub(crate) fn has_room(&self, bytes: u32) -> bool {
        let bytes = u64::from(bytes) + HEADER_BYTES as u64;
        (self.outstanding.len() as u64) < self.slots
            && self.outstanding_bytes + bytes <= DATAGRAM_BYTES_INFLIGHT_MAX
            && self.staged.len() < POST_BATCH
    }

    /// Whether the next datagram must wait for [`UdPort::flush`] alone.
    pub(crate) fn is_batch_full(&self) -> bool {
        self.staged.len() >= POST_BATCH
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Copies a datagram in, to be posted by [`UdPort::flush`]. [`UdPort::has_room`] said that it may be. False: it is
    /// longer than a slot.
    pub(crate) fn stage(&mut self, header: &[u8; HEADER_BYTES], payload: &[u8], dest: UdDest) -> bool {
        let bytes = count(HEADER_BYTES + payload.len());
        if bytes > self.mtu_bytes {
            return false;
        }
        let seq = self.first + self.outstanding.len() as u64;
        let at = (seq % self.slots) * self.sends.stride;
        let written = self
            .sends
            .region
            .write(at, header)
            .and_then(|()| self.sends.region.write(at + HEADER_BYTES as u64, payload));
        if written.is_err() {
            return false;
        }
        self.outstanding.push_back(bytes);
        self.outstanding_bytes += u64::from(bytes);
        self.staged.push(Staged { seq, bytes, dest });
        true
    }

    /// Hands what is staged to the device; the last one is signalled. An error: how many were refused.
    pub(crate) fn flush<P: Provider>(&mut self, nic: &mut P) -> Result<(), u64> {
        let Some(last) = self.staged.len().checked_sub(1) else { return Ok(()) };
        let of = |i: usize| self.staged[i.min(last)];
        let sges: [[Sge; 1]; POST_BATCH] =
            std::array::from_fn(|i| [self.sends.sge(of(i).seq % self.slots, of(i).bytes)]);
        let wrs: [SendWr<'_>; POST_BATCH] = std::array::from_fn(|i| SendWr {
            wr_id: of(i).seq,
            op: SendOp::Send,
            payload: Payload::Sges(&sges[i]),
            flags: if i == last { SendFlags::SIGNALED } else { SendFlags::empty() },
            dest: Some(of(i).dest),
        });
        let posted = nic.post_send(self.qpn, &wrs[..=last]);
        self.staged.clear();
        let Err(PostError { index, .. }) = posted else { return Ok(()) };
        // None of those before it need be signalled, so their slots come back when the queue pair was revived. Those
        // that were refused never were the device's, and are counted now.
        let refused = last + 1 - index.min(last);
        for bytes in self.outstanding.drain(self.outstanding.len() - refused..) {
            self.outstanding_bytes -= u64::from(bytes);
        }
        self.fail();
        Err(refused as u64)
    }

    /// The completion of a send: it and all before are done.
    pub(crate) fn on_sent(&mut self, seq: u64) {
        let done = seq.wrapping_sub(self.first).wrapping_add(1);
        if done > self.outstanding.len() as u64 {
            return self.fail();
        }
        self.first += done;
        self.outstanding_bytes -= self.outstanding.drain(..index(done)).map(u64::from).sum::<u64>();
    }

    // ---- receiving

    /// Posts receives that were given back.
    pub(crate) fn repost<P: Provider>(&mut self, nic: &mut P) -> Result<(), PostError> {
        // A queue pair in error would give them back at once, again and again.
        if self.failed.is_some() {
            return Ok(());
        }
        let posted = self.receives.post_idle(|wrs| nic.post_recv(self.qpn, wrs));
        if posted.is_err() {
            self.fail();
        }
        posted
    }

    // ---- failing

    /// The queue pair is of no use: it is started again, but not more often than [`DATAGRAM_REVIVAL`] allows.
    pub(crate) fn fail(&mut self) {
        self.failed.get_or_insert(self.revived_at + DATAGRAM_REVIVAL);
    }

    /// When [`UdPort::try_revive`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.failed
    }

    /// Starts a failed queue pair again, with the number and key that peers know; what was outstanding is lost. The
    /// caller has no completion of it left in hand: `drain` takes those that are in the CQ. Says how many sends were
    /// lost.
    pub(crate) fn try_revive<P: Provider>(
        &mut self,
        now: Time,
        nic: &mut P,
        drain: impl FnOnce(&mut P, CqId, Qpn),
    ) -> u64 {
        if self.failed.is_none_or(|at| now < at) {
            return 0;
        }
        self.revived_at = now;
        self.failed = None;
        if nic.modify_qp(self.qpn, &QpModify::Reset).is_err() {
            self.fail();
            return 0;
        }
        drain(nic, self.cq, self.qpn);
        let lost = self.outstanding.len() as u64;
        self.first += lost;
        self.outstanding.clear();
        self.outstanding_bytes = 0;
        self.staged.clear();
        self.receives.take_back_all();
        if self.start(nic).is_err() {
            self.fail();
        }
        lost
    }
}
