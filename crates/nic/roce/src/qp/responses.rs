//! What a responder has to send: READ responses and atomic answers in order, then one acknowledgement (IBTA 9.7.5).
//!
//! An acknowledgement that was not asked for is owed: it leaves as part of the next one that was, or after
//! [`OWED_ACK_MAX`] (a responder may acknowledge what it executed whenever it likes). When the owner of the NIC is about
//! to sleep it leaves at once, which spares a wake-up, but only once in that time: else a target that sleeps after each
//! batch of WRITEs would acknowledge each. Acknowledgements coalesce: only the latest leaves, and none overtakes the answer to a READ before it, which
//! the requester would take for lost. The answers to the last `max_dest_rd_atomic` READs and atomics are kept, so that
//! a duplicate is answered again and no atomic runs twice.

use std::collections::VecDeque;

use rnic::{Domain, KeyFault};
use verbs::{AsyncEvent, PdId, Psn, Qpn, Rkey, Time};

use crate::batch::Batch;
use crate::device::Device;
use crate::limits::{MAX_DUPLICATE_JOBS, NOTIFICATIONS_APART, OWED_ACK_MAX};
use crate::peer::Peer;
use crate::wire::{Aeth, Bth, DEFAULT_PKEY, Header, NakCode, Opcode, Request, Reth, Syndrome, pad_field, wire_len};

/// The QP must go into error for this reason; the NAK is queued, or no answer can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fatal(pub(crate) NakCode);

impl Fatal {
    /// What the consumer is told.
    pub(crate) const fn event(self, qpn: Qpn) -> AsyncEvent {
        match self.0 {
            NakCode::InvalidRequest => AsyncEvent::QpRequestError(qpn),
            NakCode::RemoteAccess => AsyncEvent::QpAccessError(qpn),
            NakCode::SequenceError | NakCode::RemoteOperational => AsyncEvent::QpFatal(qpn),
        }
    }
}

/// A READ or atomic that was executed.
#[derive(Debug, Clone, Copy)]
struct Executed {
    first: Psn,
    packets: u32,
    answer: Answer,
}

impl Executed {
    const fn covers(&self, psn: Psn) -> bool {
        psn.since(self.first) < self.packets
    }
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Read { addr: u64, rkey: Rkey, len: u32 },
    Atomic { original: u64 },
}

/// An answer on its way out: `sent` of its `packets` have left. `again`: the whole answer left before.
#[derive(Debug, Clone, Copy)]
struct Job {
    executed: Executed,
    sent: u32,
    again: bool,
}

/// The acknowledgement to send after all answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Reply {
    #[default]
    None,
    /// Everything executed so far.
    Latest,
    /// Everything up to this packet, because what follows it has an answer of its own.
    Through(Psn),
    /// The next expected packet is missing.
    SequenceNak,
    RnrNak(Psn, u8),
    Nak(Psn, NakCode),
}

/// What the responder can say of itself in an acknowledgement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acknowledged {
    /// The next PSN that it executes.
    pub(crate) expected: Psn,
    /// Code of the receives that are posted to the QP's own queue.
    pub(crate) credits: u8,
}

/// Answers and acknowledgement of one QP.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    max_executed: usize,
    executed: VecDeque<Executed>,
    jobs: VecDeque<Job>,
    reply: Reply,
    /// When the acknowledgement falls due that nobody asked for; nothing was acknowledged since.
    owed: Option<Time>,
    /// When the owner's sleep brought one before its time.
    paid_early: Option<Time>,
    /// An acknowledgement goes before the NAK that is to leave.
    ack_precedes_nak: bool,
    msn: u32,
    /// The peer is to be notified of congestion, and when it was last.
    notification: (bool, Option<Time>),
}

impl Responses {
    pub(crate) fn new(max_dest_rd_atomic: u8) -> Self {
        Self { max_executed: max_dest_rd_atomic.into(), ..Self::default() }
    }

    /// A packet was marked on the way.
    pub(crate) fn notify(&mut self, now: Time) {
        let (due, last) = &mut self.notification;
        if last.is_none_or(|at| now.saturating_since(at) >= NOTIFICATIONS_APART) {
            (*due, *last) = (true, Some(now));
        }
    }

    /// Counts a completed message.
    pub(crate) const fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
    }

    /// Whether another READ or atomic may be executed: the requester keeps to `max_dest_rd_atomic` outstanding ones, so
    /// the oldest of a full table has been answered. That a duplicate of it is to be answered again does not count: the
    /// requester, which sends a new one, has the answer.
    pub(crate) fn has_room(&self) -> bool {
        self.executed.len() < self.max_executed || self.executed.front().is_some_and(|oldest| !self.is_pending(oldest))
    }

    /// Whether the first answer to the oldest request that is remembered has not left.
    fn is_pending(&self, oldest: &Executed) -> bool {
        // Answers wait in the order of PSNs, so those to the oldest request are the first.
        self.jobs.iter().take_while(|job| oldest.covers(job.executed.first)).any(|job| !job.again)
    }

    /// A READ was accepted.
    pub(crate) fn on_read(&mut self, first: Psn, reth: &Reth, packets: u32) {
        let answer = Answer::Read { addr: reth.addr, rkey: reth.rkey, len: reth.dma_len };
        self.remember(Executed { first, packets, answer });
    }

    /// An atomic was executed.
    pub(crate) fn on_atomic(&mut self, first: Psn, original: u64) {
        self.remember(Executed { first, packets: 1, answer: Answer::Atomic { original } });
    }

    fn remember(&mut self, executed: Executed) {
        if self.executed.len() >= self.max_executed
            && let Some(oldest) = self.executed.pop_front()
        {
            while self.jobs.front().is_some_and(|job| oldest.covers(job.executed.first)) {
                self.jobs.pop_front();
            }
        }
        self.executed.push_back(executed);
        self.jobs.push_back(Job { executed, sent: 0, again: false });
        self.count_message();
        // The answer acknowledges everything before it.
        self.owed = None;
        if matches!(self.reply, Reply::Latest | Reply::Through(_)) {
            self.reply = Reply::None;
        }
    }

    /// A packet asked for an ACK.
    pub(crate) fn acknowledge_latest(&mut self) {
        if matches!(self.reply, Reply::None | Reply::Through(_) | Reply::Latest) {
            self.reply = Reply::Latest;
        }
    }

    /// A packet did not ask for an ACK.
    pub(crate) fn owe(&mut self, now: Time) {
        if self.owed.is_none() {
            self.owed = Some(now + OWED_ACK_MAX);
        }
    }

    /// When the acknowledgement that is owed falls due.
    pub(crate) const fn owed_at(&self) -> Option<Time> {
        self.owed
    }

    /// Acknowledges what is owed, if it falls due by `now`.
    pub(crate) fn pay(&mut self, now: Time) {
        if self.owed.is_some_and(|at| at <= now) {
            self.owed = None;
            self.acknowledge_latest();
        }
    }

    /// The owner is about to sleep: acknowledges what is owed, unless the last sleep that did so was less than
    /// [`OWED_ACK_MAX`] ago. Then the owner is woken for it, at most once in that time.
    pub(crate) fn pay_before_sleep(&mut self, now: Time) {
        let is_rare = self.paid_early.is_none_or(|at| now.saturating_since(at) >= OWED_ACK_MAX);
        if is_rare && self.owed.is_some() {
            self.paid_early = Some(now);
            self.pay(Time(u64::MAX));
        }
    }

    /// A packet is missing. What came since the last acknowledgement is acknowledged first, although the NAK implies
    /// it. rxe counts a NAK as one of its retries, however far the message got, and only an ACK gives it the retries
    /// back (rxe_comp.c, check_ack). So without the ACK a long message on a lossy path would end its QP.
    pub(crate) const fn refuse_sequence(&mut self) {
        self.ack_precedes_nak |= self.owed.is_some() || matches!(self.reply, Reply::Latest);
        self.reply = Reply::SequenceNak;
    }

    /// The packet found no receive.
    pub(crate) const fn refuse_not_ready(&mut self, psn: Psn, code: u8) {
        self.reply = Reply::RnrNak(psn, code);
    }

    /// The refused packet came again before its RNR NAK left.
    pub(crate) fn forget_rnr_nak(&mut self) {
        if matches!(self.reply, Reply::RnrNak(..)) {
            self.reply = Reply::None;
        }
    }

    /// The packet ends the QP.
    pub(crate) const fn refuse(&mut self, psn: Psn, code: NakCode) {
        self.reply = Reply::Nak(psn, code);
    }

    /// The missing packet came, late, after packet `seen` had arrived and been dropped. A NAK that has not left still
    /// has to, if packets before `seen` are missing; true then.
    pub(crate) fn keep_sequence_nak(&mut self, expected: Psn, seen: Psn) -> bool {
        if self.reply != Reply::SequenceNak {
            return false;
        }
        if expected == seen || seen.is_after(expected) {
            return true;
        }
        self.reply = Reply::Latest;
        false
    }

    /// A request that was executed before (IBTA 9.7.5.1.3): acknowledged or answered again, never executed again.
    pub(crate) fn on_duplicate(&mut self, psn: Psn, request: &Request<'_>, mtu: usize, dev: &mut Device) {
        let answered = match request {
            Request::Send { .. } | Request::Write { .. } => {
                let answer_follows = self.executed.iter().any(|e| e.first.is_after(psn));
                match self.reply {
                    Reply::None | Reply::Through(_) if answer_follows => self.reply = Reply::Through(psn),
                    Reply::None | Reply::Through(_) => self.reply = Reply::Latest,
                    _ => {}
                }
                true
            }
            Request::Read(reth) => self.repeat_read(psn, reth, mtu),
            Request::CompareSwap(_) | Request::FetchAdd(_) => self.repeat_atomic(psn),
            // It was never executed, or the QP would be in error.
            Request::Unsupported(_) => false,
        };
        if !answered {
            dev.counters.drop_stale_duplicate += 1;
        }
    }

    /// Answers a READ again, which may start inside of the original and must not reach beyond it.
    fn repeat_read(&mut self, psn: Psn, reth: &Reth, mtu: usize) -> bool {
        let Some(original) = self.executed.iter().rev().find(|e| e.covers(psn)) else { return false };
        let Answer::Read { addr, rkey, len } = original.answer else { return false };
        let skipped = u64::from(psn.since(original.first)) * mtu as u64;
        let left = u64::from(len).saturating_sub(skipped);
        if reth.rkey != rkey || reth.addr != addr.wrapping_add(skipped) || u64::from(reth.dma_len) > left {
            return false;
        }
        let packets = reth.dma_len.div_ceil(wire_len(mtu)).max(1);
        let answer = Answer::Read { addr: reth.addr, rkey, len: reth.dma_len };
        self.repeat(Executed { first: psn, packets, answer })
    }

    fn repeat_atomic(&mut self, psn: Psn) -> bool {
        match self.executed.iter().rev().find(|e| e.first == psn) {
            Some(&executed) if matches!(executed.answer, Answer::Atomic { .. }) => self.repeat(executed),
            _ => false,
        }
    }

    /// Queues an answer at its place in the order of PSNs, unless it is about to leave anyway.
    fn repeat(&mut self, executed: Executed) -> bool {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.executed.covers(executed.first)) {
            if job.sent > executed.first.since(job.executed.first) {
                *job = Job { executed, sent: 0, again: job.again };
            }
            return true;
        }
        if self.jobs.len() >= self.max_executed + MAX_DUPLICATE_JOBS {
            return false;
        }
        let at =
            self.jobs.iter().position(|job| job.executed.first.is_after(executed.first)).unwrap_or(self.jobs.len());
        self.jobs.insert(at, Job { executed, sent: 0, again: true });
        true
    }

    /// Whether [`Self::fill`] would send something.
    pub(crate) fn has_work(&self) -> bool {
        !self.jobs.is_empty() || self.reply != Reply::None || self.notification.0
    }

    /// Forgets everything except a NAK that tells the peer why the QP went into error.
    pub(crate) fn abort(&mut self) {
        self.executed.clear();
        self.owed = None;
        self.notification.0 = false;
        if !matches!(self.reply, Reply::Nak(..)) {
            self.jobs.clear();
            self.reply = Reply::None;
        }
    }

    /// Sends as much as the batch takes.
    pub(crate) fn fill(
        &mut self,
        peer: &Peer,
        (state, pd): (Acknowledged, PdId),
        batch: &mut Batch<'_>,
        dev: &mut Device,
    ) -> Result<(), Fatal> {
        let aeth = Aeth { syndrome: Syndrome::Ack(state.credits), msn: self.msn };
        if self.notification.0 {
            let header = Header::congestion_notification(peer.qpn);
            if !batch.fits(header.as_bytes().len(), 0) {
                return Ok(());
            }
            let Ok(()) = batch.push(&peer.route, &header, 0, |_| Ok::<(), std::convert::Infallible>(()));
            self.notification.0 = false;
            dev.counters.notifications_sent += 1;
        }
        while let Some(job) = self.jobs.front_mut() {
            let executed = job.executed;
            match push_answer((&executed, job.sent, aeth), peer, batch, dev.mrs.of(pd)) {
                Ok(true) => job.sent += 1,
                Ok(false) => return Ok(()),
                Err(_) if job.again => {
                    // The first answer may have come, after which the memory may be withdrawn: no fault of the peer's.
                    self.jobs.pop_front();
                    dev.counters.drop_stale_duplicate += 1;
                    continue;
                }
                Err(_) => {
                    let psn = executed.first.plus(job.sent);
                    self.jobs.clear();
                    self.refuse(psn, NakCode::RemoteAccess);
                    return Err(Fatal(NakCode::RemoteAccess));
                }
            }
            if job.sent == executed.packets {
                self.jobs.pop_front();
            }
        }
        self.push_reply(peer, state, batch, dev);
        Ok(())
    }

    fn push_reply(&mut self, peer: &Peer, state: Acknowledged, batch: &mut Batch<'_>, dev: &mut Device) {
        let expected = state.expected;
        let before = |psn: Psn| psn.plus(Psn::MODULUS - 1);
        let counters = &mut dev.counters;
        let ack = Syndrome::Ack(state.credits);
        if self.ack_precedes_nak && self.reply == Reply::SequenceNak {
            if !push_acknowledge(peer, before(expected), ack, self.msn, batch) {
                return;
            }
            counters.acks_sent += 1;
        }
        self.ack_precedes_nak = false;
        let (psn, syndrome, counter) = match self.reply {
            Reply::None => return,
            Reply::Latest => (before(expected), ack, &mut counters.acks_sent),
            Reply::Through(psn) => (psn, ack, &mut counters.acks_sent),
            Reply::SequenceNak => (expected, Syndrome::Nak(NakCode::SequenceError), &mut counters.naks_sent),
            Reply::RnrNak(psn, code) => (psn, Syndrome::RnrNak(code), &mut counters.rnr_naks_sent),
            Reply::Nak(psn, code) => (psn, Syndrome::Nak(code), &mut counters.naks_sent),
        };
        if !push_acknowledge(peer, psn, syndrome, self.msn, batch) {
            return;
        }
        *counter += 1;
        // Of several packets the oldest is owed, so an acknowledgement of less than all ends nothing.
        if !matches!(self.reply, Reply::Through(_)) {
            self.owed = None;
        }
        self.reply = Reply::None;
    }
}

/// Appends an acknowledge packet; false if the batch has no place for it.
fn push_acknowledge(peer: &Peer, psn: Psn, syndrome: Syndrome, msn: u32, batch: &mut Batch<'_>) -> bool {
    let header = response_header(peer, Opcode::Acknowledge, psn, 0).with_aeth(Aeth { syndrome, msn });
    if !batch.fits(header.as_bytes().len(), 0) {
        return false;
    }
    let Ok(()) = batch.push(&peer.route, &header, 0, |_| Ok::<(), std::convert::Infallible>(()));
    true
}

/// Appends packet `index` of an answer; false if the batch has no place for it.
fn push_answer(
    (executed, index, aeth): (&Executed, u32, Aeth),
    peer: &Peer,
    batch: &mut Batch<'_>,
    mrs: Domain<'_>,
) -> Result<bool, KeyFault> {
    let psn = executed.first.plus(index);
    match executed.answer {
        Answer::Atomic { original } => {
            let header =
                response_header(peer, Opcode::AtomicAcknowledge, psn, 0).with_aeth(aeth).with_original(original);
            if !batch.fits(header.as_bytes().len(), 0) {
                return Ok(false);
            }
            batch.push(&peer.route, &header, 0, |_| Ok(()))?;
        }
        Answer::Read { addr, rkey, len } => {
            let offset = u64::from(index) * peer.mtu as u64;
            let payload =
                usize::try_from(u64::from(len).saturating_sub(offset)).map_or(peer.mtu, |left| left.min(peer.mtu));
            let (start, end) = (index == 0, index + 1 == executed.packets);
            let mut header = response_header(peer, Opcode::read_response(start, end), psn, payload);
            if start || end {
                header = header.with_aeth(aeth);
            }
            if !batch.fits(header.as_bytes().len(), payload) {
                return Ok(false);
            }
            batch.push(&peer.route, &header, payload, |dst| {
                if dst.is_empty() { Ok(()) } else { mrs.read_remote(rkey, addr.wrapping_add(offset), dst) }
            })?;
        }
    }
    Ok(true)
}

fn response_header(peer: &Peer, opcode: Opcode, psn: Psn, payload_bytes: usize) -> Header {
    Header::new(&Bth {
        opcode: opcode.byte(),
        solicited: false,
        pad: pad_field(payload_bytes),
        version: 0,
        pkey: DEFAULT_PKEY,
        dest_qpn: peer.qpn,
        ack_request: false,
        psn,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rxe sends an atomic again, gets the first answer, and sends the next one: both lie in one batch of received
    /// packets.
    #[test]
    fn a_duplicate_of_the_oldest_does_not_refuse_the_next_request() {
        let mut responses = Responses::new(1);
        responses.on_atomic(Psn::new(5), 7);
        assert!(!responses.has_room(), "the oldest is not answered yet");
        responses.jobs.clear();
        assert!(responses.repeat_atomic(Psn::new(5)));
        assert!(responses.has_room(), "a new request says that the oldest was answered");
        responses.on_atomic(Psn::new(6), 8);
        assert_eq!(responses.jobs.len(), 1, "the duplicate's answer is not needed any more");
        assert!(!responses.repeat_atomic(Psn::new(5)), "it is forgotten");
    }
}
