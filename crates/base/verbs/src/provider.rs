//! The contract between the engine and a device.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::{
    AcceptAttr, Access, AddressVector, AhId, Capabilities, Completion, CqId, DatagramAttr, DatagramLink, DeviceAttr,
    Encrypt, Endpoint, Gid, Link, Mr, MrId, MrInit, OfferAttr, PathMarks, PathMtu, PdId, PostError, Psn, Qkey, QpInit,
    QpModify, QpStatus, Qpn, RecvWr, Region, RoceEndpoint, RocePort, RtrAttr, RtsAttr, SendWr, SrqId, SrqInit, UdDest,
    VerbsError, Wire,
};

/// Why a device refuses [`OfferAttr::local`] and [`DatagramAttr::local`].
const NOT_AT: &str = "an address that is none of its own: give it that address when it is opened";

/// Something that happened to an object outside its work requests (IBTA 11.6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The QP went into error, for another reason than the two below.
    QpFatal(Qpn),
    /// The QP went into error because the peer's request broke a rule of the transport or was not supported (invalid
    /// request local work queue error, IBTA 11.6.3.2).
    QpRequestError(Qpn),
    /// The QP went into error because the peer's request had a key, bounds or rights that do not hold (local access
    /// violation work queue error, IBTA 11.6.3.2).
    QpAccessError(Qpn),
    /// Everything that the QP had begun to send before it was moved to SQD is answered.
    SqDrained(Qpn),
    /// A packet of the peer's address came to the QP from another UDP port than [`crate::RtrAttr::source_port`]. The
    /// event comes once for each time that the QP is connected.
    StrangePort {
        /// The QP.
        qpn: Qpn,
        /// The packet's source port.
        found: u16,
    },
    /// The way to that address takes packets of this path MTU at most. QPs with a larger one lose what they send.
    PathMtu {
        /// The peer.
        peer: IpAddr,
        /// What fits.
        mtu: PathMtu,
    },
    /// The keys by which the device encrypts what the QP sends and receives are worn. `is_due`: they have protected nearly
    /// as much as they may, and another QP, with keys of its own, is to take this one's place soon; at the bound this one
    /// breaks, and until then the event is repeated. Before that it comes once at a quarter: from then on the peer, which
    /// counts otherwise, may give the QP up for the same cause.
    KeysWorn {
        /// The QP.
        qpn: Qpn,
        /// Whether another one is to take its place now.
        is_due: bool,
    },
    /// First packet arrived at a QP in RTR.
    CommEstablished(Qpn),
    /// The QP with an SRQ consumed its last receive after it went into error.
    LastWqeReached(Qpn),
    /// Fewer receives than the limit are left.
    SrqLimit(SrqId),
    /// A CQ overflowed; its QPs are in error.
    CqError(CqId),
    /// The port went down.
    PortDown,
    /// The port came up.
    PortUp,
    /// The device is gone.
    DeviceFatal,
}

/// Counters of a device by name; names are stable and documented by the device.
pub type Counters = Vec<(&'static str, u64)>;

/// An open context of a device, which executes verbs. A [`crate::Device`] opens one for each owner.
///
/// One owner calls it (`&mut self`). A provider that works in several threads locks inside, and never holds a lock
/// across a system call that can block. Calls do not block unless their description says so.
///
/// **Progress.** [`Self::poll_cq`] makes progress inline on devices that need the CPU; [`Self::progress`] does the same
/// without taking completions. A caller that wants to sleep calls [`Self::req_notify_cq`], polls once more (the
/// completion may have come before the arming), then waits until one of [`Self::wait_fds`] is readable or
/// [`Self::deadline`] has passed, and calls [`Self::progress`].
pub trait Provider {
    /// What the device is and can hold.
    fn device(&self) -> &DeviceAttr;

    /// Makes a CQ of at least `cqe` entries.
    fn create_cq(&mut self, cqe: u32) -> Result<CqId, VerbsError>;
    /// Destroys a CQ that no QP uses.
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError>;

    /// Makes an SRQ.
    fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, VerbsError>;
    /// Destroys an SRQ that no QP uses.
    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError>;
    /// Arms the limit of an SRQ again, or for the first time: [`AsyncEvent::SrqLimit`] comes once when fewer receives
    /// than `limit` are left. If fewer are left already, it comes with the next receive that is taken. 0 disarms it.
    fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        let _ = (srq, limit);
        let device = self.device().name.clone();
        Err(VerbsError::Unsupported { device, what: "arming the limit of a shared receive queue" })
    }

    /// Makes a QP in state Reset with a number that was not used recently.
    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbsError>;
    /// Moves a QP to another state.
    fn modify_qp(&mut self, qpn: Qpn, to: &QpModify) -> Result<(), VerbsError>;
    /// Reads a QP's state.
    fn query_qp(&self, qpn: Qpn) -> Result<QpStatus, VerbsError>;
    /// Destroys a QP. Its outstanding work gives no more completions; completions that are in the CQ stay there.
    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError>;

    // ---- set-up of a connection, whatever the device

    /// Whether the device is at this address, so that [`OfferAttr::local`], [`DatagramAttr::local`] and
    /// [`AddressVector::source`] may name it.
    fn is_at(&self, gid: Gid) -> bool {
        self.device().gid == gid
    }

    /// How packets of connections and ways that [`Self::accept`] and [`Self::accept_datagrams`] make are marked.
    fn path_marks(&self) -> PathMarks {
        PathMarks::default()
    }

    /// Takes a connected queue pair (RC or UC) from Reset to Init, and says what the peer's device needs to know of it.
    ///
    /// The default is that of devices that speak RoCEv2.
    fn offer(&mut self, qpn: Qpn, attr: &OfferAttr) -> Result<Endpoint, VerbsError> {
        let qp_type = self.query_qp(qpn)?.qp_type;
        if !qp_type.is_connected() {
            return Err(VerbsError::NoSuch("connected QP"));
        }
        if attr.encrypt == Encrypt::Required {
            return Err(VerbsError::NotEncrypted("this host's device cannot encrypt: use the software NIC"));
        }
        let gid = attr.local.map_or(self.device().gid, Gid::from);
        if !self.is_at(gid) {
            let device = self.device().name.clone();
            return Err(VerbsError::Unsupported { device, what: NOT_AT });
        }
        self.modify_qp(qpn, &QpModify::Init { access: attr.access, qkey: Qkey(0) })?;
        let device = self.device();
        let own = RoceEndpoint {
            qp_type,
            qpn,
            psn: Psn::new(attr.entropy),
            gid,
            udp_port: device.udp_port,
            mtu: device.mtu.min(attr.mtu_max),
            max_rd_atomic: device.max_rd_atomic,
            rx_budget_bytes: device.rx_budget_bytes,
        };
        Ok(own.to_endpoint())
    }

    /// Connects a queue pair whose own endpoint is `own`, from [`Self::offer`], to the peer's: it is ready to send and
    /// to receive. `peer` is a peer's input: what cannot be is refused, and nothing changed.
    ///
    /// The default is that of devices that speak RoCEv2.
    fn accept(&mut self, qpn: Qpn, own: &Endpoint, peer: &Endpoint, attr: &AcceptAttr) -> Result<Link, VerbsError> {
        let (own, peer) = (RoceEndpoint::parse(own)?, RoceEndpoint::parse(peer)?);
        own.check_service(&peer)?;
        let mtu = own.mtu.min(peer.mtu);
        let source = Some(own.gid).filter(|gid| *gid != self.device().gid);
        self.modify_qp(
            qpn,
            &QpModify::Rtr(RtrAttr {
                dest_qpn: peer.qpn,
                rq_psn: peer.psn,
                av: self.path_marks().on(peer.address_vector()).from_source(source),
                mtu,
                max_dest_rd_atomic: own.max_rd_atomic,
                min_rnr_timer: attr.min_rnr_timer,
                source_port: attr.peer.contains(Capabilities::FIXED_PORT).then_some(peer.udp_port),
            }),
        )?;
        self.modify_qp(
            qpn,
            &QpModify::Rts(RtsAttr {
                sq_psn: own.psn,
                timeout: attr.timeout,
                retry_cnt: attr.retry_cnt,
                rnr_retry: attr.rnr_retry,
                max_rd_atomic: own.max_rd_atomic.min(peer.max_rd_atomic),
                peer_rx_budget_bytes: peer.rx_budget_bytes,
                peer: attr.peer,
            }),
        )?;
        Ok(Link {
            peer: SocketAddr::new(peer.gid.ip(), peer.udp_port),
            peer_qpn: peer.qpn.0,
            mtu,
            reads_max: own.max_rd_atomic.min(peer.max_rd_atomic),
            wire: Wire::Roce,
            wire_reason: "the device has no other wire",
            cipher: None,
            encryption_reason: "the device of this end does not encrypt: software NICs alone do",
        })
    }

    /// Says what peers need to know of a UD queue pair with this key, at one address of the device. With
    /// [`Encrypt::Required`] it tells nobody where datagrams in the clear would go.
    fn offer_datagrams(&self, qpn: Qpn, qkey: Qkey, attr: &DatagramAttr) -> Result<Endpoint, VerbsError> {
        let device = self.device();
        let udp_port = if attr.encrypt == Encrypt::Required { 0 } else { device.udp_port };
        let gid = attr.local.map_or(device.gid, Gid::from);
        if !self.is_at(gid) {
            return Err(VerbsError::Unsupported { device: device.name.clone(), what: NOT_AT });
        }
        Ok(RocePort { qpn, qkey, gid, udp_port }.to_endpoint())
    }

    /// Makes the way to a peer's datagram port, which is the peer's input as in [`Self::accept`]. `beside`: the
    /// connection to the same peer that was accepted last, whose endpoints also said whether datagrams are encrypted,
    /// and with what. None: one of the two ends wants none in the clear, and they cannot be encrypted. Each connection
    /// gives keys for one way.
    fn accept_datagrams(
        &mut self,
        peer: &Endpoint,
        beside: Qpn,
        attr: &DatagramAttr,
    ) -> Result<Option<DatagramLink>, VerbsError> {
        let _ = beside;
        let peer = RocePort::parse(peer)?;
        if attr.encrypt == Encrypt::Required || peer.udp_port == 0 {
            return Ok(None);
        }
        let to = self.path_marks().on(peer.address_vector()).from_source(attr.source());
        let ah = self.create_ah(&to)?;
        let dest = UdDest { ah, qpn: peer.qpn, qkey: peer.qkey };
        Ok(Some(DatagramLink { dest, address: peer.gid.ip(), cipher: None }))
    }

    /// Makes an address handle for UD sends.
    fn create_ah(&mut self, av: &AddressVector) -> Result<AhId, VerbsError>;
    /// Destroys an address handle.
    fn destroy_ah(&mut self, ah: AhId) -> Result<(), VerbsError>;

    /// Makes a protection domain.
    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        let device = self.device().name.clone();
        Err(VerbsError::Unsupported { device, what: "protection domains beside its own" })
    }
    /// Gives a protection domain back that no QP and no memory region is in.
    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        let _ = pd;
        Err(VerbsError::NoSuch("protection domain"))
    }

    /// Registers memory. The provider keeps it mapped until the MR is gone, unless it is a program's own
    /// ([`Region::of_program`]): where that was unmapped, an operation on it fails, with [`crate::Status::LocProtErr`] or
    /// the peer's [`crate::Status::RemAccessErr`].
    fn register(&mut self, init: &MrInit<'_>) -> Result<Mr, VerbsError> {
        if init.pd != PdId::default() || init.iova != 0 {
            let device = self.device().name.clone();
            return Err(VerbsError::Unsupported { device, what: "domains and addresses of registered memory" });
        }
        self.reg_mr(init.region, init.offset, init.len, init.access)
    }
    /// Registers `len` bytes of `region` from `offset` in the device's own domain; the MR's addresses run from 0. The
    /// provider keeps the memory mapped until the MR is gone.
    fn reg_mr(&mut self, region: &Region, offset: u64, len: u64, access: Access) -> Result<Mr, VerbsError>;
    /// Deregisters a region. When it returns, no operation touches the memory any more.
    fn dereg_mr(&mut self, mr: MrId) -> Result<(), VerbsError>;

    /// Whether registered memory is pinned: the device keeps the pages that it saw at registration, so that they must
    /// not be given back to the system. True for hardware; false where a CPU reads and writes memory as the process
    /// maps it.
    fn pins_memory(&self) -> bool {
        true
    }

    /// Makes a range of a registered region read as zero, and gives its whole pages back to the system, at one instant
    /// of the device's work on it.
    ///
    /// With `unreported`, the range may hold bytes that a peer placed through that QP and that [`Self::poll_cq`] has
    /// not reported yet: bytes of a WRITE that has arrived in part, of a plain WRITE after which no receive completed,
    /// or of a completion that waits in the CQ. Then nothing is done, and the result is false. Bytes that come later
    /// are placed as usual.
    ///
    /// Refused with [`VerbsError::Unsupported`] by a device that pins memory.
    fn try_discard(&mut self, mr: MrId, offset: u64, len: u64, unreported: Option<Qpn>) -> Result<bool, VerbsError> {
        let _ = (mr, offset, len, unreported);
        Err(VerbsError::Unsupported { device: self.device().name.clone(), what: "giving back pinned memory" })
    }

    /// Posts to the send queue, all or up to the first refused.
    fn post_send(&mut self, qpn: Qpn, wrs: &[SendWr<'_>]) -> Result<(), PostError>;
    /// Posts to a QP's own receive queue.
    fn post_recv(&mut self, qpn: Qpn, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;
    /// Posts to an SRQ.
    fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Takes receives back out of an SRQ, at most `max` and the last that were posted first, and appends their `wr_id`s
    /// to `out`. No message has touched their memory, and they give no completion. Says how many.
    ///
    /// Verbs have no such call: the default, which hardware keeps, takes back none.
    fn withdraw_srq_recv(&mut self, srq: SrqId, max: usize, out: &mut Vec<u64>) -> Result<usize, VerbsError> {
        let _ = (srq, max, out);
        Ok(0)
    }

    /// Appends up to `max` completions to `out`, oldest first, and says how many; makes progress inline.
    fn poll_cq(&mut self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> Result<usize, VerbsError>;
    /// Asks for one wake-up at the next completion (with `solicited_only`, the next solicited or failed one).
    fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError>;

    /// Takes the CQ whose wake-up was due first, of those that [`Self::req_notify_cq`] armed and that got their
    /// completion: each once for each time that it was armed, unless it was armed and due again before this call. `None`
    /// also from a device that tells of all its CQs together.
    fn poll_cq_event(&mut self) -> Option<CqId> {
        None
    }
    /// Takes the oldest asynchronous event.
    fn poll_event(&mut self) -> Option<AsyncEvent>;

    /// Does the device's work that is due: input, output, timers. Says whether anything was done. Then the caller looks at
    /// its CQs: no wake-up is owed for completions that came in this call.
    fn progress(&mut self) -> bool {
        false
    }

    /// Appends the descriptors that turn readable when the device wants [`Self::progress`] after
    /// [`Self::req_notify_cq`]. Level-triggered; `progress` makes them unreadable again.
    fn wait_fds<'a>(&'a self, out: &mut Vec<BorrowedFd<'a>>) {
        let _ = out;
    }

    /// How long the caller may sleep before the device needs [`Self::progress`] for its timers.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Counters of the device, for `raas stat`.
    fn counters(&self) -> Counters {
        Vec::new()
    }
}
