//! Verbs calls about connected queue pairs, each handed to the wire that the queue pair is on.
//!
//! A queue pair is made in the RoCEv2 machine, which knows its number and its places in CQs and SRQs for as long as it
//! lives. If both ends choose TCP, the RoCEv2 machine lends it ([`roce::Nic::lend_qp`]) to the TCP wire until it is
//! reset or destroyed.

use std::net::SocketAddr;

use iwarp::Qp;
use records::CIPHER;
use verbs::{
    AcceptAttr, DatagramAttr, DatagramLink, Encrypt, Endpoint, Gid, Link, MrId, OfferAttr, PathMtu, PostError,
    Provider, Psn, Qkey, QpModify, QpStatus, QpType, Qpn, RecvWr, Rkey, RoceEndpoint, SendWr, VerbsError, Wire,
    WirePolicy,
};

use super::Port;
use crate::tcp::{Choice, FPDU_BYTES, TcpPart, Wires, choose};
use wires::{accept_datagrams, accept_roce};

/// Posts one by one and says where it stopped.
fn post_each<W>(wrs: &[W], mut post: impl FnMut(&W) -> Result<(), VerbsError>) -> Result<(), PostError> {
    wrs.iter().enumerate().try_for_each(|(index, wr)| post(wr).map_err(|cause| PostError { index, cause }))
}

fn at_most(what: &'static str, value: u8, max: u8) -> Result<(), VerbsError> {
    if value <= max {
        return Ok(());
    }
    Err(VerbsError::OutOfRange { what, value: value.into(), min: 0, max: max.into() })
}

impl Port {
    /// [`Provider::offer`], with all wires that the device's policy and the consumer's allow.
    pub(crate) fn offer(&mut self, qpn: Qpn, attr: &OfferAttr, policy: WirePolicy) -> Result<Endpoint, VerbsError> {
        let qp_type = self.nic.query_qp(qpn)?.qp_type;
        if !qp_type.is_connected() {
            return Err(VerbsError::NoSuch("connected QP"));
        }
        let is_tcp_alone = !policy.allows(Wire::Roce) || !attr.wire.allows(Wire::Roce);
        if is_tcp_alone && qp_type != QpType::Rc {
            return Err(VerbsError::NotOnWire { wire: Wire::Iwarp, qp_type });
        }
        let wants_tcp = qp_type == QpType::Rc && policy.allows(Wire::Iwarp) && attr.wire.allows(Wire::Iwarp);
        let device = self.nic.device();
        let gid = attr.local.map_or(device.gid, Gid::from);
        if !self.nic.is_at(gid) {
            let what = "connections at that address: name it in SoftNicConfig::standby when the NIC is opened";
            return Err(VerbsError::Unsupported { device: device.name.clone(), what });
        }
        let [clear, sealed] = self.sockets.mtu_at(gid).unwrap_or([device.mtu, self.sealed_mtu]);
        let largest = if attr.encrypt == Encrypt::Off { clear } else { sealed };
        let mtu = largest.min(attr.mtu_max);
        let roce = RoceEndpoint {
            qp_type,
            qpn,
            psn: Psn::new(attr.entropy),
            gid,
            udp_port: device.udp_port,
            mtu,
            max_rd_atomic: device.max_rd_atomic,
            rx_budget_bytes: device.rx_budget_bytes,
        };
        let none = VerbsError::NoCommonWire { own: policy.to_string(), peer: attr.wire.to_string() };
        let max_rd_atomic = device.max_rd_atomic;
        self.nic.modify_qp(qpn, &QpModify::Init { access: attr.access, qkey: Qkey(0) })?;
        let now = self.now();
        let encryption = self.secrets.offer(qpn, attr.encrypt);
        let tcp = self.tcp.as_mut().filter(|_| wants_tcp).map(|tcp| TcpPart {
            qpn,
            gid,
            port: tcp.port(),
            token: tcp.offer(qpn),
            // It moves bytes at less cost than RoCEv2, unless something on the way lets RoCEv2 alone pass.
            is_preferred: !attr.peer.is_some_and(|peer| tcp.is_unreached(now, peer)),
            wants_crc: false,
            is_extended: true,
            confirms: true,
            fpdu_bytes: FPDU_BYTES,
            max_rd_atomic,
            mtu,
            encryption,
            seals_packets: true,
        });
        let sealed = encryption.filter(|_| tcp.is_none());
        let wires = Wires { roce: Some(roce), tcp, sealed }.allowed(policy).allowed(attr.wire);
        wires.to_endpoint().unwrap_or(Err(none))
    }

    /// [`Provider::accept`], over the wire that both ends choose.
    pub(crate) fn accept(
        &mut self,
        qpn: Qpn,
        own: &Endpoint,
        peer: &Endpoint,
        attr: &AcceptAttr,
    ) -> Result<Link, VerbsError> {
        let (own_wires, peer_wires) = (Wires::parse(own)?, Wires::parse(peer)?);
        let requires = |wires: &Wires| wires.encryption().is_some_and(|e| e.is_required);
        let (choice, wire_reason) = choose(&own_wires, &peer_wires).map_err(|error| match error {
            VerbsError::NoCommonWire { .. } if requires(&own_wires) => VerbsError::NotEncrypted(
                "the peer's device has no wire on which this end can: it needs a software NIC with `encrypt`",
            ),
            VerbsError::NoCommonWire { .. } if requires(&peer_wires) => {
                VerbsError::NotEncrypted("only the peer's end has it so: this end has no wire that is encrypted")
            }
            other => other,
        })?;
        match choice {
            Choice::Roce(..) => {
                let link = accept_roce(&mut self.nic, &mut self.secrets, qpn, (own, peer), attr)?;
                if let Some(tcp) = &mut self.tcp {
                    tcp.forget_offer(qpn);
                }
                Ok(Link { wire_reason, ..link })
            }
            Choice::Tcp(own, peer) => {
                self.secrets.check(qpn, &own_wires)?;
                let link = self.accept_tcp(qpn, (own, peer), attr, wire_reason)?;
                self.secrets.on_connected(qpn, &own_wires, &peer_wires);
                Ok(link)
            }
        }
    }

    /// [`Provider::accept_datagrams`].
    pub(crate) fn accept_datagrams(
        &mut self,
        peer: &Endpoint,
        beside: Qpn,
        attr: &DatagramAttr,
    ) -> Result<Option<DatagramLink>, VerbsError> {
        accept_datagrams(&mut self.nic, &mut self.secrets, peer, beside, attr)
    }

    fn accept_tcp(
        &mut self,
        qpn: Qpn,
        (own, peer): (TcpPart, TcpPart),
        attr: &AcceptAttr,
        wire_reason: &'static str,
    ) -> Result<Link, VerbsError> {
        at_most("timeout", attr.timeout, 31)?;
        at_most("retry_cnt", attr.retry_cnt, 7)?;
        let (now, device) = (self.now(), self.nic.device());
        let unsupported = |what| VerbsError::Unsupported { device: device.name.clone(), what };
        if is_ipv4(own.gid) != is_ipv4(peer.gid) {
            return Err(unsupported("a peer of the other IP version: give the port an address of the peer's version"));
        }
        let max_msg_bytes = device.max_msg_bytes;
        let (keys, encryption_reason) = own.keys_with(&peer)?;
        let cipher = keys.as_ref().map(|_| CIPHER);
        let missing = unsupported("the wire over TCP: it did not listen when the NIC was opened");
        let Self { nic, tcp, .. } = self;
        let tcp = tcp.as_mut().filter(|_| own.qpn == qpn).ok_or(missing)?;
        let encryption_reason = if keys.is_some() { tcp.encryption_reason() } else { encryption_reason };
        let lent = nic.lend_qp(qpn)?;
        let made = own.qp_attr(&peer, &lent, max_msg_bytes);
        let dev = nic.device_mut();
        tcp.connect(now, dev, Qp::new(made, lent.receives), (own, peer), attr, keys);
        nic.settle_overflows();
        let mtu: PathMtu = own.mtu.min(peer.mtu);
        let peer_address: SocketAddr = peer.address();
        let reads_max = own.max_rd_atomic.min(peer.max_rd_atomic);
        let (wire, peer_qpn) = (Wire::Iwarp, peer.qpn.0);
        Ok(Link { peer: peer_address, peer_qpn, mtu, reads_max, wire, wire_reason, cipher, encryption_reason })
    }

    pub(crate) fn modify_qp(&mut self, qpn: Qpn, to: &QpModify) -> Result<(), VerbsError> {
        let now = self.now();
        if matches!(to, QpModify::Reset | QpModify::Rtr(_)) {
            self.secrets.forget(qpn);
        }
        let Self { nic, tcp, .. } = self;
        if let Some(tcp) = tcp {
            match (to, tcp.qp(qpn)) {
                (QpModify::Reset, _) => tcp.remove(qpn, nic.device_mut(), now),
                (_, Some(qp)) => {
                    let modified = match to {
                        QpModify::Err => {
                            qp.abort(nic.device_mut());
                            Ok(())
                        }
                        _ => Err(VerbsError::WrongState {
                            state: qp.status().state,
                            what: "this transition on TCP: to Err or to Reset",
                        }),
                    };
                    tcp.on_call(qpn, nic.device_mut(), now);
                    nic.settle_overflows();
                    return modified;
                }
                (QpModify::Rtr(_) | QpModify::Err, None) => tcp.forget_offer(qpn),
                _ => {}
            }
        }
        nic.modify_qp(qpn, to)
    }

    pub(crate) fn query_qp(&self, qpn: Qpn) -> Result<QpStatus, VerbsError> {
        match self.tcp.as_ref().and_then(|tcp| tcp.qp_ref(qpn)) {
            Some(qp) => Ok(qp.status()),
            None => self.nic.query_qp(qpn),
        }
    }

    pub(crate) fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        let now = self.now();
        self.secrets.forget(qpn);
        if let Some(tcp) = &mut self.tcp {
            tcp.remove(qpn, self.nic.device_mut(), now);
        }
        self.nic.destroy_qp(qpn)
    }

    pub(crate) fn post_send(&mut self, qpn: Qpn, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let Self { nic, tcp, clock, .. } = self;
        let Some((tcp, now)) = tcp.as_mut().filter(|tcp| tcp.qp_ref(qpn).is_some()).map(|tcp| (tcp, clock.now()))
        else {
            return nic.post_send(qpn, wrs);
        };
        let dev = nic.device_mut();
        let posted = match tcp.qp(qpn) {
            Some(qp) => post_each(wrs, |wr| qp.post_send(wr, dev)),
            None => Ok(()),
        };
        tcp.on_call(qpn, dev, now);
        nic.settle_overflows();
        posted
    }

    pub(crate) fn post_recv(&mut self, qpn: Qpn, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let Self { nic, tcp, clock, .. } = self;
        let Some((tcp, now)) = tcp.as_mut().filter(|tcp| tcp.qp_ref(qpn).is_some()).map(|tcp| (tcp, clock.now()))
        else {
            return nic.post_recv(qpn, wrs);
        };
        let dev = nic.device_mut();
        let posted = match tcp.qp(qpn) {
            Some(qp) => post_each(wrs, |wr| qp.post_recv(wr, dev)),
            None => Ok(()),
        };
        tcp.on_call(qpn, dev, now);
        nic.settle_overflows();
        posted
    }

    pub(crate) fn try_discard(
        &mut self,
        mr: MrId,
        offset: u64,
        len: u64,
        unreported: Option<Qpn>,
    ) -> Result<bool, VerbsError> {
        let on_tcp = unreported.and_then(|qpn| self.tcp.as_ref()?.qp_ref(qpn));
        let Some(qp) = on_tcp else { return self.nic.try_discard(mr, offset, len, unreported) };
        let dev = self.nic.base();
        let cq = dev.cqs.get(qp.init().recv_cq.0).ok_or(VerbsError::NoSuch("CQ"))?;
        // The rkey of a region is its number.
        if !cq.is_empty() || qp.has_unreported(Rkey(mr.0), offset, len) {
            return Ok(false);
        }
        dev.mrs.discard(mr, offset, len).map(|()| true)
    }
}

fn is_ipv4(gid: Gid) -> bool {
    gid.ip().is_ipv4()
}
