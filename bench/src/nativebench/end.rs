//! One context of a device with its queue pairs and memory, and how two sides connect theirs.

use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

use crate::control::Control;
use anyhow::{Context, Result, ensure};
use rdmacore::{OpenConfig, RdmaCore};
use serde::{Deserialize, Serialize};
use softnic::{SoftNic, SoftNicConfig};
use verbs::{
    AcceptAttr, Access, Capabilities, CqId, Endpoint, Mr, OfferAttr, PathMtu, Provider, QpInit, QpType, Qpn, RecvWr,
    Region, RemoteAddr, Rkey, Sge, SrqId, SrqInit,
};

use super::{DeviceArgs, DeviceKind, LoadArgs};

/// Local ACK timeout: 67 ms.
const ACK_TIMEOUT: u8 = 14;
/// Code of 0.01 ms.
const RNR_TIMER: u8 = 1;
/// Never two first packet numbers alike; nobody attacks a bench.
const ENTROPY: u32 = 0x00a5_1234;
/// Entries of a completion queue for sends: more than are ever outstanding, and with the receives no more than a device of
/// the kernel's has.
const CQ_ENTRIES_MAX: u32 = 30_000;
const CONNECT_WITHIN: Duration = Duration::from_secs(20);

/// What a side tells the other about a context.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Card {
    endpoints: Vec<Vec<u8>>,
    rkey: u32,
    capabilities: u32,
}

/// Client to server, first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) load: LoadArgs,
    pub(crate) contexts: Vec<Card>,
}

/// Client to server, after the load: the answer is how many bytes arrived that took a receive.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done;

/// What a context needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) connections: u32,
    pub(crate) transport: QpType,
    pub(crate) sends: u32,
    /// Receives of the shared receive queue; none without it.
    pub(crate) receives: u32,
    /// Registered memory.
    pub(crate) bytes: u64,
}

/// The context.
pub(crate) struct End {
    pub(crate) nic: Box<dyn Provider + Send>,
    pub(crate) cq: CqId,
    pub(crate) srq: Option<SrqId>,
    pub(crate) region: Region,
    pub(crate) mr: Mr,
    pub(crate) qpns: Vec<Qpn>,
    own: Vec<Endpoint>,
    /// The peer's key, of each queue pair.
    peer_rkeys: Vec<Rkey>,
    /// READs and atomics that one queue pair may have outstanding.
    pub(crate) reads_max: u32,
}

impl End {
    pub(crate) fn open(device: &DeviceArgs, needs: Needs) -> Result<Self> {
        let mut nic: Box<dyn Provider + Send> = match device.device {
            DeviceKind::Softnic => {
                let config = SoftNicConfig { udp_port: 0, wire: device.wire, ..SoftNicConfig::new(device.address) };
                Box::new(SoftNic::open(config).context("opening the software NIC")?)
            }
            DeviceKind::RdmaCore => {
                let config = OpenConfig { name: None, address: device.address };
                Box::new(RdmaCore::open(&config).context("opening the device of rdma-core")?)
            }
        };
        let entries = (needs.connections * needs.sends).min(CQ_ENTRIES_MAX) + needs.receives + 1;
        let cq = nic.create_cq(entries)?;
        let srq = (needs.receives > 0)
            .then(|| nic.create_srq(&SrqInit { max_wr: needs.receives, max_sge: 1, limit: 0 }))
            .transpose()?;
        let region = Region::anonymous(usize::try_from(needs.bytes.next_multiple_of(4096))?)?;
        // Touched once: hardware would pin all of it, and page faults are not what is measured.
        crate::pattern::pages(needs.bytes).try_for_each(|page| region.write(page, &[0]))?;
        let mr = nic.reg_mr(&region, 0, needs.bytes, Access::all())?;
        let init = QpInit {
            pd: verbs::PdId::default(),
            qp_type: needs.transport,
            send_cq: cq,
            recv_cq: cq,
            srq,
            max_send_wr: needs.sends,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            sq_sig_all: true,
        };
        let qpns = (0..needs.connections).map(|_| nic.create_qp(&init)).collect::<Result<Vec<_>, _>>()?;
        let offer = OfferAttr {
            access: if needs.transport == QpType::Rc {
                Access::all()
            } else {
                Access::REMOTE_WRITE | Access::LOCAL_WRITE
            },
            mtu_max: PathMtu::Mtu4096,
            entropy: ENTROPY,
            wire: device.wire,
            peer: None,
            encrypt: verbs::Encrypt::Off,
            local: None,
        };
        let own = qpns.iter().map(|qpn| nic.offer(*qpn, &offer)).collect::<Result<Vec<_>, _>>()?;
        let peer_rkeys = vec![Rkey(0); qpns.len()];
        Ok(Self { nic, cq, srq, region, mr, qpns, own, peer_rkeys, reads_max: 1 })
    }

    /// Of all queue pairs, or of some.
    pub(crate) fn card(&self, places: Range<usize>) -> Card {
        Card {
            endpoints: self.own[places].iter().map(|endpoint| endpoint.as_bytes().to_vec()).collect(),
            rkey: self.mr.rkey.0,
            capabilities: self.nic.device().capabilities.bits(),
        }
    }

    /// Connects the queue pairs from `first` on to these of the peer, in their order; says how many.
    pub(crate) fn connect(&mut self, first: usize, peer: &Card) -> Result<usize> {
        let attr = AcceptAttr {
            peer: Capabilities::from_bits_truncate(peer.capabilities),
            timeout: ACK_TIMEOUT,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: RNR_TIMER,
        };
        let count = peer.endpoints.len();
        ensure!(first + count <= self.qpns.len(), "the peer has {count} connections more than this side");
        for (place, theirs) in (first..).zip(&peer.endpoints) {
            let theirs = Endpoint::new(theirs.clone())?;
            let link = self.nic.accept(self.qpns[place], &self.own[place], &theirs, &attr)?;
            self.reads_max = u32::from(link.reads_max).max(1);
            self.peer_rkeys[place] = Rkey(peer.rkey);
        }
        Ok(count)
    }

    /// Connects the queue pairs to the servers: of one context to each server as many, of several to one.
    pub(crate) fn connect_all(ends: &mut [Self], load: &LoadArgs) -> Result<Vec<Control>> {
        let mut controls = vec![];
        for (number, to) in load.to.iter().enumerate() {
            let mut control = Control::new(TcpStream::connect_timeout(to, CONNECT_WITHIN)?)?;
            let share = |end: &Self| {
                let each = end.qpns.len() / load.to.len();
                number * each..(number + 1) * each
            };
            let contexts = ends.iter().map(|end| end.card(share(end))).collect();
            control.send(&Hello { load: load.clone(), contexts })?;
            let server: Card = control.recv()?;
            let mut endpoints = server.endpoints.into_iter();
            for end in &mut *ends {
                let places = share(end);
                let part = endpoints.by_ref().take(places.len()).collect();
                end.connect(places.start, &Card { endpoints: part, ..server })?;
            }
            controls.push(control);
        }
        Ok(controls)
    }

    /// Says to the servers that the load is over; how many bytes arrived that took a receive.
    pub(crate) fn finish(controls: &mut [Control]) -> Result<u64> {
        controls.iter_mut().map(|control| control.send(&Done).and_then(|()| control.recv::<u64>())).sum()
    }

    pub(crate) fn sge(&self, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.mr.lkey }
    }

    /// The memory of a connection's peer.
    pub(crate) fn remote(&self, connection: usize, addr: u64) -> RemoteAddr {
        RemoteAddr { addr, rkey: self.peer_rkeys[connection] }
    }

    /// Posts so many receives of `bytes` each, at the places of the region that `first` and the following ones have.
    pub(crate) fn post_receives(&mut self, count: u32, bytes: u32) -> Result<()> {
        let srq = self.srq.context("there is no shared receive queue")?;
        let places = (self.region.len() / u64::from(bytes.max(1))).max(1);
        for number in 0..u64::from(count) {
            let sges = [self.sge(number % places * u64::from(bytes), bytes)];
            self.nic.post_srq_recv(srq, &[RecvWr { wr_id: 0, sges: &sges }])?;
        }
        Ok(())
    }
}
