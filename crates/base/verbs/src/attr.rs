//! Attributes: what devices can do, how objects are made, how a QP moves between states.

use crate::{CqId, Gid, Lkey, MrId, PdId, Psn, Qkey, Qpn, Region, Rkey, SrqId};

bitflags::bitflags! {
    /// What may be done to a memory region or through a QP (IBTA 10.6.3.1; numbers as in libibverbs).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device may write it on behalf of the local consumer (receives, READ results).
        const LOCAL_WRITE = 1;
        /// Peers may WRITE it.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ it.
        const REMOTE_READ = 1 << 2;
        /// Peers may run atomics on it.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

/// Path MTU: payload bytes of one packet (IBTA 9.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

impl PathMtu {
    /// Every value, ascending.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// Payload bytes of one packet.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Mtu256 => 256,
            Self::Mtu512 => 512,
            Self::Mtu1024 => 1024,
            Self::Mtu2048 => 2048,
            Self::Mtu4096 => 4096,
        }
    }

    /// The largest path MTU whose packets fit an interface MTU of `link` bytes, with 80 bytes for the headers (IPv6 40,
    /// UDP 8, BTH 12, RETH 16, ICRC 4), as Linux rxe computes it.
    pub fn for_link(link: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|m| m.bytes() + 80 <= link)
    }

    /// The value with exactly `bytes` payload bytes.
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.bytes() == bytes)
    }
}

bitflags::bitflags! {
    /// What a device does beyond the least that every one does. The consumer of a peer's device sends its capabilities,
    /// so that both sides know what they may rely on. Unknown bits are ignored.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Capabilities: u32 {
        /// Shared receive queues.
        const SRQ = 1;
        /// Immediate data with WRITEs and SENDs.
        const IMMEDIATE = 1 << 1;
        /// Unreliable datagrams.
        const DATAGRAMS = 1 << 2;
        /// A receive completion reports where plain WRITEs before it placed bytes ([`crate::Completion::placed`]), so
        /// that they can be counted.
        const COUNTS_WRITES = 1 << 3;
        /// A plain WRITE leaves as packets of equal length, which cost less than those of a WRITE with immediate, if
        /// the peer [`Self::COUNTS_WRITES`].
        const EVEN_WRITES = 1 << 4;
        /// Acknowledgements that nobody asked for are paid within a bounded time, so that peers need not ask for each.
        const OWES_ACKS = 1 << 5;
        /// All packets of the device come from the UDP port that its endpoints name.
        const FIXED_PORT = 1 << 6;
        /// Its packets of connections say that they may be marked instead of dropped (ECN), and it slows down when the
        /// peer notifies it of marks, as RoCEv2 has it (IBTA annex A17.9).
        const CONGESTION_CONTROL = 1 << 8;
        /// Unreliable connections, and a consumer that carries messages on them (docs/use/unreliable.md).
        const UNRELIABLE = 1 << 9;
        /// With [`Self::UNRELIABLE`]: a consumer that has places for WRITEs on them.
        const UNRELIABLE_WRITES = 1 << 10;
    }
}

impl Capabilities {
    /// Of a device that speaks RoCEv2 as the IBTA has it, and no more: hardware.
    pub const ROCE: Self =
        Self::SRQ.union(Self::IMMEDIATE).union(Self::DATAGRAMS).union(Self::UNRELIABLE).union(Self::UNRELIABLE_WRITES);
    /// Of the software NIC.
    pub const SOFTWARE_NIC: Self = Self::ROCE
        .union(Self::COUNTS_WRITES)
        .union(Self::EVEN_WRITES)
        .union(Self::OWES_ACKS)
        .union(Self::FIXED_PORT)
        .union(Self::CONGESTION_CONTROL);
}

/// What a device is and can hold.
#[derive(Debug, Clone)]
pub struct DeviceAttr {
    /// Device name: `softnic`, or as libibverbs names it.
    pub name: String,
    /// The port's address.
    pub gid: Gid,
    /// Destination UDP port of the port's packets: 4791, except for endpoints that share an address.
    pub udp_port: u16,
    /// Largest path MTU of the port.
    pub mtu: PathMtu,
    /// Longest message in bytes.
    pub max_msg_bytes: u32,
    /// Largest inline payload in bytes.
    pub max_inline_bytes: u32,
    /// Work requests a queue may hold.
    pub max_qp_wr: u32,
    /// Work requests an SRQ may hold.
    pub max_srq_wr: u32,
    /// Completions a CQ may hold.
    pub max_cqe: u32,
    /// Scatter/gather entries of one work request.
    pub max_sge: u32,
    /// Outstanding READs and atomics a QP may have as target, and as initiator.
    pub max_rd_atomic: u8,
    /// QPs of the device.
    pub max_qp: u32,
    /// Memory regions of the device.
    pub max_mr: u32,
    /// What it does beyond the least.
    pub capabilities: Capabilities,
    /// Bytes in flight that the port can buffer before packets are lost; `u32::MAX` for no bound that it knows. Peers
    /// cap their windows with it.
    pub rx_budget_bytes: u32,
}

/// Transport service of a QP (IBTA 9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: SENDs and WRITEs of any length to one peer, without acknowledgement. A message of which a
    /// packet is lost is lost as a whole; bytes of a WRITE that arrived before the loss stay in the peer's memory. A
    /// message that the network repeats arrives again, since the peer keeps no record of what came.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// State of a QP (IBTA 10.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Made, nothing may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained.
    Sqd,
    /// Send queue in error (not RC).
    Sqe,
    /// In error: all work requests are flushed.
    Err,
}

/// How to make a QP.
#[derive(Debug, Clone)]
pub struct QpInit {
    /// Transport service.
    pub qp_type: QpType,
    /// Whose memory its work requests, its receives (those of an SRQ too) and its peer's requests reach.
    pub pd: PdId,
    /// Where completions of the send queue go.
    pub send_cq: CqId,
    /// Where completions of the receive queue go.
    pub recv_cq: CqId,
    /// Receives come from this SRQ instead of a receive queue of the QP.
    pub srq: Option<SrqId>,
    /// Send work requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receive work requests that may be outstanding (ignored with an SRQ).
    pub max_recv_wr: u32,
    /// Scatter/gather entries of one send.
    pub max_send_sge: u32,
    /// Scatter/gather entries of one receive.
    pub max_recv_sge: u32,
    /// Inline bytes of one send.
    pub max_inline_bytes: u32,
    /// Every send gives a completion, signalled or not.
    pub sq_sig_all: bool,
}

impl QpInit {
    /// A QP of the device's own domain whose queues hold `depth` work requests of up to four entries each, 64 bytes inline, with one CQ for both.
    pub const fn new(qp_type: QpType, cq: CqId, depth: u32) -> Self {
        Self {
            qp_type,
            pd: PdId(0),
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_bytes: 64,
            sq_sig_all: false,
        }
    }
}

/// Where packets of a connected QP, or to an address handle, go (IBTA 12.7.20 address vector).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// The peer's port.
    pub gid: Gid,
    /// The peer's UDP port, 4791 for foreign stacks. Only the software NIC honours another value.
    pub udp_port: u16,
    /// IPv4 TTL, IPv6 hop limit; 0 leaves it to the system.
    pub hop_limit: u8,
    /// IPv4 TOS, IPv6 traffic class.
    pub traffic_class: u8,
    /// The address of this host that packets leave from, and at which those of a connected peer must arrive, where the
    /// device has several (verbs: the source GID index); none: its first. A device refuses one that is not its own.
    pub source: Option<Gid>,
}

impl AddressVector {
    /// From the device's first address to the port of `gid` at UDP 4791, hop limit 64.
    pub const fn new(gid: Gid) -> Self {
        Self { gid, udp_port: ROCE_UDP_PORT, hop_limit: 64, traffic_class: 0, source: None }
    }

    /// The same, from another address of the device.
    pub const fn from_source(self, source: Option<Gid>) -> Self {
        Self { source, ..self }
    }
}

/// How the packets of a device are marked for the network, unless an address says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathMarks {
    /// IPv4 TOS, IPv6 traffic class: DSCP in the upper six bits. The lower two are the device's own (ECN).
    pub traffic_class: u8,
    /// IPv4 TTL, IPv6 hop limit; 0 leaves it to the system.
    pub hop_limit: u8,
}

impl PathMarks {
    /// With this DSCP (0 to 63; RFC 2474) and hop limit.
    pub const fn new(dscp: u8, hop_limit: u8) -> Self {
        Self { traffic_class: dscp << 2, hop_limit }
    }

    /// An address whose packets are marked so.
    pub const fn on(self, to: AddressVector) -> AddressVector {
        AddressVector { hop_limit: self.hop_limit, traffic_class: self.traffic_class, ..to }
    }
}

impl Default for PathMarks {
    /// Best effort, hop limit 64.
    fn default() -> Self {
        Self::new(0, 64)
    }
}

/// UDP destination port of RoCEv2 (IANA; IBTA annex A17.4.4).
pub const ROCE_UDP_PORT: u16 = 4791;

/// A transition of a QP (IBTA 10.3.1, table 91), with exactly the attributes it needs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum QpModify {
    /// To Reset: outstanding work is forgotten without completions.
    Reset,
    /// Reset to Init.
    Init {
        /// What peers may do through the QP.
        access: Access,
        /// Queue key, for UD.
        qkey: Qkey,
    },
    /// Init to ready-to-receive.
    Rtr(RtrAttr),
    /// Ready-to-receive to ready-to-send.
    Rts(RtsAttr),
    /// Drain the send queue.
    Sqd,
    /// To Error: everything outstanding completes with `WrFlushErr`.
    Err,
}

/// Attributes of Init to RTR. A UC QP takes all but the READs and the RNR timer, which it does not have. A UD QP takes
/// none of them: its datagrams go where their address handles say, and are as long as the port's path MTU.
#[derive(Debug, Clone)]
pub struct RtrAttr {
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// PSN the peer starts with.
    pub rq_psn: Psn,
    /// The peer's port.
    pub av: AddressVector,
    /// Path MTU.
    pub mtu: PathMtu,
    /// READs and atomics the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// Code of the RNR timer sent to the peer (IBTA table 45): 0 means 655.36 ms, 1 means 10 us, 12 means 640 us.
    pub min_rnr_timer: u8,
    /// UDP source port of every packet of the peer: a packet from another port is dropped and counted. This is for
    /// peers that are software NICs. They send from the port of their socket, so that no other user of their host can
    /// send in their name. `None`: any port, for foreign stacks, which vary it (IBTA annex A17.4.4). Hardware ignores
    /// it.
    pub source_port: Option<u16>,
}

impl RtrAttr {
    /// Towards QP `dest_qpn` at `av`, which starts with PSN 0 and sends from any port: path MTU 1024, 16 READs and
    /// atomics, RNR timer 640 us.
    pub const fn new(dest_qpn: Qpn, av: AddressVector) -> Self {
        Self {
            dest_qpn,
            rq_psn: Psn::new(0),
            av,
            mtu: PathMtu::Mtu1024,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            source_port: None,
        }
    }
}

/// Attributes of RTR to RTS. A UC or UD QP takes `sq_psn` alone: it waits for no answer.
#[derive(Debug, Clone)]
pub struct RtsAttr {
    /// PSN this side starts with.
    pub sq_psn: Psn,
    /// Local ACK timeout: 4.096 us x 2^timeout, 0 means never (IBTA 9.7.6.1.3).
    pub timeout: u8,
    /// Transport retries before `RetryExcErr`, 0..=7.
    pub retry_cnt: u8,
    /// RNR retries before `RnrRetryExcErr`, 7 means for ever.
    pub rnr_retry: u8,
    /// READs and atomics outstanding at most.
    pub max_rd_atomic: u8,
    /// The peer's [`DeviceAttr::rx_budget_bytes`], if it gave one. It caps unacknowledged bytes. Hardware ignores it.
    pub peer_rx_budget_bytes: u32,
    /// What the peer's device does beyond the least, if its consumer said so. Hardware ignores it.
    pub peer: Capabilities,
}

impl Default for RtsAttr {
    /// From PSN 0: an ACK timeout of 67 ms, 7 retries, RNR retries for ever, 16 READs and atomics; of the peer nothing
    /// is known.
    fn default() -> Self {
        Self {
            sq_psn: Psn::new(0),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            peer_rx_budget_bytes: u32::MAX,
            peer: Capabilities::empty(),
        }
    }
}

/// What a QP is now.
#[derive(Debug, Clone)]
pub struct QpStatus {
    /// Transport service.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Send work requests posted and not completed.
    pub sq_outstanding: u32,
    /// Next PSN to send.
    pub sq_psn: Psn,
    /// Next PSN expected.
    pub rq_psn: Psn,
    /// Peer QP, once known.
    pub dest_qpn: Option<Qpn>,
}

/// How to make an SRQ.
#[derive(Debug, Clone, Copy)]
pub struct SrqInit {
    /// Receives it can hold.
    pub max_wr: u32,
    /// Scatter/gather entries of one receive.
    pub max_sge: u32,
    /// Raise [`crate::AsyncEvent::SrqLimit`] once when fewer receives are left; 0 means never.
    pub limit: u32,
}

/// A registered memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mr {
    /// Its name towards the provider.
    pub id: MrId,
    /// Key for local scatter/gather entries.
    pub lkey: Lkey,
    /// Key for peers.
    pub rkey: Rkey,
    /// Its length in bytes; addresses run from [`MrInit::iova`], which is 0 unless said otherwise.
    pub len: u64,
}

/// What is registered, and how.
#[derive(Debug, Clone, Copy)]
pub struct MrInit<'a> {
    /// The domain of the queue pairs that may use it.
    pub pd: PdId,
    /// The memory.
    pub region: &'a Region,
    /// Where in it the registration begins.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The address of its first byte in work requests, local and of peers.
    pub iova: u64,
    /// What may be done to it.
    pub access: Access,
}

impl<'a> MrInit<'a> {
    /// In the device's own domain, with addresses from 0.
    pub fn new(region: &'a Region, offset: u64, len: u64, access: Access) -> Self {
        Self { pd: PdId::default(), region, offset, len, iova: 0, access }
    }
}
