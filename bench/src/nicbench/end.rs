//! One end of a connection: the device, its memory, and the queue pair of the current case.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use clap::ValueEnum;
use rdmacore::{OpenConfig, RdmaCore};
use serde::Serialize;
use softnic::{SoftNic, SoftNicConfig};
use verbs::{
    Access, AddressVector, CqId, Mr, PathMtu, Provider, Psn, Qkey, QpInit, QpModify, QpType, Qpn, RecvWr, Region,
    RemoteAddr, Rkey, RtrAttr, RtsAttr, Sge,
};

use super::case::Case;
use super::control::Card;
use super::waiting::Wait;

/// Registered memory: the largest case's slots.
const REGION_BYTES: u64 = 4 << 20;
/// Receives and sends of a queue pair.
pub(crate) const QUEUE: u32 = 256;
/// Inline bytes: enough for the small messages.
const INLINE_BYTES: u32 = 32;
/// First packet sequence number; the queue pair number is new for each case.
const PSN: Psn = Psn::new(1);
/// UDP port of the software NIC: rxe holds 4791 for all addresses.
const SOFTNIC_PORT: u16 = 14_791;
/// Local ACK timeout, 67 ms.
const ACK_TIMEOUT: u8 = 14;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DeviceKind {
    /// The software NIC of this project.
    Softnic,
    /// Kernel soft-RoCE through libibverbs.
    Rxe,
}

impl DeviceKind {
    /// Its name on the command line and in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Softnic => "softnic",
            Self::Rxe => "rxe",
        }
    }
}

/// How devices are used.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DeviceOptions {
    /// What both sides do while they wait in latency cases.
    #[arg(long, value_enum, default_value = "spin")]
    pub(crate) lat_wait: Wait,
    /// What both sides do while they wait in the other cases.
    #[arg(long, value_enum, default_value = "sleep")]
    pub(crate) bw_wait: Wait,
}

/// Puts this process on a processor of its own for streams: the client on the first, servers on the second. In a
/// ping-pong it may run where it likes: beside the kernel's own threads, a process that spins and is bound to their
/// processor makes them wait for a tick.
pub(crate) fn place(index: usize, is_stream: bool) -> Result<()> {
    let count = CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    if *count < 2 {
        return Ok(());
    }
    let mut own = rustix::thread::CpuSet::new();
    (0..*count).filter(|cpu| !is_stream || *cpu == index).for_each(|cpu| own.set(cpu));
    Ok(rustix::thread::sched_setaffinity(None, &own)?)
}

/// Processors at the start, before any was left out.
static CPUS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();

/// The end.
pub(crate) struct End {
    pub(crate) nic: Box<dyn Provider>,
    pub(crate) cq: CqId,
    pub(crate) region: Region,
    mr: Mr,
    qpn: Option<Qpn>,
    at: SocketAddr,
    peer_rkey: Rkey,
    /// READs and atomics outstanding at most on the current queue pair.
    pub(crate) rd_atomic: u32,
}

impl End {
    pub(crate) fn open(device: DeviceKind, address: IpAddr) -> Result<Self> {
        let (mut nic, at): (Box<dyn Provider>, SocketAddr) = match device {
            DeviceKind::Softnic => {
                let config = SoftNicConfig { udp_port: SOFTNIC_PORT, ..SoftNicConfig::new(address) };
                let nic = SoftNic::open(config).context("opening the software NIC")?;
                let at = nic.local_address();
                (Box::new(nic), at)
            }
            DeviceKind::Rxe => {
                let nic = RdmaCore::open(&OpenConfig { name: None, address }).context("opening rxe")?;
                let at = SocketAddr::new(address, nic.device().udp_port);
                (Box::new(nic), at)
            }
        };
        let cq = nic.create_cq(2 * QUEUE)?;
        let region = Region::anonymous(usize::try_from(REGION_BYTES)?)?;
        // Touched once, so that page faults are not measured.
        for page in (0..REGION_BYTES).step_by(4096) {
            region.write(page, &[0])?;
        }
        let mr = nic.reg_mr(&region, 0, REGION_BYTES, Access::all())?;
        Ok(Self { nic, cq, region, mr, qpn: None, at, peer_rkey: Rkey(0), rd_atomic: 1 })
    }

    /// Replaces the queue pair; what the old one had outstanding is forgotten.
    pub(crate) fn new_qp(&mut self) -> Result<Card> {
        self.drop_qp()?;
        let qpn = self.nic.create_qp(&QpInit {
            pd: verbs::PdId::default(),
            qp_type: QpType::Rc,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            max_send_wr: QUEUE,
            max_recv_wr: QUEUE,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: INLINE_BYTES,
            sq_sig_all: false,
        })?;
        self.qpn = Some(qpn);
        self.nic.modify_qp(qpn, &QpModify::Init { access: Access::all(), qkey: Qkey(0) })?;
        let device = self.nic.device();
        Ok(Card {
            address: self.at,
            qpn: qpn.0,
            rkey: self.mr.rkey.0,
            mtu: device.mtu.bytes(),
            max_rd_atomic: device.max_rd_atomic,
            rx_budget_bytes: device.rx_budget_bytes,
            capabilities: device.capabilities.bits(),
        })
    }

    /// Connects the queue pair to the peer's.
    pub(crate) fn connect(&mut self, peer: &Card) -> Result<()> {
        let qpn = self.qpn()?;
        let own = self.nic.device();
        let mtu = PathMtu::from_bytes(peer.mtu).context("the peer's path MTU is none")?.min(own.mtu);
        let max_rd_atomic = own.max_rd_atomic.min(peer.max_rd_atomic);
        self.rd_atomic = max_rd_atomic.max(1).into();
        self.peer_rkey = Rkey(peer.rkey);
        let av = AddressVector { udp_port: peer.address.port(), ..AddressVector::new(peer.address.ip().into()) };
        let rtr = RtrAttr {
            dest_qpn: Qpn(peer.qpn),
            rq_psn: PSN,
            av,
            mtu,
            max_dest_rd_atomic: max_rd_atomic,
            min_rnr_timer: 1,
            source_port: None,
        };
        self.nic.modify_qp(qpn, &QpModify::Rtr(rtr))?;
        let rts = RtsAttr {
            sq_psn: PSN,
            timeout: ACK_TIMEOUT,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic,
            peer_rx_budget_bytes: peer.rx_budget_bytes,
            peer: verbs::Capabilities::from_bits_truncate(peer.capabilities),
        };
        self.nic.modify_qp(qpn, &QpModify::Rts(rts))?;
        Ok(())
    }

    fn drop_qp(&mut self) -> Result<()> {
        let Some(qpn) = self.qpn.take() else { return Ok(()) };
        self.nic.destroy_qp(qpn)?;
        // Completions of the old queue pair that nobody took.
        let mut left = vec![];
        while self.nic.poll_cq(self.cq, &mut left, 64)? > 0 {}
        Ok(())
    }

    pub(crate) fn qpn(&self) -> Result<Qpn> {
        self.qpn.context("no queue pair yet")
    }

    /// Slots of the region for messages of so many bytes, at most `depth`.
    pub(crate) fn slots(bytes: u32, depth: u32) -> u64 {
        (REGION_BYTES / u64::from(bytes.max(1))).min(depth.into()).max(1)
    }

    /// Local memory of a message.
    pub(crate) fn sge(&self, slot: u64, bytes: u32) -> Sge {
        Sge { addr: slot * u64::from(bytes), len: bytes, lkey: self.mr.lkey }
    }

    /// The peer's memory at the same place.
    pub(crate) fn remote(&self, addr: u64) -> RemoteAddr {
        RemoteAddr { addr, rkey: self.peer_rkey }
    }

    pub(crate) fn post_recv(&mut self, bytes: u32) -> Result<()> {
        let qpn = self.qpn()?;
        let sges = [self.sge(0, bytes)];
        self.nic.post_recv(qpn, &[RecvWr { wr_id: 0, sges: &sges }])?;
        Ok(())
    }

    /// Fills the slots of a case with one byte.
    pub(crate) fn fill(&self, bytes: u32, depth: u32, mark: u8) -> Result<()> {
        let chunk = vec![mark; bytes as usize];
        for slot in 0..Self::slots(bytes, depth) {
            self.region.write(slot * u64::from(bytes), &chunk)?;
        }
        Ok(())
    }

    /// What is wrong with the slots that `count` messages must have filled with `mark`.
    pub(crate) fn wrong(&self, bytes: u32, depth: u32, count: u32, mark: u8) -> Result<Option<String>> {
        let mut chunk = vec![0; bytes as usize];
        for slot in 0..Self::slots(bytes, depth).min(count.into()) {
            self.region.read(slot * u64::from(bytes), &mut chunk)?;
            if let Some(at) = chunk.iter().position(|byte| *byte != mark) {
                return Ok(Some(format!("byte {at} of slot {slot} is {:#x}, not {mark:#x}", chunk[at])));
            }
        }
        Ok(None)
    }

    /// Lets the device answer what came last: a peer may wait for it.
    pub(crate) fn settle(&mut self) {
        for _ in 0..SETTLE_ROUNDS {
            if !self.nic.progress() {
                return;
            }
        }
    }

    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        self.nic.counters().into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

/// Rounds of progress at the end of a run, at most.
const SETTLE_ROUNDS: u32 = 1_000;

/// The run of a case with so many messages.
pub(crate) fn run_of(case: &Case, count: u32, mark: u8) -> super::control::Run {
    super::control::Run { load: case.load, bytes: case.bytes, depth: case.depth, count, mark }
}
