//! The receiving side: completions of the one CQ, and what the peers' messages say.
//!
//! Owns the way from a completion to a connection. It must never panic or loop on what a peer sent: whatever breaks the
//! protocol becomes a [`Violation`], which costs the peer that lane.

use shm::waiting;
use verbs::{Completion, Provider, Status, WcOpcode, Wire};

use super::direct::asks_for_own;
use super::mechanism::Mechanism;
use super::mechanisms::{Mechanisms, Record};
use super::{Completions, Engine};
use crate::frame::{LaneRecord, parse};
use crate::ids::LaneId;
use crate::immediate::Immediate;
use crate::limits::COMPLETIONS_PER_RUN;
use crate::mechanisms::LaneItself;
use crate::recvpool::RECV_WR;
use crate::tenants::{TenantPlace, Waits};
use crate::violation::Violation;
use crate::vqp::Vqp;

impl Completions {
    /// Those that wait, to be handled; what is appended meanwhile waits for the next round.
    fn take(&mut self) -> Vec<Completion> {
        std::mem::replace(&mut self.waiting, std::mem::take(&mut self.spare))
    }

    /// Keeps the buffer for the next time.
    fn put_back(&mut self, empty: Vec<Completion>) {
        self.spare = empty;
    }
}

impl Engine {
    /// Takes completions and acts on them. Says whether there were any.
    pub(super) fn run_completions<P: Provider>(&mut self, nic: &mut P) -> bool {
        // Some may be left from the destruction of a queue pair, or from the last look before sleeping.
        self.poll_completions(nic);
        if self.completions.waiting.is_empty() && !self.recv.has_returning() {
            return false;
        }
        // Handling one may take down a queue pair, which appends more for the next round.
        let mut batch = self.completions.take();
        for completion in batch.drain(..) {
            self.on_completion(nic, &completion);
        }
        self.completions.put_back(batch);
        self.repost(nic);
        Mechanisms::repost(self, nic);
        true
    }

    /// Takes completions and leaves them waiting.
    pub(super) fn poll_completions<P: Provider>(&mut self, nic: &mut P) {
        let Completions { cq, waiting, .. } = &mut self.completions;
        if waiting.len() < COMPLETIONS_PER_RUN && nic.poll_cq(*cq, waiting, COMPLETIONS_PER_RUN).is_err() {
            self.counters.device_refusals += 1;
        }
    }

    fn on_completion<P: Provider>(&mut self, nic: &mut P, c: &Completion) {
        let lane = self.lanes.of_qp(c.qpn);
        if Mechanisms::on_completion(self, lane, c) {
            return;
        }
        let result = if c.wr_id & RECV_WR != 0 {
            self.on_receive(nic, lane, c)
        } else {
            match lane {
                Some(id) if c.status == Status::Success => self.on_sent(id, c.wr_id),
                Some(id) => {
                    self.on_send_failed(id, c.status);
                    Ok(())
                }
                None => Ok(()),
            }
        };
        if let (Err(violation), Some(id)) = (result, lane) {
            self.counters.violations += 1;
            self.fail_lane(nic, id, violation.to_string());
        }
    }

    fn on_send_failed(&mut self, id: LaneId, status: Status) {
        let now = self.now;
        let Some(lane) = self.lanes.get_mut(id).filter(|l| !l.qp.is_failing()) else { return };
        // Over TCP the kernel finds the path MTU itself.
        let may_be_mtu = status == Status::RetryExcErr && lane.qp.wire() == Some(Wire::Roce);
        let lower = if may_be_mtu { lane.mtu.on_retries_spent(&lane.qp, now) } else { None };
        let next = match lower {
            Some(mtu) => {
                format!(", as before: perhaps long packets are swallowed, so the next path MTU is {}", mtu.bytes())
            }
            None if status == Status::RemOpErr => ": the peer's end was over first, and its daemon knows why".into(),
            None => String::new(),
        };
        self.lanes.note_narrow(id);
        self.lanes.fail(id, format!("a send ended with {status:?}{next}"));
    }

    /// A send, and all before it, is done: the queue has room again.
    fn on_sent(&mut self, id: LaneId, seq: u64) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        lane.on_sent(seq, self.now)?;
        if self.stages.has_open() {
            self.stages.on_completed(id, seq);
        }
        self.lanes.queue(id);
        Mechanisms::on_sent(self, id, seq);
        while let Some(route) = self.lanes.get_mut(id).and_then(|lane| lane.take_closed()) {
            self.try_release(route);
            // A message may have waited until the answer to its connection's Open had arrived.
            if self.vqps.get(route).is_some_and(Vqp::has_messages) {
                self.update(route);
            }
        }
        Ok(())
    }

    /// A receive. Its entry goes back in every case, and counts as the lane's only if the lane lives.
    fn on_receive<P: Provider>(&mut self, nic: &mut P, lane: Option<LaneId>, c: &Completion) -> Result<(), Violation> {
        let Some(entry) = self.recv.entry_of(c.wr_id) else {
            self.counters.device_refusals += 1;
            return Ok(());
        };
        let live = lane.and_then(|id| self.lanes.get(id).map(|l| (id, l.qp.incarnation())));
        let (Some((id, incarnation)), true) = (live, c.status == Status::Success) else {
            self.recv.give_back(entry, None);
            if let Some((id, _)) = live {
                self.lanes.fail(id, format!("a receive ended with {:?}", c.status));
            }
            return Ok(());
        };
        let result = self.on_message(nic, id, entry, c);
        self.recv.give_back(entry, result.is_ok().then_some((id, incarnation)));
        result
    }

    fn on_message<P: Provider>(
        &mut self,
        nic: &mut P,
        id: LaneId,
        entry: u32,
        c: &Completion,
    ) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id) else { return Ok(()) };
        lane.on_arrival(self.now)?;
        match (c.opcode, c.imm) {
            (WcOpcode::RecvWriteImm, Some(imm)) => self.on_data(id, imm, c),
            (WcOpcode::Recv, Some(imm)) => self.on_sent_data(id, imm, entry, c.byte_len),
            _ => {
                let mut frame = std::mem::take(&mut self.scratch.frame_in);
                let read = self.recv.read(entry, c.byte_len, &mut frame);
                let result =
                    if read { self.on_frame(nic, id, &frame) } else { Err(Violation::FrameLength(c.byte_len)) };
                self.scratch.frame_in = frame;
                result
            }
        }
    }

    /// Ring data arrived.
    #[inline]
    fn on_data(&mut self, id: LaneId, imm: u32, c: &Completion) -> Result<(), Violation> {
        let immediate = Immediate::from_bits(imm).ok_or(Violation::Operation(imm))?;
        let route = self.vqps.named(immediate.route);
        let bytes = c.byte_len.saturating_add(immediate.bytes_before);
        let vqp = self.vqps.on_lane(id, route).ok_or(Violation::DataRoute(imm))?;
        let arriving = vqp.arriving(bytes);
        vqp.on_arrival(bytes, immediate.bytes_before, c.placed)?;
        let sampled = self.stages.begin(arriving.0, arriving.1).map(|begun| (vqp.whose(route), begun));
        self.rests.touch(vqp, route, self.now);
        let (at, awaited) = (vqp.at(), vqp.slot.is_awaited(waiting::READABLE));
        if asks_for_own(vqp, bytes, &self.config, self.lanes.get(id), self.now) {
            self.on_bulk(route);
        }
        if let Some(lane) = self.lanes.get_mut(id) {
            lane.on_received(bytes, self.now);
        }
        self.counters.writes_received += 1;
        self.counters.data_bytes += u64::from(bytes);
        self.apps.mark(at, awaited);
        if let Some((whose, begun)) = sampled {
            self.stages.on_published(whose, begun);
        }
        Ok(())
    }

    pub(super) fn on_frame<P: Provider>(&mut self, nic: &mut P, id: LaneId, frame: &[u8]) -> Result<(), Violation> {
        let Some(lane) = self.lanes.get_mut(id).filter(|l| l.qp.can_receive()) else { return Ok(()) };
        let (header, records) = parse::<Record>(frame)?;
        if !lane.on_frame(&header)? {
            self.counters.stale_frames += 1;
            return Ok(());
        }
        self.counters.frames_received += 1;
        self.lanes.queue(id);
        for record in records {
            let record = record?;
            let now = self.now;
            if let Some(lane) = self.lanes.get_mut(id).filter(|_| Mechanisms::is_use(&record)) {
                lane.rest.touch(now);
            }
            Mechanisms::on_record(self, nic, id, record)?;
        }
        Ok(())
    }

    fn on_lane_record(&mut self, id: LaneId, record: LaneRecord) -> Result<(), Violation> {
        match record {
            LaneRecord::Load(load) => {
                if let Some(lane) = self.lanes.get_mut(id) {
                    lane.loads.on_told(load);
                }
                Ok(())
            }
            LaneRecord::Unused { us } => {
                if let Some(lane) = self.lanes.get_mut(id) {
                    lane.rest.on_asked(us);
                }
                Ok(())
            }
            LaneRecord::Reclaim { most } => self.on_reclaim(id, most),
            LaneRecord::Yield { count } => self.on_yield(id, count),
        }
    }
}

/// What is about the lane itself.
impl Mechanism for LaneItself {
    type Record = LaneRecord;

    fn on_record<P: Provider>(
        engine: &mut Engine,
        _nic: &mut P,
        lane: LaneId,
        record: LaneRecord,
    ) -> Result<(), Violation> {
        engine.on_lane_record(lane, record)
    }

    #[inline]
    fn is_use(_record: &LaneRecord) -> bool {
        false
    }

    fn bring_back(engine: &mut Engine, tenant: TenantPlace, waits: Waits) {
        let Waits::Lane(id) = waits else { return };
        if let Some(lane) = engine.lanes.get_mut(id) {
            lane.drr.bring_back(tenant);
            engine.lanes.queue(id);
        }
    }

    /// Of frames.
    fn memory(engine: &Engine) -> (u32, u64) {
        let frames = engine.lanes.iter().filter_map(|(_, lane)| lane.frames.memory());
        frames.fold((0, 0), |sum, frames| (sum.0 + 1, sum.1 + frames.bytes()))
    }
}
