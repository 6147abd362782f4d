//! Two queue pairs that know each other, and the small steps that cases are made of.

use std::time::Duration;

use verbs::*;

use crate::{Failure, Outcome, Rig, Side};

/// Longest time, on the rig's clock, that a completion is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same for the unreliable services over a link that loses packets.
const PATIENCE_WITH_LOSS: Duration = Duration::from_millis(500);
/// How long a case looks on before it believes that nothing comes.
const QUIET: Duration = Duration::from_millis(60);
/// Of one step no more than this counts: where others have the processor for longer, the devices' threads have not.
const CALM_STEP: Duration = Duration::from_millis(1);
/// Most steps of one wait: ends a rig whose clock stands still.
const STEPS_MAX: u32 = 4_000_000;

/// How the pair is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Transport service.
    pub qp_type: QpType,
    /// Queue key of both QPs, for datagrams.
    pub qkey: Qkey,
    /// Each end, QP and memory, is in a protection domain of its own; else in the devices' own.
    pub domain: bool,
    /// Receives come from an SRQ.
    pub srq: bool,
    /// Send and receive depth.
    pub depth: u32,
    /// All sends give completions.
    pub sig_all: bool,
    /// Access through the QPs.
    pub qp_access: Access,
    /// Access of the memory regions.
    pub mr_access: Access,
    /// Path MTU; the smaller of it and the devices' is taken.
    pub mtu: PathMtu,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Scatter/gather entries.
    pub sge: u32,
    /// Bytes of each side's region.
    pub bytes: u64,
    /// READs and atomics outstanding.
    pub rd_atomic: u8,
}

/// Everything that peers may do.
pub fn all_access() -> Access {
    Access::all()
}

impl Default for Options {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            qkey: Qkey(0),
            domain: false,
            srq: false,
            depth: 64,
            sig_all: false,
            qp_access: all_access(),
            mr_access: all_access(),
            mtu: PathMtu::Mtu1024,
            // 1.07 s, 7.5 s with all retries: a guest of a busy machine stands still for seconds, each of its
            // processors on its own, and must not look like a dead peer.
            timeout: 18,
            // Not 7, which rxe takes for "without end" (rxe_comp.c).
            retry_cnt: 6,
            rnr_retry: 7,
            min_rnr_timer: 12,
            sge: 4,
            bytes: 1 << 20,
            rd_atomic: 4,
        }
    }
}

/// One end: the objects on one device.
#[derive(Debug, Clone)]
pub struct End {
    /// Send and receive CQ.
    pub cq: CqId,
    /// Shared receive queue, if asked for.
    pub srq: Option<SrqId>,
    /// The domain of queue pair and memory.
    pub pd: PdId,
    /// Queue pair.
    pub qpn: Qpn,
    /// Memory.
    pub region: Region,
    /// Its registration.
    pub mr: Mr,
    /// Where the other end is, for datagrams.
    pub ah: Option<AhId>,
    /// First PSN it sends.
    psn: Psn,
}

/// Two connected ends on a rig.
pub struct Pair<'r> {
    /// The devices.
    pub rig: &'r mut dyn Rig,
    /// How they were made.
    pub options: Options,
    a: End,
    b: End,
    /// What each side offered, where connections are set up by endpoints.
    endpoints: [Option<Endpoint>; 2],
}

/// A step of an end on its way from Reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// To Init.
    Init,
    /// To ready-to-receive. Where ends are set up by endpoints there is no such state, and nothing happens.
    Rtr,
    /// To ready-to-send.
    Rts,
}

impl std::fmt::Debug for Pair<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("a", &self.a).field("b", &self.b).finish_non_exhaustive()
    }
}

fn make_end(device: &mut dyn Provider, o: &Options, psn: Psn) -> Result<End, Failure> {
    let cq = device.create_cq(o.depth * 4)?;
    let srq = match o.srq {
        true => Some(device.create_srq(&SrqInit { max_wr: o.depth, max_sge: o.sge, limit: 0 })?),
        false => None,
    };
    let pd = if o.domain { device.alloc_pd()? } else { PdId::default() };
    let qpn = make_qp(device, o, (pd, cq), srq)?;
    let region = Region::anonymous(usize::try_from(o.bytes).unwrap_or(usize::MAX))?;
    let mr = device.register(&MrInit { pd, ..MrInit::new(&region, 0, o.bytes, o.mr_access) })?;
    Ok(End { cq, srq, pd, qpn, region, mr, ah: None, psn })
}

pub(crate) fn make_qp(
    device: &mut dyn Provider,
    o: &Options,
    (pd, cq): (PdId, CqId),
    srq: Option<SrqId>,
) -> Result<Qpn, Failure> {
    Ok(device.create_qp(&QpInit {
        pd,
        qp_type: o.qp_type,
        send_cq: cq,
        recv_cq: cq,
        srq,
        max_send_wr: o.depth,
        max_recv_wr: o.depth,
        max_send_sge: o.sge,
        max_recv_sge: o.sge,
        max_inline_bytes: 64,
        sq_sig_all: o.sig_all,
    })?)
}

impl Options {
    /// For unreliable connections.
    pub fn unreliable() -> Self {
        Self { qp_type: QpType::Uc, ..Self::default() }
    }
}

impl<'r> Pair<'r> {
    /// Two QPs of an unreliable connection in RTS.
    pub fn unreliable(rig: &'r mut dyn Rig) -> Result<Self, Failure> {
        Self::connect(rig, Options::unreliable())
    }

    /// Both ends in RTS.
    pub fn connect(rig: &'r mut dyn Rig, options: Options) -> Result<Self, Failure> {
        let mut pair = Self::create(rig, options)?;
        for side in [Side::A, Side::B] {
            pair.to_rts(side)?;
        }
        Ok(pair)
    }

    /// Both ends made, in Reset.
    pub fn create(rig: &'r mut dyn Rig, options: Options) -> Result<Self, Failure> {
        let a = make_end(rig.device(Side::A), &options, Psn::new(0xff_fff0))?;
        let b = make_end(rig.device(Side::B), &options, Psn::new(0x12_3456))?;
        let mut pair = Self { rig, options, a, b, endpoints: [None, None] };
        if pair.options.qp_type == QpType::Ud {
            pair.a.ah = Some(pair.address_handle(Side::A, Side::B)?);
            pair.b.ah = Some(pair.address_handle(Side::B, Side::A)?);
        }
        Ok(pair)
    }

    /// The end on a side.
    pub fn end(&self, side: Side) -> &End {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    /// The device on a side.
    pub fn device(&mut self, side: Side) -> &mut dyn Provider {
        self.rig.device(side)
    }

    /// Attributes of Init.
    pub fn init(&self) -> QpModify {
        QpModify::Init { access: self.options.qp_access, qkey: self.options.qkey }
    }

    /// Attributes of RTR on `side`, towards the other end.
    pub fn rtr(&mut self, side: Side) -> QpModify {
        let peer = self.end(side.other()).clone();
        let av = self.address_of(side.other());
        let far = self.device(side.other()).device().mtu;
        let mtu = self.options.mtu.min(far).min(self.device(side).device().mtu);
        QpModify::Rtr(RtrAttr {
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            av,
            mtu,
            max_dest_rd_atomic: self.options.rd_atomic,
            min_rnr_timer: self.options.min_rnr_timer,
            source_port: None,
        })
    }

    /// Attributes of RTS on `side`.
    pub fn rts(&self, side: Side) -> QpModify {
        QpModify::Rts(RtsAttr {
            sq_psn: self.end(side).psn,
            timeout: self.options.timeout,
            retry_cnt: self.options.retry_cnt,
            rnr_retry: self.options.rnr_retry,
            max_rd_atomic: self.options.rd_atomic,
            peer_rx_budget_bytes: u32::MAX,
            peer: verbs::Capabilities::empty(),
        })
    }

    /// Moves an end from Reset to RTS.
    pub fn to_rts(&mut self, side: Side) -> Outcome {
        [Step::Init, Step::Rtr, Step::Rts].into_iter().try_for_each(|step| self.step(side, step))
    }

    /// Takes an end one step further.
    pub fn step(&mut self, side: Side, step: Step) -> Outcome {
        let qpn = self.end(side).qpn;
        let wire = self.rig.wire().filter(|_| self.options.qp_type == QpType::Rc);
        if let Some(wire) = wire {
            return match step {
                Step::Init => self.offer(side, wire),
                Step::Rtr => Ok(()),
                Step::Rts => self.accept(side, wire),
            };
        }
        let to = match step {
            Step::Init => self.init(),
            Step::Rtr => self.rtr(side),
            Step::Rts => self.rts(side),
        };
        self.device(side).modify_qp(qpn, &to)?;
        Ok(())
    }

    /// Makes the endpoint of an end that is in Reset.
    fn offer(&mut self, side: Side, wire: Wire) -> Outcome {
        if self.state(side)? != QpState::Reset {
            return Ok(());
        }
        let qpn = self.end(side).qpn;
        let (access, mtu_max) = (self.options.qp_access, self.options.mtu);
        let attr = OfferAttr {
            access,
            mtu_max,
            entropy: qpn.0,
            wire: WirePolicy::Only(wire),
            peer: None,
            encrypt: self.rig.encrypt(),
            local: None,
        };
        self.endpoints[side as usize] = Some(self.device(side).offer(qpn, &attr)?);
        Ok(())
    }

    /// Connects an end to what the other one offers.
    fn accept(&mut self, side: Side, wire: Wire) -> Outcome {
        self.offer(side.other(), wire)?;
        let attr = AcceptAttr {
            peer: Capabilities::SOFTWARE_NIC,
            timeout: self.options.timeout,
            retry_cnt: self.options.retry_cnt,
            rnr_retry: self.options.rnr_retry,
            min_rnr_timer: self.options.min_rnr_timer,
        };
        let of = |side: Side| self.endpoints[side as usize].clone();
        let (Some(own), Some(peer)) = (of(side), of(side.other())) else {
            return Err(Failure(format!("{side:?} has no endpoint")));
        };
        let qpn = self.end(side).qpn;
        let link = self.device(side).accept(qpn, &own, &peer, &attr)?;
        if link.wire == wire {
            return Ok(());
        }
        Err(Failure(format!("{side:?} is connected over {}, {wire} was asked for", link.wire)))
    }

    /// The state of RTR, if the rig has it.
    pub fn needs_rtr(&self) -> Outcome {
        match self.rig.wire() {
            Some(wire) => Err(Failure(format!("{wire} has no state between Init and RTS"))),
            None => Ok(()),
        }
    }

    /// Replaces a side's QP by a new one on another SRQ. The pair must not be connected yet.
    pub fn replace_srq(&mut self, side: Side, srq: SrqId) -> Outcome {
        let o = self.options.clone();
        let old = self.end(side).clone();
        self.device(side).destroy_qp(old.qpn)?;
        let qpn = make_qp(self.device(side), &o, (old.pd, old.cq), Some(srq))?;
        let end = match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        };
        (end.qpn, end.srq) = (qpn, Some(srq));
        Ok(())
    }

    /// Adds a second pair of QPs on the same CQs, SRQs and memory, connected; says their numbers on A and B.
    pub fn second_qps(&mut self) -> Result<(Qpn, Qpn), Failure> {
        let o = self.options.clone();
        let (a, b) = (self.a.clone(), self.b.clone());
        let qa = make_qp(self.device(Side::A), &o, (a.pd, a.cq), a.srq)?;
        let qb = make_qp(self.device(Side::B), &o, (b.pd, b.cq), b.srq)?;
        let old = (a.qpn, b.qpn);
        (self.a.qpn, self.b.qpn) = (qa, qb);
        let done = self.to_rts(Side::A).and_then(|()| self.to_rts(Side::B));
        (self.a.qpn, self.b.qpn) = old;
        done.map(|()| (qa, qb))
    }

    /// Writes bytes into a side's region.
    pub fn fill(&self, side: Side, at: u64, bytes: &[u8]) {
        self.end(side).region.write(at, bytes).expect("cases stay in their region");
    }

    /// Reads bytes of a side's region.
    pub fn bytes(&self, side: Side, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.end(side).region.read(at, &mut out).expect("cases stay in their region");
        out
    }

    /// A scatter/gather entry of a side's region.
    pub fn sge(&self, side: Side, at: u64, len: usize) -> Sge {
        Sge { addr: at, len: u32::try_from(len).expect("cases use short entries"), lkey: self.end(side).mr.lkey }
    }

    /// A place in the other side's region, as seen from `side`.
    pub fn remote(&self, side: Side, at: u64) -> RemoteAddr {
        RemoteAddr { addr: at, rkey: self.end(side.other()).mr.rkey }
    }

    /// Posts one receive.
    pub fn recv(&mut self, side: Side, wr_id: u64, sges: &[Sge]) -> Outcome {
        let end = self.end(side).clone();
        let wr = [RecvWr { wr_id, sges }];
        match end.srq {
            Some(srq) => self.device(side).post_srq_recv(srq, &wr)?,
            None => self.device(side).post_recv(end.qpn, &wr)?,
        }
        Ok(())
    }

    /// Posts one signalled work request.
    pub fn post(&mut self, side: Side, wr_id: u64, op: SendOp, payload: Payload<'_>) -> Outcome {
        self.post_flags(side, wr_id, op, payload, SendFlags::SIGNALED)
    }

    /// Posts one work request.
    pub fn post_flags(
        &mut self,
        side: Side,
        wr_id: u64,
        op: SendOp,
        payload: Payload<'_>,
        flags: SendFlags,
    ) -> Outcome {
        let qpn = self.end(side).qpn;
        self.post_on(side, qpn, wr_id, op, payload, flags)
    }

    /// Posts one work request to a given QP of a side.
    pub fn post_on(
        &mut self,
        side: Side,
        qpn: Qpn,
        wr_id: u64,
        op: SendOp,
        payload: Payload<'_>,
        flags: SendFlags,
    ) -> Outcome {
        let dest = self.dest(side);
        self.device(side).post_send(qpn, &[SendWr { wr_id, op, payload, flags, dest }])?;
        Ok(())
    }

    /// Waits for exactly `n` completions of a side.
    pub fn wait(&mut self, side: Side, n: usize) -> Result<Vec<Completion>, Failure> {
        let got = self.collect(side, n, self.patience())?;
        if got.len() == n {
            return Ok(got);
        }
        Err(Failure(format!("{n} completions expected on {side:?}, {} came: {got:?}", got.len())))
    }

    /// Takes the completions of a side that come within that time, at most `n`.
    pub fn collect(&mut self, side: Side, n: usize, within: Duration) -> Result<Vec<Completion>, Failure> {
        let start = self.rig.elapsed();
        let mut got = Vec::new();
        for _ in 0..STEPS_MAX {
            let missing = n - got.len();
            self.poll(side, &mut got, missing)?;
            if got.len() == n || self.rig.elapsed().saturating_sub(start) > within {
                break;
            }
            // The other side's device may need its owner's polling to make progress.
            self.device(side.other()).progress();
            self.rig.step();
        }
        Ok(got)
    }

    /// A packet of an unreliable service that the link lost never comes; the case is tried again.
    fn patience(&self) -> Duration {
        if self.options.qp_type != QpType::Rc && self.rig.lossy() { PATIENCE_WITH_LOSS } else { PATIENCE }
    }

    fn poll(&mut self, side: Side, got: &mut Vec<Completion>, max: usize) -> Outcome {
        let cq = self.end(side).cq;
        self.device(side).poll_cq(cq, got, max)?;
        Ok(())
    }

    /// Waits for one completion of a side.
    pub fn one(&mut self, side: Side) -> Result<Completion, Failure> {
        Ok(self.wait(side, 1)?[0])
    }

    /// Waits for one successful completion with the given request and opcode.
    pub fn ok(&mut self, side: Side, wr_id: u64, opcode: WcOpcode) -> Result<Completion, Failure> {
        let c = self.one(side)?;
        if c.status == Status::Success && c.wr_id == wr_id && c.opcode == opcode {
            return Ok(c);
        }
        Err(Failure(format!("{side:?}: success of request {wr_id} ({opcode:?}) expected, got {c:?}")))
    }

    /// Waits for one completion with the given request and status.
    pub fn status(&mut self, side: Side, wr_id: u64, status: Status) -> Outcome {
        let c = self.one(side)?;
        let by_nak = matches!(status, Status::RemAccessErr | Status::RemInvReqErr | Status::RemOpErr);
        let nak_lost = by_nak && self.rig.lossy() && c.status == Status::RetryExcErr;
        if (c.status == status || nak_lost) && c.wr_id == wr_id {
            return Ok(());
        }
        Err(Failure(format!("{side:?}: {status:?} of request {wr_id} expected, got {c:?}")))
    }

    /// Lets time pass and checks that a side gets no completion.
    pub fn quiet(&mut self, side: Side) -> Outcome {
        let (mut before, mut calm) = (self.rig.elapsed(), Duration::ZERO);
        let mut got = Vec::new();
        for _ in 0..STEPS_MAX {
            let now = self.rig.elapsed();
            calm += now.saturating_sub(before).min(CALM_STEP);
            before = now;
            if calm > QUIET {
                return Ok(());
            }
            self.poll(side, &mut got, 1)?;
            if let Some(c) = got.first() {
                return Err(Failure(format!("no completion expected on {side:?}, got {c:?}")));
            }
            self.device(side.other()).progress();
            self.rig.step();
        }
        Ok(())
    }

    /// State of a side's QP.
    pub fn state(&mut self, side: Side) -> Result<QpState, Failure> {
        let qpn = self.end(side).qpn;
        Ok(self.device(side).query_qp(qpn)?.state)
    }

    /// Waits until a side's QP is in `state`.
    pub fn reaches(&mut self, side: Side, state: QpState) -> Outcome {
        let start = self.rig.elapsed();
        for _ in 0..STEPS_MAX {
            let now = self.state(side)?;
            if now == state {
                return Ok(());
            }
            if self.rig.elapsed().saturating_sub(start) > PATIENCE {
                return Err(Failure(format!("QP of {side:?} is in {now:?}, {state:?} expected")));
            }
            for s in [Side::A, Side::B] {
                self.device(s).progress();
            }
            self.rig.step();
        }
        Err(Failure(format!("the rig's clock stands still while waiting for {state:?}")))
    }
}

/// `len` bytes that depend on their place and on `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31).wrapping_add(seed * 7) ^ (i >> 8)) as u8).collect()
}
