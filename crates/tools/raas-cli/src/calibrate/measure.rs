//! Two contexts of one device in this process, and what each way of moving bytes between them takes.
//!
//! Owns the objects of the device and the loop that drives both ends. It must never wait without a bound, and measures a
//! transfer until its bytes are where the receiver's program would read them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use verbs::{
    AcceptAttr, Access, Completion, CqId, Endpoint, Mr, OfferAttr, PathMtu, Payload, Provider, QpInit, QpType, Qpn,
    RecvWr, Region, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Status, VerbsError, WirePolicy,
};

/// Lengths that are measured.
const SIZES: [u32; 9] = [64, 256, 1024, 4096, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];
/// Longest SEND: the size of a daemon's receive buffers unless configured otherwise.
const SEND_BYTES_MAX: u32 = 4096;
/// Transfers of one round.
const TRANSFERS: u32 = 16;
/// Transfers before the first round, with which the wire and its windows get warm.
const WARM_UP: u32 = 64;
/// What announces bytes to be read, and says that they were: as long as a control frame with one record.
const ANNOUNCEMENT_BYTES: u32 = 56;
/// Registered memory of an end: data, then announcements.
const REGION_BYTES: u64 = 2 << 20;
const ANNOUNCEMENTS_AT: u64 = 1 << 20;

/// What was measured for a length: medians of rounds, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) bytes: u32,
    /// Copying into registered memory.
    pub(super) copy_ns: f64,
    /// Registering, and giving that up.
    pub(super) register_ns: f64,
    /// By SEND, with the copy at the receiver; none for lengths that one SEND does not carry.
    pub(super) send_ns: Option<f64>,
    /// By WRITE with immediate.
    pub(super) write_ns: f64,
    /// Announced, and READ by the receiver.
    pub(super) read_ns: f64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum MeasureError {
    #[error("the device: {0}")]
    Verbs(#[from] VerbsError),
    #[error("no memory: {0}")]
    Memory(std::io::Error),
    #[error("memory: {0}")]
    Region(#[from] shm::RegionError),
    #[error("a transfer ended with {0:?}: is the address one of this device's, and free of filters?")]
    Failed(Status),
    #[error("nothing arrived for {0:?}: does the device reach itself at this address?")]
    Silent(Duration),
}

/// One end.
struct End<P> {
    nic: P,
    cq: CqId,
    qpn: Qpn,
    region: Region,
    mr: Mr,
    got: Vec<Completion>,
    receives: u64,
    sends: u64,
}

/// Both.
struct Ends<P> {
    a: End<P>,
    b: End<P>,
    patience: Duration,
    scratch: Vec<u8>,
}

/// Measures all lengths, `rounds` times each, in turn.
pub(super) fn measure<P: Provider>(a: P, b: P, rounds: u32, patience: Duration) -> Result<Vec<Sample>, MeasureError> {
    let (mut a, mut b) = (End::new(a)?, End::new(b)?);
    let (at_a, at_b) = (a.offer()?, b.offer()?);
    a.accept(&at_a, &at_b, &b.nic)?;
    b.accept(&at_b, &at_a, &a.nic)?;
    let mut ends = Ends { a, b, patience, scratch: vec![0; 1 << 20] };
    for _ in 0..WARM_UP {
        ends.write(1024)?;
        ends.read(1024)?;
    }
    let mut samples = Vec::new();
    for bytes in SIZES {
        let send = bytes <= SEND_BYTES_MAX;
        let mut taken: [Vec<f64>; 5] = Default::default();
        // One after the other in each round, so that what disturbs the machine disturbs all.
        for _ in 0..rounds.max(1) {
            taken[0].push(ends.time(|e| e.copy(bytes))?);
            taken[1].push(ends.time(|e| e.register(bytes))?);
            if send {
                taken[2].push(ends.time(|e| e.send(bytes))?);
            }
            taken[3].push(ends.time(|e| e.write(bytes))?);
            taken[4].push(ends.time(|e| e.read(bytes))?);
        }
        let [copy_ns, register_ns, send_ns, write_ns, read_ns] = taken.map(median);
        let send_ns = send.then_some(send_ns);
        samples.push(Sample { bytes, copy_ns, register_ns, send_ns, write_ns, read_ns });
    }
    Ok(samples)
}

/// 0 of nothing.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl<P: Provider> End<P> {
    fn new(mut nic: P) -> Result<Self, MeasureError> {
        let cq = nic.create_cq(256)?;
        let qpn = nic.create_qp(&QpInit {
            pd: verbs::PdId::default(),
            qp_type: QpType::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            sq_sig_all: false,
        })?;
        let region = Region::anonymous(REGION_BYTES as usize).map_err(MeasureError::Memory)?;
        region.write(0, &vec![1; REGION_BYTES as usize])?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = nic.reg_mr(&region, 0, REGION_BYTES, access)?;
        Ok(Self { nic, cq, qpn, region, mr, got: Vec::new(), receives: 0, sends: 0 })
    }

    fn offer(&mut self) -> Result<Endpoint, VerbsError> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // Loopback is no secret.
        let attr = OfferAttr {
            access,
            mtu_max: PathMtu::Mtu4096,
            entropy: 1,
            wire: WirePolicy::Auto,
            peer: None,
            encrypt: verbs::Encrypt::Off,
            local: None,
        };
        self.nic.offer(self.qpn, &attr)
    }

    fn accept(&mut self, own: &Endpoint, peer: &Endpoint, of: &P) -> Result<(), VerbsError> {
        let peer_can = of.device().capabilities;
        let attr = AcceptAttr { peer: peer_can, timeout: 17, retry_cnt: 6, rnr_retry: 7, min_rnr_timer: 12 };
        self.nic.accept(self.qpn, own, peer, &attr).map(drop)
    }

    fn sge(&self, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.mr.lkey }
    }

    fn post(&mut self, op: SendOp, sge: Sge) -> Result<(), MeasureError> {
        let sges = [sge];
        let (payload, flags) = (Payload::Sges(&sges), SendFlags::SIGNALED);
        let wr = SendWr { wr_id: 0, op, payload, flags, dest: None };
        Ok(self.nic.post_send(self.qpn, &[wr]).map_err(|e| e.cause)?)
    }

    fn post_recv(&mut self, sge: Sge) -> Result<(), MeasureError> {
        let sges = [sge];
        Ok(self.nic.post_recv(self.qpn, &[RecvWr { wr_id: 1, sges: &sges }]).map_err(|e| e.cause)?)
    }

    /// Takes what is completed.
    fn look(&mut self) -> Result<(), MeasureError> {
        self.nic.poll_cq(self.cq, &mut self.got, 64)?;
        self.nic.progress();
        for c in self.got.drain(..) {
            if c.status != Status::Success {
                return Err(MeasureError::Failed(c.status));
            }
            if c.wr_id == 1 {
                self.receives += 1;
            } else {
                self.sends += 1;
            }
        }
        Ok(())
    }
}

impl<P: Provider> Ends<P> {
    /// Nanoseconds of one of several transfers.
    fn time(&mut self, mut transfer: impl FnMut(&mut Self) -> Result<(), MeasureError>) -> Result<f64, MeasureError> {
        let begin = Instant::now();
        for _ in 0..TRANSFERS {
            transfer(self)?;
        }
        Ok(begin.elapsed().as_nanos() as f64 / f64::from(TRANSFERS))
    }

    /// Drives both ends until `done`.
    fn until(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), MeasureError> {
        let begin = Instant::now();
        while !done(self) {
            self.a.look()?;
            self.b.look()?;
            if begin.elapsed() > self.patience {
                return Err(MeasureError::Silent(self.patience));
            }
        }
        Ok(())
    }

    fn copy(&mut self, bytes: u32) -> Result<(), MeasureError> {
        Ok(self.a.region.write(0, black_box(&self.scratch[..bytes as usize]))?)
    }

    fn register(&mut self, bytes: u32) -> Result<(), MeasureError> {
        let mr = self.a.nic.reg_mr(&self.a.region, 0, bytes.into(), Access::REMOTE_READ)?;
        Ok(self.a.nic.dereg_mr(mr.id)?)
    }

    fn send(&mut self, bytes: u32) -> Result<(), MeasureError> {
        let (got, sent) = (self.b.receives, self.a.sends);
        self.b.post_recv(self.b.sge(0, bytes))?;
        self.a.post(SendOp::SendImm(1), self.a.sge(0, bytes))?;
        self.until(|e| e.b.receives > got && e.a.sends > sent)?;
        let data = &mut self.scratch[..bytes as usize];
        self.b.region.read(0, data)?;
        Ok(self.b.region.write(ANNOUNCEMENTS_AT, data)?)
    }

    fn write(&mut self, bytes: u32) -> Result<(), MeasureError> {
        let (got, sent) = (self.b.receives, self.a.sends);
        self.b.post_recv(self.b.sge(ANNOUNCEMENTS_AT, ANNOUNCEMENT_BYTES))?;
        let to = RemoteAddr { addr: 0, rkey: self.b.mr.rkey };
        self.a.post(SendOp::WriteImm(to, 1), self.a.sge(0, bytes))?;
        self.until(|e| e.b.receives > got && e.a.sends > sent)
    }

    fn read(&mut self, bytes: u32) -> Result<(), MeasureError> {
        let (asked, done, read) = (self.b.receives, self.a.receives, self.b.sends);
        self.b.post_recv(self.b.sge(ANNOUNCEMENTS_AT, ANNOUNCEMENT_BYTES))?;
        self.a.post_recv(self.a.sge(ANNOUNCEMENTS_AT, ANNOUNCEMENT_BYTES))?;
        self.a.post(SendOp::Send, self.a.sge(ANNOUNCEMENTS_AT, ANNOUNCEMENT_BYTES))?;
        self.until(|e| e.b.receives > asked)?;
        let from = RemoteAddr { addr: 0, rkey: self.a.mr.rkey };
        self.b.post(SendOp::Read(from), self.b.sge(0, bytes))?;
        self.until(|e| e.b.sends > read)?;
        self.b.post(SendOp::Send, self.b.sge(ANNOUNCEMENTS_AT, ANNOUNCEMENT_BYTES))?;
        self.until(|e| e.a.receives > done)
    }
}
