//! Work requests and completions.

use crate::{AhId, Lkey, Qkey, Qpn, Rkey};

/// A piece of local registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// Offset into the registered region.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key of the region.
    pub lkey: Lkey,
}

/// A place in a peer's registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Offset into the peer's region.
    pub addr: u64,
    /// The peer's key.
    pub rkey: Rkey,
}

/// The operation of a send work request (IBTA 11.4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm(u32),
    /// RDMA WRITE.
    Write(RemoteAddr),
    /// RDMA WRITE with immediate data.
    WriteImm(RemoteAddr, u32),
    /// RDMA READ into the payload's memory.
    Read(RemoteAddr),
    /// Compare and swap of 8 aligned bytes; the old value lands in the payload's memory.
    CmpSwap {
        /// The word.
        remote: RemoteAddr,
        /// Swap if it is this.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Fetch and add of 8 aligned bytes; the old value lands in the payload's memory.
    FetchAdd {
        /// The word.
        remote: RemoteAddr,
        /// What to add, modulo 2^64.
        add: u64,
    },
}

/// Bytes of a send work request.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// Registered memory, which must stay as it is until the completion.
    Sges(&'a [Sge]),
    /// Copied while posting; at most [`crate::QpInit::max_inline_bytes`].
    Inline(&'a [u8]),
}

bitflags::bitflags! {
    /// Modifiers of a send work request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u8 {
        /// Give a completion also on success.
        const SIGNALED = 1;
        /// The peer's completion is a solicited event.
        const SOLICITED = 1 << 1;
        /// Start only when earlier READs and atomics of the QP are done. A QP without them (UC, UD) ignores it.
        const FENCE = 1 << 2;
    }
}

/// Destination of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdDest {
    /// Where.
    pub ah: AhId,
    /// Which QP there.
    pub qpn: Qpn,
    /// Its queue key. One with the highest bit set stands for the key of the sending QP (IBTA 10.2.5).
    pub qkey: Qkey,
}

/// A send work request.
#[derive(Debug, Clone, Copy)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// With which bytes.
    pub payload: Payload<'a>,
    /// How.
    pub flags: SendFlags,
    /// The destination, on a UD QP. Messages of a UD QP are at most [`crate::DeviceAttr::mtu`] bytes long.
    pub dest: Option<UdDest>,
}

/// A receive work request.
#[derive(Debug, Clone, Copy)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where a SEND lands. A datagram lands after [`crate::GRH_BYTES`] of header.
    pub sges: &'a [Sge],
}

/// How a work request ended (IBTA 11.6.2; names as in libibverbs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Success,
    /// Message longer than the receive, or than the device allows.
    LocLenErr,
    /// The QP is inconsistent.
    LocQpOpErr,
    /// A local key, bound or access right does not hold.
    LocProtErr,
    /// The QP went into error before this request was executed, or during it.
    WrFlushErr,
    /// The responder sent something that the request does not allow.
    BadRespErr,
    /// The peer found the request invalid.
    RemInvReqErr,
    /// The peer's key, bound or access right does not hold.
    RemAccessErr,
    /// The peer could not execute the request.
    RemOpErr,
    /// The peer did not answer within all retries.
    RetryExcErr,
    /// The peer had no receive within all RNR retries.
    RnrRetryExcErr,
    /// Something else.
    GeneralErr,
}

/// What a completion is of. On RC a send completes when the peer has it; on UC and UD when it has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A SEND left.
    Send,
    /// A WRITE is done.
    Write,
    /// A READ is done.
    Read,
    /// A compare-and-swap is done.
    CmpSwap,
    /// A fetch-and-add is done.
    FetchAdd,
    /// A SEND arrived.
    Recv,
    /// A WRITE with immediate arrived.
    RecvWriteImm,
}

/// Where a peer's WRITEs put bytes through a QP since the QP's receive completion before this one. It includes the
/// bytes of the WRITE with immediate that is completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placed {
    /// The device does not report it: hardware.
    #[default]
    Untold,
    /// Nowhere: there was no byte.
    Nothing,
    /// In one piece, from its start to its end without a gap.
    Piece {
        /// Key of the region.
        rkey: Rkey,
        /// Offset into it.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// In several places, or not in ascending order.
    Scattered,
}

/// A completion queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Of the work request.
    pub wr_id: u64,
    /// How it ended. Of the other fields only `wr_id` and `qpn` are valid if it failed.
    pub status: Status,
    /// Of what.
    pub opcode: WcOpcode,
    /// Bytes received by this message alone (receives, READs, atomics). For a datagram this includes the
    /// [`crate::GRH_BYTES`] in front of it.
    pub byte_len: u32,
    /// The QP.
    pub qpn: Qpn,
    /// Immediate data, host order.
    pub imm: Option<u32>,
    /// Sender's QP (UD). If it is there, the first [`crate::GRH_BYTES`] of the receive hold a [`crate::Grh`]: over
    /// RoCEv2 each datagram has one.
    pub src_qpn: Option<Qpn>,
    /// Where peers put bytes before it (receives of a connected QP). A receiver uses it to check plain WRITEs that a
    /// message claims, because a completion has only the length of its own message.
    pub placed: Placed,
}
