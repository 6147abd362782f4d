//! Datagram queue pairs on the two NICs of a [`World`].
#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

use verbs::*;

use crate::pair::World;

pub const QKEY: Qkey = Qkey(0x1234_5678);

/// One datagram QP with memory, and an address handle to the other NIC.
#[derive(Clone)]
pub struct Ud {
    pub side: usize,
    pub qpn: Qpn,
    pub cq: CqId,
    pub srq: Option<SrqId>,
    pub region: Region,
    pub mr: Mr,
    pub ah: AhId,
}

pub fn init_of(cq: CqId, srq: Option<SrqId>) -> QpInit {
    QpInit {
        pd: verbs::PdId::default(),
        qp_type: QpType::Ud,
        send_cq: cq,
        recv_cq: cq,
        srq,
        max_send_wr: 256,
        max_recv_wr: 256,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_bytes: 64,
        sq_sig_all: false,
    }
}

pub fn rts(psn: u32) -> QpModify {
    QpModify::Rts(RtsAttr {
        sq_psn: Psn::new(psn),
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        max_rd_atomic: 0,
        peer_rx_budget_bytes: u32::MAX,
        peer: verbs::Capabilities::empty(),
    })
}

pub fn rtr(world: &World) -> QpModify {
    QpModify::Rtr(RtrAttr {
        dest_qpn: Qpn(0),
        rq_psn: Psn::new(0),
        av: AddressVector::new(Gid::from(world.addresses[0].ip())),
        mtu: world.setup.mtu,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
        source_port: None,
    })
}

impl Ud {
    pub fn new(world: &mut World, side: usize, srq: Option<SrqId>) -> Self {
        let to = AddressVector::new(Gid::from(world.addresses[1 - side].ip()));
        let (to_rtr, nic) = (rtr(world), &mut world.nics[side]);
        let cq = nic.create_cq(1024).expect("a CQ");
        let qpn = nic.create_qp(&init_of(cq, srq)).expect("a QP");
        let region = Region::anonymous(1 << 20).expect("memory");
        let mr = nic.reg_mr(&region, 0, 1 << 20, Access::LOCAL_WRITE).expect("an MR");
        let ah = nic.create_ah(&to).expect("an address handle");
        for to in [QpModify::Init { access: Access::empty(), qkey: QKEY }, to_rtr, rts(0xff_fffe)] {
            nic.modify_qp(qpn, &to).expect("a transition");
        }
        Self { side, qpn, cq, srq, region, mr, ah }
    }

    pub fn pair(world: &mut World) -> [Self; 2] {
        [Self::new(world, 0, None), Self::new(world, 1, None)]
    }

    pub fn sge(&self, addr: u64, len: usize) -> Sge {
        Sge { addr, len: len as u32, lkey: self.mr.lkey }
    }

    pub fn recv(&self, world: &mut World, wr_id: u64, addr: u64, len: usize) {
        let sges = [self.sge(addr, len)];
        let wr = [RecvWr { wr_id, sges: &sges }];
        match self.srq {
            Some(srq) => world.nics[self.side].post_srq_recv(srq, &wr).expect("posted"),
            None => world.nics[self.side].post_recv(self.qpn, &wr).expect("posted"),
        }
    }

    pub fn dest(&self, to: &Self) -> UdDest {
        UdDest { ah: self.ah, qpn: to.qpn, qkey: QKEY }
    }

    pub fn try_send(
        &self,
        world: &mut World,
        wr_id: u64,
        op: SendOp,
        payload: Payload<'_>,
        dest: Option<UdDest>,
    ) -> Result<(), PostError> {
        let flags = SendFlags::SIGNALED;
        world.nics[self.side].post_send(self.qpn, &[SendWr { wr_id, op, payload, flags, dest }])
    }

    pub fn send(&self, world: &mut World, wr_id: u64, op: SendOp, bytes: &[u8], to: &Self) {
        let at = 1 << 19;
        self.region.write(at, bytes).expect("inside");
        let sges = [self.sge(at, bytes.len())];
        self.try_send(world, wr_id, op, Payload::Sges(&sges), Some(self.dest(to))).expect("posted");
    }

    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read(addr, &mut bytes).expect("inside");
        bytes
    }

    pub fn poll(&self, world: &mut World) -> Vec<Completion> {
        let mut out = Vec::new();
        world.nics[self.side].poll_cq(self.cq, &mut out, usize::MAX).expect("the CQ is there");
        out
    }

    pub fn status(&self, world: &World) -> QpStatus {
        world.nics[self.side].query_qp(self.qpn).expect("the QP is there")
    }
}
